//! JSON of which only some members are looked at; everything else is left as it was sent.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Why a text is not the expected JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// It is not JSON at all.
    NotJson,
    /// It is JSON of another kind.
    OtherKind,
}

/// The values of some members of an object, as they were sent. The last one of several with the same name counts.
pub fn members<'a, const N: usize>(
    text: &'a str,
    names: [&str; N],
) -> Result<[Option<&'a RawValue>; N], Odd> {
    let mut found = [None; N];
    each_member(text, |key, value| {
        if let Some(at) = names.iter().position(|name| *name == key) {
            found[at] = Some(value);
        }
    })?;
    Ok(found)
}

/// Passes all members of an object to `each`, in the order in which they were sent.
pub fn each_member<'a>(text: &'a str, each: impl FnMut(Cow<'a, str>, &'a RawValue)) -> Result<(), Odd> {
    if !text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(other_than_object(text));
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_map(Members(each)).and_then(|()| deserializer.end());
    read.map_err(|_| Odd::NotJson)
}

fn other_than_object(text: &str) -> Odd {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Odd::OtherKind,
        Err(_) => Odd::NotJson,
    }
}

/// The text of a JSON string.
pub fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    deserializer.deserialize_str(Text).ok()
}

/// Why a value is not a list, or not one of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadList {
    /// It is something else.
    OtherKind,
    /// It is longer than allowed.
    TooLong,
}

/// The elements of a JSON array with at most `most` of them, as they were sent.
pub fn elements(value: &RawValue, most: usize) -> Result<Vec<&RawValue>, BadList> {
    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    let elements = deserializer.deserialize_seq(Elements { most }).map_err(|_| BadList::OtherKind)?;
    elements.ok_or(BadList::TooLong)
}

/// The texts of a JSON array with at most `most` elements.
pub fn strings(value: &RawValue, most: usize) -> Result<Vec<Cow<'_, str>>, BadList> {
    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    let texts = deserializer.deserialize_seq(Texts { most }).map_err(|_| BadList::OtherKind)?;
    texts.ok_or(BadList::TooLong)
}

struct Members<F>(F);

impl<'a, F: FnMut(Cow<'a, str>, &'a RawValue)> Visitor<'a> for Members<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Text)? {
            (self.0)(key, map.next_value()?);
        }
        Ok(())
    }
}

/// A text, borrowed unless it has escapes.
struct Text;

impl<'a> DeserializeSeed<'a> for Text {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Cow<'a, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Text {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

struct Elements {
    most: usize,
}

impl<'a> Visitor<'a> for Elements {
    type Value = Option<Vec<&'a RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = sequence.next_element()? {
            if elements.len() == self.most {
                // The rest is only read.
                while sequence.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(None);
            }
            elements.push(element);
        }
        Ok(Some(elements))
    }
}

struct Texts {
    most: usize,
}

impl<'a> Visitor<'a> for Texts {
    type Value = Option<Vec<Cow<'a, str>>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = sequence.next_element_seed(Text)? {
            if texts.len() == self.most {
                // The rest is only read.
                while sequence.next_element_seed(Text)?.is_some() {}
                return Ok(None);
            }
            texts.push(text);
        }
        Ok(Some(texts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn members_are_left_as_they_were_sent() {
        let text = r#" {"a": 18446744073709551615, "x":[1, 2] ,"b":null,"a":1e999,"\u0062": "\u00e9"} "#;
        let [a, b, c] = members(text, ["a", "b", "c"]).expect("an object");
        assert_eq!(a.map(RawValue::get), Some("1e999"), "the last one counts");
        assert_eq!(b.map(RawValue::get), Some(r#""\u00e9""#));
        assert!(c.is_none(), "absent is not null");
        let [a] = members(r#"{"a":null}"#, ["a"]).expect("an object");
        assert_eq!(a.map(RawValue::get), Some("null"));
    }

    #[test]
    fn what_is_no_object_is_told_from_what_is_no_json() {
        for other in ["[]", "7", "null", "\"{}\"", " [{}] "] {
            assert_eq!(members(other, ["a"]).err(), Some(Odd::OtherKind), "{other}");
        }
        for bad in ["", "{", "{}x", "{\"a\"}", "{\"a\":}", "{'a':1}", "nul", "[", "{\"a\":1,}", "{}{}"] {
            assert_eq!(members(bad, ["a"]).err(), Some(Odd::NotJson), "{bad}");
        }
    }

    #[test]
    fn a_deeply_nested_value_is_no_trouble() {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(500_000), "]".repeat(500_000));
        let [a] = members(&text, ["a"]).expect("an object");
        assert_eq!(a.map(|a| a.get().len()), Some(1_000_000));
    }

    #[test]
    fn a_list_of_texts_has_texts_and_not_too_many() {
        assert_eq!(strings(raw(r#"["a","\u0062"]"#), 2), Ok(vec!["a".into(), "b".into()]));
        assert_eq!(strings(raw("[]"), 0), Ok(vec![]));
        assert_eq!(strings(raw(r#"["a","b","c"]"#), 2), Err(BadList::TooLong));
        for other in ["7", "{}", r#""a""#, r#"["a",7]"#, r#"["a",null]"#, r#"["\ud800"]"#] {
            assert_eq!(strings(raw(other), 9), Err(BadList::OtherKind), "{other}");
        }
        let texts =
            |value| elements(raw(value), 2).map(|list| list.iter().map(|one| one.get()).collect::<Vec<_>>());
        assert_eq!(texts(r#"[7, {"a":[]}]"#), Ok(vec!["7", r#"{"a":[]}"#]));
        assert_eq!(texts("[1,2,3]"), Err(BadList::TooLong));
        assert_eq!(texts("{}"), Err(BadList::OtherKind));
        assert_eq!(string(raw("7")), None);
        assert_eq!(string(raw(r#""a""#)).as_deref(), Some("a"));
    }
}
