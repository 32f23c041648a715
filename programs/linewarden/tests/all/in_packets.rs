//! Evidence in the packets of an `xdp` gateway: from a device through the bound gate to a service, which appraises the
//! evidence with the gateway's signed statement. Each party is in its own network namespace.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Instant;

use linewarden_evidence::inband::{
    Appraiser, Content, MasterKey, PacketEvidence, PacketEvidenceError, read_option,
};
use linewarden_evidence::keys::PublicKey;
use linewarden_evidence::state::Snapshot;
use linewarden_evidence::statement::verify_recorded;
use linewarden_lab::address::{DEVICE_HOST, GATEWAY, SERVICE};
use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use linewarden_lab::netns::NetNs;
use linewarden_lab::packet_socket::{Options, PacketSocket};
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::wire::LAP_PORT;
use nix::sys::signal::Signal;

use crate::control_map;
use crate::support::{
    self, BpfFilesystem, Process, TEST_TIMEOUT, assert_echoed, command, key_file, require, start_controller,
    write_controller_config,
};

/// UDP and TCP port of the service.
const PORT: u16 = 5683;
/// Length of a TCP stream that needs many packets of the maximum size.
const STREAM_BYTES: usize = 300_000;
const PACKET_KEY: &str = "000102030405060708090a0b0c0d0e0f";

struct Site {
    lab: Lab,
    gateway: Process,
    _controller: Process,
    _agent: Process,
    service_frames: PacketSocket,
    appraiser: Appraiser,
    key: PublicKey,
    _filesystem: BpfFilesystem,
    directory: tempfile::TempDir,
}

fn socket(namespace: &NetNs, ip: impl Into<IpAddr>, port: u16) -> UdpSocket {
    let address = SocketAddr::new(ip.into(), port);
    namespace.run(|| UdpSocket::bind(address).unwrap()).unwrap()
}

fn run(namespace: &NetNs, directory: &Path, command_line: &str) -> String {
    namespace
        .run(|| support::run(command(directory, command_line)))
        .unwrap()
}

fn start(namespace: &NetNs, directory: &Path, command_line: &str) -> Process {
    namespace
        .run(|| Process::start(command(directory, command_line)))
        .unwrap()
}

