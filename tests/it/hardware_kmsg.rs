//! XIDs from the kernel's log, as a file and as a FIFO.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::support::watching::wait;
use podmeter::clock::Clock;
use podmeter::hardware::simulated::{Profile, SimulatedDriver};
use podmeter::hardware::{Hardware, Settings, start};
use podmeter::model::{GpuUuid, XidEvent, XidInstance, XidProcess, XidSource};
use tokio::sync::mpsc::Receiver;

struct Node {
    hardware: Hardware,
    xids: Receiver<Vec<XidEvent>>,
    driver: SimulatedDriver,
}

impl Node {
    fn start(kmsg: &Path) -> Self {
        let driver = SimulatedDriver::new(Profile::H100_MIG, 1);
        let settings = Settings {
            sample_interval: Duration::from_millis(50),
            kmsg: Some(kmsg.to_owned()),
            sys_root: "/nonexistent".into(),
            ..Settings::default()
        };
        let mut hardware = start(Box::new(driver.clone()), settings, Clock::start());
        let xids = hardware.xids().unwrap();
        wait(&hardware, "readings", |state| state.readings.len() == 8);
        Self { hardware, xids, driver }
    }

    /// The GPU at a PCI address of the simulated board.
    fn gpu(&self, bus_id: &str) -> GpuUuid {
        let inventory = self.driver.controls().inventory();
        let gpu = inventory.gpus.values().find(|gpu| gpu.pci_bus_id.as_ref().is_some_and(|id| id.as_str() == bus_id));
        gpu.unwrap().uuid.clone()
    }

    fn received(&mut self, count: usize) -> Vec<XidEvent> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut all: Vec<XidEvent> = Vec::new();
        runtime.block_on(async {
            while all.iter().map(|event| event.count).sum::<u64>() < count as u64 {
                let batch = tokio::time::timeout(Duration::from_secs(20), self.xids.recv()).await;
                let Ok(batch) = batch else { panic!("received only {all:?}") };
                all.extend(batch.unwrap());
            }
        });
        all
    }
}

fn fifo(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("kmsg");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

fn write(log: &mut File, text: &str) {
    log.write_all(text.as_bytes()).unwrap();
}

#[test]
fn an_xid_of_the_kernels_log_names_gpu_instance_and_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = fifo(directory.path());
    // Both ways, so that opening does not wait for the reader.
    let mut log = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut node = Node::start(&path);
    write(
        &mut log,
        "6,1,1,-;usb 1-1: new device\n SUBSYSTEM=usb\n3,2,2,-;NVRM: Xid (PCI:0000:1b:00 GPU-I:07 GPU-CI:00",
    );
    write(&mut log, "): 43, pid=4711, name=python3, Ch 00000008\n12,3,3,-;NVRM: Xid (PCI:0000:1b:00): 79, forged\n");
    let received = node.received(1);
    assert_eq!(
        (received[0].gpu.clone(), received[0].code, received[0].source),
        (node.gpu("0000:1b:00.0"), 43, XidSource::Kmsg)
    );
    assert_eq!(received[0].instance, Some(XidInstance { gpu_instance: 7, compute_instance: Some(0) }));
    assert_eq!(received[0].process, Some(XidProcess { pid: 4711, name: Some("python3".into()) }));

    // A loss reported twice: by an XID and by a message. Then another, by a message alone.
    write(&mut log, "3,4,4,-;NVRM: Xid (PCI:0000:43:00): 79, pid=9, GPU has fallen off the bus.\n");
    write(&mut log, "3,5,5,-;NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.\n");
    write(&mut log, "3,6,6,-;NVRM: GPU 0000:52:00.0: GPU has fallen off the bus.\n");
    let received = node.received(2);
    let gone: Vec<_> = received.iter().map(|event| (event.gpu.clone(), event.code, event.count)).collect();
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone.contains(&(node.gpu("0000:43:00.0"), 79, 1)) && gone.contains(&(node.gpu("0000:52:00.0"), 79, 1)));
    node.hardware.stop();
}

#[test]
fn a_file_is_read_from_its_end_and_a_flood_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kmsg");
    let line = |code: u32| format!("3,1,1,-;NVRM: Xid (PCI:0000:df:00): {code}, pid=7, name=exe, x\n");
    std::fs::write(&path, line(48)).unwrap();
    let mut node = Node::start(&path);
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    // The reader may not have opened the file yet; what is written before that is not read.
    let mut first = Vec::new();
    while first.is_empty() {
        write(&mut log, &line(13));
        if let Ok(batch) = node.xids.try_recv() {
            first = batch;
        }
    }
    assert!(first.iter().all(|event| event.code == 13), "{first:?}");
    write(&mut log, &line(31).repeat(20_000));
    write(&mut log, &line(74));
    let mut flood = 0;
    let mut last = false;
    while !last {
        for event in node.received(1) {
            flood += if event.code == 31 { event.count } else { 0 };
            last |= event.code == 74;
        }
    }
    assert_eq!(flood, 20_000);
    node.hardware.stop();
}

#[test]
fn an_unreadable_log_is_counted_and_affects_nothing_else() {
    let node = Node::start(Path::new("/nonexistent/kmsg"));
    let state = wait(&node.hardware, "the problem", |state| state.errors.contains_key("kmsg"));
    assert!(state.errors["kmsg"]["open_failed"] >= 1);
    assert_eq!(state.problem, None);
    node.hardware.stop();
}

#[test]
fn the_reader_ends_with_the_module() {
    let directory = tempfile::tempdir().unwrap();
    let path = fifo(directory.path());
    let log = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let node = Node::start(&path);
    node.hardware.stop();
    // It has ended; the kernel takes a moment to take it off the list.
    let runs = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|name| name.trim() == "kmsg")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for _ in 0..1_000 {
            if !runs() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the reader still runs");
    });
    drop(log);
}
