//! MIG of the data file: the mode and the instances.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Gpm, group};

group! {
    Mig {
        supported: bool = true,
        enabled: bool = false,
        /// Default: as enabled.
        pending: Option<bool> = None,
        /// Compute slices of the whole board: 7 as on an H100, or 4. Larger profiles are not offered.
        slices: u32 = 7,
        /// What the board offers. Default: as an H100 80 GB.
        profiles: Vec<Profile> = profiles(),
        /// The name of a MIG device ends in that of its profile.
        named_devices: bool = true,
        instances: Vec<Instance> = Vec::new(),
    }
}

group! {
    /// One compute instance with its GPU instance: one MIG device.
    Instance {
        /// Default: the position in the file + 1.
        gpu_instance: u32 = ABSENT,
        compute_instance: u32 = 0,
        /// The place among the MIG devices. Default: the position in the file; a gap is NOT_FOUND.
        index: Option<u32> = None,
        uuid: String = String::new(),
        /// `1g.10gb`; sets the defaults of the next two.
        profile: String = "1g.10gb".to_owned(),
        profile_id: Option<u32> = None,
        placement: Option<Placement> = None,
        /// Of the GPU instance, shared by its compute instances.
        memory_total_bytes: Option<u64> = None,
        memory_used_bytes: u64 = 0,
        gpm: Gpm = Gpm::default(),
        /// Of the board's profiles.
        #[serde(skip)]
        shape: Profile = Profile::default(),
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

/// A shape that the device offers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// The header's constant, which nvmlDeviceGetGpuInstanceProfileInfo takes.
    pub constant: u32,
    /// The device's own number, which GPU instances carry.
    pub id: u32,
    pub name: String,
    pub slices: u32,
    pub memory_slices: u32,
    pub memory_mib: u64,
}

const ABSENT: u32 = u32::MAX;

/// What an H100 80 GB offers.
fn profiles() -> Vec<Profile> {
    vec![
        profile(0, 19, "1g.10gb", [1, 1], 9_984),
        profile(7, 20, "1g.10gb+me", [1, 1], 9_984),
        profile(9, 15, "1g.20gb", [1, 2], 20_096),
        profile(1, 14, "2g.20gb", [2, 2], 20_096),
        profile(2, 9, "3g.40gb", [3, 4], 40_448),
        profile(3, 5, "4g.40gb", [4, 4], 40_448),
        profile(4, 0, "7g.80gb", [7, 8], 81_152),
    ]
}

fn profile(constant: u32, id: u32, name: &str, numbers: [u32; 2], memory_mib: u64) -> Profile {
    let [slices, memory_slices] = numbers;
    Profile { constant, id, name: name.to_owned(), slices, memory_slices, memory_mib }
}

impl Mig {
    pub(super) fn complete(&mut self, gpu: u32) {
        let (mut start, mut placed) = (0, BTreeMap::new());
        for (position, instance) in self.instances.iter_mut().enumerate() {
            if instance.gpu_instance == ABSENT {
                instance.gpu_instance = position as u32 + 1;
            }
            let index = *instance.index.get_or_insert(position as u32);
            if instance.uuid.is_empty() {
                instance.uuid = format!("MIG-00000000-0000-0000-{gpu:04}-{index:012}");
            }
            instance.find_shape(&self.profiles);
            let shared = placed.get(&instance.gpu_instance).copied();
            let next = shared.unwrap_or(Placement { start, size: instance.shape.memory_slices });
            let placement = *instance.placement.get_or_insert(next);
            placed.insert(instance.gpu_instance, placement);
            start = start.max(placement.start + placement.size);
        }
    }

    pub fn instance(&self, gpu_instance: u32, compute_instance: u32) -> Option<&Instance> {
        self.active().find(|one| one.gpu_instance == gpu_instance && one.compute_instance == compute_instance)
    }

    /// None while the mode is off.
    pub fn active(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|_| self.enabled)
    }
}

impl Instance {
    /// The profile of that name; `2c.` before it is a compute instance that fills only a part. Else the smallest.
    fn find_shape(&mut self, profiles: &[Profile]) {
        let name = self.profile.split_once("c.").map_or(self.profile.as_str(), |(_, gpu_part)| gpu_part);
        let found = profiles.iter().find(|profile| profile.name == name).or(profiles.first());
        self.shape = found.cloned().unwrap_or_default();
    }

    pub fn compute_slices(&self) -> u32 {
        let named = self.profile.split_once("c.").and_then(|(slices, _)| slices.parse().ok());
        named.unwrap_or(self.shape.slices)
    }

    pub fn profile_id(&self) -> u32 {
        self.profile_id.unwrap_or(self.shape.id)
    }

    pub fn memory_total_bytes(&self) -> u64 {
        self.memory_total_bytes.unwrap_or(self.shape.memory_mib << 20)
    }
}
