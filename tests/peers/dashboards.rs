//! Every query of every dashboard, answered by a real Prometheus that scrapes running demos. What a demo rightly does
//! not show is listed with the reason, and queried from a page made from the metric catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use crate::support::agent::Running;
use crate::support::dashboards::{PanelQuery, catalogue, family, queries, selectors, variables};
use crate::support::prometheus::Prometheus;

/// Demos, and the jobs that scrape them. What the first one shows needs no entry below.
const PROFILES: [&str; 4] = ["8xh100", "8xh100-mig", "8xh100-timesliced", "4xgb200"];
/// The job of the page made from the catalogue.
const CONTRACT: &str = "contract";

const HEALTHY: &str = "the simulated GPUs and their driver make no errors";
const AGREED: &str = "the simulated kubelet and driver list the same GPUs";
const NOTHING_OUTSIDE: &str = "nothing runs outside allocations";
const NOT_THROTTLED: &str = "nothing throttles the simulated GPUs";

#[test]
fn every_query_of_every_dashboard_returns_data() {
    let arguments = |profile| ["demo", "--listen", "127.0.0.1:0", "--profile", profile];
    let demos = PROFILES.map(|profile| Running::start(&arguments(profile), &[], None));
    let contract_address = serve(contract);
    let mut targets: Vec<(&str, &str)> =
        PROFILES.into_iter().zip(demos.iter().map(|demo| demo.address.as_str())).collect();
    targets.push((CONTRACT, &contract_address));
    let prometheus = Prometheus::start(&configuration(&targets));

    let held = "podmeter_device_info and on (job, gpu_uuid) podmeter_container_allocation_info";
    prometheus.until(&format!("count(count by (job) ({held}))"), |jobs| jobs >= targets.len() as f64);
    let gpus: BTreeMap<String, String> = prometheus
        .query(&format!("{held} and podmeter_device_info{{gpu=\"0\"}}"))
        .into_iter()
        .map(|(labels, _)| (labels["job"].clone(), labels["gpu_uuid"].clone()))
        .collect();
    mark(&demos[0], &gpus[PROFILES[0]]);
    prometheus.until("sum(podmeter_device_unhealthy_reason{job=\"8xh100\"})", |marked| marked > 0.0);
    // A range of scrapes, all of them good.
    prometheus.until("min(sum_over_time(up[20s]))", |scrapes| scrapes >= 18.0);

    let ask = |query: &PanelQuery, job: &str| {
        // A panel that draws no zeros is empty while nothing happens.
        let expression = query.expression.strip_suffix(" > 0").unwrap_or(&query.expression);
        !prometheus.query(&substituted(expression, job, &gpus[job])).is_empty()
    };
    let (mut breaches, mut made_up) = (vec![], 0);
    for query in queries() {
        let (place, found) = (&query.place, ask(&query, PROFILES[0]));
        let wanted = match elsewhere(place) {
            None => Some(PROFILES[0]),
            Some(Profile(profile)) => Some(*profile),
            Some(Nowhere(_)) => None,
        };
        match wanted {
            Some(profile) if profile == PROFILES[0] && found => {}
            Some(profile) if profile != PROFILES[0] && ask(&query, profile) => {}
            Some(profile) => breaches.push(format!("{place}: no data in {profile}: {}", query.expression)),
            None if found || ask(&query, CONTRACT) => made_up += usize::from(!found),
            None => breaches.push(format!("{place}: no data even where there is every metric: {}", query.expression)),
        }
    }
    for (place, metric, label) in variables() {
        let values = prometheus.query(&substituted(&format!("count by ({label}) ({metric})"), PROFILES[0], ".*"));
        // The demo has no clusters, and must be shown all the same.
        let named = values.iter().any(|(labels, _)| labels.contains_key(&label));
        if named == (label == "cluster") {
            breaches.push(format!("{place}: {values:?}"));
        }
    }
    println!("{made_up} of {} queries were answered by the page made from the catalogue alone", queries().len());
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// Two GPUs that are whole, one of them free; one shared by two pods; one divided into two MIG devices, one of them
/// free.
const HELD_IN_ALL_WAYS: &str = r#"
podmeter_device_info{gpu_uuid="GPU-a",gpu="0"} 1
podmeter_device_info{gpu_uuid="GPU-b",gpu="1"} 1
podmeter_device_info{gpu_uuid="GPU-c",gpu="2"} 1
podmeter_device_info{gpu_uuid="GPU-d",gpu="3"} 1
podmeter_mig_device_info{gpu_uuid="GPU-d",mig_uuid="MIG-x",gpu_instance="1",compute_instance="0",profile="3g.40gb"} 1
podmeter_mig_device_info{gpu_uuid="GPU-d",mig_uuid="MIG-y",gpu_instance="2",compute_instance="0",profile="4g.40gb"} 1
podmeter_container_allocation_info{namespace="red",pod="one",container="main",gpu_uuid="GPU-b",device_id="GPU-b"} 1
podmeter_container_allocation_info{namespace="red",pod="one",container="side",gpu_uuid="GPU-b",device_id="GPU-b"} 1
podmeter_container_allocation_info{namespace="red",pod="two",container="main",gpu_uuid="GPU-c",device_id="GPU-c::0"} 1
podmeter_container_allocation_info{namespace="blue",pod="two",container="main",gpu_uuid="GPU-c",device_id="GPU-c::3"} 1
podmeter_container_allocation_info{namespace="blue",pod="mig",container="main",gpu_uuid="GPU-d",mig_uuid="MIG-y"} 1
"#;

#[test]
fn a_device_has_one_holder_a_number_of_them_or_is_free() {
    let address = serve(|_| HELD_IN_ALL_WAYS.to_owned());
    let prometheus = Prometheus::start(&configuration(&[("page", &address)]));
    prometheus.until("sum(up)", |up| up > 0.0);
    let queries = queries();
    let query = queries.iter().find(|query| query.place.starts_with("node / Holders of each device")).unwrap();
    let rows = prometheus.query(&substituted(&query.expression, "page", ".*")).into_iter();
    let mut shown: Vec<String> =
        rows.map(|(labels, _)| format!("{}: {}", labels["device"], labels["holder"])).collect();
    shown.sort();
    assert_eq!(
        shown,
        [
            "page 3 3g.40gb 1: free",
            "page 3 4g.40gb 2: blue/mig",
            "page GPU 0: free",
            "page GPU 1: red/one",
            "page GPU 2: 2 pods",
        ]
    );
}

/// A list of exceptions is true only while it names what there is.
#[test]
fn every_exception_is_about_a_query_and_gives_its_reason() {
    let places: Vec<String> = queries().into_iter().map(|query| query.place).collect();
    for (end, elsewhere) in &ELSEWHERE {
        assert!(places.iter().any(|place| place.ends_with(end)), "no query {end}");
        assert!(!matches!(elsewhere, Nowhere("")), "{end} without a reason");
    }
}

/// Where the data is, if not in the first demo.
enum Elsewhere {
    /// In this one.
    Profile(&'static str),
    /// In no demo, because.
    Nowhere(&'static str),
}
use Elsewhere::{Nowhere, Profile};

/// Queries by the end of their place.
const ELSEWHERE: [(&str, Elsewhere); 41] = [
    ("annotation XIDs", Nowhere(HEALTHY)),
    ("fleet / XIDs by class / A", Nowhere(HEALTHY)),
    ("node / XIDs / A", Nowhere(HEALTHY)),
    ("node / ECC errors / A", Nowhere(HEALTHY)),
    ("device / XIDs by class / A", Nowhere(HEALTHY)),
    ("device / ECC errors / A", Nowhere(HEALTHY)),
    ("device / Link errors / A", Nowhere(HEALTHY)),
    ("device / Link errors / B", Nowhere(HEALTHY)),
    ("device / Last XIDs / A", Nowhere(HEALTHY)),
    ("device / Throttle reasons / A", Nowhere(NOT_THROTTLED)),
    ("device / MIG devices / A", Profile("8xh100-mig")),
    ("device / Memory by GPU instance / A", Profile("8xh100-mig")),
    ("device / SM activity by GPU instance / A", Profile("8xh100-mig")),
    ("namespace / XIDs / A", Nowhere(HEALTHY)),
    ("podmeter / Failed calls of the driver / A", Nowhere(HEALTHY)),
    ("podmeter / Failed calls of the kubelet / A", Nowhere("the simulated kubelet answers every call")),
    ("podmeter / Time that no sample covers / A", Nowhere("the simulated driver misses no sample")),
    ("podmeter / Disagreements with the kubelet / A", Nowhere(AGREED)),
    ("podmeter / Devices that could not be found / A", Nowhere(AGREED)),
    ("podmeter / Sums that did not add up / A", Nowhere("that would be a bug")),
    ("podmeter / Allocations / B", Nowhere("no resource of the demo asks for checks")),
    ("device / Fabric / A", Nowhere("the simulated GPUs are in no fabric")),
    ("device / Fabric / B", Nowhere("the simulated GPUs are in no fabric")),
    ("fleet / NVLink domains / A", Profile("4xgb200")),
    ("fleet / NVLink domains / B", Profile("4xgb200")),
    ("fleet / NVLink domains / C", Profile("4xgb200")),
    ("fleet / NVLink domains / D", Profile("4xgb200")),
    ("fleet / NVLink domains / E", Profile("4xgb200")),
    ("fleet / NVLink domains / F", Profile("4xgb200")),
    ("fleet / Module power by node / A", Profile("4xgb200")),
    ("node / Module power / A", Profile("4xgb200")),
    ("device / NVLink-C2C / A", Profile("4xgb200")),
    ("device / NVLink domain / A", Profile("4xgb200")),
    ("device / Place / A", Profile("4xgb200")),
    ("node / CPUs / A", Nowhere("the simulated kubelet has no CPU manager")),
    ("node / Memory and hugepages / A", Nowhere("the simulated kubelet has no memory manager")),
    ("namespace / GPUs used but not held / A", Nowhere(NOTHING_OUTSIDE)),
    ("device / Busy by holder / B", Nowhere(NOTHING_OUTSIDE)),
    ("device / Memory by holder / B", Nowhere(NOTHING_OUTSIDE)),
    ("device / Power by holder / B", Nowhere(NOTHING_OUTSIDE)),
    ("device / Processes / B", Nowhere(NOTHING_OUTSIDE)),
];

fn elsewhere(place: &str) -> Option<&'static Elsewhere> {
    ELSEWHERE.iter().find(|(end, _)| place.ends_with(end)).map(|(_, elsewhere)| elsewhere)
}

/// With all variables at "All", but for the job and the GPU.
pub fn substituted(expression: &str, job: &str, gpu: &str) -> String {
    let interval = [("$__rate_interval_ms", "10000"), ("$__rate_interval", "10s"), ("$__range", "20s")];
    let values = interval.into_iter().chain([("$job", job), ("$gpu", gpu)]);
    let all = [("$cluster", ".*"), ("$node", ".*"), ("$namespace", ".+"), ("$pod", ".+"), ("$price", "2.8")];
    values.chain(all).fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
}

pub fn configuration(targets: &[(&str, &str)]) -> String {
    let mut text = "global: { scrape_interval: 1s }\nscrape_configs:\n".to_owned();
    for (job, address) in targets {
        let node = format!("{{ target_label: node, replacement: {job} }}");
        writeln!(text, "  - job_name: {job}\n    honor_labels: true\n    relabel_configs: [{node}]").unwrap();
        writeln!(text, "    static_configs: [{{ targets: [\"{address}\"] }}]").unwrap();
    }
    text
}

/// Every family of the catalogue, with each value of a label that some query selects.
fn contract(seconds: u64) -> String {
    let mut asked: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for selector in queries().iter().flat_map(|query| selectors(&query.expression)) {
        let matchers = selector.matchers.iter().filter_map(|matcher| matcher.split_once("=\""));
        let values = matchers.map(|(label, value)| (label.to_owned(), value.trim_end_matches('"').to_owned()));
        asked.entry(family(&selector.metric).to_owned()).or_default().extend(values);
    }
    let mut page = String::new();
    for (name, metric) in catalogue() {
        let usual = |label: &str| if label == "gpu" { "0".to_owned() } else { format!("a-{label}") };
        let wanted = asked.get(name).cloned().unwrap_or_default();
        let mut series = vec![("no label", String::new())];
        series.extend(wanted.iter().map(|(label, value)| (label.as_str(), value.clone())));
        for (special, value) in series {
            let of = |label: &&str| {
                let value = if *label == special { value.clone() } else { usual(label) };
                format!("{label}=\"{value}\"")
            };
            let set = metric.labels.iter().filter(|label| !label.ends_with('*')).map(of).collect::<Vec<_>>().join(",");
            match metric.kind {
                "gauge" => writeln!(page, "{name}{{{set}}} 1").unwrap(),
                "counter" => writeln!(page, "{name}{{{set}}} {seconds}").unwrap(),
                _ => {
                    let comma = if set.is_empty() { "" } else { "," };
                    writeln!(page, "{name}_bucket{{{set}{comma}le=\"1\"}} {seconds}").unwrap();
                    writeln!(page, "{name}_bucket{{{set}{comma}le=\"+Inf\"}} {seconds}").unwrap();
                }
            }
        }
    }
    page
}

fn answer(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let mut line = String::from("GET");
    while !line.trim().is_empty() {
        line.clear();
        request.read_line(&mut line)?;
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\nContent-Length:";
    write!(stream, "{head} {}\r\n\r\n{body}", body.len())
}

/// Serves a page, given the seconds since now, until the test's process ends. Returns its address.
fn serve(page: impl Fn(u64) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let start = Instant::now();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Prometheus' data shows whether it waited for the answer.
            let _ = answer(stream, &page(start.elapsed().as_secs()));
        }
    });
    address
}

/// Has an operator mark this GPU of the demo as unhealthy.
fn mark(demo: &Running, gpu: &str) {
    let log = demo.log();
    let socket = log.split("unix:").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an admin socket");
    let order = format!("{{\"device\": \"{gpu}\", \"reason\": \"smells of smoke\"}}");
    let output =
        Command::new("curl").args(["-s", "--unix-socket", socket, "http://podmeter/mark", "-d", &order]).output();
    let printed = String::from_utf8(output.expect("curl is installed (scripts/check does that)").stdout).unwrap();
    assert!(printed.contains("\"marked\":true"), "{printed}");
}
