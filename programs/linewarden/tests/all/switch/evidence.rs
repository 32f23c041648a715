//! Evidence of `linewarden-switch run`: in packets, and as a signed statement on request.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use linewarden_evidence::inband::{Appraiser, MasterKey, read_clone, read_option};
use linewarden_evidence::state::Digests;
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_switch::evidence::{EvidenceSettings, Identity};
use linewarden_switch::switch::{Settings, Switch};
use linewarden_switch::tables::HashSeed;
use serde_json::Value;

use super::{compiled, expect_failure};
use crate::emulator::{self, Emulator, TpmManufacturer};
use crate::support::capture::{capture, ipv6, read_capture};
use crate::support::{Namespace, Process, command, key_file};

const PACKET_KEY: &str = "000102030405060708090a0b0c0d0e0f";

fn program(name: &str) -> String {
    compiled(name).display().to_string()
}

/// The measurement of a switch that runs a program without table entries.
fn digests(name: &str) -> Digests {
    let json = std::fs::read(program(name)).unwrap();
    let mut switch = Switch::new(&json, Settings::default(), &HashSeed::new([1; 4])).unwrap();
    let settings = EvidenceSettings {
        identity: Identity::new(SwitchId(1), BootCount(1)),
        in_band: None,
        cpu_port: None,
        volatile_registers: BTreeSet::new(),
    };
    switch
        .start_attestation(settings, None)
        .unwrap()
        .snapshot()
        .unwrap()
        .digests
}

fn output(directory_path: &Path, command_line: &str) -> Output {
    command(directory_path, command_line).output().unwrap()
}

/// Frames enter at p0 and leave at p1. The evidence is in these frames, or in separate frames at p2. Each case starts the switch
/// again, so each case has the next boot count.
#[test]
fn evidence_in_packets_is_verified_with_the_packet_key() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    key_file(directory_path, "packet", &format!("{PACKET_KEY}\n"), 0o600);
    let sent: Vec<Vec<u8>> = (0..5).map(|byte| ipv6(&[byte; 40])).collect();
    let mut key = [0; 16];
    hex::decode_to_slice(PACKET_KEY, &mut key).unwrap();
    let mut appraiser = Appraiser::new(MasterKey::new(key));
    let known_digests = digests("evidence");
    for (boot, evidence_options) in [(1, "option"), (2, "clone --evidence-port 2"), (3, "option")] {
        std::fs::write(directory_path.join("p0_in.pcap"), capture(&sent)).unwrap();
        for port in ["p1", "p2"] {
            std::fs::write(directory_path.join(format!("{port}_in.pcap")), capture(&[])).unwrap();
        }
        let arguments = format!(
            "linewarden-switch run --output json {} --use-files 0 -i 0@p0 -i 1@p1 -i 2@p2 --grpc-server-addr 127.0.0.1:0 \
             --switch-id 77 --boot-count boots --evidence-in {evidence_options} --packet-key packet.key",
            program("evidence")
        );
        let run_output = output(directory_path, &arguments);
        assert!(
            run_output.status.success(),
            "{}",
            String::from_utf8_lossy(&run_output.stderr)
        );
        let text = String::from_utf8(run_output.stdout).unwrap();
        let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(report["forged"], 0, "{text}");
        let (capture_name, read_evidence): (_, fn(&[u8]) -> _) = match evidence_options {
            "option" => ("p1_out.pcap", read_option),
            _ => ("p2_out.pcap", read_clone),
        };
        let evidence_frames = read_capture(&directory_path.join(capture_name));
        assert_eq!(evidence_frames.len(), sent.len());
        for frame in &evidence_frames {
            let evidence = read_evidence(frame).unwrap().unwrap();
            let content = evidence.content;
            assert_eq!(
                (content.switch, content.boot_count),
                (SwitchId(77), BootCount(boot))
            );
            appraiser.appraise(&evidence, &known_digests).unwrap();
            assert!(
                appraiser.appraise(&evidence, &known_digests).is_err(),
                "the same evidence was accepted twice"
            );
        }
    }
}

