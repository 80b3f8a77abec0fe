//! `podmeter conformance`: the binary on pages of this and other exporters, over HTTP and TLS, and its exit codes.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::support::agent;
use crate::support::certificates::Authority;
use crate::support::demo::Demo;

fn conformance(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(agent::binary()).arg("conformance").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn status<'a>(report: &'a Value, id: &str) -> &'a str {
    let line = report["lines"].as_array().unwrap().iter().find(|line| line["id"] == id).expect(id);
    line["status"].as_str().unwrap()
}

/// The URL of a server that answers each request with this.
fn serve(head: &'static str, body: &'static str) -> String {
    serve_once(head, head, body)
}

/// The URL of a server that answers the first request with `head`, and each further one with `later`.
fn serve_once(head: &'static str, later: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let head = if number == 0 { head } else { later };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        }
    });
    format!("http://{address}")
}

#[test]
fn the_demo_meets_each_requirement_that_a_page_can_show() {
    let demo = Demo::start(&[]);
    demo.until_held();
    demo.running.until("memory", |page| page.count("podmeter_device_memory_bytes", &["state=\"used\""]) == 8);
    for path in ["", "/metrics", "/metrics/dcgm?generation=4.8"] {
        let (code, json, error) = conformance(&[&(demo.url() + path), "-o", "json"]);
        assert_eq!(code, 0, "{path}: {json}{error}");
        let report: Value = serde_json::from_str(&json).unwrap();
        // The names of dcgm-exporter have their own units.
        let not_met = u8::from(path.contains("dcgm"));
        assert!(report["url"].as_str().unwrap().ends_with(path), "{json}");
        assert_eq!(
            (&report["schema"], &report["not_met"]),
            (&"podmeter.conformance/v1".into(), &not_met.into()),
            "{json}"
        );
        assert_eq!(report["accelerators"], 8, "{path}");
        for id in ["endpoint", "utilization", "memory", "temperature", "power"] {
            assert_eq!(status(&report, &format!("KAR-0059/{id}")), "met", "{path}: {id}");
        }
        assert_eq!(status(&report, "KAR-0049/isolation"), "cannot_be_checked");
    }
    let (code, text, _) = conformance(&[&demo.url()]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("KAR-0059/utilization (MUST): met\n") && !text.contains('\x1b'), "{text}");
    assert!(text.contains("any client that reaches the port gets the page"), "{text}");
}

#[test]
fn a_poor_page_is_not_met_and_no_page_is_another_exit_code() {
    let (code, text, error) =
        conformance(&[&serve("200 OK\r\nContent-Type: text/plain", "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 40\n")]);
    assert_eq!(code, 1, "{text}{error}");
    assert!(text.contains("KAR-0059/utilization (MUST): not met"), "{text}");
    assert!(error.contains("MUST is not met"), "{error}");
    for (url, part) in [
        (serve("404 Not Found", ""), "404 Not Found; is that the path"),
        (serve("301 Moved Permanently\r\nLocation: https://node-a/m", ""), "Permanently (https://node-a/m); is that"),
        (serve("401 Unauthorized", ""), "requires a password"),
        ("http://127.0.0.1:1".to_owned(), "cannot be fetched"),
        ("node-a".to_owned(), "not an http or https URL"),
    ] {
        let (code, text, error) = conformance(&[&url]);
        assert_eq!((code, &*text), (2, ""), "{url}: {error}");
        assert!(error.contains(part), "{url}: {error}");
    }
}

#[test]
fn tls_and_a_password_are_facts_of_the_report() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.server().write(directory.path(), "server");
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("ca.crt"), &authority.pem).unwrap();
    let hash = bcrypt::hash("open", 4).unwrap();
    let config = format!(
        "tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{ops: {hash}}}\n"
    );
    std::fs::write(file("web.yaml"), config).unwrap();
    std::fs::write(file("password"), "open\n").unwrap();
    let (web, ca, password) = (file("web.yaml"), file("ca.crt"), file("password"));
    let running = agent::agent(directory.path(), &["--hardware=simulated", "--web-config", &web], &[]);
    let url = format!("https://{}", running.address);
    let plain = format!("http://{}", running.address);
    for (arguments, part) in [(vec![&*plain], "does it serve https?"), (vec![&plain, "--ca-file", &ca], "for https")] {
        let (code, _, error) = conformance(&arguments);
        assert!(code == 2 && error.contains(part), "{code}: {error}");
    }
    let (code, _, error) = conformance(&[&url, "--ca-file", &ca]);
    assert!(code == 2 && error.contains("requires a password"), "{code}: {error}");
    let arguments = [&*url, "--ca-file", &ca, "--user", "ops", "--password-file", &password];
    let (_, text, error) = conformance(&arguments);
    assert!(text.contains("TLS, with a certificate that this client trusts"), "{text}{error}");
    assert!(text.contains("refused to a client without identity"), "{text}");
    // A failure is no protection.
    let failing = serve_once("200 OK", "503 Service Unavailable", "x 1\n");
    let (_, text, error) = conformance(&[&failing, "--user", "ops", "--password-file", &password]);
    assert!(text.contains("could not be checked without identity") && text.contains("503"), "{text}{error}");
}
