/// The number of series on a page of metrics in text 0.0.4 that is one of ours.
pub fn check(text: &str) -> Result<usize, String> {
    const OURS: &str = "podmeter_build_info";
    if !text.ends_with('\n') {
        return Err("it does not end in a line feed: it is truncated".to_owned());
    }
    if !text.lines().any(|line| line.starts_with(OURS)) {
        return Err(format!("it has no {OURS}: another program listens there"));
    }
    Ok(text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_is_counted_and_another_is_refused() {
        let page = "# TYPE podmeter_build_info gauge\npodmeter_build_info{version=\"1\"} 1\n# TYPE x gauge\nx{a=\"1\"} 3\nx 4\n";
        assert_eq!(check(page), Ok(3));
        assert!(check("up 1\n").unwrap_err().contains("another program"));
        assert!(check(page.trim_end()).unwrap_err().contains("truncated"));
    }
}
