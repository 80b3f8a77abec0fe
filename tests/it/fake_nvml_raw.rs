//! What the hardware module calls in the fake driver through raw symbols.

#![allow(unsafe_code, reason = "raw symbols, each call with structs of the bindings")]

use std::mem::zeroed;
use std::ptr::null_mut;

use crate::support::fake_nvml::FakeNvml;
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::*;
use serde_json::json;

fn open(fake: &FakeNvml) -> Nvml {
    Nvml::builder().lib_path(fake.library_path().as_os_str()).init().expect("the fake driver opens")
}

/// Calls a symbol. All arguments are handles of the open library, plain numbers, or pointers to live locals.
macro_rules! raw {
    ($nvml:ident.$symbol:ident($($argument:expr),* $(,)?)) => {{
        let symbol = $nvml.lib().$symbol.as_ref().expect(stringify!($symbol));
        // SAFETY: the symbol has the bindings' type, and see the macro's head.
        unsafe { symbol($($argument),*) }
    }};
}

fn handle(nvml: &Nvml, index: u32) -> nvmlDevice_t {
    let mut device = null_mut();
    assert_eq!(raw!(nvml.nvmlDeviceGetHandleByIndex_v2(index, &mut device)), 0);
    device
}

macro_rules! exported {
    ($nvml:ident: $($symbol:ident)*) => {
        $(assert!($nvml.lib().$symbol.is_ok(), "{} is not exported", stringify!($symbol));)*
    };
}

#[test]
fn every_symbol_is_there() {
    let fake = FakeNvml::start(json!({}));
    let nvml = open(&fake);
    exported! { nvml:
        nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion
        nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2 nvmlDeviceGetCount_v2
        nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByUUID nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetName
        nvmlDeviceGetUUID nvmlDeviceGetMinorNumber nvmlDeviceGetIndex nvmlDeviceGetPciInfo_v3
        nvmlDeviceGetArchitecture nvmlDeviceGetCudaComputeCapability nvmlDeviceGetVbiosVersion nvmlDeviceGetSerial
        nvmlDeviceGetGridLicensableFeatures_v4
        nvmlDeviceGetNumaNodeId nvmlDeviceGetMemoryAffinity nvmlDeviceGetUtilizationRates
        nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization
        nvmlDeviceGetOfaUtilization nvmlDeviceGetSamples nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2
        nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetPowerUsage
        nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetPowerManagementLimit nvmlDeviceGetTemperature
        nvmlDeviceGetTemperatureV nvmlDeviceGetMarginTemperature nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo
        nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons
        nvmlDeviceGetPerformanceState nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetNumFans nvmlDeviceGetPcieReplayCounter
        nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkGeneration
        nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetPcieThroughput nvmlDeviceGetTotalEccErrors
        nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetEccMode nvmlDeviceGetSramEccErrorStatus
        nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRetiredPagesPendingStatus
        nvmlDeviceGetRemappedRows nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetFieldValues nvmlDeviceGetNvLinkState
        nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvLinkRemoteDeviceType
        nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfoV
        nvmlDeviceGetPlatformInfo nvmlDeviceGetC2cModeInfoV
        nvmlDeviceGetViolationStatus nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v2
        nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlDeviceGetComputeRunningProcesses_v3
        nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetMPSComputeRunningProcesses_v3
        nvmlDeviceGetProcessUtilization nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetMigMode
        nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId
        nvmlDeviceGetAttributes_v2 nvmlDeviceIsMigDeviceHandle nvmlDeviceGetGpuInstanceById nvmlGpuInstanceGetInfo
        nvmlDeviceGetGpuInstanceProfileInfo nvmlDeviceGetGpuInstanceProfileInfoV nvmlDeviceGetGpuInstances
        nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmMigSampleGet
        nvmlGpmMetricsGet nvmlEventSetCreate nvmlEventSetFree nvmlDeviceRegisterEvents
        nvmlDeviceGetSupportedEventTypes nvmlEventSetWait_v2
    }
}

