//! `scripts/gpu-check`, run as on a machine with GPUs: the real binary on the fake driver library, and an nvidia-smi
//! that answers with that driver's values.

use crate::support::agent;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::fake_nvml::FakeNvml;
use serde_json::{Value, json};
use tempfile::TempDir;

/// One busy H100, as nvidia-smi would put it.
const ANSWERS: &str = r#"
uuid=GPU-00000000-0000-0000-0000-000000000000
gpu_uuid=GPU-00000000-0000-0000-0000-000000000000
index=0
name=NVIDIA H100 80GB HBM3
pci.bus_id=00000000:10:00.0
vbios_version=96.00.74.00.01
compute_cap=9.0
driver_version=580.95.05
temperature.gpu=61
temperature.memory=72
memory.total=81559
memory.reserved=625
memory.used=3072
memory.free=77862
power.draw=300.00
enforced.power.limit=700.00
clocks.current.sm=1755
clocks.current.memory=2619
clocks.current.graphics=1755
clocks.current.video=765
utilization.gpu=50
utilization.memory=20
utilization.encoder=0
pstate=P0
fan.speed=[N/A]
pcie.link.gen.current=5
pcie.link.gen.max=5
pcie.link.width.current=16
pcie.link.width.max=16
ecc.errors.corrected.volatile.total=5
ecc.errors.uncorrected.volatile.total=1
ecc.errors.corrected.aggregate.total=9
ecc.errors.uncorrected.aggregate.total=2
retired_pages.single_bit_ecc.count=[N/A]
retired_pages.double_bit.count=[N/A]
retired_pages.pending=[N/A]
mig.mode.current=Disabled
remapped_rows.correctable=1
remapped_rows.uncorrectable=2
remapped_rows.pending=1
remapped_rows.failure=0
"#;

