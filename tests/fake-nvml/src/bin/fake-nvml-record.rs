//! Prints the data file of a recording: `nvidia_ml_fake::recording`.

use std::io::Write as _;
use std::process::ExitCode;

use nvidia_ml_fake::recording::data_file;
use serde_json::Value;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: fake-nvml-record NODE.json >DATA.json; NODE.json is an answer of /api/v1/node");
        return ExitCode::from(2);
    };
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let node = text.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let written = node.and_then(|node: Value| {
        writeln!(std::io::stdout(), "{:#}", data_file(&node)).map_err(|error| error.to_string())
    });
    written.map_or_else(
        |error| {
            eprintln!("{path}: {error}; give an answer of /api/v1/node, such as scripts/gpu-check keeps");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}
