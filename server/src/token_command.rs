//! `tidings token`: a credential for somebody.

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
/// Without --stream, --session, --topics, --rooms and --entities it is for the whole project;
/// with any of them, for what they name alone. Each but --session can be given several times.
///
/// In a pattern `.`, `:` and `/` separate segments. `*` stands for anything inside of one segment; `**`, as a segment of
/// its own, for any number of segments, also none: `orders/**` is orders, orders/1 and orders/1/items.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings token --project shop --scope write --data ./tidings-data\n  \
    tidings token --project shop --scope read --user alice --stream 'orders/*' --ttl 15m --server http://127.0.0.1:4437")]
pub struct TokenCommand {
    /// The project.
    #[arg(long, value_parser = ProjectId::parse)]
    project: ProjectId,
    /// How much it may do: manage includes write, and write includes read.
    #[arg(long, value_name = "read|write|manage", value_parser = scope)]
    scope: Scope,
    /// The user of your application that it is for.
    #[arg(long)]
    user: Option<String>,
    /// Streams that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    stream: Vec<Pattern>,
    /// This session.
    #[arg(long)]
    session: Option<String>,
    /// Topics that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    topics: Vec<Pattern>,
    /// Rooms that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    rooms: Vec<Pattern>,
    /// Entities that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    entities: Vec<Pattern>,
    /// How long it is valid, such as 90s, 30m, 1h or 7d.
    #[arg(long, default_value = "1h", value_parser = duration::parse)]
    ttl: Duration,
    #[command(flatten)]
    place: Where,
}

impl TokenCommand {
    /// Does it. Only the token is printed, so that it can be caught in a variable.
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
