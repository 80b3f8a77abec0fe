//! The content of the screen. Inputs: responses, keys and the time. Output: lines. It uses neither terminal nor clock.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::format::span;
use super::table::{self, TableRow};
use super::{Line, Style, detail};
use crate::domain::model::{GpuUuid, Monotonic, Snapshot};
use crate::terminal::{clean, fit, wrapped};

/// The most lines above the table; further problems are in the details.
const HEAD: usize = 6;

pub struct Screen {
    /// The agent, as shown to the user.
    target: String,
    interval: Duration,
    node: Option<Snapshot>,
    /// When the snapshot last changed; before the first one, when polling began.
    changed: Monotonic,
    /// Why the last poll failed.
    pub failure: Option<String>,
    selected_key: Option<String>,
    /// The last index of the selected row: the selection stays there when the row disappears.
    selected_index: usize,
    /// The GPU whose details are shown.
    detail: Option<GpuUuid>,
    /// The number of lines of the details above the screen.
    scrolled: usize,
}

impl Screen {
    pub fn new(target: String, interval: Duration, now: Monotonic) -> Self {
        let (node, failure, selected_key, detail) = (None, None, None, None);
        Self { target, interval, node, changed: now, failure, selected_key, selected_index: 0, detail, scrolled: 0 }
    }

    pub fn update(&mut self, node: Snapshot, now: Monotonic) {
        let stamp = |node: &Snapshot| (node.started, node.sequence);
        if self.node.as_ref().map(stamp) != Some(stamp(&node)) {
            self.changed = now;
        }
        self.failure = None;
        self.node = Some(node);
    }

    fn rows(&self) -> Vec<TableRow> {
        self.node.as_ref().map(table::rows).unwrap_or_default()
    }

    /// Handles a key. Returns false to quit.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        let step: isize = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -10,
            KeyCode::PageDown => 10,
            KeyCode::Enter if self.detail.is_none() => {
                let rows = self.rows();
                self.detail = self.selected(&rows).map(|index| rows[index].gpu.clone());
                self.scrolled = 0;
                return true;
            }
            KeyCode::Esc | KeyCode::Char('q') => return self.detail.take().is_some(),
            _ => return true,
        };
        if self.detail.is_some() {
            // `lines` stops at the last one.
            self.scrolled = self.scrolled.saturating_add_signed(step);
            return true;
        }
        let rows = self.rows();
        if let Some(index) = self.selected(&rows) {
            self.selected_index = index.saturating_add_signed(step).min(rows.len() - 1);
            self.selected_key = Some(rows[self.selected_index].key.clone());
        }
        true
    }

    /// The index of the selected row; `None` where there are no rows.
    fn selected(&self, rows: &[TableRow]) -> Option<usize> {
        let found = self.selected_key.as_ref().and_then(|key| rows.iter().position(|row| row.key == *key));
        found.or_else(|| Some(self.selected_index.min(rows.len().checked_sub(1)?)))
    }

    /// The lines, at most `height` of at most `width` columns.
    pub fn lines(&mut self, now: Monotonic, width: usize, height: usize) -> Vec<Line> {
        let since = now.since(self.changed);
        let mut lines = self.title(since, width);
        let keys = if self.detail.is_some() {
            "Esc or q: back   arrows, j, k: scroll"
        } else {
            "q: quit   arrows, j, k: select   Enter: details of the GPU"
        };
        match (&self.node, &self.detail) {
            (None, _) => lines.push(Line::new("Polling goes on.", Style::Plain)),
            (Some(node), Some(gpu)) => {
                let page = detail::lines(node, gpu, since, width);
                let visible = height.saturating_sub(lines.len() + 1);
                self.scrolled = self.scrolled.min(page.len().saturating_sub(visible));
                lines.extend(page.into_iter().skip(self.scrolled).take(visible));
            }
            (Some(node), None) => {
                lines.extend(table::head(node, since).into_iter().take(HEAD));
                let (rows, visible) = (table::rows(node), height.saturating_sub(lines.len() + 2));
                let mut table = table::lines(&rows, width).into_iter();
                lines.extend(table.next());
                let index = self.selected(&rows);
                let first = index.unwrap_or(0).saturating_sub(visible / 2).min(rows.len().saturating_sub(visible));
                lines.extend(table.enumerate().skip(first).take(visible).map(|(number, line)| match index {
                    Some(index) if index == number => Line { style: Style::Selected, ..line },
                    _ => line,
                }));
            }
        }
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::new("", Style::Plain));
        lines.push(Line::new(keys, Style::Quiet));
        lines.into_iter().map(|line| Line::new(fit(&line.text, width, false).trim_end(), line.style)).collect()
    }

    /// The node, the age of its data, and why the last poll failed.
    fn title(&self, since: Duration, width: usize) -> Vec<Line> {
        let limit = (3 * self.interval).max(Duration::from_secs(5));
        let (word, style) = match &self.node {
            None => ("waiting", Style::Heading),
            Some(_) if self.failure.is_none() && since <= limit => ("fresh", Style::Heading),
            Some(_) => ("STALE", Style::Alarm),
        };
        let name = self.node.as_ref().map_or_else(|| clean(&self.target), table::title);
        let word = format!(" {word}, {}", span(since.as_secs_f64()));
        let mut lines = vec![Line::new(fit(&name, width.saturating_sub(word.len()), false) + &word, style)];
        let failure = self.failure.iter().flat_map(|why| wrapped(&clean(why), width));
        lines.extend(failure.map(|line| Line::new(line, Style::Alarm)));
        lines
    }
}
