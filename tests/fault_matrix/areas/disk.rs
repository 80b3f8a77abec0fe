use std::fs::File;

use podmeter::journal::FILE;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::rig::Rig;
use crate::row::{Area, FaultRow, Is, Logged, ROW, Reply, Sample};

const NOT_WRITTEN: Sample = Sample("podmeter_journal_up", &[], Is::Value(0.0));

pub const AREA: Area = Area {
    name: "The disk",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "disk-full",
            happens: "The disk has no space for the journal",
            how: |rig| {
                limit_files(rig, Some(4096));
                rig.run_a_pod();
            },
            metrics: &[NOT_WRITTEN, Sample("podmeter_journal_errors_total", &[], Is::Rises)],
            log: Logged::Line("the journal of allocations is not written"),
            page: Some(Reply("/", "the journal of allocations is not written")),
            undone: "the disk has space: podmeter writes the waiting records",
            undo: Some(|rig| limit_files(rig, None)),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "disk-directory-removed",
            happens: "The journal directory is removed while podmeter writes it",
            how: |rig| {
                std::fs::remove_dir_all(rig.path("state")).unwrap();
                rig.run_a_pod();
            },
            metrics: &[NOT_WRITTEN, Sample("podmeter_journal_errors_total", &[], Is::Rises)],
            log: Logged::Line("allocations.lock or allocations.sqlite was removed or replaced"),
            page: Some(Reply("/", "the journal of allocations is not written")),
            undone: "not needed: podmeter creates the directory and a new journal",
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "disk-directory-is-a-file",
            happens: "A file exists at the path of the journal directory when podmeter starts",
            how: |rig| {
                rig.stop();
                std::fs::remove_dir_all(rig.path("state")).unwrap();
                rig.write("state", "");
                rig.begin();
            },
            metrics: &[NOT_WRITTEN],
            log: Logged::Line("give --state-dir a directory that podmeter may write to"),
            page: Some(Reply("/", "give --state-dir a directory that podmeter may write to")),
            undone: "the file is removed",
            undo: Some(|rig| std::fs::remove_file(rig.path("state")).unwrap()),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "disk-journal-damaged",
            happens: "The journal is damaged when podmeter starts",
            how: |rig| {
                rig.stop();
                std::fs::write(rig.path("state").join(FILE), [0x5a; 20_000]).unwrap();
                rig.begin();
            },
            metrics: &[Sample("podmeter_journal_errors_total", &[], Is::AtLeast(1.0))],
            log: Logged::Line("cannot be used; it was renamed and a new one begun"),
            page: Some(Reply("/api/v1/allocations", "\"pod\":\"trainer\"")),
            undone: "not needed: podmeter renames the damaged file",
            ..ROW
        },
        FaultRow {
            id: "disk-journal-locked",
            happens: "Another podmeter holds the journal's lock when podmeter starts",
            how: |rig| {
                rig.stop();
                let lock = File::options().write(true).open(rig.path("state/allocations.lock")).unwrap();
                flock(&lock, FlockOperation::LockExclusive).unwrap();
                rig.hold(lock);
                rig.begin();
            },
            metrics: &[NOT_WRITTEN],
            log: Logged::Line("another podmeter writes to"),
            page: Some(Reply("/", "waiting until it ends")),
            undone: "the other podmeter ends",
            undo: Some(|_| {}),
            within: 15,
            ..ROW
        },
    ],
};

fn limit_files(rig: &mut Rig, bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(rig.pid()).unwrap());
    let before = prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None });
    before.expect("the limit of a child process can be set");
}
