//! What an operator allows requests to reach although it is not public.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::destination::Host;
use crate::ranges::Network;

/// Networks and host names that may be reached although their addresses are not public. The default allows nothing.
///
/// A network, such as `127.0.0.1/32` or `fd00::/8`, allows its addresses, also in the IPv4-mapped form, and names that
/// resolve to nothing else but allowed and public addresses. A host name, such as `receiver.internal`, allows exactly
/// this name, and **whatever it resolves to**: list only names whose DNS records you control.
#[derive(Clone, Debug, Default)]
pub struct AllowList {
    networks: Vec<Network>,
    names: HashSet<Box<str>>,
}

/// Why an entry cannot be in an [`AllowList`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a network such as 10.0.0.0/8, an address, nor a host name")]
pub struct InvalidAllow(String);

impl AllowList {
    /// Allows nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Allows the loopback addresses 127.0.0.0/8 and `::1`, and with them `localhost`.
    pub fn loopback() -> Self {
        Self::parse(&["127.0.0.0/8".to_owned(), "::1/128".to_owned()]).expect("these are networks")
    }

    /// Parses entries: networks in CIDR notation, addresses, and host names.
    pub fn parse(entries: &[String]) -> Result<Self, InvalidAllow> {
        let mut list = Self::none();
        for entry in entries {
            let invalid = || InvalidAllow(entry.clone());
            if entry.contains('/') {
                list.networks.push(Network::parse(entry).ok_or_else(invalid)?);
            } else if let Ok(address) = entry.parse::<IpAddr>() {
                list.networks.push(Network::of(address));
            } else {
                match Host::parse(entry).map_err(|_| invalid())? {
                    Host::Address(address) => list.networks.push(Network::of(address)),
                    Host::Name(name) => {
                        list.names.insert(name);
                    }
                }
            }
        }
        Ok(list)
    }

    /// Whether an address is in one of the networks.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// Whether a host name is listed.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Result<AllowList, InvalidAllow> {
        AllowList::parse(&entries.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn networks_addresses_and_names_are_allowed_as_they_are_listed() {
        let list =
            list(&["10.0.0.0/8", "192.168.0.7", "fd00::/8", "[::1]", "Receiver.Internal"]).expect("a list");
        let has = |address: &str| list.has_address(address.parse().expect("an address"));
        assert!(["10.9.8.7", "192.168.0.7", "fd12::1", "::1", "::ffff:10.1.1.1"].into_iter().all(has));
        assert!(!["192.168.0.8", "fe80::1", "::2"].into_iter().any(has));
        assert!(list.has_name("receiver.internal"));
        assert!(!list.has_name("other.receiver.internal") && !list.has_name("internal"));
    }

    #[test]
    fn an_entry_that_is_none_of_these_is_named() {
        for entry in
            ["", "10.0.0.1/8", "10.0.0.0/33", "*.internal", "http://a/", "a b", "0x7f.1", "127.1", "a:80"]
        {
            assert_eq!(list(&["10.0.0.0/8", entry]).expect_err(entry), InvalidAllow(entry.to_owned()));
        }
        let told = list(&["*.internal"]).expect_err("no pattern").to_string();
        assert_eq!(told, "`*.internal` is neither a network such as 10.0.0.0/8, an address, nor a host name");
    }
}