impl Site {
    fn new() -> Self {
        let lab = Lab::build(&Topology::default()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path();
        let filesystem = BpfFilesystem::mount();
        let text = format!(
            "[gateway]\nid = 5\ninterfaces = [\"{}\"]\naddresses = [\"{}\", \"{}\"]\ngate = \"bound\"\nslots = 16\n\
             pin_directory = \"{}/gates\"\n[controller]\nsocket = \"controller.sock\"\n\
             [evidence]\nkey = \"gateway.evidence-key\"\nboot_count = \"boots\"\nsocket = \"evidence.sock\"\n\
             in_packets = \"option\"\npacket_key_file = \"packet.key\"\n",
            lab.gateway_devices_end.name,
            GATEWAY.v4,
            GATEWAY.v6,
            filesystem.path().display()
        );
        std::fs::write(directory_path.join("gateway.toml"), text).unwrap();
        write_controller_config(directory_path);
        key_file(directory_path, "packet", &format!("{PACKET_KEY}\n"), 0o600);
        let public = run(
            &lab.gateway,
            directory_path,
            "linewarden-gateway evidence key --out gateway.evidence-key",
        );
        run(
            &lab.gateway,
            directory_path,
            "linewarden registry create --registry fleet.registry --key-file master.key",
        );
        run(
            &lab.gateway,
            directory_path,
            "linewarden device enroll simulated --device d1 --rows 40 --out devices --config controller.toml",
        );
        run(
            &lab.gateway,
            directory_path,
            "linewarden-gateway check --machine gateway.toml",
        );
        let controller = start_controller(directory_path);
        let gateway = start(
            &lab.gateway,
            directory_path,
            "linewarden-gateway run --config gateway.toml --output json --status-interval 1",
        );
        gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
        let arguments = format!(
            "linewarden-agent run --config devices/00000000000000d1.toml --gateway [{}]:{LAP_PORT} --interface {} --output json",
            GATEWAY.v6, lab.devices_end.name
        );
        let agent = start(&lab.devices, directory_path, &arguments);
        agent.wait_for("session", |line| line["event"] == "authenticated");
        for ip in [IpAddr::from(SERVICE.v6), SERVICE.v4.into()] {
            let echo = socket(&lab.service, ip, PORT);
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                while let Ok((bytes, from)) = echo.recv_from(&mut buffer) {
                    let _ = echo.send_to(&buffer[..bytes], from);
                }
            });
        }
        let service_frames = PacketSocket::open(&lab.service, &lab.service_end, &Options::default()).unwrap();
        let mut key = [0; 16];
        hex::decode_to_slice(PACKET_KEY, &mut key).unwrap();
        Self {
            service_frames,
            appraiser: Appraiser::new(MasterKey::new(key)),
            key: PublicKey::from_pem(&public).unwrap(),
            lab,
            gateway,
            _controller: controller,
            _agent: agent,
            _filesystem: filesystem,
            directory,
        }
    }

    /// Exports the gateway's statement, verifies its signature, and returns the signed state.
    fn signed_state(&self) -> Snapshot {
        let directory_path = self.directory.path();
        let arguments = "linewarden-gateway evidence export --socket evidence.sock --out s.cose --inventory s.inventory --force";
        run(&self.lab.gateway, directory_path, arguments);
        let statement = std::fs::read(directory_path.join("s.cose")).unwrap();
        *verify_recorded(&statement, &self.key).unwrap().snapshot()
    }

    /// Removes all frames from the service's receive queue, and returns the frames with IPv6 packets of the device.
    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.service_frames.receive(usize::MAX, |received| {
            let frame = received.frame;
            if frame[12..14] == [0x86, 0xdd] && frame[22..38] == DEVICE_HOST.v6.octets() {
                frames.push(received.frame.to_vec());
            }
        });
        frames
    }

    /// Sends a datagram to the service, which sends the datagram back. Returns the evidence in each packet to the service.
    fn evidence_in_datagram(&mut self) -> Vec<Option<Content>> {
        let device = socket(&self.lab.devices, DEVICE_HOST.v6, 0);
        self.take_frames();
        assert_echoed(&device, SocketAddr::new(SERVICE.v6.into(), PORT));
        let content = |frame: &Vec<u8>| Some(read_option(frame).unwrap()?.content);
        self.take_frames().iter().map(content).collect()
    }

    fn appraise(
        &mut self,
        frame: &[u8],
        signed_state: &Snapshot,
    ) -> Result<PacketEvidence, PacketEvidenceError> {
        let carried = read_option(frame).unwrap().expect("the packet carries evidence");
        self.appraiser.appraise(&carried, &signed_state.digests)
    }
}

#[test]
fn a_service_receives_evidence_of_the_gateway() {
    require(FOR_LOAD_GENERATOR);
    let mut site = Site::new();
    let signed_state = site.signed_state();
    // Before the first measurement, packets pass without evidence.
    let deadline = Instant::now() + TEST_TIMEOUT;
    while site.evidence_in_datagram().iter().all(Option::is_none) {
        assert!(Instant::now() < deadline, "no packet carries evidence");
    }
    let sequence = check_datagrams(&mut site, &signed_state);
    check_stream(&mut site, &signed_state);

    // Another process changes the gateway's memory: the next packets show the change without a request.
    control_map::change_settings(&site.gateway);
    let later = loop {
        let carried = site.evidence_in_datagram();
        let later = carried
            .iter()
            .flatten()
            .find(|carried| carried.sequence > sequence);
        if let Some(later) = later {
            break *later;
        }
        assert!(
            Instant::now() < deadline + TEST_TIMEOUT,
            "no packet shows the change"
        );
    };
    let changed_statement = site.signed_state();
    assert_eq!(changed_statement.sequence, later.sequence);
    assert_ne!(changed_statement.digests.tables, signed_state.digests.tables);
    assert_eq!(later.fields[16..32], changed_statement.digests.tables.0[..16]);
    check_datagrams(&mut site, &changed_statement);
    site.evidence_in_datagram();
    let device = socket(&site.lab.devices, DEVICE_HOST.v6, 0);
    assert_echoed(&device, SocketAddr::new(SERVICE.v6.into(), PORT));
    let frame = site.take_frames().remove(0);
    assert!(matches!(
        site.appraise(&frame, &signed_state),
        Err(PacketEvidenceError::DigestMismatch {
            tables: true,
            program: false,
            ..
        })
    ));

    // IPv4 packets carry no evidence, and are counted.
    let device = socket(&site.lab.devices, DEVICE_HOST.v4, 0);
    assert_echoed(&device, SocketAddr::new(SERVICE.v4.into(), PORT));
    let line = site.gateway.wait_for("the counts", |line| {
        line["packet_evidence"]["not_ipv6"].as_u64() >= Some(1)
    });
    assert!(line["packet_evidence"]["stamped"].as_u64() > Some(100), "{line}");
    // The dropped packets are multicast group reports with a hop-by-hop header. If the gate dropped packets with its own
    // evidence, it would have dropped the stream as well.
    let dropped = line["counters"]["drop_gate_extension"].as_u64();
    assert!(dropped < Some(10), "{line}");

    // The gate continues without its gateway, but adds no evidence to packets.
    site.gateway.end_with_signal(Signal::SIGKILL);
    let carried = site.evidence_in_datagram();
    assert!(!carried.is_empty() && carried.iter().all(Option::is_none));
    run(
        &site.lab.gateway,
        site.directory.path(),
        "linewarden-gateway remove-gate --config gateway.toml",
    );
}

