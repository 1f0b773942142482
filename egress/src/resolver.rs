//! Resolves host names.

use std::io;
use std::net::IpAddr;

use futures_util::future::BoxFuture;

/// Resolves host names to addresses.
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of a host name. The future need not be cancelled by dropping it, and may take long.
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_resolves_localhost_to_this_machine() {
        let addresses = SystemResolver.resolve("localhost").await.expect("every system knows it");
        assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
    }
}
