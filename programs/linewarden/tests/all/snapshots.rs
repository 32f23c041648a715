//! The texts that operators read, as the programs print them: the help of every command, and the most likely errors.
//!
//! The recorded texts are in the directory `snapshots` beside this file. The help of a program is in `PROGRAM.snap`, and the help of
//! its command in `PROGRAM.COMMAND.snap`. After a deliberate change: `INSTA_UPDATE=always cargo test -p linewarden --test all
//! snapshots::`, then read and commit the difference.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use insta::Settings;

use crate::support::{PROGRAMS, command};

fn run(directory: &Path, command_line: &str) -> Output {
    command(directory, command_line)
        .env_remove("COLUMNS")
        .env_remove("LINEWARDEN_LOG")
        .env_remove("LINEWARDEN_MASTER_KEY")
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

/// Runs a command that must succeed; returns its standard output.
#[track_caller]
fn output(directory: &Path, command_line: &str) -> String {
    let output = run(directory, command_line);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command_line}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn settings() -> Settings {
    let mut settings = Settings::new();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings
}

/// The commands in a help text.
fn commands(help: &str) -> Vec<&str> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    section
        .take_while(|line| line.starts_with("  "))
        // Continued descriptions are indented further.
        .filter(|line| !line.starts_with("    "))
        .map(|line| line.split_whitespace().next().unwrap())
        .filter(|name| *name != "help")
        .collect()
}

/// Appends the help of a command and of its subcommands.
fn append_help(command: &str, text: &mut String) {
    let help = output(Path::new("."), &format!("{command} --help"));
    writeln!(text, "$ {command} --help\n{help}").unwrap();
    for name in commands(&help) {
        append_help(&format!("{command} {name}"), text);
    }
}

#[test]
fn help_texts_are_as_recorded() {
    let mut count = 0;
    settings().bind(|| {
        for program in PROGRAMS {
            let top = output(Path::new("."), &format!("{program} --help"));
            insta::assert_snapshot!(program, top);
            for name in commands(&top) {
                let mut text = String::new();
                append_help(&format!("{program} {name}"), &mut text);
                insta::assert_snapshot!(format!("{program}.{name}"), text);
                count += 1;
            }
        }
    });
    assert!(count > 40, "{count} commands");
}