/// Checks that every datagram carries evidence of the signed state; returns the sequence number of this state.
fn check_datagrams(site: &mut Site, signed_state: &Snapshot) -> linewarden_evidence::Sequence {
    let device = socket(&site.lab.devices, DEVICE_HOST.v6, 0);
    site.take_frames();
    for _ in 0..10 {
        assert_echoed(&device, SocketAddr::new(SERVICE.v6.into(), PORT));
    }
    let frames = site.take_frames();
    assert!(frames.len() >= 10);
    for frame in &frames {
        let evidence = site.appraise(frame, signed_state).unwrap();
        assert_eq!(evidence.snapshot(), signed_state);
        assert!(matches!(
            site.appraise(frame, signed_state),
            Err(PacketEvidenceError::Replayed(_))
        ));
    }
    signed_state.sequence
}

/// Checks that the gate reports segments that are too long to the sender. The stream continues with smaller segments, and all
/// packets carry evidence.
fn check_stream(site: &mut Site, signed_state: &Snapshot) {
    let address = SocketAddr::new(SERVICE.v6.into(), PORT);
    let listener = site
        .lab
        .service
        .run(|| TcpListener::bind(address).unwrap())
        .unwrap();
    let receiver = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    site.take_frames();
    let mut stream = site
        .lab
        .devices
        .run(|| TcpStream::connect_timeout(&address, TEST_TIMEOUT).unwrap())
        .unwrap();
    stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
    let sent: Vec<u8> = (0..STREAM_BYTES).map(|index| (index / 7) as u8).collect();
    stream.write_all(&sent).unwrap();
    drop(stream);
    assert!(receiver.join().unwrap() == sent, "the received stream differs");
    let frames = site.take_frames();
    for frame in &frames {
        assert_eq!(
            site.appraise(frame, signed_state).unwrap().snapshot(),
            signed_state
        );
    }
    let longest = frames.iter().map(Vec::len).max();
    assert_eq!(longest, Some(14 + 1500), "of {} packets", frames.len());
    site.gateway.wait_for_count("drop_too_big", 1);
}

/// `check` rejects unsupported settings and names the field.
#[test]
fn unsupported_settings_of_packet_evidence_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let config = |gate: &str, evidence: &str| {
        format!(
            "[gateway]\nid = 5\ninterfaces = [\"lo\"]\n{gate}\n[controller]\nsocket = \"controller.sock\"\n\
             [evidence]\nkey = \"e\"\nboot_count = \"b\"\n{evidence}\n"
        )
    };
    let bound_gate = "gate = \"bound\"";
    let key = "packet_key_file = \"p\"";
    let option = "in_packets = \"option\"";
    for (gate, evidence, cause) in [
        (
            bound_gate,
            format!("in_packets = \"clone\"\n{key}"),
            "evidence.in_packets: \"clone\"",
        ),
        (
            "",
            format!("{option}\n{key}"),
            "evidence.in_packets: without a gate",
        ),
        (bound_gate, option.to_owned(), "packet_key_file is missing"),
        (
            bound_gate,
            key.to_owned(),
            "evidence.packet_key_file: packets carry no evidence",
        ),
        (
            bound_gate,
            format!("in_packets = \"header\"\n{key}"),
            "in_packets",
        ),
    ] {
        std::fs::write(directory_path.join("gateway.toml"), config(gate, &evidence)).unwrap();
        let output = command(directory_path, "linewarden-gateway check gateway.toml")
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{evidence}: {error}");
        assert!(error.contains(cause), "{error}");
    }
    let evidence = format!("{option}\n{key}");
    std::fs::write(directory_path.join("gateway.toml"), config(bound_gate, &evidence)).unwrap();
    support::run(command(directory_path, "linewarden-gateway check gateway.toml"));
}
