//! What a reader chooses: the window of the charts, the filter, and the order and rows of the containers. It is the
//! query of the URL, so that it works without JavaScript and links keep it.

use std::str::FromStr;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use strum::{EnumString, IntoStaticStr, VariantNames};

use super::filter::Filter;
use crate::domain::history::Window;

/// The rows of containers on one page.
pub const ROWS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct View {
    pub window: Window,
    pub sort: Sort,
    pub filter: Filter,
    /// The first row of the containers: a multiple of `ROWS`.
    pub from: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
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
    /// Reads the query of a URL; parameters of other names are ignored.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut view = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "window" => view.window = chosen(name, value)?,
                "sort" => view.sort = chosen(name, value)?,
                // Forms encode a space as `+`.
                "filter" => {
                    view.filter = Filter::new(&percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy())?;
                }
                "from" => {
                    let row: usize = value.parse().map_err(|_| "from must be a number of rows".to_owned())?;
                    view.from = row / ROWS * ROWS;
                }
                _ => {}
            }
        }
        Ok(view)
    }

    pub fn with_window(&self, window: Window) -> Self {
        Self { window, ..self.clone() }
    }

    /// The view in another order, from the first row.
    pub fn with_sort(&self, sort: Sort) -> Self {
        Self { sort, from: 0, ..self.clone() }
    }

    pub fn with_from(&self, from: usize) -> Self {
        Self { from, ..self.clone() }
    }

    /// The query parameters of window and order.
    pub fn names(&self) -> [(&'static str, &'static str); 2] {
        [("window", self.window.into()), ("sort", self.sort.into())]
    }

    pub fn link(&self) -> String {
        let [(_, window), (_, sort)] = self.names();
        let mut link = format!("/?window={window}&sort={sort}");
        if !self.filter.is_empty() {
            link += &format!("&filter={}", utf8_percent_encode(self.filter.text(), NON_ALPHANUMERIC));
        }
        if self.from > 0 {
            link += &format!("&from={}", self.from);
        }
        link
    }
}

/// The name of the window on the page.
pub(super) const fn window_words(window: Window) -> &'static str {
    match window {
        Window::Minute => "last min",
        Window::FiveMinutes => "last 5 min",
        Window::HalfHour => "last 30 min",
    }
}

fn chosen<T: FromStr + VariantNames>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} must be one of {}", T::VARIANTS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_its_view() {
        for window in Window::ALL {
            for (number, sort) in Sort::VARIANTS.iter().enumerate() {
                let sort = sort.parse().unwrap();
                let filter = Filter::new(["", "namespace:ml&", "a b+c"][number % 3]).unwrap();
                let view = View { window, sort, filter, from: number * ROWS };
                assert_eq!(View::parse(view.link().split_once('?').unwrap().1), Ok(view));
            }
        }
        assert_eq!(View::parse("utm=x&window"), Ok(View::default()));
        assert_eq!(View::parse("filter=pod%3Aa+b").unwrap().filter.text(), "pod:a b");
        assert_eq!(View::parse("from=65").unwrap().from, ROWS);
        assert!(View::parse("from=-1").is_err());
        assert_eq!(View::parse("window=2m"), Err("window must be one of 1m, 5m, 30m".to_owned()));
        assert!(View::parse("sort=<b>").unwrap_err().starts_with("sort must be one of idle, busy"));
    }
}
