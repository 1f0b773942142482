//! POSTs that several tasks send as fast as they are answered, and a sender that is nothing but the HTTP library.

use std::io;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Usage;

const WARM_UP: Duration = Duration::from_millis(300);

/// What sending cost this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Answered requests.
    pub posts: u64,
    /// Seconds of CPU time.
    pub cpu: f64,
    /// Seconds.
    pub time: f64,
}

impl Cost {
    /// Microseconds of CPU time of a POST.
    pub fn micros(&self) -> f64 {
        self.cpu * 1e6 / self.posts as f64
    }

    /// POSTs per second.
    pub fn rate(&self) -> f64 {
        self.posts as f64 / self.time
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.posts += other.posts;
        self.cpu += other.cpu;
        self.time += other.time;
    }
}

/// Counts what senders sent, and tells them when to stop.
#[derive(Clone, Default)]
pub struct Posts {
    count: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Posts {
    /// Whether senders go on.
    pub fn go_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Counts an answered request.
    pub fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets senders run for some time, after a warm-up, and tells what it cost.
    pub async fn measure(self, mut senders: JoinSet<io::Result<()>>, lasting: Duration) -> io::Result<Cost> {
        tokio::time::sleep(WARM_UP).await;
        let (began, before, first) = (Instant::now(), Usage::now(), self.count.load(Ordering::Relaxed));
        tokio::time::sleep(lasting).await;
        let cost = Cost {
            posts: self.count.load(Ordering::Relaxed) - first,
            cpu: Usage::now().cpu - before.cpu,
            time: began.elapsed().as_secs_f64(),
        };
        self.over.store(true, Ordering::Relaxed);
        while let Some(ended) = senders.join_next().await {
            ended??;
        }
        Ok(cost)
    }

    /// Sends on a connection of its own, which another task drives, as the HTTP library's examples do. The headers are made
    /// anew for each request.
    pub async fn send_bare(
        self,
        address: SocketAddr,
        path: &'static str,
        body: Bytes,
        answer_bytes: usize,
        headers: impl Fn() -> io::Result<HeaderMap>,
    ) -> io::Result<()> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(io::Error::other)?;
        let driver = tokio::spawn(connection);
        let host = HeaderValue::try_from(address.to_string()).map_err(io::Error::other)?;
        while self.go_on() {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = Uri::from_static(path);
            *request.headers_mut() = headers()?;
            request.headers_mut().insert(HOST, host.clone());
            sender.ready().await.map_err(io::Error::other)?;
            let response = sender.send_request(request).await.map_err(io::Error::other)?;
            let answer = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
            assert_eq!(answer.len(), answer_bytes);
            self.count();
        }
        driver.abort();
        Ok(())
    }
}
