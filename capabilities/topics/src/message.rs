//! Messages with types: what a payload looks like, known when the program is compiled.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::envelope::{Payload, PublishEnvelope};
use crate::result::{PublishError, PublishFailure};

/// A kind of message.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidings_topics::{Invalid, Message};
///
/// #[derive(Serialize, Deserialize)]
/// struct Chat {
///     text: String,
/// }
///
/// impl Message for Chat {
///     const TYPE: &'static str = "CHAT";
///     type Payload = Self;
///
///     fn validate(chat: &Self) -> Result<(), Invalid> {
///         if chat.text.is_empty() { Err(Invalid::new("text is empty")) } else { Ok(()) }
///     }
/// }
///
/// assert!(Chat::envelope("room:1", &Chat { text: "hi".to_owned() }).is_ok());
/// assert!(Chat::envelope("room:1", &Chat { text: String::new() }).is_err());
/// ```
pub trait Message: 'static {
    /// The type as it is written in frames.
    const TYPE: &'static str;
    /// The payload.
    type Payload: Serialize + DeserializeOwned + Send + 'static;

    /// Checks what the payload's type cannot express.
    fn validate(_payload: &Self::Payload) -> Result<(), Invalid> {
        Ok(())
    }

    /// Makes the message that is published under a topic. A payload that is not valid is a failure of the publish.
    fn envelope(topic: &str, payload: &Self::Payload) -> Result<PublishEnvelope, PublishFailure> {
        Self::validate(payload)
            .map_err(|invalid| PublishFailure::new(PublishError::Validation).because(invalid))?;
        let payload = Payload::json(payload)
            .map_err(|error| PublishFailure::new(PublishError::Validation).because(error))?;
        Ok(PublishEnvelope::new(topic, Self::TYPE).with_payload(payload))
    }
}

/// Says what is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    /// A value that is not valid, and why.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}
