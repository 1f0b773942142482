//! Floors: versions up to which a connection was told of entities, because a replay is further than the reader.
//!
//! A replay reads up to what is visible, and the reader of the project may not have come as far. What it delivers then was
//! told already, and must not take a version back.

use std::collections::HashMap;

use crate::entity::{EntityCode, EntityId};

/// The floors of one connection.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    versions: HashMap<EntityCode, HashMap<EntityId, u64>>,
    count: usize,
    /// Number of the last replay that has raised one.
    replay: u64,
}

impl Floors {
    /// Version up to which the connection was told of an entity; zero if the reader is as far.
    pub(crate) fn of(&self, code: &EntityCode, id: &EntityId) -> u64 {
        self.versions.get(code).and_then(|versions| versions.get(id)).copied().unwrap_or_default()
    }

    /// Raises the floor of an entity to what a replay tells.
    pub(crate) fn raise(&mut self, code: &EntityCode, id: &EntityId, version: u64, replay: u64) {
        let floor = self.versions.entry(code.clone()).or_default().entry(id.clone()).or_insert_with(|| {
            self.count += 1;
            0
        });
        *floor = version.max(*floor);
        self.replay = replay;
    }

    /// Forgets all floors.
    pub(crate) fn clear(&mut self) {
        self.versions.clear();
        self.count = 0;
    }

    /// Forgets all floors, if the reader has come as far as this replay and the one before have.
    pub(crate) fn reached(&mut self, replay: u64) {
        if self.replay <= replay {
            self.clear();
        }
    }

    /// Forgets the floors of entities that are not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&EntityCode, &EntityId) -> bool) {
        self.versions.retain(|code, versions| {
            versions.retain(|id, _| keep(code, id));
            !versions.is_empty()
        });
        self.count = self.versions.values().map(HashMap::len).sum();
    }

    /// Number of entities.
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}
