//! Reads the configuration file: TOML in which every value belongs to a known key.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys;
use super::value::Given;
use super::{Config, Location, Problem};

/// Applies a configuration file, and reports its problems in the order of the lines.
pub(super) fn apply(text: &str, path: &Path, config: &mut Config, problems: &mut Vec<Problem>) {
    let file = File { text, path };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => return problems.push(file.unreadable(&error)),
    };
    for (name, value) in table.get_ref() {
        let section = name.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(entries) if is_section(section) => {
                for (name, value) in entries {
                    file.set(&format!("{section}.{}", name.get_ref()), name, value, config, problems);
                }
            }
            _ => file.set(section, name, value, config, problems),
        }
    }
    problems.sort_by_key(|problem| match problem.location {
        Location::File { line, .. } => line,
        Location::WholeFile(_) | Location::Variable(_) | Location::Key(_) => 0,
    });
}

/// The file being read.
struct File<'a> {
    text: &'a str,
    path: &'a Path,
}

impl File<'_> {
    fn set(
        &self,
        key: &str,
        name: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
        config: &mut Config,
        problems: &mut Vec<Problem>,
    ) {
        let what = match keys::all().find(|known| known.name == key) {
            Some(known) => {
                let line = self.line(name.span().start);
                config.said.0.insert(known.name, (self.path.to_owned(), line));
                (known.set)(config, &Given::File(value.get_ref())).err()
            }
            None => Some(unknown(key)),
        };
        problems.extend(what.map(|what| self.problem(name.span().start, key, &what)));
    }

    fn problem(&self, at: usize, key: &str, what: &str) -> Problem {
        let location =
            Location::File { path: self.path.to_owned(), line: self.line(at), key: key.to_owned() };
        Problem { location, what: what.to_owned() }
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        before.filter(|&&byte| byte == b'\n').count() + 1
    }

    /// Describes a TOML syntax error. Only the parser's message is used, because its full error quotes the line,
    /// which may contain a secret.
    fn unreadable(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or_default();
        // For a duplicate key, the span covers its name, which is not secret. Anything but a plain name is left out.
        let name = self.text.get(span.clone()).filter(|_| error.message() == "duplicate key");
        let plain = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        match name.filter(|name| !name.is_empty()).filter(plain) {
            Some(name) => self.problem(span.start, name, "is there twice"),
            None => self.problem(span.start, "", error.message()),
        }
    }
}

fn is_section(name: &str) -> bool {
    keys::all().any(|key| key.name.split_once('.').is_some_and(|(section, _)| section == name))
}

/// Returns the error message for an unknown key, with a suggestion of what to write instead.
fn unknown(key: &str) -> String {
    let section = |key: &str| key.split_once('.').map_or("", |(section, _)| section).to_owned();
    if is_section(key) {
        return format!("is a section: write [{key}] on a line of its own");
    }
    let wanted = section(key);
    let known = keys::all().filter(|known| section(known.name) == wanted);
    let known: Vec<_> =
        known.map(|known| known.name.rsplit_once('.').map_or(known.name, |(_, name)| name)).collect();
    let location =
        if wanted.is_empty() { "before the sections".to_owned() } else { format!("in [{wanted}]") };
    format!("is not a key; known {location}: {}", known.join(", "))
}
