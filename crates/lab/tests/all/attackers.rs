//! Every attack against the `xdp` data plane with a bound gate fails. The published attacks against a verifier with the
//! published vulnerabilities succeed. Needs root.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::common::require;
use crate::oracle::{GATEWAY_ID, OracleGateway};
use crate::vulnerable::{self, VulnerableVerifier};
use crate::xdp_gateway::XdpGateway;
use linewarden_dataplane::ethtool::{self, Offload};
use linewarden_lab::address::SERVICE;
use linewarden_lab::attackers::{
    ATTACKS, AttackContext, AttackReport, AttackerLink, CONTROLLED_DEVICES, ClassicExchange,
    ControlledDevice, FIRST_CONTROLLED_DEVICE, GatewayLines, HandshakeCapture, Requirement,
};
use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use linewarden_lab::fleet::{
    Fleet, FleetOptions, FleetSpec, Member, RunOptions, SimulatedDevice, device_id, enroll_fleet,
};
use linewarden_lab::service::EchoService;
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::classic::{CLASSIC_PORT, Message, device, message_type};
use linewarden_protocol::verdict::Verdict;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

const ECHO_PORT: u16 = 7007;
/// Number of devices that authenticate and are then attacked. The same number of other devices never send a message.
const VICTIMS: u32 = 8;

fn enroll_devices(first_index: u32, devices: u32, seed: u64) -> Vec<SimulatedDevice> {
    let spec = FleetSpec {
        first_index,
        ..FleetSpec::new(devices, seed)
    };
    enroll_fleet(&spec, &mut |_| {}).unwrap()
}

/// Members with the identities of `originals` and the PUFs of `chips`.
fn clones(originals: &[SimulatedDevice], chips: Vec<SimulatedDevice>) -> Vec<Member> {
    originals
        .iter()
        .zip(chips)
        .map(|(original, chip)| Member {
            config: original.member.config.clone(),
            credential: original.member.credential.clone(),
            puf: chip.member.puf,
        })
        .collect()
}

fn lab() -> Lab {
    Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        permanent_neighbors: 16,
        ..Topology::default()
    })
    .unwrap()
}

struct AttackSetup<'a> {
    context: AttackContext<'a>,
    fleet: Fleet,
}

/// Authenticates the victims, captures their handshakes, and prepares the attacks.
fn prepare_attacks<'a>(
    lab: &'a Lab,
    devices: Vec<SimulatedDevice>,
    controlled_devices: Vec<SimulatedDevice>,
    lines: &'a dyn GatewayLines,
    service: Option<&'a EchoService>,
) -> AttackSetup<'a> {
    let chips = enroll_devices(VICTIMS, VICTIMS, 999);
    let clones = clones(&devices[VICTIMS as usize..], chips);
    let absent: Vec<_> = (VICTIMS..2 * VICTIMS).map(device_id).collect();
    let capture = HandshakeCapture::start(lab, 1000).unwrap();
    let members: Vec<_> = devices
        .into_iter()
        .take(VICTIMS as usize)
        .map(|device| device.member)
        .collect();
    let mut fleet = Fleet::new(lab, members, &FleetOptions::new([3; 32])).unwrap();
    let report = fleet
        .authenticate(&mut RunOptions {
            window: 4,
            timeout: Duration::from_secs(60),
            stop: &AtomicBool::new(false),
            progress: &mut |_| {},
        })
        .unwrap();
    assert_eq!(report.authenticated, u64::from(VICTIMS), "{report:?}");
    let captured = capture.finish().unwrap();
    assert_eq!(captured.len(), VICTIMS as usize);
    let is_complete = |c: &linewarden_lab::attackers::CapturedHandshake| {
        c.request.is_some() && c.challenge.is_some() && c.response.is_some() && c.ack.is_some()
    };
    assert!(captured.values().all(is_complete), "{captured:?}");
    AttackSetup {
        context: AttackContext {
            link: AttackerLink::new(lab, absent[0]).unwrap(),
            lines,
            gateway: GATEWAY_ID,
            absent_devices: absent,
            victims: (0..VICTIMS).map(device_id).collect(),
            captured_handshakes: captured,
            controlled_devices: controlled_devices
                .into_iter()
                .map(ControlledDevice::new)
                .collect(),
            clones,
            service: service.map(|echo| (echo, SERVICE.v4.into(), ECHO_PORT)),
            classic_exchanges: Vec::new(),
            classic_port: CLASSIC_PORT,
            data_plane_sees_macs: true,
            messages_per_attack: 1000,
            rng: ChaCha20Rng::seed_from_u64(5),
        },
        fleet,
    }
}