/// A directory with a registry of two simulated devices, its key, and the other files that the failing commands need.
fn fleet() -> tempfile::TempDir {
    let fleet = tempfile::tempdir().unwrap();
    let path = fleet.path();
    for command_line in [
        "linewarden registry create --registry fleet.registry --key-file master.key",
        "linewarden device enroll simulated --device 1 --rows 4 --out devices --registry fleet.registry --key-file master.key",
        "linewarden device enroll simulated --device 2 --rows 4 --out devices --registry fleet.registry --key-file master.key",
        "linewarden registry create --registry other.registry --key-file other.key",
        "linewarden evidence key --out signing.key",
        "linewarden signed keygen --scheme ed25519 --out truck",
        "linewarden certificate ca --out ca",
        "linewarden certificate controller --ca ca --out ctl --name ctl.example",
        "linewarden certificate user --ca ca --out user --name alice",
    ] {
        output(path, command_line);
    }
    for role in ["gateway", "controller"] {
        let config = output(path, &format!("linewarden-{role} config example"));
        fs::write(path.join(format!("{role}.toml")), config).unwrap();
    }
    fs::write(path.join("text"), "no registry\n").unwrap();
    fs::copy(path.join("master.key"), path.join("shared.key")).unwrap();
    fs::set_permissions(path.join("shared.key"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(path.join("short.key"), "00ff\n").unwrap();
    fs::set_permissions(path.join("short.key"), fs::Permissions::from_mode(0o600)).unwrap();
    for (name, text) in [
        ("syntax.toml", "[gateway\nid = 7\n"),
        ("unknown-key.toml", "[gateway]\nid = 7\ndataplan = \"host\"\n"),
        ("missing-key.toml", "[gateway]\ndataplane = \"host\"\n"),
        ("wrong-type.toml", "[gateway]\nid = \"seven\"\n"),
        ("out-of-range.toml", "[gateway]\nid = 4294967296\n"),
        ("wrong-value.toml", "[gateway]\nid = 7\ndataplane = \"ebpf\"\n"),
    ] {
        fs::write(path.join(name), text).unwrap();
    }
    fleet
}

const WITH_REGISTRY: &str = "--registry fleet.registry --key-file master.key";
const REMOTE: &str = "--server https://127.0.0.1:1 --server-ca ca/ca.pem --client-cert user.pem --client-key user.key --retry-for 1 --log error";

/// Command lines that fail, by subject. `REGISTRY` and `REMOTE` are replaced by the options of the registry and of a controller.
const FAILURES: &[(&str, &[&str])] = &[
    (
        "arguments",
        &[
            "linewarden devices",
            "linewarden device lst REGISTRY",
            "linewarden device list --registy fleet.registry",
            "linewarden device show 0xzz REGISTRY",
            "linewarden gateway create 7 REGISTRY",
            "linewarden-gateway run",
            "linewarden-lab bench auth --only nothing",
            "linewarden-gateway --log loud check gateway.toml",
        ],
    ),
    (
        "registry",
        &[
            "linewarden registry create REGISTRY",
            "linewarden registry check --registry missing.registry --key-file master.key",
            "linewarden registry check --registry text --key-file master.key",
            "linewarden registry check --registry fleet.registry",
            "linewarden registry check --registry fleet.registry --key-file missing.key",
            "linewarden registry check --registry fleet.registry --key-file shared.key",
            "linewarden registry check --registry fleet.registry --key-file short.key",
            "linewarden registry check --registry fleet.registry --key-file other.key",
            "linewarden registry check --registry postgres://127.0.0.1 --key-file master.key",
            "linewarden registry check --registry postgres://linewarden@127.0.0.1:1/fleet --key-file master.key",
            "linewarden registry backup fleet.registry REGISTRY",
            "linewarden registry restore --to copy.registry missing.backup",
        ],
    ),
    (
        "devices",
        &[
            "linewarden device show 9 REGISTRY",
            "linewarden device show device REGISTRY",
            "linewarden device revoke 9 --reason test REGISTRY",
            "linewarden device release 9 --reason test REGISTRY",
            "linewarden device quarantine 9 --reason test REGISTRY",
            "linewarden device enroll simulated --device 1 --rows 4 --out devices REGISTRY",
            "linewarden device enroll readouts missing --out devices REGISTRY",
            "linewarden device pair create 1 1 REGISTRY",
            "linewarden device pair create 1 9 REGISTRY",
            "linewarden device import --export-key master.key missing.export REGISTRY",
            "linewarden device import --export-key master.key text REGISTRY",
        ],
    ),
    (
        "configuration",
        &[
            "linewarden-gateway check missing.toml",
            "linewarden-gateway check syntax.toml",
            "linewarden-gateway check unknown-key.toml",
            "linewarden-gateway check missing-key.toml",
            "linewarden-gateway check wrong-type.toml",
            "linewarden-gateway check out-of-range.toml",
            "linewarden-gateway check wrong-value.toml",
            "linewarden-gateway check text",
            "linewarden-gateway check controller.toml",
            "linewarden-gateway run --config controller.toml",
            "linewarden-agent run --config gateway.toml",
            "linewarden-controller run --config gateway.toml",
        ],
    ),
    (
        "remote",
        &[
            "linewarden device list --server 127.0.0.1",
            "linewarden device list --server http://127.0.0.1:1",
            "linewarden device list --server https://127.0.0.1:1",
            "linewarden device list REMOTE",
            "linewarden device list --server https://127.0.0.1:1 --server-ca missing.pem --client-cert user.pem --client-key user.key",
            "linewarden device list --server https://127.0.0.1:1 --server-ca text --client-cert user.pem --client-key user.key",
            "linewarden device list --server https://127.0.0.1:1 --server-ca ca/ca.pem --client-cert user.pem --client-key ctl.key",
            "linewarden device list REMOTE REGISTRY",
        ],
    ),
    (
        "attestation",
        &[
            "linewarden attest group set lamps --every 0 REGISTRY",
            "linewarden attest group set Lamps! --reference text REGISTRY",
            "linewarden attest group set lamps --reference text REGISTRY",
            "linewarden attest group show lamps REGISTRY",
            "linewarden attest enroll 1 --software --group lamps REGISTRY",
            "linewarden attest show 1 REGISTRY",
            "linewarden-agent measure --config missing.toml",
            "linewarden attest round run lamps REGISTRY",
            "linewarden appraise --key signing.key.pub text",
            "linewarden-gateway evidence export --socket missing.sock --out evidence",
        ],
    ),
    (
        "signatures",
        &[
            "linewarden signed keygen --scheme rsa --out signer",
            "linewarden signed keygen --scheme ed25519 --out truck",
            "linewarden signed masks --count 10 truck",
            "linewarden signed masks --count 10 missing",
            "linewarden signed show missing",
            "linewarden signed send --to 127.0.0.1:1 missing",
            "linewarden signed receive --listen 127.0.0.1:0 --signers missing",
        ],
    ),
    (
        "switch",
        &[
            "linewarden-switch run missing.json",
            "linewarden-switch run text",
            "linewarden-lab stf missing.stf",
            "linewarden-lab stf text",
        ],
    ),
    (
        "puf",
        &["linewarden puf report missing", "linewarden puf report ."],
    ),
];

#[test]
fn errors_are_as_recorded() {
    let fleet = fleet();
    let mut count = 0;
    settings().bind(|| {
        for (subject, lines) in FAILURES {
            let mut text = String::new();
            for line in *lines {
                let command_line = line.replace("REGISTRY", WITH_REGISTRY).replace("REMOTE", REMOTE);
                let output = run(fleet.path(), &command_line);
                let code = output.status.code();
                assert_ne!(
                    code,
                    Some(0),
                    "{line}: {}",
                    String::from_utf8_lossy(&output.stdout)
                );
                let error = String::from_utf8(output.stderr).unwrap();
                // The directory has another name in each run.
                let error = error.replace(&format!("{}/", fleet.path().display()), "");
                writeln!(text, "$ {command_line}\n{error}[exit code {}]\n", code.unwrap()).unwrap();
                count += 1;
            }
            insta::assert_snapshot!(format!("errors-{subject}"), text);
        }
    });
    assert!(count >= 60, "{count}");
}
