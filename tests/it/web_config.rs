//! `--web-config` on the real binary: TLS, client certificates, passwords, headers, and changes to all of them at run
//! time.

use crate::support::agent;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::support::agent::Running;
use crate::support::certificates::{Authority, SignedIdentity, TlsClient, basic};
use crate::support::polling::until_true;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

#[test]
fn pages_need_tls_and_a_password_and_have_the_headers() {
    let node = WebConfigNode::new(&format!(
        "{TLS}http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy: \"\"\n\
         basic_auth_users:\n  alice: {}\n",
        hash("secret")
    ));
    let running = node.start();
    let (address, client) = (&running.address, node.client());
    let (answer, shown) = client.get(address, "/metrics", &basic("alice", "secret")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("podmeter_build_info{"), "{answer}");
    assert!(
        answer.contains("\r\nx-frame-options: deny\r\n") && !answer.contains("content-security-policy"),
        "{answer}"
    );
    assert_eq!(shown, node.server.der());

    for path in ["/", "/metrics", "/-/healthy", "/nowhere"] {
        let (refused, _) = client.get(address, path, "").unwrap();
        assert!(refused.starts_with("HTTP/1.1 401 "), "{path}: {refused}");
        assert!(
            refused.contains("\r\nwww-authenticate: Basic\r\n") && refused.contains("\r\nx-frame-options: deny\r\n")
        );
    }
    for headers in [basic("alice", "wrong"), basic("bob", "secret"), "Authorization: Bearer secret\r\n".to_owned()] {
        assert_eq!(client.status(address, "/metrics", &headers).unwrap(), 401, "{headers}");
    }
    // Without TLS there is no response.
    let plain = std::panic::catch_unwind(|| agent::get(address, "/metrics").status);
    assert!(plain.is_err(), "{plain:?}");
    assert_eq!(client.status(address, "/-/healthy", &basic("alice", "secret")).unwrap(), 200);
}

#[test]
fn client_certificates_are_required_as_configured() {
    let node = WebConfigNode::new(TLS);
    let other_authority = Authority::new();
    let scraper = node.authority.client("scraper.example");
    let foreign = other_authority.client("scraper.example");
    let clients = [None, Some(&scraper), Some(&foreign)];
    let ca = "  client_ca_file: ca.crt\n";
    for (kind, more, let_in) in [
        ("NoClientCert", "", [true; 3]),
        ("VerifyClientCertIfGiven", ca, [true, true, false]),
        ("RequireAndVerifyClientCert", ca, [false, true, false]),
    ] {
        node.configure(&format!("{TLS}  client_auth_type: {kind}\n{more}"));
        let running = node.start();
        for versions in [rustls::ALL_VERSIONS, &[&rustls::version::TLS12]] {
            let answered = clients.map(|identity| {
                let client = TlsClient::with_versions(&node.authority, identity, versions);
                client.status(&running.address, "/metrics", "").is_ok_and(|status| status == 200)
            });
            assert_eq!(answered, let_in, "{kind} {more}, {} versions", versions.len());
        }
    }
}

#[test]
fn tls_versions_are_those_of_the_file() {
    let (new, old): (&[_], &[_]) = (&[&rustls::version::TLS13], &[&rustls::version::TLS12]);
    for (more, let_in) in [("  min_version: TLS13\n", [true, false]), ("  min_version: TLS12\n", [true, true])] {
        let node = WebConfigNode::new(&format!("{TLS}{more}"));
        let running = node.start();
        let answered = [new, old].map(|versions| {
            TlsClient::with_versions(&node.authority, None, versions).status(&running.address, "/", "").is_ok()
        });
        assert_eq!(answered, let_in, "{more}");
    }
}

