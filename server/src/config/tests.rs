use std::ffi::OsString;
use std::io::Write as _;

use super::keys::{self, Key};
use super::*;

fn read(text: &str) -> Result<Config, String> {
    read_with(text, &[])
}

fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let variables = variables.iter().map(|&(name, value)| (OsString::from(name), OsString::from(value)));
    let told = Config::load(Some(file.path()), variables);
    told.map_err(|error| error.to_string().replace(&file.path().display().to_string(), "file"))
}

/// Returns the default file with every key that has no default set to its example.
fn with_examples() -> String {
    let example = |line: &str| {
        let name = line.strip_prefix('#')?.split(" = ").next()?;
        name.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| line[1..].to_owned())
    };
    let mut text: Vec<String> = Vec::new();
    for line in DEFAULT_FILE.lines() {
        match example(line) {
            Some(line) if line.starts_with("projects") => {
                text.retain(|line| line != "projects = []");
                text.push(line);
            }
            Some(line) => text.push(line),
            None => text.push(line.to_owned()),
        }
    }
    text.join("\n")
}

#[test]
fn the_default_file_says_what_is_so_without_it() {
    let config = read(DEFAULT_FILE).expect("good");
    assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
}

#[test]
fn the_default_file_has_every_key_in_order() {
    let mut section = String::new();
    let mut names = Vec::new();
    for line in DEFAULT_FILE.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| !name.contains(' ')) {
            names.push(format!("{section}{}", name.trim_start_matches('#')));
        }
    }
    names.dedup();
    let keys: Vec<_> = keys::all().map(|key| key.name).collect();
    assert_eq!(names, keys);
}

#[test]
fn the_examples_of_the_default_file_are_good() {
    let config = read(&with_examples()).expect("good");
    let (project, keys) = &config.given.projects[0];
    assert_eq!(project.as_str(), "shop");
    assert_eq!(keys[0].reveal(), "a-long-random-secret-of-your-own");
    assert!(config.given.admin.is_some() && config.tls().is_some());
    assert!(config.observe.metrics_listen.is_some() && config.log.otlp_endpoint.is_some());
    assert_eq!(config.check(), Ok(()));
}

#[test]
fn a_variable_wins_over_the_file_and_an_empty_one_says_nothing() {
    let text = "data = 'file'\n[streams]\nsse_max_seconds = 5\nlong_poll_timeout_ms = 7";
    let variables =
        [("TIDINGS_STREAMS_SSE_MAX_SECONDS", "6"), ("TIDINGS_DATA", ""), ("TIDINGS_LOG", "debug")];
    let config = read_with(text, &variables).expect("good");
    assert_eq!(config.data, PathBuf::from("file"));
    assert_eq!(config.capabilities.streams.sse_duration, Duration::from_secs(6));
    assert_eq!(config.capabilities.streams.long_poll_timeout, Duration::from_millis(7));
    assert_eq!(
        config.capabilities.streams.max_append_bytes,
        Config::default().capabilities.streams.max_append_bytes
    );
}

#[test]
fn toml_is_read_in_all_its_forms() {
    let text = "streams.sse_max_seconds = 0x1F\r\nstreams.long_poll_timeout_ms = 10_000\r\n\
                limits = { connections = +7 }\r\n[[auth.projects]]\r\nid = \"a\"\r\nkeys = ['sixteen-bytes-of-1']\r\n\
                [[auth.projects]]\r\nid = \"b\"\r\nkeys = [\"\"\"sixteen-bytes-of-2\"\"\"]";
    let config = read(text).expect("good");
    assert_eq!(config.capabilities.streams.sse_duration, Duration::from_secs(31));
    assert_eq!(config.capabilities.streams.long_poll_timeout, Duration::from_secs(10));
    assert_eq!(config.limits.connections, 7);
    assert_eq!(config.given.projects.len(), 2);
    let error = read("[limits]\nconnections = 1\nconnections = 2").expect_err("twice");
    assert_eq!(error, "file:3: connections is there twice");
    let error = read(
        "[auth]\nprojects = [{id='a',keys=['sixteen-bytes-of-1']},{id='a',keys=['sixteen-bytes-of-2']}]",
    );
    assert_eq!(error.expect_err("twice"), "file:2: auth.projects names a twice");
}

#[test]
fn every_key_that_is_not_a_list_has_a_variable_of_its_own() {
    let mut variables: Vec<_> = keys::all().filter_map(Key::variable).collect();
    assert_eq!(variables.len(), keys::all().count() - 1);
    assert!(variables.contains(&"TIDINGS_METRICS_LISTEN".to_owned()));
    assert!(variables.contains(&"TIDINGS_LIMITS_HEADER_BYTES".to_owned()));
    variables.sort();
    variables.dedup();
    assert_eq!(variables.len(), keys::all().count() - 1);
}

