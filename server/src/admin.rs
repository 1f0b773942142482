//! Where projects are administered: in the store of a stopped server, or by asking a running one.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::{Map, Value, json};
use tidings_auth::{AdminKey, Claims, Declined, Given, Key, Kid, NewKey, ProjectError, Projects};
use tidings_embedded::OpenError;
use tidings_embedded::checkpoint::MANIFEST;
use tidings_engine::{Clock, WallClock};
use tidings_model::ProjectId;
use tidings_server::{Config, StartError, StoredProjects};
use tokio::runtime::Runtime;

use crate::client::{Ask, Client, percent_encoded};
use crate::command::CommandError;

/// The server to administer: its data folder, or the URL of a running one.
#[derive(Debug, Args)]
pub struct AdminTarget {
    /// Folder of the data of a stopped server; TIDINGS_DATA, or ./tidings-data, without it.
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    data: Option<PathBuf>,
    /// The configuration of the stopped server, if it gives projects or names the folder.
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// URL of a running server. It wants its admin key in TIDINGS_ADMIN_KEY.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

/// Whether a folder without a store gets one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    MayBeNew,
    MustBeThere,
}

/// Whoever administers.
pub enum Admin {
    /// In the store of a stopped server.
    Stopped(Stopped),
    /// By asking a running one.
    Running(Box<Client>),
}

/// The store of a stopped server; no server can have it meanwhile.
pub struct Stopped {
    stored: StoredProjects,
    runtime: Runtime,
}

/// A token to be signed.
pub struct WantedToken {
    pub project: ProjectId,
    /// The user of the application, if it is for one.
    pub user: Option<String>,
    pub ttl: Duration,
    /// Its scope and what restricts it, as a token has them.
    pub claims: Map<String, Value>,
}

/// A key that was just made: the only time its secrets are seen.
pub struct CreatedKey {
    pub project: String,
    pub kid: String,
    pub key: String,
    pub api_key: String,
}

/// A project and the names of its keys.
pub struct Listed {
    pub project: String,
    pub kids: Vec<String>,
}

impl AdminTarget {
    /// Opens the store, or gets ready to ask.
    pub fn open(self, store: Store) -> Result<Admin, CommandError> {
        match self.server {
            Some(server) => Ok(Admin::Running(Box::new(Client::new(&server, "TIDINGS_ADMIN_KEY")?))),
            None => Ok(Admin::Stopped(Stopped::open_as_set(self.data, self.config, store)?)),
        }
    }
}

impl Stopped {
    /// Opens the store in a folder, or in the one that the environment or the default names.
    pub fn open(data: Option<PathBuf>, store: Store) -> Result<Self, CommandError> {
        let variable = || std::env::var_os("TIDINGS_DATA").filter(|data| !data.is_empty()).map(PathBuf::from);
        let data = data.or_else(variable).unwrap_or_else(|| Config::default().data);
        Self::open_beside(data, Given::default(), store)
    }

    /// The same with what a configuration says, if there is one: the projects that it gives, and where the folder is.
    fn open_as_set(
        data: Option<PathBuf>,
        config: Option<PathBuf>,
        store: Store,
    ) -> Result<Self, CommandError> {
        let Some(file) = config.filter(|file| !file.as_os_str().is_empty()) else {
            return Self::open(data, store);
        };
        let config = Config::load(Some(&file), std::env::vars_os())?;
        Self::open_beside(data.unwrap_or(config.data), config.given, store)
    }

    fn open_beside(data: PathBuf, given: Given, store: Store) -> Result<Self, CommandError> {
        if store == Store::MustBeThere && !data.join(MANIFEST).is_file() {
            return Err(CommandError::NoStore(data));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let stored = StoredProjects::open_beside(&data, given).map_err(|error| match error {
            StartError::Store(OpenError::InUse(_)) => CommandError::InUse(data),
            error => CommandError::Start(error),
        })?;
        Ok(Self { stored, runtime })
    }

    /// Replaces the admin key by a new one.
    pub fn set_admin_key(&self) -> Result<AdminKey, CommandError> {
        self.wait(self.projects().set_admin_key(None))
    }

    fn projects(&self) -> &Projects {
        self.stored.projects()
    }

    fn wait<T>(&self, change: impl Future<Output = Result<T, ProjectError>>) -> Result<T, CommandError> {
        self.runtime.block_on(change).map_err(|error| match error {
            ProjectError::Declined(Declined::Removing) => CommandError::Removing,
            error => CommandError::Project(error),
        })
    }
}

impl Admin {
    /// Creates a project, with a key of its own or the one that was chosen.
    pub fn create(&self, project: &ProjectId, key: Option<Key>) -> Result<CreatedKey, CommandError> {
        match self {
            Self::Stopped(stopped) => {
                Ok(CreatedKey::from(stopped.wait(stopped.projects().create(project, key))?))
            }
            Self::Running(client) => {
                let mut body = json!({ "project": project.as_str() });
                if let Some(key) = key {
                    body["key"] = key.reveal().into();
                }
                CreatedKey::from_answer(client, &post(client, "/v1/projects", &body)?)
            }
        }
    }

