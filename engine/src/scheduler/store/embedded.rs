//! The embedded store: one file in `state_dir`, made on first use.
//!
//! redb: transactions that survive a crash of the process or of the machine, and a lock on the
//! file, so that two schedulers cannot share it by mistake.

use super::Store;
use crate::scheduler::identity::Identity;
use crate::scheduler::ledger::{Batch, Loaded};
use crate::scheduler::record::{Record, Timing};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::path::{Path, PathBuf};

/// Key: identity as text. Value: body, next due time, time of writing.
const SCHEDULES: TableDefinition<'_, &str, (&str, u64, u64)> = TableDefinition::new("schedules");
/// Name of the file in `state_dir`.
const FILE: &str = "schedules.redb";

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory.
    #[error("cannot make the directory {0}: {1}")]
    Directory(PathBuf, std::io::Error),
    /// Another process has it.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// Anything else.
    #[error("cannot open {0}: {1}")]
    Open(PathBuf, DatabaseError),
}

/// See the module.
#[derive(Debug)]
pub struct Embedded {
    database: Database,
}

impl Embedded {
    /// Opens the store in `state_dir`; directory and file are made if they are missing.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(state_dir: &Path) -> Result<Embedded, OpenError> {
        std::fs::create_dir_all(state_dir)
            .map_err(|error| OpenError::Directory(state_dir.to_owned(), error))?;
        let path = state_dir.join(FILE);
        match Database::create(&path) {
            Ok(database) => Ok(Embedded { database }),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(OpenError::InUse(path)),
            Err(error) => Err(OpenError::Open(path, error)),
        }
    }

    fn read(&self) -> Result<Loaded, redb::Error> {
        let mut loaded = Loaded::default();
        let transaction = self.database.begin_read()?;
        let table = match transaction.open_table(SCHEDULES) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(loaded),
            Err(error) => return Err(error.into()),
        };
        for entry in table.iter()? {
            let (key, value) = entry?;
            let (body, due_ms, saved_ms) = value.value();
            match key.value().parse::<Identity>() {
                Ok(identity) => loaded.records.push(Record {
                    identity,
                    body: body.to_owned(),
                    timing: Some(Timing { due_ms, saved_ms }),
                }),
                Err(error) => loaded.bad.push(format!("{}: {error}", key.value())),
            }
        }
        Ok(loaded)
    }

    fn change(&self, batch: &Batch) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(SCHEDULES)?;
            for record in &batch.put {
                let timing = record.timing.unwrap_or(Timing {
                    due_ms: 0,
                    saved_ms: 0,
                });
                let value = (record.body.as_str(), timing.due_ms, timing.saved_ms);
                table.insert(record.identity.to_string().as_str(), value)?;
            }
            for identity in &batch.delete {
                table.remove(identity.to_string().as_str())?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Store for Embedded {
    fn load(&mut self) -> Result<Loaded, String> {
        self.read().map_err(|error| error.to_string())
    }

    fn write(&mut self, batch: &Batch) -> Result<Vec<(Identity, u64)>, String> {
        self.change(batch).map_err(|error| error.to_string())?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(digit: char, body: &str, due_ms: u64) -> Record {
        Record {
            identity: digit.to_string().repeat(40).parse().unwrap(),
            body: body.to_owned(),
            timing: Some(Timing {
                due_ms,
                saved_ms: 7,
            }),
        }
    }

    #[test]
    fn what_is_written_is_there_after_opening_again() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("made/on/first/use");
        let mut store = Embedded::open(&state_dir).unwrap();
        assert_eq!(store.load(), Ok(Loaded::default()));
        let (a, b) = (record('a', "A", 1), record('b', "B\u{e9}", u64::MAX));
        let batch = Batch {
            put: vec![a.clone(), b.clone()],
            ..Batch::default()
        };
        assert_eq!(store.write(&batch), Ok(Vec::new()));
        assert!(matches!(
            Embedded::open(&state_dir),
            Err(OpenError::InUse(_))
        ));
        drop(store);
        let mut store = Embedded::open(&state_dir).unwrap();
        assert_eq!(store.load().unwrap().records, [a.clone(), b]);
        let newer = record('b', "newer", 3);
        let batch = Batch {
            put: vec![newer.clone()],
            delete: vec![a.identity, record('c', "", 0).identity],
            fires: vec![(a.identity, 5)],
            announce: true,
        };
        assert_eq!(store.write(&batch), Ok(Vec::new()));
        assert_eq!(store.load().unwrap().records, [newer]);
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(matches!(
            Embedded::open(&file),
            Err(OpenError::Directory(..))
        ));
        std::fs::write(dir.path().join(FILE), "no database").unwrap();
        assert!(matches!(
            Embedded::open(dir.path()),
            Err(OpenError::Open(..))
        ));
    }
}
