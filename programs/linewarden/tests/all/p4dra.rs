//! `p4dra-classic` as its users run it: a gateway with `[p4dra_classic]`, and provers on a veth that answer raw frames with Forró
//! proofs. One prover does not respond, one prover has another configuration, and one prover is unknown to the gateway.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linewarden_lab::packet_socket::{PacketSocket, TxBatch};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::prover::Prover;
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, ProverId, Round};
use serde_json::{Value, json};

use crate::support::{Namespace, command, write_controller_config};

/// The reference value.
const H: [u8; 32] = [0x77; 32];
/// Numbers of the provers that send correct proofs.
const LEGITIMATE_PROVERS: [u8; 2] = [1, 2];
const UNRESPONSIVE_PROVER: u8 = 3;
const TAMPERED_PROVER: u8 = 4;
const UNKNOWN_PROVER: u8 = 5;

fn id(number: u8) -> ProverId {
    ProverId([number; 16])
}

fn prover(number: u8) -> Prover {
    let h = if number == TAMPERED_PROVER { [0x78; 32] } else { H };
    let key = AttestationKey::from_bytes([0xa0 + number; 32]);
    Prover::new(&key, id(number), &ConfigurationHash(h))
}

fn provers_file() -> String {
    let line = |number: u8| {
        let key = hex::encode([0xa0 + number; 32]);
        format!("{} {key} {}\n", id(number), hex::encode(H))
    };
    format!("# d k h\n{}", (1..=TAMPERED_PROVER).map(line).collect::<String>())
}

/// Contents of the frames that the provers' interface has received.
#[derive(Default)]
struct ObservedFrames {
    requests: Vec<Round>,
    /// Rounds and provers that were reported to the controller.
    verified: Vec<(Round, ProverId)>,
}

/// The provers and the controller, which share one interface.
struct Segment {
    socket: PacketSocket,
    batch: TxBatch,
    observed: ObservedFrames,
    gateway: [u8; 6],
}

impl Segment {
    fn run(mut self, stop: &AtomicBool) -> ObservedFrames {
        while !stop.load(Ordering::Acquire) {
            if !self.socket.wait(Duration::from_millis(50)).unwrap() {
                continue;
            }
            let mut frames = Vec::new();
            self.socket
                .receive(64, |received| frames.push(received.frame.to_vec()));
            let is_p4dra = |frame: &Vec<u8>| frame.get(12..14) == Some(&ETHER_TYPE.to_be_bytes());
            frames
                .iter()
                .filter(|frame| is_p4dra(frame))
                .for_each(|frame| self.handle_frame(frame));
            self.socket.send(&mut self.batch).unwrap();
        }
        self.observed
    }

