//! `tidings hooks`: manages the hooks of a running server, and receives deliveries on this machine.

mod listen;
mod printable;
mod project_hooks;
mod received;
mod settings;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::value::RawValue;
use tidings_hooks::{DeliveryStatus, HookId};
use tidings_model::{ProjectId, Ulid};
use tidings_server::duration;

use self::listen::Listen;
use self::project_hooks::ProjectHooks;
use self::settings::Settings;
use crate::client::Client;
use crate::command::CommandError;

/// Manage the hooks of a running server, send events, and receive deliveries on this machine.
///
/// The token in TIDINGS_TOKEN is sent as the credential: one of the project, its API key, or the admin key.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks create 'orders.*' http://127.0.0.1:9000/\n  \
    tidings hooks listen --port 9000 --secret whsec_…\n  \
    tidings hooks send orders.paid --data '{\"amount\":7}'")]
pub struct HooksCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a hook and print its id and its secret, which is not shown again.
    Create(Create),
    /// List the hooks of a project, the newest first.
    #[command(after_help = "Example:\n  tidings hooks list --project shop")]
    List(InProject),
    /// Print a hook with its settings and statistics.
    #[command(after_help = "Example:\n  tidings hooks show 01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    Show(OneHook),
    /// List the hooks that an event of a type would be delivered to, without sending one.
    #[command(after_help = "Example:\n  tidings hooks match orders.paid")]
    Match(Match),
    /// Send an event. It is delivered to every hook that it matches.
    Send(Send),
    /// Send a test event to one hook, whatever its pattern.
    #[command(after_help = "Example:\n  tidings hooks test 01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    Test(OneHook),
    /// List the deliveries of a hook, the oldest first.
    Deliveries(Deliveries),
    /// List the attempts of a delivery, the first one first.
    #[command(
        after_help = "Example:\n  tidings hooks attempts 01JCZ8T5N3QK4W8Y2V6X0ABCDE 3JQZBTPJ0KWF96QD37HDD7X016"
    )]
    Attempts(Attempts),
    /// List the deliveries of a hook that were given up, the newest first.
    #[command(after_help = "Example:\n  tidings hooks dead-letters 01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    DeadLetters(OneHook),
    /// Deliver dead letters again.
    Retry(Retry),
    /// Deliver events of the past to a hook once more, or for the first time.
    Replay(Replay),
    /// Stop deliveries to a hook until it is resumed.
    #[command(after_help = "Example:\n  tidings hooks pause 01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    Pause(OneHook),
    /// Continue deliveries to a hook.
    Resume(Resume),
    /// Replace the secret of a hook and print the new one, which is not shown again.
    RotateSecret(RotateSecret),
    /// Delete a hook with its deliveries and dead letters.
    #[command(after_help = "Example:\n  tidings hooks delete 01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    Delete(OneHook),
    Listen(Listen),
}