fn run_all(context: &mut AttackContext<'_>) -> Vec<AttackReport> {
    ATTACKS
        .iter()
        .map(|attack| {
            attack
                .run(context)
                .unwrap_or_else(|error| panic!("{}: {error}", attack.name))
        })
        .collect()
}

/// VLAN tags that the interface removes would never reach the gate.
#[test]
fn the_data_plane_disables_vlan_tag_removal() {
    require(FOR_LOAD_GENERATOR);
    let lab = Lab::build(&Topology::default()).unwrap();
    let name = lab.gateway_devices_end.name.clone();
    let removes_tags = || {
        let enabled = lab.gateway.run(|| ethtool::is_on(&name, Offload::ReceiveVlan));
        enabled.unwrap().unwrap()
    };
    let result = lab
        .gateway
        .run(|| ethtool::set(&name, Offload::ReceiveVlan, true));
    result.unwrap().unwrap();
    assert!(removes_tags());
    let _gateway = XdpGateway::start(&lab, &[]);
    assert!(!removes_tags());
}

#[test]
fn no_attack_on_the_xdp_gateway_succeeds() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    let devices = enroll_devices(0, 2 * VICTIMS, 1);
    let controlled_devices = enroll_devices(FIRST_CONTROLLED_DEVICE, CONTROLLED_DEVICES, 1);
    let gateway = XdpGateway::start(&lab, &devices);
    gateway.install(&controlled_devices);
    let echo = EchoService::start(&lab, ECHO_PORT).unwrap();
    let lines = |device| gateway.line(device);
    let mut setup = prepare_attacks(&lab, devices, controlled_devices, &lines, Some(&echo));

    let reports = run_all(&mut setup.context);
    println!(
        "{reports:#?}\n{:?}",
        gateway.counters().nonzero().collect::<Vec<_>>()
    );
    for report in &reports {
        assert_eq!(report.successes, 0, "{report:?}");
        assert!(report.attempts > 0 && report.skipped.is_none(), "{report:?}");
    }
    assert!(
        setup.context.controlled_devices.is_empty(),
        "all controlled devices were used"
    );
    let counters = gateway.counters();
    for verdict in [
        Verdict::DropTag,
        Verdict::DropReplay,
        Verdict::DropUnknownDevice,
        Verdict::DropGate,
        Verdict::DropGatePort,
        Verdict::DropSourceNotDevice,
        Verdict::DropGateVlan,
        Verdict::DropGateRole,
        Verdict::ReplyAckRepeated,
    ] {
        assert!(counters.get(verdict) > 0, "no packet with verdict {verdict}");
    }
    // The victims keep their sessions.
    for index in setup.fleet.indices() {
        assert!(setup.fleet.session(index).is_some());
        assert!(lines(device_id(index)).unwrap().has_session);
    }
}