    /// All projects, by name.
    pub fn list(&self) -> Result<Vec<Listed>, CommandError> {
        match self {
            Self::Stopped(stopped) => Ok(stopped.projects().list().into_iter().map(Listed::from).collect()),
            Self::Running(client) => {
                let answer = client.json(&client.ask(&Ask::new(Method::GET, "/v1/projects"))?)?;
                let projects = answer["projects"].as_array().ok_or_else(|| client.unexpected_answer())?;
                projects.iter().map(|project| Listed::from_answer(client, project)).collect()
            }
        }
    }

    /// Gives a project a new key. The older ones are valid until they are removed.
    pub fn rotate_key(&self, project: &ProjectId) -> Result<CreatedKey, CommandError> {
        match self {
            Self::Stopped(stopped) => {
                Ok(CreatedKey::from(stopped.wait(stopped.projects().rotate_key(project, None))?))
            }
            Self::Running(client) => CreatedKey::from_answer(
                client,
                &post(client, &format!("/v1/projects/{project}/keys"), &json!({}))?,
            ),
        }
    }

    /// Ends a key and all that was signed with it.
    pub fn remove_key(&self, project: &ProjectId, kid: &str) -> Result<(), CommandError> {
        match self {
            Self::Stopped(stopped) => stopped.wait(stopped.projects().remove_key(project, &Kid::named(kid))),
            Self::Running(client) => {
                let kid = percent_encoded(kid).replace('/', "%2F");
                delete(client, &format!("/v1/projects/{project}/keys/{kid}"))
            }
        }
    }

    /// Removes a project with all that is in it.
    pub fn remove(&self, project: &ProjectId) -> Result<(), CommandError> {
        match self {
            Self::Stopped(stopped) => stopped.wait(stopped.projects().remove(project)),
            Self::Running(client) => delete(client, &format!("/v1/projects/{project}")),
        }
    }

    /// Signs a token.
    pub fn sign(&self, wanted: WantedToken) -> Result<String, CommandError> {
        let WantedToken { project, user, ttl, mut claims } = wanted;
        match self {
            Self::Stopped(stopped) => {
                let now = WallClock.now();
                let expires_at = (now + ttl).as_millis().div_ceil(1000);
                claims.insert("iat".to_owned(), (now.as_millis() / 1000).into());
                claims.extend(user.map(|user| ("sub".to_owned(), user.into())));
                claims.insert("project".to_owned(), project.as_str().into());
                claims.insert("exp".to_owned(), expires_at.into());
                Ok(stopped.projects().sign(&Claims::from_json(claims)?)?)
            }
            Self::Running(client) => {
                claims.extend(user.map(|user| ("user".to_owned(), user.into())));
                claims.insert("ttlSeconds".to_owned(), ttl.as_secs().into());
                let answer = post(client, &format!("/v1/projects/{project}/tokens"), &Value::Object(claims))?;
                Ok(answer["token"].as_str().ok_or_else(|| client.unexpected_answer())?.to_owned())
            }
        }
    }
}

impl CreatedKey {
    /// Parses the answer of a server.
    fn from_answer(client: &Client, answer: &Value) -> Result<Self, CommandError> {
        let text =
            |name: &str| answer[name].as_str().map(str::to_owned).ok_or_else(|| client.unexpected_answer());
        Ok(Self { project: text("project")?, kid: text("kid")?, key: text("key")?, api_key: text("apiKey")? })
    }
}

impl From<NewKey> for CreatedKey {
    fn from(made: NewKey) -> Self {
        Self {
            project: made.project.to_string(),
            kid: made.key.kid().to_string(),
            key: made.key.reveal().to_owned(),
            api_key: made.api_key(),
        }
    }
}

impl Listed {
    /// Parses the answer of a server.
    fn from_answer(client: &Client, answer: &Value) -> Result<Self, CommandError> {
        let kids = answer["kids"].as_array().into_iter().flatten();
        Ok(Self {
            project: answer["project"].as_str().ok_or_else(|| client.unexpected_answer())?.to_owned(),
            kids: kids.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}

impl From<tidings_auth::Listed> for Listed {
    fn from(listed: tidings_auth::Listed) -> Self {
        Self { project: listed.project.to_string(), kids: listed.kids.iter().map(Kid::to_string).collect() }
    }
}

fn delete(client: &Client, path: &str) -> Result<(), CommandError> {
    client.ask(&Ask::new(Method::DELETE, path))?;
    Ok(())
}

fn post(client: &Client, path: &str, body: &Value) -> Result<Value, CommandError> {
    let body = body.to_string();
    let headers = [("content-type", "application/json")];
    let ask = Ask { headers: &headers, body: Some(body.as_bytes()), ..Ask::new(Method::POST, path) };
    Ok(client.json(&client.ask(&ask)?)?)
}
