//! The official Durable Streams suite.

use std::time::Duration;

use tidings_streams::Options;
use tidings_testing::{Harness, Setup, TestStore, node};

/// Tests of the suite without its optional part on subscriptions.
const CORE_TESTS: u64 = 332;

async fn the_suite_passes_on(store: TestStore) {
    let streams = Options { long_poll_timeout: Duration::from_millis(500), ..Options::default() };
    let server = Harness::with(Setup { store, streams, wall_clock: true, ..Setup::default() }).await;
    let report = node::vitest("conformance.test.ts", &server.url(""), &[("LONG_POLL_MS", "500")]).await;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert_eq!(report.passed, CORE_TESTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_suite_passes_on_the_store_in_memory() {
    the_suite_passes_on(TestStore::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_suite_passes_on_the_embedded_store() {
    the_suite_passes_on(TestStore::Embedded).await;
}
