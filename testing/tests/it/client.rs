//! The official TypeScript client works unchanged.

use tidings_testing::{Harness, Setup, node};

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_appends_reads_follows_and_produces() {
    let server = Harness::with(Setup { wall_clock: true, ..Setup::default() }).await;
    let report = node::vitest("client.test.ts", &server.url(""), &[]).await;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert_eq!(report.passed, 8);
}
