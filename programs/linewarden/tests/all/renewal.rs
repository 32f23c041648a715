//! Renewal of rows and keys over the sessions of devices, with the programs as users run them, and with processes that are killed
//! at any moment of a renewal.

use std::path::Path;
use std::time::Duration;

use linewarden_agent::Credential;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{self, Process, command, free_udp_port, start_controller, write_controller_config};

/// A running controller, a gateway's configuration on `host`, and devices' files.
struct Site {
    controller: Process,
    directory: tempfile::TempDir,
    port: u16,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = free_udp_port();
        std::fs::write(
            directory.path().join("gateway.toml"),
            format!(
                "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\", \"::1\"]\nport = {}\nticket_port = {}\n\
                 session_lifetime_s = 2\nslots = 100\nthreads = 1\n[controller]\nsocket = \"controller.sock\"\n",
                port,
                free_udp_port()
            ),
        )
        .unwrap();
        write_controller_config(directory.path());
        support::run(command(
            directory.path(),
            "linewarden registry create --registry fleet.registry --key-file master.key",
        ));
        Self {
            controller: start_controller(directory.path()),
            directory,
            port,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    #[track_caller]
    fn run(&self, command_line: &str) -> String {
        support::run(command(self.directory.path(), command_line))
    }

    fn start(&self, command_line: &str) -> Process {
        Process::start(command(self.directory.path(), command_line))
    }

    fn gateway(&self) -> Process {
        let gateway =
            self.start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
        gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
        gateway
    }

    /// Kills the controller with SIGKILL and starts it again.
    fn restart_controller(&mut self) {
        self.controller.end_with_signal(Signal::SIGKILL);
        self.controller = start_controller(self.directory.path());
    }

    fn enroll(&self, arguments: &str) {
        self.run(&format!(
            "linewarden device enroll simulated {arguments} --out devices --config controller.toml"
        ));
        let ticket_port = std::fs::read_to_string(self.path("gateway.toml")).unwrap();
        let ticket_port = ticket_port
            .lines()
            .find_map(|line| line.strip_prefix("ticket_port = "))
            .unwrap();
        for file in std::fs::read_dir(self.path("devices")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let config = std::fs::read_to_string(&path).unwrap();
                let section = format!("[gateway]\nticket_port = {ticket_port}\n");
                if !config.contains("ticket_port") {
                    std::fs::write(&path, config.replace("[gateway]\n", &section)).unwrap();
                }
            }
        }
    }

    fn agent(&self, id: &str, options: &str) -> Process {
        // No two live sessions may share an address.
        let address = if id == "d1" { "127.0.0.1" } else { "[::1]" };
        self.start(&format!(
            "linewarden-agent run --config devices/00000000000000{id}.toml --gateway {address}:{} --output json {options}",
            self.port
        ))
    }

    fn device(&self, id: &str) -> Value {
        let text = self.run(&format!(
            "linewarden device show {id} --config controller.toml --output json"
        ));
        serde_json::from_str(&text).unwrap()
    }

    fn helper_path(&self, id: &str) -> std::path::PathBuf {
        self.path(&format!("devices/00000000000000{id}.helper"))
    }

    /// Number of rows in the device's helper data, which is the number after the highest row.
    fn helper_row_count(&self, id: &str) -> u64 {
        match Credential::read_from(&self.helper_path(id)).unwrap() {
            Credential::Pool(helper) => helper.end_idx().into(),
            Credential::Key(_) => panic!("helper data are of key mode"),
        }
    }
}

fn event_names(lines: &[Value]) -> Vec<&str> {
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
    // The new rows need two messages. Afterwards the device uses a row of the new rows.
    assert_eq!(agent.event("rows_renewed")["rows_end"], 54);
    agent.wait_for("a new row", |line| {
        line["event"] == "authenticated" && line["row"].as_u64() >= Some(5)
    });
    assert_eq!(site.device("d1")["rows_total"], 54);
    assert_eq!(site.helper_row_count("d1"), 54);
}

#[test]
fn a_pool_with_one_remaining_row_is_renewed() {
    let site = Site::new();
    site.enroll("--device d1 --rows 2");
    let _gateway = site.gateway();
    let first_run = site.agent("d1", "--once").wait_for_success();
    assert_eq!(event_names(&first_run), ["link_opened", "authenticated"]);
    let renewal_run = site.agent("d1", "--once --renew").wait_for_success();
    assert_eq!(
        event_names(&renewal_run),
        ["link_opened", "authenticated", "rows_renewed"]
    );
    assert_eq!(renewal_run[1]["row"], 1, "the last row of the first pool");
    let later_run = site.agent("d1", "--once").wait_for_success();
    let session = later_run
        .iter()
        .find(|line| line["event"] == "authenticated")
        .unwrap();
    assert!(session["row"].as_u64() >= Some(2), "{later_run:#?}");
}

