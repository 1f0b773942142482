//! Connections: so many at most, each of which must say what it wants in time, and all of which end when the server
//! does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::SockRef;
use tidings_api::Stage;
use tidings_api::live::{Conduit, Socket};
use tidings_model::limits;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::early::{Early, first_request};

/// How long to wait when the system has no room for another connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What every connection is served with.
pub struct Service {
    /// The routes.
    pub router: Router,
    /// Where answers that stay live.
    pub stage: Stage,
}

/// Serves until `stopped`, then waits for the answers that are on their way. Dropping it cuts them off.
pub async fn serve(listener: TcpListener, service: Service, stopped: impl Future<Output = ()>) {
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let serving = Arc::new(Serving { service, http: http() });
    // Ends them when it is dropped.
    let mut connections = JoinSet::new();
    tokio::pin!(stopped);
    loop {
        let (socket, permit) = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &permits) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection; trying again");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        connections.spawn(serving.clone().connection(socket, permit, graceful.watcher()));
    }
    drop(listener);
    graceful.shutdown().await;
    // Sockets that were handed over give their permits back as they end.
    let all = u32::try_from(limits::CONNECTIONS).unwrap_or(u32::MAX);
    let _ = permits.acquire_many(all).await;
}

fn http() -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits::HEADER_READ_TIMEOUT);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(limits::HTTP2_PING_INTERVAL);
    http
}

struct Serving {
    service: Service,
    http: Builder<TokioExecutor>,
}

impl Serving {
    async fn connection(self: Arc<Self>, socket: TcpStream, permit: OwnedSemaphorePermit, watcher: Watcher) {
        let looking = first_request(socket, &self.service.router);
        match tokio::time::timeout(limits::HEADER_READ_TIMEOUT, looking).await {
            Ok(Ok(Early::Hyper(socket))) => self.hyper(socket, permit, watcher).await,
            Ok(Ok(Early::Feed(socket, feed))) => {
                let Stage { clock, lives } = self.service.stage.clone();
                // A task of its own, which is small: this one has room for all that hyper needs.
                tokio::spawn(async move {
                    Socket::serve(socket, *feed, clock, &lives).await;
                    drop(permit);
                });
            }
            Ok(Ok(Early::Over)) | Err(_) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection ended badly"),
        }
    }

    async fn hyper(&self, socket: TcpStream, permit: OwnedSemaphorePermit, watcher: Watcher) {
        let conduit = Conduit::new(Arc::new(permit));
        let (router, handle) = (self.service.router.clone(), conduit.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(handle.clone());
            router.clone().oneshot(request)
        });
        let connection = self.http.serve_connection_with_upgrades(TokioIo::new(socket), service);
        tokio::select! {
            served = watcher.watch(connection) => if let Err(error) = served {
                tracing::debug!(error, "a connection ended badly");
            },
            () = conduit.is_cut() => tracing::debug!("a connection was cut: its reader took nothing"),
        }
    }
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (socket, _) = listener.accept().await?;
    // Small answers must not wait for the acknowledgement of the ones before.
    socket.set_nodelay(true)?;
    // What a client does not take stays with us, where it is shared, and not in the kernel, where it is copied for each.
    SockRef::from(&socket).set_tcp_notsent_lowat(limits::SOCKET_UNSENT_BYTES)?;
    Ok((socket, permit))
}
