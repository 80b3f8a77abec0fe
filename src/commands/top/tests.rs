//! Screens as golden text (`UPDATE_GOLDEN=1 cargo test golden` accepts a change), and properties for any response and any
//! keys.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr as _;

use super::screen::Screen;
use super::{Style, text};
use crate::commands::client::ClientError;
use crate::domain::model::{Attribution, Monotonic, SharingForm, Snapshot, UnixSeconds};
use crate::serve::metrics::tests::fixture;

/// The fixture's node, as a client reads it from JSON.
fn node() -> Snapshot {
    let json = serde_json::to_vec(&fixture::snapshot()).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn seconds(seconds: u64) -> Monotonic {
    Monotonic::from_secs(seconds)
}

fn screen() -> Screen {
    Screen::new("http://127.0.0.1:9410".into(), Duration::from_secs(1), seconds(0))
}

fn press(screen: &mut Screen, code: KeyCode) -> bool {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

/// The lines of the screen, marked where they are selected or a problem.
fn shown(screen: &mut Screen, now: u64, width: usize, height: usize) -> String {
    let lines = screen.lines(seconds(now), width, height);
    assert!(lines.len() == height && lines.iter().all(|line| line.text.width() <= width), "{lines:#?}");
    let mark = |style| match style {
        Style::Selected => '>',
        Style::Alarm => '!',
        _ => ' ',
    };
    lines.iter().map(|line| format!("{}{}", mark(line.style), line.text).trim_end().to_owned() + "\n").collect()
}

#[test]
fn golden_screens() {
    let mut all = String::new();
    let mut show = |title: &str, screen: &mut Screen, now, width, height| {
        all.push_str(&format!("== {title}, {width}x{height}\n{}", shown(screen, now, width, height)));
    };
    let mut screen = screen();
    show("no response yet", &mut screen, 2, 80, 5);
    let (target, error) = ("http://127.0.0.1:9410".to_owned(), ErrorKind::ConnectionRefused.into());
    screen.failure = Some(ClientError::Unreachable { target, error }.to_string());
    show("no agent", &mut screen, 2, 80, 5);
    screen.update(node(), seconds(3));
    show("the table", &mut screen, 4, 80, 24);
    press(&mut screen, KeyCode::Down);
    show("the second row is selected, wide", &mut screen, 4, 170, 24);
    screen.failure = Some("http://127.0.0.1:9410 cannot be reached: Connection refused".into());
    show("the agent has ended, low", &mut screen, 49, 80, 12);
    screen.update(node(), seconds(50));
    press(&mut screen, KeyCode::Enter);
    show("details of a GPU", &mut screen, 51, 80, 40);
    press(&mut screen, KeyCode::Esc);
    while !shown(&mut screen, 51, 80, 24).lines().any(|line| line.starts_with(">  2:1")) {
        press(&mut screen, KeyCode::Down);
    }
    press(&mut screen, KeyCode::Enter);
    show("details of a partitioned GPU", &mut screen, 51, 100, 40);
    all.push_str("== plain text\n");
    all.push_str(&text(&node()));
    all.push_str("== plain text of an empty node\n");
    all.push_str(&text(&Snapshot { sequence: 1, ..Snapshot::default() }));

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/top.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &all).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(all == expected, "tests/golden/top.txt: UPDATE_GOLDEN=1 cargo test golden accepts this:\n{all}");
}

#[test]
fn a_slot_shows_its_part_of_the_device_and_equal_division_its_remedy() {
    let mut node = node();
    node.processes = None;
    let account = &mut node.accounts[0];
    (account.utilization_ratio, account.gpu_utilization_ratio) = (Some(1.0), Some(0.34));
    let holding = account.holding.as_mut().unwrap();
    (holding.sharing, holding.fraction) = (SharingForm::TimeSlicing, Some(0.25));
    holding.attribution = Some(Attribution::EqualShare);
    let text = text(&node);
    let row = text.lines().find(|line| line.contains("training-0")).unwrap();
    assert!(row.contains("time_slicing:25%") && row.contains(" 34% "), "{row}");
    assert!(
        text.contains("note: the use of shared devices is divided equally among their holders: hostPID is off"),
        "{text}"
    );
}

#[test]
fn the_last_response_stays_and_is_marked_stale() {
    let mut screen = screen();
    let is = |screen: &mut Screen, word: &str, now| {
        let shown = shown(screen, now, 80, 24);
        assert!(shown.lines().next().unwrap().ends_with(word), "{shown}");
    };
    is(&mut screen, " waiting, 3s", 3);
    screen.update(node(), seconds(3));
    is(&mut screen, " fresh, 1s", 4);
    screen.failure = Some("gone".into());
    is(&mut screen, " STALE, 7s", 10);
    let mut next = node();
    next.sequence += 1;
    screen.update(next.clone(), seconds(11));
    is(&mut screen, " fresh, 0s", 11);
    // The agent returns the same snapshot again and again.
    screen.update(next.clone(), seconds(17));
    is(&mut screen, " STALE, 6s", 17);
    // A restarted agent may return the same sequence number.
    next.started = UnixSeconds(next.started.0 + 1.0);
    screen.update(next, seconds(18));
    is(&mut screen, " fresh, 0s", 18);
}

#[test]
fn keys_select_open_go_back_and_quit() {
    let mut screen = screen();
    screen.update(node(), seconds(1));
    let title = |screen: &mut Screen| shown(screen, 1, 80, 24).lines().nth(1).unwrap().to_owned();
    press(&mut screen, KeyCode::Char('j'));
    press(&mut screen, KeyCode::Char('k'));
    assert!(press(&mut screen, KeyCode::Enter));
    assert!(title(&mut screen).starts_with(" GPU 0 "), "{}", title(&mut screen));
    assert!(press(&mut screen, KeyCode::Char('q')), "back");
    assert!(!press(&mut screen, KeyCode::Esc));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!screen.press(interrupt));
}

