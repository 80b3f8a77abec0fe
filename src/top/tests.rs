//! Screens as golden text (`UPDATE_GOLDEN=1 cargo test golden` accepts a change), and properties for
//! any response and any keys.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::history::Measure;
use super::state::{CONTAINER_ORDERS, DEVICE_ORDERS, Freshness, Key, Mode, State};
use super::style::Look;
use super::{plain, view};
use crate::client::{Holding, Node};
use crate::metrics::tests::fixture;
use crate::model::Monotonic;

const LOOK: Look = Look { colours: true, unicode: true };

fn node() -> Node {
    serde_json::from_value(serde_json::to_value(crate::api::Node::from(&fixture::snapshot())).unwrap()).unwrap()
}

fn seconds(seconds: u64) -> Monotonic {
    Monotonic::from_secs(seconds)
}

fn state() -> State {
    State::new("http://127.0.0.1:9410".into(), Duration::from_secs(1), seconds(0))
}

/// After eight polls, of which the fourth failed, with a load that rises.
fn polled() -> State {
    let mut state = state();
    for poll in 1..=8_u32 {
        let mut node = node();
        node.sequence += u64::from(poll);
        for device in node.overview.devices.iter_mut().filter(|device| device.busy_ratio.is_some()) {
            device.busy_ratio = Some(f64::from(poll - 1) / 7.0);
        }
        match poll {
            4 => state.failed("no response".into()),
            _ => state.update(node, seconds(poll.into())),
        }
    }
    state
}

fn press(state: &mut State, keys: &str) {
    for letter in keys.chars() {
        let key = match letter {
            '\n' => Key::Enter,
            '\t' => Key::Tab,
            '\x1b' => Key::Escape,
            letter => Key::Letter(letter),
        };
        assert!(state.press(key), "{letter:?} quit");
    }
}

fn terminal(state: &State, look: Look, now: Monotonic, (width, height): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, state, look, now)).unwrap();
    terminal
}

/// The screen's rows, without blanks at their ends.
fn screen(state: &State, look: Look, now: Monotonic, size: (u16, u16)) -> Vec<String> {
    let terminal = terminal(state, look, now, size);
    let cells = terminal.backend().buffer().content();
    let rows = cells.chunks(usize::from(size.0.max(1)));
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned()).collect()
}

#[test]
fn golden_screens() {
    let now = seconds(9);
    let mut text = String::new();
    let mut show = |title: &str, state: &State, look: Look, now: Monotonic, size: (u16, u16)| {
        text.push_str(&format!("== {title}, {}x{}\n{}\n", size.0, size.1, screen(state, look, now, size).join("\n")));
    };
    let usual = (80, 24);
    show("no response yet", &state(), LOOK, seconds(2), usual);
    let mut failing = state();
    failing.failed("no agent listens on /run/podmeter/podmeter.sock: start `podmeter agent`".into());
    show("no agent", &failing, LOOK, seconds(2), usual);
    show("tables", &polled(), LOOK, now, usual);
    show("tables, wide", &polled(), LOOK, now, (140, 24));
    show("tables, narrow and low", &polled(), LOOK, now, (60, 12));
    show("too small", &polled(), LOOK, now, (40, 8));
    show("ASCII", &polled(), Look { colours: false, unicode: false }, now, usual);
    let mut stale = polled();
    stale.failed("http://127.0.0.1:9410 cannot be reached: Connection refused".into());
    show("the agent has ended", &stale, LOOK, seconds(49), usual);
    let mut state = polled();
    press(&mut state, "b/lost");
    show("a filter is typed, bars of memory", &state, LOOK, now, usual);
    press(&mut state, "\n\tsS");
    show("containers sorted by use, least first, with that filter", &state, LOOK, now, usual);
    press(&mut state, "\x1bp");
    show("paused", &state, LOOK, now, usual);
    let mut state = polled();
    press(&mut state, "\n");
    show("detail of the first GPU", &state, LOOK, now, (80, 34));
    let mut state = polled();
    press(&mut state, "jj\n");
    show("detail of a partitioned GPU", &state, LOOK, now, (100, 48));
    let mut state = polled();
    press(&mut state, "?");
    show("help", &state, LOOK, now, usual);
    text.push_str("== plain text\n");
    text.push_str(&plain::text(&node()));
    text.push_str("== plain text of an empty node\n");
    text.push_str(&plain::text(&Node { sequence: 1, ..Node::default() }));

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/top.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(text == expected, "tests/golden/top.txt: UPDATE_GOLDEN=1 cargo test golden accepts this:\n{text}");
}

