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
use crate::terminal::{clean, fit, wrapped};

/// The smallest supported terminal.
const LEAST: (u16, u16) = (60, 12);
/// Problems shown; the rest are counted.
const PROBLEMS_SHOWN: usize = 3;
const KEYS: &str = "q quit  Tab table  Enter detail  / filter  s/S sort  b bars  p pause  ? help";

const HELP: [&str; 25] = [
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
    "  BUSY                in the last second: of the device, of what is held",
    "  HELD                clock time held; GPU TIME: times the share held",
    "  BUSY BORROWED IDLE  GPU time since then; borrowed: the busy time beyond the",
    "  UNKNOWN             share; idle: held, not busy; unknown: without readings",
    "  free, free:2/4      no container holds it; so many of its slots are free",
    "  LAST                how long ago it was last busy",
    "  STALE               the agent does not respond, or sends no new snapshot;",
    "                      the last one is shown, and polling goes on",
    "",
    "One row per container and device. docs/dashboards.md has more.",
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

type Cell<'a, Row> = Box<dyn Fn(&Row) -> (String, Style) + 'a>;

struct Column<'a, Row> {
    title: String,
    width: usize,
    right: bool,
    cell: Cell<'a, Row>,
}

fn styled<'a, Row>(title: String, width: usize, cell: impl Fn(&Row) -> (String, Style) + 'a) -> Column<'a, Row> {
    Column { title, width, right: false, cell: Box::new(cell) }
}

fn left<'a, Row>(title: &str, width: usize, text: impl Fn(&Row) -> String + 'a) -> Column<'a, Row> {
    styled(title.to_owned(), width, move |row| (text(row), Style::new()))
}

fn right<'a, Row>(title: &str, width: usize, text: impl Fn(&Row) -> String + 'a) -> Column<'a, Row> {
    Column { right: true, ..left(title, width, text) }
}

