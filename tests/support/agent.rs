//! The real binary, started and scraped over HTTP.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::polling::{PATIENCE, poll, until_true};

/// The binary that cargo built with the tests, or the one that `PODMETER_BINARY` names.
pub fn binary() -> PathBuf {
    std::env::var_os("PODMETER_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_podmeter").into(), PathBuf::from)
}

/// A running podmeter. Dropping it kills it.
pub struct Running {
    child: Child,
    pub address: String,
    log: Arc<Mutex<String>>,
    /// Its log is not read.
    log_blocked: Arc<AtomicBool>,
    log_reader: JoinHandle<()>,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn read(mut stream: impl Read) -> Self {
        let mut bytes = vec![];
        stream.read_to_end(&mut bytes).expect("answered");
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { unchunked(body) } else { body.to_owned() };
        Self { status, head: head.to_owned(), body }
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n").expect("a chunk begins with its length");
        let length = usize::from_str_radix(length, 16).expect("a length in hexadecimal digits");
        if length == 0 {
            return whole;
        }
        whole.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").expect("a chunk ends with a line break");
    }
}

/// A request to whatever listens on this address.
pub fn get(address: &str, path: &str) -> Answer {
    get_with(address, path, "")
}

/// A connection whose reads and writes end at last.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("podmeter listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
    stream
}

fn get_with(address: &str, path: &str, headers: &str) -> Answer {
    let mut stream = connect(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n{headers}Connection: close\r\n\r\n").expect("sent");
    Answer::read(stream)
}

fn connect_to(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A command over an admin socket.
pub fn post(socket: &Path, path: &str, body: &str) -> Answer {
    let mut stream = connect_to(socket).expect("the admin socket is there");
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\nConnection: close");
    write!(stream, "{head}\r\n\r\n{body}").expect("sent");
    Answer::read(stream)
}

/// The error: no process listens on the socket.
pub fn get_over(socket: &Path, path: &str) -> std::io::Result<Answer> {
    let mut stream = connect_to(socket)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    Ok(Answer::read(stream))
}

/// Exit code, standard output and standard error of a program that ends by itself.
pub fn output(program: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("not killed"), text(&output.stdout), text(&output.stderr))
}

/// Exit code and all output of a command of podmeter that ends by itself.
pub fn ended(arguments: &[&str]) -> (i32, String) {
    let (code, out, err) = output(&binary(), arguments);
    (code, out + &err)
}

/// `podmeter agent` over this kubelet root, with no admin socket, on a free port.
pub fn agent(kubelet_root: &Path, arguments: &[&str], environment: &[(&str, PathBuf)]) -> Running {
    let root = kubelet_root.to_str().expect("a plain path");
    let mut all = vec!["agent", "--listen", "127.0.0.1:0", "--admin-socket", "none", "--kubelet-root", root];
    all.extend(arguments);
    Running::start(&all, environment, None)
}

/// For root another user, without rights.
fn unprivileged() -> Option<u32> {
    rustix::process::getuid().is_root().then_some(65534)
}

fn as_user(command: &mut Command, uid: Option<u32>) -> &mut Command {
    match uid {
        Some(uid) => command.uid(uid),
        None => command,
    }
}

/// In this directory: another user may have no access to the original.
fn copied_binary(directory: &Path) -> PathBuf {
    let binary_here = directory.join("podmeter");
    // By another process: a child that this one starts meanwhile would have the copy open for writing until it is executed.
    assert!(Command::new("cp").args([binary(), binary_here.clone()]).status().expect("cp").success());
    for path in [directory, &binary_here] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("an own file");
    }
    binary_here
}

impl Running {
    pub fn start(arguments: &[&str], environment: &[(&str, PathBuf)], uid: Option<u32>) -> Self {
        Self::start_binary(&binary(), arguments, environment, uid)
    }