#[test]
fn a_key_is_renewed_and_the_old_key_is_invalid() {
    let site = Site::new();
    site.enroll("--device d2 --model sram");
    let gateway = site.gateway();
    let old_helper = std::fs::read(site.helper_path("d2")).unwrap();
    let lines = site.agent("d2", "--once --renew").wait_for_success();
    assert_eq!(
        event_names(&lines),
        ["link_opened", "authenticated", "key_renewed"]
    );
    assert_eq!(site.device("d2")["epoch"], 1);
    let new_helper = std::fs::read(site.helper_path("d2")).unwrap();
    assert_ne!(old_helper, new_helper);
    assert!(!site.path("devices/00000000000000d2.helper.new").exists());
    site.agent("d2", "--once --timeout 50").wait_for_success();

    // As if the device was killed after the registry had stored the new key, and before the device received the confirmation: the
    // device tries the new key first.
    std::fs::write(site.helper_path("d2"), &old_helper).unwrap();
    std::fs::write(site.path("devices/00000000000000d2.helper.new"), &new_helper).unwrap();
    let lines = site.agent("d2", "--once --timeout 50").wait_for_success();
    assert!(event_names(&lines).contains(&"key_renewed"), "{lines:#?}");
    assert_eq!(std::fs::read(site.helper_path("d2")).unwrap(), new_helper);
    // As if the device was killed before the registry had the new key: the device tries the old key, and completes the renewal.
    std::fs::write(site.path("devices/00000000000000d2.helper.new"), &old_helper).unwrap();
    site.agent("d2", "--once --timeout 50").wait_for_success();
    assert_eq!(std::fs::read(site.helper_path("d2")).unwrap(), new_helper);
    let lines = site.agent("d2", "--once --renew --timeout 50").wait_for_success();
    assert!(event_names(&lines).contains(&"key_renewed"), "{lines:#?}");
    assert_eq!(site.device("d2")["epoch"], 2);
    drop(gateway);
}

#[test]
fn a_renewal_without_a_response_fails() {
    let site = Site::new();
    site.enroll("--device d1 --rows 4");
    let config = site.path("gateway.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let lines_without_ticket_port = text.lines().map(|line| match line.starts_with("ticket_port") {
        true => "ticket_port = 0\n".to_owned(),
        false => format!("{line}\n"),
    });
    std::fs::write(&config, lines_without_ticket_port.collect::<String>()).unwrap();
    let _gateway = site.gateway();
    let (code, lines) = site.agent("d1", "--once --renew").wait_for_exit();
    assert_eq!(code, 1, "{lines:#?}");
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "renewal_failed");
    assert_eq!(last["reason"], "the controller did not respond");
    // Without `--renew`, the command needs no response to a renewal, and succeeds.
    site.agent("d1", "--once").wait_for_success();
}

/// Kills the device with SIGKILL after its authentication. The moment of the kill differs in each pass. Between the passes, the
/// controller is killed, every second time together with the gateway.
#[test]
fn a_device_killed_at_any_moment_of_a_renewal_continues() {
    let mut site = Site::new();
    site.enroll("--device d1 --rows 40");
    site.enroll("--device d2 --model sram");
    let mut gateway = site.gateway();
    for pass in 0..12u64 {
        for id in ["d1", "d2"] {
            let agent = site.agent(id, "--renew");
            agent.event("authenticated");
            // Waits for the next line of the agent, but at most this time, so that the moment of the kill varies.
            let _ = agent.next(Duration::from_millis(7 * pass));
            drop(agent);
        }
        match pass % 4 {
            1 => site.restart_controller(),
            3 => {
                drop(gateway);
                site.restart_controller();
                gateway = site.gateway();
            }
            _ => {}
        }
    }
    for id in ["d1", "d2"] {
        let lines = site.agent(id, "--once --renew --timeout 55").wait_for_success();
        let renewed = ["rows_renewed", "key_renewed"];
        assert!(
            event_names(&lines).iter().any(|event| renewed.contains(event)),
            "{lines:#?}"
        );
        site.agent(id, "--once --timeout 55").wait_for_success();
    }
    assert_eq!(
        site.device("d1")["rows_total"].as_u64(),
        Some(site.helper_row_count("d1"))
    );
    assert!(!Path::new(&site.path("devices/00000000000000d2.helper.new")).exists());
    // This command fails if a record is damaged.
    site.run("linewarden registry check --registry fleet.registry --key-file master.key");
}
