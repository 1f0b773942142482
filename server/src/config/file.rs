//! Reads the configuration file: TOML in which every value belongs to a known key, or to one of a list of tables.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, Key, Tables};
use super::value::Given;
use super::{Config, Location, Problem};

/// Applies a configuration file, and reports its problems in the order of the lines.
pub(super) fn apply(text: &str, path: &Path, config: &mut Config, problems: &mut Vec<Problem>) {
    let file = File { text, path };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => return problems.push(file.unreadable(&error)),
    };
    file.apply("", table.get_ref(), config, problems);
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
    /// Applies a section, or what precedes all sections. `prefix` is its name and a dot.
    fn apply(&self, prefix: &str, table: &DeTable<'_>, config: &mut Config, problems: &mut Vec<Problem>) {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            let at = name.span().start;
            match (value.get_ref(), keys::tables().find(|tables| tables.name == key)) {
                (DeValue::Table(section), None) if is_section(&key) => {
                    self.apply(&format!("{key}."), section, config, problems);
                }
                (DeValue::Array(entries), Some(tables)) => {
                    for entry in entries.iter() {
                        self.add(tables, at, entry, config, problems);
                    }
                }
                (_, Some(_)) => {
                    let what = format!("must be a list of tables, each below a line [[{key}]]");
                    problems.push(self.problem(at, &key, &what));
                }
                (value, None) => {
                    let known = keys::all().find(|known| known.name == key);
                    if let Some(known) = known {
                        let location = (self.path.to_owned(), self.line(at));
                        config.locations.0.insert(known.name, location);
                    }
                    self.set(known, &key, at, value, config, problems);
                }
            }
        }
    }

    /// Adds a table to a list of tables. `at` is where the list begins.
    fn add(
        &self,
        tables: &Tables,
        at: usize,
        entry: &Spanned<DeValue<'_>>,
        config: &mut Config,
        problems: &mut Vec<Problem>,
    ) {
        // A table below a line of its own begins with that line.
        let begins = if entry.span().is_empty() { at } else { entry.span().start };
        let DeValue::Table(values) = entry.get_ref() else {
            let what = format!("must be a list of tables, each below a line [[{}]]", tables.name);
            return problems.push(self.problem(begins, tables.name, &what));
        };
        (tables.begin)(config);
        let before = problems.len();
        for (name, value) in values {
            let key = format!("{}.{}", tables.name, name.get_ref());
            let known = tables.keys.iter().find(|known| known.name == key);
            self.set(known, &key, name.span().start, value.get_ref(), config, problems);
        }
        if problems.len() == before
            && let Err(what) = (tables.check)(config)
        {
            problems.push(self.problem(begins, tables.name, &what));
        }
    }

    fn set(
        &self,
        known: Option<&Key>,
        key: &str,
        at: usize,
        value: &DeValue<'_>,
        config: &mut Config,
        problems: &mut Vec<Problem>,
    ) {
        let what = match known {
            Some(known) => (known.set)(config, &Given::File(value)).err(),
            None => Some(unknown(key)),
        };
        problems.extend(what.map(|what| self.problem(at, key, &what)));
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
    keys::all().any(|key| section(key.name) == name && !name.is_empty())
}

/// Section of a key; empty for a key that precedes all sections.
fn section(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

/// Returns the error message for an unknown key, with a suggestion of what to write instead.
fn unknown(key: &str) -> String {
    if is_section(key) {
        return format!("is a section: write [{key}] on a line of its own");
    }
    let wanted = section(key);
    let of_tables = keys::tables().flat_map(|tables| tables.keys);
    let known = keys::all().chain(of_tables).filter(|known| section(known.name) == wanted);
    let known: Vec<_> =
        known.map(|known| known.name.rsplit_once('.').map_or(known.name, |(_, name)| name)).collect();
    let location = match wanted {
        "" => "before the sections".to_owned(),
        wanted if keys::tables().any(|tables| tables.name == wanted) => format!("in [[{wanted}]]"),
        wanted => format!("in [{wanted}]"),
    };
    format!("is not a key; known {location}: {}", known.join(", "))
}