#[test]
fn the_structs_have_the_sizes_of_the_header() {
    let sizes = [
        ("Memory", size_of::<nvmlMemory_t>(), 24),
        ("Memory_v2", size_of::<nvmlMemory_v2_t>(), 40),
        ("PciInfo", size_of::<nvmlPciInfo_t>(), 68),
        ("EventData", size_of::<nvmlEventData_t>(), 32),
        ("ProcessInfo v1", size_of::<nvmlProcessInfo_v1_t>(), 16),
        ("ProcessInfo", size_of::<nvmlProcessInfo_t>(), 24),
        ("ProcessUtilizationSample", size_of::<nvmlProcessUtilizationSample_t>(), 32),
        ("ProcessUtilizationInfo_v1", size_of::<nvmlProcessUtilizationInfo_v1_t>(), 40),
        ("ProcessesUtilizationInfo_v1", size_of::<nvmlProcessesUtilizationInfo_v1_t>(), 24),
        ("FieldValue", size_of::<nvmlFieldValue_t>(), 40),
        ("Sample", size_of::<nvmlSample_t>(), 16),
        ("DeviceAttributes", size_of::<nvmlDeviceAttributes_t>(), 40),
        ("GpmMetric", size_of::<nvmlGpmMetric_t>(), 40),
        ("GpmSupport", size_of::<nvmlGpmSupport_t>(), 8),
        ("GpuInstanceInfo", size_of::<nvmlGpuInstanceInfo_t>(), 24),
        ("ComputeInstanceInfo", size_of::<nvmlComputeInstanceInfo_t>(), 32),
        ("GpuInstanceProfileInfo", size_of::<nvmlGpuInstanceProfileInfo_t>(), 48),
        ("Temperature_v1", size_of::<nvmlTemperature_v1_t>(), 12),
        ("ViolationTime", size_of::<nvmlViolationTime_t>(), 16),
        ("BAR1Memory", size_of::<nvmlBAR1Memory_t>(), 24),
        ("GridLicensableFeatures", size_of::<nvmlGridLicensableFeatures_t>(), 860),
        ("GpuFabricInfo", size_of::<nvmlGpuFabricInfo_t>(), 28),
        ("GpuFabricInfo_v2", size_of::<nvmlGpuFabricInfo_v2_t>(), 36),
        ("C2cModeInfo_v1", size_of::<nvmlC2cModeInfo_v1_t>(), 4),
        ("GpuFabricInfo_v3", size_of::<nvmlGpuFabricInfo_v3_t>(), 40),
        ("EccSramErrorStatus_v1", size_of::<nvmlEccSramErrorStatus_v1_t>(), 104),
        ("PlatformInfo_v2", size_of::<nvmlPlatformInfo_v2_t>(), 44),
    ];
    for (name, size, expected) in sizes {
        assert_eq!(size, expected, "{name}");
    }
    assert_eq!(std::mem::offset_of!(nvmlGpmMetricsGet_t, metrics), 24);
}

#[test]
fn an_event_carries_its_mig_instance_or_the_whole_gpu() {
    let fake = FakeNvml::start(json!({"gpus": [{}]}));
    let nvml = open(&fake);
    let nvml = &nvml;
    let device = handle(nvml, 0);
    let mut set = null_mut();
    assert_eq!(raw!(nvml.nvmlEventSetCreate(&mut set)), 0);
    let mut kinds = 0;
    assert_eq!(raw!(nvml.nvmlDeviceGetSupportedEventTypes(device, &mut kinds)), 0);
    assert_eq!(raw!(nvml.nvmlDeviceRegisterEvents(device, 1 << 40, set)), 3, "an unsupported bit refuses all");
    assert_eq!(raw!(nvml.nvmlDeviceRegisterEvents(device, kinds, set)), 0);
    fake.update(|state| {
        state["gpus"][0]["events"] = json!([
            {"sequence": 1, "xid": 31, "gpu_instance": 3, "compute_instance": 0},
            {"sequence": 2, "kind": 0x8000, "xid": 5}
        ]);
    });
    let wait = || {
        // SAFETY: numbers and a handle: all zero is valid.
        let mut data: nvmlEventData_t = unsafe { zeroed() };
        assert_eq!(raw!(nvml.nvmlEventSetWait_v2(set, &mut data, 20_000)), 0);
        assert_eq!(data.device, device, "the handle that the caller has");
        (data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId)
    };
    assert_eq!(wait(), (8, 31, 3, 0));
    assert_eq!(wait(), (0x8000, 0, u32::MAX, u32::MAX), "data only for an XID");
    assert_eq!(raw!(nvml.nvmlEventSetFree(set)), 0);
    assert_eq!(raw!(nvml.nvmlEventSetFree(set)), 2, "freed twice");
}

