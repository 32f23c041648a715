//! Devices that renew their rows and keys over their sessions, as their users run them, and processes killed at any
//! moment of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use linewarden_agent::Credential;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_linewarden");
const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose standard output is lines of JSON; killed (-9) when dropped.
struct Process {
    child: Child,
    lines: Receiver<Value>,
}

impl Process {
    /// The next line, or `None` at its end.
    #[track_caller]
    fn next(&self, until: Instant) -> Option<Value> {
        match self
            .lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(error) => panic!("{error} after {PATIENCE:?}"),
        }
    }

    #[track_caller]
    fn wait_for(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let (until, mut seen) = (Instant::now() + PATIENCE, Vec::new());
        while let Some(line) = self.next(until) {
            if wanted(&line) {
                return line;
            }
            seen.push(line);
        }
        panic!("ended: {seen:#?}");
    }

    #[track_caller]
    fn event(&self, name: &str) -> Value {
        self.wait_for(|line| line["event"] == name)
    }

    /// Its lines to the end, which it must come to by itself and well.
    #[track_caller]
    fn ended_well(mut self) -> Vec<Value> {
        let until = Instant::now() + PATIENCE;
        let lines: Vec<Value> = std::iter::from_fn(|| self.next(until)).collect();
        assert!(self.child.wait().unwrap().success(), "{lines:#?}");
        lines
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A registry, a gateway's configuration on `host`, and devices' files.
struct Site {
    directory: tempfile::TempDir,
    port: u16,
}

impl Site {
    fn new() -> Self {
        let site = Self {
            directory: tempfile::tempdir().unwrap(),
            port: free_port(),
        };
        std::fs::write(
            site.path("gateway.toml"),
            format!(
                "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\", \"::1\"]\nport = {}\ndesk_port = {}\n\
                 lease_s = 2\nslots = 100\nthreads = 1\n[registry]\npath = \"fleet.registry\"\n\
                 master_key_file = \"master.key\"\n",
                site.port,
                free_port()
            ),
        )
        .unwrap();
        site.run("registry create --registry fleet.registry --key-file master.key");
        site
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(words.split_whitespace())
            .current_dir(self.directory.path());
        command
    }

    #[track_caller]
    fn run(&self, words: &str) -> String {
        let output = self.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, words: &str) -> Process {
        let mut child = self.command(words).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A killed process may have been in the middle of a line.
                let Ok(line) = serde_json::from_str(&line) else {
                    return;
                };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, lines }
    }

    fn gateway(&self) -> Process {
        let gateway = self.start("serve --config gateway.toml --json --every 1");
        gateway.wait_for(|line| line["loaded"] == true);
        gateway
    }

    fn enroll(&self, words: &str) {
        self.run(&format!(
            "device enroll simulated {words} --out devices --config gateway.toml"
        ));
        let desk = std::fs::read_to_string(self.path("gateway.toml")).unwrap();
        let desk = desk
            .lines()
            .find_map(|line| line.strip_prefix("desk_port = "))
            .unwrap();
        for file in std::fs::read_dir(self.path("devices")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let config = std::fs::read_to_string(&path).unwrap();
                let section = format!("[gateway]\ndesk_port = {desk}\n");
                if !config.contains("desk_port") {
                    std::fs::write(&path, config.replace("[gateway]\n", &section)).unwrap();
                }
            }
        }
    }

    fn agent(&self, id: &str, more: &str) -> Process {
        // No two live sessions may share an address.
        let address = if id == "d1" { "127.0.0.1" } else { "[::1]" };
        self.start(&format!(
            "agent --config devices/00000000000000{id}.toml --gateway {address}:{} --json {more}",
            self.port
        ))
    }

    fn shown(&self, id: &str) -> Value {
        let said = self.run(&format!("device show {id} --config gateway.toml --json"));
        serde_json::from_str(&said).unwrap()
    }

    fn helper(&self, id: &str) -> std::path::PathBuf {
        self.path(&format!("devices/00000000000000{id}.helper"))
    }

    fn helper_rows(&self, id: &str) -> u64 {
        match Credential::read_from(&self.helper(id)).unwrap() {
            Credential::Pool(helper) => helper.end_idx().into(),
            Credential::Key(_) => panic!("of key mode"),
        }
    }
}

fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

fn events(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["event"].as_str()).collect()
}