/// Rejects a field that it does not have, as the real one does.
const NVIDIA_SMI: &str = r#"#!/usr/bin/env bash
folder=${BASH_SOURCE%/*}
# answer FILE FIELD
answer() {
    while IFS='=' read -r name text; do
        if [ "$name" = "$2" ]; then printf '%s' "$text"; fi
    done <"$1"
}
case $1 in
-L)
    for gpu in "$folder"/answers-*; do
        printf 'GPU %s: %s (UUID: %s)\n' "$(answer "$gpu" index)" "$(answer "$gpu" name)" "$(answer "$gpu" uuid)"
    done
    exit
    ;;
--query-*=*) IFS=, read -ra fields <<<"${1#*=}" ;;
*) echo "unexpected: $*" >&2 && exit 1 ;;
esac
[ "$2" = --format=csv,noheader,nounits ] || exit 1
for gpu in "$folder"/answers-*; do
    row=''
    for field in "${fields[@]}"; do
        value=$(answer "$gpu" "$field")
        if [ -z "$value" ]; then
            printf 'Field "%s" is not a valid field to query.\n' "$field"
            exit 2
        fi
        row+="${row:+, }$value"
    done
    printf '%s\n' "$row"
done
"#;

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

/// A folder for PATH with an nvidia-smi that gives these answers, one set for each GPU.
fn nvidia_smi(answers: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("nvidia-smi");
    for (gpu, answers) in answers.iter().enumerate() {
        fs::write(folder.path().join(format!("answers-{gpu}")), answers).expect("written");
    }
    fs::write(&program, NVIDIA_SMI).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made a program");
    folder
}

struct Checked {
    code: i32,
    printed: String,
    report: String,
    recording: Option<Value>,
}

impl Checked {
    /// Value → nvidia-smi, podmeter and result, from the report.
    fn rows(&self, gpu: u32) -> BTreeMap<&str, [&str; 3]> {
        let begin = format!("| {gpu} | ");
        let rows = self.report.lines().filter_map(|line| line.strip_prefix(begin.as_str()));
        rows.map(|row| {
            let cells: Vec<_> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`'), [cells[1], cells[2], cells[3]])
        })
        .collect()
    }

    fn but_same(&self, gpu: u32) -> Vec<(&str, [&str; 3])> {
        self.rows(gpu).into_iter().filter(|(_, [_, _, result])| *result != "same").collect()
    }
}

fn check(first_in_path: &Path, driver: &FakeNvml) -> Checked {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = folder.path().join("report.md");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check");
    let mut command = Command::new(script);
    // A tenth of it is tolerated, which a busy machine may take between two scrapes.
    command.args(["-s", "15", "-o"]).arg(&report).arg(agent::binary()).envs(driver.env());
    // Only what the script may count on, so that no GPU tool of this machine is found.
    command.env("PATH", format!("{}:/usr/bin:/bin", first_in_path.display()));
    let output = command.output().expect("the script runs");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let recording = fs::read_to_string(folder.path().join("report.json")).ok();
    Checked {
        code: output.status.code().expect("not killed"),
        report: fs::read_to_string(&report).unwrap_or_default(),
        recording: recording.map(|text| serde_json::from_str(&text).expect("JSON")),
        printed,
    }
}

#[test]
fn nothing_differs_where_both_read_the_same_driver() {
    let (driver, smi) = (FakeNvml::start(busy_h100()), nvidia_smi(&[ANSWERS]));
    let checked = check(smi.path(), &driver);
    assert_eq!(checked.code, 0, "{}\n{}", checked.printed, checked.report);
    let not_applicable: Vec<_> = checked.but_same(0).into_iter().map(|(name, [_, _, result])| (name, result)).collect();
    let expected = ["decoder busy, s", "fan.speed", "retired_pages.double_bit.count", "retired_pages.pending"];
    let expected = expected.into_iter().chain(["retired_pages.single_bit_ecc.count"]);
    assert_eq!(not_applicable, expected.map(|name| (name, "nvidia-smi N/A")).collect::<Vec<_>>());
    let rows = checked.rows(0);
    assert_eq!(rows["memory.total"], ["81559", "81559", "same"]);
    assert_eq!(rows["ecc.errors.corrected.volatile.total"], ["5", "5", "same"]);
    assert_eq!(rows["fan.speed"], ["[N/A]", "-", "nvidia-smi N/A"]);
    assert_eq!(rows["pci.bus_id"], ["00000000:10:00.0", "0000:10:00.0", "same"]);
    assert!(rows.contains_key("energy, J") && rows.contains_key("gpu busy, s"), "{rows:?}");
    // The load is not this test's: a CUDA machine would have one.
    for part in ["580.95.05", "1 x NVIDIA H100 80GB HBM3", "## NVML errors", "| kernel | Linux"] {
        assert!(checked.report.contains(part), "{part:?} in {}", checked.report);
    }
    let gpus = &checked.recording.expect("recorded")["hardware"]["readings"];
    assert_eq!(gpus["GPU-00000000-0000-0000-0000-000000000000"]["fast"]["value"]["power_watts"], 300.0);
}

#[test]
fn a_value_that_differs_is_named() {
    let answers = ANSWERS
        .replace("ecc.errors.corrected.aggregate.total=9", "ecc.errors.corrected.aggregate.total=10")
        .replace("power.draw=300.00", "power.draw=200.00")
        .replace("fan.speed=[N/A]", "fan.speed=30");
    let (driver, smi) = (FakeNvml::start(busy_h100()), nvidia_smi(&[&answers]));
    let checked = check(smi.path(), &driver);
    assert_eq!(checked.code, 1, "{}", checked.printed);
    let rows = checked.rows(0);
    assert_eq!(rows["ecc.errors.corrected.aggregate.total"], ["10", "9", "**differs**"]);
    assert_eq!(rows["power.draw"], ["200.00", "300", "**differs**"]);
    assert_eq!(rows["energy, J"][2], "**differs**");
    assert_eq!(rows["fan.speed"], ["30", "-", "**podmeter absent**"]);
    let bad = checked.but_same(0).iter().filter(|(_, [_, _, result])| result.starts_with("**")).count();
    assert_eq!(bad, 4, "{rows:?}");
    assert!(checked.report.contains(", 4 that differ or are absent from podmeter."), "{}", checked.report);
}

/// As nvidia-smi would put a partitioned GPU: it has no utilization, and its values are not the first one's.
fn answers_of_partitioned() -> String {
    let changes = [
        ("000000000000\n", "000000000001\n"),
        ("index=0", "index=1"),
        (":10:00.0", ":11:00.0"),
        ("temperature.gpu=61", "temperature.gpu=35"),
        ("mig.mode.current=Disabled", "mig.mode.current=Enabled"),
        ("utilization.gpu=50", "utilization.gpu=[N/A]"),
        ("utilization.memory=20", "utilization.memory=[N/A]"),
        ("utilization.encoder=0", "utilization.encoder=[N/A]"),
        ("memory.used=3072", "memory.used=0"),
        ("memory.free=77862", "memory.free=80934"),
        ("power.draw=300.00", "power.draw=120.50"),
        ("remapped_rows.correctable=1", "remapped_rows.correctable=[N/A]"),
        ("remapped_rows.uncorrectable=2", "remapped_rows.uncorrectable=[N/A]"),
        ("remapped_rows.pending=1", "remapped_rows.pending=[N/A]"),
        ("remapped_rows.failure=0", "remapped_rows.failure=[N/A]"),
    ];
    changes.iter().fold(ANSWERS.to_owned(), |answers, (from, to)| {
        assert!(answers.contains(from), "{from}");
        answers.replace(from, to)
    })
}

#[test]
fn each_gpu_is_compared_with_itself() {
    let mut state = busy_h100();
    let mut partitioned = state["gpus"][0].clone();
    partitioned["temperatures"]["gpu"] = json!(35);
    partitioned["power_milliwatts"] = json!(120_500);
    partitioned["memory"] = json!({});
    partitioned["mig"] = json!({"enabled": true, "instances": [{"profile": "3g.40gb"}]});
    state["gpus"].as_array_mut().expect("gpus").push(partitioned);
    let (driver, smi) = (FakeNvml::start(state), nvidia_smi(&[ANSWERS, &answers_of_partitioned()]));
    let checked = check(smi.path(), &driver);
    assert_eq!(checked.code, 0, "{}\n{}", checked.printed, checked.report);
    let (first, second) = (checked.rows(0), checked.rows(1));
    assert_eq!(first["temperature.gpu"], ["61", "61", "same"]);
    assert_eq!(second["temperature.gpu"], ["35", "35", "same"]);
    assert_eq!(second["mig.mode.current"], ["Enabled", "1", "same"]);
    assert_eq!(second["utilization.gpu"], ["[N/A]", "-", "nvidia-smi N/A"]);
    assert_eq!(second["energy, J"][2], "same");
    assert!(!second.contains_key("gpu busy, s"), "in neither source: {second:?}");
    assert!(checked.report.contains("2 x NVIDIA H100 80GB HBM3"), "{}", checked.report);
}

#[test]
fn without_a_driver_it_names_the_remedy() {
    let driver = FakeNvml::start(busy_h100());
    let nothing = tempfile::tempdir().expect("a temporary folder");
    let checked = check(nothing.path(), &driver);
    assert_eq!((checked.code, checked.report.as_str()), (2, ""), "{}", checked.printed);
    assert!(checked.printed.contains("nvidia-smi is not in PATH; run this on"), "{}", checked.printed);

    // nvidia-smi is there, and the library reports that the kernel module is not loaded.
    driver.set(json!({"init": 9}));
    let checked = check(nvidia_smi(&[ANSWERS]).path(), &driver);
    assert_eq!((checked.code, checked.report.as_str()), (2, ""), "{}", checked.printed);
    assert!(
        checked.printed.contains("driver_not_loaded") || checked.printed.contains("load the NVIDIA"),
        "{}",
        checked.printed
    );
}
