//! Options of most benchmarks: which rows and servers are measured, and where.

use std::io;
use std::path::PathBuf;

use clap::Args;
use tempfile::TempDir;

use crate::{Channel, Peer, Setup};

/// What is measured, and where.
#[derive(Clone, Debug, Args)]
pub struct Scope {
    /// Run only rows whose name contains this.
    #[arg(long, env = "ONLY", default_value = "")]
    pub only: String,
    /// Measure only tidings.
    #[arg(long)]
    pub alone: bool,
    /// Root of the repository.
    #[arg(long, default_value = ".")]
    pub root: PathBuf,
}

impl Scope {
    /// Creates a folder for the data of a benchmark, which is removed when it is dropped, and a setup with it
    /// in which servers run on all cores.
    pub fn setup(&self, benchmark: &str) -> io::Result<(TempDir, Setup)> {
        let parent = self.root.join("target/bench");
        std::fs::create_dir_all(&parent)?;
        let folder = tempfile::Builder::new().prefix(&format!("{benchmark}-")).tempdir_in(parent)?;
        let setup = Setup {
            root: self.root.canonicalize()?,
            data: folder.path().to_owned(),
            cores: None,
            flags: Vec::new(),
        };
        Ok((folder, setup))
    }

    /// Whether rows with this name are to be run.
    pub fn has_row(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Those of the channels to measure for a row; the name of the channel is part of the row's name.
    pub fn channels(&self, all: &[Channel], row: &str) -> Vec<Channel> {
        let ours = |channel: &Channel| !self.alone || channel.peer == Peer::Tidings;
        let wanted = |channel: &Channel| self.has_row(&format!("{row}, {}", channel.name()));
        all.iter().copied().filter(ours).filter(wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_measured_if_its_row_is_wanted() {
        let scope = |only: &str, alone| Scope { only: only.to_owned(), alone, root: PathBuf::from(".") };
        let all = Channel::ALL;
        assert_eq!(scope("", false).channels(&all, "idle"), all);
        assert_eq!(scope("", true).channels(&all, "idle"), all[..2]);
        assert_eq!(scope("idle, tidings SSE", false).channels(&all, "idle"), all[..1]);
        assert!(scope("slow", false).channels(&all, "idle").is_empty());
    }
}
