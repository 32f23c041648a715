//! A gateway and a device as their users run them: `serve` and `agent` as processes, and `device revoke` from a third.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "end_to_end/operations.rs"]
mod operations;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_linewarden");
const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose standard output is lines of JSON.
struct Process {
    child: Child,
    lines: Receiver<Value>,
    seen: Vec<Value>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let line = line.unwrap();
                let value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line that is as wanted.
    #[track_caller]
    fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line);
                    if wanted(self.seen.last().unwrap()) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no {what} after {PATIENCE:?}: {:#?}", self.seen),
                Err(RecvTimeoutError::Disconnected) => panic!("ended before {what}: {:#?}", self.seen),
            }
        }
    }

    /// Ends it as a service manager does; its exit code and last line.
    fn terminate(mut self) -> (i32, Value) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let mut last = Value::Null;
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            last = line;
        }
        (self.child.wait().unwrap().code().unwrap(), last)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the processes run.
struct Place<'a> {
    directory: &'a Path,
    /// What goes before each command, to enter a network namespace.
    wrapper: Vec<String>,
}

impl Place<'_> {
    fn command(&self, words: &str) -> Command {
        let mut all = self
            .wrapper
            .iter()
            .map(String::as_str)
            .chain([PROGRAM])
            .chain(words.split_whitespace());
        let mut command = Command::new(all.next().unwrap());
        command.args(all).current_dir(self.directory);
        command
    }

    #[track_caller]
    fn run(&self, words: &str) {
        let output = self.command(words).output().unwrap();
        assert!(
            output.status.success(),
            "{words}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn event<'a>(name: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| line["event"] == name
}

/// The whole story on one data plane: two devices renew their leases, one is revoked, everything is stopped.
fn story(place: &Place<'_>, dataplane: &str) {
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    std::fs::write(
        place.directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ndataplane = \"{dataplane}\"\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\", \"::1\"]\n\
             port = {port}\nlease_s = 2\nslots = 100\nthreads = 1\n\
             [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n"
        ),
    )
    .unwrap();
    place.run("registry create --registry fleet.registry --key-file master.key");
    place.run("device enroll simulated --device d1 --rows 40 --out devices --config gateway.toml");
    place.run("device enroll simulated --device d2 --model sram --out devices --config gateway.toml");
    let mut gateway = Process::start(place.command("serve --config gateway.toml --json --every 1"));
    gateway.wait_for("loaded fleet", |line| {
        line["event"] == "status" && line["loaded"] == true
    });
    assert_eq!(
        gateway.seen.last().unwrap()["devices"],
        0,
        "nobody has proved anything yet"
    );

    // Addresses of their own: no two live sessions may share one.
    let agent = |id: &str, address: &str| {
        let words =
            format!("agent --config devices/00000000000000{id}.toml --gateway {address}:{port} --json");
        Process::start(place.command(&words))
    };
    let mut lost = agent("d1", "127.0.0.1");
    let mut kept = agent("d2", "[::1]");
    for _ in 0..3 {
        lost.wait_for("session of the first", event("authenticated"));
        kept.wait_for("session of the second", event("authenticated"));
    }
    let rows = |process: &Process| -> Vec<u64> {
        let sessions = process
            .seen
            .iter()
            .filter(|line| line["event"] == "authenticated");
        sessions.map(|line| line["idx"].as_u64().unwrap()).collect()
    };
    assert_eq!(rows(&lost), [0, 1, 2], "renewed in time, each with the next row");
    assert!(!lost.seen.iter().chain(&kept.seen).any(event("expired")));

    place.run("device revoke d1 --reason lost --config gateway.toml");
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    gateway.wait_for("refused packets", |line| {
        line["counters"]["drop_revoked"].as_u64() > Some(0)
    });
    lost.wait_for("end of the lease", event("expired"));
    kept.wait_for("another session of the second", event("authenticated"));

    assert_eq!(lost.terminate().0, 0);
    let (code, last) = kept.terminate();
    assert_eq!((code, last["event"].as_str()), (0, Some("stopped")));
    let (code, last) = gateway.terminate();
    assert_eq!((code, last["event"].as_str()), (0, Some("stopped")));
    assert!(last["counters"]["reply_ack"].as_u64() >= Some(6), "{last}");
    assert_eq!(last["counters"]["drop_tag"], Value::Null, "{last}");
}

#[test]
fn a_device_keeps_its_lease_until_it_is_revoked_on_host() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    story(&place, "host");
}

/// A network namespace of its own with nothing but loopback, held by a process.
fn private_loopback() -> Option<Child> {
    let script = "ip link set lo up && echo up && exec sleep 600";
    let mut child = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
    if line == "up\n" {
        return Some(child);
    }
    let _ = child.wait();
    None
}

/// Runs a story in a network namespace of its own, if this user may have one.
fn in_private_namespace(story: impl Fn(&Place<'_>)) {
    let Some(mut holder) = private_loopback() else {
        println!("SKIPPED: no root, or no unshare and ip: the xdp data plane was not run");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: ["nsenter", "--net", "--target", &holder.id().to_string()]
            .map(str::to_owned)
            .to_vec(),
    };
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(&place)));
    holder.kill().unwrap();
    holder.wait().unwrap();
    if let Err(panic) = told {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_device_keeps_its_lease_until_it_is_revoked_on_xdp() {
    in_private_namespace(|place| story(place, "xdp"));
}

#[test]
fn without_privileges_xdp_says_what_it_needs_and_what_works() {
    if !nix::unistd::geteuid().is_root() {
        println!(
            "SKIPPED: no root, so there is no privilege to drop; the message is that of every xdp start"
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = Place {
        directory: directory.path(),
        wrapper: vec![
            "setpriv".to_owned(),
            "--bounding-set=-all".to_owned(),
            "--inh-caps=-all".to_owned(),
        ],
    };
    std::fs::write(
        directory.path().join("gateway.toml"),
        "[gateway]\nid = 5\ninterfaces = [\"lo\"]\n[registry]\npath = \"r\"\nmaster_key_file = \"k\"\n",
    )
    .unwrap();
    let bare = Place {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    bare.run("registry create --registry r --key-file k");
    let output = place.command("serve --config gateway.toml").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("CAP_BPF") && error.contains("host"), "{error}");
}
