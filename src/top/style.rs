//! Colours that remain distinguishable with colour blindness, always with a word or sign beside them; and the signs.

use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthChar as _;

/// Of the 256 colours, readable on light and dark backgrounds: blue 33 and vermilion 166, distinguishable with every
/// common form of colour blindness.
const BLUE: Color = Color::Indexed(33);
const VERMILION: Color = Color::Indexed(166);

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LETTERS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// How to draw on this terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub colours: bool,
    /// Characters beyond ASCII.
    pub unicode: bool,
}

impl Look {
    /// From `NO_COLOR` (set and not empty: no colours) and the first of `LC_ALL`, `LC_CTYPE` and `LANG` that is set. A
    /// container usually has none of them, while the terminal uses UTF-8.
    pub fn of(environment: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let is_utf8 = |locale: String| locale.to_lowercase().replace('-', "").contains("utf8");
        Self { colours: set("NO_COLOR").is_none(), unicode: locale.is_none_or(is_utf8) }
    }

    pub fn alarm(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colours { style.fg(VERMILION) } else { style }
    }

    pub fn bars(self) -> Style {
        if self.colours { Style::new().fg(BLUE) } else { Style::new() }
    }

    pub fn heading(self, focused: bool) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        match (focused, self.colours) {
            (true, true) => style.fg(BLUE),
            (true, false) => style.add_modifier(Modifier::UNDERLINED),
            (false, _) => style,
        }
    }

    pub fn quiet(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// `text` with characters that this terminal shows, in the same number of columns.
    pub fn text(self, text: &str) -> String {
        if self.unicode || text.is_ascii() {
            return text.to_owned();
        }
        let plain = |letter: char| match letter {
            '✓' => "+",
            '✗' => "X",
            '…' => "~",
            '·' | '–' => "-",
            '↓' => "v",
            '↑' => "^",
            _ if letter.width() == Some(2) => "??",
            _ => "?",
        };
        text.chars()
            .map(|letter| if letter.is_ascii() { letter.to_string() } else { plain(letter).to_owned() })
            .collect()
    }

    /// One character for each value, 0 to 1, right-aligned in `columns`; an absent value is a blank, zero is not.
    pub fn bar(self, values: &[Option<f64>], columns: usize) -> String {
        let levels = if self.unicode { BLOCKS } else { LETTERS };
        let level = |value: f64| {
            let top = levels.len() - 1;
            levels[((value.clamp(0.0, 1.0) * top as f64).round() as usize).min(top)]
        };
        let shown = &values[values.len().saturating_sub(columns)..];
        let blanks = std::iter::repeat_n(' ', columns - shown.len());
        blanks.chain(shown.iter().map(|value| value.map_or(' ', level))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_the_style() {
        let look = |set: &[(&str, &str)]| {
            let set: std::collections::BTreeMap<_, _> = set.iter().copied().collect();
            let look = Look::of(|name| set.get(name).map(|value| (*value).to_owned()));
            (look.colours, look.unicode)
        };
        assert_eq!(look(&[]), (true, true));
        assert_eq!(look(&[("NO_COLOR", "1"), ("LANG", "de_DE.UTF-8")]), (false, true));
        assert_eq!(look(&[("NO_COLOR", ""), ("LANG", "C")]), (true, false));
        assert_eq!(look(&[("LC_ALL", "C.utf8"), ("LANG", "C")]), (true, true));
    }

    #[test]
    fn absent_is_blank_and_zero_is_not() {
        let look = Look { colours: true, unicode: true };
        assert_eq!(look.bar(&[Some(0.0), None, Some(0.5), Some(1.0), Some(f64::NAN)], 7), "  ▁ ▅█▁");
        assert_eq!(look.bar(&[Some(0.0), Some(9.0)], 1), "█");
        assert_eq!(Look { unicode: false, ..look }.bar(&[Some(0.0), Some(1.0)], 3), " _#");
        assert_eq!(look.bar(&[], 0), "");
    }
}
