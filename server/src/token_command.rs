//! `tidings token`: a credential for somebody.

use std::time::Duration;

use clap::{Args, ValueEnum};
use tidings_auth::{Claims, Resources, Scope};
use tidings_engine::{Clock, WallClock};
use tidings_model::{Pattern, ProjectId};

use crate::admin::{Store, Where};
use crate::command::CommandError;
use crate::duration;

/// Print a token for a project. Without --stream, --session, --topics, --rooms and --entities it is for the whole project;
/// with any of them, for what they name alone. Each but --session can be given several times.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings token --project shop --scope write --data ./tidings-data\n  \
    tidings token --project shop --scope read --user alice --stream 'orders/*' --ttl 15m --server http://127.0.0.1:4437")]
pub struct TokenCommand {
    /// The project.
    #[arg(long, value_parser = ProjectId::parse)]
    project: ProjectId,
    /// How much it may do: manage includes write, and write includes read.
    #[arg(long, value_enum)]
    scope: ScopeName,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeName {
    Read,
    Write,
    Manage,
}

impl TokenCommand {
    /// Does it. Only the token is printed, so that it can be caught in a variable.
    pub fn run(self) -> Result<(), CommandError> {
        let some = |globs: Vec<Pattern>| (!globs.is_empty()).then_some(globs);
        let claims = Claims {
            project: self.project,
            user: self.user.map(Into::into),
            scope: match self.scope {
                ScopeName::Read => Scope::Read,
                ScopeName::Write => Scope::Write,
                ScopeName::Manage => Scope::Manage,
            },
            expires_at: WallClock.now() + self.ttl,
            not_before: None,
            resources: Resources {
                stream_id: None,
                streams: some(self.stream),
                topics: some(self.topics),
                rooms: some(self.rooms),
                entities: some(self.entities),
                session: self.session.map(Into::into),
            },
        };
        println!("{}", self.place.open(Store::MustBeThere)?.sign(&claims)?);
        Ok(())
    }
}
