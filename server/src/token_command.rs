//! `tidings token`: signs a token.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tidings_auth::Scope;
use tidings_model::{Pattern, ProjectId};

use crate::admin::{Store, WantedToken, Where};
use crate::command::CommandError;
use tidings_server::duration;

/// Print a token for a project.
///
/// Without --stream, --session, --topics, --rooms and --entities the token allows the whole project; with any of them,
/// only what they name. Each except --session can be repeated.
///
/// In a pattern, `.`, `:` and `/` separate segments. `*` matches any text within one segment; `**`, as a whole segment,
/// matches zero or more segments: `orders/**` matches orders, orders/1 and orders/1/items.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings token --project shop --scope write --data ./tidings-data\n  \
    tidings token --project shop --scope read --user alice --stream 'orders/*' --ttl 15m --server http://127.0.0.1:4437")]
pub struct TokenCommand {
    /// Project id.
    #[arg(long, value_parser = ProjectId::parse)]
    project: ProjectId,
    /// Scope of the token: manage includes write, and write includes read.
    #[arg(long, value_name = "read|write|manage", value_parser = scope)]
    scope: Scope,
    /// User id in your application.
    #[arg(long)]
    user: Option<String>,
    /// Allow streams that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    stream: Vec<Pattern>,
    /// Allow only this session.
    #[arg(long)]
    session: Option<String>,
    /// Allow topics that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    topics: Vec<Pattern>,
    /// Allow rooms that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    rooms: Vec<Pattern>,
    /// Allow entities that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    entities: Vec<Pattern>,
    /// Lifetime of the token, such as 90s, 30m, 1h or 7d.
    #[arg(long, default_value = "1h", value_parser = duration::parse)]
    ttl: Duration,
    #[command(flatten)]
    place: Where,
}

impl TokenCommand {
    /// Runs the command. Prints only the token, so that a shell can capture it.
    pub fn run(self) -> Result<(), CommandError> {
        if self.ttl.is_zero() {
            return Err(CommandError::NoTime);
        }
        let globs = |globs: &[Pattern]| -> Option<Value> {
            (!globs.is_empty()).then(|| globs.iter().map(Pattern::as_str).collect())
        };
        let claims = [
            ("scope", Some(self.scope.as_str().into())),
            ("streams", globs(&self.stream)),
            ("topics", globs(&self.topics)),
            ("rooms", globs(&self.rooms)),
            ("entities", globs(&self.entities)),
            ("session", self.session.map(Value::from)),
        ];
        let wanted = WantedToken {
            project: self.project,
            user: self.user,
            ttl: self.ttl,
            claims: claims.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect(),
        };
        println!("{}", self.place.open(Store::MustBeThere)?.sign(wanted)?);
        Ok(())
    }
}

fn scope(text: &str) -> Result<Scope, &'static str> {
    Scope::parse(text).ok_or("a scope is read, write or manage")
}
