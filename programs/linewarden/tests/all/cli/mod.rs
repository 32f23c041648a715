//! The command lines of the programs: input files, exit codes and output.

mod attest;
mod configuration;
mod help;
mod import;
mod messages;
mod named_files;
mod puf;
mod registries;
mod results;
mod terminal;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{PROGRAMS, command, program};

struct Site {
    directory: tempfile::TempDir,
}

struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    /// Asserts that the exit code is 0; returns the standard output.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// Asserts that the command failed with this exit code; returns the standard error.
    #[track_caller]
    fn refused(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        self.err
    }
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Site {
    fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// A site with a registry and the registry's master key.
    fn new() -> Self {
        let site = Self::empty();
        site.run("linewarden registry create --registry fleet.registry --key-file master.key")
            .ok();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A [`command`] in the site's directory.
    #[track_caller]
    fn command(&self, command_line: &str) -> Command {
        let mut command = command(self.directory.path(), command_line);
        command
            .env_remove("LINEWARDEN_MASTER_KEY")
            .env_remove("LINEWARDEN_LOG");
        command
    }

    #[track_caller]
    fn run(&self, command_line: &str) -> CommandOutput {
        self.command(command_line).output().unwrap().into()
    }

    /// Runs a command of `linewarden` on the site's registry.
    #[track_caller]
    fn on_registry(&self, arguments: &str) -> CommandOutput {
        self.run(&format!(
            "linewarden {arguments} --registry fleet.registry --key-file master.key"
        ))
    }
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn a_fleet_is_enrolled_listed_shown_moved_and_revoked() {
    let site = Site::new();
    let enrolled = site
        .on_registry("device enroll simulated --count 6 --rows 2 --name pump --out devices --output json")
        .ok();
    let ids: Vec<String> = enrolled
        .lines()
        .map(|line| json(line)["device_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 6);
    for id in &ids {
        assert!(site.path(&format!("devices/{id}.helper")).is_file());
        assert!(site.path(&format!("devices/{id}.toml")).is_file());
    }

    let list = site.on_registry("device list").ok();
    assert!(
        ids.iter().all(|id| list.contains(id)) && list.contains("6 devices"),
        "{list}"
    );
    assert_eq!(
        site.on_registry("device list --output json --name pump")
            .ok()
            .lines()
            .count(),
        6
    );
    assert_eq!(
        site.on_registry("device list --output json --limit 4")
            .ok()
            .lines()
            .count(),
        4
    );
    assert_eq!(site.on_registry("device list --output json --mode key").ok(), "");

    let device = json(
        &site
            .on_registry(&format!("device show {} --output json", ids[0]))
            .ok(),
    );
    assert_eq!(
        (device["status"].as_str(), device["rows_total"].as_u64()),
        (Some("active"), Some(2))
    );

    let revoked = site
        .on_registry(&format!("device revoke {} --reason stolen", ids[0]))
        .ok();
    assert_eq!(revoked, format!("revoked {}\n", ids[0]));
    let text = site.on_registry(&format!("device show {}", ids[0])).ok();
    assert!(
        text.contains("revoked on 20") && text.contains("stolen"),
        "{text}"
    );
    assert_eq!(
        site.on_registry("device list --output json --revoked")
            .ok()
            .lines()
            .count(),
        1
    );

    site.on_registry("device export fleet.jsonl --export-key export.key")
        .ok();
    site.run("linewarden registry create --registry other.registry --key-file other.key")
        .ok();
    let other = "--registry other.registry --key-file other.key";
    let import_output = site
        .run(&format!(
            "linewarden device import fleet.jsonl --export-key export.key {other} --output json"
        ))
        .ok();
    assert_eq!(json(&import_output)["imported"], 6);
    let moved = site
        .run(&format!("linewarden device list --output json {other}"))
        .ok();
    assert_eq!(moved, site.on_registry("device list --output json").ok());
    site.on_registry("registry check").ok();
}

#[test]
fn a_revocation_of_several_devices_with_an_unknown_device_revokes_no_device() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    let error = site.on_registry("device revoke d1 d2").refused(2);
    assert!(error.contains("00000000000000d2 is not enrolled"), "{error}");
    assert_eq!(site.on_registry("device list --output json --revoked").ok(), "");
}

#[test]
fn new_credentials_continue_after_the_old_rows() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    let error = site
        .on_registry("device enroll simulated --device d1 --rows 2 --out others")
        .refused(1);
    assert!(error.contains("already enrolled"), "{error}");
    let (config, helper) = ("devices/00000000000000d1.toml", "devices/00000000000000d1.helper");
    let edited = fs::read_to_string(site.path(config)).unwrap() + "# by hand\n";
    site.write(config, &edited);
    let old_helper = fs::read(site.path(helper)).unwrap();
    site.on_registry("device enroll simulated --device d1 --rows 3 --out devices --replace")
        .ok();
    assert_eq!(fs::read_to_string(site.path(config)).unwrap(), edited);
    assert_ne!(fs::read(site.path(helper)).unwrap(), old_helper);
    let device = json(&site.on_registry("device show d1 --output json").ok());
    assert_eq!(
        (device["epoch"].as_u64(), device["rows_total"].as_u64()),
        (Some(1), Some(3))
    );
    // An enrollment in another registry never overwrites the helper data of an enrolled device.
    site.run("linewarden registry create --registry other.registry --key-file other.key")
        .ok();
    let other = "--registry other.registry --key-file other.key";
    let error = site
        .run(&format!(
            "linewarden device enroll simulated --device d1 --out devices {other}"
        ))
        .refused(2);
    assert!(
        error.contains("00000000000000d1.helper already exists"),
        "{error}"
    );
}

#[test]
fn key_files_that_others_can_read_are_refused() {
    let site = Site::new();
    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = site.on_registry("device list").refused(4);
    assert!(
        error.contains("master.key") && error.contains("chmod 600"),
        "{error}"
    );
    let error = json(&site.on_registry("device list --output json").refused(4));
    assert_eq!(error["exit_code"], 4);

    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o600)).unwrap();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    fs::set_permissions(site.path("devices/fleet.seed"), fs::Permissions::from_mode(0o640)).unwrap();
    for command_line in [
        "linewarden device enroll simulated --device d2 --rows 2 --out devices --registry fleet.registry --key-file master.key",
        "linewarden-agent run --config devices/00000000000000d1.toml --gateway 127.0.0.1 --once",
    ] {
        let output = site.run(command_line);
        assert!(
            output.code != 0 && output.err.contains("chmod 600"),
            "{command_line}: {}",
            output.err
        );
    }
}

