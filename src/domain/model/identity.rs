//! Names of devices, pods and containers. Every string-shaped ID has a separate type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::device_id::{UUID_LENGTH, is_uuid};

/// Declares a newtype for a string-shaped ID, so that IDs cannot be confused.
macro_rules! string_identity {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The shared text, for labels that outlive this value.
            pub fn to_shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:?}", &*self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
    };
}

string_identity! {
    /// A GPU's UUID in NVML's form: `GPU-` and a UUID.
    GpuUuid
}
string_identity! {
    /// A MIG device's UUID in NVML's form: `MIG-` and a UUID.
    MigUuid
}
string_identity! {
    /// A PCI address in the kernel's form, with a four-digit domain and lower case: `0000:17:00.0`.
    PciBusId
}
string_identity! {
    /// The name of an extended resource, such as `nvidia.com/gpu`.
    ResourceName
}
string_identity! {
    /// A pod's UID: a UUID, or 32 hex digits for a pod from a manifest.
    PodUid
}
string_identity! {
    /// The runtime's ID of a container: 64 hex digits, without the runtime's name before it.
    ContainerId
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
}

impl PodRef {
    pub fn new(namespace: &str, pod: &str) -> Self {
        Self { namespace: namespace.into(), pod: pod.into() }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.pod)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerRef {
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
    pub container: Arc<str>,
    /// The UID in cgroups and the kubelet's checkpoint. It distinguishes pods of the same name: references with
    /// different UIDs are different containers. `None`, also later, if no source had it in the first answer that listed
    /// the pod.
    pub pod_uid: Option<PodUid>,
}

impl ContainerRef {
    pub fn new(namespace: &str, pod: &str, container: &str) -> Self {
        Self { namespace: namespace.into(), pod: pod.into(), container: container.into(), pod_uid: None }
    }

    pub fn in_pod(pod: &PodRef, container: &str) -> Self {
        let PodRef { namespace, pod } = pod;
        let (namespace, pod) = (Arc::clone(namespace), Arc::clone(pod));
        Self { namespace, pod, container: container.into(), pod_uid: None }
    }

    /// This reference, in the pod with this UID.
    #[must_use]
    pub fn with_uid(self, pod_uid: Option<PodUid>) -> Self {
        Self { pod_uid, ..self }
    }

    pub fn pod_ref(&self) -> PodRef {
        PodRef { namespace: Arc::clone(&self.namespace), pod: Arc::clone(&self.pod) }
    }

    /// Whether both have the same series: all names are equal, whatever the UIDs.
    pub fn has_names_of(&self, other: &Self) -> bool {
        (&self.namespace, &self.pod, &self.container) == (&other.namespace, &other.pod, &other.container)
    }

    /// Whether both may be in the same pod: the names are equal, and the UIDs are equal where both are known.
    pub fn may_be_in_pod_of(&self, other: &Self) -> bool {
        let same_uid = self.pod_uid.is_none() || other.pod_uid.is_none() || self.pod_uid == other.pod_uid;
        (&self.namespace, &self.pod) == (&other.namespace, &other.pod) && same_uid
    }
}

impl fmt::Display for ContainerRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// A whole GPU, or one MIG device of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceRef {
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
}

impl DeviceRef {
    /// Whether both are the same device, or one is the GPU of the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.gpu == other.gpu && (self.mig.is_none() || other.mig.is_none() || self.mig == other.mig)
    }
}

impl GpuUuid {
    /// A placeholder for the UUID of a GPU of which only the PCI address is known: `PCI-0000:17:00.0`.
    pub fn of_address(address: &PciBusId) -> Self {
        Self::new(format!("{OF_ADDRESS}{address}"))
    }

    pub fn is_of_address(&self) -> bool {
        self.as_str().starts_with(OF_ADDRESS)
    }
}

const OF_ADDRESS: &str = "PCI-";

/// The hex digits in the UID of a pod from a manifest.
const BARE_UID: usize = 32;

impl PodUid {
    /// Whether the pod is from a manifest of the kubelet.
    pub fn is_of_manifest(&self) -> bool {
        self.0.len() == BARE_UID
    }

    /// The UID with which the text begins, in the form of names and directories, and its length in the text.
    pub fn leading(text: &str) -> Option<(Self, usize)> {
        let ends = |length: usize| text.as_bytes().get(length).is_none_or(|after| !after.is_ascii_alphanumeric());
        if text.bytes().take_while(u8::is_ascii_hexdigit).count() == BARE_UID && ends(BARE_UID) {
            return Some((Self::from(&text[..BARE_UID]), BARE_UID));
        }
        let uuid = text.get(..UUID_LENGTH).filter(|_| ends(UUID_LENGTH))?;
        let dashed = if uuid.contains('-') { uuid.to_owned() } else { uuid.replace('_', "-") };
        is_uuid(&dashed).then(|| (Self::new(dashed), UUID_LENGTH))
    }

    /// The UID that is the whole text, in the form of directories.
    pub fn parse(text: &str) -> Option<Self> {
        let (uid, length) = Self::leading(text)?;
        (length == text.len() && uid.as_str() == text).then_some(uid)
    }
}

/// The longest DNS label.
const LONGEST_LABEL: usize = 63;

/// Whether the text is a DNS label, as the API server requires it of the names of namespaces and containers.
pub fn is_dns_label(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_end = |byte: Option<char>| byte.is_some_and(|byte| byte != '-');
    text.len() <= LONGEST_LABEL
        && text.bytes().all(is_allowed)
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
}

impl PciBusId {
    /// The address in sysfs's form, with four digits of the domain in lower case; NVML writes eight in upper case.
    pub fn normalized(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        match lower.split_once(':') {
            Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
                Self::new(format!("{}:{rest}", &domain[4..]))
            }
            _ => Self::new(lower),
        }
    }
}

impl FromStr for PciBusId {
    type Err = &'static str;

    /// Parses four or eight digits of the domain, the bus, the device and the function.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let has_digits = |part: &str, count| part.len() == count && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<&str> = text.split([':', '.']).collect();
        let is_address = matches!(parts[..], [domain, bus, device, function]
            if text.rfind(':') < text.find('.')
                && (has_digits(domain, 4) || has_digits(domain, 8))
                && has_digits(bus, 2)
                && has_digits(device, 2)
                && has_digits(function, 1));
        if is_address { Ok(Self::normalized(text)) } else { Err("must be a PCI address such as 0000:65:00.0") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_bus_ids_of_nvml_and_sysfs_are_equal() {
        assert_eq!(PciBusId::normalized("00000000:17:00.0"), PciBusId::normalized("0000:17:00.0"));
        assert_eq!(PciBusId::normalized("00010000:3D:00.0").as_str(), "00010000:3d:00.0");
        assert_eq!(PciBusId::normalized("").as_str(), "");
    }
}