    pub fn start_binary(binary: &Path, arguments: &[&str], environment: &[(&str, PathBuf)], uid: Option<u32>) -> Self {
        let mut command = Command::new(binary);
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child =
            as_user(&mut command, uid).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start podmeter");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let log = Arc::new(Mutex::new(String::new()));
        let mut address = None;
        while address.is_none() {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("the log is text");
            log.lock().expect("not poisoned").push_str(&line);
            assert!(read > 0, "ended before it listened:\n{}", log.lock().expect("not poisoned"));
            let shown = line.contains("listening").then(|| line.split("address=").nth(1)).flatten();
            address = shown.and_then(|rest| rest.split_whitespace().next()).map(ToOwned::to_owned);
        }
        let (following, log_blocked) = (Arc::clone(&log), Arc::<AtomicBool>::default());
        let blocked = Arc::clone(&log_blocked);
        let log_reader = std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                while blocked.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let mut log = following.lock().expect("not poisoned");
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, address: address.expect("found"), log, log_blocked, log_reader }
    }

    /// As a user without rights.
    pub fn start_unprivileged(directory: &Path, arguments: &[&str]) -> Self {
        Self::start_binary(&copied_binary(directory), arguments, &[], unprivileged())
    }

    /// Exit code and output where the user may have no further process or thread.
    pub fn ended_without_process_ids(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new("prlimit");
        command.arg("--nproc=1").arg(copied_binary(directory)).args(arguments);
        let output = as_user(&mut command, unprivileged()).output().expect("prlimit of util-linux");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// The process IDs of its user: with 1 it can start no thread. It must have been started unprivileged: the limit does not
    /// bind root.
    pub fn limit_process_ids(&self, limit: &str) {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &self.pid().to_string(), &format!("--nproc={limit}:")]);
        let status = as_user(&mut command, unprivileged()).status();
        assert!(status.expect("prlimit of util-linux").success());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops reading its log and fills the pipe.
    pub fn block_log(&self) {
        self.log_blocked.store(true, Ordering::Relaxed);
        // Another open file of the same pipe: the one of the process stays blocking.
        let mut pipe = std::fs::File::options();
        let pipe = pipe.write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let mut pipe = pipe.open(format!("/proc/{}/fd/2", self.pid())).expect("its standard error");
        // The reader may still read some before it stops.
        for _ in 0..20 {
            for piece in [&b"fills the pipe\n"[..], b"\n"] {
                while pipe.write(piece).is_ok() {}
                assert_eq!(pipe.write(piece).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn unblock_log(&self) {
        self.log_blocked.store(false, Ordering::Relaxed);
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("not poisoned").clone()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// The public JSON of the node.
    pub fn node(&self) -> Value {
        let body = self.get("/api/v1/node").body;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// `headers`: whole lines, each ending in CRLF.
    pub fn get_with(&self, path: &str, headers: &str) -> Answer {
        get_with(&self.address, path, headers)
    }

    pub fn metrics(&self) -> Page {
        Page(self.get("/metrics").body)
    }

    /// Scrapes until the page satisfies `condition`.
    pub fn until(&self, what: &str, condition: impl Fn(&Page) -> bool) -> Page {
        let found = poll(|| Some(self.metrics()).filter(&condition));
        found.unwrap_or_else(|| panic!("never: {what}\nlog:\n{}\npage:\n{}", self.log(), self.metrics().0))
    }

    /// The log once it contains this text: it is read later than the pages show the cause.
    pub fn until_logged(&self, text: &str) -> String {
        let found = poll(|| Some(self.log()).filter(|log| log.contains(text)));
        found.unwrap_or_else(|| panic!("never logged: {text}\nlog:\n{}", self.log()))
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success(), "kill -s {name}");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }

    /// Until it has ended, and its whole log is read where that is not blocked.
    pub fn wait(&mut self) -> ExitStatus {
        let ended = poll(|| self.child.try_wait().expect("a child"));
        let status = ended.unwrap_or_else(|| panic!("does not end:\n{}", self.log()));
        let is_blocked = || self.log_blocked.load(Ordering::Relaxed);
        until_true("the end of the log", || is_blocked() || self.log_reader.is_finished());
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page in text 0.0.4.
pub struct Page(pub String);

impl Page {
    /// The samples of `name` whose labels contain every one of `labels` (each as `key="value"`).
    pub fn samples<'a>(&'a self, name: &'a str, labels: &'a [&'a str]) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
            let matches = series_name == name && labels.iter().all(|label| series_labels.contains(label));
            matches.then(|| (series_labels, value.parse().expect("a number")))
        })
    }

    /// The one sample that matches; `None` when there is none.
    pub fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let mut found = self.samples(name, labels);
        let first = found.next().map(|(_, value)| value);
        assert!(found.next().is_none(), "{name}{labels:?} is not one series:\n{}", self.0);
        first
    }

    pub fn count(&self, name: &str, labels: &[&str]) -> usize {
        self.samples(name, labels).count()
    }
}
