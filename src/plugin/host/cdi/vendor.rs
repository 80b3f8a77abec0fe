//! Finds our devices in vendors' CDI specifications, by device nodes and mounts and not by name.
//!
//! In: the runtime's directories of specifications, the devices that one entry offers, the host's files. Out: the name for
//! each device that a vendor describes, and why files are not used. Does not use: how answers to the kubelet are made.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::format::{self, Edits, Specification};
use super::{EARLIER_KIND, written};
use crate::domain::model::FileStamp;
use crate::files;
use crate::plugin::config::NvidiaConfig;
use crate::plugin::host::driver_files::DriverFiles;
use crate::plugin::host::path_devices::HostRoots;
use crate::plugin::offer::{Offer, OfferedHardware};
use crate::words::counted;

/// The kinds of a vendor's specification, the preferred one first: that of NVIDIA's toolkit, which keeps its file
/// current, then that of NVIDIA's plugin, which leaves its file behind.
const VENDOR_KINDS: [&str; 2] = ["nvidia.com/gpu", EARLIER_KIND];
/// Libraries of the driver that end in its version.
const VERSIONED: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

/// The files of others in the runtime's directories, without those that podmeter writes.
#[derive(Debug, Default)]
pub struct Specifications(Vec<VendorFile>);

#[derive(Clone, Debug)]
struct VendorFile {
    path: PathBuf,
    stamp: FileStamp,
    /// The number of the directory: of two, the later one takes precedence.
    directory: usize,
    kind: Option<String>,
    /// The specification; `Err`: runtimes do not load the file.
    read: Result<Specification, String>,
}

/// What a vendor's specifications have for the devices of one entry.
#[derive(Debug, Default)]
pub struct VendorDevices {
    /// The qualified name of each device, by UUID.
    pub names: BTreeMap<String, String>,
    pub unused: UnusedFiles,
}

/// Why a file is not used for some devices, which get podmeter's CDI devices instead.
pub type UnusedFiles = BTreeMap<(PathBuf, UnusedReason), Unused>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// The devices' UUIDs.
    pub devices: BTreeSet<String>,
    pub detail: String,
}

/// Why a file is not used: the values of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum UnusedReason {
    /// Runtimes do not load the file.
    Invalid,
    /// Another file of the directory has a device of the same name: runtimes use neither.
    NameTwice,
    /// The device nodes are another device's.
    DeviceNodes,
    /// A path that it mounts, or a hook's program, is not there.
    MissingPath,
    /// Its libraries are another driver's.
    DriverVersion,
    /// It has no entry for the device.
    NotDescribed,
}

/// The unused files as sentences for the log and the page.
pub fn unused_problems(unused: &UnusedFiles) -> Vec<String> {
    let problem = |((file, _), Unused { devices, detail }): (&(PathBuf, UnusedReason), &Unused)| {
        let devices = counted(devices.len(), "device");
        format!(
            "{} is not used for {devices}, whose containers get podmeter's CDI devices, without files of the driver: {detail}; \
             generate the file again (nvidia-ctk cdi generate), or delete it",
            file.display()
        )
    };
    unused.iter().map(problem).collect()
}

type Refusal = (UnusedReason, String);
/// The file with a device, or the file that prevents runtimes from using it.
type Resolved<'s> = Result<(&'s VendorFile, &'s Specification), (&'s VendorFile, Refusal)>;

/// The host's files that entries are compared with.
#[derive(Clone, Copy, Debug)]
pub struct HostView<'a> {
    pub roots: &'a HostRoots,
    /// Whether `roots` shows the host's files, and not those of this container.
    pub shows_files: bool,
    pub driver_version: Option<&'a str>,
}

impl Specifications {
    /// Reads the directories, and the files that have changed.
    pub fn refresh(&mut self, directories: &[PathBuf]) {
        let before = std::mem::take(&mut self.0);
        for (directory, path) in directories.iter().enumerate().flat_map(|(at, path)| candidates(at, path)) {
            let Some(metadata) = fs::metadata(&path).ok().filter(fs::Metadata::is_file) else { continue };
            let stamp = files::stamp(&metadata);
            let known = before.iter().find(|file| file.path == path && file.stamp == stamp);
            self.0.push(known.cloned().unwrap_or_else(|| VendorFile::read(path, stamp, directory)));
        }
    }

