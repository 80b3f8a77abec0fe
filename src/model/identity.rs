use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// Four string-shaped ids meet in one join; as newtypes they cannot be mistaken for each other.
macro_rules! string_identity {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            #[must_use]
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The shared text itself, for labels that outlive this value.
            #[must_use]
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
    /// `GPU-` and a UUID, as NVML writes it.
    GpuUuid
}
string_identity! {
    /// `MIG-` and a UUID (driver 470 and newer) or `MIG-GPU-<uuid>/<gi>/<ci>` (older).
    MigUuid
}
string_identity! {
    /// `0000:17:00.0` in the kernel's form: four-digit domain, lower case.
    PciBusId
}
string_identity! {
    /// What a device plugin calls one of its devices; any string.
    DeviceId
}
string_identity! {
    /// `nvidia.com/gpu`, `example.com/nic`.
    ResourceName
}
string_identity! {
    /// A pod's UID: a UUID, or 32 hex digits for a pod from a manifest.
    PodUid
}
string_identity! {
    /// The runtime's id of a container: 64 hex digits, without the runtime's name before it.
    ContainerId
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodRef {
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
}

impl PodRef {
    #[must_use]
    pub fn new(namespace: &str, pod: &str) -> Self {
        Self { namespace: namespace.into(), pod: pod.into() }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.pod)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ContainerRef {
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
    pub container: Arc<str>,
}

impl ContainerRef {
    #[must_use]
    pub fn new(namespace: &str, pod: &str, container: &str) -> Self {
        Self { namespace: namespace.into(), pod: pod.into(), container: container.into() }
    }

    #[must_use]
    pub fn in_pod(pod: &PodRef, container: &str) -> Self {
        Self { namespace: Arc::clone(&pod.namespace), pod: Arc::clone(&pod.pod), container: container.into() }
    }
}

impl fmt::Display for ContainerRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

impl PciBusId {
    /// NVML writes an eight-digit domain in upper case, sysfs four digits in lower case.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_bus_ids_of_nvml_and_sysfs_meet() {
        assert_eq!(PciBusId::normalized("00000000:17:00.0"), PciBusId::normalized("0000:17:00.0"));
        assert_eq!(PciBusId::normalized("00010000:3D:00.0").as_str(), "00010000:3d:00.0");
        assert_eq!(PciBusId::normalized("").as_str(), "");
    }
}
