//! The command line: input files, exit codes and output.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "cli/attest/mod.rs"]
mod attest;
#[path = "cli/configuration.rs"]
mod configuration;
#[path = "cli/import.rs"]
mod import;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/named_files.rs"]
mod named_files;
#[path = "cli/puf.rs"]
mod puf;
#[path = "cli/registries.rs"]
mod registries;
#[path = "cli/results.rs"]
mod results;
#[path = "cli/terminal.rs"]
mod terminal;

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
        site.run("registry create --registry fleet.registry --key-file master.key")
            .ok();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs a command in the site's directory; arguments are separated by spaces.
    fn run(&self, arguments: &str) -> CommandOutput {
        self.run_arguments(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    fn run_arguments(&self, arguments: &[&str]) -> CommandOutput {
        Command::new(env!("CARGO_BIN_EXE_linewarden"))
            .args(arguments)
            .current_dir(self.directory.path())
            .env_remove("LINEWARDEN_MASTER_KEY")
            .env_remove("LINEWARDEN_LOG")
            .output()
            .unwrap()
            .into()
    }

    /// Runs a command on the site's registry.
    fn on_registry(&self, arguments: &str) -> CommandOutput {
        self.run(&format!(
            "{arguments} --registry fleet.registry --key-file master.key"
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
        .on_registry("device enroll simulated --count 6 --rows 2 --name pump --out devices --json")
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
        site.on_registry("device list --json --name pump")
            .ok()
            .lines()
            .count(),
        6
    );
    assert_eq!(
        site.on_registry("device list --json --limit 4")
            .ok()
            .lines()
            .count(),
        4
    );
    assert_eq!(site.on_registry("device list --json --mode key").ok(), "");

    let device = json(&site.on_registry(&format!("device show {} --json", ids[0])).ok());
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
        site.on_registry("device list --json --revoked")
            .ok()
            .lines()
            .count(),
        1
    );

    site.on_registry("device export fleet.jsonl --export-key export.key")
        .ok();
    site.run("registry create --registry other.registry --key-file other.key")
        .ok();
    let other = "--registry other.registry --key-file other.key";
    let import_output = site
        .run(&format!(
            "device import fleet.jsonl --export-key export.key {other} --json"
        ))
        .ok();
    assert_eq!(json(&import_output)["imported"], 6);
    let moved = site.run(&format!("device list --json {other}")).ok();
    assert_eq!(moved, site.on_registry("device list --json").ok());
    site.on_registry("registry check").ok();
}

#[test]
fn a_revocation_of_several_devices_with_an_unknown_device_revokes_no_device() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    let error = site.on_registry("device revoke d1 d2").refused(2);
    assert!(error.contains("00000000000000d2 is not enrolled"), "{error}");
    assert_eq!(site.on_registry("device list --json --revoked").ok(), "");
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
    let device = json(&site.on_registry("device show d1 --json").ok());
    assert_eq!(
        (device["epoch"].as_u64(), device["rows_total"].as_u64()),
        (Some(1), Some(3))
    );
    // An enrollment in another registry never overwrites the helper data of an enrolled device.
    site.run("registry create --registry other.registry --key-file other.key")
        .ok();
    let other = "--registry other.registry --key-file other.key";
    let error = site
        .run(&format!(
            "device enroll simulated --device d1 --out devices {other}"
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
    let error = json(&site.on_registry("device list --json").refused(4));
    assert_eq!(error["exit_code"], 4);

    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o600)).unwrap();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    fs::set_permissions(site.path("devices/fleet.seed"), fs::Permissions::from_mode(0o640)).unwrap();
    for arguments in [
        "device enroll simulated --device d2 --rows 2 --out devices --registry fleet.registry --key-file master.key",
        "agent --config devices/00000000000000d1.toml --gateway 127.0.0.1 --once",
    ] {
        let output = site.run(arguments);
        assert!(
            output.code != 0 && output.err.contains("chmod 600"),
            "{arguments}: {}",
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

/// A program that simulates a biased PUF: 62 % of the response bits are ones, and 2 % of the bits flip in each readout.
const BIASED_PUF: &str = r#"#!/bin/sh
read challenge bits
awk -v seed="$((0x${challenge%????????????}))" -v noise="$(date +%N | sed 's/^0*//')" -v digits="$(((bits + 7) / 8 * 2))" '
BEGIN {
    srand(seed)
    for (i = 0; i < 4 * digits; i++) bit[i] = rand() < 0.62
    srand(noise)
    for (i = 0; i < 4 * digits; i++) if (rand() < 0.02) bit[i] = 1 - bit[i]
    for (i = 0; i < digits; i++) printf "%x", 8 * bit[4 * i] + 4 * bit[4 * i + 1] + 2 * bit[4 * i + 2] + bit[4 * i + 3]
}'
"#;

#[test]
fn a_puf_with_too_little_entropy_is_refused() {
    let site = Site::new();
    site.write("biased-puf", BIASED_PUF);
    fs::set_permissions(site.path("biased-puf"), fs::Permissions::from_mode(0o755)).unwrap();
    let registry = "--registry fleet.registry --key-file master.key";
    let error = site
        .run(&format!(
            "device enroll command --mode pool --rows 2 --out devices {registry} -- ./biased-puf"
        ))
        .refused(4);
    assert!(error.contains("bits of min-entropy, 143 are required"), "{error}");
    assert_eq!(site.on_registry("device list --json").ok(), "");
    assert_eq!(fs::read_dir(site.path("devices")).unwrap().count(), 0);
}

/// If a simulated chip is too biased, the command simulates another chip from the same seed and enrolls that chip.
#[test]
fn a_refused_simulated_chip_is_replaced_by_another_chip() {
    use linewarden_agent::source::{FleetSeed, SimulatedPuf};
    use linewarden_protocol::ids::DeviceId;
    use linewarden_puf::Challenge;
    let seed = [7; 32];
    let ones = |device: u64, chip: u32| {
        let text = format!("model = \"arbiter\"\nchip = {chip}\nseed_file = \"unused\"");
        let puf: SimulatedPuf = toml::from_str(&text).unwrap();
        let mut chip = puf
            .build(&FleetSeed::from_bytes(seed), DeviceId(device), 1)
            .unwrap();
        chip.read(Challenge::Pool([3; 8]), 4096).unwrap().count_ones()
    };
    // Chip 0 of this device has far too many ones; chip 1 has about as many ones as zeros.
    let device = (1..).find(|device| ones(*device, 0) > 2600 && ones(*device, 1).abs_diff(2048) < 60);
    let device = DeviceId(device.unwrap());
    let site = Site::new();
    site.write("fleet.seed", &"07".repeat(32));
    fs::set_permissions(site.path("fleet.seed"), fs::Permissions::from_mode(0o600)).unwrap();
    let arguments = format!(
        "device enroll simulated --device {device} --model arbiter --rows 2 --out devices --seed-file fleet.seed"
    );
    let output = site.on_registry(&arguments).ok();
    assert!(output.contains("1 chip"), "{output}");
    let config = fs::read_to_string(site.path(&format!("devices/{device}.toml"))).unwrap();
    assert!(config.contains("chip = 1\n"), "{config}");
    // The second enrollment reads chip 1, because the device's configuration file names this chip.
    let output = site.on_registry(&format!("{arguments} --replace")).ok();
    assert!(!output.contains("refused"), "{output}");
}

/// A PUF with too few cells, and a PUF with stuck cells.
#[test]
fn an_unsuitable_puf_is_rejected() {
    let site = Site::new();
    let registry = "--registry fleet.registry --key-file master.key";
    let enroll = |arguments: &str| {
        site.run(&format!("device enroll {arguments} --out devices {registry}"))
            .refused(4)
    };
    for cells in ["64", "1000"] {
        let error = enroll(&format!("simulated --model sram --cells {cells}"));
        // Two readouts of so few cells can also be identical.
        let causes = ["cells", "bits", "identical"];
        assert!(causes.iter().any(|cause| error.contains(cause)), "{error}");
    }
    site.write(
        "stuck",
        "#!/bin/sh\nread challenge bits\nhead -c $(((bits + 7) / 8)) /dev/zero | od -An -v -tx1\n",
    );
    fs::set_permissions(site.path("stuck"), fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = format!("device enroll command --mode key --out devices {registry} -- ./stuck");
    let error = site.run(&arguments).refused(4);
    assert!(error.contains("bits are 0"), "{error}");
    assert_eq!(site.on_registry("device list --json").ok(), "");
}

#[test]
fn readouts_of_a_weak_puf_are_enrolled_in_key_mode() {
    let site = Site::new();
    fs::create_dir(site.path("dumps")).unwrap();
    write_dumps(&site.path("dumps"), 5);
    site.on_registry("device enroll readouts dumps --device d7 --out devices")
        .ok();
    let device = json(&site.on_registry("device show d7 --json").ok());
    assert_eq!(device["mode"], "key");
    let report = site
        .run("puf report dumps --svg report.svg --enrollment-readouts 3")
        .ok();
    assert!(
        report.contains("uniformity") || report.contains("ones"),
        "{report}"
    );
    assert!(
        fs::read_to_string(site.path("report.svg"))
            .unwrap()
            .contains("<svg")
    );
    assert!(json(&site.run("puf report dumps --enrollment-readouts 3 --json").ok())["devices"].is_array());
    let error = site.run("puf report nothing").refused(2);
    assert!(error.contains("nothing"), "{error}");
}

/// Noisy dumps of one simulated memory of 4 KiB.
fn write_dumps(directory: &Path, count: u64) {
    use linewarden_agent::source::{FleetSeed, SimulatedPuf};
    use linewarden_protocol::ids::DeviceId;
    use linewarden_puf::Challenge;
    let model: SimulatedPuf = toml::from_str("model = \"sram\"\nseed_file = \"unused\"").unwrap();
    for index in 0..count {
        let mut chip = model
            .build(&FleetSeed::from_bytes([4; 32]), DeviceId(1), index)
            .unwrap();
        let bits = chip.read(Challenge::PowerUp, 32_768).unwrap();
        fs::write(directory.join(format!("readout-{index}.bin")), bits.to_bytes()).unwrap();
    }
}

#[test]
fn a_damaged_export_is_reported_with_file_line_and_field_and_nothing_is_imported() {
    let site = Site::new();
    site.on_registry("device enroll simulated --count 2 --rows 1 --out devices")
        .ok();
    site.on_registry("device export fleet.jsonl --export-key export.key")
        .ok();
    site.run("registry create --registry other.registry --key-file other.key")
        .ok();
    let import =
        "device import broken.jsonl --export-key export.key --registry other.registry --key-file other.key";
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
        .run("device list --json --registry other.registry --key-file other.key")
        .ok();
    assert_eq!(listed, "");
}

#[test]
fn every_shell_has_completions() {
    let site = Site::empty();
    for shell in ["bash", "zsh", "fish"] {
        let script = site.run(&format!("completions {shell}")).ok();
        assert!(
            script.contains("linewarden") && script.contains("enroll"),
            "{shell}"
        );
    }
    assert_eq!(site.run("completions tcsh").code, 2);
}

#[test]
fn every_command_has_help_with_examples() {
    let site = Site::empty();
    let mut commands = vec![String::new()];
    let mut checked = 0;
    while let Some(command) = commands.pop() {
        let help = site.run(&format!("{command} --help")).ok();
        assert!(help.contains("Examples:"), "{command}: {help}");
        assert!(!help.contains('\u{1b}'), "{command}: colors without a terminal");
        check_lines(&command, &help);
        let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let section = section.take_while(|line| !line.is_empty());
        // Only command names are indented by two spaces.
        let names = section.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let names = names.filter(|name| !name.is_empty() && *name != "help");
        commands.extend(names.map(|name| format!("{command} {name}").trim().to_owned()));
        checked += 1;
    }
    assert!(checked > 40, "{checked} commands");
}

/// Checks that prose is wrapped at the maximum width, and that each line of an example, except the last line, ends with `\`.
fn check_lines(command: &str, help: &str) {
    const COLUMNS: usize = 100;
    let lines: Vec<&str> = help.lines().collect();
    for pair in lines.windows(2) {
        let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        if let (true, true, Some(word)) = (is_text(pair[0]), is_text(pair[1]), pair[1].split(' ').next()) {
            let with_next = pair[0].chars().count() + 1 + word.chars().count();
            assert!(with_next > COLUMNS, "{command}: {}⏎{word}", pair[0]);
        }
    }
    let examples = lines.iter().skip_while(|line| **line != "Examples:").skip(1);
    let mut is_continued = false;
    for line in examples.take_while(|line| !line.is_empty()) {
        assert!(
            is_continued || line.starts_with("  linewarden"),
            "{command}: {line}"
        );
        assert!(line.chars().count() <= COLUMNS, "{command}: {line}");
        is_continued = line.ends_with('\\');
    }
}

#[test]
fn output_without_a_terminal_has_no_color_and_a_closed_pipe_is_no_failure() {
    let site = Site::new();
    let error = site.run("serve --config none.toml").refused(2);
    assert!(!error.contains('\u{1b}'), "{error}");
    let colored = site.run("serve --config none.toml --color always").refused(2);
    assert!(colored.contains('\u{1b}'), "{colored}");
    let program = env!("CARGO_BIN_EXE_linewarden");
    let status = Command::new("/bin/bash")
        .args([
            "-o",
            "pipefail",
            "-c",
            &format!("'{program}' completions bash | head -c 1"),
        ])
        .output()
        .unwrap();
    assert!(
        status.status.success(),
        "{}",
        String::from_utf8_lossy(&status.stderr)
    );
}

/// A command has the same effect and exit code if the reader of its output has closed the pipe.
#[test]
fn a_closed_output_pipe_stops_no_command_and_hides_no_failure() {
    let site = Site::new();
    site.on_registry("device enroll simulated --count 3 --rows 2 --out devices")
        .ok();
    let listed = site.on_registry("device list --json").ok();
    let ids: Vec<String> = listed
        .lines()
        .map(|line| json(line)["device_id"].as_str().unwrap().to_owned())
        .collect();
    let run_unread = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linewarden"));
        command
            .args(arguments.split_whitespace())
            .args(["--registry", "fleet.registry", "--key-file", "master.key"])
            .current_dir(site.directory.path());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer).status().unwrap().code().unwrap()
    };
    assert_eq!(run_unread(&format!("device revoke {}", ids.join(" "))), 0);
    let revoked = site.on_registry("device list --revoked --json").ok();
    assert_eq!(revoked.lines().count(), 3);
    assert_eq!(run_unread("device list"), 0);
    assert_eq!(run_unread("device show 00000000000000ff"), 2, "no such device");
}

/// Every command line in the documents' shell blocks is valid. The test appends `--help`: the command line is parsed, but the
/// command is not run.
#[test]
fn the_command_lines_in_the_documents_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    for directory in ["docs", "docs/operations"] {
        let entries = fs::read_dir(root.join(directory)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    let mut commands = 0;
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|end| end == "md"))
    {
        for line in shell_lines(&fs::read_to_string(file).unwrap()) {
            // `lw` runs `linewarden` as the service's user.
            let Some(command) = line
                .strip_prefix("linewarden ")
                .or_else(|| line.strip_prefix("lw "))
            else {
                continue;
            };
            // Removes shell syntax: comments, redirections, line continuations and quotes.
            let command = command.split(['#', '>', '\\']).next().unwrap();
            let arguments: Vec<String> = command
                .split_whitespace()
                .map(|word| word.replace('"', ""))
                .collect();
            let before_dashes = arguments.iter().take_while(|word| *word != "--");
            let arguments: Vec<&str> = before_dashes.map(String::as_str).chain(["--help"]).collect();
            Site::empty().run_arguments(&arguments).ok();
            commands += 1;
        }
    }
    assert!(commands > 15, "{commands}");
}

fn shell_lines(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.lines()
        .map(str::trim_start)
        .filter(|line| {
            inside = if line.starts_with("```") {
                *line == "```sh"
            } else {
                inside
            };
            inside
        })
        .collect()
}

/// A size that no memory can hold is rejected for every PUF source.
#[test]
fn excessive_sizes_are_refused() {
    let site = Site::new();
    let output = site.run(&format!(
        "serve --config gateway.toml --status-interval {}",
        u64::MAX
    ));
    assert!(output.code == 2 && output.err.contains("86400"), "{}", output.err);
    for arguments in [
        "device enroll command --mode key --out devices -- /bin/true",
        "device enroll simulated --model sram --out devices",
    ] {
        let (before, after) = arguments.split_once(" --out").unwrap();
        let arguments = format!(
            "{before} --cells {} --registry fleet.registry --key-file master.key --out{after}",
            u64::MAX
        );
        let output = site.run(&arguments);
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
        site.run_arguments(&[
            "device",
            "enroll",
            "simulated",
            "--rows",
            "2",
            "--out",
            "devices",
            "--name",
            name,
            "--registry",
            "fleet.registry",
            "--key-file",
            "master.key",
        ])
    };
    let error = enroll("red \u{1b}[31m").refused(1);
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
    let error = site.run("serve --config \u{1b}[31m.toml").refused(2);
    assert!(!error.contains('\u{1b}'), "{error}");
}
