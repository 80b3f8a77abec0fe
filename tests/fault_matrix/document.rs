//! `docs/engineering/reliability.md`: the rows as tables, and beside each how long it took when the page was last written.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::AREAS;
use crate::row::{Area, Row};

const HEAD: &str = "# Reliability

What breaks around podmeter, what is seen of it then, and how soon all is well once it is over. Each row is a test
on a fake kubelet on real sockets and a fake driver library through the real `dlopen`, and this page is made from the rows:
`PODMETER_BINARY=target/release/podmeter cargo nextest run --test fault_matrix --test-threads 4`.

The node has eight GPUs, and a pod with one of them runs. podmeter serves the exporter and the device plugin, keeps a journal
(`--state-dir`) and reads a configuration and a web configuration. To be quick it runs with `--sample-interval 100ms`,
`--refresh-interval 1s`, `holdDown: 300ms` and `stuckLimit: 3s`; with the defaults (1 s, 5 s, 60 s and 10 s) faults are seen,
and devices come back, later by that much.

In every row, besides what is said there, no counter falls as long as the process lives. *Whole again* means: every GPU is
read and healthy, the plugin is registered, the kubelet has eight devices to give, the pod and its seconds are on the page, the
journal is written, both configurations are good, no call is stuck, `/-/healthy` and `/-/ready` say 200, and no file has been
left open. *Within* counts from the moment the fault is over, or from the fault itself where it passes without anybody's doing;
the test, which runs on busy machines, too, allows three times that. *Measured* is what it took when this page was last written,
on the fakes and two cores: it says what podmeter adds, not what a real driver takes. How flat memory, files, threads and series
stay over hours of such faults: [figures.md](figures.md).
";

pub fn is_true(areas: &[&Area]) {
    let (text, measured) = read();
    let made = render(areas, &measured);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return change(|_| {});
    }
    let command = "UPDATE_GOLDEN=1 cargo nextest run --test fault_matrix";
    assert_eq!(text, made, "docs/engineering/reliability.md is not what the rows make: {command}");
    let unmeasured = areas.iter().flat_map(|area| area.rows).find(|row| !measured.contains_key(row.id));
    assert!(unmeasured.is_none(), "{}: never measured: {command}", unmeasured.map_or("", |row| row.id));
}

/// Puts what was measured into the page; several processes may do so at once.
pub fn update(took: &BTreeMap<String, Duration>) {
    change(|measured| {
        measured.extend(took.iter().map(|(id, took)| (id.clone(), format!("{:.2} s", took.as_secs_f64()))));
    });
}

fn change(change: impl FnOnce(&mut BTreeMap<String, String>)) {
    let lock = File::create(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("reliability.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (_, mut measured) = read();
    change(&mut measured);
    std::fs::write(file(), render(&AREAS, &measured)).unwrap();
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/engineering/reliability.md")
}

/// The page, and the last column by row.
fn read() -> (String, BTreeMap<String, String>) {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let row = |line: &str| {
        let (id, rest) = line.strip_prefix("| `")?.split_once('`')?;
        let measured = rest.trim_end().strip_suffix(" |")?.rsplit_once("| ")?.1;
        measured.ends_with(" s").then(|| (id.to_owned(), measured.to_owned()))
    };
    let measured = text.lines().filter_map(row).collect();
    (text, measured)
}

fn render(areas: &[&Area], measured: &BTreeMap<String, String>) -> String {
    let mut text = HEAD.to_owned();
    for area in areas {
        let title = "| row | what happens | what is seen | what goes on | what ends it | within | measured |";
        write!(text, "\n## {}\n\n{title}\n|---|---|---|---|---|---|---|\n", area.name).unwrap();
        for row in area.rows {
            let took = measured.get(row.id).map_or("–", String::as_str);
            writeln!(text, "{} {} s | {took} |", cells(row), row.within).unwrap();
        }
    }
    text
}

fn cells(row: &Row) -> String {
    let Row { id, happens, seen, undone, .. } = row;
    format!("| `{id}` | {happens} | {seen} | {} | {undone} |", list(row.goes_on))
}

fn list(words: &[impl Display]) -> String {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    words.join(", ")
}
