//! What a reader chooses: the window of the charts and the order of the containers. It is the query of the URL, so that
//! it works without JavaScript and links keep it.

use crate::history::Window;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub window: Window,
    pub sort: Sort,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    pub const COUNT: usize = Window::ALL.len() * Sort::ALL.len();

    /// Parameters of other names are ignored.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut view = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "window" => view.window = chosen(name, value, &Window::ALL, window_name)?,
                "sort" => view.sort = chosen(name, value, &Sort::ALL, Sort::name)?,
                _ => {}
            }
        }
        Ok(view)
    }

    /// A number below `COUNT`.
    pub fn index(self) -> usize {
        self.window as usize * Sort::ALL.len() + self.sort as usize
    }

    pub fn all() -> impl Iterator<Item = Self> {
        Window::ALL.into_iter().flat_map(|window| Sort::ALL.into_iter().map(move |sort| Self { window, sort }))
    }

    pub fn link(self) -> String {
        format!("/?window={}&sort={}", window_name(self.window), self.sort.name())
    }
}

impl Sort {
    const ALL: [Self; 6] = [Self::Idle, Self::Busy, Self::Memory, Self::Energy, Self::Held, Self::Name];

    const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Memory => "memory",
            Self::Energy => "energy",
            Self::Held => "held",
            Self::Name => "name",
        }
    }
}

const fn window_name(window: Window) -> &'static str {
    match window {
        Window::Minute => "1m",
        Window::FiveMinutes => "5m",
        Window::HalfHour => "30m",
    }
}

/// For people.
pub(super) const fn window_words(window: Window) -> &'static str {
    match window {
        Window::Minute => "last min",
        Window::FiveMinutes => "last 5 min",
        Window::HalfHour => "last 30 min",
    }
}

fn chosen<T: Copy>(name: &str, value: &str, all: &[T], name_of: fn(T) -> &'static str) -> Result<T, String> {
    all.iter().copied().find(|one| name_of(*one) == value).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|one| name_of(*one)).collect();
        format!("{name} must be one of {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_its_view() {
        for (number, view) in View::all().enumerate() {
            let link = view.link();
            assert_eq!(View::parse(link.split_once('?').unwrap().1), Ok(view));
            assert_eq!(view.index(), number);
        }
        assert_eq!(View::all().count(), View::COUNT);
        assert_eq!(View::parse("utm=x&window"), Ok(View::default()));
        assert_eq!(View::parse("window=2m"), Err("window must be one of 1m, 5m, 30m".to_owned()));
        assert!(View::parse("sort=<b>").unwrap_err().starts_with("sort must be one of idle, busy"));
    }
}
