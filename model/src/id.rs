//! Ids: names that are parsed at the edge and valid from there on.

use std::fmt;
use std::sync::Arc;

use crate::limits;

/// Why a text is not a valid id. The message is meant for the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The id is empty.
    #[error("a {kind} id is at least one character")]
    Empty {
        /// Kind of thing that the id names.
        kind: &'static str,
    },
    /// The id is longer than the limit.
    #[error("a {kind} id is at most {max} bytes")]
    TooLong {
        /// Kind of thing that the id names.
        kind: &'static str,
        /// The limit in bytes.
        max: usize,
    },
    /// The id has a character that is not allowed in this kind of id.
    #[error("a {kind} id may not contain {character:?}")]
    Character {
        /// Kind of thing that the id names.
        kind: &'static str,
        /// First character that is not allowed.
        character: char,
    },
}

fn check(kind: &'static str, text: &str, max: usize, allowed: fn(char) -> bool) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty { kind });
    }
    if text.len() > max {
        return Err(InvalidId::TooLong { kind, max });
    }
    match text.chars().find(|&character| !allowed(character)) {
        Some(character) => Err(InvalidId::Character { kind, character }),
        None => Ok(()),
    }
}

/// Id of a project, the tenant that everything else belongs to. Matches `^[a-zA-Z0-9_-]+$`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectId(Arc<str>);

impl ProjectId {
    /// Parses a project id.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        check("project", text, limits::PROJECT_ID_BYTES, allowed)?;
        Ok(Self(text.into()))
    }

    /// The project of paths that name none.
    pub fn default_project() -> Self {
        Self("_default".into())
    }

    /// Whether the id is reserved for tidings and cannot be created: it would shadow a path.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with('_') || matches!(&*self.0, "stream" | "streams" | "config" | "projects")
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a stream within its project: any text without control characters; slashes are allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(Arc<str>);

impl StreamId {
    /// Parses a stream id that is already percent-decoded.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        check("stream", text, limits::STREAM_ID_BYTES, |c| !c.is_control())?;
        Ok(Self(text.into()))
    }

    /// Why no client can create a stream or session with this id; `None` if the id is not reserved.
    pub fn reserved(&self) -> Option<&'static str> {
        if self.0.starts_with("session:") {
            Some("ids that begin with `session:` name the streams of sessions, which `subscribe` creates")
        } else if &*self.0 == "__ds" || self.0.starts_with("__ds/") {
            Some("`__ds` and ids that begin with `__ds/` are kept for the protocol")
        } else {
            None
        }
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for StreamId {
    /// Ids sort, compare and hash as their texts do.
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a room within its project: any text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoomId(Arc<str>);

impl RoomId {
    /// Parses a room id that is already percent-decoded.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        check("room", text, limits::ROOM_ID_BYTES, |c| !c.is_control())?;
        Ok(Self(text.into()))
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RoomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a user, who may be a member of rooms: any text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(Arc<str>);

impl UserId {
    /// Parses a user id.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        check("user", text, limits::MEMBER_ID_BYTES, |c| !c.is_control())?;
        Ok(Self(text.into()))
    }

    /// The id that sorts before all others: no allowed character is below the space.
    pub fn least() -> Self {
        Self(" ".into())
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of a device of a user: any text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// Parses a device id.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        check("device", text, limits::DEVICE_ID_BYTES, |c| !c.is_control())?;
        Ok(Self(text.into()))
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_rooms_users_and_devices_are_1_to_256_bytes_without_control_characters() {
        let parses = |text: &str| {
            let parsed =
                [RoomId::parse(text).is_ok(), UserId::parse(text).is_ok(), DeviceId::parse(text).is_ok()];
            assert!(parsed.iter().all(|one| *one == parsed[0]), "{text:?}");
            parsed[0]
        };
        for good in ["a", " ", "did:plc:abc/d", "übung 1", &"x".repeat(256)] {
            assert!(parses(good), "{good:?}");
            assert!(UserId::least() <= UserId::parse(good).expect("good"), "{good:?}");
        }
        for bad in ["", "a\n", "\0", "\u{85}", &"x".repeat(257)] {
            assert!(!parses(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_project_id_is_letters_digits_underscore_and_hyphen() {
        assert!(ProjectId::parse("my-app_2").is_ok());
        assert_eq!(ProjectId::parse(""), Err(InvalidId::Empty { kind: "project" }));
        for bad in ["a b", "a/b", "a.b", "ä", "a\0"] {
            assert!(matches!(ProjectId::parse(bad), Err(InvalidId::Character { .. })), "{bad:?}");
        }
        assert!(matches!(ProjectId::parse(&"a".repeat(129)), Err(InvalidId::TooLong { max: 128, .. })));
    }

    #[test]
    fn ids_that_would_shadow_a_path_are_reserved() {
        for reserved in ["_default", "_x", "stream", "streams", "config", "projects"] {
            assert!(ProjectId::parse(reserved).expect("well-formed").is_reserved(), "{reserved}");
        }
        assert!(!ProjectId::parse("my-streams").expect("well-formed").is_reserved());
    }

    #[test]
    fn ids_of_streams_that_mean_something_else_are_reserved() {
        let reserved = |text| StreamId::parse(text).expect("well-formed").reserved().is_some();
        for id in ["session:alice", "session:", "__ds", "__ds/", "__ds/x"] {
            assert!(reserved(id), "{id}");
        }
        for id in ["session", "a/session:alice", "__dsx", "_ds", "a/__ds"] {
            assert!(!reserved(id), "{id}");
        }
    }

    #[test]
    fn a_stream_id_is_1_to_512_bytes_without_control_characters() {
        for good in ["a", "a/b/c", "session:alice", "übung 1", "../x"] {
            assert!(StreamId::parse(good).is_ok(), "{good:?}");
        }
        assert!(StreamId::parse(&"x".repeat(512)).is_ok());
        assert!(matches!(StreamId::parse(&"x".repeat(513)), Err(InvalidId::TooLong { max: 512, .. })));
        for bad in ["a\n", "\0", "a\u{7f}", "\u{85}"] {
            assert!(matches!(StreamId::parse(bad), Err(InvalidId::Character { .. })), "{bad:?}");
        }
    }
}
