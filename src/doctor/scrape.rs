use crate::client;

/// A page of metrics in text 0.0.4 that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub bytes: usize,
    pub families: usize,
    pub series: usize,
}

/// What every page of ours has.
const OURS: &str = "podmeter_build_info";

/// `Err`: the first thing wrong with it, with its line.
pub fn check(text: &str) -> Result<Page, String> {
    let page = client::Page::parse(text)?;
    if page.samples.iter().all(|sample| sample.name != OURS) {
        return Err(format!("it has no {OURS}: another program listens there"));
    }
    Ok(Page { bytes: text.len(), families: page.types.len(), series: page.samples.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_is_counted_and_another_is_refused() {
        let page = "# TYPE podmeter_build_info gauge\npodmeter_build_info{version=\"1\"} 1\n# TYPE x gauge\nx{a=\"1\"} 3\nx 4\n";
        assert_eq!(check(page), Ok(Page { bytes: page.len(), families: 2, series: 3 }));
        assert!(check("up 1\n").unwrap_err().contains("another program"));
        assert!(check("podmeter_build_info 1\n<html>\n").unwrap_err().contains("line 2"));
    }
}
