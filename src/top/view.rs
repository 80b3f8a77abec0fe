//! Draws the state: two tables, a line on freshness, a line of keys. Everything is fitted to the width of the terminal.

use ratatui::Frame;
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;
use unicode_width::UnicodeWidthStr as _;

use super::detail;
use super::format::{energy, memory, percent, span, spanned, unit};
use super::history::Measure;
use super::rows::{self, ContainerRow, DeviceRow, DeviceStatus};
use super::state::{CONTAINER_ORDERS, Choice, DEVICE_ORDERS, Freshness, Mode, Order, Pane, State};
use super::style::Look;
use crate::model::Monotonic;
use crate::terminal::{clean, fit};

/// The smallest supported terminal.
const LEAST: (u16, u16) = (60, 12);
/// Problems shown; the rest are counted.
const PROBLEMS_SHOWN: usize = 3;
const KEYS: &str = "q quit  Tab table  Enter detail  / filter  s/S sort  b bars  p pause  ? help";

const HELP: [&str; 21] = [
    "Keys",
    "  q  Esc  Ctrl-C      quit; leave this page, a detail or a filter",
    "  Tab                 switch to the other table",
    "  arrows  j k  g G    select a row; PageUp and PageDown by ten",
    "  Enter               details of the device: holders, unattributed, events",
    "  /                   show only rows with this text; Esc clears it",
    "  s  S                sort by the next column; reverse the order",
    "  b                   bars of busy time, memory, or power, one bar a poll",
    "  p                   pause the screen; polling goes on",
    "  Ctrl-L              redraw",
    "",
    "Signs",
    "  -                   not known; it is not zero",
    "  +host               processes outside of pods (+not_allocated: of a pod",
    "                      that does not hold it; +terminated_pod: of an ended pod)",
    "  HELD, IDLE          GPU time of this container; idle: held and not busy",
    "  LAST                how long ago it was last busy",
    "  STALE               the agent does not respond, or sends no new snapshot;",
    "                      the last one is shown, and polling goes on",
    "",
    "One row per container and device. docs/top.md has more.",
];

pub fn draw(frame: &mut Frame, state: &State, look: Look, now: Monotonic) {
    let area = frame.area();
    let screen = Screen { state, look, now, width: usize::from(area.width), height: usize::from(area.height) };
    let lines = if area.width < LEAST.0 || area.height < LEAST.1 { screen.too_small() } else { screen.lines() };
    let shown = lines.into_iter().take(screen.height).map(|line| plainly(line, look));
    frame.render_widget(Paragraph::new(Text::from_iter(shown)), area);
}

fn plainly(line: Line<'static>, look: Look) -> Line<'static> {
    let style = line.style;
    let spans = line.spans.into_iter().map(|span| Span::styled(look.text(&span.content), span.style));
    Line::from_iter(spans).style(style)
}

struct Screen<'a> {
    state: &'a State,
    look: Look,
    now: Monotonic,
    width: usize,
    height: usize,
}

/// One column of a table: its title, its columns on the screen, and whether it is a number.
type Column = (String, usize, bool);

