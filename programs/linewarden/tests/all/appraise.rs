//! `linewarden appraise` and `evidence key`, with statements of an `xdp` and a `p4` data plane.

use std::path::Path;

use linewarden_evidence::encoding::{
    Action, ActionRef, Bits, BpfMapEntry, BpfProgram, DefaultAction, Entry, KeyField, Match, TableEntry,
};
use linewarden_evidence::keys::Ed25519Signer;
use linewarden_evidence::state::{MeasuredState, bpf_digest, program_digest};
use linewarden_evidence::statement::{DataPlaneKind, Inventory, Nonce, Statement};
use linewarden_evidence::{BootCount, SwitchId};

use crate::support::{command, write_controller_config};

const NONCE: [u8; 32] = [0x5a; 32];

/// Writes a statement, signed with the key in `signer.key`, and its inventory.
fn write_statement(path: &Path, name: &str, kind: DataPlaneKind, measured: &mut MeasuredState) {
    let key = std::fs::read_to_string(path.join("signer.key")).unwrap();
    let statement = Statement {
        kind,
        snapshot: measured.snapshot(),
        objects: measured.objects(),
        exclusions: vec!["packets".to_owned()],
        software_version: "1".to_owned(),
    };
    let mut signer = Ed25519Signer::from_pem(&key).unwrap();
    let signed = statement.sign(Nonce(NONCE), &mut signer).unwrap();
    std::fs::write(path.join(format!("{name}.cose")), signed).unwrap();
    let entries: Vec<_> = measured.entries().map(|entry| entry.to_bytes()).collect();
    let inventory = Inventory::new(entries.iter().map(Vec::as_slice)).unwrap();
    std::fs::write(path.join(format!("{name}.inventory")), inventory.to_bytes()).unwrap();
}

fn route_to_port(port: u64) -> Entry {
    let data = vec![Bits::from_u64(9, port).unwrap()];
    let name = "forward".to_owned();
    TableEntry {
        table: "ingress.routes".to_owned(),
        key: vec![KeyField {
            name: "dst".to_owned(),
            matches: Match::exact(Bits::from_u64(32, 0x0a00_0001).unwrap()),
        }],
        priority: 0,
        action: ActionRef::Action(Action { name, data }),
        idle_timeout_ns: 0,
    }
    .into()
}

fn switch() -> MeasuredState {
    let mut measured = MeasuredState::new(SwitchId(7), BootCount(1), program_digest(b"a program"));
    measured.put(&route_to_port(1)).unwrap();
    let table = "ingress.routes".to_owned();
    let default = DefaultAction {
        table,
        is_const: false,
        action: None,
    };
    measured.put(&default.into()).unwrap();
    measured
}

fn gateway() -> MeasuredState {
    let program = BpfProgram {
        name: "linewarden_gateway".to_owned(),
        instructions: [3; 32],
    };
    let mut measured = MeasuredState::new(SwitchId(5), BootCount(1), bpf_digest([program.clone()]));
    measured.put(&program.into()).unwrap();
    measured
}

/// Runs a command. Returns the exit code, standard output and standard error.
fn run(path: &Path, command_line: &str) -> (i32, String, String) {
    let output = command(path, command_line).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A directory with a key, and reference values of a switch and of a gateway.
fn site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["signer", "other"] {
        let (code, public, _) = run(path, &format!("linewarden evidence key --out {name}.key"));
        assert_eq!(code, 0);
        assert!(public.starts_with("-----BEGIN PUBLIC KEY"), "{public}");
        let (_, printed, _) = run(path, &format!("linewarden evidence key --show {name}.key"));
        assert_eq!(printed, public);
        std::fs::write(path.join(format!("{name}.pub")), public).unwrap();
    }
    write_statement(path, "p4", DataPlaneKind::P4, &mut switch());
    write_statement(path, "xdp", DataPlaneKind::Xdp, &mut gateway());
    for name in ["p4", "xdp"] {
        let arguments = format!(
            "linewarden appraise {name}.cose --key signer.pub --inventory {name}.inventory --make-reference {name}.reference \
             --signing-key other.key"
        );
        let (code, output, error) = run(path, &arguments);
        assert_eq!(code, 0, "{output}{error}");
    }
    directory
}

fn appraise_arguments(name: &str, reference: &str) -> String {
    let nonce = hex::encode(NONCE);
    format!(
        "linewarden appraise {name}.cose --key signer.pub --nonce {nonce} --inventory {name}.inventory --reference {reference}"
    )
}

#[test]
fn a_matching_statement_is_affirmed_for_either_kind() {
    let directory = site();
    let path = directory.path();
    for name in ["p4", "xdp"] {
        let appraise_arguments = appraise_arguments(
            name,
            &format!("{name}.reference --reference-key other.pub --ear {name}.ear"),
        );
        let (code, output, error) = run(path, &appraise_arguments);
        assert_eq!((code, error.as_str()), (0, ""), "{output}");
        assert!(output.contains("no differences"), "{output}");
        let ear: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path.join(format!("{name}.ear"))).unwrap()).unwrap();
        let submods = ear["submods"].as_object().unwrap();
        assert!(
            submods.values().all(|submod| submod["ear_status"] == "affirming"),
            "{ear}"
        );
    }
}

