//! Causes the fault of a row on a node, checks its symptoms, ends the fault, and measures the time to recovery.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::document;
use crate::rig::{AgentSetup, Rig, TRAINER, unix_now};
use crate::row::{Area, FaultRow, GoesOn, Logged, Reply};
use crate::support::agent::Page;
use crate::support::logfmt::fields;

/// For the symptoms: the longest wait of podmeter is ten seconds, and the machine may be busy.
const SEEN: Duration = Duration::from_secs(120);
const GOES_ON: Duration = Duration::from_secs(20);
const RECOVERED: Duration = Duration::from_secs(120);
/// Times the limit of a row: the machine may be busy.
const GENEROUS: u64 = 3;
/// A hung List times out after five seconds and is repeated a second later; a hung driver call never times out. Waiting
/// for it in each round would take half a minute or more. A round takes a third of a second, which is `holdDown`.
const TURNS: usize = 12;
const PROMPT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// Runs every row of the area on one node, or on a new one after a failed row.
pub async fn area(area: &Area) {
    let mut measured = BTreeMap::new();
    let mut failures = vec![];
    let mut rig = None;
    for row in area.rows {
        let mut node = match rig.take() {
            Some(node) => node,
            None => fresh(area).await,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| one(row, &mut node)));
        let outcome = outcome.unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().cloned();
            Err(message.or_else(|| panic.downcast_ref().map(|text: &&str| (*text).to_owned())).unwrap_or_default())
        });
        match outcome {
            Ok(took) => {
                println!("{}: recovered after {took:?}", row.id);
                measured.insert(row.id.to_owned(), took);
                rig = Some(node);
            }
            Err(problem) => {
                println!("== {}: {problem}\n-- log\n{}", row.id, node.log());
                failures.push(format!("{}: {problem}", row.id));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), area.rows.len(), failures.join("\n"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        document::update(&measured);
    }
}

async fn fresh(area: &Area) -> Rig {
    let mut setup = AgentSetup::default();
    (area.setup)(&mut setup);
    Rig::start(setup).await
}

/// Runs a row and returns the time to recovery.
fn one(row: &FaultRow, rig: &mut Rig) -> Result<Duration, String> {
    recovered(rig, RECOVERED).map_err(|problem| format!("not recovered before: {problem}"))?;
    rig.count_open_files();
    let (before, pid, mark) = (rig.metrics(), rig.pid(), rig.log().len());
    (row.how)(rig);
    let mut began = Instant::now();
    seen(row, rig, &before, mark)?;
    let broken = rig.metrics();
    no_fall(&before, &broken, rig.is_running() && rig.pid() == pid)?;
    let took = match row.undo {
        None => {
            let took = recovery_time(row, rig, began)?;
            go_on(row, rig)?;
            took
        }
        Some(undo) => {
            go_on(row, rig)?;
            began = Instant::now();
            undo(rig);
            rig.drop_held();
            recovery_time(row, rig, began)?
        }
    };
    rig.drop_held();
    no_fall(&before, &rig.metrics(), rig.pid() == pid)?;
    // What a start that failed prints is no log.
    rig.log()[mark..].lines().filter(|line| line.starts_with("time=")).try_for_each(|line| fields(line).map(drop))?;
    Ok(took)
}

fn go_on(row: &FaultRow, rig: &mut Rig) -> Result<(), String> {
    row.goes_on.iter().try_for_each(|goes_on| {
        patiently(GOES_ON, || goes(*goes_on, rig)).map_err(|problem| format!("does not continue: {problem}"))
    })
}

/// Waits for recovery and returns the time since `began`.
fn recovery_time(row: &FaultRow, rig: &Rig, began: Instant) -> Result<Duration, String> {
    let limit = Duration::from_secs(GENEROUS * row.within).saturating_sub(began.elapsed());
    let result = recovered(rig, limit);
    result.map_err(|problem| {
        format!("not recovered after {} s: {problem}\n-- page\n{}", GENEROUS * row.within, rig.metrics().0)
    })?;
    Ok(began.elapsed())
}

fn recovered(rig: &Rig, limit: Duration) -> Result<(), String> {
    patiently(limit, || rig.recovered())
}

