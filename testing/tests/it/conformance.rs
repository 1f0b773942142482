//! The official Durable Streams suite.

use std::time::Duration;

use tidings_streams::Options;
use tidings_testing::{Harness, Setup, node};

/// Tests of the suite without its optional part on subscriptions.
const CORE_TESTS: u64 = 332;

#[tokio::test(flavor = "multi_thread")]
async fn the_official_suite_passes_on_the_store_in_memory() {
    let streams = Options { long_poll_timeout: Duration::from_millis(500), ..Options::default() };
    let server = Harness::with(Setup { streams, wall_clock: true }).await;
    let report = node::vitest("conformance.test.ts", &server.url(""), &[("LONG_POLL_MS", "500")]).await;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert_eq!(report.passed, CORE_TESTS);
}
