//! Prints the data file of a recording: `nvidia_ml_fake::recording`.

use std::io::Write as _;
use std::process::ExitCode;

use nvidia_ml_fake::recording::data_file;
use serde_json::Value;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: fake-nvml-record PROBE.json >DATA.json; PROBE.json is what podmeter probe-nvml prints");
        return ExitCode::from(2);
    };
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let probe = text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let written = probe.and_then(|probe: Value| {
        writeln!(std::io::stdout(), "{:#}", data_file(&probe)).map_err(|error| error.to_string())
    });
    written.map_or_else(
        |error| {
            eprintln!("{path}: {error}; give the file that podmeter probe-nvml -o json printed");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}