/// Where the hooks are, and how they are printed.
#[derive(Debug, Args)]
struct InProject {
    /// URL of the server.
    #[arg(long, env = "TIDINGS_SERVER", default_value = "http://127.0.0.1:4437", value_name = "URL")]
    server: String,
    /// Project of the hooks.
    #[arg(long, default_value = "_default", value_parser = ProjectId::parse)]
    project: ProjectId,
    /// Print JSON; lists have one entry per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct OneHook {
    /// Id of the hook.
    #[arg(value_parser = hook_id)]
    id: HookId,
    #[command(flatten)]
    at: InProject,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks create 'orders.*' https://example.com/orders\n  \
    tidings hooks create 'orders.**' https://example.com/orders --filter '{\"/amount\":{\"gt\":100}}'\n  \
    tidings hooks create 'webhook.github.*' --worker my-worker --method handleGitHubEvent")]
struct Create {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    at: InProject,
}

#[derive(Debug, Args)]
struct Match {
    /// Type of the event.
    #[arg(value_name = "TYPE")]
    event_type: String,
    #[command(flatten)]
    at: InProject,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks send orders.paid\n  \
    tidings hooks send orders.paid --data '{\"amount\":7}' --id order-1-paid")]
struct Send {
    /// Type of the event: 1 to 10 segments of letters, digits, _ and -, separated by dots.
    #[arg(value_name = "TYPE")]
    event_type: String,
    /// Further members of the event, as a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    data: Option<Members>,
    /// Id of the event, by which a repetition is recognised [default: one that the server draws].
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    at: InProject,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks deliveries 01JCZ8T5N3QK4W8Y2V6X0ABCDE\n  \
    tidings hooks deliveries 01JCZ8T5N3QK4W8Y2V6X0ABCDE --status failed")]
struct Deliveries {
    /// List only deliveries in this state.
    #[arg(long, value_name = "pending|failed|delivered|dead", value_parser = delivery_status)]
    status: Option<DeliveryStatus>,
    #[command(flatten)]
    hook: OneHook,
}

#[derive(Debug, Args)]
struct Attempts {
    #[command(flatten)]
    hook: OneHook,
    /// Id of the delivery, which is the webhook-id of its requests.
    #[arg(value_parser = delivery_id)]
    delivery: Ulid,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks retry 01JCZ8T5N3QK4W8Y2V6X0ABCDE 01JCZ8XGNC3T4M5W1ZQ8B0ABCD\n  \
    tidings hooks retry 01JCZ8T5N3QK4W8Y2V6X0ABCDE --all\n  \
    tidings hooks retry 01JCZ8T5N3QK4W8Y2V6X0ABCDE --error 'HTTP 503' --from 2026-01-15T10:00:00Z")]
struct Retry {
    #[command(flatten)]
    hook: OneHook,
    /// Id of the dead letter.
    #[arg(value_parser = dead_letter_id, required_unless_present_any = ["all", "error", "from", "to"])]
    dead_letter: Option<Ulid>,
    /// Retry all dead letters of the hook.
    #[arg(long, conflicts_with = "dead_letter")]
    all: bool,
    /// Retry the dead letters whose last error contains this text.
    #[arg(long, value_name = "TEXT", conflicts_with = "dead_letter")]
    error: Option<String>,
    /// Retry the dead letters that were given up at this time or later, in ISO 8601.
    #[arg(long, value_name = "TIME", conflicts_with = "dead_letter")]
    from: Option<String>,
    /// Retry the dead letters that were given up before this time, in ISO 8601.
    #[arg(long, value_name = "TIME", conflicts_with = "dead_letter")]
    to: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks replay 01JCZ8T5N3QK4W8Y2V6X0ABCDE --from 2026-01-15T10:00:00Z\n  \
    tidings hooks replay 01JCZ8T5N3QK4W8Y2V6X0ABCDE --from 0010000000000042_0000000000000000")]
struct Replay {
    /// Time of arrival of the first event, in ISO 8601, or the position of the event before it.
    #[arg(long, value_name = "TIME|POSITION")]
    from: String,
    /// Time of arrival, or position, of the last event [default: the newest event].
    #[arg(long, value_name = "TIME|POSITION")]
    to: Option<String>,
    #[command(flatten)]
    hook: OneHook,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks resume 01JCZ8T5N3QK4W8Y2V6X0ABCDE\n  \
    tidings hooks resume 01JCZ8T5N3QK4W8Y2V6X0ABCDE --replay")]
struct Resume {
    /// Deliver also the events that arrived while the hook was paused.
    #[arg(long)]
    replay: bool,
    #[command(flatten)]
    hook: OneHook,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks rotate-secret 01JCZ8T5N3QK4W8Y2V6X0ABCDE\n  \
    tidings hooks rotate-secret 01JCZ8T5N3QK4W8Y2V6X0ABCDE --overlap 0s")]
struct RotateSecret {
    /// Time for which the old secret signs beside the new one, such as 1h or 7d.
    #[arg(long, default_value = "1d", value_parser = duration::parse)]
    overlap: Duration,
    #[command(flatten)]
    hook: OneHook,
}

/// Members of a JSON object, each as it was written.
type Members = BTreeMap<String, Box<RawValue>>;

fn json_object(text: &str) -> Result<Members, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

fn hook_id(text: &str) -> Result<HookId, String> {
    HookId::parse(text).ok_or_else(|| expected_id("hook"))
}

fn delivery_id(text: &str) -> Result<Ulid, String> {
    Ulid::parse(text).map_err(|_| expected_id("delivery"))
}

fn dead_letter_id(text: &str) -> Result<Ulid, String> {
    Ulid::parse(text).map_err(|_| expected_id("dead letter"))
}

fn expected_id(of: &str) -> String {
    format!("the id of a {of} is 26 letters and digits")
}

fn delivery_status(text: &str) -> Result<DeliveryStatus, &'static str> {
    DeliveryStatus::parse(text).ok_or("a status is pending, failed, delivered or dead")
}

impl HooksCommand {
    /// Runs the command.
    pub fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Create(Create { settings, at }) => at.open()?.create(&settings),
            Verb::List(at) => at.open()?.list(),
            Verb::Show(OneHook { id, at }) => at.open()?.show(id),
            Verb::Match(Match { event_type, at }) => at.open()?.matching(&event_type),
            Verb::Send(Send { event_type, data, id, at }) => {
                at.open()?.send(&event_type, data.unwrap_or_default(), id.as_deref())
            }
            Verb::Test(OneHook { id, at }) => at.open()?.test(id),
            Verb::Deliveries(Deliveries { status, hook: OneHook { id, at } }) => {
                at.open()?.deliveries(id, status)
            }
            Verb::Attempts(Attempts { hook: OneHook { id, at }, delivery }) => {
                at.open()?.attempts(id, delivery)
            }
            Verb::DeadLetters(OneHook { id, at }) => at.open()?.dead_letters(id),
            Verb::Retry(retry) => retry.run(),
            Verb::Replay(Replay { from, to, hook: OneHook { id, at } }) => {
                at.open()?.replay(id, &from, to.as_deref())
            }
            Verb::Pause(OneHook { id, at }) => at.open()?.pause(id),
            Verb::Resume(Resume { replay, hook: OneHook { id, at } }) => at.open()?.resume(id, replay),
            Verb::RotateSecret(RotateSecret { overlap, hook: OneHook { id, at } }) => {
                at.open()?.rotate_secret(id, overlap)
            }
            Verb::Delete(OneHook { id, at }) => at.open()?.delete(id),
            Verb::Listen(listen) => listen.run(),
        }
    }
}

impl InProject {
    fn open(self) -> Result<ProjectHooks, CommandError> {
        let client = Client::new(&self.server, "TIDINGS_TOKEN")?;
        Ok(ProjectHooks::new(client, self.project, self.json))
    }
}

impl Retry {
    fn run(self) -> Result<(), CommandError> {
        let Self { hook: OneHook { id, at }, dead_letter, all: _, error, from, to } = self;
        let hooks = at.open()?;
        match dead_letter {
            Some(letter) => hooks.retry(id, letter),
            None => {
                let given = [("error", error), ("from", from), ("to", to)];
                let given =
                    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
                hooks.retry_many(id, given.collect())
            }
        }
    }
}
