//! NVIDIA's MPS control daemon, which podmeter does not start: whether it serves a resource, and its process.
//!
//! In: the daemon's files on the host, the offers. Out: the resources that it does not serve, and why. It does not
//! decide the health of their devices.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::path_devices::HostRoots;
use crate::domain::model::ResourceName;
use crate::plugin::config::NvidiaConfig;
use crate::plugin::offer::{Offer, OfferedDevice};

/// The files of a running daemon in the directory of its resource. NVIDIA's container makes the first when compute mode
/// and limits are set, and removes it when it ends; the daemon itself removes the last. A killed daemon leaves its
/// files behind and still counts as running.
const DAEMON_FILES: [&str; 3] = [".started", "pipe/control", PID_FILE];
const PID_FILE: &str = "pipe/nvidia-cuda-mps-control.pid";

/// The resources with shared devices that no running daemon serves, and why.
pub fn resources_without_daemon(
    nvidia: &NvidiaConfig,
    roots: &HostRoots,
    offers: &[Offer],
) -> BTreeMap<ResourceName, Arc<str>> {
    let without_daemon = |offer: &Offer| {
        Some((offer.resource.clone(), missing_file(&nvidia.mps_root, roots, offer.resource.as_str())?.into()))
    };
    shared(nvidia, offers).filter_map(without_daemon).collect()
}

/// The process ID of each resource's daemon, in the daemon's PID namespace.
pub fn daemons(nvidia: &NvidiaConfig, roots: &HostRoots, offers: &[Offer]) -> BTreeMap<ResourceName, u32> {
    let daemon = |offer: &Offer| {
        let file = roots.local_path(&nvidia.mps_root.join(offer.resource.as_str()).join(PID_FILE));
        Some((offer.resource.clone(), pid_in(&file)?))
    };
    shared(nvidia, offers).filter_map(daemon).collect()
}

fn shared<'o>(nvidia: &NvidiaConfig, offers: &'o [Offer]) -> impl Iterator<Item = &'o Offer> {
    let by_mps = nvidia.shares_through_mps();
    offers.iter().filter(move |offer| by_mps && offer.devices.iter().any(OfferedDevice::is_slot))
}

/// The process ID in the file. Clients may write to the directory: the file may not be the daemon's, and opening it
/// must not wait.
fn pid_in(file: &Path) -> Option<u32> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut text = String::new();
    File::options().read(true).custom_flags(flags).open(file).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn missing_file(root: &Path, roots: &HostRoots, resource: &str) -> Option<String> {
    let directory = root.join(resource);
    let missing = DAEMON_FILES.iter().find(|file| !roots.local_path(&directory.join(file)).exists())?;
    Some(format!(
        "NVIDIA's MPS control daemon does not serve {resource}: there is no {}; start the DaemonSet \
         nvidia-device-plugin-mps-control-daemon with the same sharing configuration, and mount {} into podmeter",
        directory.join(missing).display(),
        root.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::domain::model::PluginUnhealthyReason;
    use crate::plugin::offer::{OfferedHealth, PluginUnhealthy, offers};
    use crate::plugin::test_data::{gpu, inventory, nvidia, uuid};

    #[test]
    fn shared_devices_wait_for_their_daemon() {
        let host = tempfile::tempdir().unwrap();
        let roots = crate::plugin::test_data::host_roots(host.path());
        // The second GPU is not shared.
        let config = nvidia(&format!("sharing: {{mps: {{replicas: 2, perGpu: {{\"{}\": 1}}}}}}", uuid(1)));
        let nvidia = config.nvidia().unwrap();
        let offer = offers(&config, &inventory((0..2).map(|index| gpu(index, None))), &[]).offers.remove(0);
        let health = || -> Vec<OfferedHealth> {
            let without_mps = resources_without_daemon(nvidia, &roots, std::slice::from_ref(&offer));
            offer.clone().with_mps_health(&without_mps).devices.into_iter().map(|device| device.health).collect()
        };
        let own = host.path().join("run/nvidia/mps/nvidia.com/gpu");
        fs::create_dir_all(own.join("pipe")).unwrap();
        for file in [".started", "pipe/control", "pipe/nvidia-cuda-mps-control.pid"] {
            let now = health();
            let PluginUnhealthy { reason, detail, .. } = now[0].clone().unwrap_err();
            assert_eq!(reason, PluginUnhealthyReason::Mps);
            assert!(detail.contains(&format!("no /run/nvidia/mps/nvidia.com/gpu/{file};")), "{detail}");
            assert_eq!((now[1].is_err(), now[2].is_ok()), (true, true), "{now:?}");
            fs::write(own.join(file), "").unwrap();
        }
        assert_eq!(health(), [Ok(()), Ok(()), Ok(())]);
        let daemons = || daemons(nvidia, &roots, std::slice::from_ref(&offer));
        assert_eq!(daemons(), BTreeMap::new());
        fs::write(own.join(PID_FILE), "86\n").unwrap();
        assert_eq!(daemons(), [("nvidia.com/gpu".into(), 86)].into());
        fs::remove_file(own.join(".started")).unwrap();
        assert!(health()[0].is_err());
    }

    #[test]
    fn time_slices_need_no_daemon() {
        let config = nvidia("sharing: {timeSlicing: {replicas: 2}}");
        let nvidia = config.nvidia().unwrap();
        let offer = offers(&config, &inventory([gpu(0, None)]), &[]).offers.remove(0);
        let nowhere = HostRoots { host: "/nonexistent".into(), dev: "/nonexistent".into(), sys: "/nonexistent".into() };
        assert_eq!(resources_without_daemon(nvidia, &nowhere, &[offer]), BTreeMap::new());
    }
}
