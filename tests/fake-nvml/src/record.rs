//! Which calls were made, when and on what: a line each in a file, for the tests to read.
//!
//! `7000123456 0 nvmlDeviceGetSamples(1)`: the fake's time in microseconds, the GPU by its number (`0/3/0` for a MIG device,
//! `-` for none), and the call with the whole numbers among its arguments.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::clock;
use crate::handles::{Handle, Kind};
use crate::out::{Many, Out, Text};

pub struct Record(Option<File>);

impl Record {
    /// Nothing is recorded without a path, or where the file cannot be opened: the fake must not fail for it.
    pub fn new(path: Option<&Path>) -> Self {
        Self(path.and_then(|path| File::options().append(true).create(true).open(path).ok()))
    }

    /// A line is one write, so that a reader sees whole ones, in order, also where several processes write.
    pub fn add(&self, call: &str, handle: Option<Handle>, numbers: &[Option<c_uint>]) {
        let Some(mut file) = self.0.as_ref() else { return };
        let numbers: Vec<String> = numbers.iter().flatten().map(ToString::to_string).collect();
        let mut line = format!("{} {} {call}", clock::now(), place(handle));
        if !numbers.is_empty() {
            let _ = write!(line, "({})", numbers.join(","));
        }
        line.push('\n');
        let _ = file.write_all(line.as_bytes());
    }
}

fn place(handle: Option<Handle>) -> String {
    let Some((handle, kind)) = handle.and_then(|handle| Some((handle, handle.kind()?))) else { return "-".to_owned() };
    let slot = handle.slot();
    match kind {
        Kind::Device => slot.to_string(),
        Kind::MigDevice { gpu_instance, compute_instance } => format!("{slot}/{gpu_instance}/{compute_instance}"),
        Kind::GpuInstance { gpu_instance } => format!("{slot}/{gpu_instance}"),
    }
}

/// What an argument adds to the record.
pub trait Argument {
    fn number(&self) -> Option<c_uint> {
        None
    }
}

/// Kinds of samples, clocks and counters, links, lengths.
impl Argument for c_uint {
    fn number(&self) -> Option<c_uint> {
        Some(*self)
    }
}

impl Argument for c_int {}
/// Cursors and masks.
impl Argument for c_ulonglong {}
impl Argument for Text {}
impl<T> Argument for Out<T> {}
impl<T> Argument for Many<T> {}
impl<T> Argument for *mut T {}
