use super::*;
use Status::{CannotBeChecked, Met, NotApplicable, NotMet};

fn observation(page: &str) -> Observation {
    let content_type = Some("text/plain; version=0.0.4; charset=utf-8".to_owned());
    Observation {
        url: "http://node-a:9400/metrics".to_owned(),
        is_https: false,
        answer: Answer { content_type, body: page.into() },
        anonymous: Anonymous::Answered,
    }
}

fn report(page: &str) -> Report {
    judge(&observation(page))
}

fn line<'a>(report: &'a Report, id: &str) -> &'a Line {
    report.lines.iter().find(|line| line.id == id).expect(id)
}

/// In the order of the report, without those that no page shows.
fn statuses(report: &Report) -> [Status; 7] {
    ["endpoint", "utilization", "memory", "temperature", "power", "interconnect", "standards"]
        .map(|id| line(report, &format!("KAR-0059/{id}")).status)
}

/// As dcgm-exporter writes it: capital labels, percent and MiB.
const DCGM: &str = include_str!("../../tests/data/conformance/dcgm-exporter.txt");

#[test]
fn podmeters_own_pages_meet_all_that_a_page_can_show() {
    for page in [include_str!("../../tests/golden/page.txt"), include_str!("../../tests/golden/page.openmetrics.txt")] {
        let report = report(page);
        assert_eq!(statuses(&report), [Met; 7], "{}", report.text(false, 100));
        let utilization = &line(&report, "KAR-0059/utilization").evidence;
        assert!(utilization.contains("podmeter_device_utilization_ratio (1)"), "{utilization}");
        assert!(
            utilization.contains(": 2 of 2 accelerators; not counted"),
            "the lost GPU has no reading: {utilization}"
        );
        // The fixture has a pod that uses a GPU without an allocation.
        let unallocated = line(&report, "KAR-0049/unallocated-use");
        assert_eq!((unallocated.status, report.is_ok()), (NotMet, false));
        assert!(unallocated.evidence.contains("research/claiming on GPU-1111"), "{}", unallocated.evidence);
    }
    let page = include_str!("../../tests/golden/page.txt");
    let without: Vec<&str> =
        page.lines().filter(|line| !line.starts_with("podmeter_container_unallocated_use")).collect();
    let report = report(&(without.join("\n") + "\n"));
    assert!(report.is_ok());
    let unallocated = line(&report, "KAR-0049/unallocated-use");
    assert_eq!(unallocated.status, CannotBeChecked);
    assert!(unallocated.evidence.contains("does not prove"), "{}", unallocated.evidence);
    assert_eq!(statuses(&self::report(include_str!("../../tests/golden/dcgm.txt")))[..6], [Met; 6]);
}

#[test]
fn a_page_of_dcgm_exporter_meets_what_is_demanded_in_its_own_units() {
    let report = report(DCGM);
    assert_eq!(statuses(&report), [Met, Met, Met, Met, Met, Met, NotMet], "{}", report.text(false, 100));
    assert!(report.is_ok(), "SHOULD is no MUST");
    assert_eq!(
        (report.accelerators, line(&report, "KAR-0059/memory").metrics.as_slice()),
        (2, ["DCGM_FI_DEV_FB_USED".to_owned()].as_slice())
    );
    assert!(line(&report, "KAR-0059/standards").evidence.contains("no utilization as hw.gpu.utilization in 1"));
    assert_eq!(line(&report, "KAR-0049/unallocated-use").status, CannotBeChecked);
}

#[test]
fn names_of_other_exporters_are_recognized() {
    for (page, utilization) in [
        (
            "hw_gpu_utilization_ratio{hw_id=\"a\",hw_type=\"gpu\"} 0.5\nhw_gpu_memory_usage_bytes{hw_id=\"a\"} 1\n",
            "hw_gpu_utilization_ratio",
        ),
        (
            "nvidia_smi_utilization_gpu_ratio{uuid=\"a\"} 0.5\nnvidia_smi_memory_used_bytes{uuid=\"a\"} 1\n",
            "nvidia_smi_utilization_gpu_ratio",
        ),
        (
            "container_accelerator_duty_cycle{acc_id=\"a\",container=\"c\"} 3\n\
             container_accelerator_memory_used_bytes{acc_id=\"a\",container=\"c\"} 1\n",
            "container_accelerator_duty_cycle",
        ),
        ("gpu_gfx_activity{gpu_id=\"0\"} 3\ngpu_used_vram{gpu_id=\"0\"} 1\n", "gpu_gfx_activity"),
        ("duty_cycle{accelerator_id=\"0\"} 3\nmemory_used{accelerator_id=\"0\"} 1\n", "duty_cycle"),
        (
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu=\"0\",GPU_I_ID=\"1\"} 1\nDCGM_FI_DEV_FB_USED{gpu=\"0\"} 1\n",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        ),
    ] {
        let report = report(page);
        assert_eq!(statuses(&report)[1..3], [Met, Met], "{page}");
        assert_eq!(line(&report, "KAR-0059/utilization").metrics, [utilization]);
    }
}

