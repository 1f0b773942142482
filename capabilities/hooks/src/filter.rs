//! Filters of hooks: conditions on fields of an event, beside its type.
//!
//! A filter is a JSON object of JSON pointers and conditions: `{"/amount":{"gt":100},"/currency":{"in":["EUR"]}}`. All
//! conditions must hold.

use serde_json::{Map, Value};
use tidings_model::limits;

/// A valid filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter(Vec<(String, Vec<Condition>)>);

/// A condition on the value at a pointer.
#[derive(Clone, Debug, PartialEq)]
enum Condition {
    Eq(Value),
    In(Vec<Value>),
    Gt(f64),
    Lt(f64),
    Prefix(String),
    Exists(bool),
}

/// Why a filter is invalid. The message may be shown to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFilter {
    /// The filter is not an object of objects.
    #[error("a filter is an object of JSON pointers, each with an object of conditions")]
    Shape,
    /// A key is not a JSON pointer.
    #[error("`{0}` is not a JSON pointer; expected one such as `/user/id`")]
    Pointer(String),
    /// The condition is unknown, or its value has the wrong type.
    #[error(
        "`{0}` is not a condition; expected eq, in (array), gt or lt (number), prefix (string) or exists (boolean)"
    )]
    Condition(String),
    /// The filter has too many conditions.
    #[error("a filter has at most {} conditions", limits::HOOK_CONDITIONS)]
    TooMany,
    /// The filter is too large.
    #[error("a filter is at most {} bytes of JSON", limits::HOOK_FILTER_BYTES)]
    TooLarge,
}

/// Whether a text is a JSON pointer (RFC 6901) within the limit.
pub fn is_pointer(text: &str) -> bool {
    let escapes = |text: &str| text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    (text.is_empty() || text.starts_with('/')) && text.len() <= limits::JSON_POINTER_BYTES && escapes(text)
}

impl Filter {
    /// Parses a filter.
    pub fn parse(value: &Value) -> Result<Self, InvalidFilter> {
        if value.to_string().len() > limits::HOOK_FILTER_BYTES {
            return Err(InvalidFilter::TooLarge);
        }
        let object = value.as_object().ok_or(InvalidFilter::Shape)?;
        let mut filter = Vec::with_capacity(object.len());
        for (pointer, conditions) in object {
            if !is_pointer(pointer) {
                return Err(InvalidFilter::Pointer(pointer.clone()));
            }
            let conditions = conditions.as_object().ok_or(InvalidFilter::Shape)?;
            filter.push((pointer.clone(), conditions_of(conditions)?));
        }
        let count: usize = filter.iter().map(|(_, conditions)| conditions.len()).sum();
        if count > limits::HOOK_CONDITIONS {
            return Err(InvalidFilter::TooMany);
        }
        Ok(Self(filter))
    }

    /// Whether an event fulfils all conditions.
    pub fn accepts(&self, event: &Value) -> bool {
        self.0.iter().all(|(pointer, conditions)| {
            let value = event.pointer(pointer);
            conditions.iter().all(|condition| condition.holds(value))
        })
    }
}

fn conditions_of(conditions: &Map<String, Value>) -> Result<Vec<Condition>, InvalidFilter> {
    conditions.iter().map(|(name, value)| Condition::parse(name, value)).collect()
}

impl Condition {
    fn parse(name: &str, value: &Value) -> Result<Self, InvalidFilter> {
        let condition = match (name, value) {
            ("eq", value) => Some(Self::Eq(value.clone())),
            ("in", Value::Array(values)) => Some(Self::In(values.clone())),
            ("gt", value) => value.as_f64().map(Self::Gt),
            ("lt", value) => value.as_f64().map(Self::Lt),
            ("prefix", Value::String(text)) => Some(Self::Prefix(text.clone())),
            ("exists", Value::Bool(exists)) => Some(Self::Exists(*exists)),
            _ => None,
        };
        condition.ok_or_else(|| InvalidFilter::Condition(name.to_owned()))
    }

    fn holds(&self, value: Option<&Value>) -> bool {
        match self {
            Self::Eq(expected) => value.is_some_and(|value| same(value, expected)),
            Self::In(expected) => value.is_some_and(|value| expected.iter().any(|one| same(value, one))),
            Self::Gt(least) => value.and_then(Value::as_f64).is_some_and(|value| value > *least),
            Self::Lt(most) => value.and_then(Value::as_f64).is_some_and(|value| value < *most),
            Self::Prefix(prefix) => {
                value.and_then(Value::as_str).is_some_and(|value| value.starts_with(&**prefix))
            }
            Self::Exists(exists) => value.is_some() == *exists,
        }
    }
}

/// Whether two values are equal; numbers by value, so that `1` equals `1.0`.
fn same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_conditions_must_hold() {
        let event =
            json!({"amount": 150, "currency": "EUR", "user": {"id": "u-1", "tags": ["a"]}, "gone": null});
        for (filter, accepts) in [
            (json!({}), true),
            (json!({"/amount": {"gt": 100}}), true),
            (json!({"/amount": {"gt": 150}}), false),
            (json!({"/amount": {"gt": 100, "lt": 200}}), true),
            (json!({"/amount": {"gt": 100, "lt": 120}}), false),
            (json!({"/amount": {"eq": 150.0}}), true),
            (json!({"/currency": {"in": ["USD", "EUR"]}}), true),
            (json!({"/currency": {"in": []}}), false),
            (json!({"/currency": {"gt": 1}}), false),
            (json!({"/user/id": {"prefix": "u-"}}), true),
            (json!({"/user/id": {"prefix": "v"}}), false),
            (json!({"/user/tags/0": {"eq": "a"}}), true),
            (json!({"/user/tags": {"eq": ["a"]}}), true),
            (json!({"/gone": {"exists": true}}), true),
            (json!({"/gone": {"eq": null}}), true),
            (json!({"/nothing": {"exists": false}}), true),
            (json!({"/nothing": {"exists": true}}), false),
            (json!({"/nothing": {"eq": null}}), false),
            (json!({"/amount": {"gt": 1}, "/currency": {"eq": "USD"}}), false),
        ] {
            assert_eq!(Filter::parse(&filter).expect("valid").accepts(&event), accepts, "{filter}");
        }
    }

    #[test]
    fn what_is_not_a_filter_is_refused_with_its_reason() {
        let many: Map<String, Value> = (0..33).map(|n| (format!("/{n}"), json!({"eq": 1}))).collect();
        for (bad, why) in [
            (json!([]), InvalidFilter::Shape),
            (json!({"/a": 1}), InvalidFilter::Shape),
            (json!({"a": {"eq": 1}}), InvalidFilter::Pointer("a".into())),
            (json!({"/a~2": {"eq": 1}}), InvalidFilter::Pointer("/a~2".into())),
            (json!({"/a": {"like": 1}}), InvalidFilter::Condition("like".into())),
            (json!({"/a": {"gt": "1"}}), InvalidFilter::Condition("gt".into())),
            (json!({"/a": {"exists": 1}}), InvalidFilter::Condition("exists".into())),
            (Value::Object(many), InvalidFilter::TooMany),
            (json!({"/a": {"eq": "x".repeat(9000)}}), InvalidFilter::TooLarge),
        ] {
            assert_eq!(Filter::parse(&bad), Err(why), "{bad}");
        }
    }
}