#[test]
fn unknown_keys_are_told_with_line_and_key() {
    for (text, told) in [
        ("\nlissten = 1", "file:2: lissten is not a key; known before the sections: listen, data, dev"),
        (
            "[streams]\n\nsse = 1",
            "file:3: streams.sse is not a key; known in [streams]: long_poll_timeout_ms,",
        ),
        ("[store.deep]\nx = 1", "file:1: store.deep is not a key; known in [store]: commit_window_us, sync"),
        ("[strems]\nsse_max_seconds = 1", "file:1: strems is not a key; known before the sections: "),
        ("streams = 4", "file:1: streams is a section: write [streams] on a line of its own"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.starts_with(told), "{error}");
    }
}

#[test]
fn a_variable_that_sets_nothing_is_a_warning_and_those_of_kubernetes_are_not_looked_at() {
    let warnings =
        |variables: &[(&str, &str)]| read_with("", variables).expect("no reason not to start").warnings;
    for name in ["TIDINGS_STREAMS_SSE", "TIDINGS_AUTH_PROJECTS", "TIDINGS_METRICS_SERVICE_HOST"] {
        let told = warnings(&[(name, "1")]);
        assert_eq!(told.len(), 1, "{name}");
        assert!(told[0].starts_with(&format!("{name} is not a variable of tidings")), "{told:?}");
    }
    let service = [
        ("TIDINGS_PORT", "tcp://10.0.171.239:4437"),
        ("TIDINGS_PORT_4437_TCP", "tcp://10.0.171.239:4437"),
        ("TIDINGS_PORT_4437_TCP_ADDR", "10.0.171.239"),
        ("TIDINGS_SERVICE_HOST", "10.0.171.239"),
        ("TIDINGS_SERVICE_PORT_HTTP", "4437"),
    ];
    assert_eq!(warnings(&service), Vec::<String>::new());
    let error = read_with("", &[("TIDINGS_LISTEN", "tcp://10.0.171.239:4437")]).expect_err("no address");
    assert!(error.starts_with("TIDINGS_LISTEN must be an address and a port"), "{error}");
}

#[test]
fn wrong_values_are_all_told_at_once() {
    let text = "listen = 'here'\ndev = 'yes'\n[streams]\nsse_max_seconds = 0\nlong_poll_timeout_ms = '4'\n\
                [store]\nsync = 'never'\n[log]\nformat = 'xml'\notlp_endpoint = 'x'\n[limits]\nheader_bytes = 1.5";
    let error = read_with(text, &[("TIDINGS_LIMITS_CONNECTIONS", "-1")]).expect_err("wrong");
    for told in [
        "file:1: listen must be an address and a port, such as \"127.0.0.1:4437\"",
        "file:2: dev must be true or false",
        "file:4: streams.sse_max_seconds must be a whole number from 1 to 86400",
        "file:5: streams.long_poll_timeout_ms must be a whole number from 1 to 3600000",
        "file:7: store.sync must be \"always\"",
        "file:9: log.format must be \"auto\" or \"text\" or \"json\"",
        "file:10: log.otlp_endpoint must be a URL that begins with http:// or https://",
        "file:12: limits.header_bytes must be a whole number from 8192 to 1048576",
        "TIDINGS_LIMITS_CONNECTIONS must be a whole number from 1 to 10000000",
    ] {
        assert!(error.lines().any(|line| line == told), "{told} is not in:\n{error}");
    }
    assert_eq!(error.lines().count(), 9, "{error}");
}

#[test]
fn no_message_quotes_a_secret() {
    for text in [
        "[auth]\nadmin_key = 'hunter2'",
        "[auth]\nadmin_key = ['hunter2']",
        "[auth]\nadmin_key = 'hunter2",
        "[auth]\nadmin_key = hunter2",
        "[auth]\nprojects = 'hunter2'",
        "[auth]\nprojects = ['hunter2']",
        "[auth]\nprojects = [{ id = 'shop', keys = ['hunter2'] }]",
        "[auth]\nprojects = [{ id = 'shop', keys = 'hunter2' }]",
        "[auth]\nprojects = [{ id = 7, keys = ['hunter2hunter2hunter2'] }]",
        "[auth]\nprojects = [{ id = 'shop', keys = ['hunter2hunter2hunter2'], more = 'hunter2' }]",
        "[auth]\nprojects = [{ id = 'shop', keys = [{ secret = 'hunter2' }] }]",
    ] {
        let error = read(text).expect_err(text);
        assert!(!error.contains("hunter2"), "{error}");
        assert!(error.starts_with("file:2:"), "{error}");
    }
    let error = read_with("", &[("TIDINGS_AUTH_ADMIN_KEY", "hunter2")]).expect_err("too short");
    assert_eq!(error, "TIDINGS_AUTH_ADMIN_KEY is not good: a key is at least 16 bytes");
    let config = read("[auth]\nadmin_key = 'hunter2hunter2hunter2'").expect("good");
    assert!(!format!("{config:?}").contains("hunter2"));
}

