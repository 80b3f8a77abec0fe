//! What is shown. Inputs: responses, keys and the time. Output: rows in order. It uses neither terminal nor clock.

use std::cmp::Ordering;
use std::time::Duration;

use super::history::{History, Measure};
use super::rows::{self, ContainerRow, DeviceRow};
use crate::client::{self, Node};
use crate::model::Monotonic;

/// Characters of a filter.
const LONGEST_FILTER: usize = 60;

/// A key, independent of the terminal library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C, which quits in every mode.
    Interrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Devices,
    Containers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Tables,
    /// A filter is being typed.
    Filter,
    Help,
    /// One device, by UUID.
    Detail(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// No response yet.
    Waiting,
    Fresh,
    /// Polls failed, or the agent returns the same snapshot.
    Stale,
    Paused,
}

/// One way to sort rows.
pub struct Order<Row: 'static> {
    pub name: &'static str,
    pub falling: bool,
    compare: fn(&Row, &Row) -> Option<Ordering>,
    /// Rows without a value come last either way.
    has: fn(&Row) -> bool,
}

macro_rules! by {
    ($name:literal, $falling:literal, $($field:ident).+) => {
        Order {
            name: $name,
            falling: $falling,
            compare: |one, other| one.$($field).+.partial_cmp(&other.$($field).+),
            has: |row| row.$($field).+.is_some(),
        }
    };
}

pub const DEVICE_ORDERS: [Order<DeviceRow>; 6] = [
    Order { name: "GPU", falling: false, compare: |one, other| Some(one.order.cmp(&other.order)), has: |_| true },
    by!("busy now", true, busy),
    by!("memory", true, memory_used),
    by!("power", true, power),
    by!("heat", true, heat),
    Order { name: "health", falling: false, compare: |one, other| Some(one.status.cmp(&other.status)), has: |_| true },
];

pub const CONTAINER_ORDERS: [Order<ContainerRow>; 7] = [
    by!("idle", true, figures.idle_seconds),
    by!("busy now", true, busy_now),
    by!("memory", true, memory_used),
    by!("held", true, figures.held_seconds),
    by!("energy", true, figures.energy_joules),
    by!("last active", true, last_active),
    Order {
        name: "name",
        falling: false,
        compare: |one, other| Some(rows::by_name(one).cmp(&rows::by_name(other))),
        has: |_| true,
    },
];

/// Order, direction and selection of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub order: usize,
    /// Opposite to the usual direction of the order.
    pub reversed: bool,
    /// The selected row, and where it was last.
    key: Option<String>,
    place: usize,
}

pub struct State {
    /// The agent, for people.
    pub target: String,
    interval: Duration,
    /// When polling began.
    began: Monotonic,
    latest: Option<Node>,
    /// The node on the screen while paused.
    paused: Option<Node>,
    /// When the snapshot last changed.
    changed: Monotonic,
    /// Why the last poll failed.
    pub failure: Option<String>,
    pub history: History,
    pub mode: Mode,
    pub pane: Pane,
    pub devices: Choice,
    pub containers: Choice,
    pub filter: String,
    pub bars: Measure,
    /// Lines scrolled down in the detail or the help.
    pub scrolled: usize,
}

impl State {
    pub fn new(target: String, interval: Duration, now: Monotonic) -> Self {
        Self {
            target,
            interval,
            began: now,
            latest: None,
            paused: None,
            changed: now,
            failure: None,
            history: History::default(),
            mode: Mode::Tables,
            pane: Pane::Devices,
            devices: Choice::default(),
            containers: Choice::default(),
            filter: String::new(),
            bars: Measure::Busy,
            scrolled: 0,
        }
    }

    /// Takes over what the agent has of the time before the first poll.
    pub fn begin(&mut self, node: &Node, history: &client::History) {
        self.history.begin(&rows::devices(node), history, self.interval);
    }

    pub fn update(&mut self, node: Node, now: Monotonic) {
        let stamp = |node: &Node| (node.started, node.sequence);
        if self.latest.as_ref().map(stamp) != Some(stamp(&node)) {
            self.changed = now;
        }
        self.history.add(&rows::devices(&node));
        self.failure = None;
        self.latest = Some(node);
    }

    pub fn failed(&mut self, why: String) {
        self.history.failed();
        self.failure = Some(why);
    }

    /// The snapshot on the screen.
    pub fn node(&self) -> Option<&Node> {
        self.paused.as_ref().or(self.latest.as_ref())
    }

    /// The time that this many bars cover.
    pub fn reach(&self, bars: usize) -> Duration {
        self.interval.saturating_mul(u32::try_from(bars).unwrap_or(u32::MAX))
    }

    /// How current the data is, and since when it is unchanged.
    pub fn freshness(&self, now: Monotonic) -> (Freshness, Duration) {
        let (Some(_), age) = (&self.latest, now.since(self.changed)) else {
            return (Freshness::Waiting, now.since(self.began));
        };
        let limit = (3 * self.interval).max(Duration::from_secs(5));
        let freshness = match &self.failure {
            _ if self.paused.is_some() => Freshness::Paused,
            None if age <= limit => Freshness::Fresh,
            _ => Freshness::Stale,
        };
        (freshness, age)
    }

    pub fn device_rows(&self) -> Vec<DeviceRow> {
        let Some(node) = self.node() else { return vec![] };
        let mut rows = rows::devices(node);
        rows.retain(|row| {
            let words = [row.name.as_str(), &row.key, &row.model, &row.status.words()].map(str::to_lowercase);
            let users = row.holders.iter().chain(&row.free).chain(&row.unattributed).map(|text| text.to_lowercase());
            self.matches(words.into_iter().chain(users))
        });
        arrange(&mut rows, &DEVICE_ORDERS, &self.devices, |_| true);
        rows
    }

