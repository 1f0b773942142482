use std::ffi::OsString;
use std::io::Write as _;

use super::keys::{self, Key};
use super::*;
use crate::capabilities::entities::{DatabaseUrl, Mode};

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
            Some(line) => {
                // A list has an empty default before its example.
                let name = line.split(" = ").next().expect("a key");
                text.retain(|line| *line != format!("{name} = []"));
                text.push(line);
            }
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
    assert_eq!(config.given.api_keys[0].project().as_str(), "shop");
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
    assert_eq!(variables.len(), keys::all().count() - 2);
    assert!(variables.contains(&"TIDINGS_METRICS_LISTEN".to_owned()));
    assert!(variables.contains(&"TIDINGS_LIMITS_HEADER_BYTES".to_owned()));
    variables.sort();
    variables.dedup();
    assert_eq!(variables.len(), keys::all().count() - 2);
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
        "[auth]\napi_keys = 'ns_shop_hunter2hunter2hunter2'",
        "[auth]\napi_keys = { shop = 'ns_shop_hunter2hunter2hunter2' }",
        "[auth]\napi_keys = ['ns_shop_hunter2hunter2hunter2', 7]",
        "[auth]\napi_keys = ['hunter2hunter2hunter2']",
        "[auth]\napi_keys = ['ns_shop_hunter2']",
        "[auth]\napi_keys = ['ns_hunter2hunter2hunter2_']",
        "[auth]\napi_keys = ['ns__hunter2_hunter2hunter2hunter2']",
        "[auth]\napi_keys = ['ns_shop_hunter2hunter2 hunter2']",
        "[auth]\napi_keys = ['ns_shop_hunter2hunter2hunter2', 'ns_shop_hunter2hunter2hunter2']",
    ] {
        let error = read(text).expect_err(text);
        assert!(!error.contains("hunter2"), "{error}");
        assert!(error.starts_with("file:2:"), "{error}");
    }
    let error = read_with("", &[("TIDINGS_AUTH_ADMIN_KEY", "hunter2")]).expect_err("too short");
    assert_eq!(error, "TIDINGS_AUTH_ADMIN_KEY is not good: a key is at least 16 bytes");
    let secrets = "[auth]\nadmin_key = 'hunter2hunter2hunter2'\napi_keys = ['ns_shop_hunter2hunter2hunter2']";
    let config = read(secrets).expect("good");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn an_api_key_that_cannot_be_one_is_told_by_its_number() {
    let given = |keys: &str| read(&format!("[auth]\n\napi_keys = [{keys}]"));
    let good = "'ns_shop_0123456789abcdef', 'ns_my_shop_0123456789abcdef'";
    let config = given(good).expect("good");
    let projects: Vec<_> = config.given.api_keys.iter().map(|key| key.project().as_str()).collect();
    assert_eq!(projects, ["shop", "my_shop"]);
    for (keys, what) in [
        ("'ns_shop'", "number 1: an API key is `ns_`, the id of a project, `_`, and a token without `_`"),
        (&format!("{good}, 'ns_shop_short'"), "number 3: the token of an API key is at least 16 bytes"),
        ("'ns_stream_0123456789abcdef'", "number 1: the project's id is kept for the server"),
    ] {
        let told = given(keys).expect_err(keys);
        assert_eq!(told, format!("file:3: auth.api_keys has a wrong key, {what}"));
    }
    let twice = given(&format!("{good}, 'ns_shop_0123456789abcdef'")).expect_err("twice");
    assert_eq!(twice, "file:3: auth.api_keys has the same key twice, the second time as number 3");
    let many: String = (0..=limits::API_KEYS).map(|n| format!("'ns_shop_{n:016}',")).collect();
    let told = given(&many).expect_err("too many");
    assert_eq!(told, "file:3: auth.api_keys has 1001 keys; there may be at most 1000");
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

#[test]
fn topics_are_configured_and_what_cannot_be_is_refused_with_its_line() {
    let text = "[topics]\nmax_topic_length = 9\ntopic_pattern = '^[a-z*]+$'\nmax_topics_per_connection = 2\n\
                normalize = 'lowercase'\nslow_consumer_ms = 2000";
    let topics = read(text).expect("good").capabilities.topics;
    assert_eq!((topics.rules.max_length(), topics.rules.max_per_connection()), (9, Some(2)));
    assert!(topics.rules.check("abc").is_ok() && topics.rules.check("ABC").is_err());
    assert_eq!(topics.normalize, tidings_api::Normalize::Lowercase);
    assert_eq!(topics.slow_consumer, std::time::Duration::from_secs(2));
    for (line, wrong) in [
        ("topic_pattern = '[a-'", "topics.topic_pattern is not good: topic pattern `[a-`"),
        ("normalize = 'upper'", "topics.normalize must be \"none\" or \"lowercase\""),
        ("max_topic_length = 0", "topics.max_topic_length must be a whole number from 1 to 4096"),
        ("rules = 7", "topics.rules must be a list of tables"),
        ("[[topics.rules]]\npattern = 'a.***'", "topics.rules.pattern is not good"),
        (
            "[[topics.rules]]\nhistory_messages = 0",
            "topics.rules.history_messages must be a whole number from 1",
        ),
        ("[[topics.rules]]\nhistory = 1", "topics.rules.history is not a key"),
    ] {
        let told = read(&format!("[topics]\n{line}")).expect_err(line);
        let at = if line.starts_with('[') { "file:3: " } else { "file:2: " };
        assert!(told.starts_with(at) && told.contains(wrong), "{told}");
    }
    let text = "[[topics.rules]]\npattern = 'room:*'\nmax_subscribers = 5\n[[topics.rules]]\nhistory_seconds = 60\n\
                history_messages = 7\n[[topics.rules]]\nhistory_seconds = 60";
    let rules = read(text).expect("good").capabilities.topics.rules;
    let minute = Some(std::time::Duration::from_secs(60));
    let kept: Vec<_> =
        rules.rules().iter().map(|rule| rule.history.map(|keep| (keep.messages, keep.age))).collect();
    assert_eq!(kept, [None, Some((7, minute)), Some((1_000_000, minute))]);
    assert_eq!(
        (rules.max_subscribers("room:1"), rules.history("room:1")),
        (Some(5), None),
        "the first one counts"
    );
    assert_eq!(rules.history("x").map(|keep| keep.messages), Some(7));
    let beside =
        read("[bus]\nurl = 'nats://localhost'\n[[topics.rules]]\nhistory_seconds = 60").expect("readable");
    let told = beside.check().expect_err("nodes would number apart").to_string();
    assert!(told.contains("topics.rules cannot give topics a history beside bus.url"), "{told}");
    let config = read("[topics]\nheartbeat_ms = 5000\nheartbeat_timeout_ms = 5000").expect("readable");
    let told = config.check().expect_err("no time to answer").to_string();
    assert!(told.contains("topics.heartbeat_timeout_ms must be more than"), "{told}");
}

#[test]
fn entities_have_the_defaults_of_their_protocol_and_each_key_can_be_set() {
    let defaults = Config::default().capabilities.entities;
    let seconds = |time: Duration| time.as_secs();
    assert_eq!(defaults.sources().count(), 0, "no database");
    assert_eq!(defaults.main.project.as_str(), "_default");
    assert_eq!((defaults.main.mode, defaults.main.mark_status), (Mode::Outbox, true));
    assert_eq!(defaults.main.slot_retained_limit, 4 << 30);
    assert_eq!(seconds(defaults.entities.since_window), 15 * 60);
    assert_eq!(defaults.entities.max_ids_per_subscribe, 10_000);
    assert_eq!(defaults.sockets.max_ids_per_subscribe, 10_000);
    assert_eq!(defaults.entities.max_subscriptions_per_connection, 50_000);
    assert_eq!(defaults.entities.connections_per_user, 20);
    let times = [defaults.sockets.heartbeat, defaults.sockets.stall_limit, defaults.sockets.token_grace];
    assert_eq!(times.map(seconds), [15, 60, 10]);
    let text = "[entities]\ndatabase_url = 'postgres://a:hunter2@b/c'\nproject = 'shop'\nmode = 'logical'\n\
        slot_retained_limit = 16777216\nmark_status = false\nsince_window = '1s'\nmax_ids_per_subscribe = 2\nmax_subscriptions_per_connection = 3\n\
        connections_per_user = 4\nheartbeat = '5s'\nstall_limit = '6s'\ntoken_grace = '0s'\n\
        [entities.authorize]\ncallback_url = 'https://example.com/may'\n";
    let config = read(text).expect("good");
    assert!(!format!("{config:?}").contains("hunter2"), "a password is not shown");
    let set = config.capabilities.entities;
    let main = set.sources().next().expect("a database");
    assert_eq!((main.project.as_str(), main.mode, main.mark_status), ("shop", Mode::Logical, false));
    assert_eq!(main.slot_retained_limit, 16 << 20);
    assert_eq!(main.database_url.as_ref().map(DatabaseUrl::reveal), Some("postgres://a:hunter2@b/c"));
    let counts = (set.entities.max_subscriptions_per_connection, set.entities.connections_per_user);
    assert_eq!((set.sockets.max_ids_per_subscribe, counts), (2, (3, 4)));
    let times = [set.sockets.heartbeat, set.sockets.stall_limit, set.sockets.token_grace];
    assert_eq!((seconds(set.entities.since_window), times.map(seconds)), (1, [5, 6, 0]));
    let callback = set.authorize.callback_url.map(|target| target.to_string());
    assert_eq!(callback.as_deref(), Some("https://example.com/may"));
    let variable = [
        ("TIDINGS_ENTITIES_AUTHORIZE_SQL", "SELECT 1"),
        ("TIDINGS_ENTITIES_HEARTBEAT", "9s"),
        ("TIDINGS_ENTITIES_AUTHORIZE_SQL_ROLE", "watcher"),
    ];
    let set = read_with(text, &variable).expect("good").capabilities.entities;
    assert_eq!((set.authorize.sql.as_deref(), seconds(set.sockets.heartbeat)), (Some("SELECT 1"), 9));
    assert_eq!(set.authorize.sql_role.as_deref(), Some("watcher"));
}

#[test]
fn further_databases_are_a_list_of_tables() {
    let text = "[entities]\nheartbeat = '5s'\n\n[[entities.sources]]\ndatabase_url = 'postgres://a/b'\nproject = 'one'\n\
        [[entities.sources]]\ndatabase_url = 'postgresql://c/d'\nproject = 'two'\nmode = 'logical'\n";
    let more = "[entities]\nsources = [{ database_url = 'postgres://a/b', project = 'one' }]\n";
    let projects = |text: &str| -> Vec<String> {
        let entities = read(text).expect("good").capabilities.entities;
        entities.sources().map(|source| source.project.to_string()).collect()
    };
    assert_eq!(projects(text), ["one", "two"]);
    assert_eq!(projects(more), ["one"]);
    let main = "[entities]\ndatabase_url = 'postgres://e/f'\n[[entities.sources]]\ndatabase_url = 'postgres://a/b'\nproject = 'one'\n";
    assert_eq!(projects(main), ["_default", "one"]);
}

#[test]
fn what_is_wrong_with_entities_and_their_databases_is_told_with_its_line() {
    for (text, wrong) in [
        ("[entities]\nmode = 'poll'", "file:2: entities.mode must be \"outbox\" or \"logical\""),
        (
            "[entities]\nslot_retained_limit = 1000",
            "file:2: entities.slot_retained_limit must be a whole number from 16777216 to",
        ),
        ("[entities]\nheartbeat = '0s'", "file:2: entities.heartbeat must be a duration from 1s to 3600s"),
        ("[entities]\nstall_limit = '999ms'", "file:2: entities.stall_limit must be a duration from 1s"),
        ("[entities]\nsince_window = '0s'", "file:2: entities.since_window must be a duration from 1s"),
        (
            "[entities]\nconnections_per_user = 0",
            "file:2: entities.connections_per_user must be a whole number",
        ),
        ("[entities]\nproject = 'a b'", "file:2: entities.project is not good"),
        (
            "[entities]\nproject = '_other'",
            "file:2: entities.project is _other, which is kept for the server",
        ),
        ("[entities]\nmark = true", "file:2: entities.mark is not a key; known in [entities]: database_url,"),
        ("[entities]\nauthorize = 'x'", "file:2: entities.authorize is a section"),
        ("[entities]\nsources = 7", "file:2: entities.sources must be a list of tables, each below a line"),
        ("[entities.sources]\nproject = 'a'", "file:1: entities.sources must be a list of tables"),
        ("[entities]\nsources = ['a']", "file:2: entities.sources must be a list of tables"),
        (
            "[entities.authorize]\nurl = 'x'",
            "file:2: entities.authorize.url is not a key; known in [entities.authorize]",
        ),
        ("[entities.authorize]\ncallback_url = 'x'", "file:2: entities.authorize.callback_url is not good"),
        ("[entities.authorize]\nsql = ' '", "file:2: entities.authorize.sql must be an SQL query"),
        (
            "[[entities.sources]]\ndatabase_url = 'postgres://a/b'\n\n[[entities.sources]]\nproject = 'two'",
            "file:4: entities.sources needs database_url, which is missing",
        ),
        (
            "[[entities.sources]]\ndatabase_url = 'postgres://a/b'\n\nheartbeat = '1s'",
            "file:4: entities.sources.heartbeat is not a key; known in [[entities.sources]]: database_url, project",
        ),
        (
            "[[entities.sources]]\ndatabase_url = 7",
            "file:2: entities.sources.database_url must be text in quotes",
        ),
    ] {
        let told = read(text).expect_err(text);
        assert!(told.starts_with(wrong), "{told}");
    }
    let secret = read("[entities]\ndatabase_url = 'mysql://a:hunter2@b'").expect_err("another database");
    assert!(secret.starts_with("file:2: entities.database_url must be a URL") && !secret.contains("hunter2"));
    let twice = "[entities]\ndatabase_url = 'postgres://a/b'\nproject = 'one'\n\
        [[entities.sources]]\ndatabase_url = 'postgres://c/d'\nproject = 'one'";
    let told = told(&read(twice).expect("good by itself"));
    assert!(
        told.ends_with(
            ":3: entities.project names the project one for two databases; each hears one at most"
        )
    );
}