/// A killed enrollment does not prevent the next enrollment, and a failed enrollment creates no files.
#[test]
fn interrupted_enrollments_can_be_repeated() {
    let site = Site::new();
    fs::create_dir(site.path("devices")).unwrap();
    site.write("devices/00000000000000d1.helper.new", "half");
    site.write("devices/00000000000000d1.toml", "half");
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    let count = || fs::read_dir(site.path("devices")).unwrap().count();
    assert_eq!(count(), 3, "helper data, configuration, seed");
    // The chips were read, but the registry rejects the enrollment: the id is in use.
    fs::rename(
        site.path("devices/00000000000000d1.helper"),
        site.path("d1.helper"),
    )
    .unwrap();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .refused(1);
    assert_eq!(count(), 2);
}

#[test]
fn a_damaged_export_is_reported_with_file_line_and_field_and_nothing_is_imported() {
    let site = Site::new();
    site.on_registry("device enroll simulated --count 2 --rows 1 --out devices")
        .ok();
    site.on_registry("device export fleet.jsonl --export-key export.key")
        .ok();
    site.run("linewarden registry create --registry other.registry --key-file other.key")
        .ok();
    let import = "linewarden device import broken.jsonl --export-key export.key --registry other.registry --key-file other.key";
    let valid = fs::read_to_string(site.path("fleet.jsonl")).unwrap();
    for (from, to, expected) in [
        (
            "\"active\"",
            "\"alive\"",
            "broken.jsonl, line 2: the fields for status",
        ),
        (
            "\"idx_floor\":0",
            "\"idx_floor\":1",
            "line 2: field sealed: does not authenticate",
        ),
        ("\"mode\":\"pool\"", "\"mode\":\"pond\"", "line 2: field mode"),
        ("\"device_id\"", "\"device\"", "line 2: "),
    ] {
        site.write("broken.jsonl", &valid.replacen(from, to, 1));
        let error = site.run(import).refused(2);
        assert!(
            error.contains(expected) && error.contains("nothing was imported"),
            "expected {expected}\ngot {error}"
        );
    }
    let listed = site
        .run("linewarden device list --output json --registry other.registry --key-file other.key")
        .ok();
    assert_eq!(listed, "");
}