#[test]
fn a_mig_device_names_its_instances() {
    let fake = FakeNvml::start(json!({"gpus": [{"mig": {"enabled": true, "instances": [
        {"gpu_instance": 4, "compute_instance": 1, "profile": "1c.2g.20gb", "placement": {"start": 4, "size": 2}}
    ]}}]}));
    let nvml = open(&fake);
    let nvml = &nvml;
    let (parent, mut device, mut id) = (handle(nvml, 0), null_mut(), 0);
    assert_eq!(raw!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0, &mut device)), 0);
    assert_eq!(raw!(nvml.nvmlDeviceGetGpuInstanceId(device, &mut id)), 0);
    assert_eq!(id, 4);
    assert_eq!(raw!(nvml.nvmlDeviceGetComputeInstanceId(device, &mut id)), 0);
    assert_eq!(id, 1);
    let mut instance = null_mut();
    assert_eq!(raw!(nvml.nvmlDeviceGetGpuInstanceById(parent, 4, &mut instance)), 0);
    // SAFETY: numbers and a handle: all zero is valid.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
    assert_eq!(raw!(nvml.nvmlGpuInstanceGetInfo(instance, &mut info)), 0);
    assert_eq!((info.device, info.id, info.profileId), (parent, 4, 14));
    assert_eq!((info.placement.start, info.placement.size), (4, 2));
    let mut number = 0;
    assert_eq!(raw!(nvml.nvmlDeviceGetPowerUsage(device, &mut number)), 3, "power is the board's");
    assert_eq!(
        raw!(nvml.nvmlDeviceGetRemappedRows(parent, &mut number, &mut 0, &mut 0, &mut 0)),
        3,
        "not with active instances"
    );
}

#[test]
fn health_fabric_and_links_come_from_the_file() {
    let fake = FakeNvml::start(json!({"gpus": [{
        "remapped_rows": {"correctable": 1, "uncorrectable": 2, "pending": true, "low": 3},
        "fabric": {"state": 3, "clique_id": 7},
        "nvlink": {"links": 4, "down": [2], "data_tx_kib": 10}
    }, {"fabric": null}]}));
    let nvml = open(&fake);
    let nvml = &nvml;
    let device = handle(nvml, 0);
    let (mut correctable, mut uncorrectable, mut pending, mut failure) = (0, 0, 0, 0);
    let rows =
        raw!(nvml.nvmlDeviceGetRemappedRows(device, &mut correctable, &mut uncorrectable, &mut pending, &mut failure));
    assert_eq!((rows, correctable, uncorrectable, pending, failure), (0, 1, 2, 1, 0));

    // SAFETY: numbers only: all zero is valid.
    let mut fabric: nvmlGpuFabricInfo_v3_t = unsafe { zeroed() };
    assert_eq!(raw!(nvml.nvmlDeviceGetGpuFabricInfoV(device, &mut fabric)), 25, "no version");
    fabric.version = 0x0300_0028;
    assert_eq!(raw!(nvml.nvmlDeviceGetGpuFabricInfoV(device, &mut fabric)), 0);
    assert_eq!((fabric.state, fabric.cliqueId, fabric.healthSummary), (3, 7, 1));
    assert_eq!(raw!(nvml.nvmlDeviceGetGpuFabricInfoV(handle(nvml, 1), &mut fabric)), 0);
    assert_eq!(fabric.state, 0);

    let field = |id, scope| {
        // SAFETY: numbers only: all zero is valid.
        let mut value: nvmlFieldValue_t = unsafe { zeroed() };
        (value.fieldId, value.scopeId) = (id, scope);
        assert_eq!(raw!(nvml.nvmlDeviceGetFieldValues(device, 1, &mut value)), 0);
        // SAFETY: the fake sets all bytes of the union.
        if value.nvmlReturn == 0 { Ok(unsafe { value.value.ullVal }) } else { Err(value.nvmlReturn) }
    };
    assert_eq!((field(138, 0), field(138, 2), field(138, u32::MAX)), (Ok(10), Ok(0), Ok(30)));
    assert_eq!((field(185, 0), field(185, 1)), (Ok(70_000), Err(3)), "no module, no module power");
    assert_eq!((field(9_999, 0), field(144, 0)), (Err(2), Ok(1)));
}

#[test]
fn a_gpu_that_leaves_the_file_is_lost_and_its_handle_is_found_again_when_it_returns() {
    let fake = FakeNvml::start(json!({"gpus": [{"index": 0}, {"index": 1}]}));
    let nvml = open(&fake);
    let nvml = &nvml;
    let (device, mut power) = (handle(nvml, 1), 0);
    let mut becomes = |code| {
        let reached = (0..4_000).any(|_| {
            // The 20 ms of the driver's own count are the pause.
            raw!(nvml.nvmlDeviceGetPcieThroughput(handle(nvml, 0), 0, &mut 0));
            raw!(nvml.nvmlDeviceGetPowerUsage(device, &mut power)) == code
        });
        assert!(reached, "the code becomes {code}");
    };
    fake.set(json!({"gpus": [{"index": 0}]}));
    becomes(15);
    fake.set(json!({"gpus": [{"index": 1, "power_milliwatts": 5}, {"index": 0}]}));
    becomes(0);
    assert_eq!((power, handle(nvml, 1)), (5, device));
}
