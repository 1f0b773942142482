//! Connections: so many at most, each of which must say what it wants in time, and all of which end when the server
//! does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tidings_model::limits;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// How long to wait when the system has no room for another connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves until `stopped`, then waits for the answers that are on their way. Dropping it cuts them off.
pub async fn serve(listener: TcpListener, router: Router, stopped: impl Future<Output = ()>) {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits::HEADER_READ_TIMEOUT);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(limits::HTTP2_PING_INTERVAL);
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let graceful = GracefulShutdown::new();
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
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection_with_upgrades(TokioIo::new(socket), service).into_owned();
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
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
    Ok((socket, permit))
}