/// The columns with `true`.
fn shown<'a, Row, const COUNT: usize>(columns: [(bool, Column<'a, Row>); COUNT]) -> Vec<Column<'a, Row>> {
    columns.into_iter().filter_map(|(is_shown, column)| is_shown.then_some(column)).collect()
}

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
        let height = self.height.saturating_sub(head.len() + foot.len());
        let body = match &self.state.mode {
            Mode::Help => self.page(HELP.iter().map(|line| Line::from(*line)).collect(), height),
            Mode::Detail(gpu) => self.page(detail::lines(self.state, gpu, self.look, self.now, self.width), height),
            Mode::Tables | Mode::Filter if self.state.node().is_none() => self.waiting(),
            Mode::Tables | Mode::Filter => self.tables(height),
        };
        let mut lines = head;
        lines.extend(body.into_iter().take(height));
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
        if let (Some(node), Mode::Tables | Mode::Filter) = (self.state.node(), &self.state.mode) {
            lines.push(Line::from(fit(&rows::totals(node), self.width, false)));
        }
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
        let keys = Line::styled(fit(keys, self.width, false), self.look.quiet());
        self.free().into_iter().chain([self.sources(), keys]).collect()
    }

    /// The free devices of each resource.
    fn free(&self) -> Option<Line<'static>> {
        let resources = self.state.node().map(rows::resources).unwrap_or_default();
        let is_shown = matches!(self.state.mode, Mode::Tables) && self.height >= 20 && !resources.is_empty();
        is_shown.then(|| Line::from(fit(&format!("free  {}", resources.join("  ")), self.width, false)))
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
        lines.extend(wrapped(&clean(why), self.width).into_iter().map(Line::from));
        lines.push(Line::from("Polling goes on; q quits."));
        lines
    }

    /// Scrolled lines, never past the last.
    fn page(&self, lines: Vec<Line<'static>>, height: usize) -> Vec<Line<'static>> {
        let first = self.state.scrolled.min(lines.len().saturating_sub(height));
        lines.into_iter().skip(first).collect()
    }

    fn tables(&self, height: usize) -> Vec<Line<'static>> {
        let (devices, containers) = (self.state.device_rows(), self.state.container_rows());
        // Each table has a heading and titles.
        let rows = height.saturating_sub(4);
        let upper = devices.len().max(1).min((rows / 2).max(rows.saturating_sub(containers.len())));
        let lower = rows.saturating_sub(upper);
        let node = self.state.node();
        let all = node.map_or(0, |node| rows::devices(node).len());
        let mut lines = vec![self.heading(Pane::Devices, "Devices", devices.len(), all, upper)];
        lines.extend(self.devices(&devices, upper));
        let all = node.map_or(0, |node| rows::containers(node).len());
        lines.push(self.heading(Pane::Containers, "Containers", containers.len(), all, lower));
        lines.extend(self.containers(&containers, lower));
        lines
    }

    /// `Devices 8, by GPU ↑`
    fn heading(&self, pane: Pane, name: &str, shown: usize, all: usize, height: usize) -> Line<'static> {
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
        if shown > height {
            text.push_str(&format!(", {height} on the screen"));
        }
        let (ended, windows) = match pane {
            Pane::Devices => (None, "BUSY: last second"),
            Pane::Containers => {
                (self.state.node().and_then(rows::long_ended), "BUSY%: last second; HELD: clock time; else GPU time")
            }
        };
        for words in ended.into_iter().chain([order]) {
            text.push_str(&format!(", {words}"));
        }
        Line::from_iter([
            Span::styled(text, self.look.heading(self.state.pane == pane)),
            Span::styled(format!("  ({windows})"), self.look.quiet()),
        ])
    }

    fn devices(&self, rows: &[DeviceRow], height: usize) -> Vec<Line<'static>> {
        let (wide, middle) = (self.width >= 100, self.width >= 76);
        let bars = if wide { 12 + (self.width - 100) / 3 } else { 9 };
        let bar_title = format!("{} {}", self.state.bars.as_str(), span(self.state.reach(bars).as_secs_f64()));
        let bar = move |row: &DeviceRow| {
            (self.look.bar(&self.state.history.last(&row.key, self.state.bars, bars), bars), self.look.bars())
        };
        let mut columns = shown([
            (true, left("GPU", 4, |row: &DeviceRow| " ".repeat(usize::from(row.order.1 > 0)) + &row.name)),
            (middle, left("MODEL", 14, |row: &DeviceRow| row.model.clone())),
            (true, styled("HEALTH".to_owned(), if wide { 18 } else { 10 }, |row: &DeviceRow| self.health(row))),
            (true, right("BUSY", 4, |row: &DeviceRow| percent(row.busy))),
            (wide, right("SM", 4, |row: &DeviceRow| percent(row.sm_active))),
            (true, styled(bar_title, bars, bar)),
            (true, right("MEMORY", 10, |row: &DeviceRow| memory(row.memory_used, row.memory_total))),
            (true, right("POWER", 5, |row: &DeviceRow| unit(row.power, "W"))),
            (wide, right("HEAT", 4, |row: &DeviceRow| unit(row.heat, "C"))),
        ]);
        let rest = self.rest(&columns);
        columns.push(left("HELD BY", rest, move |row: &DeviceRow| held_by(row, rest)));
        let keys: Vec<&str> = rows.iter().map(|row: &DeviceRow| row.key.as_str()).collect();
        let place = State::selected(&self.state.devices, &keys);
        let selected = place.filter(|_| self.state.pane == Pane::Devices);
        let empty = if self.state.filter.is_empty() { "no GPU" } else { "none" };
        self.table(&columns, rows, |_| false, (place, selected), height, empty)
    }

    fn health(&self, row: &DeviceRow) -> (String, Style) {
        match &row.status {
            DeviceStatus::Healthy => ("✓ healthy".to_owned(), Style::new()),
            DeviceStatus::Unhealthy(reason) => (format!("✗ {reason}"), self.look.alarm()),
            DeviceStatus::Passthrough(driver) => (driver.clone(), Style::new()),
            DeviceStatus::Gone => ("? gone".to_owned(), self.look.alarm()),
            DeviceStatus::Unchecked => ("? unchecked".to_owned(), Style::new()),
        }
    }

    fn containers(&self, rows: &[ContainerRow], height: usize) -> Vec<Line<'static>> {
        let (wide, widest, full) = (self.width >= 100, self.width >= 116, self.width >= 140);
        let mut columns = shown([
            (true, left("GPU", 4, |row: &ContainerRow| row.device.clone())),
            (wide, left("SHARING", 12, |row: &ContainerRow| row.sharing.clone())),
            (
                true,
                right(
                    "BUSY%",
                    5,
                    |row: &ContainerRow| {
                        if row.holds { percent(row.busy_now) } else { "ended".to_owned() }
                    },
                ),
            ),
            (true, right("MEMORY", 10, |row: &ContainerRow| memory(row.memory_used, row.memory_limit))),
            (true, right("HELD", 6, |row: &ContainerRow| spanned(row.figures.held_seconds))),
            (wide, right("GPU TIME", 8, |row: &ContainerRow| spanned(row.figures.allocated_seconds))),
            (full, right("BUSY", 6, |row: &ContainerRow| spanned(row.figures.busy_seconds))),
            (full, right("BORROWED", 8, |row: &ContainerRow| spanned(row.figures.borrowed_seconds))),
            (true, right("IDLE", 6, |row: &ContainerRow| spanned(row.figures.idle_seconds))),
            (full, right("UNKNOWN", 7, |row: &ContainerRow| spanned(row.figures.uncovered_seconds))),
            (widest, right("ENERGY", 10, |row: &ContainerRow| energy(row.figures.energy_joules))),
            (true, right("LAST", 6, |row: &ContainerRow| spanned(row.last_active))),
        ]);
        let name = |row: &ContainerRow| format!("{}/{}/{}", row.namespace, row.pod, row.container);
        columns.insert(0, left("NAMESPACE/POD/CONTAINER", self.rest(&columns), name));
        let keys: Vec<&str> = rows.iter().map(|row: &ContainerRow| row.key.as_str()).collect();
        let place = State::selected(&self.state.containers, &keys);
        let selected = place.filter(|_| self.state.pane == Pane::Containers);
        let empty = if self.state.filter.is_empty() { "no container holds a GPU" } else { "none" };
        self.table(&columns, rows, |row| !row.holds, (place, selected), height, empty)
    }

    /// The width that remains beside the columns, each with a gap before it.
    fn rest<Row>(&self, columns: &[Column<'_, Row>]) -> usize {
        self.width.saturating_sub(columns.iter().map(|column| column.width + 1).sum::<usize>() + 1)
    }

    /// `place`: the selected row of this table; `selected`: the same where the table has the focus.
    fn table<Row>(
        &self,
        columns: &[Column<'_, Row>],
        rows: &[Row],
        quiet: impl Fn(&Row) -> bool,
        (place, selected): (Option<usize>, Option<usize>),
        height: usize,
        empty: &str,
    ) -> Vec<Line<'static>> {
        let titles = columns.iter().map(|column| fit(&column.title, column.width, column.right));
        let mut lines = vec![Line::styled(format!(" {}", titles.collect::<Vec<_>>().join(" ")), self.look.quiet())];
        if rows.is_empty() {
            lines.push(Line::from(format!(" {empty}")));
        }
        let first = place.unwrap_or(0).saturating_sub(height / 2).min(rows.len().saturating_sub(height));
        for (number, row) in rows.iter().enumerate().skip(first).take(height) {
            let here = selected == Some(number);
            let mut spans = vec![Span::raw(if here { ">" } else { " " })];
            for (number, column) in columns.iter().enumerate() {
                let (text, style) = (column.cell)(row);
                spans.push(Span::raw(if number == 0 { "" } else { " " }));
                spans.push(Span::styled(fit(&text, column.width, column.right), style));
            }
            let style = match (here, quiet(row)) {
                (true, _) => self.look.selected(),
                (false, true) => self.look.quiet(),
                (false, false) => Style::new(),
            };
            lines.push(Line::from_iter(spans).style(style));
        }
        // The table keeps its height, so that the other one does not move.
        lines.resize(height + 1, Line::default());
        lines
    }
}

