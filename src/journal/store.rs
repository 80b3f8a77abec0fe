//! The journal's database: the only file that uses SQLite.
//!
//! In: records, a query. Out: the records of that query. Does not use: snapshots.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params};

use super::allocation_record::AllocationRecord;
use super::directory;
use crate::files;

pub const FILE: &str = "allocations.sqlite";
/// The application ID "PMTR", which marks the file as ours.
const APPLICATION: i64 = 0x504d_5452;
/// The version of the table below.
const FORMAT: i64 = 2;
/// The page size, SQLite's default.
const PAGE_BYTES: u64 = 4096;
/// The pages that SQLite keeps in memory: 256 KiB.
const CACHE_PAGES: i64 = 64;
/// The longest wait while another process reads, which takes milliseconds.
const BUSY: Duration = Duration::from_secs(5);
/// The bytes of the maximum size for each record in one transaction, so that an eighth of the file is enough for the
/// records and the rollback journal.
const BYTES_PER_BATCHED_RECORD: u64 = 16 * 1024;

/// The table. `ended` is NULL while a holding continues; `record` is JSON.
const TABLE: &str = "
    CREATE TABLE holding (
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        pod TEXT NOT NULL,
        began REAL NOT NULL,
        ended REAL,
        record TEXT NOT NULL CHECK (json_valid(record))
    );
    CREATE INDEX holding_by_end ON holding (ended, id);
";

/// Limits of the journal's size and age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub bytes: u64,
    pub age: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is damaged, or no journal of this format.
    #[error("it is damaged or no journal: {0}")]
    Unusable(String),
    #[error("{0}")]
    Failed(String),
}

/// A selection of holdings. In HTTP it is the query string of `/api/v1/allocations`.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The window in Unix times: a holding that ended before `since` or began after `until` is not selected.
    pub since: f64,
    pub until: f64,
    pub namespace: Option<String>,
    pub pod: Option<String>,
    /// The `next` of the last page: only holdings with a greater ID are selected.
    pub after: u64,
    pub limit: usize,
}

/// An open database. `Connection` is not `Sync`, so only one thread uses it.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    bounds: Bounds,
}

impl Store {
    /// Opens or creates the file, and checks all of it. The caller must have the directory's lock.
    pub fn open(file: &Path, bounds: Bounds) -> Result<Self, StoreError> {
        files::open(file, files::OWNER_ONLY).map_err(|error| StoreError::Failed(error.to_string()))?;
        let connection = connect(file, OpenFlags::SQLITE_OPEN_CREATE)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // The rollback journal stays beside the file, emptied.
        // docs/engineering/decisions/2026-11-21-journal-in-sqlite.md has the reasons against WAL.
        connection.query_row("PRAGMA journal_mode = TRUNCATE", [], |_| Ok(()))?;
        if pragma(&connection, "page_count")? == 0 {
            connection.execute_batch(&format!(
                "BEGIN; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA application_id = {APPLICATION};
                 PRAGMA user_version = {FORMAT}; {TABLE} COMMIT;"
            ))?;
        }
        check_format(&connection)?;
        let result: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if result != "ok" {
            return Err(StoreError::Unusable(result.replace('\n', " ")));
        }
        Ok(Self { connection, bounds })
    }

    /// Opens the file for queries only. SQLite rolls an incomplete write back, if it may write the file.
    pub fn open_to_read(file: &Path) -> Result<Self, StoreError> {
        let connection = connect(file, OpenFlags::empty())?;
        connection.pragma_update(None, "query_only", true)?;
        check_format(&connection)?;
        Ok(Self { connection, bounds: Bounds { bytes: u64::MAX, age: Duration::MAX } })
    }