#[test]
fn the_last_response_stays_and_is_marked_stale() {
    let mut state = state();
    assert_eq!(state.freshness(seconds(3)), (Freshness::Waiting, Duration::from_secs(3)));
    state.update(node(), seconds(3));
    assert_eq!(state.freshness(seconds(4)).0, Freshness::Fresh);
    state.failed("gone".into());
    assert_eq!(state.freshness(seconds(10)), (Freshness::Stale, Duration::from_secs(7)));
    assert_eq!(state.device_rows().len(), super::rows::devices(&node()).len());
    let mut next = node();
    next.sequence += 1;
    state.update(next.clone(), seconds(11));
    assert_eq!(state.freshness(seconds(11)), (Freshness::Fresh, Duration::ZERO));
    // An agent that returns the same snapshot again and again.
    state.update(next.clone(), seconds(17));
    assert_eq!(state.freshness(seconds(17)), (Freshness::Stale, Duration::from_secs(6)));
    // A restarted agent may have the same sequence number.
    next.started += 1.0;
    state.update(next, seconds(18));
    assert_eq!(state.freshness(seconds(18)).0, Freshness::Fresh);
}

#[test]
fn a_pause_stops_the_screen_and_not_the_polling() {
    let mut state = polled();
    press(&mut state, "p");
    let before = state.node().unwrap().sequence;
    let mut next = node();
    next.sequence = 1000;
    state.update(next, seconds(20));
    assert_eq!((state.node().unwrap().sequence, state.freshness(seconds(20)).0), (before, Freshness::Paused));
    press(&mut state, "p");
    assert_eq!((state.node().unwrap().sequence, state.freshness(seconds(20)).0), (1000, Freshness::Fresh));
}

#[test]
fn keys_quit_or_go_back() {
    for keys in
        [vec![Key::Letter('q')], vec![Key::Escape], vec![Key::Interrupt], vec![Key::Letter('?'), Key::Interrupt]]
    {
        let mut state = polled();
        let goes_on: Vec<bool> = keys.iter().map(|key| state.press(*key)).collect();
        assert_eq!(goes_on.last(), Some(&false), "{keys:?}");
    }
    let mut state = polled();
    press(&mut state, "/q");
    assert_eq!((state.filter.as_str(), &state.mode), ("q", &Mode::Filter));
    press(&mut state, "\n\x1b");
    assert_eq!((state.filter.as_str(), &state.mode), ("", &Mode::Tables));
    press(&mut state, "\n");
    assert!(matches!(state.mode, Mode::Detail(_)));
    press(&mut state, "q?");
    assert_eq!(state.mode, Mode::Help);
    press(&mut state, "\x1b");
    assert!(!state.press(Key::Letter('q')));
}

#[test]
fn a_selection_stays_on_its_row_when_the_order_changes() {
    let mut state = polled();
    press(&mut state, "j\n");
    let Mode::Detail(second) = state.mode.clone() else { panic!("a detail") };
    press(&mut state, "qS\n");
    assert_eq!(state.mode, Mode::Detail(second));
}

#[test]
fn unknown_values_are_last_in_every_order() {
    let mut state = polled();
    for (order, by) in DEVICE_ORDERS.iter().enumerate() {
        for reversed in [false, true] {
            (state.devices.order, state.devices.reversed) = (order, reversed);
            let rows = state.device_rows();
            let busy: Vec<bool> = rows.iter().map(|row| row.busy.is_some()).collect();
            assert_eq!(rows.len(), super::rows::devices(&node()).len());
            if by.name == "busy now" {
                assert!(busy.is_sorted_by(|one, other| one >= other), "{busy:?}");
                let values: Vec<f64> = rows.iter().filter_map(|row| row.busy).collect();
                assert!(values.is_sorted_by(|one, other| if reversed { one <= other } else { one >= other }));
            }
        }
    }
    for order in 0..CONTAINER_ORDERS.len() {
        for reversed in [false, true] {
            (state.containers.order, state.containers.reversed) = (order, reversed);
            let rows = state.container_rows();
            assert!(rows.is_sorted_by(|one, other| one.holds >= other.holds), "what has let go comes last");
        }
    }
}

