//! The texts that operators read, as the program prints them: the help of every command, and the most likely errors.
//!
//! The recorded texts are in `tests/snapshots`. After a deliberate change: `INSTA_UPDATE=always cargo test -p linewarden --test
//! snapshots`, then read and commit the difference.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use insta::Settings;

fn linewarden(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linewarden"))
        .args(arguments)
        .current_dir(directory)
        .env_remove("COLUMNS")
        .env_remove("LINEWARDEN_LOG")
        .env_remove("LINEWARDEN_MASTER_KEY")
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

fn settings() -> Settings {
    let mut settings = Settings::new();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings
}

/// Appends the help of a command and of its subcommands.
fn append_help(command: &[&str], text: &mut String) {
    let output = linewarden(Path::new("."), &[command, &["--help"]].concat());
    assert!(output.status.success(), "{command:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    writeln!(text, "$ linewarden {} --help\n{help}", command.join(" ")).unwrap();
    let subcommands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in subcommands.take_while(|line| line.starts_with("  ")) {
        let name = line.split_whitespace().next().unwrap();
        // Continued descriptions are indented further.
        if name != "help" && !line.starts_with("    ") {
            append_help(&[command, &[name]].concat(), text);
        }
    }
}

#[test]
fn help_texts_are_as_recorded() {
    let top = String::from_utf8(linewarden(Path::new("."), &["--help"]).stdout).unwrap();
    let commands = top.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<_> = commands.take_while(|line| line.starts_with("  ")).collect();
    assert!(commands.len() > 20, "{top}");
    settings().bind(|| {
        insta::assert_snapshot!("help", top);
        for line in commands {
            let name = line.split_whitespace().next().unwrap();
            if name != "help" {
                let mut text = String::new();
                append_help(&[name], &mut text);
                insta::assert_snapshot!(format!("help-{name}"), text);
            }
        }
    });
}

/// A directory with a registry of two simulated devices, its key, and the other files that the failing commands need.
fn fleet() -> tempfile::TempDir {
    let fleet = tempfile::tempdir().unwrap();
    let path = fleet.path();
    for arguments in [
        &[
            "registry",
            "create",
            "--registry",
            "fleet.registry",
            "--key-file",
            "master.key",
        ][..],
        &[
            "device",
            "enroll",
            "simulated",
            "--device",
            "1",
            "--rows",
            "4",
            "--out",
            "devices",
            "--registry",
            "fleet.registry",
            "--key-file",
            "master.key",
        ],
        &[
            "device",
            "enroll",
            "simulated",
            "--device",
            "2",
            "--rows",
            "4",
            "--out",
            "devices",
            "--registry",
            "fleet.registry",
            "--key-file",
            "master.key",
        ],
        &[
            "registry",
            "create",
            "--registry",
            "other.registry",
            "--key-file",
            "other.key",
        ],
        &["evidence", "key", "--out", "signing.key"],
        &["signed", "keygen", "--scheme", "ed25519", "--out", "truck"],
        &["certificate", "ca", "--out", "ca"],
        &[
            "certificate",
            "controller",
            "--ca",
            "ca",
            "--out",
            "ctl",
            "--name",
            "ctl.example",
        ],
        &[
            "certificate",
            "user",
            "--ca",
            "ca",
            "--out",
            "user",
            "--name",
            "alice",
        ],
    ] {
        let output = linewarden(path, arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
    }
    let config =
        |kind: &str| String::from_utf8(linewarden(path, &["config", "example", kind]).stdout).unwrap();
    fs::write(path.join("gateway.toml"), config("gateway")).unwrap();
    fs::write(path.join("controller.toml"), config("controller")).unwrap();
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
            "devices",
            "device lst REGISTRY",
            "device list --registy fleet.registry",
            "device show 0xzz REGISTRY",
            "gateway create 7 REGISTRY",
            "serve",
            "bench auth --only nothing",
            "--log loud check gateway.toml",
        ],
    ),
    (
        "registry",
        &[
            "registry create REGISTRY",
            "registry check --registry missing.registry --key-file master.key",
            "registry check --registry text --key-file master.key",
            "registry check --registry fleet.registry",
            "registry check --registry fleet.registry --key-file missing.key",
            "registry check --registry fleet.registry --key-file shared.key",
            "registry check --registry fleet.registry --key-file short.key",
            "registry check --registry fleet.registry --key-file other.key",
            "registry check --registry postgres://127.0.0.1 --key-file master.key",
            "registry check --registry postgres://linewarden@127.0.0.1:1/fleet --key-file master.key",
            "registry backup fleet.registry REGISTRY",
            "registry restore --to copy.registry missing.backup",
        ],
    ),
    (
        "devices",
        &[
            "device show 9 REGISTRY",
            "device show device REGISTRY",
            "device revoke 9 --reason test REGISTRY",
            "device release 9 --reason test REGISTRY",
            "device quarantine 9 --reason test REGISTRY",
            "device enroll simulated --device 1 --rows 4 --out devices REGISTRY",
            "device enroll readouts missing --out devices REGISTRY",
            "device pair create 1 1 REGISTRY",
            "device pair create 1 9 REGISTRY",
            "device import --export-key master.key missing.export REGISTRY",
            "device import --export-key master.key text REGISTRY",
        ],
    ),
    (
        "configuration",
        &[
            "check missing.toml",
            "check syntax.toml",
            "check unknown-key.toml",
            "check missing-key.toml",
            "check wrong-type.toml",
            "check out-of-range.toml",
            "check wrong-value.toml",
            "check text",
            "serve --config controller.toml",
            "agent --config gateway.toml",
            "controller --config gateway.toml",
        ],
    ),
    (
        "remote",
        &[
            "device list --server 127.0.0.1",
            "device list --server http://127.0.0.1:1",
            "device list --server https://127.0.0.1:1",
            "device list REMOTE",
            "device list --server https://127.0.0.1:1 --server-ca missing.pem --client-cert user.pem --client-key user.key",
            "device list --server https://127.0.0.1:1 --server-ca text --client-cert user.pem --client-key user.key",
            "device list --server https://127.0.0.1:1 --server-ca ca/ca.pem --client-cert user.pem --client-key ctl.key",
            "device list REMOTE REGISTRY",
        ],
    ),
    (
        "attestation",
        &[
            "attest group set lamps --every 0 REGISTRY",
            "attest group set Lamps! --reference text REGISTRY",
            "attest group set lamps --reference text REGISTRY",
            "attest group show lamps REGISTRY",
            "attest enroll 1 --software --group lamps REGISTRY",
            "attest explain 1 REGISTRY",
            "attest measure --config missing.toml",
            "attest round lamps REGISTRY",
            "appraise --key signing.key.pub text",
            "evidence export --socket missing.sock --out evidence",
        ],
    ),
    (
        "signatures",
        &[
            "signed keygen --scheme rsa --out signer",
            "signed keygen --scheme ed25519 --out truck",
            "signed masks --count 10 truck",
            "signed masks --count 10 missing",
            "signed show missing",
            "signed send --to 127.0.0.1:1 missing",
            "signed receive --listen 127.0.0.1:0 --signers missing",
        ],
    ),
    (
        "switch",
        &[
            "switch run missing.json",
            "switch run text",
            "switch stf missing.stf",
            "switch stf text",
        ],
    ),
    ("puf", &["puf report missing", "puf report ."]),
];

#[test]
fn errors_are_as_recorded() {
    let fleet = fleet();
    let mut count = 0;
    settings().bind(|| {
        for (subject, lines) in FAILURES {
            let mut text = String::new();
            for line in *lines {
                let command = line.replace("REGISTRY", WITH_REGISTRY).replace("REMOTE", REMOTE);
                let arguments: Vec<_> = command.split(' ').collect();
                let output = linewarden(fleet.path(), &arguments);
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
                writeln!(
                    text,
                    "$ linewarden {command}\n{error}[exit code {}]\n",
                    code.unwrap()
                )
                .unwrap();
                count += 1;
            }
            insta::assert_snapshot!(format!("errors-{subject}"), text);
        }
    });
    assert!(count >= 60, "{count}");
}