    pub fn container_rows(&self) -> Vec<ContainerRow> {
        let Some(node) = self.node() else { return vec![] };
        let mut rows = rows::containers(node);
        rows.retain(|row| {
            let name = format!("{}/{}/{}", row.namespace, row.pod, row.container);
            self.matches([&name, &row.device, &row.gpu, &row.sharing].into_iter().map(|text| text.to_lowercase()))
        });
        arrange(&mut rows, &CONTAINER_ORDERS, &self.containers, |row| row.holds);
        rows
    }

    fn matches(&self, mut words: impl Iterator<Item = String>) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty() || words.any(|word| word.contains(&wanted))
    }

    /// Which of these rows is selected; `None` when there are none.
    pub fn selected(choice: &Choice, keys: &[impl AsRef<str>]) -> Option<usize> {
        let found = choice.key.as_ref().and_then(|key| keys.iter().position(|other| other.as_ref() == key));
        found.or_else(|| Some(choice.place.min(keys.len().checked_sub(1)?)))
    }

    /// False: quit.
    pub fn press(&mut self, key: Key) -> bool {
        if key == Key::Interrupt {
            return false;
        }
        match self.mode {
            Mode::Filter => self.type_filter(key),
            Mode::Tables => return self.steer(key),
            Mode::Help | Mode::Detail(_) => self.read(key),
        }
        true
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Letter(letter) if !letter.is_control() && self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(letter);
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter | Key::Tab => self.mode = Mode::Tables,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Tables;
            }
            Key::Up | Key::Down | Key::PageUp | Key::PageDown => {
                self.steer(key);
            }
            _ => {}
        }
    }

    fn steer(&mut self, key: Key) -> bool {
        match key {
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            Key::Letter('q') | Key::Escape => return false,
            Key::Letter('?' | 'h') => self.open(Mode::Help),
            Key::Letter('/') => self.mode = Mode::Filter,
            Key::Letter('p' | ' ') => self.paused = if self.paused.is_some() { None } else { self.latest.clone() },
            Key::Letter('b') => self.bars = self.bars.next(),
            Key::Letter('s') => {
                let count = if self.pane == Pane::Devices { DEVICE_ORDERS.len() } else { CONTAINER_ORDERS.len() };
                let choice = self.choice();
                choice.order = (choice.order + 1) % count;
                choice.reversed = false;
            }
            Key::Letter('S') => self.choice().reversed ^= true,
            Key::Tab => self.pane = if self.pane == Pane::Devices { Pane::Containers } else { Pane::Devices },
            Key::Up | Key::Letter('k') => self.go(|place, _| place.saturating_sub(1)),
            Key::Down | Key::Letter('j') => self.go(|place, _| place + 1),
            Key::PageUp => self.go(|place, _| place.saturating_sub(10)),
            Key::PageDown => self.go(|place, _| place + 10),
            Key::Home | Key::Letter('g') => self.go(|_, _| 0),
            Key::End | Key::Letter('G') => self.go(|_, count| count),
            Key::Enter => {
                if let Some(gpu) = self.selected_gpu() {
                    self.open(Mode::Detail(gpu));
                }
            }
            _ => {}
        }
        true
    }

    fn read(&mut self, key: Key) {
        match key {
            Key::Up | Key::Letter('k') => self.scrolled = self.scrolled.saturating_sub(1),
            // The view stops at the last line.
            Key::Down | Key::Letter('j') => self.scrolled += 1,
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            Key::PageDown => self.scrolled += 10,
            Key::Home | Key::Letter('g') => self.scrolled = 0,
            Key::Letter('q' | '?' | 'h') | Key::Escape | Key::Enter | Key::Backspace => self.mode = Mode::Tables,
            _ => {}
        }
    }

    fn open(&mut self, mode: Mode) {
        self.mode = mode;
        self.scrolled = 0;
    }

    fn choice(&mut self) -> &mut Choice {
        match self.pane {
            Pane::Devices => &mut self.devices,
            Pane::Containers => &mut self.containers,
        }
    }

    /// Key and GPU of each row of the table with the focus.
    fn row_keys(&self) -> (Vec<String>, Vec<String>) {
        match self.pane {
            Pane::Devices => self.device_rows().into_iter().map(|row| (row.key, row.gpu)).unzip(),
            Pane::Containers => self.container_rows().into_iter().map(|row| (row.key, row.gpu)).unzip(),
        }
    }

    fn go(&mut self, step: impl FnOnce(usize, usize) -> usize) {
        let (keys, _) = self.row_keys();
        let choice = self.choice();
        let Some(place) = Self::selected(choice, &keys) else { return };
        choice.place = step(place, keys.len()).min(keys.len() - 1);
        choice.key = keys.into_iter().nth(choice.place);
    }

    fn selected_gpu(&mut self) -> Option<String> {
        let (keys, gpus) = self.row_keys();
        gpus.into_iter().nth(Self::selected(self.choice(), &keys)?)
    }
}

/// The rows are sorted by name before, and the sort is stable. Ended holdings and rows without a value come last.
fn arrange<Row>(rows: &mut [Row], orders: &[Order<Row>], choice: &Choice, is_current: fn(&Row) -> bool) {
    let Some(order) = orders.get(choice.order) else { return };
    let rank = |row: &Row| (!is_current(row), !(order.has)(row));
    rows.sort_by(|one, other| {
        let compared = (order.compare)(one, other).unwrap_or(Ordering::Equal);
        let directed = if order.falling != choice.reversed { compared.reverse() } else { compared };
        rank(one).cmp(&rank(other)).then(directed)
    });
}
