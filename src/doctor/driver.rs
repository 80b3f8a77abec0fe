//! The driver and the devices.

use std::collections::BTreeMap;

use super::observations::{Agent, NotObserved, Observations};
use super::report::Finding;

const DRIVER: &str = "check whether nvidia-smi works on the node; if the driver is elsewhere, mount it below a --driver-root or set \
                      --nvml-library";
const HUNG: &str = "the driver hangs: see dmesg, reset the GPU or drain the node";

pub fn driver(observations: &Observations) -> Finding {
    match &observations.driver {
        Ok(driver) => match &driver.inventory.driver {
            Some(info) => Finding::ok(format!("driver {}, {} GPUs", info.driver_version, driver.inventory.visible())),
            None => Finding::warning(
                format!("{} GPUs; the driver does not report its version", driver.inventory.visible()),
                DRIVER,
            ),
        },
        Err(missing @ NotObserved::Late(_)) => Finding::not_observed(missing, HUNG),
        Err(missing) => Finding::not_observed(missing, DRIVER),
    }
}

pub fn versions(observations: &Observations) -> Finding {
    let to_do = "finish the driver upgrade: unload the module and load the new one, or reboot the node; a container needs the \
                 libraries of the loaded driver";
    let library = match &observations.driver {
        Ok(driver) => driver.inventory.driver.as_ref(),
        Err(NotObserved::Skipped(reason)) => return Finding::skipped(reason),
        Err(_) => None,
    };
    let module = observations.module_version.as_ref().ok().and_then(Option::as_deref);
    match (library, module) {
        (Some(library), Some(module)) if *library.driver_version != *module => {
            Finding::failed(format!("the kernel module is {module}, the library {}", library.driver_version), to_do)
        }
        (Some(library), module) => {
            let shown = |version: &Option<std::sync::Arc<str>>| version.as_deref().unwrap_or("unknown").to_owned();
            let (nvml, cuda) = (shown(&library.nvml_version), shown(&library.cuda_version));
            let found = format!("driver {}, NVML {nvml}, CUDA {cuda}", library.driver_version);
            match module {
                Some(_) => Finding::ok(format!("{found}, kernel module the same")),
                None => Finding::warning(
                    format!("{found}; the kernel module's version is not found under --proc-root"),
                    "nothing while the driver answers",
                ),
            }
        }
        (None, Some(module)) => {
            Finding::warning(format!("kernel module {module}; the library does not answer"), "fix the driver first")
        }
        (None, None) => Finding::warning("neither module nor library reports its version", "fix the driver first"),
    }
}

pub fn devices(observations: &Observations) -> Finding {
    let lost = "see dmesg for XIDs and for the GPU that has fallen off the bus; reset it or reboot the node";
    let (expected, seen) = match (&observations.driver, &observations.agent) {
        (Ok(driver), _) => (observations.bus.as_ref().ok().map(|bus| bus.expected), Some(driver.inventory.visible())),
        (Err(NotObserved::Skipped(_)), Agent::Answers(answers)) => match &answers.node {
            Ok(node) => {
                let expected = node.pointer("/hardware/node_devices/expected").and_then(serde_json::Value::as_u64);
                let gpus = node.pointer("/hardware/inventory/gpus").and_then(serde_json::Value::as_object);
                let present = |gpu: &&serde_json::Value| gpu["present"] == true;
                let seen = gpus.map(|gpus| gpus.values().filter(present).count());
                if node.pointer("/hardware/source").is_some_and(|source| source == "none") {
                    return Finding::skipped("--hardware none: no devices are read");
                }
                (expected.and_then(|expected| usize::try_from(expected).ok()), seen)
            }
            Err(problem) => return Finding::failed(problem, "fix the agent first"),
        },
        (Err(NotObserved::Skipped(reason)), _) => return Finding::skipped(reason),
        (Err(_), _) => (observations.bus.as_ref().ok().map(|bus| bus.expected), None),
    };
    let number = |count: Option<usize>| count.map_or("an unknown number".to_owned(), |count| count.to_string());
    let found = format!("{} expected, {} seen", number(expected), number(seen));
    match (expected, seen) {
        (Some(0), Some(0)) => Finding::warning(found, "nothing if this node has no GPU"),
        (Some(expected), Some(seen)) if seen < expected => Finding::failed(found, lost),
        (Some(expected), Some(seen)) if seen > expected => {
            Finding::warning(format!("{found}: the PCI bus shows fewer than the driver"), "check --sys-root")
        }
        (Some(_), Some(_)) => Finding::ok(found),
        (None, _) => Finding::warning(found, "mount the host's /sys, or set --sys-root"),
        (Some(0), None) => Finding::warning(found, "nothing if this node has no GPU; else fix the driver"),
        (Some(_), None) => Finding::failed(found, "fix the driver first"),
    }
}

pub fn answers(observations: &Observations) -> Finding {
    match &observations.driver {
        Ok(driver) if driver.problems.is_empty() => Finding::ok("no call failed"),
        Ok(driver) => Finding::warning(
            driver.problems.join(", "),
            "not_supported is normal for a GPU without the feature; for other codes see docs/troubleshooting.md",
        ),
        Err(NotObserved::Skipped(reason)) => Finding::skipped(reason),
        Err(_) => Finding::skipped("the driver does not answer"),
    }
}

pub fn process_utilization(observations: &Observations) -> Finding {
    let Agent::Answers(answers) = &observations.agent else { return Finding::skipped("no agent reads the GPUs") };
    let readings = match &answers.node {
        Ok(node) => node.pointer("/hardware/readings").and_then(serde_json::Value::as_object),
        Err(problem) => return Finding::failed(problem, "fix the agent first"),
    };
    let source = |readings: &serde_json::Value| {
        readings.pointer("/medium/value/process_utilization_source")?.as_str().map(str::to_owned)
    };
    let mut gpus_by_source: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (uuid, readings) in readings.into_iter().flatten() {
        if let Some(source) = source(readings) {
            gpus_by_source.entry(source).or_default().push(uuid);
        }
    }
    if let Some(silent) = gpus_by_source.get("none") {
        return Finding::warning(
            format!("busy, and neither driver call lists a process: {}", silent.join(", ")),
            "update the driver; until then the busy time of a shared GPU is divided equally (docs/attribution.md)",
        );
    }
    if gpus_by_source.is_empty() {
        return Finding::ok("no GPU has been busy enough to check");
    }
    let counts = gpus_by_source.iter().map(|(source, gpus)| format!("{} GPUs by {source}", gpus.len()));
    Finding::ok(counts.collect::<Vec<_>>().join(", "))
}
