//! The suite itself against an echo server of ours. `make autobahn` installs the suite and runs this.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::LARGEST;
use crate::websocket::tests::client::{converse, greet};

/// What the suite says of a case.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    behavior: String,
    behavior_close: String,
}

impl Verdict {
    /// Whether there is nothing to improve: compression is not offered by us, and what comes of closes that
    /// the protocol leaves open is only reported.
    fn is_right(&self, case: &str) -> bool {
        let section = case.split('.').next();
        let behavior = match case {
            "7.1.6" | "7.13.1" | "7.13.2" => "INFORMATIONAL",
            _ if matches!(section, Some("12" | "13")) => "UNIMPLEMENTED",
            _ => "OK",
        };
        self.behavior == behavior && matches!(self.behavior_close.as_str(), "OK" | "INFORMATIONAL")
    }
}

/// Sends back what a client says. The socket is closed only when the client has nothing more to say: the
/// kernel would take back our close frame otherwise.
async fn serve(mut socket: TcpStream) {
    let said = async {
        socket.set_nodelay(true)?;
        greet(&mut socket).await?;
        converse(&mut socket, LARGEST).await?;
        socket.shutdown().await?;
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await
    };
    // The suite cuts connections, too.
    let _ = said.await;
}

#[tokio::test]
#[ignore = "needs Python 2.7 and the suite: make autobahn"]
async fn the_suite_itself_finds_nothing_wrong() {
    let folder = std::env::var("TIDINGS_AUTOBAHN").expect("TIDINGS_AUTOBAHN names the folder with wstest");
    let folder = Path::new(&folder);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });

    let reports = folder.join("reports");
    if reports.exists() {
        std::fs::remove_dir_all(&reports).expect("old reports can be removed");
    }
    let spec = serde_json::json!({
        "outdir": reports,
        "servers": [{ "agent": "tidings", "url": format!("ws://{address}/socket") }],
        "cases": ["*"],
        "exclude-cases": [],
        "exclude-agent-cases": {},
    });
    std::fs::write(folder.join("spec.json"), spec.to_string()).expect("the specification is written");
    let mut suite = Command::new(folder.join("wstest"));
    suite.args(["-m", "fuzzingclient", "-s", "spec.json"]).current_dir(folder);
    let ended = tokio::task::spawn_blocking(move || suite.status()).await.expect("no panic");
    assert!(ended.expect("the suite starts").success());

    let index = std::fs::read(reports.join("index.json")).expect("the suite reports");
    let mut index: BTreeMap<String, BTreeMap<String, Verdict>> =
        serde_json::from_slice(&index).expect("the report is understood");
    let verdicts = index.remove("tidings").expect("a report of tidings");
    assert_eq!(verdicts.len(), 517, "all cases have run");
    let wrong: Vec<_> = verdicts.iter().filter(|(case, verdict)| !verdict.is_right(case)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