#[test]
fn certificates_and_passwords_change_while_it_runs() {
    let with = |password: &str| format!("{TLS}basic_auth_users:\n  alice: {}\n", hash(password));
    let node = WebConfigNode::new(&with("first"));
    let running = node.start();
    let client = node.client();
    let first = client.get(&running.address, "/metrics", &basic("alice", "first")).unwrap();
    assert!(first.0.starts_with("HTTP/1.1 200"));

    let renewed = node.authority.server();
    renewed.write(node.path(), "server");
    until_true("the new certificate is shown", || {
        client.get(&running.address, "/", "").is_ok_and(|(_, shown)| shown == renewed.der())
    });
    node.configure(&with("second"));
    until_true("the new password counts", || {
        client.status(&running.address, "/metrics", &basic("alice", "second")).is_ok_and(|status| status == 200)
    });
    assert_eq!(client.status(&running.address, "/metrics", &basic("alice", "first")).unwrap(), 401);
}

#[test]
fn an_invalid_file_changes_nothing_and_is_logged_once_and_visible_in_the_metrics() {
    let valid = format!("{TLS}basic_auth_users:\n  alice: {}\n", hash("second"));
    let node = WebConfigNode::new(&valid);
    let (running, client) = (node.start(), node.client());
    let successful = |value: f64| {
        let (answer, _) = client.get(&running.address, "/metrics", &basic("alice", "second")).unwrap();
        answer.contains(&format!("podmeter_config_last_reload_successful {value}\n"))
    };
    assert!(successful(1.0));
    for (bad, output) in [
        ("tls_server_config: {cert_fil: x}\n", "unknown key `cert_fil`: did you mean `cert_file`?"),
        ("basic_auth_users: {}\n", "restart podmeter to serve plain HTTP"),
    ] {
        node.configure(bad);
        until_true("the metrics and the log show the invalid file", || {
            successful(0.0) && running.log().contains(output)
        });
        assert_eq!(client.status(&running.address, "/metrics", "").unwrap(), 401);
    }
    let log = running.log();
    assert_eq!(log.matches("unknown key `cert_fil`: did you mean `cert_file`?").count(), 1, "{log}");
    node.configure(&valid);
    until_true("the valid file counts", || successful(1.0));
}

#[test]
fn a_connection_ends_when_its_client_needs_a_certificate_and_not_for_an_equal_file() {
    let node = WebConfigNode::new(TLS);
    let running = node.start();
    let mut kept = node.client().connect(&running.address);
    let mut answers = || {
        write!(kept, "GET /-/healthy HTTP/1.1\r\nHost: test\r\n\r\n")?;
        let (mut answer, mut piece) = (String::new(), [0; 1024]);
        while !answer.contains("\r\n\r\nhealthy") {
            match kept.read(&mut piece)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => answer.push_str(std::str::from_utf8(&piece[..count]).unwrap()),
            }
        }
        std::io::Result::Ok(())
    };
    answers().unwrap();
    let readings = || running.log().matches("web configuration re-read").count();
    node.configure(TLS);
    until_true("the equal file is read", || readings() == 1);
    answers().unwrap();
    node.configure(&format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"));
    until_true("the connection ends", || answers().is_err());
    assert_eq!(readings(), 2);
    assert!(node.client().status(&running.address, "/metrics", "").is_err());
}

