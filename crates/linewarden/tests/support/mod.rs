//! Processes and network namespaces of a test's own.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use linewarden_lab::address::Mac;
use linewarden_lab::netns::NetNs;
use linewarden_lab::topology::Interface;
use linewarden_lab::xdp_pass::XdpPass;
use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_linewarden");
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace, held by a process, so that interfaces can be moved into it.
pub struct Namespace {
    holder: Running,
    inside: NetNs,
}

impl Namespace {
    /// `None` without the privilege or the programs.
    pub fn new() -> Option<Self> {
        let script = "ip link set lo up && echo up && exec sleep 600";
        let child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut holder = Running(child);
        let mut line = String::new();
        BufReader::new(holder.0.stdout.take()?)
            .read_line(&mut line)
            .ok()?;
        let file = File::open(format!("/proc/{}/ns/net", holder.0.id())).ok()?;
        let inside = NetNs::from_fd(file.into());
        (line == "up\n").then_some(Self { holder, inside })
    }

    pub fn pid(&self) -> u32 {
        self.holder.0.id()
    }

    /// Runs a program to its end, and gives what it printed.
    #[track_caller]
    pub fn run(&self, at: &Path, words: &str) -> String {
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        let command = command.args(words).current_dir(at);
        let output = self.inside.run(|| command.output().unwrap()).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts `linewarden` with these words.
    pub fn start(&self, at: &Path, words: &str) -> Process {
        let mut command = Command::new(PROGRAM);
        command
            .args(words.split_whitespace())
            .current_dir(at)
            .stdout(Stdio::piped());
        let mut child = self.inside.run(|| command.spawn().unwrap()).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Process {
            _child: Running(child),
            lines,
            counters: RefCell::default(),
        }
    }

    /// Has this end of a veth take what the gateway at the other end answers by XDP, as long as it is held.
    pub fn accept_xdp(&self, at: &Path, name: &str) -> XdpPass {
        let shown = self.run(at, &format!("ip -o link show dev {name}"));
        let (index, _) = shown.split_once(':').unwrap();
        let interface = Interface {
            name: name.to_owned(),
            index: index.parse().unwrap(),
            mac: Mac([0; 6]),
        };
        XdpPass::attach(&self.inside, &interface).unwrap()
    }

    pub fn socket(&self, at: SocketAddr) -> UdpSocket {
        let socket = self.inside.run(|| UdpSocket::bind(at).unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Sends everything back that comes, as long as the test runs.
    pub fn echo(&self, at: SocketAddr) {
        let socket = self.socket(at);
        socket.set_read_timeout(None).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..bytes], from);
            }
        });
    }
}

/// A process whose standard output is lines of JSON.
pub struct Process {
    _child: Running,
    lines: Receiver<Value>,
    /// The last ones that were printed: a gateway prints them when they change.
    counters: RefCell<Value>,
}

impl Process {
    #[track_caller]
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let (until, mut seen) = (Instant::now() + PATIENCE, Vec::new());
        while let Ok(line) = self
            .lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if line["counters"].is_object() {
                self.counters.replace(line["counters"].clone());
            }
            if wanted(&line) {
                return line;
            }
            seen.push(line);
        }
        panic!("no {what}: {seen:#?}");
    }

    #[track_caller]
    pub fn event(&self, name: &str) -> Value {
        self.wait_for(name, |line| line["event"] == name)
    }

    /// What a gateway had counted of a verdict when it last said so.
    pub fn count(&self, verdict: &str) -> u64 {
        self.counters.borrow()[verdict].as_u64().unwrap_or(0)
    }

    /// Waits until the gateway has counted so many of a verdict.
    #[track_caller]
    pub fn wait_for_count(&self, verdict: &str, count: u64) {
        if self.count(verdict) < count {
            self.wait_for(verdict, |_| self.count(verdict) >= count);
        }
    }
}

/// What is sent there comes back.
#[track_caller]
pub fn echoed(from: &UdpSocket, to: SocketAddr) {
    let payload = b"a measurement";
    from.send_to(payload, to).unwrap();
    let mut buffer = [0; 256];
    let bytes = from.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..bytes], *payload);
}