impl Screen<'_> {
    fn too_small(&self) -> Vec<Line<'static>> {
        let (columns, rows) = LEAST;
        let words = [
            format!("This terminal is {}x{}.", self.width, self.height),
            format!("podmeter top needs {columns}x{rows}:"),
            "make it larger, or use".to_owned(),
            "podmeter top --once".to_owned(),
        ];
        words.into_iter().map(Line::from).collect()
    }

    fn lines(&self) -> Vec<Line<'static>> {
        let (head, foot) = (self.head(), self.foot());
        let room = self.height.saturating_sub(head.len() + foot.len());
        let body = match &self.state.mode {
            Mode::Help => self.page(HELP.iter().map(|line| Line::from(*line)).collect(), room),
            Mode::Detail(gpu) => self.page(detail::lines(self.state, gpu, self.look, self.now, self.width), room),
            Mode::Tables | Mode::Filter if self.state.node().is_none() => self.waiting(),
            Mode::Tables | Mode::Filter => self.tables(room),
        };
        let mut lines = head;
        lines.extend(body.into_iter().take(room));
        lines.resize(self.height.saturating_sub(foot.len()), Line::default());
        lines.extend(foot);
        lines
    }

    fn head(&self) -> Vec<Line<'static>> {
        let (freshness, age) = self.state.freshness(self.now);
        let age = span(age.as_secs_f64());
        let (word, style) = match freshness {
            Freshness::Waiting => (format!("waiting, {age}"), Style::new()),
            Freshness::Fresh => (format!("fresh, {age}"), Style::new()),
            Freshness::Stale => (format!("STALE, {age}"), self.look.alarm()),
            Freshness::Paused => ("PAUSED".to_owned(), self.look.selected()),
        };
        let name = self.state.node().map_or_else(|| clean(&self.state.target), rows::title);
        let columns = self.width.saturating_sub(word.width() + 1);
        let name = Span::styled(fit(&name, columns, false), self.look.heading(false));
        let mut lines = vec![Line::from_iter([name, Span::raw(" "), Span::styled(word, style)])];
        if let (Some(why), true) = (&self.state.failure, self.state.node().is_some()) {
            lines.push(self.alarm(&clean(why)));
        }
        let problems = self.state.node().map(rows::problems).unwrap_or_default();
        let shown = if problems.len() > PROBLEMS_SHOWN { PROBLEMS_SHOWN - 1 } else { PROBLEMS_SHOWN };
        if matches!(self.state.mode, Mode::Tables | Mode::Filter) {
            lines.extend(problems.iter().take(shown).map(|problem| self.alarm(problem)));
            if problems.len() > shown {
                lines.push(self.alarm(&format!("and {} more; see each device's detail", problems.len() - shown)));
            }
        }
        lines
    }

    fn alarm(&self, text: &str) -> Line<'static> {
        Line::styled(fit(&format!("✗ {text}"), self.width, false), self.look.alarm())
    }

    fn foot(&self) -> Vec<Line<'static>> {
        let keys = match self.state.mode {
            Mode::Filter => {
                let filter = format!("filter: {}_", self.state.filter);
                return vec![
                    self.sources(),
                    Line::from(fit(&format!("{filter}   Enter keeps it, Esc clears it"), self.width, false)),
                ];
            }
            Mode::Help | Mode::Detail(_) => "q back  arrows scroll  Ctrl-C quit",
            Mode::Tables => KEYS,
        };
        vec![self.sources(), Line::styled(fit(keys, self.width, false), self.look.quiet())]
    }

    /// The age of each source at the response, plus the time since.
    fn sources(&self) -> Line<'static> {
        let Some(node) = self.state.node() else { return Line::default() };
        let (_, since) = self.state.freshness(self.now);
        let mut spans = vec![Span::raw("read")];
        for (name, age, word) in rows::sources(node) {
            let age = spanned(age.map(|age| age + since.as_secs_f64()));
            let style = if word.is_empty() { Style::new() } else { self.look.alarm() };
            let gap = if word.is_empty() { "" } else { " " };
            spans.push(Span::styled(format!("  {name} {age}{gap}{word}"), style));
        }
        if !node.kubelet.settled {
            spans.push(Span::styled("  allocations settling", self.look.alarm()));
        }
        Line::from_iter(spans)
    }

    fn waiting(&self) -> Vec<Line<'static>> {
        let why = self.state.failure.as_deref().unwrap_or("no response yet");
        let mut lines = vec![Line::default()];
        lines.extend(detail::wrapped(&clean(why), self.width).into_iter().map(Line::from));
        lines.push(Line::from("Polling goes on; q quits."));
        lines
    }

    /// Scrolled lines, never past the last.
    fn page(&self, lines: Vec<Line<'static>>, room: usize) -> Vec<Line<'static>> {
        let first = self.state.scrolled.min(lines.len().saturating_sub(room));
        lines.into_iter().skip(first).collect()
    }

    fn tables(&self, room: usize) -> Vec<Line<'static>> {
        let (devices, containers) = (self.state.device_rows(), self.state.container_rows());
        // Each table has a heading and titles.
        let rows = room.saturating_sub(4);
        let upper = devices.len().max(1).min((rows / 2).max(rows.saturating_sub(containers.len())));
        let lower = rows.saturating_sub(upper);
        let node = self.state.node();
        let all = node.map_or(0, |node| rows::devices(node).len());
        let mut lines = vec![self.heading(Pane::Devices, "Devices", devices.len(), all, upper)];
        lines.extend(self.devices(&devices, upper));
        let all = node.map_or(0, |node| node.accounts.len());
        lines.push(self.heading(Pane::Containers, "Containers", containers.len(), all, lower));
        lines.extend(self.containers(&containers, lower));
        lines
    }

    /// `Devices 8, by GPU ↑`
    fn heading(&self, pane: Pane, name: &str, shown: usize, all: usize, room: usize) -> Line<'static> {
        fn words<Row>(orders: &[Order<Row>], choice: &Choice) -> String {
            let Some(order) = orders.get(choice.order) else { return String::new() };
            format!("by {} {}", order.name, if order.falling != choice.reversed { "↓" } else { "↑" })
        }
        let order = match pane {
            Pane::Devices => words(&DEVICE_ORDERS, &self.state.devices),
            Pane::Containers => words(&CONTAINER_ORDERS, &self.state.containers),
        };
        let mut text = format!("{name} {shown}");
        if !self.state.filter.is_empty() {
            text.push_str(&format!(" of {all} with \"{}\"", clean(&self.state.filter)));
        }
        if shown > room {
            text.push_str(&format!(", {room} on the screen"));
        }
        Line::styled(format!("{text}, {order}"), self.look.heading(self.state.pane == pane))
    }

    fn devices(&self, rows: &[DeviceRow], room: usize) -> Vec<Line<'static>> {
        let (wide, middle) = (self.width >= 100, self.width >= 76);
        let bars = if wide { 12 + (self.width - 100) / 3 } else { 9 };
        let bar_title = format!("{} {}", self.state.bars.as_str(), span(self.state.reach(bars).as_secs_f64()));
        let mut columns: Vec<Column> = vec![("GPU".into(), 4, false)];
        if middle {
            columns.push(("MODEL".into(), 14, false));
        }
        columns.push(("HEALTH".into(), if wide { 18 } else { 10 }, false));
        columns.push(("BUSY".into(), 4, true));
        if wide {
            columns.push(("SM".into(), 4, true));
        }
        columns.push((bar_title, bars, false));
        columns.push(("MEMORY".into(), 10, true));
        columns.push(("POWER".into(), 5, true));
        if wide {
            columns.push(("HEAT".into(), 4, true));
        }
        let last = columns.len();
        columns.push(("HELD BY".into(), self.rest(&columns), false));
        let cells = |row: &DeviceRow| {
            let history = self.state.history.last(&row.key, self.state.bars, bars);
            let sign = match &row.status {
                DeviceStatus::Healthy => "✓ healthy".to_owned(),
                DeviceStatus::Unhealthy(reason) => format!("✗ {reason}"),
                other => format!("? {}", other.words()),
            };
            let alarm = matches!(row.status, DeviceStatus::Unhealthy(_) | DeviceStatus::Gone);
            let name = if row.order.1 == 0 { row.name.clone() } else { format!(" {}", row.name) };
            let mut cells = vec![(name, Style::new())];
            if middle {
                cells.push((row.model.clone(), Style::new()));
            }
            cells.push((sign, if alarm { self.look.alarm() } else { Style::new() }));
            cells.push((percent(row.busy), Style::new()));
            if wide {
                cells.push((percent(row.sm_active), Style::new()));
            }
            cells.push((self.look.bar(&history, bars), self.look.bars()));
            cells.push((memory(row.memory_used, row.memory_total), Style::new()));
            cells.push((unit(row.power, "W"), Style::new()));
            if wide {
                cells.push((unit(row.heat, "C"), Style::new()));
            }
            cells.push((held_by(row, columns[last].1), Style::new()));
            cells
        };
        let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        let place = State::selected(&self.state.devices, &keys);
        let empty = if self.state.filter.is_empty() { "no GPU" } else { "none" };
        self.table(&columns, rows, cells, |_| false, place, Pane::Devices, room, empty)
    }

    fn containers(&self, rows: &[ContainerRow], room: usize) -> Vec<Line<'static>> {
        let (wide, widest) = (self.width >= 100, self.width >= 116);
        let mut columns: Vec<Column> = vec![("GPU".into(), 4, false)];
        if wide {
            columns.push(("SHARING".into(), 12, false));
        }
        columns.push(("USE".into(), 5, true));
        columns.push(("MEMORY".into(), 10, true));
        columns.push(("HELD".into(), 6, true));
        columns.push(("IDLE".into(), 6, true));
        if widest {
            columns.push(("ENERGY".into(), 10, true));
        }
        columns.push(("LAST".into(), 6, true));
        let name = self.rest(&columns);
        columns.insert(0, ("NAMESPACE/POD/CONTAINER".into(), name, false));
        let cells = |row: &ContainerRow| {
            let name = format!("{}/{}/{}", row.namespace, row.pod, row.container);
            let mut cells = vec![name, row.device.clone()];
            if wide {
                cells.push(row.sharing.clone());
            }
            cells.push(if row.holds { percent(row.used) } else { "ended".to_owned() });
            cells.push(memory(row.memory_used, row.memory_limit));
            cells.push(spanned(row.held));
            cells.push(spanned(row.idle));
            if widest {
                cells.push(energy(row.energy));
            }
            cells.push(spanned(row.last_active));
            cells.into_iter().map(|cell| (cell, Style::new())).collect()
        };
        let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        let place = State::selected(&self.state.containers, &keys);
        let empty = if self.state.filter.is_empty() { "no container holds a GPU" } else { "none" };
        self.table(&columns, rows, cells, |row| !row.holds, place, Pane::Containers, room, empty)
    }

    /// The width that remains beside the columns, each with a gap before it.
    fn rest(&self, columns: &[Column]) -> usize {
        self.width.saturating_sub(columns.iter().map(|(_, columns, _)| columns + 1).sum::<usize>() + 1)
    }

    #[allow(clippy::too_many_arguments, reason = "both tables are drawn by it")]
    fn table<Row>(
        &self,
        columns: &[Column],
        rows: &[Row],
        cells: impl Fn(&Row) -> Vec<(String, Style)>,
        quiet: impl Fn(&Row) -> bool,
        selected: Option<usize>,
        pane: Pane,
        room: usize,
        empty: &str,
    ) -> Vec<Line<'static>> {
        let titles = columns.iter().map(|(title, width, right)| fit(title, *width, *right));
        let mut lines = vec![Line::styled(format!(" {}", titles.collect::<Vec<_>>().join(" ")), self.look.quiet())];
        if rows.is_empty() {
            lines.push(Line::from(format!(" {empty}")));
        }
        let first = selected.unwrap_or(0).saturating_sub(room / 2).min(rows.len().saturating_sub(room));
        for (place, row) in rows.iter().enumerate().skip(first).take(room) {
            let here = selected == Some(place) && self.state.pane == pane;
            let mut spans = vec![Span::raw(if here { ">" } else { " " })];
            for (number, ((text, style), (_, width, right))) in cells(row).into_iter().zip(columns).enumerate() {
                let gap = if number == 0 { "" } else { " " };
                spans.push(Span::raw(gap));
                spans.push(Span::styled(fit(&text, *width, *right), style));
            }
            let style = match (here, quiet(row)) {
                (true, _) => self.look.selected(),
                (false, true) => self.look.quiet(),
                (false, false) => Style::new(),
            };
            lines.push(Line::from_iter(spans).style(style));
        }
        // The table keeps its height, so that the other one does not move.
        lines.resize(room + 1, Line::default());
        lines
    }
}