#[test]
fn what_a_poor_page_lacks_is_not_met() {
    let report = report(
        "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 3\nDCGM_FI_DEV_FB_USED 7\nDCGM_FI_DEV_ENC_UTIL{gpu=\"1\"} 1\n\
         DCGM_FI_DEV_GPU_TEMP{gpu=\"1\"} 40\nDCGM_FI_DEV_MEM_COPY_UTIL{gpu=\"1\"} 1\n",
    );
    assert_eq!(statuses(&report), [Met, NotMet, NotMet, Met, CannotBeChecked, CannotBeChecked, NotMet]);
    assert!(!report.is_ok());
    assert!(line(&report, "KAR-0059/utilization").evidence.contains("1 of 2 accelerators; without it: 1"));
    let memory = &line(&report, "KAR-0059/memory").evidence;
    assert!(memory.contains("no metric of memory usage has a label"), "{memory}");
}

#[test]
fn a_page_without_accelerators_meets_the_format_only() {
    let report = report("node_load1 0.5\nnode_memory_used_bytes 7\nup{instance=\"a\"} 1\n");
    let none = [Met, CannotBeChecked, CannotBeChecked, NotApplicable, NotApplicable, NotApplicable, NotApplicable];
    assert_eq!(statuses(&report), none);
    assert!(report.is_ok(), "accelerators of another exporter may have other names");
    let other = "app_battery_utilization{device_id=\"a\"} 1\noutput_memory_usage_bytes{device_id=\"a\"} 1\n";
    assert_eq!(statuses(&self::report(other)), none, "devices of other kinds");
    let limit = self::report("DCGM_FI_DEV_SLOWDOWN_TEMP{gpu=\"0\"} 90\n");
    assert_eq!(line(&limit, "KAR-0059/temperature").status, NotApplicable);
}

#[test]
fn a_value_that_is_not_a_number_is_no_reading() {
    let report = report("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} NaN\nDCGM_FI_DEV_FB_USED{gpu=\"0\"} 1\n");
    assert_eq!(statuses(&report)[1..3], [NotMet, Met]);
}

#[test]
fn other_formats_and_types_are_not_met() {
    let html = report("<html>\n");
    assert_eq!(statuses(&html)[..2], [NotMet, NotMet]);
    assert!(line(&html, "KAR-0059/endpoint").evidence.contains("line 1: this is not a sample"));
    for (content_type, status) in [
        (None, NotMet),
        (Some("text/html"), NotMet),
        (Some("text/plain"), Met),
        (Some("application/openmetrics-text; version=1.0.0"), NotMet),
    ] {
        let mut observation = observation(DCGM);
        observation.answer.content_type = content_type.map(str::to_owned);
        assert_eq!(line(&judge(&observation), "KAR-0059/endpoint").status, status, "{content_type:?}");
    }
    let mut complete = observation(&format!("{DCGM}# EOF\n"));
    complete.answer.content_type = Some("application/openmetrics-text; version=1.0.0".to_owned());
    assert_eq!(line(&judge(&complete), "KAR-0059/endpoint").status, Met);
    for (body, part) in [(&b""[..], "it is empty"), (b"\x1f\x8b\x08", "gzip"), (b"\xff", "not UTF-8")] {
        let mut observation = observation("");
        observation.answer.body = body.to_vec();
        let evidence = line(&judge(&observation), "KAR-0059/endpoint").evidence.clone();
        assert!(evidence.contains(part), "{evidence}");
    }
    assert_eq!(line(&report("\n"), "KAR-0059/endpoint").status, NotMet, "no samples");
}

#[test]
fn how_the_page_is_served_is_shown_and_demanded_by_nothing() {
    let mut observation = observation(DCGM);
    observation.is_https = true;
    observation.anonymous = Anonymous::Refused("401".to_owned());
    let report = judge(&observation);
    assert!(line(&report, "endpoint/encryption").evidence.starts_with("TLS"));
    assert!(line(&report, "endpoint/authentication").evidence.contains("401"));
    assert!(report.lines.iter().filter(|line| line.level == Level::None).all(|line| line.checklist.is_none()));
    assert!(report.is_ok());
}

#[test]
fn the_text_has_each_requirement_with_demand_and_evidence() {
    let text = report(DCGM).text(false, 60);
    let wanted = "KAR-0059/utilization (MUST): met\n  demand  the utilization of each accelerator\n  found   DCGM_FI_DEV_GPU_UTIL (2): 2 of 2 accelerators\n";
    assert!(text.contains(wanted), "{text}");
    assert!(text.ends_with("2 accelerators\n6 met, 1 not met, 3 cannot be checked from a page\n"), "{text}");
    assert!(report(DCGM).text(true, 60).contains("\x1b[32mmet"));
}
