//! `tidings token`: signs a token.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tidings_auth::Scope;
use tidings_model::{Pattern, ProjectId};

use crate::admin::{AdminTarget, Store, WantedToken};
use crate::command::CommandError;
use tidings_server::duration;

/// Print a token for a project.
///
/// Without --stream, --session, --topics, --subscribe, --publish, --rooms and --entities the token allows the whole
/// project; with any of them, only what they name. Each except --session can be repeated.
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
    /// Id of the token, by which it can be revoked.
    #[arg(long, value_name = "ID")]
    jti: Option<String>,
    /// Allow streams that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    stream: Vec<Pattern>,
    /// Allow only this session.
    #[arg(long)]
    session: Option<String>,
    /// Allow to subscribe and to publish to topics that match this pattern; the scope read only subscribes.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    topics: Vec<Pattern>,
    /// Allow to subscribe to topics that match this pattern.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    subscribe: Vec<Pattern>,
    /// Allow to publish to topics that match this pattern, with the scope write.
    #[arg(long, value_name = "GLOB", value_parser = Pattern::parse)]
    publish: Vec<Pattern>,
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
    target: AdminTarget,
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
        let topics = topics_claim(&self.topics, &self.subscribe, &self.publish);
        let claims = [
            ("scope", Some(self.scope.as_str().into())),
            ("jti", self.jti.map(Value::from)),
            ("streams", globs(&self.stream)),
            ("topics", topics),
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
        println!("{}", self.target.open(Store::MustBeThere)?.sign(wanted)?);
        Ok(())
    }
}

/// The claim of topics for patterns for both ways, to subscribe to, and to publish to; `None` without any.
fn topics_claim(both: &[Pattern], subscribe: &[Pattern], publish: &[Pattern]) -> Option<Value> {
    let texts = |way: &[Pattern]| both.iter().chain(way).map(Pattern::as_str).collect::<Value>();
    match (both, subscribe, publish) {
        ([], [], []) => None,
        (_, [], []) => Some(texts(&[])),
        _ => Some(json!({ "subscribe": texts(subscribe), "publish": texts(publish) })),
    }
}

fn scope(text: &str) -> Result<Scope, &'static str> {
    Scope::parse(text).ok_or("a scope is read, write or manage")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_for_both_ways_or_for_one() {
        let globs = |texts: &[&str]| -> Vec<Pattern> {
            texts.iter().map(|text| Pattern::parse(text).expect("a valid glob")).collect()
        };
        for (both, subscribe, publish, claim) in [
            (&[][..], &[][..], &[][..], None),
            (&["a", "b"], &[], &[], Some(json!(["a", "b"]))),
            (&[], &["a"], &[], Some(json!({ "subscribe": ["a"], "publish": [] }))),
            (&[], &[], &["a"], Some(json!({ "subscribe": [], "publish": ["a"] }))),
            (&["a"], &["b"], &["c"], Some(json!({ "subscribe": ["a", "b"], "publish": ["a", "c"] }))),
        ] {
            assert_eq!(topics_claim(&globs(both), &globs(subscribe), &globs(publish)), claim);
        }
    }
}
