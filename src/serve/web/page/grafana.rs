//! Links to the dashboards of a Grafana, by the UIDs and variables that they have in `dashboards/`.

use std::fmt::Write as _;
use std::str::FromStr;

use hyper::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Where Grafana is served, without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrafanaUrl(String);

const WRONG: &str =
    "must be none, or an http or https URL without query and fragment, such as https://grafana.example.com";

impl FromStr for GrafanaUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Option<Uri> = text.parse().ok();
        let is_address = |uri: Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none();
        match uri.is_some_and(is_address) && !text.contains('#') {
            true => Ok(Self(text.trim_end_matches('/').to_owned())),
            false => Err(WRONG),
        }
    }
}

impl GrafanaUrl {
    pub(super) fn device(&self, gpu: &str) -> String {
        self.dashboard("podmeter-device", &[("gpu", gpu)])
    }

    pub(super) fn pod(&self, namespace: &str, pod: &str) -> String {
        self.dashboard("podmeter-namespace", &[("namespace", namespace), ("pod", pod)])
    }

    fn dashboard(&self, uid: &str, variables: &[(&str, &str)]) -> String {
        let mut url = format!("{}/d/{uid}", self.0);
        for (index, (name, value)) in variables.iter().enumerate() {
            let before = if index == 0 { '?' } else { '&' };
            let _ = write!(url, "{before}var-{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_host_and_no_query() {
        for text in ["https://grafana.example", "http://localhost:3000/grafana/"] {
            assert!(!text.parse::<GrafanaUrl>().unwrap().0.ends_with('/'));
        }
        for text in [
            "grafana.example",
            "/grafana",
            "javascript:alert(1)",
            "https://",
            "https://a/?orgId=1",
            "https://a/#b",
            "x",
        ] {
            assert!(text.parse::<GrafanaUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_dashboards_have_the_uids_and_variables_of_the_links() {
        let base: GrafanaUrl = "https://g/x/".parse().unwrap();
        let device = include_str!("../../../../dashboards/device.json");
        let namespace = include_str!("../../../../dashboards/namespace.json");
        for (link, dashboard) in [(base.device("GPU-1"), device), (base.pod("a b", "c&d"), namespace)] {
            let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
            let (path, query) = link.split_once('?').unwrap();
            assert_eq!(path, format!("https://g/x/d/{}", dashboard["uid"].as_str().unwrap()));
            for variable in query.split('&') {
                let name = variable.strip_prefix("var-").and_then(|rest| rest.split('=').next()).unwrap();
                let known = dashboard["templating"]["list"].as_array().unwrap();
                assert!(known.iter().any(|known| known["name"] == name), "{name}");
            }
        }
        assert!(base.pod("a b", "c&d").ends_with("?var-namespace=a%20b&var-pod=c%26d"));
    }
}
