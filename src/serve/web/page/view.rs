//! What a reader chooses: the window of the charts and the order of the containers. It is the query of the URL, so that
//! it works without JavaScript and links keep it.

use crate::domain::history::Window;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct View {
    pub window: Window,
    pub sort: Sort,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    #[default]
    Idle,
    Busy,
    Memory,
    Energy,
    Held,
    Name,
}

impl View {
    /// Parameters of other names are ignored.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut view = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "window" => view.window = chosen(name, value, &WINDOWS)?,
                "sort" => view.sort = chosen(name, value, &SORTS)?,
                _ => {}
            }
        }
        Ok(view)
    }

    pub fn link(self) -> String {
        let (window, sort) = (WINDOWS[self.window as usize].1, SORTS[self.sort as usize].1);
        format!("/?window={window}&sort={sort}")
    }
}

/// In the order of their declaration.
const SORTS: [(Sort, &str); 6] = [
    (Sort::Idle, "idle"),
    (Sort::Busy, "busy"),
    (Sort::Memory, "memory"),
    (Sort::Energy, "energy"),
    (Sort::Held, "held"),
    (Sort::Name, "name"),
];
/// In the order of their declaration, as `SORTS`.
const WINDOWS: [(Window, &str); 3] = [(Window::Minute, "1m"), (Window::FiveMinutes, "5m"), (Window::HalfHour, "30m")];

/// For people.
pub(super) const fn window_words(window: Window) -> &'static str {
    match window {
        Window::Minute => "last min",
        Window::FiveMinutes => "last 5 min",
        Window::HalfHour => "last 30 min",
    }
}

fn chosen<T: Copy>(name: &str, value: &str, all: &[(T, &str)]) -> Result<T, String> {
    all.iter().find(|(_, known)| *known == value).map(|(one, _)| *one).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|(_, known)| *known).collect();
        format!("{name} must be one of {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_its_view() {
        for (window, _) in WINDOWS {
            for (sort, _) in SORTS {
                let view = View { window, sort };
                assert_eq!(View::parse(view.link().split_once('?').unwrap().1), Ok(view));
            }
        }
        assert_eq!(View::parse("utm=x&window"), Ok(View::default()));
        assert_eq!(View::parse("window=2m"), Err("window must be one of 1m, 5m, 30m".to_owned()));
        assert!(View::parse("sort=<b>").unwrap_err().starts_with("sort must be one of idle, busy"));
    }
}