    fn of_kind<'s>(&'s self, kind: &'s str) -> impl Iterator<Item = (&'s VendorFile, &'s Specification)> {
        let loaded = self.0.iter().filter_map(|file| Some((file, file.read.as_ref().ok()?)));
        loaded.filter(move |(_, specification)| specification.kind == kind)
    }

    /// The names of a kind that runtimes find in files that podmeter does not write.
    pub fn described<'s>(&'s self, kind: &'s str) -> BTreeSet<&'s str> {
        self.of_kind(kind).flat_map(|(_, found)| found.devices.keys().map(String::as_str)).collect()
    }

    /// Finds for each offered device the first vendor's device that is the same hardware. A lost device needs none.
    pub fn vendor_devices(
        &self,
        nvidia: &NvidiaConfig,
        offers: &[Offer],
        driver_files: &DriverFiles,
        host: HostView<'_>,
    ) -> VendorDevices {
        let mut found = VendorDevices::default();
        let mut of_files = BTreeMap::new();
        let mut refuse = |file: &VendorFile, (reason, detail): Refusal, uuid: &str| {
            let unused: &mut Unused = found.unused.entry((file.path.clone(), reason)).or_default();
            unused.devices.insert(uuid.to_owned());
            if unused.detail.is_empty() {
                unused.detail = detail;
            }
        };
        let usable = offers.iter().flat_map(|offer| &offer.devices).filter(|device| device.health.is_ok());
        for hardware in usable.map(|device| &device.hardware) {
            let Some(names) = hardware.names().filter(|[uuid, _]| !found.names.contains_key(uuid)) else { continue };
            let uuid = names[0].clone();
            let names = nvidia.device_id_strategy.ordered(names);
            let mut refused = vec![];
            let name = VENDOR_KINDS.into_iter().flat_map(|kind| names.iter().map(move |name| (kind, name))).find(
                |(kind, name)| match self.resolve(kind, name) {
                    None => false,
                    Some(Err((file, refusal))) => {
                        refused.push((file, refusal));
                        false
                    }
                    Some(Ok((file, specification))) => {
                        let of_file: &mut Option<Refusal> =
                            of_files.entry(&file.path).or_insert_with(|| host.refusal(&specification.edits));
                        let edits = [&specification.devices[*name], &specification.edits];
                        let other = other_hardware(edits, hardware, **name == uuid, driver_files, name);
                        let refusal = other.or_else(|| of_file.clone()).or_else(|| host.refusal(edits[0]));
                        refused.extend(refusal.clone().map(|refusal| (file, refusal)));
                        refusal.is_none()
                    }
                },
            );
            if let Some((kind, name)) = name {
                found.names.insert(uuid, format!("{kind}={name}"));
                continue;
            }
            for file in self.0.iter().filter(|file| file.may_be_vendors()) {
                match &file.read {
                    Err(error) => {
                        refuse(file, (UnusedReason::Invalid, format!("runtimes do not load it: {error}")), &uuid);
                    }
                    Ok(found) if names.iter().all(|name| !found.devices.contains_key(name)) => {
                        refuse(file, (UnusedReason::NotDescribed, format!("it has no entry for {uuid}")), &uuid);
                    }
                    Ok(_) => {}
                }
            }
            refused.into_iter().for_each(|(file, refusal)| refuse(file, refusal, &uuid));
        }
        found
    }

    /// The file in which a runtime finds a device: that in the last directory that has it. A name that two files of one
    /// directory have is in none.
    fn resolve<'s>(&'s self, kind: &'s str, name: &str) -> Option<Resolved<'s>> {
        let with_name: Vec<_> = self.of_kind(kind).filter(|(_, found)| found.devices.contains_key(name)).collect();
        let twice = with_name.windows(2).find(|pair| pair[0].0.directory == pair[1].0.directory);
        if let Some([(one, _), (other, _)]) = twice {
            let detail = format!("{} has {kind}={name} too: runtimes use neither", one.path.display());
            return Some(Err((other, (UnusedReason::NameTwice, detail))));
        }
        with_name.last().copied().map(Ok)
    }
}