/// Tests the success check of each attack: the check detects a gateway that accepts every RESPONSE and forwards every frame.
#[test]
fn attack_checks_detect_a_gateway_that_accepts_everything() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    let mut devices = enroll_devices(0, 2 * VICTIMS, 1);
    let controlled_devices = enroll_devices(FIRST_CONTROLLED_DEVICE, 6, 1);
    devices.extend(controlled_devices);
    // The gateway also replies to frames for other stations.
    let gateway = OracleGateway::start(&lab, &devices, |config| config.own_macs = None);
    let controlled_devices = devices.split_off(2 * VICTIMS as usize);
    let echo = EchoService::start(&lab, ECHO_PORT).unwrap();
    let lines = |device| Some(gateway.response_count_line(device));
    let mut setup = prepare_attacks(&lab, devices, controlled_devices, &lines, Some(&echo));
    for name in [
        "cloned device with a different PUF",
        "replay of captured messages to the gateway",
        "stolen RESPONSE sent from another MAC address",
        "session requested from a foreign IP address",
        "REQUEST to a MAC that is not the gateway's",
        "flood of spoofed RESPONSE messages",
        "bit flips in messages to the gateway",
        "traffic to the service without a session",
        "traffic disguised as DHCP or neighbor discovery",
        "DHCP server or router messages from a device",
        "traffic to the service in another VLAN",
        "published: zero tag after a cold start",
        "published: RESPONSE replayed",
        "published: affine combination of tags",
        "published: tag guessing",
    ] {
        let attack = ATTACKS.iter().find(|attack| attack.name == name).unwrap();
        let report = attack.run(&mut setup.context).unwrap();
        assert!(report.successes > 0, "{report:?}");
    }
    // Legitimate datagrams to a port without a service count as lost.
    setup.context.service = Some((&echo, SERVICE.v4.into(), ECHO_PORT + 1));
    let attack = ATTACKS
        .iter()
        .find(|attack| attack.name.contains("short legitimate datagrams"))
        .unwrap();
    let report = attack.run(&mut setup.context).unwrap();
    assert_eq!(report.successes, report.attempts);
}

#[test]
fn the_published_attacks_succeed_against_the_published_vulnerabilities() {
    require(FOR_LOAD_GENERATOR);
    let lab = lab();
    let devices = enroll_devices(0, 2 * VICTIMS, 1);
    let _gateway = OracleGateway::start(&lab, &devices, |_| {});
    let _verifier = VulnerableVerifier::start(&lab, CLASSIC_PORT);
    let exchange = captured_exchange(&lab);
    let lines = |_| None;
    let mut setup = prepare_attacks(&lab, devices, Vec::new(), &lines, None);
    setup.context.classic_exchanges = vec![exchange];
    for attack in ATTACKS.iter().filter(|attack| attack.name.starts_with("classic")) {
        let report = attack.run(&mut setup.context).unwrap();
        println!("{report:?}");
        // Guessing 32 bits takes minutes at line rate, longer than this test.
        let expected = !report.name.contains("guessing");
        assert_eq!(report.successes > 0, expected, "{report:?}");
    }
    // The gate is off: attacks that need a bound gate are skipped.
    let skipped_reports: Vec<_> = ATTACKS
        .iter()
        .filter(|attack| attack.requirement == Requirement::BoundGate)
        .map(|attack| attack.run(&mut setup.context).unwrap())
        .collect();
    assert!(
        skipped_reports
            .iter()
            .all(|report| report.skipped.is_some() && report.attempts == 0)
    );
}

/// Authenticates a legitimate device at the vulnerable verifier. Returns the CHALLENGE and the RESPONSE.
fn captured_exchange(lab: &Lab) -> ClassicExchange {
    let socket = lab
        .gateway
        .run(|| std::net::UdpSocket::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.connect(("127.0.0.1", CLASSIC_PORT)).unwrap();
    let send_and_receive = |message: &Message| {
        let mut bytes = vec![0; vulnerable::BITS.message_bytes()];
        message.write(vulnerable::BITS, &mut bytes).unwrap();
        socket.send(&bytes).unwrap();
        let length = socket.recv(&mut bytes).unwrap();
        Message::parse(vulnerable::BITS, &bytes[..length]).unwrap()
    };
    let challenge = send_and_receive(&device::request(3));
    let r = vulnerable::response(3, challenge.challenge1);
    let response = device::respond(&challenge, vulnerable::BITS, &r, None).unwrap();
    assert_eq!(send_and_receive(&response).kind, message_type::ACK);
    ClassicExchange {
        bits: vulnerable::BITS,
        challenge,
        response,
    }
}