    fn handle_frame(&mut self, frame: &[u8]) {
        assert_eq!(frame[6..12], self.gateway, "the sender is the gateway");
        match Message::parse(&frame[14..]) {
            Some(Message::Request(round)) => {
                assert_eq!((&frame[..6], frame.len()), (&[0xff; 6][..], 60));
                self.observed.requests.push(round);
                for number in LEGITIMATE_PROVERS
                    .into_iter()
                    .chain([TAMPERED_PROVER, UNKNOWN_PROVER])
                {
                    let reply = prover(number).reply(&frame[14..]).unwrap();
                    let mac = [0x52, 0x54, 0, 0, 0, number];
                    let frame = [&self.gateway[..], &mac, &ETHER_TYPE.to_be_bytes(), &reply].concat();
                    // The first prover sends its proof twice, but gets only one verdict per round.
                    (0..=usize::from(number == LEGITIMATE_PROVERS[0]))
                        .for_each(|_| assert!(self.batch.push(&frame)));
                }
            }
            Some(Message::Verified(round, id, block, proof)) => {
                assert_eq!(frame[..6], CONTROLLER);
                assert_eq!(block, proof);
                self.observed.verified.push((round, id));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn configure(directory_path: &Path, dataplane: &str) {
    let write = |name: &str, text: &str, mode| {
        std::fs::write(directory_path.join(name), text).unwrap();
        std::fs::set_permissions(directory_path.join(name), Permissions::from_mode(mode)).unwrap();
    };
    write("provers", &provers_file(), 0o600);
    let gateway = format!(
        "[gateway]\nid = 5\ndataplane = \"{dataplane}\"\ninterfaces = [\"v\"]\naddresses = [\"10.9.1.1\"]\nslots = 16\n\
         [controller]\nsocket = \"controller.sock\"\n\
         [p4dra_classic]\nprovers_file = \"provers\"\nround_s = 1\n[audit]\npath = \"audit.jsonl\"\n"
    );
    write("gateway.toml", &gateway, 0o644);
    write_controller_config(directory_path);
}

fn gateway_mac(gateway: &Namespace, directory_path: &Path) -> [u8; 6] {
    let text = gateway.run(directory_path, "ip -o link show dev v");
    let (_, rest) = text.split_once("link/ether ").unwrap();
    let pairs = rest[..17].split(':');
    let bytes: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// All provers with a correct response are verified, independent of other responses.
fn scenario(dataplane: &str) {
    let (gateway, provers) = (Namespace::require(), Namespace::require());
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    configure(directory_path, dataplane);
    let peer = provers.pid();
    gateway.run(
        directory_path,
        &format!("ip link add v type veth peer name p4 netns {peer}"),
    );
    gateway.run(directory_path, "ip addr add 10.9.1.1/24 dev v");
    gateway.run(directory_path, "ip link set v up");
    provers.run(directory_path, "ip link set dev p4 up");
    gateway.run(
        directory_path,
        "linewarden registry create --registry fleet.registry --key-file master.key",
    );
    let _program = provers.accept_xdp(directory_path, "p4");
    let segment = Segment {
        socket: provers.packet_socket(directory_path, "p4"),
        batch: TxBatch::new(1024),
        observed: ObservedFrames::default(),
        gateway: gateway_mac(&gateway, directory_path),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let segment_thread = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || segment.run(&stop)
    });
    let _controller = gateway.start_controller(directory_path);
    let mut command = command(
        directory_path,
        "linewarden-gateway run --config gateway.toml --json --status-interval 1",
    );
    command.stderr(File::create(directory_path.join("log")).unwrap());
    let gateway_process = gateway.start_command(command);
    let all_verified =
        |line: &Value| line["p4dra"]["verified"] == LEGITIMATE_PROVERS.len() && line["p4dra"]["missed"] == 2;
    gateway_process.wait_for("a round with all correct proofs verified", all_verified);
    for verdict in ["drop_p4dra_proof", "drop_p4dra_prover", "drop_p4dra_proved"] {
        gateway_process.wait_for_count(verdict, 1);
    }
    // Requests on an interface that is down reach no prover. The gateway reports this failure until the interface is up again.
    gateway.run(directory_path, "ip link set v down");
    let unsent_round = gateway_process.wait_for("round that is not sent", |line| {
        line["p4dra"]["incomplete"]
            .as_u64()
            .is_some_and(|unsent_round| unsent_round > 0)
    });
    gateway.run(directory_path, "ip link set v up");
    let rounds = |line: &Value| line["p4dra"]["rounds"].as_u64();
    gateway_process.wait_for("another round with all correct proofs verified", |line| {
        all_verified(line) && rounds(line) > rounds(&unsent_round)
    });
    let lines = gateway_process.terminate();
    stop.store(true, Ordering::Release);
    let observed = segment_thread.join().unwrap();
    for line in lines.iter().filter(|line| line["p4dra"].is_object()) {
        assert_eq!(line["p4dra"]["provers"], 4);
        assert!(
            line["p4dra"]["verified"].as_u64().unwrap() <= LEGITIMATE_PROVERS.len() as u64,
            "{line}"
        );
        assert_eq!(line["attest"]["quarantined"], 0);
    }
    check_reports(&observed);
    check_audit_log(directory_path);
    let log = std::fs::read_to_string(directory_path.join("log")).unwrap();
    assert!(log.contains("p4dra-classic is enabled; it is insecure"), "{log}");
    assert!(log.contains("round of p4dra-classic ended"), "{log}");
    assert!(log.contains("sending a request of p4dra-classic failed"), "{log}");
    assert!(
        log.contains("sending a p4dra-classic REQUEST on interface v: "),
        "{log}"
    );
    assert!(
        log.contains("sending requests of p4dra-classic succeeds again"),
        "{log}"
    );
    assert!(
        !log.contains(&hex::encode([0xa0 + LEGITIMATE_PROVERS[0]; 32])),
        "no key is logged"
    );
}

/// Checks that all requested rounds differ, and that each report is about a legitimate prover in a requested round. No report
/// is repeated.
fn check_reports(observed: &ObservedFrames) {
    let rounds: BTreeSet<_> = observed.requests.iter().map(|round| (round.r, round.n)).collect();
    assert_eq!(rounds.len(), observed.requests.len());
    assert!(rounds.len() >= 2, "a completed round and the next round");
    let reported: BTreeSet<_> = observed
        .verified
        .iter()
        .map(|(round, id)| (round.r, round.n, *id))
        .collect();
    assert_eq!(reported.len(), observed.verified.len());
    assert!(reported.iter().all(|(r, n, _)| rounds.contains(&(*r, *n))));
    let ids: BTreeSet<_> = reported.iter().map(|(.., id)| *id).collect();
    assert_eq!(ids, BTreeSet::from(LEGITIMATE_PROVERS.map(id)));
}

/// Checks that the gateway audit log names the round and the provers that missed the round.
fn check_audit_log(directory_path: &Path) {
    let text = std::fs::read_to_string(directory_path.join("audit.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rounds: Vec<Value> = lines.filter(|line| line["event"] == "p4dra_round").collect();
    let record = rounds
        .iter()
        .find(|line| line["verified"] == LEGITIMATE_PROVERS.len());
    let record = record.unwrap_or_else(|| panic!("{text}"));
    assert_eq!((&record["requested"], &record["missed"]), (&json!(4), &json!(2)));
    assert_eq!(record["is_incomplete"], false);
    let expected_missed = [UNRESPONSIVE_PROVER, TAMPERED_PROVER].map(|number| id(number).to_string());
    assert_eq!(record["missed_ids"], json!(expected_missed));
    let unsent_round = rounds.iter().find(|line| line["is_incomplete"] == true);
    let unsent_round = unsent_round.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        (&unsent_round["verified"], &unsent_round["missed"]),
        (&json!(0), &json!(4))
    );
    let numbers: Vec<u64> = rounds
        .iter()
        .map(|line| line["round"].as_u64().unwrap())
        .collect();
    assert!(
        numbers.iter().copied().eq(1..=numbers.len() as u64),
        "{numbers:?}"
    );
}

#[test]
fn provers_are_challenged_and_verified_by_xdp() {
    scenario("xdp");
}

#[test]
fn provers_are_challenged_and_verified_by_host() {
    scenario("host");
}
