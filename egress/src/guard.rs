//! The guard: which addresses requests may go to.

use std::net::IpAddr;
use std::sync::Arc;

use crate::allow::AllowList;
use crate::destination::Host;
use crate::ranges;
use crate::target::Target;

/// Decides which addresses may be reached: those that are public, and those that the operator allows. Clones share the
/// same rules.
#[derive(Clone, Debug, Default)]
pub struct Guard(Arc<AllowList>);

/// Why a target may not be reached. It is told to whoever chose the target, so it does not say what a name resolves to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// A literal address that is not public.
    #[error("the address {address} is {what}, not public")]
    Address {
        /// The address.
        address: IpAddr,
        /// What it is instead.
        what: &'static str,
    },
    /// A name that resolves to at least one address that is not public.
    #[error("`{0}` resolves to an address that is not public")]
    Name(Box<str>),
}

impl Guard {
    /// Creates a guard that allows public addresses and what is in the list.
    pub fn new(allow: AllowList) -> Self {
        Self(Arc::new(allow))
    }

    /// Refuses a target whose host is a literal address that may not be reached. A name is checked each time a connection
    /// is made, since what it resolves to can change.
    pub fn check_literal(&self, target: &Target) -> Result<(), Forbidden> {
        match target.destination().host() {
            Host::Address(address) => self.check_address(*address),
            Host::Name(_) => Ok(()),
        }
    }

    /// Whether the operator's list names the host of a target, by its address or its name.
    pub fn lists(&self, target: &Target) -> bool {
        match target.destination().host() {
            Host::Address(address) => self.0.has_address(*address),
            Host::Name(name) => self.0.has_name(name),
        }
    }

    /// Refuses an address that may not be reached.
    pub fn check_address(&self, address: IpAddr) -> Result<(), Forbidden> {
        match ranges::not_public(address) {
            Some(what) if !self.0.has_address(address) => {
                Err(Forbidden::Address { address: address.to_canonical(), what })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a name if any address that it resolves to may not be reached. A listed name is never refused.
    pub(crate) fn check_name(&self, name: &str, addresses: &[IpAddr]) -> Result<(), Forbidden> {
        if self.0.has_name(name) {
            return Ok(());
        }
        match addresses.iter().find_map(|&address| self.check_address(address).err()) {
            Some(why) => {
                tracing::debug!(name, %why, "target not allowed");
                Err(Forbidden::Name(name.into()))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        let allowed: Vec<String> = allowed.iter().map(|&entry| entry.to_owned()).collect();
        Guard::new(AllowList::parse(&allowed).expect("a list"))
    }

    fn literal(guard: &Guard, host: &str) -> Result<(), String> {
        let target = Target::parse(&format!("https://{host}/")).expect("a target");
        guard.check_literal(&target).map_err(|forbidden| forbidden.to_string())
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn a_literal_address_that_is_not_public_is_refused_in_every_notation() {
        let guard = Guard::default();
        for host in [
            "127.0.0.1",
            "10.1.2.3",
            "169.254.169.254",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:ffff:a9fe:a9fe]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[fd00:ec2::254]",
            "[fe80::1]",
        ] {
            assert!(literal(&guard, host).is_err(), "{host}");
        }
        for host in ["8.8.8.8", "[2606:4700:4700::1111]", "localhost", "example.com"] {
            assert_eq!(literal(&guard, host), Ok(()), "{host}");
        }
        assert_eq!(
            literal(&guard, "[::ffff:127.0.0.1]"),
            Err("the address 127.0.0.1 is loopback, not public".to_owned())
        );
    }

    #[test]
    fn an_allowed_network_has_the_mapped_form_of_its_addresses_too() {
        let guard = guard(&["127.0.0.1/32"]);
        assert_eq!(literal(&guard, "127.0.0.1"), Ok(()));
        assert_eq!(literal(&guard, "[::ffff:127.0.0.1]"), Ok(()));
        assert!(literal(&guard, "127.0.0.2").is_err());
        assert!(literal(&guard, "[::1]").is_err());
    }

    #[test]
    fn a_name_is_allowed_if_all_its_addresses_are() {
        let guard = guard(&["127.0.0.1/32"]);
        let check = |found: &[&str]| guard.check_name("localhost", &addresses(found));
        assert_eq!(check(&["127.0.0.1"]), Ok(()));
        assert_eq!(check(&["127.0.0.1", "::ffff:127.0.0.1", "8.8.8.8"]), Ok(()));
        assert_eq!(check(&["127.0.0.1", "::1"]), Err(Forbidden::Name("localhost".into())));
        assert_eq!(check(&["8.8.8.8", "10.0.0.1"]), Err(Forbidden::Name("localhost".into())));
    }

    #[test]
    fn a_listed_name_is_allowed_whatever_it_resolves_to_and_no_other() {
        let guard = guard(&["receiver.internal"]);
        assert_eq!(guard.check_name("receiver.internal", &addresses(&["10.0.0.1", "::1"])), Ok(()));
        assert!(guard.check_name("a.receiver.internal", &addresses(&["10.0.0.1"])).is_err());
        assert!(literal(&guard, "10.0.0.1").is_err());
    }

    #[test]
    fn who_chose_a_name_is_not_told_what_it_resolves_to() {
        let told =
            Guard::default().check_name("db.internal", &addresses(&["10.0.0.1"])).expect_err("private");
        assert_eq!(told.to_string(), "`db.internal` resolves to an address that is not public");
    }
}
