//! The MIG profiles of boards, as NVIDIA's MIG user guide lists them, through drivers that name profiles or devices.

use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::{gpu, open};
use podmeter::domain::model::{Gpu, Inventory};
use podmeter::simulation::node::resources;
use serde_json::{Value, json};

/// Name, memory in MiB, compute slices, and the profiles.
type MigBoard = (&'static str, u64, u32, &'static [ProfileRow]);
/// The header's constant, the driver's number, the name, compute slices, memory in MiB.
type ProfileRow = (u32, u32, &'static str, u32, u64);

#[test]
fn a_driver_that_names_profiles_names_every_board() {
    check(&json!({}));
    check(&json!({"mig": {"named_devices": false}}));
}

/// Before 525 the list of profiles has no names; the names of MIG devices have them.
#[test]
fn without_names_in_the_list_the_device_names_its_profile() {
    check(&json!({"function_not_found": ["nvmlDeviceGetGpuInstanceProfileInfoV"]}));
    check(&json!({"fail": {"nvmlDeviceGetGpuInstanceProfileInfoV": 25}}));
}

#[test]
fn resources_are_named_as_by_nvidias_plugin() {
    let board = BOARDS.iter().find(|(name, ..)| name.contains("RTX PRO 6000")).unwrap();
    let named = resources(&inventory(board, &json!({})), None);
    let names: Vec<&str> = named.iter().map(|resource| resource.name.as_str()).collect();
    for expected in ["mig-1g.24gb", "mig-1g.24gb-me", "mig-1g.24gb.gfx", "mig-1g.24gb.me", "mig-1g.24gb.me.all"] {
        assert!(names.contains(&format!("nvidia.com/{expected}").as_str()), "{expected}: {names:?}");
    }
}

#[test]
fn a_compute_instance_is_named_as_a_part_of_its_gpu_instance() {
    let instances = json!([
        {"profile": "1c.2g.48gb+gfx", "gpu_instance": 1, "compute_instance": 0},
        {"profile": "1c.2g.48gb+gfx", "gpu_instance": 1, "compute_instance": 1},
    ]);
    let board = BOARDS.iter().find(|(name, ..)| name.contains("RTX PRO 6000")).unwrap();
    for names in [json!([]), json!(["nvmlDeviceGetGpuInstanceProfileInfoV"])] {
        let found = inventory(board, &json!({"function_not_found": names, "mig": {"instances": instances}}));
        for mig in &found.gpus[&gpu(0)].mig_devices {
            assert_eq!((&*mig.profile, mig.slices), ("1c.2g.48gb+gfx", 1));
        }
    }
}

/// Boards of four and of seven slices, and one with every kind of name. Names and slices are the user guide's, numbers and
/// memory of H100 and RTX PRO 6000 those of `nvidia-smi mig -lgip`.
const BOARDS: &[MigBoard] = &[
    (
        "NVIDIA A30",
        24_576,
        4,
        &[
            (0, 14, "1g.6gb", 1, 5_952),
            (7, 21, "1g.6gb+me", 1, 5_952),
            (1, 5, "2g.12gb", 2, 11_968),
            (8, 6, "2g.12gb+me", 2, 11_968),
            (3, 0, "4g.24gb", 4, 24_000),
        ],
    ),
    (
        "NVIDIA H100 80GB HBM3",
        81_559,
        7,
        &[
            (0, 19, "1g.10gb", 1, 9_984),
            (7, 20, "1g.10gb+me", 1, 9_984),
            (9, 15, "1g.20gb", 1, 20_096),
            (1, 14, "2g.20gb", 2, 20_096),
            (2, 9, "3g.40gb", 3, 40_448),
            (3, 5, "4g.40gb", 4, 40_448),
            (4, 0, "7g.80gb", 7, 81_152),
        ],
    ),
    (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97_887,
        4,
        &[
            (0, 14, "1g.24gb", 1, 24_187),
            (7, 21, "1g.24gb+me", 1, 24_187),
            (10, 47, "1g.24gb+gfx", 1, 24_187),
            (15, 65, "1g.24gb+me.all", 1, 24_187),
            (13, 67, "1g.24gb-me", 1, 24_187),
            (1, 5, "2g.48gb", 2, 48_517),
            (11, 35, "2g.48gb+gfx", 2, 48_517),
            (16, 64, "2g.48gb+me.all", 2, 48_517),
            (14, 66, "2g.48gb-me", 2, 48_517),
            (3, 0, "4g.96gb", 4, 97_280),
            (12, 32, "4g.96gb+gfx", 4, 97_280),
        ],
    ),
];

/// One GPU for each profile, with a MIG device of it. `change` is of every GPU.
fn inventory((name, mebibytes, _, rows): &MigBoard, change: &Value) -> Inventory {
    let profile = |(constant, id, name, slices, memory_mib): &ProfileRow| {
        json!({
            "constant": constant, "id": id, "name": name, "slices": slices, "memory_slices": slices,
            "memory_mib": memory_mib,
        })
    };
    let profiles: Vec<Value> = rows.iter().map(profile).collect();
    let gpus = rows.iter().map(|(_, _, profile, ..)| {
        let instances = json!([{"profile": profile}]);
        let mut gpu = json!({
            "name": name, "memory": {"total_bytes": mebibytes << 20},
            "mig": {"enabled": true, "profiles": profiles, "instances": instances},
        });
        for (key, value) in change.as_object().unwrap() {
            match value.as_object() {
                Some(inner) if key == "mig" => gpu["mig"].as_object_mut().unwrap().extend(inner.clone()),
                _ => gpu[key] = value.clone(),
            }
        }
        gpu
    });
    let fake = FakeNvml::start(json!({"gpus": gpus.collect::<Vec<_>>()}));
    open(&fake).inventory().unwrap().0
}

fn check(change: &Value) {
    for board in BOARDS {
        let (name, _, slices, rows) = board;
        let found = inventory(board, change);
        for (place, (_, id, profile, compute, mebibytes)) in rows.iter().enumerate() {
            let gpu: &Gpu = &found.gpus[&gpu(place)];
            let mig = &gpu.mig_devices[0];
            assert_eq!((&*mig.profile, mig.slices, mig.profile_id), (*profile, *compute, Some(*id)), "{name}");
            assert_eq!((gpu.mig_slices, mig.memory_bytes), (Some(*slices), Some(mebibytes << 20)), "{name} {profile}");
            let part = gpu.slice_fraction(mig.slices).unwrap();
            assert!((part - f64::from(*compute) / f64::from(*slices)).abs() < 1e-9, "{name} {profile}");
        }
    }
}