#[test]
fn output_without_a_terminal_has_no_color_and_a_closed_pipe_is_no_failure() {
    let site = Site::new();
    let error = site.run("linewarden-gateway run --config none.toml").refused(2);
    assert!(!error.contains('\u{1b}'), "{error}");
    let colored = site
        .run("linewarden-gateway run --config none.toml --color always")
        .refused(2);
    assert!(colored.contains('\u{1b}'), "{colored}");
    for name in PROGRAMS {
        let program = program(name);
        let output = Command::new("/bin/bash")
            .args([
                "-o",
                "pipefail",
                "-c",
                &format!("'{}' completions bash | head -c 1", program.display()),
            ])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// A command has the same effect and exit code if the reader of its output has closed the pipe.
#[test]
fn a_closed_output_pipe_stops_no_command_and_hides_no_failure() {
    let site = Site::new();
    site.on_registry("device enroll simulated --count 3 --rows 2 --out devices")
        .ok();
    let listed = site.on_registry("device list --output json").ok();
    let ids: Vec<String> = listed
        .lines()
        .map(|line| json(line)["device_id"].as_str().unwrap().to_owned())
        .collect();
    let run_unread = |arguments: &str| {
        let mut command = site.command(&format!(
            "linewarden {arguments} --registry fleet.registry --key-file master.key"
        ));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer).status().unwrap().code().unwrap()
    };
    assert_eq!(run_unread(&format!("device revoke {}", ids.join(" "))), 0);
    let revoked = site.on_registry("device list --revoked --output json").ok();
    assert_eq!(revoked.lines().count(), 3);
    assert_eq!(run_unread("device list"), 0);
    assert_eq!(run_unread("device show 00000000000000ff"), 2, "no such device");
}

/// A size that no memory can hold is rejected for every PUF source.
#[test]
fn excessive_sizes_are_refused() {
    let site = Site::new();
    let output = site.run(&format!(
        "linewarden-gateway run --config gateway.toml --status-interval {}",
        u64::MAX
    ));
    assert!(output.code == 2 && output.err.contains("86400"), "{}", output.err);
    for command_line in [
        "linewarden device enroll command --mode key --out devices -- /bin/true",
        "linewarden device enroll simulated --model sram --out devices",
    ] {
        let (before, after) = command_line.split_once(" --out").unwrap();
        let command_line = format!(
            "{before} --cells {} --registry fleet.registry --key-file master.key --out{after}",
            u64::MAX
        );
        let output = site.run(&command_line);
        assert!(
            matches!(output.code, 1 | 2) && !output.err.contains("panicked"),
            "{}",
            output.err
        );
    }
}

/// Names and files of other parties can contain control characters. The program prints no control character.
#[test]
fn no_terminal_control_sequence_is_printed() {
    let site = Site::new();
    let enroll = |name: &str| {
        let mut command = site.command("linewarden device enroll simulated --rows 2 --out devices --name");
        command
            .arg(name)
            .args("--registry fleet.registry --key-file master.key".split(' '));
        CommandOutput::from(command.output().unwrap())
    };
    let error = enroll("red \u{1b}[31m").refused(2);
    assert!(
        error.contains("control character") && !error.contains('\u{1b}'),
        "{error}"
    );
    enroll("left \u{202e} right").ok();
    let list = site.on_registry("device list").ok();
    assert!(list.contains("left \\u{202e} right"), "{list}");
    site.write("steer.jsonl", "{\"\\u001b]0;x\\u0007\":1}\n");
    let error = site
        .on_registry("device import steer.jsonl --export-key export.key")
        .err;
    assert!(!error.contains('\u{1b}') && !error.contains('\u{7}'), "{error}");
    let error = site
        .run("linewarden-gateway run --config \u{1b}[31m.toml")
        .refused(2);
    assert!(!error.contains('\u{1b}'), "{error}");
}
