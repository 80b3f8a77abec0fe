//! Directories laid out as a node's `/proc` and `/var/log/pods`, for simulated processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::gone;
use super::kubelet::container_id;

/// The kernel's PF_KTHREAD, which shows that process IDs are the host's.
const KERNEL_THREAD: u32 = 0x0020_8040;
const PLAIN: u32 = 0x0040_0100;

/// The directories `proc` and `pods` under a root, which its creator removes.
#[derive(Clone, Debug)]
pub struct ProcTree {
    root: PathBuf,
}

/// The names of a container in the node's files.
#[derive(Clone, Copy, Debug)]
pub struct ContainerIdentity<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    /// The pod's UID in cgroups and directories.
    pub uid: &'a str,
    pub container: &'a str,
}

impl ProcTree {
    /// Creates the directories with the host's first processes, and no pods.
    pub fn create(root: &Path) -> io::Result<Self> {
        let tree = Self { root: root.to_owned() };
        for directory in [tree.proc_root(), tree.pod_logs_root()] {
            fs::create_dir_all(directory)?;
        }
        tree.write(1, ("systemd", PLAIN, 0, 3), "/init.scope", HOST_MOUNTS)?;
        tree.write(2, ("kthreadd", KERNEL_THREAD, 0, 3), "/", HOST_MOUNTS)?;
        Ok(tree)
    }

    pub fn proc_root(&self) -> PathBuf {
        self.root.join("proc")
    }

    pub fn pod_logs_root(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Creates a container's log directory, as the kubelet does when it starts a container.
    pub fn add_container(&self, identity: ContainerIdentity<'_>) -> io::Result<()> {
        fs::create_dir_all(self.logs_of(identity).join(identity.container))
    }

    /// Removes the logs of all containers of a pod, as the kubelet does some time after the pod's removal.
    pub fn remove_pod_logs(&self, identity: ContainerIdentity<'_>) -> io::Result<()> {
        gone(fs::remove_dir_all(self.logs_of(identity)))
    }

    /// Starts a process of a container, with containerd's and systemd's cgroups; replaces one with the same number.
    pub fn start(&self, pid: u32, start_ticks: u64, identity: ContainerIdentity<'_>) -> io::Result<()> {
        let (cgroup, mounts) = files_of(identity);
        self.write(pid, ("python3", PLAIN, 1, start_ticks), &cgroup, &mounts)
    }

    /// Starts a process of the host.
    pub fn start_on_host(&self, pid: u32, start_ticks: u64) -> io::Result<()> {
        self.start_child(pid, start_ticks, 1, "/system.slice/display-manager.service")
    }

    /// Starts a process in any cgroup, whatever that of its parent, with the host's mounts.
    pub fn start_child(&self, pid: u32, start_ticks: u64, parent: u32, cgroup: &str) -> io::Result<()> {
        self.write(pid, ("Xorg", PLAIN, parent, start_ticks), cgroup, HOST_MOUNTS)
    }

    /// Starts a server of NVIDIA's MPS in a container and its parent, the control daemon, which has number `inner` in
    /// the container's namespace.
    pub fn start_mps(&self, server: u32, daemon: u32, inner: u32, identity: ContainerIdentity<'_>) -> io::Result<()> {
        let (cgroup, mounts) = files_of(identity);
        for (pid, parent) in [(daemon, 1), (server, daemon)] {
            self.write(pid, ("nvidia-cuda-mps", PLAIN, parent, 9), &cgroup, &mounts)?;
        }
        let status = format!("Name:\tnvidia-cuda-mps\nNSpid:\t{daemon}\t{inner}\n");
        fs::write(self.proc_root().join(daemon.to_string()).join("status"), status)
    }

    pub fn end(&self, pid: u32) -> io::Result<()> {
        gone(fs::remove_dir_all(self.proc_root().join(pid.to_string())))
    }

    /// Makes the directory of a process appear with all its files, as a real one does.
    fn write(
        &self,
        pid: u32,
        (name, flags, parent, start): (&str, u32, u32, u64),
        cgroup: &str,
        mounts: &str,
    ) -> io::Result<()> {
        let hidden = self.root.join(format!("making-{pid}"));
        gone(fs::remove_dir_all(&hidden))?;
        fs::create_dir_all(&hidden)?;
        let stat =
            format!("{pid} ({name}) S {parent} {pid} {pid} 0 -1 {flags} 0 0 0 0 5 4 0 0 20 0 1 0 {start} 10000 99\n");
        fs::write(hidden.join("stat"), stat)?;
        fs::write(hidden.join("cgroup"), format!("0::{cgroup}\n"))?;
        fs::write(hidden.join("mountinfo"), mounts)?;
        self.end(pid)?;
        fs::rename(hidden, self.proc_root().join(pid.to_string()))
    }

    fn logs_of(&self, ContainerIdentity { namespace, pod, uid, .. }: ContainerIdentity<'_>) -> PathBuf {
        self.pod_logs_root().join(format!("{namespace}_{pod}_{uid}"))
    }
}

/// The cgroup and the mounts of a container's processes.
fn files_of(ContainerIdentity { uid, container, .. }: ContainerIdentity<'_>) -> (String, String) {
    let id = container_id(uid, container);
    let slice = uid.replace('-', "_");
    let cgroup = format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{id}.scope");
    let mounts = format!(
        "700 600 0:150 / / rw,relatime - overlay overlay rw\n\
         701 700 0:60 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw\n\
         702 700 8:1 /var/lib/kubelet/pods/{uid}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda1 rw\n\
         703 700 8:1 /var/lib/kubelet/pods/{uid}/containers/{container}/8a1b2c3d /dev/termination-log rw,relatime \
         - ext4 /dev/sda1 rw\n"
    );
    (cgroup, mounts)
}

const HOST_MOUNTS: &str = "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n";
