//! Storage for a client's last cursor of a room, from which it resumes.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::Cursor;

/// Stores the last cursor of one room.
pub trait LastSeen: Send {
    /// Error of reading or storing. It stops the client.
    type Error: Into<Box<dyn std::error::Error + Send + Sync>>;

    /// The stored cursor, if there is one.
    fn load(&mut self) -> impl Future<Output = Result<Option<Cursor>, Self::Error>> + Send;

    /// Stores a cursor, or clears it. Called after every event. The latest store may be lost if the machine
    /// fails, and some events are then handled again; earlier ones must not be lost.
    fn store(&mut self, cursor: Option<&Cursor>) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Stores the cursor in memory: a new process starts at the head. Clones share the cursor.
#[derive(Clone, Debug, Default)]
pub struct InMemory(Arc<Mutex<Option<Cursor>>>);

impl InMemory {
    /// Starts with a cursor.
    pub fn at(cursor: Cursor) -> Self {
        Self(Arc::new(Mutex::new(Some(cursor))))
    }

    /// The stored cursor, if there is one.
    pub fn cursor(&self) -> Option<Cursor> {
        self.0.lock().expect("nobody panics while holding it").clone()
    }
}

impl LastSeen for InMemory {
    type Error = std::convert::Infallible;

    async fn load(&mut self) -> Result<Option<Cursor>, Self::Error> {
        Ok(self.cursor())
    }

    async fn store(&mut self, cursor: Option<&Cursor>) -> Result<(), Self::Error> {
        *self.0.lock().expect("nobody panics while holding it") = cursor.cloned();
        Ok(())
    }
}

/// Stores the cursor in a file of its own.
///
/// The file is written under another name, synced and renamed. Later stores overwrite its few bytes, which
/// are within one sector, in place without a sync: after a power cut the file has an earlier cursor, never a
/// part of one.
#[derive(Debug)]
pub struct InFile {
    path: PathBuf,
    /// The open file and the length of its content, after the first write.
    open: Option<(File, usize)>,
}

impl InFile {
    /// Stores at a path. The file need not exist yet, but its folder must.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), open: None }
    }

    fn read(&self) -> io::Result<Option<Cursor>> {
        let mut text = String::new();
        match File::open(&self.path) {
            Ok(file) => file.take(1024).read_to_string(&mut text)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let cursor = text.trim_end().parse();
        cursor.map(Some).map_err(|error| {
            io::Error::new(ErrorKind::InvalidData, format!("{}: {error}", self.path.display()))
        })
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if let Some((file, length)) = &mut self.open
            && *length == text.len()
        {
            file.rewind()?;
            return file.write_all(text.as_bytes());
        }
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.path)?;
        self.sync_folder()?;
        self.open = Some((file, text.len()));
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        self.open = None;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.and_then(|()| self.sync_folder()),
        }
    }

    /// Makes the file's name durable, on systems where a folder can be synced.
    fn sync_folder(&self) -> io::Result<()> {
        if cfg!(not(unix)) {
            return Ok(());
        }
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl LastSeen for InFile {
    type Error = io::Error;

    async fn load(&mut self) -> io::Result<Option<Cursor>> {
        self.read()
    }

    // A few bytes to the page cache: faster than handing them to another thread.
    async fn store(&mut self, cursor: Option<&Cursor>) -> io::Result<()> {
        match cursor {
            Some(cursor) => self.write(cursor.as_str()),
            None => self.remove(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_keeps_the_last_cursor_for_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cursor");
        let cursor = |text: &str| text.parse::<Cursor>().unwrap();
        let mut first = InFile::at(&path);
        assert_eq!(first.load().await.unwrap(), None);
        for text in ["01AAAA", "01BBBB", "01C"] {
            first.store(Some(&cursor(text))).await.unwrap();
            assert_eq!(InFile::at(&path).load().await.unwrap(), Some(cursor(text)));
        }
        let mut second = InFile::at(&path);
        second.store(Some(&cursor("01D"))).await.unwrap();
        assert_eq!(second.load().await.unwrap(), Some(cursor("01D")));
        second.store(None).await.unwrap();
        second.store(None).await.unwrap();
        assert_eq!(InFile::at(&path).load().await.unwrap(), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left over");
    }

    #[tokio::test]
    async fn a_file_that_has_no_cursor_is_an_error_and_not_a_start_at_the_head() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cursor");
        std::fs::write(&path, "not a cursor").unwrap();
        assert!(InFile::at(&path).load().await.is_err());
    }
}