#[test]
fn a_selection_stays_on_its_row_when_others_come() {
    let mut screen = screen();
    let selected =
        |screen: &mut Screen| shown(screen, 1, 80, 40).lines().find(|line| line.starts_with('>')).unwrap().to_owned();
    let mut before = node();
    let accounts = std::mem::take(&mut before.accounts);
    screen.update(before.clone(), seconds(1));
    press(&mut screen, KeyCode::Down);
    screen.update(Snapshot { accounts, ..before }, seconds(1));
    assert!(selected(&mut screen).starts_with(">1 "), "{}", selected(&mut screen));
}

/// This many GPUs and accounts of the fixture, with every name replaced.
fn shrunk(gpus: usize, accounts: usize, name: &str) -> Snapshot {
    let mut node = node();
    node.sequence = u64::try_from(gpus * 10 + accounts).unwrap();
    node.node_name = name.into();
    let hardware = Arc::make_mut(&mut node.hardware);
    let inventory = Arc::make_mut(&mut hardware.inventory);
    let gone: Vec<_> = inventory.gpus.keys().skip(gpus).cloned().collect();
    inventory.gpus.retain(|uuid, _| !gone.contains(uuid));
    for gpu in inventory.gpus.values_mut() {
        gpu.model = Some(name.into());
    }
    node.accounts.truncate(accounts);
    for account in &mut node.accounts {
        account.container.pod = name.into();
        account.counters.energy_joules = account.counters.energy_joules.map(|joules| joules * 1e300);
    }
    for health in Arc::make_mut(&mut node.health).gpus.values_mut() {
        health.whole.causes.iter_mut().for_each(|cause| cause.detail = name.into());
    }
    node
}

#[derive(Clone, Debug)]
enum Step {
    Key(KeyCode),
    /// A response with this many devices and containers, and a name.
    Answer(usize, usize, String),
    Fail(String),
    Draw(u64, usize, usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    use KeyCode::{Char, Down, Enter, Esc, PageDown, PageUp, Up};
    let keys = vec![Char('q'), Char('j'), Char('k'), Char('é'), Down, Enter, Esc, PageDown, PageUp, Up];
    prop_oneof![
        6 => prop::sample::select(keys).prop_map(Step::Key),
        2 => (0..9_usize, 0..9_usize, any::<String>()).prop_map(|(gpus, accounts, name)| Step::Answer(gpus, accounts, name)),
        1 => any::<String>().prop_map(Step::Fail),
        3 => (0..100_000_u64, 0..170_usize, 1..60_usize).prop_map(|(now, width, height)| Step::Draw(now, width, height)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_that_is_answered_or_typed_breaks_the_screen(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut screen = screen();
        let harmless = |text: &str| !text.contains(|letter: char| letter.is_control() && letter != '\n');
        for step in steps {
            match step {
                Step::Key(key) => { press(&mut screen, key); }
                Step::Answer(gpus, accounts, name) => {
                    let node = shrunk(gpus, accounts, &name);
                    prop_assert!(harmless(&text(&node)));
                    screen.update(node, seconds(1));
                }
                Step::Fail(why) => screen.failure = Some(why),
                Step::Draw(now, width, height) => prop_assert!(harmless(&shown(&mut screen, now, width, height))),
            }
        }
    }
}
