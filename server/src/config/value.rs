//! A configuration value as given: text from a variable, or a TOML value from the file.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use tidings_auth::{AdminKey, ApiKey, Key};
use tidings_model::{ProjectId, limits};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a value, phrased to follow the name of its key. Never quotes a value that may be secret.
pub(crate) type Wrong = String;

/// A configuration value as given.
pub(crate) enum Given<'a> {
    /// Text of an environment variable.
    Variable(&'a str),
    /// Value from the file.
    File(&'a DeValue<'a>),
}

impl Given<'_> {
    pub(crate) fn number(&self, range: RangeInclusive<u64>) -> Result<u64, Wrong> {
        let number = match self {
            Self::Variable(text) => text.parse().ok(),
            Self::File(DeValue::Integer(digits)) => {
                u64::from_str_radix(digits.as_str().trim_start_matches('+'), digits.radix()).ok()
            }
            Self::File(_) => None,
        };
        let (least, most) = (range.start(), range.end());
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }

    pub(crate) fn count(&self, range: RangeInclusive<usize>) -> Result<usize, Wrong> {
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let number = self.number(wide(*range.start())..=wide(*range.end()))?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    pub(crate) fn truth(&self) -> Result<bool, Wrong> {
        match self {
            Self::Variable("true" | "1") | Self::File(DeValue::Boolean(true)) => Ok(true),
            Self::Variable("false" | "0") | Self::File(DeValue::Boolean(false)) => Ok(false),
            Self::Variable(_) | Self::File(_) => Err("must be true or false".to_owned()),
        }
    }

    pub(crate) fn text(&self) -> Result<&str, Wrong> {
        match self {
            Self::Variable(text) => Ok(text),
            Self::File(DeValue::String(text)) => Ok(text),
            Self::File(_) => Err("must be text in quotes".to_owned()),
        }
    }

    /// Parses a list of texts. In a variable they are separated by commas.
    pub(crate) fn texts(&self) -> Result<Vec<String>, Wrong> {
        let wrong = || "must be a list of texts in quotes".to_owned();
        match self {
            Self::Variable(text) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Ok(parts.map(str::to_owned).collect())
            }
            Self::File(DeValue::Array(values)) => {
                let text = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
                    DeValue::String(text) => Ok(text.to_string()),
                    _ => Err(wrong()),
                };
                values.iter().map(text).collect()
            }
            Self::File(_) => Err(wrong()),
        }
    }

    pub(crate) fn duration(&self, range: RangeInclusive<Duration>) -> Result<Duration, Wrong> {
        let wrong = |error: String| format!("must be a duration in quotes: {error}");
        let given = crate::duration::parse(self.text()?).map_err(wrong)?;
        if range.contains(&given) {
            return Ok(given);
        }
        Err(format!("must be a duration from {:?} to {:?}", range.start(), range.end()))
    }

    pub(crate) fn address(&self) -> Result<SocketAddr, Wrong> {
        let wrong = || "must be an address and a port, such as \"127.0.0.1:4437\"".to_owned();
        self.text().map_err(|_| wrong())?.parse().map_err(|_| wrong())
    }

    pub(crate) fn path(&self) -> Result<PathBuf, Wrong> {
        match self.text()? {
            "" => Err("must be a path, not nothing".to_owned()),
            path => Ok(PathBuf::from(path)),
        }
    }

    /// Parses one of the given words.
    pub(crate) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Wrong> {
        let given = self.text().ok();
        let found = words.iter().find(|(word, _)| given == Some(word)).map(|&(_, meaning)| meaning);
        found.ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            format!("must be {}", words.join(" or "))
        })
    }

    pub(crate) fn admin_key(&self) -> Result<AdminKey, Wrong> {
        AdminKey::parse(self.text()?).map_err(|error| format!("is not good: {error}"))
    }

    fn signing_key(&self) -> Result<Key, Wrong> {
        Key::parse(self.text()?).map_err(|error| format!("is not good: {error}"))
    }

    /// Parses the list of projects and their keys. Only a file can contain it.
    pub(crate) fn projects(&self) -> Result<Vec<(ProjectId, Vec<Key>)>, Wrong> {
        let wrong = || "must be a list such as [{ id = \"shop\", keys = [\"…\"] }]".to_owned();
        let Self::File(DeValue::Array(entries)) = self else { return Err(wrong()) };
        let mut projects: Vec<(ProjectId, Vec<Key>)> = Vec::new();
        for entry in entries.iter() {
            let DeValue::Table(entry) = entry.get_ref() else { return Err(wrong()) };
            let project = project(entry)?;
            if projects.iter().any(|other| other.0 == project.0) {
                return Err(format!("names {} twice", project.0));
            }
            projects.push(project);
        }
        Ok(projects)
    }

    /// Parses the list of API keys. Only a file can contain it.
    pub(crate) fn api_keys(&self) -> Result<Vec<ApiKey>, Wrong> {
        let wrong = || "must be a list such as [\"ns_shop_…\"]".to_owned();
        let Self::File(DeValue::Array(entries)) = self else { return Err(wrong()) };
        if entries.len() > limits::API_KEYS {
            return Err(format!("has {} keys; there may be at most {}", entries.len(), limits::API_KEYS));
        }
        let mut keys = Vec::with_capacity(entries.len());
        // Keys are told by their number, because even a part of a text may be secret.
        for (number, entry) in entries.iter().enumerate().map(|(n, entry)| (n + 1, entry)) {
            let DeValue::String(text) = entry.get_ref() else { return Err(wrong()) };
            let key =
                ApiKey::parse(text).map_err(|error| format!("has a wrong key, number {number}: {error}"))?;
            if keys.contains(&key) {
                return Err(format!("has the same key twice, the second time as number {number}"));
            }
            keys.push(key);
        }
        Ok(keys)
    }
}

fn project(entry: &DeTable<'_>) -> Result<(ProjectId, Vec<Key>), Wrong> {
    if let Some(key) = entry.keys().find(|key| !["id", "keys"].contains(&key.get_ref().as_ref())) {
        return Err(format!("has the unknown key {:?}; a project has id and keys", key.get_ref()));
    }
    let field = |name: &str| entry.get(name).map(Spanned::get_ref);
    let id = match field("id") {
        Some(DeValue::String(id)) => {
            ProjectId::parse(id).map_err(|error| format!("has a wrong id: {error}"))?
        }
        _ => return Err("has a project without id, or whose id is not text".to_owned()),
    };
    if id.is_reserved() && id != ProjectId::default_project() {
        return Err(format!("has the id {id}, which is kept for the server"));
    }
    let keys = match field("keys") {
        Some(DeValue::Array(keys)) if !keys.is_empty() => keys,
        _ => return Err(format!("has no list of keys for {id}")),
    };
    let keys = keys.iter().map(|key| Given::File(key.get_ref()).signing_key());
    let keys = keys.collect::<Result<_, _>>().map_err(|what| format!("has a key of {id} that {what}"))?;
    Ok((id, keys))
}
