//! The driver and the devices.

use std::collections::BTreeMap;

use super::catalogue::Finding;
use super::evidence::{Agent, Evidence, Missed};

const DRIVER: &str = "see whether nvidia-smi works on the node; where the driver is elsewhere, mount it below a --driver-root or name \
                      the library with --nvml-library";
const HUNG: &str = "the driver is wedged: see dmesg, reset the GPU or drain the node";

pub fn driver(evidence: &Evidence) -> Finding {
    match &evidence.driver {
        Ok(driven) => match &driven.inventory.driver {
            Some(driver) => {
                Finding::ok(format!("driver {}, {} GPUs", driver.driver_version, driven.inventory.visible()))
            }
            None => Finding::warning(
                format!("{} GPUs, and the driver does not tell its version", driven.inventory.visible()),
                DRIVER,
            ),
        },
        Err(missed @ Missed::Late(_)) => Finding::missed(missed, HUNG),
        Err(missed) => Finding::missed(missed, DRIVER),
    }
}

pub fn versions(evidence: &Evidence) -> Finding {
    let to_do = "finish the driver's upgrade: unload the module and load the new one, or reboot the node; a container must see the \
                 libraries of the loaded driver";
    let library = match &evidence.driver {
        Ok(driven) => driven.inventory.driver.as_ref(),
        Err(Missed::NotAsked(reason)) => return Finding::skipped(reason),
        Err(_) => None,
    };
    let module = evidence.module_version.as_ref().ok().and_then(Option::as_deref);
    match (library, module) {
        (Some(library), Some(module)) if *library.driver_version != *module => {
            Finding::failed(format!("the kernel module is {module}, the library {}", library.driver_version), to_do)
        }
        (Some(library), module) => {
            let told = |version: &Option<std::sync::Arc<str>>| version.as_deref().unwrap_or("not told").to_owned();
            let (nvml, cuda) = (told(&library.nvml_version), told(&library.cuda_version));
            let found = format!("driver {}, NVML {nvml}, CUDA {cuda}", library.driver_version);
            match module {
                Some(_) => Finding::ok(format!("{found}, kernel module the same")),
                None => Finding::warning(
                    format!("{found}; the kernel module's is not seen under --proc-root"),
                    "nothing while the driver answers",
                ),
            }
        }
        (None, Some(module)) => {
            Finding::warning(format!("kernel module {module}; the library does not answer"), "mend the driver first")
        }
        (None, None) => Finding::warning("neither module nor library tells its version", "mend the driver first"),
    }
}

pub fn devices(evidence: &Evidence) -> Finding {
    let lost = "see dmesg for XIDs and for the GPU that has fallen off the bus; reset it or reboot the node";
    let (expected, seen) = match (&evidence.driver, &evidence.agent) {
        (Ok(driven), _) => (evidence.bus.as_ref().ok().map(|bus| bus.expected), Some(driven.inventory.visible())),
        (Err(Missed::NotAsked(_)), Agent::Answers(answers)) => match &answers.node {
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
            Err(problem) => return Finding::failed(problem, "mend the agent first"),
        },
        (Err(Missed::NotAsked(reason)), _) => return Finding::skipped(reason),
        (Err(_), _) => (evidence.bus.as_ref().ok().map(|bus| bus.expected), None),
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
        (None, _) => Finding::warning(found, "mount the host's /sys, or name it with --sys-root"),
        (Some(0), None) => Finding::warning(found, "nothing if this node has no GPU; else mend the driver"),
        (Some(_), None) => Finding::failed(found, "mend the driver first"),
    }
}

pub fn answers(evidence: &Evidence) -> Finding {
    match &evidence.driver {
        Ok(driven) if driven.problems.is_empty() => Finding::ok("no call was refused"),
        Ok(driven) => Finding::warning(
            driven.problems.join(", "),
            "not_supported is the GPU's nature; for others see docs/troubleshooting.md and podmeter probe-nvml",
        ),
        Err(Missed::NotAsked(reason)) => Finding::skipped(reason),
        Err(_) => Finding::skipped("the driver does not answer"),
    }
}

pub fn kernel_log(evidence: &Evidence) -> Finding {
    match &evidence.kernel_log {
        Ok(()) => Finding::ok("can be read"),
        Err(missed) => Finding::missed(
            missed,
            "mount /dev/kmsg and add the capability CAP_SYSLOG, or set health.kmsg: off: XIDs come from the driver all the same",
        ),
    }
}

pub fn process_utilization(evidence: &Evidence) -> Finding {
    let Agent::Answers(answers) = &evidence.agent else { return Finding::skipped("no agent reads the GPUs") };
    let readings = match &answers.node {
        Ok(node) => node.pointer("/hardware/readings").and_then(serde_json::Value::as_object),
        Err(problem) => return Finding::failed(problem, "mend the agent first"),
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
            format!("busy without a process in either of the driver's calls: {}", silent.join(", ")),
            "update the driver; until then the busy time of a shared GPU is divided in equal parts (docs/attribution.md)",
        );
    }
    if gpus_by_source.is_empty() {
        return Finding::ok("no GPU has been busy enough to tell");
    }
    let told = gpus_by_source.iter().map(|(source, gpus)| format!("{} GPUs by {source}", gpus.len()));
    Finding::ok(told.collect::<Vec<_>>().join(", "))
}