fn told(config: &Config) -> String {
    config.check().expect_err("it does not go together").to_string()
}

#[test]
fn what_does_not_go_together_is_told() {
    let check = |text: &str| told(&read(text).expect("good by itself"));
    let both = check("listen = '0.0.0.0:80'\ndev = true");
    assert!(both.contains(":2: dev lets everybody in"), "{both}");
    assert!(both.contains("use --listen 127.0.0.1:80, not 0.0.0.0:80"), "{both}");
    assert!(check("[tls]\ncert = 'c'").ends_with(":2: tls.cert needs tls.key, which is missing"));
    assert!(check("[tls]\nkey = 'k'").ends_with(":2: tls.key needs tls.cert, which is missing"));
    let by_variable = read_with("[tls]\ncert = 'c'", &[("TIDINGS_TLS_CERT", "d")]).expect("good by itself");
    assert_eq!(told(&by_variable), "tls.cert needs tls.key, which is missing");
    let public = check("dev = true\nmetrics_listen = '0.0.0.0:9000'");
    assert!(public.contains("use 127.0.0.1:9000, not 0.0.0.0:9000"), "{public}");
    assert!(check("metrics_listen = '127.0.0.1:4437'").contains(":1: metrics_listen is where"));
}

#[test]
fn ids_that_are_kept_for_the_server_cannot_be_given() {
    let given = |id| format!("[auth]\nprojects = [{{ id = '{id}', keys = ['sixteen-bytes-of-1'] }}]");
    read(&given("_default")).expect("good");
    for id in ["_other", "projects", "config", "stream"] {
        let told = read(&given(id)).expect_err("reserved");
        assert_eq!(told, format!("file:2: auth.projects has the id {id}, which is kept for the server"));
    }
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let error = Config::load(Some(Path::new("/no/such/file")), []).expect_err("missing").to_string();
    assert!(error.starts_with("/no/such/file cannot be read: "), "{error}");
}

#[test]
fn sessions_have_the_constants_of_their_seed_and_each_can_be_set() {
    let defaults = Config::default().capabilities.sessions;
    let millis = |time: Duration| time.as_millis();
    assert_eq!(defaults.ttl, Duration::from_secs(1800));
    assert_eq!((defaults.fanout_batch_size, defaults.fanout_queue_batch_size), (50, 50));
    assert_eq!((defaults.fanout_queue_threshold, defaults.max_inline_fanout), (200, 1000));
    assert_eq!(millis(defaults.fanout_timeout), 10_000);
    assert_eq!((defaults.breaker.failures, millis(defaults.breaker.recovery)), (5, 60_000));
    assert_eq!(defaults.cleanup_interval, Duration::from_secs(300));
    assert_eq!((defaults.queue, defaults.require_uuid), (true, false));
    assert_eq!(defaults.keep, Duration::from_secs(24 * 60 * 60));
    assert_eq!(defaults.max_per_project, 1_000_000);
    let text = "[sessions]\nttl_seconds = 1\nfanout_batch_size = 2\nfanout_queue_threshold = 3\n\
        fanout_queue_batch_size = 4\nmax_inline_fanout = 5\nfanout_rpc_timeout_ms = 6\n\
        circuit_breaker_failure_threshold = 7\ncircuit_breaker_recovery_ms = 8\ncleanup_interval_seconds = 9\n\
        queue = false\nrequire_uuid = true\nlog_hours = 10\nmax_per_project = 11\n";
    let set = read(text).expect("good").capabilities.sessions;
    let expected = tidings_sessions::Options {
        ttl: Duration::from_secs(1),
        fanout_batch_size: 2,
        fanout_queue_threshold: 3,
        fanout_queue_batch_size: 4,
        max_inline_fanout: 5,
        fanout_timeout: Duration::from_millis(6),
        breaker: tidings_sessions::breaker::BreakerOptions {
            failures: 7,
            recovery: Duration::from_millis(8),
        },
        cleanup_interval: Duration::from_secs(9),
        queue: false,
        require_uuid: true,
        keep: Duration::from_secs(36_000),
        max_per_project: 11,
        ..tidings_sessions::Options::default()
    };
    assert_eq!(set, expected);
    let unknown = read("[sessions]\nttl = 5\n").expect_err("there is no such key");
    assert!(unknown.contains("sessions.ttl"), "{unknown}");
}
