//! Topics that are made of typed arguments.

use std::fmt;

use crate::message::Invalid;

/// A kind of topic: a name, and how its topics are made of arguments.
///
/// ```
/// use tidings_topics::{Invalid, TypedTopic};
///
/// const ROOM: TypedTopic<u32> = TypedTopic::new("room", |id| format!("room:{id}"))
///     .validated(|id| if *id > 0 { Ok(()) } else { Err(Invalid::new("rooms count from 1")) })
///     .parsed(|topic| topic.strip_prefix("room:")?.parse().ok());
///
/// assert_eq!(ROOM.name(), "room");
/// assert_eq!(ROOM.make(&7).as_deref(), Ok("room:7"));
/// assert!(ROOM.make(&0).is_err());
/// assert_eq!(ROOM.parse("room:7"), Some(7));
/// assert_eq!(ROOM.parse("room:07"), None, "it would be made differently");
/// assert_eq!(ROOM.parse("user:7"), None);
/// ```
pub struct TypedTopic<A> {
    name: &'static str,
    format: fn(&A) -> String,
    validate: fn(&A) -> Result<(), Invalid>,
    parse: Option<fn(&str) -> Option<A>>,
}

impl<A> TypedTopic<A> {
    /// Defines topics that are made by a function. All arguments are valid.
    pub const fn new(name: &'static str, format: fn(&A) -> String) -> Self {
        Self { name, format, validate: |_| Ok(()), parse: None }
    }

    /// Adds a check of arguments.
    pub const fn validated(mut self, validate: fn(&A) -> Result<(), Invalid>) -> Self {
        self.validate = validate;
        self
    }

    /// Adds the way back from a topic to its arguments.
    pub const fn parsed(mut self, parse: fn(&str) -> Option<A>) -> Self {
        self.parse = Some(parse);
        self
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether there is a way back from a topic to its arguments.
    pub fn can_parse(&self) -> bool {
        self.parse.is_some()
    }

    /// Makes a topic.
    pub fn make(&self, arguments: &A) -> Result<String, Invalid> {
        (self.validate)(arguments)?;
        Ok((self.format)(arguments))
    }

    /// Finds the arguments of which a topic was made. `None` if it was made of none, or if there is no way back.
    pub fn parse(&self, topic: &str) -> Option<A> {
        let arguments = self.parse?(topic)?;
        (self.make(&arguments).ok()? == topic).then_some(arguments)
    }
}

impl<A> fmt::Debug for TypedTopic<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTopic").field("name", &self.name).finish_non_exhaustive()
    }
}