/// The pod of the first holder, the number of others, and unattributed processes: `trainer-2333c +3 +host`.
fn held_by(row: &DeviceRow, columns: usize) -> String {
    let whole =
        [row.holders.clone(), row.unattributed.iter().map(|reason| format!("+{reason}")).collect()].concat().join(" ");
    if row.holders.len() <= 1 && whole.width() <= columns {
        return if whole.is_empty() { super::format::DASH.to_owned() } else { whole };
    }
    let pod = |name: &String| name.split('/').nth(1).unwrap_or(name).to_owned();
    let mut words: Vec<String> = row.holders.first().map(pod).into_iter().collect();
    if row.holders.len() > 1 {
        words.push(format!("+{}", row.holders.len() - 1));
    }
    words.extend(row.unattributed.iter().map(|reason| format!("+{reason}")));
    let tail: String = words.iter().skip(1).map(|word| format!(" {word}")).collect();
    let Some(first) = words.first() else { return super::format::DASH.to_owned() };
    let room = columns.saturating_sub(tail.width());
    // The end of a name is cut rather than the number of holders.
    if first.width() > room && room >= 6 { fit(first, room, false) + &tail } else { words.join(" ") }
}

/// A measure's current value in words.
pub fn value(row: &DeviceRow, measure: Measure) -> String {
    match measure {
        Measure::Busy => percent(row.busy),
        Measure::Memory => memory(row.memory_used, row.memory_total),
        Measure::Power => format!("{}/{}", unit(row.power, ""), unit(row.power_limit, "W")),
    }
}