#[test]
fn a_pool_is_renewed_ahead_of_need_and_never_runs_out() {
    let site = Site::new();
    site.enroll("--device d1 --rows 4");
    let file = site.path("devices/00000000000000d1.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config + "\n[renewal]\nbelow_rows = 3\nrows = 50\n").unwrap();
    let _gateway = site.gateway();
    let agent = site.agent("d1", "");
    // Two messages: a row number beyond the first pool is used in the end.
    assert_eq!(agent.event("rows_renewed")["rows_end"], 54);
    agent.wait_for(|line| line["event"] == "authenticated" && line["idx"].as_u64() >= Some(5));
    assert_eq!(site.shown("d1")["rows_total"], 54);
    assert_eq!(site.helper_rows("d1"), 54);
}

#[test]
fn a_pool_that_was_spent_to_the_last_row_but_one_goes_on() {
    let site = Site::new();
    site.enroll("--device d1 --rows 2");
    let _gateway = site.gateway();
    let first = site.agent("d1", "--once").ended_well();
    assert_eq!(events(&first), ["linked", "authenticated"]);
    let renewed = site.agent("d1", "--once --renew").ended_well();
    assert_eq!(events(&renewed), ["linked", "authenticated", "rows_renewed"]);
    assert_eq!(renewed[1]["idx"], 1, "the last row of the first pool");
    let after = site.agent("d1", "--once").ended_well();
    let session = after
        .iter()
        .find(|line| line["event"] == "authenticated")
        .unwrap();
    assert!(session["idx"].as_u64() >= Some(2), "{after:#?}");
}

#[test]
fn a_key_is_renewed_and_the_old_one_is_good_for_nothing() {
    let site = Site::new();
    site.enroll("--device d2 --model sram");
    let gateway = site.gateway();
    let old = std::fs::read(site.helper("d2")).unwrap();
    let lines = site.agent("d2", "--once --renew").ended_well();
    assert_eq!(events(&lines), ["linked", "authenticated", "key_renewed"]);
    assert_eq!(site.shown("d2")["epoch"], 1);
    let new = std::fs::read(site.helper("d2")).unwrap();
    assert_ne!(old, new);
    assert!(!site.path("devices/00000000000000d2.helper.new").exists());
    site.agent("d2", "--once --timeout 50").ended_well();

    // Killed after the registry had taken the new key, before the device knew: the new one is tried first.
    std::fs::write(site.helper("d2"), &old).unwrap();
    std::fs::write(site.path("devices/00000000000000d2.helper.new"), &new).unwrap();
    let lines = site.agent("d2", "--once --timeout 50").ended_well();
    assert!(events(&lines).contains(&"key_renewed"), "{lines:#?}");
    assert_eq!(std::fs::read(site.helper("d2")).unwrap(), new);
    // Killed before the registry had it: the old one is tried then, and the renewal ends what was begun.
    std::fs::write(site.path("devices/00000000000000d2.helper.new"), &old).unwrap();
    site.agent("d2", "--once --timeout 50").ended_well();
    assert_eq!(std::fs::read(site.helper("d2")).unwrap(), new);
    let lines = site.agent("d2", "--once --renew --timeout 50").ended_well();
    assert!(events(&lines).contains(&"key_renewed"), "{lines:#?}");
    assert_eq!(site.shown("d2")["epoch"], 2);
    drop(gateway);
}

/// `kill -9` of the device after each line that it prints, and at moments in between that differ from run to run.
#[test]
fn a_device_killed_at_any_moment_of_a_renewal_can_go_on() {
    let site = Site::new();
    site.enroll("--device d1 --rows 40");
    site.enroll("--device d2 --model sram");
    let mut gateway = site.gateway();
    for round in 0..12u64 {
        for id in ["d1", "d2"] {
            let agent = site.agent(id, "--renew");
            agent.event("authenticated");
            // Not a wait for a condition: where in the renewal it is hit shall differ.
            let _ = agent.lines.recv_timeout(Duration::from_millis(7 * round));
            drop(agent);
        }
        if round % 4 == 3 {
            drop(gateway);
            gateway = site.gateway();
        }
    }
    for id in ["d1", "d2"] {
        let lines = site.agent(id, "--once --renew --timeout 55").ended_well();
        let renewed = ["rows_renewed", "key_renewed"];
        assert!(
            events(&lines).iter().any(|event| renewed.contains(event)),
            "{lines:#?}"
        );
        site.agent(id, "--once --timeout 55").ended_well();
    }
    assert_eq!(
        site.shown("d1")["rows_total"].as_u64(),
        Some(site.helper_rows("d1"))
    );
    assert!(!Path::new(&site.path("devices/00000000000000d2.helper.new")).exists());
    // It ends with a failure if a record is damaged.
    site.run("registry check --registry fleet.registry --key-file master.key");
}