#[test]
fn invalid_evidence_options_are_rejected_and_do_not_increase_the_boot_count() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    std::fs::write(directory_path.join("p0_in.pcap"), capture(&[])).unwrap();
    let run = format!(
        "linewarden-switch run {} --use-files 0 -i 0@p0",
        program("evidence")
    );
    let attest = format!("{run} --switch-id 7 --boot-count boots");
    std::fs::write(directory_path.join("open.key"), PACKET_KEY).unwrap();
    key_file(directory_path, "short", "00ff", 0o600);
    for (arguments, code, cause) in [
        (format!("{run} --switch-id 7"), 2, "--boot-count"),
        (format!("{run} --evidence-in option"), 2, "--switch-id"),
        (format!("{attest} --evidence-in option"), 2, "--packet-key"),
        (
            format!("{attest} --packet-key short.key"),
            2,
            "32 hexadecimal digits",
        ),
        (format!("{attest} --packet-key open.key"), 4, "open.key"),
        (format!("{attest} --evidence-key none.key"), 2, "none.key"),
    ] {
        let errors = expect_failure(directory_path, &arguments, code);
        assert!(errors.contains(cause), "{arguments}: {errors}");
        assert!(!directory_path.join("boots").exists(), "{arguments}");
    }
    let errors = expect_failure(
        directory_path,
        &format!("{attest} --volatile no.such.array --grpc-server-addr 127.0.0.1:0"),
        2,
    );
    assert!(errors.contains("no.such.array"), "{errors}");
    std::fs::write(
        directory_path.join("boots"),
        "linewarden count 1: 7 0000000000000000\n",
    )
    .unwrap();
    let errors = expect_failure(directory_path, &attest, 2);
    assert!(errors.contains("boots") && errors.contains("damaged"), "{errors}");
}

/// A namespace for a switch and its clients.
struct Site {
    directory: tempfile::TempDir,
    namespace: Namespace,
}

impl Site {
    fn new() -> Self {
        let namespace = Namespace::require();
        let directory = tempfile::tempdir().unwrap();
        for arguments in [
            "ip link set dev lo up",
            "ip link add name h0 type veth peer name p0",
            "ip link set dev h0 up",
            "ip link set dev p0 up",
        ] {
            namespace.run(directory.path(), arguments);
        }
        Self { directory, namespace }
    }

    fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a switch with this program, which signs evidence with switch.key. Returns the process and its P4Runtime address.
    fn start(&self, program_name: &str, options: &str) -> (Process, String) {
        let arguments = run_arguments(program_name, options);
        let switch = self.namespace.start(self.directory_path(), &arguments);
        let server_line = switch.wait_for("server", |line| line["p4runtime"].is_string());
        let address = server_line["p4runtime"].as_str().unwrap().to_owned();
        (switch, address)
    }

    /// Requests evidence of the switch at this address. `verb` is the command of `evidence`, with its options.
    fn request(&self, address: &str, verb: &str) -> Value {
        let arguments = format!("linewarden-switch evidence {verb} --output json --grpc-addr {address}");
        let lines = self
            .namespace
            .start(self.directory_path(), &arguments)
            .wait_for_success();
        lines.last().unwrap().clone()
    }

    fn make_reference(&self) {
        let reference_output = output(
            self.directory_path(),
            "linewarden appraise router.cose --key switch.pub --inventory router.inventory --make-reference router.reference",
        );
        assert!(
            reference_output.status.success(),
            "{}",
            String::from_utf8_lossy(&reference_output.stderr)
        );
    }

