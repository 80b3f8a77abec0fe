//! `--web-config` with a real Prometheus server that scrapes over mutual TLS with a password while certificates are
//! renewed.

use crate::support::agent;
use crate::support::certificates;
use std::path::Path;

use crate::support::agent::Running;
use crate::support::certificates::Authority;
use crate::support::prometheus::Prometheus;

/// An agent that only clients with a certificate and a password may scrape.
fn start(directory: &Path, authority: &Authority) -> Running {
    authority.server().write(directory, "server");
    authority.client("scraper.example").write(directory, "client");
    std::fs::write(directory.join("ca.crt"), &authority.pem).unwrap();
    let hash = bcrypt::hash("secret", 10).unwrap();
    let text = format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  client_ca_file: ca.crt\n  \
         client_auth_type: RequireAndVerifyClientCert\n\
         http_server_config:\n  headers:\n    Strict-Transport-Security: max-age=60\nbasic_auth_users:\n  alice: {hash}\n"
    );
    let file = directory.join("web-config.yaml");
    std::fs::write(&file, text).unwrap();
    agent::agent(directory, &["--hardware=simulated", "--web-config", file.to_str().unwrap()], &[])
}

#[test]
fn prometheus_scrapes_while_certificates_are_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let running = start(directory.path(), &old);
    let inside = |name: &str| directory.path().join(name).display().to_string();
    let configuration = format!(
        "global: {{scrape_interval: 500ms}}\nscrape_configs:\n- job_name: podmeter\n  scheme: https\n  \
         tls_config: {{ca_file: {}, cert_file: {}, key_file: {}}}\n  basic_auth: {{username: alice, password: secret}}\n  \
         static_configs: [{{targets: [\"{}\"]}}]\n",
        inside("ca.crt"),
        inside("client.crt"),
        inside("client.key"),
        running.address
    );
    let prometheus = Prometheus::start(&configuration);
    prometheus.until("count(podmeter_device_power_watts)", |devices| devices == 8.0);
    // Another authority: handshakes with the old one fail, on either side.
    new.server().write(directory.path(), "server");
    new.client("scraper.example").write(directory.path(), "client");
    std::fs::write(directory.path().join("ca.crt"), &new.pem).unwrap();
    let renewed = prometheus.scalar("vector(time())").unwrap();
    prometheus.until("vector(time())", |now| now > renewed + 10.0);
    // Prometheus reads its files at each scrape and reconnects when they have changed.
    assert_eq!(prometheus.scalar("min_over_time(up[5s])"), Some(1.0));
    let status = |authority: &Authority| {
        let client = certificates::TlsClient::new(authority, Some(&authority.client("scraper.example")));
        client.status(&running.address, "/metrics", "")
    };
    assert_eq!(status(&new).unwrap(), 401, "a password is still needed");
    assert!(status(&old).is_err());
}
