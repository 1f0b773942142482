//! API keys that the configuration gives, beside those that are derived from signing keys.

use std::fmt;

use subtle::ConstantTimeEq;
use tidings_model::{ProjectId, limits};

use crate::key::{InvalidKey, check, digest, split_api_key};

/// An API key given by the configuration. Only a digest of it is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    project: ProjectId,
    digest: [u8; 32],
}

/// Why a text is not a valid API key. The message does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidApiKey {
    /// The text does not name a project.
    #[error("an API key is `ns_`, the id of a project, `_`, and a token without `_`")]
    Form,
    /// The id of the project is reserved because it would shadow a path.
    #[error("the project's id is kept for the server")]
    Reserved,
    /// The token is so short that it could be guessed.
    #[error("the token of an API key is at least {} bytes", limits::KEY_BYTES_MIN)]
    TooShort,
    /// The text is not a valid key at all.
    #[error(transparent)]
    Key(#[from] InvalidKey),
}

impl ApiKey {
    /// Parses an API key that somebody chose: `ns_<project>_<token>`.
    pub fn parse(text: &str) -> Result<Self, InvalidApiKey> {
        let (project, token) = split_api_key(text).ok_or(InvalidApiKey::Form)?;
        if project.is_reserved() && project != ProjectId::default_project() {
            return Err(InvalidApiKey::Reserved);
        }
        if token.len() < limits::KEY_BYTES_MIN {
            return Err(InvalidApiKey::TooShort);
        }
        check(text)?;
        Ok(Self { project, digest: digest(text) })
    }

    /// The project that the key names.
    pub fn project(&self) -> &ProjectId {
        &self.project
    }

    /// Whether the text with this digest is the key. Takes the same time whatever the text is.
    pub(crate) fn has_digest(&self, digest: &[u8; 32]) -> bool {
        self.digest.ct_eq(digest).into()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({})", self.project)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_key_names_a_project_and_has_a_token_that_cannot_be_guessed() {
        let good = |text: &str| ApiKey::parse(text).expect(text).project().as_str().to_owned();
        assert_eq!(good("ns_app_0123456789abcdef"), "app");
        assert_eq!(good("ns_my_app_0123456789abcdef"), "my_app");
        assert_eq!(good("ns__default_0123456789abcdef"), "_default");
        for (text, why) in [
            ("", InvalidApiKey::Form),
            ("ns_", InvalidApiKey::Form),
            ("ns_0123456789abcdef", InvalidApiKey::Form),
            ("ns__0123456789abcdef", InvalidApiKey::Form),
            ("app_0123456789abcdef", InvalidApiKey::Form),
            ("ns_a.b_0123456789abcdef", InvalidApiKey::Form),
            ("ns_projects_0123456789abcdef", InvalidApiKey::Reserved),
            ("ns__other_0123456789abcdef", InvalidApiKey::Reserved),
            ("ns_app_0123456789abcde", InvalidApiKey::TooShort),
            ("ns_0123456789abcdef_", InvalidApiKey::TooShort),
            ("ns_app_0123456789 abcdef", InvalidApiKey::Key(InvalidKey::Character)),
            ("ns_app_0123456789äbcdef", InvalidApiKey::Key(InvalidKey::Character)),
        ] {
            assert_eq!(ApiKey::parse(text), Err(why), "{text}");
        }
        let long = format!("ns_app_{}", "x".repeat(limits::KEY_BYTES_MAX));
        assert_eq!(ApiKey::parse(&long), Err(InvalidApiKey::Key(InvalidKey::TooLong)));
    }

    #[test]
    fn only_the_same_text_is_the_key_and_it_is_not_shown() {
        let text = "ns_app_hunter2hunter2hunter2";
        let key = ApiKey::parse(text).expect("good");
        assert!(key.has_digest(&digest(text)));
        for other in
            ["ns_app_hunter2hunter2hunter", "ns_App_hunter2hunter2hunter2", "hunter2hunter2hunter2", ""]
        {
            assert!(!key.has_digest(&digest(other)), "{other}");
        }
        assert_eq!(format!("{key:?}"), "ApiKey(app)");
    }
}