    /// Writes the records, which are on disk when this returns; after an error some may be. Removes the oldest where
    /// the file is full.
    pub fn write(&mut self, records: &[AllocationRecord]) -> Result<(), StoreError> {
        let batch = self.bounds.bytes / BYTES_PER_BATCHED_RECORD;
        for batch in records.chunks(usize::try_from(batch).unwrap_or(usize::MAX).max(1)) {
            let transaction = self.connection.transaction()?;
            {
                let mut insert = transaction.prepare(
                    "INSERT OR REPLACE INTO holding (id, namespace, pod, began, ended, record)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?;
                for record in batch {
                    if let Some(replaced) = record.replaces {
                        transaction.execute("DELETE FROM holding WHERE id = ?1", [key(replaced)])?;
                    }
                    let text = serde_json::to_string(record).expect("a record is strings and numbers");
                    let (namespace, pod) = (&*record.namespace, &*record.pod);
                    insert.execute(params![key(record.id), namespace, pod, record.began, record.ended, text])?;
                }
            }
            transaction.commit()?;
            self.keep_within_limit()?;
        }
        Ok(())
    }

    /// Removes holdings that ended before the maximum age, and returns free pages to the file system.
    pub fn prune(&mut self, now: f64) -> Result<(), StoreError> {
        let oldest = now - self.bounds.age.as_secs_f64();
        self.connection.execute("DELETE FROM holding WHERE ended < ?1", [oldest])?;
        self.keep_within_limit()?;
        let mut vacuum = self.connection.prepare("PRAGMA incremental_vacuum")?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Removes the holdings that ended first, some at a time. An eighth is left for a batch and the rollback journal.
    fn keep_within_limit(&self) -> Result<(), StoreError> {
        let most = (self.bounds.bytes - self.bounds.bytes / 8) / PAGE_BYTES;
        let used = || -> rusqlite::Result<i64> {
            Ok(pragma(&self.connection, "page_count")? - pragma(&self.connection, "freelist_count")?)
        };
        while used()?.unsigned_abs() > most {
            let removed = self.connection.execute(
                "DELETE FROM holding WHERE id IN
                     (SELECT id FROM holding WHERE ended IS NOT NULL ORDER BY ended, id
                      LIMIT (SELECT 1 + count(*) / 16 FROM holding))",
                [],
            )?;
            if removed == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The open records, and the highest id.
    pub fn open_records(&self) -> Result<(Vec<AllocationRecord>, u64), StoreError> {
        let last: Option<i64> = self.connection.query_row("SELECT max(id) FROM holding", [], |row| row.get(0))?;
        let mut statement = self.connection.prepare("SELECT record FROM holding WHERE ended IS NULL ORDER BY id")?;
        let open = statement.query_and_then([], read)?.collect::<Result<_, _>>()?;
        Ok((open, last.unwrap_or(0).unsigned_abs()))
    }

    /// The records that match, by ID.
    pub fn records(&self, query: &Query) -> Result<Vec<AllocationRecord>, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT record FROM holding
             WHERE id > ?1 AND began <= ?2 AND (ended IS NULL OR ended >= ?3)
                 AND (?4 IS NULL OR namespace = ?4) AND (?5 IS NULL OR pod = ?5)
             ORDER BY id LIMIT ?6",
        )?;
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let parameters = params![key(query.after), query.until, query.since, query.namespace, query.pod, limit];
        statement.query_and_then(parameters, read)?.collect()
    }
}

/// Opens the file; follows no symbolic link.
fn connect(file: &Path, mode: OpenFlags) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let file = directory::resolve(file).map_err(|error| StoreError::Failed(error.to_string()))?;
    let connection = Connection::open_with_flags(file, flags | mode)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "cache_size", CACHE_PAGES)?;
    Ok(connection)
}

fn check_format(connection: &Connection) -> Result<(), StoreError> {
    match (pragma(connection, "application_id")?, pragma(connection, "user_version")?) {
        (APPLICATION, FORMAT) => Ok(()),
        (APPLICATION, format) => {
            Err(StoreError::Unusable(format!("its format is {format}; this podmeter uses {FORMAT}")))
        }
        _ => Err(StoreError::Unusable("it is the database of another program".to_owned())),
    }
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn key(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

fn read(row: &Row<'_>) -> Result<AllocationRecord, StoreError> {
    let text = row.get_ref(0)?.as_str().map_err(|error| StoreError::Unusable(error.to_string()))?;
    serde_json::from_str(text).map_err(|error| StoreError::Unusable(error.to_string()))
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let (code, text) = (error.sqlite_error_code(), error.to_string());
        // SQLite has no separate code for a damaged format number, nor for a missing table.
        let is_unusable = matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
            || ["unsupported file format", "no such table"].iter().any(|part| text.contains(part));
        if is_unusable { Self::Unusable(text) } else { Self::Failed(text) }
    }
}

#[cfg(test)]
mod tests;
