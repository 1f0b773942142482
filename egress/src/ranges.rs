//! Networks, and which of them are not public.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of addresses: those that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    first: IpAddr,
    /// Number of leading bits that all addresses share.
    prefix: u8,
}

/// Networks that no request goes to unless the operator allows it, and what they are.
const RESERVED: &[(Network, &str)] = &[
    (v4([0, 0, 0, 0], 8), "of this machine"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "shared by a carrier"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    // Carries, at 168.63.129.16, the metadata of virtual machines on Azure, although it is a public address.
    (v4([168, 63, 129, 16], 32), "of a cloud's metadata"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "reserved for protocols"),
    (v4([192, 0, 2, 0], 24), "reserved for documentation"),
    (v4([192, 88, 99, 0], 24), "reserved for 6to4"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "reserved for benchmarks"),
    (v4([198, 51, 100, 0], 24), "reserved for documentation"),
    (v4([203, 0, 113, 0], 24), "reserved for documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "a form of an IPv4 address"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "a form of an IPv4 address"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "a form of an IPv4 address"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded"),
    // With Teredo, benchmarks and ORCHID.
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "reserved for protocols"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "reserved for documentation"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "a form of an IPv4 address"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "reserved for documentation"),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "reserved for segment routing"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "private"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];
/// All IPv6 addresses that were ever assigned to be reached from everywhere.
const GLOBAL_V6: Network = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// What an address is instead of public, or `None` if it is public.
pub(crate) fn not_public(address: IpAddr) -> Option<&'static str> {
    let address = address.to_canonical();
    let reserved = RESERVED.iter().find(|(network, _)| network.contains(address)).map(|&(_, what)| what);
    match address {
        IpAddr::V6(_) if reserved.is_none() && !GLOBAL_V6.contains(address) => Some("not assigned"),
        _ => reserved,
    }
}

impl Network {
    /// The network of one address.
    pub(crate) fn of(address: IpAddr) -> Self {
        let first = address.to_canonical();
        Self { first, prefix: bits(first).1 }
    }

    /// Parses a network in CIDR notation. The networks of IPv4-mapped addresses are those of IPv4.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = digits.then(|| prefix.parse().ok()).flatten()?;
        let (value, length) = bits(address);
        if prefix > length || value & !mask(prefix, length) != 0 {
            return None;
        }
        match address.to_canonical() {
            first @ IpAddr::V4(_) if address.is_ipv6() => {
                Some(Self { first, prefix: prefix.checked_sub(96)? })
            }
            first => Some(Self { first, prefix }),
        }
    }

    /// Whether an address, or the IPv4 address that it maps, lies within the network.
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let ((first, length), (value, other)) = (bits(self.first), bits(address.to_canonical()));
        length == other && (first ^ value) & mask(self.prefix, length) == 0
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

const fn v4(octets: [u8; 4], prefix: u8) -> Network {
    let [a, b, c, d] = octets;
    Network { first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(segments: [u16; 8], prefix: u8) -> Network {
    let [a, b, c, d, e, f, g, h] = segments;
    Network { first: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix }
}

/// An address as a number, and how many bits it has.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// The first `prefix` of `length` bits.
fn mask(prefix: u8, length: u8) -> u128 {
    let all = u128::MAX >> (128 - length);
    all & !all.checked_shr(u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap_or_else(|| panic!("{text} is a network"))
    }

    #[test]
    fn addresses_that_are_not_public_are_known_as_such() {
        let not = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "192.168.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ];
        for text in not {
            assert!(not_public(text.parse().expect("an address")).is_some(), "{text}");
        }
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700:4700::1111",
            "2a00::1",
            "3ffe:ffff::1",
        ];
        for text in public {
            assert_eq!(not_public(text.parse().expect("an address")), None, "{text}");
        }
    }

    #[test]
    fn a_network_is_parsed_only_from_its_first_address_and_a_length() {
        assert!(network("10.0.0.0/8").contains("10.255.0.1".parse().expect("an address")));
        assert!(!network("10.0.0.0/8").contains("11.0.0.0".parse().expect("an address")));
        assert!(network("0.0.0.0/0").contains("203.0.113.9".parse().expect("an address")));
        assert!(!network("::/0").contains("203.0.113.9".parse().expect("an address")));
        assert!(network("::ffff:10.0.0.0/104").contains("10.1.2.3".parse().expect("an address")));
        assert!(network("10.0.0.0/8").contains("::ffff:10.1.2.3".parse().expect("an address")));
        for text in [
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/8 ",
            "10.0/16",
            "::/129",
            "fd00::1/8",
            "::ffff:0.0.0.0/95",
            "/8",
            "a/8",
            "10.0.0.0/8/8",
            "10.0.0.0/256",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_mapped_address_is_judged_as_the_ipv4_address(address: Ipv4Addr) {
            prop_assert_eq!(not_public(address.to_ipv6_mapped().into()), not_public(address.into()));
        }

        #[test]
        fn a_network_has_what_shares_its_first_bits(first: u32, other: u32, prefix in 0_u8..=32) {
            let first = first & u32::try_from(mask(prefix, 32)).expect("of 32 bits");
            let network = network(&format!("{}/{prefix}", Ipv4Addr::from_bits(first)));
            let shared = (first ^ other).leading_zeros() >= u32::from(prefix);
            prop_assert_eq!(network.contains(Ipv4Addr::from_bits(other).into()), shared);
        }
    }
}
