//! Parses JSON arrays with a limit on the number of elements.
//!
//! `serde_json` parses an array to its end before its elements can be counted, and 8 MiB of `0,` are four
//! million of them. [`read`] stops at the first element beyond the limit, so that the memory it needs depends
//! on the limit and not on the size of the body.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{Deserialize, DeserializeSeed, Error, IgnoredAny, SeqAccess, Visitor};

/// Why an array was not read.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The array has more elements than the limit. The rest was not parsed.
    #[error("the array has more than {most} elements")]
    TooMany {
        /// The limit, in elements.
        most: usize,
    },
    /// The text is not JSON, not an array, or an element has another type.
    #[error(transparent)]
    Invalid(#[from] serde_json::Error),
}

/// Parses a text that is an array of at most `most` elements.
///
/// ```
/// # use tidings_streams::json_array::{ArrayError, read};
/// assert_eq!(read::<u8>(b"[1, 2]", 2).expect("within the limit"), [1, 2]);
/// assert!(matches!(read::<u8>(b"[1, 2, 3", 2), Err(ArrayError::TooMany { most: 2 })));
/// ```
pub fn read<'de, T: Deserialize<'de>>(json: &'de [u8], most: usize) -> Result<Vec<T>, ArrayError> {
    let beyond = Cell::new(false);
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = AtMost { most, beyond: &beyond, element: PhantomData }.deserialize(&mut reader);
    match read.and_then(|elements| reader.end().map(|()| elements)) {
        Ok(elements) => Ok(elements),
        Err(_) if beyond.get() => Err(ArrayError::TooMany { most }),
        Err(error) => Err(ArrayError::Invalid(error)),
    }
}

/// Parses an array that is part of something larger: `#[serde(deserialize_with = "json_array::at_most::<_, _,
/// 100>")]`.
///
/// # Errors
/// When the array has more elements, or one has another type.
pub fn at_most<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    AtMost { most: MOST, beyond: &Cell::new(false), element: PhantomData }.deserialize(deserializer)
}

struct AtMost<'a, T> {
    most: usize,
    /// Set when there are more elements than the limit.
    beyond: &'a Cell<bool>,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for AtMost<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of at most {} elements", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Vec<T>, A::Error> {
        let mut elements = Vec::new();
        while elements.len() < self.most {
            match array.next_element()? {
                Some(element) => elements.push(element),
                None => return Ok(elements),
            }
        }
        match array.next_element::<IgnoredAny>()? {
            None => Ok(elements),
            Some(_) => {
                self.beyond.set(true);
                Err(A::Error::custom(format_args!("the array has more than {} elements", self.most)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts how many elements were ever made.
    #[derive(Debug)]
    struct Counted;

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(deserializer)?;
            READ.set(READ.get() + 1);
            Ok(Self)
        }
    }

    #[test]
    fn of_four_million_elements_no_more_than_the_limit_are_read() {
        let body = format!("[{}1]", "1,".repeat(4_000_000));
        assert!(matches!(read::<Counted>(body.as_bytes(), 1000), Err(ArrayError::TooMany { most: 1000 })));
        assert_eq!(READ.get(), 1000);
        let nested = format!(r#"{{"a":{body}}}"#);
        READ.set(0);
        assert!(serde_json::from_str::<Holder>(&nested).is_err());
        assert_eq!(READ.get(), 10);
    }

    #[derive(Debug, serde::Deserialize)]
    struct Holder {
        #[serde(deserialize_with = "at_most::<_, _, 10>")]
        #[expect(dead_code, reason = "only its size matters")]
        a: Vec<Counted>,
    }

    #[test]
    fn the_limit_itself_is_within_it_and_what_is_no_array_is_told_as_that() {
        assert_eq!(read::<u8>(b" [1,2,3] ", 3).expect("as many as may be"), [1, 2, 3]);
        assert!(read::<u8>(b"[]", 0).expect("none").is_empty());
        for bad in ["", "[", "[1", "[1,]", "[1] x", "{}", "1", "[256]"] {
            assert!(matches!(read::<u8>(bad.as_bytes(), 3), Err(ArrayError::Invalid(_))), "{bad:?}");
        }
    }
}