#[test]
fn differences_are_named_by_table_and_entry() {
    let directory = site();
    let path = directory.path();
    let mut measured = switch();
    measured.put(&route_to_port(2)).unwrap();
    write_statement(path, "p4", DataPlaneKind::P4, &mut measured);
    let (code, output, error) = run(path, &appraise_arguments("p4", "p4.reference"));
    assert_eq!(code, 1, "{output}{error}");
    assert!(output.contains("table ingress.routes: differs"), "{output}");
    assert!(
        output.contains("forward(") && output.contains(" is now "),
        "{output}"
    );
    assert!(error.contains("1 difference"), "{error}");

    let mut measured = gateway();
    let entry = BpfMapEntry {
        map: "control".to_owned(),
        key: vec![0],
        value: vec![9],
    };
    measured.put(&entry.into()).unwrap();
    write_statement(path, "xdp", DataPlaneKind::Xdp, &mut measured);
    let (code, output, _) = run(
        path,
        &format!("{} --output json", appraise_arguments("xdp", "xdp.reference")),
    );
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, &report["affirmed"]), (1, &false.into()));
    assert!(
        report["differences"][0].as_str().unwrap().contains("control"),
        "{output}"
    );
    // Reference values of one data plane do not match another data plane.
    let (code, output, _) = run(path, &appraise_arguments("xdp", "p4.reference"));
    assert_eq!(code, 1);
    assert!(
        output.contains("data plane 5, not 7") && output.contains("kind xdp, not p4"),
        "{output}"
    );
}

#[test]
fn forged_or_old_statements_are_rejected() {
    let directory = site();
    let path = directory.path();
    let valid = appraise_arguments("p4", "p4.reference");
    for (appraise_arguments, cause) in [
        (
            valid.replace("signer.pub", "other.pub"),
            "signature does not verify",
        ),
        (valid.replace("5a5a", "5a5b"), "its nonce differs"),
    ] {
        let (code, _, error) = run(path, &appraise_arguments);
        assert_eq!(code, 1, "{error}");
        assert!(
            error.contains("statement is not authentic") && error.contains(cause),
            "{error}"
        );
    }
    let (code, _, error) = run(
        path,
        &valid.replace(&format!("--nonce {} ", hex::encode(NONCE)), ""),
    );
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("statement verified without --nonce"), "{error}");
}

#[test]
fn damaged_files_are_rejected_with_the_cause() {
    let directory = site();
    let path = directory.path();
    let reference = std::fs::read_to_string(path.join("p4.reference")).unwrap();
    let write_damaged = |from: &str, to: &str| {
        assert!(reference.contains(from));
        std::fs::write(path.join("bad.reference"), reference.replacen(from, to, 1)).unwrap();
    };
    for (from, to, cause) in [
        ("\"kind\": \"p4\"", "\"kind\": \"p5\"", "unknown variant `p5`"),
        ("ingress.routes", "ingress.rootes", "SHA-256"),
        ("\"tables\"", "\"tabels\"", "tabels"),
    ] {
        write_damaged(from, to);
        let (code, _, error) = run(path, &appraise_arguments("p4", "bad.reference"));
        assert_eq!(code, 2, "{error}");
        assert!(
            error.contains("bad.reference") && error.contains(cause),
            "{error}"
        );
    }
    let (code, _, error) = run(
        path,
        &appraise_arguments("p4", "p4.reference --reference-key signer.pub"),
    );
    assert_eq!(code, 2);
    assert!(error.contains("they were signed by another key"), "{error}");
    std::fs::write(
        path.join("p4.inventory"),
        std::fs::read(path.join("xdp.inventory")).unwrap(),
    )
    .unwrap();
    let (code, _, error) = run(path, &appraise_arguments("p4", "p4.reference"));
    assert_eq!(code, 2);
    assert!(error.contains("p4.inventory"), "{error}");
}

#[test]
fn only_a_data_plane_that_can_be_measured_can_be_trusted() {
    let directory = site();
    let path = directory.path();
    let gateway = "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n\
                   [controller]\nsocket = \"controller.sock\"\n\
                   [evidence]\nkey = \"signer.key\"\nboot_count = \"count\"\n";
    std::fs::write(path.join("gateway.toml"), gateway).unwrap();
    let (code, _, error) = run(path, "linewarden-gateway check gateway.toml");
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("evidence: the host data plane"), "{error}");
    let check_trust = |gateway: u32, every_s: u32| {
        write_controller_config(path);
        let mut text = std::fs::read_to_string(path.join("controller.toml")).unwrap();
        text += &format!(
            "[trust.{gateway}]\nreference = \"xdp.reference\"\nkey = \"signer.pub\"\nevery_s = {every_s}\n"
        );
        std::fs::write(path.join("controller.toml"), text).unwrap();
        run(path, "linewarden-controller check --machine controller.toml")
    };
    let (code, _, error) = check_trust(5, 0);
    assert_eq!(code, 2, "{error}");
    assert!(
        error.contains("trust.5.every_s: 0: expected a whole number from 1 to 86400"),
        "{error}"
    );
    run(
        path,
        "linewarden registry create --registry fleet.registry --key-file master.key",
    );
    let (code, _, error) = check_trust(5, 1);
    assert_eq!(code, 0, "{error}");
    let (code, _, error) = check_trust(6, 1);
    assert_eq!(code, 2, "{error}");
    assert!(
        error.contains("trust.6.reference: reference values are of data plane 5; this gateway's is 6"),
        "{error}"
    );
}
