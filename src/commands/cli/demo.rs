//! `podmeter demo`: starts the demo and prints where its page is.

use super::arguments::DemoArguments;
use super::{BIND, Failed, block_on, failed, logging, misused, print};
use crate::agent::{self, AgentError, DemoError, ListenAddress};
use crate::commands::client::DEFAULT_URL;

pub fn run(arguments: DemoArguments) -> Result<(), Failed> {
    let settings = arguments.settings().map_err(misused)?;
    let log = logging::start(agent::LogFormat::Text, "warn,podmeter=info").map_err(failed)?;
    // A closed standard output does not end the demo.
    let opened = Box::new(move |page: &ListenAddress| drop(print(&text(page))));
    let outcome = block_on(agent::demo(settings, opened, log.dropped_lines()));
    log.finish();
    outcome?.map_err(|error| match error {
        DemoError::Agent(AgentError::Bind(error)) => Failed(BIND, error.to_string()),
        error => failed(error),
    })
}

/// What `podmeter demo` prints once it listens on `page`.
fn text(page: &ListenAddress) -> String {
    let (url, target, top) = match page {
        ListenAddress::Tcp(address) => {
            let url = format!("http://{address}");
            // What podmeter top tries by itself.
            let option = if url == DEFAULT_URL { String::new() } else { format!(" --url {url}") };
            (format!("{url}/"), url, option)
        }
        ListenAddress::Unix(path) => {
            let path = path.display();
            (format!("unix:{path}"), format!("--unix-socket {path} http://demo"), format!(" --admin-socket {path}"))
        }
    };
    format!(
        "A simulated node with GPUs, a kubelet and pods. Open\n  \
         {url}\n      the page: which container holds which GPU, and which GPU is idle\n  \
         podmeter top{top}\n      the same in another terminal\n  \
         curl -s {target}/metrics | grep idle_seconds\n      a metric: GPU-seconds held and not used, by container\n\
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
