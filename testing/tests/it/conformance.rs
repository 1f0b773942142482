//! The official Durable Streams suite.

use std::time::Duration;

use tidings_streams::Options;
use tidings_testing::{Harness, Setup, TestStore, node};

/// Tests of the suite, with its optional part on subscriptions.
const TESTS: u64 = 338;

async fn the_suite_passes_on(store: TestStore) {
    let streams = Options { long_poll_timeout: Duration::from_millis(500), ..Options::default() };
    // The suite calls endpoints of its own on this machine.
    let server = Harness::with(Setup { store, streams, wall_clock: true, ..Setup::default() }).await;
    let report = node::vitest("conformance.test.ts", &server.url(""), &[("LONG_POLL_MS", "500")]).await;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert_eq!((report.passed, report.skipped), (TESTS, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_suite_passes_on_the_store_in_memory() {
    the_suite_passes_on(TestStore::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_suite_passes_on_the_embedded_store() {
    the_suite_passes_on(TestStore::Embedded).await;
}
