//! `podmeter demo`: starts the demo and prints where its page is.

use super::arguments::DemoArguments;
use super::{BIND, FAILED, Failed, block_on, logging, misused, print};
use crate::agent::{self, AgentError, DemoError, ListenAddress};

pub fn run(arguments: DemoArguments) -> Result<(), Failed> {
    let settings = arguments.settings().map_err(misused)?;
    let log = logging::start(agent::LogFormat::Text, "warn,podmeter=info");
    // A closed standard output does not end the demo.
    let opened = Box::new(move |page: &ListenAddress| drop(print(&text(page))));
    let outcome = block_on(agent::demo(settings, opened, log.dropped_lines()));
    log.finish();
    outcome?.map_err(|error| match error {
        DemoError::Agent(AgentError::Bind(error)) => Failed(BIND, error.to_string()),
        error => Failed(FAILED, error.to_string()),
    })
}

/// What `podmeter demo` prints once it listens on `page`.
fn text(page: &ListenAddress) -> String {
    let (url, scrape) = match page {
        ListenAddress::Tcp(address) => (format!("http://{address}/"), format!("curl -s http://{address}/metrics")),
        ListenAddress::Unix(path) => {
            let path = path.display();
            (format!("unix:{path}"), format!("curl -s --unix-socket {path} http://demo/metrics"))
        }
    };
    let top = match page {
        // What podmeter top tries by itself.
        ListenAddress::Tcp(address) if address.to_string() == "127.0.0.1:9410" => "podmeter top".to_owned(),
        ListenAddress::Tcp(address) => format!("podmeter top --url http://{address}"),
        ListenAddress::Unix(path) => format!("podmeter top --admin-socket {}", path.display()),
    };
    format!(
        "A simulated node with GPUs, a kubelet and pods. Open\n  \
         {url}\n      the page: which container holds which GPU, and which GPU is idle\n  \
         {top}\n      the same in another terminal\n  \
         {scrape} | grep idle_seconds\n      a metric: GPU-seconds held and not used, by container\n\
         Ctrl-C ends it and removes its files.\n\n"
    )
}

#[cfg(test)]
mod tests {

    #[test]
    fn the_demo_prints_where_its_page_is() {
        let text = |address: &str| super::text(&address.parse().unwrap());
        let usual = text("127.0.0.1:9410");
        assert!(usual.contains("  http://127.0.0.1:9410/\n") && usual.contains("  podmeter top\n"), "{usual}");
        assert!(text("127.0.0.1:9499").contains("  podmeter top --url http://127.0.0.1:9499\n"));
        assert!(text("unix:/tmp/x").contains("  podmeter top --admin-socket /tmp/x\n"));
        assert!(usual.lines().all(|line| line.chars().count() <= 80), "{usual}");
    }
}
