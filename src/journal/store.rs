use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::ffi::SQLITE_READONLY_ROLLBACK;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use super::allocation_record::AllocationRecord;
use super::directory;
use crate::files;

pub const FILE: &str = "allocations.sqlite";
/// "PMTR": marks the file as ours.
const APPLICATION: i64 = 0x504d_5452;
/// Of the tables below.
const FORMAT: i64 = 1;
const PAGE_BYTES: u64 = 4096;
/// Pages that SQLite keeps in memory: 256 KiB.
const CACHE_PAGES: i64 = 64;
/// While another process reads, which takes milliseconds.
const BUSY: Duration = Duration::from_secs(5);
/// When the file is full, one in this many holdings is removed, oldest first.
const PRUNED: u64 = 16;
/// Holdings read for one query: a few milliseconds.
const READ_AT_ONCE: usize = 4000;
/// Records in one transaction.
const BATCH: usize = 256;

/// `ended` is empty while it is held. `checksum` is the CRC-32 of `record`, which is JSON.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS holding (
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        pod TEXT NOT NULL,
        began REAL NOT NULL,
        seen REAL NOT NULL,
        ended REAL,
        checksum INTEGER NOT NULL,
        record TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS holding_by_end ON holding (ended, id);
";

/// Limits of the journal's size and age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub bytes: u64,
    pub age: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The contents are not what was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it has format {0} of a newer podmeter; this one reads format {FORMAT}")]
    Newer(i64),
    #[error("it is the database of another program")]
    Foreign,
    #[error("its last write is incomplete, and only a user who may write to it can roll that back")]
    Unfinished,
    #[error("{0}")]
    Failed(String),
}

/// `Connection` is not `Sync`, so only one thread uses it. No symbolic link is followed.
const OPEN: OpenFlags = OpenFlags::SQLITE_OPEN_NO_MUTEX.union(OpenFlags::SQLITE_OPEN_NOFOLLOW);
const WRITE: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_CREATE).union(OPEN);

/// An open database. A writer holds the directory's lock.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    bounds: Bounds,
    file: PathBuf,
}

/// Records that were read, and how many are damaged.
#[derive(Debug, Default)]
pub struct Loaded {
    pub records: Vec<AllocationRecord>,
    pub damaged: u64,
    /// The end and the id of the last holding visited, where there may be more.
    pub stopped_at: Option<(f64, u64)>,
}

impl Loaded {
    fn add(&mut self, row: &rusqlite::Row<'_>) {
        match read(row) {
            Some(record) => self.records.push(record),
            None => self.damaged += 1,
        }
    }
}

impl Store {
    /// Opens or creates the file, and checks all of it.
    pub fn open(file: &Path, bounds: Bounds) -> Result<Self, StoreError> {
        files::open(file, files::OWNER_ONLY).map_err(|error| StoreError::Failed(error.to_string()))?;
        let connection = connect(file, WRITE)?;
        connection.busy_timeout(BUSY)?;
        let (application, format) = (pragma(&connection, "application_id")?, pragma(&connection, "user_version")?);
        let is_new = pragma(&connection, "page_count")? == 0;
        match (application, format) {
            _ if is_new => {}
            (APPLICATION, FORMAT) => {}
            (APPLICATION, format) if format > FORMAT => return Err(StoreError::Newer(format)),
            (APPLICATION, _) => return Err(StoreError::Damaged(format!("its format is {format}"))),
            _ => return Err(StoreError::Foreign),
        }
        // These take effect only while there is no table yet.
        connection.pragma_update(None, "page_size", PAGE_BYTES.to_string())?;
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update(None, "cache_size", CACHE_PAGES)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // One file, and during a change its rollback journal.
        connection.query_row("PRAGMA journal_mode = TRUNCATE", [], |_| Ok(()))?;
        let store = Self { connection, bounds, file: file.to_owned() };
        if is_new {
            store.connection.execute_batch(&format!(
                "BEGIN; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {TABLES} COMMIT;"
            ))?;
        } else {
            store.check()?;
        }
        store.set_limit()?;
        Ok(store)
    }