/// The file may have been read while it was written.
#[test]
fn clients_need_certificates_until_a_restart() {
    let node =
        WebConfigNode::new(&format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"));
    let running = node.start();
    node.configure(TLS);
    until_true("the refusal is logged", || running.log().contains("restart podmeter to serve clients without them"));
    assert!(node.client().status(&running.address, "/metrics", "").is_err());
}

#[test]
fn commands_use_the_authority_and_a_password() {
    let node = WebConfigNode::new(&format!("{TLS}basic_auth_users:\n  alice: {}\n", hash("secret")));
    let running = node.start();
    std::fs::write(node.at("password"), "secret\n").unwrap();
    let (url, ca, password) = (format!("https://{}", running.address), node.at("ca.crt"), node.at("password"));
    let all = ["--url", &url, "--ca-file", &ca, "--user", "alice", "--password-file", &password];
    for (command, part) in [
        (&["top", "--once"][..], "0 GPUs"),
        (&["record"], "\"podmeter.record/"),
        (&["usage", "-o", "json"], "\"since\""),
        (&["doctor", "-o", "json"], &format!("on {url}\"")),
    ] {
        let (_, text) = agent::ended(&[command, &all].concat());
        assert!(text.contains(part), "{command:?}: {text}");
    }
}

#[test]
fn commands_name_the_missing_or_wrong_credential() {
    let node = WebConfigNode::new(&format!("{TLS}basic_auth_users:\n  alice: {}\n", hash("secret")));
    let running = node.start();
    std::fs::write(node.at("wrong"), "sesame\n").unwrap();
    let (url, ca, wrong) = (format!("https://{}", running.address), node.at("ca.crt"), node.at("wrong"));
    let other_name = url.replace("127.0.0.1", "0.0.0.0");
    let plain = url.replace("https", "http");
    let (user, key) = (["--user", "alice", "--password-file"], node.at("server.key"));
    for (arguments, code, part) in [
        (vec!["--url", &url], 1, "--ca-file"),
        (vec!["--url", &url, "--ca-file", &ca], 1, "requires a password: give --user"),
        ([&["--url", &url, "--ca-file", &ca][..], &user, &[&wrong]].concat(), 1, "refuses this user or password"),
        (vec!["--url", &other_name, "--ca-file", &ca], 1, "for another name"),
        (vec!["--url", &plain], 1, "does it serve https?"),
        (vec!["--url", &url, "--ca-file", &key], 2, "no certificate in PEM"),
        (vec!["--url", &url, "--user", "alice"], 2, "--password-file"),
        (vec!["--ca-file", &ca], 2, "--url"),
    ] {
        let (ended, text) = agent::ended(&[&["top", "--once"], &arguments[..]].concat());
        assert!(ended == code && text.contains(part), "{arguments:?}: {ended}, {text}");
    }
}

#[test]
fn commands_use_a_client_certificate() {
    let node =
        WebConfigNode::new(&format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"));
    let running = node.start();
    let (url, ca) = (format!("https://{}", running.address), node.at("ca.crt"));
    node.authority.client("operator").write(node.path(), "operator");
    let (certificate, key) = (node.at("operator.crt"), node.at("operator.key"));
    let without = ["top", "--once", "--url", &url, "--ca-file", &ca];
    let (code, text) = agent::ended(&without);
    assert!(code == 1 && text.contains("give --cert-file and --key-file"), "{text}");
    let (code, text) = agent::ended(&[&without[..], &["--cert-file", &certificate, "--key-file", &key]].concat());
    assert!(code == 0, "{text}");
    let (code, text) = agent::ended(&[&without[..], &["--cert-file", &certificate, "--key-file", &ca]].concat());
    assert!(code == 2 && text.contains("no private key in PEM"), "{text}");
}

/// As the kubelet updates a mounted Secret: it replaces the link `..data`.
#[test]
fn an_updated_secret_is_read_again() {
    let node = WebConfigNode::new(TLS);
    let mount = node.path().join("mount");
    let version = |name: &str, identity: &SignedIdentity| {
        let directory = mount.join(name);
        std::fs::create_dir_all(&directory).unwrap();
        identity.write(&directory, "server");
        std::fs::write(directory.join("web-config.yaml"), TLS).unwrap();
        let link = mount.join("..data_tmp");
        std::os::unix::fs::symlink(name, &link).unwrap();
        std::fs::rename(link, mount.join("..data")).unwrap();
    };
    version("..1", &node.server);
    for file in ["web-config.yaml", "server.crt", "server.key"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), mount.join(file)).unwrap();
    }
    let file = mount.join("web-config.yaml");
    let running =
        agent::agent(node.path(), &["--hardware=none", "--device-plugin=off"], &[("PODMETER_WEB_CONFIG", file)]);
    let client = node.client();
    assert_eq!(client.get(&running.address, "/", "").unwrap().1, node.server.der());
    let renewed = node.authority.server();
    version("..2", &renewed);
    until_true("the new certificate is shown", || client.get(&running.address, "/", "").unwrap().1 == renewed.der());
}

