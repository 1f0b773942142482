//! The TypeScript client: its own tests, against the real server, by Node and in a real browser.
//!
//! A part is a file of `clients/typescript/tests`. Node prints each test of it by name.

use tidings_testing::{binary, node};

/// Runs parts of the client's tests. There must be at least so many tests, so that none is skipped unnoticed.
async fn run(parts: &[&str], least: u64) {
    let report = node::client_tests(parts, binary()).await;
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert!(report.passed >= least, "{} tests of {parts:?} have run", report.passed);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_comes_again_waits_as_it_is_told_and_notices_silence() {
    run(&["connection"], 21).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_keep_what_is_wanted_and_check_messages_with_types() {
    run(&["topics", "messages"], 32).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_with_history_lose_nothing_through_cuts_of_a_model_of_the_server() {
    run(&["history"], 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_work_with_the_server() {
    run(&["topics-server"], 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_with_patterns_history_and_presence_work_with_the_server() {
    run(&["topics-history-server"], 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rooms_are_followed_as_the_table_says() {
    run(&["rooms"], 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_passes_the_cases_that_all_clients_run() {
    run(&["cases"], 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_talks_as_the_table_of_all_clients_says() {
    run(&["talks"], 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_works_in_bun_and_deno() {
    run(&["runtimes"], 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_follows_rooms_by_each_wire_and_wakes_up() {
    run(&["browser"], 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rooms_work_with_the_server() {
    run(&["rooms-server"], 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_work_with_the_server() {
    run(&["sessions-server"], 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entities_keep_their_cursors_and_versions() {
    run(&["entities"], 13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_refetch_what_was_invalidated() {
    run(&["adapters"], 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entities_work_with_the_server() {
    run(&["entities-server"], 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_hooks_are_verified_and_hooks_managed() {
    run(&["hooks"], 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_for_react_are_right_under_strict_mode_in_a_browser() {
    run(&["react"], 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_things_to_do_over_postgresql_work_in_a_browser_and_through_a_crash() {
    run(&["todo"], 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chat_with_react_works_in_a_browser_and_through_a_restart() {
    run(&["chat-react"], 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_cuts_silences_and_restarts_lose_nothing_and_double_nothing() {
    run(&["chaos"], 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn types_are_as_promised_and_bundles_small() {
    run(&["package"], 5).await;
}
