//! Two devices that talk to each other as their users run them: gateway and both agents in network namespaces of their
//! own, the gateway routing between two segments.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_linewarden");
const PATIENCE: Duration = Duration::from_secs(60);
/// Sends a line to a peer's listener and prints what comes back; the other end answers.
const ASK: &str = "import socket,sys\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(60)\n\
    s.sendto(b'how do you do', ('127.0.0.1', 6000))\nprint(s.recv(2000).decode())\n";
const ANSWER: &str = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('127.0.0.1', 6001))\n\
    print('up', flush=True)\nwhile True:\n  d,a=s.recvfrom(2000)\n  s.sendto(d[::-1],a)\n";

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace, held by a process.
struct Namespace(Running);

impl Namespace {
    fn new() -> Option<Self> {
        let script = "ip link set lo up && echo up && exec sleep 600";
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        (line == "up\n").then_some(Self(Running(child)))
    }

    fn pid(&self) -> u32 {
        self.0.0.id()
    }

    fn command(&self, program: &str, at: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--net", "--target", &self.pid().to_string(), program])
            .current_dir(at);
        command
    }

    #[track_caller]
    fn run(&self, at: &Path, words: &str) -> String {
        let mut words = words.split_whitespace();
        let mut command = self.command(words.next().unwrap(), at);
        let output = command.args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, at: &Path, words: &str) -> Process {
        let mut command = self.command(PROGRAM, at);
        command.args(words.split_whitespace()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
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
        }
    }
}

/// A process whose standard output is lines of JSON.
struct Process {
    _child: Running,
    lines: Receiver<Value>,
}

impl Process {
    #[track_caller]
    fn wait_for(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let (until, mut seen) = (Instant::now() + PATIENCE, Vec::new());
        while let Ok(line) = self
            .lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if wanted(&line) {
                return line;
            }
            seen.push(line);
        }
        panic!("not told: {seen:#?}");
    }

    #[track_caller]
    fn event(&self, name: &str) -> Value {
        self.wait_for(|line| line["event"] == name)
    }
}

/// Gateway between segments 1 and 2, a device in each.
struct Site {
    a: Process,
    b: Process,
    _gateway: Process,
    _answerer: Running,
    inside: [Namespace; 3],
    directory: tempfile::TempDir,
}

impl Site {
    fn new(dataplane: &str) -> Option<Self> {
        let inside = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let [gateway, a, b] = &inside;
        for (n, device) in [(1, a), (2, b)] {
            gateway.run(
                at,
                &format!("ip link add v{n} type veth peer name dev netns {}", device.pid()),
            );
            gateway.run(at, &format!("ip addr add 10.9.{n}.1/24 dev v{n}"));
            gateway.run(at, &format!("ip link set v{n} up"));
            device.run(at, &format!("ip addr add 10.9.{n}.2/24 dev dev"));
            device.run(at, "ip link set dev dev up");
            device.run(at, &format!("ip route add default via 10.9.{n}.1"));
            device.run(at, "ethtool -K dev tx off");
        }
        gateway.run(at, "sysctl -q -w net.ipv4.ip_forward=1");
        std::fs::write(
            at.join("gateway.toml"),
            format!(
                "[gateway]\nid = 5\n{dataplane}\naddresses = [\"10.9.1.1\", \"10.9.2.1\"]\nslots = 16\n\
                 when_gone = \"open\"\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n"
            ),
        )
        .unwrap();
        let lw = |words: &str| gateway.run(at, &format!("{PROGRAM} {words}"));
        lw("registry create --registry fleet.registry --key-file master.key");
        for id in ["d1", "d2"] {
            lw(&format!(
                "device enroll simulated --device {id} --rows 40 --out devices --config gateway.toml"
            ));
        }
        for (id, peer) in [("d1", "d2"), ("d2", "d1")] {
            let file = at.join(format!("devices/00000000000000{id}.toml"));
            let config = std::fs::read_to_string(&file).unwrap();
            let more = format!(
                "\n[[peer]]\ndevice = \"{peer}\"\nlisten = \"127.0.0.1:6000\"\n{}",
                if id == "d2" {
                    "deliver = \"127.0.0.1:6001\"\n"
                } else {
                    ""
                }
            );
            std::fs::write(&file, config + &more).unwrap();
        }
        let serving = gateway.start(at, "serve --config gateway.toml --json --every 1");
        serving.wait_for(|line| line["loaded"] == true);
        let mut answerer = b.command("python3", at);
        let mut answerer = answerer
            .args(["-c", ANSWER])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(answerer.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let agent = |n: u32, namespace: &Namespace| {
            let words = format!("agent --config devices/00000000000000d{n}.toml --gateway 10.9.{n}.1 --json");
            let agent = namespace.start(at, &words);
            agent.event("authenticated");
            agent
        };
        Some(Self {
            a: agent(1, a),
            b: agent(2, b),
            _gateway: serving,
            _answerer: Running(answerer),
            inside,
            directory,
        })
    }

    fn run(&self, words: &str) {
        let [gateway, ..] = &self.inside;
        gateway.run(self.directory.path(), &format!("{PROGRAM} {words}"));
    }

    /// A program at the first device asks one at the second, and gets its answer.
    #[track_caller]
    fn converse(&self) {
        let [_, a, _] = &self.inside;
        let mut command = a.command("python3", self.directory.path());
        let output = command.args(["-c", ASK]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            said,
            "od uoy od woh\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn story(dataplane: &str, close: &str) {
    let Some(site) = Site::new(dataplane) else {
        println!("SKIPPED: no root, or no unshare, nsenter, ip and ethtool");
        return;
    };
    site.run("device pair allow d1 d2 --config gateway.toml");
    for (agent, peer) in [(&site.a, "00000000000000d2"), (&site.b, "00000000000000d1")] {
        assert_eq!(agent.event("peer_open")["device"], peer);
    }
    site.converse();
    site.run(close);
    let closed = site.a.event("peer_closed");
    assert_eq!(closed["device"], "00000000000000d2");
    assert_eq!(closed["why"], "the controller has no such pair");
}

#[test]
fn a_pair_talks_until_one_of_the_two_is_revoked() {
    story(
        "dataplane = \"host\"",
        "device revoke d2 --reason lost --config gateway.toml",
    );
}

#[test]
fn a_pair_talks_through_a_sealed_gate_until_it_is_closed() {
    story(
        "interfaces = [\"v1\", \"v2\"]\ngate = \"sealed\"",
        "device pair close d2 d1 --config gateway.toml",
    );
}
