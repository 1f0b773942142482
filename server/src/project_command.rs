//! `tidings project` and `tidings admin-key`: projects, their signing keys and the admin key.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use tidings_auth::Key;
use tidings_model::ProjectId;

use crate::admin::{AdminTarget, CreatedKey, Stopped, Store};
use crate::command::CommandError;
use crate::greeting::TerminalStyle;

/// Create, list and remove projects and their keys.
///
/// Works on the store of a stopped server (--data) or through a running server (--server).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings project create shop --data ./tidings-data\n  \
    TIDINGS_ADMIN_KEY=… tidings project list --server http://127.0.0.1:4437")]
pub struct ProjectCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a project and print its keys; they are not shown again.
    Create(Create),
    /// List projects with the ids of their keys.
    List(List),
    /// Add a signing key to a project and print it; it is not shown again. Older keys stay valid until they are removed.
    RotateKey(RotateKey),
    /// Remove a signing key. All tokens that it signed become invalid.
    RemoveKey(RemoveKey),
    /// Remove a project and everything in it.
    Remove(Remove),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidings project create shop\n  \
    tidings project create shop --key \"$(cat secret.txt)\" --json")]
struct Create {
    /// Project id: letters, digits, _ and -.
    #[arg(value_parser = ProjectId::parse)]
    name: ProjectId,
    /// Signing key, for several servers that share one [default: a random key].
    #[arg(long, value_name = "SECRET")]
    key: Option<String>,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    target: AdminTarget,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings project list --json")]
struct List {
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    target: AdminTarget,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings project rotate-key shop")]
struct RotateKey {
    /// Project id.
    #[arg(value_parser = ProjectId::parse)]
    name: ProjectId,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    target: AdminTarget,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings project remove-key shop 6f9c2a41d07be358")]
struct RemoveKey {
    /// Project id.
    #[arg(value_parser = ProjectId::parse)]
    name: ProjectId,
    /// Key id, as shown by `tidings project list`.
    kid: String,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    target: AdminTarget,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings project remove shop")]
struct Remove {
    /// Project id.
    #[arg(value_parser = ProjectId::parse)]
    name: ProjectId,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    target: AdminTarget,
}

#[derive(Debug, Args)]
struct Form {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Create or replace the admin key and print it; it is not shown again.
///
/// The admin key allows everything in every project. The server must be stopped.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  export TIDINGS_ADMIN_KEY=$(tidings admin-key --data ./tidings-data)")]
pub struct AdminKeyCommand {
    /// Data folder of a stopped server [default: TIDINGS_DATA, or ./tidings-data].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl AdminKeyCommand {
    /// Runs the command. Prints only the key to stdout, so that a shell can capture it.
    pub fn run(self) -> Result<(), CommandError> {
        let key = Stopped::open(self.data, Store::MayBeNew)?.set_admin_key()?;
        println!("{}", key.reveal());
        eprintln!("This is the admin key; it is not shown again. Commands take it from TIDINGS_ADMIN_KEY.");
        Ok(())
    }
}

impl ProjectCommand {
    /// Runs the command.
    pub fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Create(Create { name, key, form, target }) => {
                let key = key.map(|key| Key::parse(&key)).transpose()?;
                form.print_made(&target.open(Store::MayBeNew)?.create(&name, key)?);
            }
            Verb::List(List { form, target }) => form.print_list(target)?,
            Verb::RotateKey(RotateKey { name, form, target }) => {
                form.print_made(&target.open(Store::MustBeThere)?.rotate_key(&name)?);
            }
            Verb::RemoveKey(RemoveKey { name, kid, form, target }) => {
                target.open(Store::MustBeThere)?.remove_key(&name, &kid)?;
                form.print_removed(
                    &json!({ "project": name.as_str(), "kid": kid }),
                    &format!("key {kid} of {name}"),
                );
            }
            Verb::Remove(Remove { name, form, target }) => {
                target.open(Store::MustBeThere)?.remove(&name)?;
                form.print_removed(&json!({ "project": name.as_str() }), &format!("project {name}"));
            }
        }
        Ok(())
    }
}

impl Form {
    fn print_made(&self, made: &CreatedKey) {
        let CreatedKey { project, kid, key, api_key } = made;
        if self.json {
            println!("{}", json!({ "project": project, "kid": kid, "key": key, "apiKey": api_key }));
            return;
        }
        let style = TerminalStyle::of_stdout();
        println!("project  {}", style.bold(project));
        println!("kid      {kid}");
        println!("key      {}", style.bold(key));
        println!("API key  {}", style.bold(api_key));
        println!("The key signs tokens, the API key hands in events. Neither is shown again.");
    }

    fn print_list(&self, target: AdminTarget) -> Result<(), CommandError> {
        let projects = target.open(Store::MustBeThere)?.list()?;
        if self.json {
            let projects = projects.iter().map(|one| json!({ "project": one.project, "kids": one.kids }));
            println!("{}", json!({ "projects": projects.collect::<Vec<_>>() }));
            return Ok(());
        }
        for one in &projects {
            println!("{}  {}", TerminalStyle::of_stdout().bold(&one.project), one.kids.join(" "));
        }
        if projects.is_empty() {
            println!("there are no projects; create one: tidings project create NAME");
        }
        Ok(())
    }

    fn print_removed(&self, json: &serde_json::Value, text: &str) {
        if self.json { println!("{json}") } else { println!("removed {text}") }
    }
}