#[test]
fn the_most_idle_is_first() {
    let mut answer = node();
    for (idle, account) in [5.0, 700.0, 60.0].into_iter().zip(&mut answer.accounts) {
        account.figures.idle_seconds = Some(idle);
        account.holding = Some(Holding::default());
    }
    let text = plain::text(&answer);
    let mut state = state();
    state.update(answer, seconds(1));
    let idle: Vec<f64> =
        state.container_rows().iter().filter(|row| row.holds).filter_map(|row| row.figures.idle_seconds).collect();
    assert_eq!(idle[..3], [700.0, 60.0, 5.0]);
    let place = |span: &str| text.find(&format!(" {span} ")).unwrap();
    assert!(place("11m40s") < place("1m00s") && place("1m00s") < text.rfind(" 5s ").unwrap(), "{text}");
}

#[test]
fn without_colours_the_words_are_the_same() {
    let mut state = polled();
    state.failed("gone".into());
    let colours = |look: Look| {
        let terminal = terminal(&state, look, seconds(9), (80, 24));
        terminal
            .backend()
            .buffer()
            .content()
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    let without = Look { colours: false, unicode: true };
    assert!(colours(LOOK) > 0);
    assert_eq!(colours(without), 0);
    assert_eq!(screen(&state, LOOK, seconds(9), (80, 24)), screen(&state, without, seconds(9), (80, 24)));
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        8 => prop::sample::select("qhjkgGsSpb/? nx\u{7}é日".chars().map(Key::Letter).collect::<Vec<_>>()),
        4 => prop::sample::select(vec![
            Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Home, Key::End, Key::Tab, Key::Enter, Key::Escape,
            Key::Backspace,
        ]),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Key(Key),
    /// A response with this many devices and containers, and a name.
    Answer(usize, usize, String),
    Fail(String),
    Wait(u64),
    Draw(u16, u16, bool),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_key().prop_map(Step::Key),
        2 => (0..9_usize, 0..9_usize, any::<String>()).prop_map(|(gpus, accounts, name)| Step::Answer(gpus, accounts, name)),
        1 => any::<String>().prop_map(Step::Fail),
        1 => (0..100_000_u64).prop_map(Step::Wait),
        3 => (1..170_u16, 1..60_u16, any::<bool>()).prop_map(|(width, height, unicode)| Step::Draw(width, height, unicode)),
    ]
}

/// Of the fixture, with every name replaced.
fn shrunk(gpus: usize, accounts: usize, name: &str) -> Node {
    let mut node = node();
    node.sequence = u64::try_from(gpus * 10 + accounts).unwrap();
    let gone: Vec<String> = node.hardware.inventory.gpus.keys().skip(gpus).cloned().collect();
    for uuid in gone {
        node.hardware.inventory.gpus.remove(&uuid);
    }
    node.accounts.truncate(accounts);
    name.clone_into(&mut node.node_name);
    for gpu in node.hardware.inventory.gpus.values_mut() {
        gpu.model = Some(name.to_owned());
    }
    for account in &mut node.accounts {
        name.clone_into(&mut account.container.pod);
        account.figures.energy_joules = account.figures.energy_joules.map(|joules| joules * 1e300);
    }
    for cause in node.health.gpus.values_mut().flat_map(|health| &mut health.whole.causes) {
        name.clone_into(&mut cause.detail);
    }
    node
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_that_is_answered_or_typed_breaks_the_screen(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut state = state();
        let mut now = 0_u64;
        for step in steps {
            match step {
                Step::Key(key) => { state.press(key); }
                Step::Answer(gpus, accounts, name) => state.update(shrunk(gpus, accounts, &name), seconds(now)),
                Step::Fail(why) => state.failed(why),
                Step::Wait(waited) => now += waited,
                Step::Draw(width, height, unicode) => {
                    let look = Look { colours: true, unicode };
                    let terminal = terminal(&state, look, seconds(now), (width, height));
                    for cell in terminal.backend().buffer().content() {
                        prop_assert!(!cell.symbol().contains(|letter: char| letter.is_control()), "{:?}", cell.symbol());
                        prop_assert!(unicode || cell.symbol().is_ascii(), "{:?}", cell.symbol());
                    }
                }
            }
            if let Some(node) = state.node() {
                prop_assert!(!plain::text(node).contains(|letter: char| letter.is_control() && letter != '\n'));
            }
            prop_assert!(Measure::ALL.contains(&state.bars) && state.filter.chars().count() <= 60);
        }
    }
}