#[test]
fn the_kubelet_and_the_admin_socket_need_no_certificate() {
    let node =
        WebConfigNode::new(&format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"));
    let (probes, admin) = (node.path().join("probes.sock"), node.path().join("admin.sock"));
    let (probe_listen, file) = (format!("unix:{}", probes.display()), node.file());
    let arguments = ["agent", "--listen=127.0.0.1:0", "--hardware=none", "--device-plugin=off", "--kubelet-root"];
    let more = [node.path(), &file, Path::new(&probe_listen), &admin].map(|path| path.to_str().unwrap());
    let more = [more[0], "--web-config", more[1], "--probe-listen", more[2], "--admin-socket", more[3]];
    let running = Running::start(&[&arguments[..], &more].concat(), &[], None);
    let status = |path: &str| agent::get_over(&probes, path).unwrap().status;
    assert_eq!(status("/-/healthy"), 200);
    until_true("ready", || status("/-/ready") == 200);
    for path in ["/", "/metrics", "/api/v1/node"] {
        assert_eq!(status(path), 404, "{path}");
    }
    assert_eq!(agent::post(&admin, "/mark", "{}").status, 400, "the socket answers without TLS");
    assert!(node.client().status(&running.address, "/metrics", "").is_err());
}

/// Each with parts of its error.
fn invalid_files(key: &str) -> Vec<(String, Vec<&'static str>)> {
    let inline = |key: &str| key.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let colon = "basic_auth_users:\n  \"a:b\": x\n";
    let cost = format!("basic_auth_users:\n  a: {}\n", hash("x").replacen("$04$", "$31$", 1));
    vec![
        ("tls_server_config: {cert_file: server.crt, cert_fil: x}\n".to_owned(), vec!["cert_fil", "line 1"]),
        ("tls_server_config: {cert_file: server.crt}\n".to_owned(), vec!["key_file is missing"]),
        ("tls_server_config: {min_version: TLS13}\n".to_owned(), vec!["cert_file is missing"]),
        ("tls_server_config: {cert_file: no.crt, key_file: server.key}\n".to_owned(), vec!["no.crt", "No such file"]),
        (
            "tls_server_config: {cert_file: server.key, key_file: server.key}\n".to_owned(),
            vec!["no certificate in PEM"],
        ),
        ("tls_server_config: {cert_file: ca.crt, key_file: server.key}\n".to_owned(), vec!["do not match"]),
        (format!("{TLS}  client_ca_file: ca.crt\n"), vec!["client_ca_file without a client_auth_type"]),
        (format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n"), vec!["needs client_ca_file"]),
        (
            format!("{TLS}  client_auth_type: RequireAnyClientCert\n"),
            vec!["must be one of", "RequireAndVerifyClientCert", "line 4"],
        ),
        (format!("{TLS}  min_version: TLS11\n"), vec!["must be one of", "TLS12", "TLS13", "line 4"]),
        // Keys of the exporter toolkit that podmeter does not have.
        (format!("{TLS}  client_allowed_sans: [a]\n"), vec!["`client_allowed_sans`", "client_auth_type, min_version"]),
        (format!("{TLS}  cipher_suites: []\n"), vec!["`cipher_suites`", "there are cert_file, key_file"]),
        ("http_server_config: {http2: false}\n".to_owned(), vec!["`http2`", "there are headers"]),
        ("rate_limit: {}\n".to_owned(), vec!["`rate_limit`", "there are tls_server_config, http_server_config"]),
        ("http_server_config: {headers: {Server: x}}\n".to_owned(), vec!["Server", "X-Frame-Options"]),
        ("http_server_config: {headers: {X-Frame-Options: maybe}}\n".to_owned(), vec!["sameorigin"]),
        ("basic_auth_users: {a: plain}\n".to_owned(), vec!["basic_auth_users.a", "htpasswd"]),
        (colon.to_owned(), vec!["colon"]),
        (cost, vec!["cost is 31"]),
        // Secrets near an error are not in its message.
        (format!("tls_server_config:\n  key: |\n{}", inline(key)), vec!["`key`", "key_file"]),
    ]
}

#[test]
fn an_invalid_file_at_the_start_is_exit_code_2() {
    let node = WebConfigNode::new("");
    let (file, root) = (node.file(), node.path().to_str().unwrap().to_owned());
    let secret = node.server.key.lines().nth(1).unwrap();
    for (text, parts) in invalid_files(&node.server.key) {
        node.configure(&text);
        let path = file.to_str().unwrap();
        let start = ["agent", "--listen", "127.0.0.1:0", "--kubelet-root", &root, "--web-config", path];
        for arguments in [&start[..], &["check-config", "--web-config", path]] {
            let (code, output) = agent::ended(arguments);
            assert_eq!(code, 2, "{text}: {output}");
            for part in parts.iter().chain([&path]) {
                assert!(output.contains(part), "{text}: {part:?} in {output}");
            }
            assert!(!output.contains(secret), "{output}");
        }
    }
}

#[test]
fn check_config_reads_the_configuration_and_the_web_configuration() {
    let node = WebConfigNode::new(&format!("basic_auth_users: {{a: {}}}\n", hash("x")));
    let (code, output) = agent::ended(&["check-config", "--web-config", node.file().to_str().unwrap()]);
    assert!(code == 0 && output.contains("plain text") && output.contains(": valid\n"), "{output}");
    let config = node.path().join("podmeter.yaml");
    std::fs::write(&config, "refreshInterval: 5s\n").unwrap();
    let valid = (0, format!("{}: valid\n", config.display()));
    assert_eq!(agent::ended(&["check-config", config.to_str().unwrap()]), valid);
    std::fs::write(&config, format!("webConfig: {}\n", node.path().join("none.yaml").display())).unwrap();
    let (code, output) = agent::ended(&["check-config", config.to_str().unwrap()]);
    assert!(code == 2 && output.contains("none.yaml"), "{output}");
}

/// A directory with a server's certificate and a web configuration.
struct WebConfigNode {
    directory: tempfile::TempDir,
    authority: Authority,
    server: SignedIdentity,
}

impl WebConfigNode {
    fn new(web_config: &str) -> Self {
        let authority = Authority::new();
        let node = Self { directory: tempfile::tempdir().unwrap(), server: authority.server(), authority };
        node.server.write(node.path(), "server");
        std::fs::write(node.path().join("ca.crt"), &node.authority.pem).unwrap();
        node.configure(web_config);
        node
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The path of a file in it.
    fn at(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self) -> PathBuf {
        self.path().join("web-config.yaml")
    }

    fn configure(&self, web_config: &str) {
        let next = self.file().with_extension("next");
        std::fs::write(&next, web_config).unwrap();
        std::fs::rename(next, self.file()).unwrap();
    }

    fn start(&self) -> Running {
        let file = self.file();
        let arguments = ["--hardware=none", "--device-plugin=off", "--web-config", file.to_str().unwrap()];
        agent::agent(self.path(), &arguments, &[])
    }

    fn client(&self) -> TlsClient {
        TlsClient::new(&self.authority, None)
    }
}

impl SignedIdentity {
    fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap().to_vec()
    }
}

fn hash(password: &str) -> String {
    bcrypt::hash(password, 4).unwrap()
}
