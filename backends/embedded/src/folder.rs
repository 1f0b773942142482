//! The data folder of a store: what may be in it, and which files in it belong to the store.

use std::collections::HashSet;
use std::sync::Arc;

use crate::checkpoint::{self, MANIFEST, Manifest};
use crate::disk::Disk;
use crate::error::{InFile, OpenError};
use crate::lock::LOCK;
use crate::rows::{self, RowFile, RowFileName, RowFiles};
use crate::segment;
use crate::wal;

/// Folders of a store.
pub(crate) const FOLDERS: [&str; 4] = [wal::FOLDER, segment::FOLDER, checkpoint::FOLDER, rows::FOLDER];

/// Opens the files of rows that a manifest names.
pub(crate) fn open_row_files(disk: &dyn Disk, manifest: &Manifest) -> Result<RowFiles, OpenError> {
    let files = manifest.rows.iter().map(|&name| RowFile::open(disk, name).map(Arc::new));
    Ok(Arc::new(files.collect::<Result<_, _>>()?))
}

/// Checks the content of the folder, and creates what a store needs.
pub(crate) fn prepare_folder(disk: &dyn Disk) -> Result<Manifest, OpenError> {
    let ours = |name: &str| {
        let is_folder = FOLDERS.iter().any(|folder| name.strip_suffix('/') == Some(folder));
        name.starts_with(MANIFEST) || name == LOCK || is_folder
    };
    let names = disk.list("").in_file("the data folder")?;
    let manifest = Manifest::load(disk)?;
    if manifest.is_none()
        && let Some(name) = names.into_iter().find(|name| !ours(name))
    {
        return Err(OpenError::Foreign { folder: "the data folder".to_owned(), name });
    }
    for folder in FOLDERS {
        disk.create_folder(folder).in_file(folder)?;
    }
    let manifest = match manifest {
        Some(manifest) => manifest,
        None => {
            refuse_orphans(disk)?;
            let manifest = Manifest::default();
            manifest.store(disk).in_file(MANIFEST)?;
            manifest
        }
    };
    // If the previous process was killed, the folders' entries may not be durable yet. From now on they must
    // be.
    for folder in [""].into_iter().chain(FOLDERS) {
        disk.sync_folder(folder).in_file(folder)?;
    }
    Ok(manifest)
}

/// Fails if there are files of a store without a manifest: it was lost, and with it the knowledge of what
/// they contain.
fn refuse_orphans(disk: &dyn Disk) -> Result<(), OpenError> {
    for folder in FOLDERS {
        if !disk.list(folder).in_file(folder)?.is_empty() {
            let what = format!("it is missing, though there are files in {folder}");
            return Err(OpenError::damaged(MANIFEST, what));
        }
    }
    Ok(())
}

/// Removes files that no manifest names, left by an interrupted creation or removal.
pub(crate) fn remove_unnamed_files(disk: &dyn Disk, manifest: &Manifest) -> Result<(), OpenError> {
    let known = [
        (rows::FOLDER, manifest.rows.iter().map(RowFileName::path).collect()),
        (segment::FOLDER, manifest.segments.iter().map(|&id| segment::file_name(id)).collect::<HashSet<_>>()),
        (
            checkpoint::FOLDER,
            manifest.deltas.iter().chain(&manifest.base).map(|&id| checkpoint::file_name(id)).collect(),
        ),
    ];
    for (folder, known) in known {
        for short in disk.list(folder).in_file(folder)? {
            let name = format!("{folder}/{short}");
            if !known.contains(&name) {
                disk.remove(&name).in_file(&name)?;
            }
        }
    }
    Ok(())
}