/// The pod of the first holder, the number of others, what is free, and unattributed processes:
/// `trainer-2333c +3 free:1/5 +host`.
fn held_by(row: &DeviceRow, columns: usize) -> String {
    let others = || row.free.iter().cloned().chain(row.unattributed.iter().map(|reason| format!("+{reason}")));
    let whole = row.holders.iter().cloned().chain(others()).collect::<Vec<_>>().join(" ");
    if row.holders.len() <= 1 && whole.width() <= columns {
        return if whole.is_empty() { super::format::DASH.to_owned() } else { whole };
    }
    let pod = |name: &String| name.split('/').nth(1).unwrap_or(name).to_owned();
    let mut words: Vec<String> = row.holders.first().map(pod).into_iter().collect();
    if row.holders.len() > 1 {
        words.push(format!("+{}", row.holders.len() - 1));
    }
    words.extend(others());
    let tail: String = words.iter().skip(1).map(|word| format!(" {word}")).collect();
    let Some(first) = words.first() else { return super::format::DASH.to_owned() };
    let height = columns.saturating_sub(tail.width());
    // The end of a name is cut rather than the number of holders.
    if first.width() > height && height >= 6 { fit(first, height, false) + &tail } else { words.join(" ") }
}

/// A measure's current value in words.
pub fn value(row: &DeviceRow, measure: Measure) -> String {
    match measure {
        Measure::Busy => percent(row.busy),
        Measure::Memory => memory(row.memory_used, row.memory_total),
        Measure::Power => format!("{}/{}", unit(row.power, ""), unit(row.power_limit, "W")),
    }
}
