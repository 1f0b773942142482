//! Subjects of NATS, in which some characters have a meaning.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Bytes of a token above which it is the hash of a name. A server ends connections whose lines are too long.
const TOKEN_BYTES: usize = 255;

/// A token of a subject that stands for a name, and for no other. Most names stand for themselves.
pub(crate) fn token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'/' | b':' => {
                token.push(char::from(byte))
            }
            _ => write!(token, "={byte:02X}").expect("a text takes all"),
        }
    }
    if token.is_empty() {
        // No name is written like this.
        return "=".to_owned();
    }
    if token.len() <= TOKEN_BYTES {
        return token;
    }
    let mut hash = String::from("==");
    for byte in Sha256::digest(name) {
        write!(hash, "{byte:02x}").expect("a text takes all");
    }
    hash
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn most_names_stand_for_themselves() {
        assert_eq!(token("topics/shop/room:1"), "topics/shop/room:1");
        assert_eq!(token("a.b>*"), "a=2Eb=3E=2A");
    }

    proptest! {
        #[test]
        fn a_token_is_one_token_and_no_other_name_has_it(names in prop::collection::vec("[a-c.*>= \r\nü\0]{0,4}|[ab.]{250,300}", 1..40)) {
            let mut seen: BTreeMap<String, String> = BTreeMap::new();
            for name in names {
                let token = token(&name);
                prop_assert!(!token.is_empty() && token.len() <= TOKEN_BYTES);
                prop_assert!(token.bytes().all(|byte| byte.is_ascii_graphic() && !b".*>".contains(&byte)));
                let other = seen.entry(token).or_insert_with(|| name.clone());
                prop_assert_eq!(other, &name);
            }
        }
    }
}