impl VendorFile {
    fn read(path: PathBuf, stamp: FileStamp, directory: usize) -> Self {
        let text = files::read_named_text(&path).map_err(|error| error.to_string());
        let kind = text.as_ref().ok().and_then(|text| format::kind(text));
        let read = match extension(&path) {
            "json" | "yaml" => text.and_then(|text| format::parse(&text)),
            _ => Err("they read names that end in .json or .yaml".to_owned()),
        };
        Self { path, stamp, directory, kind, read }
    }

    fn may_be_vendors(&self) -> bool {
        match &self.kind {
            Some(kind) => VENDOR_KINDS.contains(&kind.as_str()),
            // The kind is unknown, as the file cannot be read.
            None => ["json", "yaml"].contains(&extension(&self.path)),
        }
    }
}

impl HostView<'_> {
    /// Why a container with these edits would not start, or get another driver's libraries.
    fn refusal(self, edits: &Edits) -> Option<Refusal> {
        let mounted_version = |path: &str| {
            let name = path.rsplit_once('/')?.1;
            let version = VERSIONED.into_iter().find_map(|library| name.strip_prefix(library))?;
            // A version has a dot: `libcuda.so.1` has none.
            version.contains('.').then(|| version.to_owned())
        };
        for path in edits.host_paths() {
            if self.shows_files && !self.roots.local_path(Path::new(path)).exists() {
                return Some((UnusedReason::MissingPath, format!("{path}, which it names, is not there")));
            }
            if let (Some(mounted), Some(driver)) = (mounted_version(path), self.driver_version)
                && mounted != driver
            {
                return Some((
                    UnusedReason::DriverVersion,
                    format!("it mounts libraries of driver {mounted}, and the driver is {driver}"),
                ));
            }
        }
        None
    }
}

/// Why the entry `name` is other hardware, by its device nodes. An entry without nodes of a GPU counts by a UUID only.
fn other_hardware(
    edits: [&Edits; 2],
    hardware: &OfferedHardware,
    by_uuid: bool,
    driver_files: &DriverFiles,
    name: &str,
) -> Option<Refusal> {
    let nodes = edits.into_iter().flat_map(Edits::nodes).filter_map(|node| {
        let (path, minor) = node.on_host();
        numbered_node(path).map(|(class, number)| (class, minor.unwrap_or(number)))
    });
    let nodes: BTreeSet<(&str, i64)> = nodes.collect();
    if nodes.is_empty() && by_uuid {
        return None;
    }
    let show = |nodes: &BTreeSet<(&str, i64)>| {
        let texts: Vec<String> = nodes.iter().map(|(class, number)| format!("{class}{number}")).collect();
        if texts.is_empty() { "no device nodes of a GPU".to_owned() } else { texts.join(" and ") }
    };
    let of_device: BTreeSet<(&str, i64)> = match driver_files.device_nodes(hardware) {
        Ok(paths) => paths.iter().filter_map(|path| numbered_node(path)).collect(),
        // The nodes are unknown: the UUID decides.
        Err(_) if by_uuid => return None,
        Err(error) => {
            let detail = format!("its entry `{name}` cannot be compared with the GPU: {error}");
            return Some((UnusedReason::DeviceNodes, detail));
        }
    };
    (nodes != of_device).then(|| {
        let detail = format!("its entry `{name}` has {}, and the device has {}", show(&nodes), show(&of_device));
        (UnusedReason::DeviceNodes, detail)
    })
}

/// The class and the number of a node such as `nvidia3` or `nvidia-cap30`. `None`: it is no node of one device.
fn numbered_node(path: &str) -> Option<(&'static str, i64)> {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    let number = |class: &'static str| {
        let digits = name.strip_prefix(class)?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?.map(|number| (class, number))
    };
    number("nvidia-cap").or_else(|| number("nvidia"))
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// The files that may be specifications not written by podmeter, sorted, with the directory's number.
fn candidates(at: usize, directory: &Path) -> Vec<(usize, PathBuf)> {
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    let may_be = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Hidden files with other extensions are incomplete.
        let is_read = ["json", "yaml"].contains(&extension(file)) || !name.starts_with('.');
        is_read && !written::FILES.contains(&name)
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(may_be).collect();
    files.sort();
    files.into_iter().map(|file| (at, file)).collect()
}
