//! `scripts/gpu-check`, run as on a machine with GPUs: the real binary on the fake driver library, and an nvidia-smi
//! that answers with that driver's values.

use crate::support::agent;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::fake_nvml::FakeNvml;
use serde_json::{Value, json};

/// One busy H100, as nvidia-smi would put it.
const ANSWERS: &str = include_str!("../data/nvidia-smi-h100.txt");

/// Rejects a field that it does not have, as the real one does.
const NVIDIA_SMI: &str = include_str!("../data/nvidia-smi.sh");

#[test]
fn nothing_differs_where_both_read_the_same_driver() {
    let checked = check(ANSWERS, &["-c", "0"]);
    assert_eq!(checked.code, 0, "{}\n{}", checked.printed, checked.report);
    let expected = ["decoder busy, s", "fan.speed", "retired_pages.double_bit.count", "retired_pages.pending"];
    let expected = expected.into_iter().chain(["retired_pages.single_bit_ecc.count"]);
    assert_eq!(checked.but_same(), expected.map(|name| (name, "nvidia-smi N/A")).collect::<Vec<_>>());
    let rows = checked.rows();
    assert_eq!(rows["memory.total"], ["81559", "81559", "same"]);
    assert_eq!(rows["ecc.errors.corrected.volatile.total"], ["5", "5", "same"]);
    assert_eq!(rows["fan.speed"], ["[N/A]", "-", "nvidia-smi N/A"]);
    assert_eq!(rows["pci.bus_id"], ["00000000:10:00.0", "0000:10:00.0", "same"]);
    assert!(rows.contains_key("energy, J") && rows.contains_key("gpu busy, s"), "{rows:?}");
    // The load is not this test's: a CUDA machine would have one.
    for part in ["580.95.05", "1 x NVIDIA H100 80GB HBM3", "## NVML errors", "| kernel | Linux"] {
        assert!(checked.report.contains(part), "{part:?} in {}", checked.report);
    }
    let gpus = &checked.recording["hardware"]["readings"];
    assert_eq!(gpus["GPU-00000000-0000-0000-0000-000000000000"]["fast"]["value"]["power_watts"], 300.0);
    assert!(!checked.report.contains("## Cost"), "{}", checked.report);
}

#[test]
fn a_value_that_differs_is_named_and_the_cost_is_in_the_report() {
    let answers = ANSWERS
        .replace("ecc.errors.corrected.aggregate.total=9", "ecc.errors.corrected.aggregate.total=10")
        .replace("power.draw=300.00", "power.draw=200.00")
        .replace("fan.speed=[N/A]", "fan.speed=30");
    let checked = check(&answers, &["-c", "1", "-p", "./device-plugin", "-n", "./exporter"]);
    assert_eq!(checked.code, 1, "{}", checked.printed);
    let rows = checked.rows();
    assert_eq!(rows["ecc.errors.corrected.aggregate.total"], ["10", "9", "**differs**"]);
    assert_eq!(rows["power.draw"], ["200.00", "300", "**differs**"]);
    assert_eq!(rows["energy, J"][2], "**differs**");
    assert_eq!(rows["fan.speed"], ["30", "-", "**podmeter absent**"]);
    let bad = checked.but_same().iter().filter(|(_, result)| result.starts_with("**")).count();
    assert_eq!(bad, 4, "{rows:?}");
    assert!(checked.report.contains(", 4 that differ or are absent from podmeter."), "{}", checked.report);
    is_the_cost_of_podmeter_and_the_exporter(&checked);
}

fn is_the_cost_of_podmeter_and_the_exporter(checked: &Checked) {
    let (figures, rest) = cost(&checked.report);
    let columns = ["nvitop-exporter", "podmeter", "podmeter without the image's settings"];
    let known = |figure: &str| -> Vec<&str> {
        let row = &figures[figure];
        assert_eq!(row.keys().copied().collect::<Vec<_>>(), columns, "a column without a figure");
        row.iter()
            .filter(|(_, value)| **value != "-")
            .map(|(column, value)| {
                assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{figure}, {column}: {value}");
                *column
            })
            .collect()
    };
    assert_eq!(known("exec → Register, ms"), columns[1..]);
    assert_eq!(known("exec → first page with device values, ms"), ["podmeter"]);
    for figure in ["idle, % of a core per GPU", "resident memory, MiB", "anonymous memory, MiB", "threads"] {
        assert_eq!(known(figure), columns, "{figure}");
    }
    assert_eq!(figures.len(), 6, "{figures:?}");
    let failure = "NVIDIA's device plugin could not be measured; its last line: ";
    assert!(rest.contains(failure) && checked.printed.contains(failure), "{rest}");
    let calls: Vec<Vec<_>> =
        rest.lines().filter(|line| line.starts_with("| `nvml")).map(|line| line.split('|').collect()).collect();
    let is_number = |cell: &str| cell.trim().parse::<f64>().is_ok();
    assert!(
        !calls.is_empty() && calls.iter().all(|cells| [2, 3, 4, 6].iter().all(|cell| is_number(cells[*cell]))),
        "{calls:?}"
    );
    assert!(rest.contains("\n| all | - | ") && !rest.contains("EventSetWait"), "{rest}");
}