fn patiently(limit: Duration, mut question: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        match question() {
            Err(problem) if Instant::now() >= deadline => return Err(problem),
            Err(_) => std::thread::sleep(POLL),
            Ok(()) => return Ok(()),
        }
    }
}

/// Each symptom at some time: those of a short fault may not coincide.
fn seen(row: &FaultRow, rig: &Rig, before: &Page, mark: usize) -> Result<(), String> {
    let mut metrics: Vec<_> = row.metrics.iter().collect();
    let mut text = row.page.as_ref();
    let mut line = match row.log {
        Logged::Line(line) => Some(line),
        Logged::Silent => None,
    };
    patiently(SEEN, || {
        let page = rig.metrics();
        metrics.retain(|metric| !metric.holds(&page, before, unix_now()));
        line.take_if(|line| rig.log()[mark..].contains(*line));
        text.take_if(|Reply(route, words)| {
            rig.get(route).is_some_and(|answer| (answer.head + "\n" + &answer.body).contains(*words))
        });
        if let Some(metric) = metrics.first() {
            return Err(format!("not seen: {metric}\n-- page\n{}", page.0));
        }
        if let Some(line) = line {
            return Err(format!("not in the log: {line}"));
        }
        text.map_or(Ok(()), |Reply(route, words)| {
            Err(format!("not on {route}: {words}\n{}", rig.get(route).map(|answer| answer.body).unwrap_or_default()))
        })
    })?;
    let log = rig.log();
    // Other processes may have used all inotify watches; podmeter then polls.
    let is_logged =
        |line: &&str| (line.contains("level=WARN") || line.contains("level=ERROR")) && !line.contains("no inotify");
    match (&row.log, log[mark..].lines().find(is_logged)) {
        (Logged::Silent, Some(line)) => Err(format!("in the log: {line}")),
        _ => Ok(()),
    }
}

fn goes(what: GoesOn, rig: &mut Rig) -> Result<(), String> {
    let is = |yes: bool, problem: String| if yes { Ok(()) } else { Err(problem) };
    match what {
        GoesOn::Pages => ["/metrics", "/", "/-/healthy", "/api/v1/node"].into_iter().try_for_each(|path| {
            let status = rig.get(path).map(|answer| answer.status);
            is(status == Some(200), format!("{path}: {status:?}"))
        }),
        GoesOn::Holder => {
            let seconds = |rig: &Rig| rig.metrics().value("podmeter_container_allocated_seconds_total", TRAINER);
            let mut first = None;
            patiently(GOES_ON, || {
                let now = seconds(rig);
                first = first.or(now);
                is(now > first, format!("the holder's seconds stay at {first:?}"))
            })
        }
        GoesOn::Readings(count) => {
            let read = rig.metrics().count("podmeter_device_power_watts", &[]);
            is(read == count, format!("{read} GPUs are read"))
        }
        GoesOn::Devices(count) => {
            let healthy = rig.healthy_devices();
            is(healthy == count, format!("{healthy} devices at the kubelet"))
        }
        GoesOn::Admits => rig.admits(),
        GoesOn::Pod => is(rig.devices_of_the_pod() == 1, "the pod has lost its GPU".into()),
        GoesOn::Promptly => {
            let began = Instant::now();
            (0..TURNS).for_each(|_| rig.toggle_health_and_allocate());
            is(began.elapsed() < PROMPT, format!("{TURNS} turns took {:?}", began.elapsed()))
        }
    }
}

/// No counter decreases while the same process runs.
fn no_fall(before: &Page, after: &Page, same: bool) -> Result<(), String> {
    let series = |page: &Page| -> BTreeMap<String, f64> {
        let lines = page.0.lines().filter(|line| !line.starts_with('#'));
        let split = lines.filter_map(|line| line.rsplit_once(' '));
        let counters =
            split.filter(|(series, _)| series.split('{').next().is_some_and(|name| name.ends_with("_total")));
        counters.filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?))).collect()
    };
    let now = series(after);
    let fallen = series(before).into_iter().find(|(name, was)| now.get(name).is_some_and(|is| is < was));
    match fallen {
        Some((name, was)) if same => Err(format!("{name} fell from {was} to {}", now[&name])),
        _ => Ok(()),
    }
}
