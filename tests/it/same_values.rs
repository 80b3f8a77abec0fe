//! One situation, one value: JSON, metrics, `top`, `usage` and the page show the same for the same thing and time.

mod displays;
mod scene;

use self::displays::{NodeDisplays, shown};
use self::scene::{SHARED, SLICE, SLICE_BUSY, Scene, WHOLE};

/// In JSON and `usage`, in `top`, on the page, in the metrics.
const COUNTERS: [(&str, &str, &str, Option<&str>); 6] = [
    ("held_seconds", "HELD", "held", None),
    ("allocated_seconds", "GPU_TIME", "gpu-time", Some("podmeter_container_allocated_seconds_total")),
    ("busy_seconds", "BUSY", "busy", Some("podmeter_container_busy_seconds_total")),
    ("borrowed_seconds", "BORROWED", "borrowed", Some("podmeter_container_borrowed_seconds_total")),
    ("idle_seconds", "IDLE", "idle", Some("podmeter_container_idle_seconds_total")),
    ("uncovered_seconds", "UNKNOWN", "unknown", Some("podmeter_container_uncovered_seconds_total")),
];
/// The page shows borrowed time from here on.
const BORROWED_SHOWN: f64 = 0.5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_place_shows_the_same_counters_of_a_holder() {
    let node = ShownNode::run().await;
    for (pod, uuid) in [
        ("train", &node.train),
        ("borrower", &node.shared),
        ("lender", &node.shared),
        ("slice", &node.slice),
        ("notebook", &node.notebook),
        ("done", &node.last),
        ("late", &node.last),
    ] {
        check_counters(&node.shown, pod, uuid);
    }
    let shown = &node.shown;
    assert!(shown.top.contains("1 ended over a minute ago"), "{}", shown.top);
    assert_eq!(shown.cell("late", "STATE"), Some("ended"), "{}", shown.top);
    let ratio = shown.usage("borrower")["utilization_ratio"].as_f64().unwrap();
    assert!(near(ratio, 0.9), "of the GPU, of which it holds a quarter: {ratio}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_place_shows_the_same_utilization_of_a_device_and_of_its_only_holder() {
    let ShownNode { shown, train, notebook, partitioned, slice, .. } = &ShownNode::run().await;
    for (uuid, pod, busy, metric, label) in [
        (train, "train", 0.75, "podmeter_device_utilization_ratio", train),
        (slice, "slice", SLICE_BUSY, "podmeter_mig_utilization_ratio", partitioned),
        (notebook, "notebook", 0.0, "podmeter_device_utilization_ratio", notebook),
    ] {
        check_busy_now(shown, uuid, pod, busy, metric, label);
    }
    let sum = shown.device(partitioned)["busy_ratio"].as_f64().unwrap();
    assert!(near(sum, SLICE_BUSY / 7.0), "a partitioned GPU by slices: {sum}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_place_shows_the_same_free_devices_slots_and_slices() {
    let ShownNode { shown, train, notebook, last, shared, partitioned, free_slice, slice } = &ShownNode::run().await;
    for (uuid, state, text, holders) in [
        (train, "held", "healthy", &["team/train/main"][..]),
        (last, "free", "healthy free", &["team/late/main"]),
        (free_slice, "free", "healthy free", &[]),
        (slice, "held", "healthy", &["team/slice/main"]),
        (partitioned, "partitioned", "healthy free:6/7", &[]),
        (shared, "held", "healthy free:2/4", &["team/borrower/main", "team/lender/main"]),
        (notebook, "held", "healthy", &["team/notebook/main"]),
    ] {
        assert_eq!(shown.device(uuid)["state"], state);
        assert_eq!((shown.cell(uuid, "STATE"), &*shown.holders(uuid)), (Some(text), holders), "{}", shown.top);
    }
    assert_eq!((&shown.device(shared)["slots"], &shown.device(shared)["free_slots"]), (&4.into(), &2.into()));
    for (resource, free, of) in [(WHOLE, 1, 3), (SHARED, 2, 4), (SLICE, 6, 7)] {
        check_free(shown, resource, free, of);
    }
}

/// `1m01s` in seconds.
fn seconds(text: &str) -> f64 {
    let number = |text: &str| text.parse::<f64>().unwrap();
    let text = text.strip_suffix('s').unwrap_or_else(|| panic!("{text} is no span"));
    text.split_once('m').map_or_else(|| number(text), |(minutes, rest)| 60.0 * number(minutes) + number(rest))
}

/// The simulated situation is the one that is meant.
fn check_situation(shown: &NodeDisplays) {
    let is_about = |pod: &str, name: &str, expected: f64| {
        let value = shown.account(pod)[name].as_f64().unwrap();
        assert!((value - expected).abs() <= 2.0, "{pod} {name}: {value}, expected {expected}");
    };
    is_about("train", "busy_seconds", 300.0);
    is_about("borrower", "held_seconds", 400.0);
    is_about("borrower", "allocated_seconds", 100.0);
    is_about("borrower", "busy_seconds", 360.0);
    is_about("borrower", "borrowed_seconds", 260.0);
    is_about("lender", "idle_seconds", 100.0);
    is_about("slice", "held_seconds", 400.0);
    is_about("slice", "allocated_seconds", 400.0 / 7.0);
    is_about("slice", "busy_seconds", 200.0 / 7.0);
    is_about("notebook", "uncovered_seconds", 61.0);
    is_about("notebook", "idle_seconds", 339.0);
    is_about("done", "held_seconds", 100.0);
    is_about("late", "busy_seconds", 90.0);
}

/// The counters of one holding: their sum, and each in every place.
fn check_counters(shown: &NodeDisplays, pod: &str, uuid: &str) {
    let rounded = |one: Option<f64>, other: f64| one.is_some_and(|one| (one - other).abs() < 6e-4);
    let key = format!("team/{pod}/main {uuid}");
    let of = |name| shown.account(pod)[name].as_f64().unwrap_or(0.0);
    let (left, right) = (
        of("allocated_seconds") + of("borrowed_seconds"),
        of("busy_seconds") + of("idle_seconds") + of("uncovered_seconds"),
    );
    assert!(near(left, right), "{pod}: {left} and {right}");
    for (name, title, on_page, metric) in COUNTERS {
        let value = of(name);
        // It ended over a minute ago.
        if pod != "done" && (on_page != "borrowed" || value >= BORROWED_SHOWN) {
            let page = shown.on_page(&key, on_page);
            assert!(rounded(page, value), "page: {pod} {on_page}: {page:?}, JSON {value}");
        }
        let in_usage = shown.usage(pod)[name].as_f64().unwrap_or(0.0);
        assert!(near(in_usage, value), "usage: {pod} {name}: {in_usage}, JSON {value}");
        if let Some(metric) = metric {
            let in_metrics = shown.of_pod(metric, pod).unwrap_or(0.0);
            assert!(near(in_metrics, value), "metrics: {pod} {name}: {in_metrics}, JSON {value}");
        }
        match shown.cell(pod, title) {
            // It ended over a minute ago.
            None => assert_eq!(pod, "done", "top has no line of {pod}:\n{}", shown.top),
            Some("-") => assert_eq!(value, 0.0, "{pod} {name}\n{}", shown.top),
            Some(cell) => assert_eq!(seconds(cell), value.trunc(), "top: {pod} {name}\n{}", shown.top),
        }
    }
    let joules = of("energy_joules");
    let in_usage = shown.usage(pod)["energy_joules"].as_f64().unwrap();
    let in_metrics = shown.of_pod("podmeter_container_energy_joules_total", pod).unwrap();
    assert!(near(in_usage, joules) && near(in_metrics, joules), "{pod}: {joules} {in_usage} {in_metrics}");
}

fn check_busy_now(shown: &NodeDisplays, uuid: &str, pod: &str, busy: f64, metric: &str, label: &str) {
    let values = [
        shown.device(uuid)["busy_ratio"].as_f64(),
        shown.account(pod)["utilization_ratio"].as_f64(),
        shown.of_pod("podmeter_container_utilization_ratio", pod),
    ];
    assert!(values.iter().all(|value| value.is_some_and(|value| near(value, busy))), "{pod}: {values:?}, not {busy}");
    let of_gpu = [&*format!("gpu_uuid=\"{label}\"")];
    let most = shown.metrics.samples(metric, &of_gpu).map(|(_, value)| value).fold(0.0, f64::max);
    assert_eq!(most, busy, "{metric} of {pod}");
    let percent = format!("{:.0}%", busy * 100.0);
    assert_eq!(shown.cell(uuid, "BUSY%"), Some(&*percent), "{}", shown.top);
    assert_eq!(shown.cell(pod, "BUSY%"), Some(&*percent), "{}", shown.top);
    assert_eq!(shown.on_page(uuid, "busy-now"), Some(busy), "{pod}");
    assert_eq!(shown.on_page(&format!("team/{pod}/main {uuid}"), "busy-now"), Some(busy));
}

fn check_free(shown: &NodeDisplays, resource: &str, free: i32, of: i32) {
    assert_eq!(shown.json["overview"]["resources"][resource]["free"], free);
    let labels = [&*format!("resource=\"{resource}\""), "state=\"unallocated\""];
    assert_eq!(shown.metrics.value("podmeter_resource_devices", &labels), Some(f64::from(free)));
    assert!(shown.top.contains(&format!("{resource} {free} of {of}")), "{}", shown.top);
    assert_eq!(shown.on_page(resource, "free"), Some(f64::from(free)));
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6
}

/// What every place shows of the scene, and UUIDs: `shared` has four slots, `partitioned` seven slices.
struct ShownNode {
    shown: NodeDisplays,
    train: String,
    notebook: String,
    last: String,
    shared: String,
    partitioned: String,
    free_slice: String,
    slice: String,
}

impl ShownNode {
    async fn run() -> Self {
        let mut scene = Scene::new();
        let snapshot = scene.run();
        let uuid = |gpu: usize| scene.gpus[gpu].uuid.to_string();
        let [train, shared, notebook, last] = [4, 5, 6, 7].map(uuid);
        let [free_slice, slice] = [0, 1].map(|slice| scene.gpus[0].mig_devices[slice].uuid.to_string());
        let partitioned = uuid(0);
        let shown = shown(scene, snapshot).await;
        check_situation(&shown);
        Self { shown, train, notebook, last, shared, partitioned, free_slice, slice }
    }
}
