//! Compares podmeter with nginx, which serves the same bytes from a file: two workers, sendfile, open file cache, no
//! access log.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::beside::{Other, Side, compare, free_port};
use crate::load::Load;
use crate::measure::{Connection, GZIP};
use crate::{Bench, exporter};

const ROUNDS: usize = 7;
/// Half of podmeter's default connection limit.
const LOAD: Load = Load { connections: 32, seconds: 2, header: "Accept: text/plain" };

pub fn measure(bench: &Bench) {
    let running = exporter(&bench.usual_node(), &bench.driver);
    let plain = Connection::open(&running.address).bytes();
    let packed = Connection::open_with(&running.address, GZIP).bytes();
    let nginx = Nginx::start(&plain, &packed);
    let sides = [&Side::ours(&running), &nginx.side()];
    compare(&format!("the same page, {} bytes", plain.len()), sides, LOAD, ROUNDS, "≥ 0.9");
    let load = Load { header: "Accept-Encoding: gzip", ..LOAD };
    compare(&format!("the same page with gzip, {} bytes", packed.len()), sides, load, ROUNDS, "≥ 0.9");
}

struct Nginx {
    other: Other,
    port: u16,
    _folder: TempDir,
}

impl Nginx {
    fn start(plain: &[u8], packed: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("page"), plain).unwrap();
        std::fs::write(folder.path().join("page.gz"), packed).unwrap();
        let port = free_port();
        let configuration = folder.path().join("nginx.conf");
        std::fs::write(&configuration, configured(root, port)).unwrap();
        // Debian installs it in a directory of root's PATH only.
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut other = Other::start(Command::new("sh").env("PATH", path).args([
            "-c",
            "exec nginx -p \"$0\" -c \"$0/nginx.conf\"",
            root,
        ]));
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(other.is_running(), "nginx has exited");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { other, port, _folder: folder }
    }

    fn side(&self) -> Side {
        let url = format!("http://127.0.0.1:{}/page", self.port);
        Side { name: "nginx".to_owned(), url, pid: self.other.pid() }
    }
}

fn configured(root: &str, port: u16) -> String {
    // A worker with another uid could not read the page.
    let user = if rustix::process::getuid().is_root() { "user root root;" } else { "" };
    let scratch: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {root}/{kind};\n"))
        .concat();
    format!(
        "{user}
daemon off;
worker_processes 2;
pid {root}/nginx.pid;
error_log {root}/error.log;
events {{ worker_connections 1024; }}
http {{
{scratch}    access_log off;
    sendfile on;
    tcp_nopush on;
    open_file_cache max=16 inactive=1h;
    open_file_cache_valid 1h;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    gzip_static on;
    default_type text/plain;
    server {{
        # One accept queue per worker, so that both get connections.
        listen 127.0.0.1:{port} reuseport;
        root {root};
    }}
}}
"
    )
}
