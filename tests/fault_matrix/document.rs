//! Generates `docs/engineering/reliability.md` from the rows and the times that were last measured.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::AREAS;
use crate::row::{Area, FaultRow};

const HEAD: &str = "# Reliability

Faults around podmeter, their symptoms, and the time to recovery. Each row is a test of the binary on a fake kubelet on
real sockets and a fake driver library, loaded with `dlopen`. The rows generate this page:
`cargo test --test fault_matrix`.

The node has eight GPUs and a running pod with one of them. podmeter runs the exporter, the device plugin and the journal
(`--state-dir`) with a configuration and a web configuration. Short intervals make the tests fast: `--sample-interval 100ms`,
`--refresh-interval 1s`, `holdDown: 300ms` and `stuckLimit: 3s`. With the defaults (10 s, 5 s, 60 s and 10 s) detection and
recovery take longer by the difference.

In every row, no counter decreases while the process runs. *Recovered* means: every GPU has readings and is healthy, the plugin is
registered, the kubelet has eight allocatable devices, the metrics have the pod and its seconds, the journal is written, both
configurations are loaded, no driver call is stuck, `/-/healthy` and `/-/ready` return 200, and no file is left open. *Within* is
the limit for recovery, from the end of the fault, or from its start where podmeter recovers without help; the test allows three
times as much, for busy machines. *Measured* is the time of the last complete run, on the fakes and two cores: the delay that
podmeter adds, without that of a real driver. Memory, files, threads and series over hours of such faults:
[figures.md](figures.md).
";

pub fn check(areas: &[&Area]) {
    let (text, measured) = read();
    let made = render(areas, &measured);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return change(|_| {});
    }
    let command = "UPDATE_GOLDEN=1 cargo test --test fault_matrix";
    assert_eq!(text, made, "docs/engineering/reliability.md differs from the rows: {command}");
    let unmeasured = areas.iter().flat_map(|area| area.rows).find(|row| !measured.contains_key(row.id));
    assert!(unmeasured.is_none(), "{}: never measured: {command}", unmeasured.map_or("", |row| row.id));
}

/// Writes measured times to the page; safe with several processes.
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
    std::fs::write(file(), render(AREAS, &measured)).unwrap();
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/engineering/reliability.md")
}

/// The page, and the last column of each row.
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
        let title = "| row | fault | symptoms | continues to work | ended by | within | measured |";
        write!(text, "\n## {}\n\n{title}\n|---|---|---|---|---|---|---|\n", area.name).unwrap();
        for row in area.rows {
            let took = measured.get(row.id).map_or("–", String::as_str);
            writeln!(text, "{} {} s | {took} |", cells(row), row.within).unwrap();
        }
    }
    text
}

fn cells(row: &FaultRow) -> String {
    let FaultRow { id, happens, undone, .. } = row;
    format!("| `{id}` | {happens} | {row} | {} | {undone} |", list(row.goes_on))
}

fn list(words: &[impl Display]) -> String {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    words.join(", ")
}
