//! `tidings store`: inspect, check, back up and repair a store.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, Subcommand};
use tidings_embedded::checkpoint::MANIFEST;
use tidings_embedded::tools::{Snapshot, backup, check, truncate};
use tidings_embedded::{DirectoryLock, Folder};
use tidings_engine::log::{Row, RowTable};
use tidings_model::{LogId, Position};
use tidings_server::Catalog;

use crate::command::CommandError;

/// Inspect, check, back up or repair a store.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings store backup ./tidings-data /backups/today\n  \
    tidings store check /backups/today")]
pub struct StoreCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read every file of a stopped store and report all damage.
    #[command(after_help = "Example:\n  tidings store check ./tidings-data")]
    Check(Dir),
    /// Print the streams and records of a stopped store, or its cold rows.
    #[command(after_help = "Examples:\n  \
        tidings store dump ./tidings-data --stream shop/orders\n  \
        tidings store dump ./tidings-data --rows")]
    Dump(Dump),
    /// Print the sizes and counts of a stopped store.
    #[command(after_help = "Example:\n  tidings store stats ./tidings-data")]
    Stats(Dir),
    /// Copy a store, which may be in use, to a new folder. To restore, serve from the copy.
    #[command(after_help = "Example:\n  tidings store backup ./tidings-data /backups/today")]
    Backup(Backup),
    /// Discard everything from the first unreadable commit on, in a store that refuses to start.
    #[command(after_help = "Example:\n  tidings store truncate ./tidings-data")]
    Truncate(Dir),
}

#[derive(Debug, Args)]
struct Dir {
    /// Data folder of the store.
    dir: PathBuf,
}

#[derive(Debug, Args)]
struct Dump {
    /// Data folder of the store.
    dir: PathBuf,
    /// Print only this stream, named as project/id.
    #[arg(long)]
    stream: Option<String>,
    /// Print the rows of the tables that are too large for memory, instead of streams.
    #[arg(long, conflicts_with = "stream")]
    rows: bool,
}

#[derive(Debug, Args)]
struct Backup {
    /// Data folder of the store.
    dir: PathBuf,
    /// Folder of the copy; must be empty, and is created if it does not exist.
    target: PathBuf,
}

impl StoreCommand {
    pub fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Check(Dir { dir }) => run_check(&dir),
            Verb::Dump(dump) => run_dump(&dump),
            Verb::Stats(Dir { dir }) => run_stats(&dir),
            Verb::Backup(Backup { dir, target }) => run_backup(&dir, &target),
            Verb::Truncate(Dir { dir }) => run_truncate(&dir),
        }
    }
}

/// Opens an existing data folder that no server uses.
fn stopped(dir: &Path) -> Result<(DirectoryLock, Folder), CommandError> {
    existing(dir)?;
    let lock = DirectoryLock::take(dir)?;
    let folder = lock.folder();
    Ok((lock, folder))
}

fn existing(dir: &Path) -> Result<Folder, CommandError> {
    if !dir.join(MANIFEST).is_file() {
        return Err(CommandError::NoStore(dir.to_owned()));
    }
    Ok(Folder::open(dir)?)
}

fn run_check(dir: &Path) -> Result<(), CommandError> {
    let (_lock, folder) = stopped(dir)?;
    let problems = check::<Catalog>(&folder);
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => {
            println!("all files can be read");
            Ok(())
        }
        count => Err(CommandError::Damaged { count }),
    }
}

fn run_stats(dir: &Path) -> Result<(), CommandError> {
    let (_lock, folder) = stopped(dir)?;
    let snapshot = Snapshot::<Catalog>::load(&folder)?;
    let stats = snapshot.stats(&folder)?;
    println!("era              {}", stats.era);
    println!("last commit      {}", stats.last_commit.get());
    println!("streams          {}", snapshot.tables().streams.iter().count());
    println!("logs             {}", stats.logs);
    println!("segments         {} ({} bytes, {} runs)", stats.segments, stats.segment_bytes, stats.runs);
    println!("rows             {} files ({} bytes)", stats.row_files, stats.row_bytes);
    println!("checkpoint       {} bytes", stats.checkpoint_bytes);
    println!("write-ahead log  {} bytes", stats.wal_bytes);
    Ok(())
}

fn run_dump(dump: &Dump) -> Result<(), CommandError> {
    let (_lock, folder) = stopped(&dump.dir)?;
    let snapshot = Snapshot::<Catalog>::load(&folder)?;
    let mut out = io::stdout().lock();
    if dump.rows {
        return dump_rows(&snapshot, &mut out);
    }
    let mut streams: Vec<_> = snapshot.tables().streams.iter().collect();
    streams.sort_by(|a, b| a.0.cmp(b.0));
    let mut found = false;
    for (key, stream) in streams {
        if dump.stream.as_ref().is_some_and(|wanted| *wanted != key.to_string()) {
            continue;
        }
        found = true;
        writeln!(out, "stream {key}: {}, {}, {:?}", stream.log, stream.content_type, stream.state)?;
        dump_records(&snapshot, stream.log, &mut out)?;
    }
    match &dump.stream {
        Some(wanted) if !found => Err(CommandError::NoStream(wanted.clone())),
        _ => Ok(()),
    }
}

fn dump_records(snapshot: &Snapshot<Catalog>, log: LogId, out: &mut impl Write) -> Result<(), CommandError> {
    let mut after = Position::ZERO;
    loop {
        let records = snapshot.records(log, after)?;
        let Some(last) = records.last() else { return Ok(()) };
        after = last.position;
        for record in records {
            let (commit, index) = record.position.parts();
            let text = String::from_utf8_lossy(&record.payload);
            let (commit, at) = (commit.get(), record.at.as_millis());
            writeln!(
                out,
                "  {commit:016}_{index:016} {at} {} bytes: {}",
                record.payload.len(),
                text.escape_debug()
            )?;
        }
    }
}

fn dump_rows(snapshot: &Snapshot<Catalog>, out: &mut impl Write) -> Result<(), CommandError> {
    for table in (0..=u8::MAX).map(RowTable) {
        let mut from = Bytes::new();
        loop {
            let rows = snapshot.rows(table, from)?;
            let Some(last) = rows.last() else { break };
            // The first key that sorts after the last one.
            from = [&last.key[..], &[0]].concat().into();
            for Row { key, value } in rows {
                let (number, bytes) = (table.0, value.len());
                writeln!(
                    out,
                    "table {number} {}: {bytes} bytes: {}",
                    key.escape_ascii(),
                    value.escape_ascii()
                )?;
            }
        }
    }
    Ok(())
}

fn run_backup(dir: &Path, target: &Path) -> Result<(), CommandError> {
    let from = existing(dir)?;
    let last = backup(&from, &Folder::make(target)?)?;
    println!("copied {} up to commit {} to {}", dir.display(), last.get(), target.display());
    println!("to restore it, serve with --data {}", target.display());
    Ok(())
}

fn run_truncate(dir: &Path) -> Result<(), CommandError> {
    let (_lock, folder) = stopped(dir)?;
    match truncate(&folder)? {
        None => println!("all commits can be read; nothing was changed"),
        Some(lost) => println!("gave up commit {} and all after it", lost.get()),
    }
    Ok(())
}
