//! Names of entities: the code of a type, such as `project`, and the id of one entity.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use tidings_model::limits;

/// Code of a type of entities, such as `project` or `task`. Any text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityCode(Arc<str>);

/// Id of one entity within its type, in the form that [`IdForm::parse`] has made of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(Arc<str>);

/// What ids of entities look like. It depends on the source of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdForm {
    /// Any text of 1 to 128 characters.
    Text,
    /// UUIDs, which become lower case with hyphens.
    Uuid,
}

/// Why a text is not the code of a type. The message is meant for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an entityCode has 1 to {} characters and no control character", limits::ENTITY_CODE_CHARS)]
pub struct InvalidCode;

/// Why a text is not the id of an entity. The message is meant for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntityId {
    /// The id is empty or too long, or contains the character NUL.
    #[error("an entityId has 1 to {} characters", limits::ENTITY_ID_CHARS)]
    Text,
    /// The id is not a UUID.
    #[error("an entityId is a UUID")]
    Uuid,
}

impl EntityCode {
    /// Parses a code.
    pub fn parse(text: &str) -> Result<Self, InvalidCode> {
        let fits = (1..=limits::ENTITY_CODE_CHARS).contains(&text.chars().count());
        if fits && !text.chars().any(char::is_control) { Ok(Self(text.into())) } else { Err(InvalidCode) }
    }

    /// Code as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl EntityId {
    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl IdForm {
    /// Parses an id.
    pub fn parse(self, text: &str) -> Result<EntityId, InvalidEntityId> {
        match self {
            Self::Text => {
                let fits = (1..=limits::ENTITY_ID_CHARS).contains(&text.chars().count());
                match fits && !text.contains('\0') {
                    true => Ok(EntityId(text.into())),
                    false => Err(InvalidEntityId::Text),
                }
            }
            Self::Uuid => uuid(text).map(EntityId).ok_or(InvalidEntityId::Uuid),
        }
    }
}

/// A UUID in lower case with hyphens. Written with hyphens or without.
fn uuid(text: &str) -> Option<Arc<str>> {
    let hyphens = [8, 13, 18, 23];
    let bytes = text.as_bytes();
    let digits: Vec<u8> = match bytes.len() {
        32 => bytes.to_vec(),
        36 if hyphens.iter().all(|&at| bytes[at] == b'-') => bytes
            .iter()
            .enumerate()
            .filter(|(at, _)| !hyphens.contains(at))
            .map(|(_, &digit)| digit)
            .collect(),
        _ => return None,
    };
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut made = String::with_capacity(36);
    for (at, digit) in digits.iter().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            made.push('-');
        }
        made.push(char::from(digit.to_ascii_lowercase()));
    }
    Some(made.into())
}

impl fmt::Display for EntityCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for EntityCode {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for EntityId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_one_form_however_it_is_written() {
        let id = "0f8fad5b-d9cb-469f-a165-70867728950e";
        for written in [id, "0F8FAD5B-D9CB-469F-A165-70867728950E", "0f8fad5bd9cb469fa16570867728950e"] {
            assert_eq!(IdForm::Uuid.parse(written).expect(written).as_str(), id);
        }
        let crafted = "0f8fad5b-d9cb-469f-a165-70867728950'";
        for bad in
            ["", "0f8fad5b", "0f8fad5b-d9cb-469f-a165-7086772895ég", crafted, &id[1..], &format!("{id}0")]
        {
            assert_eq!(IdForm::Uuid.parse(bad), Err(InvalidEntityId::Uuid), "{bad}");
        }
        assert!(IdForm::Uuid.parse("0f8fad5b-d9cb-469fa-165-70867728950e").is_err(), "a hyphen elsewhere");
    }

    #[test]
    fn a_text_is_an_id_of_up_to_128_characters() {
        for good in ["1", "a b", "'; DROP TABLE x; --", &"ä".repeat(128)] {
            assert_eq!(IdForm::Text.parse(good).expect(good).as_str(), good);
        }
        for bad in ["", "a\0b", &"ä".repeat(129)] {
            assert_eq!(IdForm::Text.parse(bad), Err(InvalidEntityId::Text), "{bad}");
        }
    }

    #[test]
    fn a_code_is_a_text_of_up_to_100_characters_without_control_characters() {
        for good in ["project", "Ärger mit Leerzeichen", &"x".repeat(100)] {
            assert_eq!(EntityCode::parse(good).expect(good).as_str(), good);
        }
        for bad in ["", "a\nb", &"x".repeat(101)] {
            assert_eq!(EntityCode::parse(bad), Err(InvalidCode), "{bad}");
        }
    }
}
