//! Reads the environment: one variable for each key that is not a list.

use std::ffi::OsString;

use super::keys;
use super::value::Given;
use super::{Config, Location, Problem};

const PREFIX: &str = "TIDINGS_";

/// Variables that belong to this project but set no configuration key: the log filter, the path of the configuration
/// file, and variables of other commands and of tests.
const OTHERS: &[&str] = &[
    "TIDINGS_LOG",
    "TIDINGS_CONFIG",
    "TIDINGS_ADMIN_KEY",
    "TIDINGS_TOKEN",
    "TIDINGS_SERVER",
    "TIDINGS_HOOK_SECRET",
    "TIDINGS_URL",
    "TIDINGS_POWER_CUTS",
    "TIDINGS_KILL_ROUNDS",
    "TIDINGS_ENTITY_CONNECTIONS",
    "TIDINGS_ROOM_EVENTS",
    "TIDINGS_FUZZ_REQUESTS",
    "TIDINGS_FUZZ_SEED",
    "TIDINGS_SCHEMA_EXAMPLES",
    "TIDINGS_WRITE_OPENAPI",
];

/// Returns whether Kubernetes sets this variable in every container when a service is named `tidings`.
fn is_of_kubernetes(name: &str) -> bool {
    ["TIDINGS_SERVICE_HOST", "TIDINGS_SERVICE_PORT", "TIDINGS_PORT"].contains(&name)
        || name.starts_with("TIDINGS_SERVICE_PORT_")
        || name.starts_with("TIDINGS_PORT_")
}

/// Applies environment variables. An empty variable is ignored. An unknown variable is only a warning, because others
/// use such names too: an orchestrator names variables after its services.
pub(super) fn apply(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    config: &mut Config,
    problems: &mut Vec<Problem>,
) {
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if OTHERS.contains(&name) || is_of_kubernetes(name) {
            continue;
        }
        let known = keys::all().find(|key| key.variable().as_deref() == Some(name));
        let what = match (known, value.to_str()) {
            (None, _) => {
                config.warnings.push(format!(
                    "{name} is not a variable of tidings and sets nothing; `tidings default-config` lists all keys"
                ));
                None
            }
            (Some(_), None) => Some("is not text in UTF-8".to_owned()),
            (Some(_), Some("")) => None,
            (Some(key), Some(value)) => {
                config.locations.0.remove(key.name);
                (key.set)(config, &Given::Variable(value)).err()
            }
        };
        problems.extend(what.map(|what| Problem { location: Location::Variable(name.to_owned()), what }));
    }
}