    /// For queries only; nothing is created or changed.
    pub fn open_to_read(file: &Path) -> Result<Self, StoreError> {
        Self::open_for_queries(file, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    /// For queries, after an incomplete write: it is rolled back. The caller holds the directory's lock.
    pub fn open_to_recover(file: &Path) -> Result<Self, StoreError> {
        Self::open_for_queries(file, OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    fn open_for_queries(file: &Path, mode: OpenFlags) -> Result<Self, StoreError> {
        let connection = connect(file, mode | OPEN)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "cache_size", CACHE_PAGES)?;
        match (pragma(&connection, "application_id")?, pragma(&connection, "user_version")?) {
            (APPLICATION, FORMAT) => {}
            (APPLICATION, format) => return Err(StoreError::Newer(format)),
            _ => return Err(StoreError::Foreign),
        }
        let bounds = Bounds { bytes: u64::MAX, age: Duration::MAX };
        Ok(Self { connection, bounds, file: file.to_owned() })
    }

    /// On disk when this returns; after an error some may be. Removes the oldest where the file is full.
    pub fn write(&mut self, records: &[AllocationRecord]) -> Result<(), StoreError> {
        records.chunks(BATCH).try_for_each(|some| self.write_some(some))
    }

    fn write_some(&mut self, records: &[AllocationRecord]) -> Result<(), StoreError> {
        let rows: Vec<(&AllocationRecord, String)> = records.iter().map(|record| (record, text(record))).collect();
        let bytes: usize = rows.iter().map(|(_, text)| text.len()).sum();
        loop {
            match self.try_write(&rows) {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                    // Either our own limit or the disk is full; removing records helps with the first only.
                    if self.has_room_for(bytes as u64)? || self.prune_oldest()? == 0 {
                        return Err(error.into());
                    }
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    fn try_write(&mut self, rows: &[(&AllocationRecord, String)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare(
                "INSERT OR REPLACE INTO holding (id, namespace, pod, began, seen, ended, checksum, record)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?;
            for (record, text) in rows {
                let (id, checksum) = (i64::try_from(record.id).unwrap_or(i64::MAX), checksum(text));
                insert.execute(params![
                    id,
                    &*record.namespace,
                    &*record.pod,
                    record.began,
                    record.seen,
                    record.ended,
                    checksum,
                    text
                ])?;
            }
        }
        transaction.commit()
    }

    /// Removes holdings that ended before the maximum age. Returns how many.
    pub fn prune(&mut self, now: f64) -> Result<usize, StoreError> {
        let oldest = now - self.bounds.age.as_secs_f64();
        let gone = self.connection.execute("DELETE FROM holding WHERE ended < ?1", [oldest])?;
        self.shrink()?;
        Ok(gone)
    }

    fn prune_oldest(&mut self) -> Result<usize, StoreError> {
        let ended: i64 =
            self.connection.query_row("SELECT count(*) FROM holding WHERE ended IS NOT NULL", [], |row| row.get(0))?;
        let some = (ended.unsigned_abs() / PRUNED).max(1);
        let gone = self.connection.execute(
            "DELETE FROM holding WHERE id IN
                 (SELECT id FROM holding WHERE ended IS NOT NULL ORDER BY ended, id LIMIT ?1)",
            [i64::try_from(some).unwrap_or(i64::MAX)],
        )?;
        Ok(gone)
    }

    fn set_limit(&self) -> Result<(), StoreError> {
        // Leaves space for the rollback journal: a change touches a few pages of each table.
        let pages = (self.bounds.bytes - self.bounds.bytes / 8) / PAGE_BYTES;
        self.connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        Ok(())
    }

    /// Under our own limit, with a factor of two: rows do not fill their pages, and pages are split.
    fn has_room_for(&self, bytes: u64) -> Result<bool, StoreError> {
        let pages = |name| pragma(&self.connection, name);
        let free = pages("max_page_count")? - pages("page_count")? + pages("freelist_count")?;
        Ok(free.max(0).unsigned_abs() > 2 * bytes / PAGE_BYTES + 16)
    }

    /// Shrinks a file that is over a reduced limit; frees unused pages.
    fn shrink(&mut self) -> Result<(), StoreError> {
        while self.size()? > self.bounds.bytes {
            if self.prune_oldest()? == 0 {
                break;
            }
            self.vacuum()?;
        }
        self.vacuum()?;
        self.set_limit()
    }

    fn vacuum(&self) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare("PRAGMA incremental_vacuum")?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Of the file, in bytes.
    pub fn size(&self) -> Result<u64, StoreError> {
        let file = std::fs::metadata(&self.file);
        file.map(|file| file.len()).map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// The open records, and the highest id.
    pub fn open_records(&self) -> Result<(Loaded, u64), StoreError> {
        let last: Option<i64> = self.connection.query_row("SELECT max(id) FROM holding", [], |row| row.get(0))?;
        let query = "SELECT record, checksum FROM holding WHERE ended IS NULL ORDER BY id";
        let (mut statement, mut open) = (self.connection.prepare(query)?, Loaded::default());
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            open.add(row);
        }
        Ok((open, last.and_then(|id| u64::try_from(id).ok()).unwrap_or(0)))
    }

    /// Ended records that overlap the window, by end and id, after `after`; at most `limit`, from a bounded number
    /// visited.
    pub fn ended_records(
        &self,
        (since, until): (f64, f64),
        pod: (Option<&str>, Option<&str>),
        after: (f64, u64),
        limit: usize,
    ) -> Result<Loaded, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT record, checksum, ended, id,
                 began <= ?4 AND (?5 IS NULL OR namespace = ?5) AND (?6 IS NULL OR pod = ?6)
             FROM holding WHERE ended >= ?1 AND (ended, id) > (?2, ?3) ORDER BY ended, id",
        )?;
        let after_id = i64::try_from(after.1).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![since, after.0, after_id, until, pod.0, pod.1])?;
        let (mut loaded, mut visited, mut found) = (Loaded::default(), 0, 0);
        while let Some(row) = rows.next()? {
            visited += 1;
            if row.get::<_, Option<bool>>(4)?.unwrap_or(true) {
                found += 1;
                loaded.add(row);
            }
            let is_enough = found >= limit || visited >= READ_AT_ONCE;
            // In a damaged file an end may not be a number: then it stops at the next one.
            if is_enough && let Ok(ended) = row.get(2) {
                loaded.stopped_at = Some((ended, row.get::<_, i64>(3)?.unsigned_abs()));
                break;
            }
        }
        Ok(loaded)
    }

    fn check(&self) -> Result<(), StoreError> {
        let result: String = self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if result != "ok" {
            return Err(StoreError::Damaged(result.replace('\n', " ")));
        }
        // An intact file may still lack the tables.
        let columns = "SELECT id, record, checksum, ended, began, seen, namespace, pod FROM holding LIMIT 1";
        self.connection.prepare(columns).map_err(|error| StoreError::Damaged(error.to_string()))?;
        Ok(())
    }
}

fn connect(file: &Path, mode: OpenFlags) -> Result<Connection, StoreError> {
    let file = directory::resolve(file).map_err(|error| StoreError::Failed(error.to_string()))?;
    Ok(Connection::open_with_flags(file, mode)?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn extended(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

fn text(record: &AllocationRecord) -> String {
    serde_json::to_string(record).expect("a record is strings and numbers")
}

fn checksum(text: &str) -> i64 {
    let mut crc = flate2::Crc::new();
    crc.update(text.as_bytes());
    i64::from(crc.sum())
}

/// `None`: it does not match its checksum.
fn read(row: &rusqlite::Row<'_>) -> Option<AllocationRecord> {
    let text = row.get_ref(0).ok()?.as_str().ok()?;
    let expected: i64 = row.get(1).ok()?;
    if checksum(text) != expected {
        return None;
    }
    serde_json::from_str(text).ok()
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            // SQLite has no code of its own for a damaged format number.
            _ if error.to_string() == "unsupported file format" => Self::Damaged(error.to_string()),
            Some(ErrorCode::ReadOnly) if extended(&error) == Some(SQLITE_READONLY_ROLLBACK) => Self::Unfinished,
            _ => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
