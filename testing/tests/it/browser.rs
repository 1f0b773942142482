//! A real browser, and a site whose pages tell the test what they see.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long a browser may take for anything. It starts slowly on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A name that the browser resolves to this machine, as a page of somewhere else would be named.
pub const ELSEWHERE: &str = "elsewhere.example";

/// A site of the test's own, on the loopback interface. What is sent to its `/told` is JSON that the test hears: the body of
/// a `POST`, or the query of a `GET` as a text.
pub struct Site {
    address: SocketAddr,
    told: mpsc::UnboundedReceiver<Value>,
    serving: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Site {
    /// Serves pages, which are written by whoever knows the site's address, by their paths.
    pub async fn start(pages: impl FnOnce(SocketAddr) -> HashMap<&'static str, String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (tell, told) = mpsc::unbounded_channel();
        let serving = tokio::spawn(serve(listener, Arc::new(pages(address)), tell));
        Self { address, told, serving }
    }

    /// The address of a page, on a host by this name.
    pub fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.address.port())
    }

    /// What a page tells next.
    pub async fn tells(&mut self) -> Value {
        let told = tokio::time::timeout(TIMEOUT, self.told.recv()).await;
        told.expect("the browser tells something").expect("it is there")
    }
}

async fn serve(
    listener: TcpListener,
    pages: Arc<HashMap<&'static str, String>>,
    tell: mpsc::UnboundedSender<Value>,
) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.expect("a connection");
        let (pages, tell) = (pages.clone(), tell.clone());
        let answer = move |request: hyper::Request<Incoming>| answer(request, pages.clone(), tell.clone());
        connections.spawn(async move {
            // A browser opens connections that it does not use.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(answer)).await;
        });
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    pages: Arc<HashMap<&'static str, String>>,
    tell: mpsc::UnboundedSender<Value>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let page = pages.get(uri.path()).cloned().unwrap_or_default();
    if uri.path() == "/told" {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let told = match method.as_str() {
            "POST" => serde_json::from_slice(&body).expect("JSON"),
            _ => Value::from(uri.query().unwrap_or_default()),
        };
        // The test may be over.
        let _ = tell.send(told);
    }
    let kind = if uri.path().ends_with(".js") { "text/javascript" } else { "text/html" };
    let answer = hyper::Response::builder().header("content-type", kind).body(Full::from(page));
    Ok(answer.expect("an answer"))
}

/// A browser that shows a page until it is dropped.
pub struct Browser {
    _child: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Shows what is at an address.
    pub fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let child = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            // What is tested is that the server refuses, not that some browsers would not even ask.
            .arg("--disable-features=HttpsUpgrades,LocalNetworkAccessChecks")
            .arg(format!("--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromium is installed, as `make test` does");
        Self { _child: child, _profile: profile }
    }
}