    /// Appraises now.cose with this nonce. Returns whether the verdict is affirming, and the output.
    fn appraise(&self, nonce: &str) -> (bool, String) {
        let arguments = format!(
            "linewarden appraise now.cose --key switch.pub --nonce {nonce} --inventory now.inventory --reference router.reference"
        );
        let appraised = output(self.directory_path(), &arguments);
        let text = String::from_utf8_lossy(&appraised.stdout).into_owned();
        (appraised.status.success(), text)
    }
}

fn run_arguments(program_name: &str, options: &str) -> String {
    format!(
        "linewarden-switch run --output json {} -i 0@p0 --grpc-server-addr 127.0.0.1:0 --switch-id 9 --boot-count boots \
         --evidence-key switch.key {options}",
        program(program_name)
    )
}

#[test]
fn an_exported_statement_is_signed_and_appraised() {
    let site = Site::new();
    let key_output = output(
        site.directory_path(),
        "linewarden-switch evidence key --out switch.key",
    );
    std::fs::write(site.directory_path().join("switch.pub"), &key_output.stdout).unwrap();
    let (switch, address) = site.start("router", "");
    let first = site.request(&address, "show");
    assert_eq!(
        (&first["switch_id"], &first["boot_count"]),
        (&9.into(), &1.into())
    );
    site.request(&address, "export --out router.cose --inventory router.inventory");
    switch.terminate();
    site.make_reference();
    for (name, boot, affirmed) in [("router", 2, true), ("evidence", 3, false)] {
        let (switch, address) = site.start(name, "");
        assert_eq!(site.request(&address, "show")["boot_count"], boot);
        let nonce = hex::encode([boot as u8; 32]);
        site.request(
            &address,
            &format!("export --out now.cose --inventory now.inventory --nonce {nonce} --force"),
        );
        switch.terminate();
        let (is_affirmed, text) = site.appraise(&nonce);
        assert_eq!(is_affirmed, affirmed, "{text}");
        assert_eq!(text.contains("RouterIngress.routes4"), !affirmed, "{text}");
    }
}

/// Each TPM is an emulator in the switch's namespace. Only the TPM that created the key can use switch.key.
#[test]
fn the_evidence_key_can_be_in_a_tpm() {
    emulator::require();
    let site = Site::new();
    let manufacturer = TpmManufacturer::new();
    let start_tpm = || {
        let inside = site.namespace.inside();
        inside.run(|| Emulator::made_by(&manufacturer)).unwrap()
    };
    let (tpm, other_tpm) = (start_tpm(), start_tpm());
    let command_line = format!(
        "linewarden-switch evidence key --tpm {} --out switch.key",
        tpm.tcti()
    );
    let public = site.namespace.run(site.directory_path(), &command_line);
    assert!(public.starts_with("-----BEGIN PUBLIC KEY-----"), "{public}");
    std::fs::write(site.directory_path().join("switch.pub"), public).unwrap();
    let (switch, address) = site.start("router", &format!("--evidence-tpm {}", tpm.tcti()));
    site.request(&address, "export --out router.cose --inventory router.inventory");
    site.make_reference();
    let nonce = hex::encode([7; 32]);
    site.request(
        &address,
        &format!("export --out now.cose --inventory now.inventory --nonce {nonce}"),
    );
    let (is_affirmed, text) = site.appraise(&nonce);
    assert!(is_affirmed, "{text}");
    assert!(
        !site.appraise(&hex::encode([8; 32])).0,
        "a statement with another nonce was affirmed"
    );
    switch.terminate();
    for (options, code) in [
        (format!("--evidence-tpm {}", other_tpm.tcti()), 1),
        (String::new(), 2),
    ] {
        let switch = site
            .namespace
            .start(site.directory_path(), &run_arguments("router", &options));
        let (exit_code, lines) = switch.wait_for_exit();
        assert_eq!(exit_code, code, "{options}: {lines:?}");
    }
    let (switch, _) = site.start("router", &format!("--evidence-tpm {}", tpm.tcti()));
    switch.terminate();
}