#[test]
fn the_image_and_the_check_have_the_same_settings() {
    let file =
        |name: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("in the project");
    let environment = file("deploy/image/environment");
    let settings: Vec<_> = environment.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(file("scripts/gpu-check").contains(&format!("\nimage_settings={}\n", settings.join(" "))), "{settings:?}");
}

fn busy_h100() -> Value {
    json!({"gpus": [{
        "utilization": {"gpu": 50, "memory": 20}, "power_milliwatts": 300_000,
        "memory": {"used_bytes": 3_221_225_472_u64}, "temperatures": {"gpu": 61, "memory": 72},
        "clocks": {"sm": 1755, "graphics": 1755},
        "ecc": {
            "volatile": {"corrected": 5, "uncorrected": 1, "sram_corrected": 2},
            "aggregate": {"corrected": 9, "uncorrected": 2}
        },
        "remapped_rows": {"correctable": 1, "uncorrectable": 2, "pending": true}
    }]})
}

struct Checked {
    code: i32,
    printed: String,
    report: String,
    recording: Value,
}

impl Checked {
    /// Value → nvidia-smi, podmeter and result, from the report.
    fn rows(&self) -> BTreeMap<&str, [&str; 3]> {
        let rows = self.report.lines().filter_map(|line| line.strip_prefix("| 0 | "));
        rows.map(|row| {
            let cells: Vec<_> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`'), [cells[1], cells[2], cells[3]])
        })
        .collect()
    }

    fn but_same(&self) -> Vec<(&str, &str)> {
        let results = self.rows().into_iter().map(|(name, [_, _, result])| (name, result));
        results.filter(|(_, result)| *result != "same").collect()
    }
}

/// Of the table of the cost: figure → column → value; and the text below it.
fn cost(report: &str) -> (BTreeMap<&str, BTreeMap<&str, &str>>, &str) {
    let section = report.split_once("\n## Cost\n").expect("the cost").1;
    let (_, table) = section.split_once("\n| figure |").expect("a table");
    let (table, rest) = table.split_once("\n\n").expect("more");
    let mut lines = table.lines().map(|line| line.trim_matches('|').split('|').map(str::trim));
    let columns: Vec<_> = lines.next().expect("columns").collect();
    let rows = lines.skip(1).map(|mut row| (row.next().expect("a figure"), columns.iter().copied().zip(row).collect()));
    (rows.collect(), rest)
}

fn program(folder: &Path, name: &str, text: &str) -> PathBuf {
    let program = folder.join(name);
    fs::write(&program, text).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made a program");
    program
}

/// The script beside an nvidia-smi that gives these answers, in a folder where the arguments name programs.
fn check(answers: &str, arguments: &[&str]) -> Checked {
    let (driver, folder) = (FakeNvml::start(busy_h100()), tempfile::tempdir().expect("a temporary folder"));
    fs::write(folder.path().join("answers"), answers).expect("written");
    program(folder.path(), "nvidia-smi", NVIDIA_SMI);
    program(folder.path(), "device-plugin", "#!/bin/sh\necho 'no such flag' >&2\nexit 1\n");
    program(folder.path(), "exporter", "#!/bin/sh\necho 'INFO: Start the exporter on node' >&2\nexec sleep 600\n");
    let report = folder.path().join("report.md");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check");
    let mut command = Command::new(script);
    // A tenth of it is tolerated, which a busy machine may take between two scrapes.
    command.args(["-s", "15", "-o"]).arg(&report).args(arguments).arg(agent::binary()).envs(driver.env());
    command.current_dir(folder.path());
    // Only what the script may count on, so that no GPU tool of this machine is found.
    command.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    let output = command.output().expect("the script runs");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let recording = fs::read_to_string(folder.path().join("report.json")).expect("recorded");
    Checked {
        code: output.status.code().expect("not killed"),
        report: fs::read_to_string(&report).unwrap_or_default(),
        recording: serde_json::from_str(&recording).expect("JSON"),
        printed,
    }
}
