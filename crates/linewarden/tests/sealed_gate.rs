//! A sealed gate as its users run it: a device with its agent and a local program, a gateway on `xdp`, and a service,
//! each in a network namespace of the test's own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_dataplane::ethtool::{self, Offload};
use linewarden_lab::address::{DEVICE_HOST, GATEWAY, SERVICE, Station};
use linewarden_lab::capability::{self, FOR_LOAD_GENERATOR};
use linewarden_lab::netns::NetNs;
use linewarden_lab::packet_socket::{Options, PacketSocket, TxBatch};
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::frame::parse;
use linewarden_protocol::wire::LAP_PORT;
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{PROGRAM, Process, TEST_TIMEOUT, linewarden};

/// Where the echo service is, and where the agent listens.
const PORT: u16 = 5683;

fn ip(station: &Station, v6: bool) -> IpAddr {
    if v6 { station.v6.into() } else { station.v4.into() }
}

fn socket(namespace: &NetNs, at: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(at).unwrap()).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket
}

fn run(namespace: &NetNs, directory: &Path, program: &str, arguments: &str) {
    let mut command = Command::new(program);
    let command = command.args(arguments.split_whitespace()).current_dir(directory);
    let output = namespace.run(|| command.output().unwrap()).unwrap();
    assert!(
        output.status.success(),
        "{arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn start(namespace: &NetNs, directory: &Path, arguments: &str) -> Process {
    namespace
        .run(|| Process::start(linewarden(directory, arguments)))
        .unwrap()
}

/// Namespaces and processes of the test.
struct Site {
    agent: Process,
    gateway: Process,
    service: SocketAddr,
    echo: UdpSocket,
    lab: Lab,
    directory: tempfile::TempDir,
    is_sealed: bool,
    v6: bool,
}

impl Site {
    fn new(v6: bool) -> Self {
        Self::with(v6, false, None)
    }

    fn serve(&self) -> Process {
        serve(&self.lab, self.directory.path())
    }

    /// Restarts the agent without its session state.
    fn agent_again(&self) -> Process {
        let address = SocketAddr::new(ip(&GATEWAY, self.v6), LAP_PORT);
        agent(&self.lab, self.directory.path(), address)
    }

    /// `forwards`: opened datagrams bypass the gateway's network stack. `pins`: the pin directory, in which the gate outlives the
    /// gateway.
    fn with(v6: bool, forwards: bool, pins: Option<&Path>) -> Self {
        Self::of("sealed", 300, v6, forwards, pins)
    }

    /// With a gate of this kind, and sessions of `session_lifetime_s` seconds.
    fn of(gate: &str, session_lifetime_s: u32, v6: bool, forwards: bool, pins: Option<&Path>) -> Self {
        let lab = Lab::build(&Topology::default()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let interface = &lab.gateway_devices_end.name;
        let gate_action = match pins {
            Some(path) => format!("pin_directory = \"{}\"", path.display()),
            None => "gate_on_exit = \"remove\"".to_owned(),
        };
        std::fs::write(
            at.join("gateway.toml"),
            format!(
                "[gateway]\nid = 5\ninterfaces = [\"{interface}\"]\naddresses = [\"{}\", \"{}\"]\ngate = \"{gate}\"\n\
                 session_lifetime_s = {session_lifetime_s}\n{gate_action}\nslots = 16\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n",
                GATEWAY.v4, GATEWAY.v6
            ),
        )
        .unwrap();
        if forwards {
            let path = at.join("gateway.toml");
            let text = std::fs::read_to_string(&path).unwrap();
            let line = format!("forward_to = [\"{}\"]\n[registry]", lab.gateway_service_end.name);
            std::fs::write(&path, text.replace("[registry]", &line)).unwrap();
        }
        run(
            &lab.gateway,
            at,
            PROGRAM,
            "registry create --registry fleet.registry --key-file master.key",
        );
        let enroll = "device enroll simulated --device d1 --rows 40 --out devices --config gateway.toml";
        run(&lab.gateway, at, PROGRAM, enroll);
        let gateway = serve(&lab, at);

        let service = SocketAddr::new(ip(&SERVICE, v6), PORT);
        let file = at.join("devices/00000000000000d1.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        let is_sealed = gate == "sealed";
        let tunnel = format!("\n[[tunnel]]\nlisten = \"127.0.0.1:{PORT}\"\nservice = \"{service}\"\n");
        std::fs::write(&file, config + if is_sealed { &tunnel } else { "" }).unwrap();
        let gateway_address = SocketAddr::new(ip(&GATEWAY, v6), LAP_PORT);
        let agent = agent(&lab, at, gateway_address);
        agent.wait_for("session", |line| line["event"] == "authenticated");
        let echo = socket(&lab.service, service);
        let site = Self {
            agent,
            gateway,
            service,
            echo,
            lab,
            directory,
            is_sealed,
            v6,
        };
        let echo = site.echo.try_clone().unwrap();
        echo.set_read_timeout(None).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 65_535];
            while let Ok((bytes, from)) = echo.recv_from(&mut buffer) {
                echo.send_to(&buffer[..bytes], from).ok();
            }
        });
        site
    }

    /// The socket of a local program on the device, which sends to the tunnel, or directly to the service without a seal.
    fn program(&self) -> UdpSocket {
        let (local_address, to) = match self.is_sealed {
            true => (
                "127.0.0.1".parse().unwrap(),
                SocketAddr::from(([127, 0, 0, 1], PORT)),
            ),
            false => (ip(&DEVICE_HOST, self.v6), self.service),
        };
        let socket = socket(&self.lab.devices, SocketAddr::new(local_address, 0));
        socket.connect(to).unwrap();
        socket
    }

    /// The longest payload that 1,500 bytes leave.
    fn payload_bytes_max(&self) -> usize {
        if self.v6 { 1396 } else { 1416 }
    }
}

fn agent(lab: &Lab, directory: &Path, gateway: SocketAddr) -> Process {
    let arguments = format!(
        "agent --config devices/00000000000000d1.toml --gateway {gateway} --interface {} --json",
        lab.devices_end.name
    );
    start(&lab.devices, directory, &arguments)
}

fn serve(lab: &Lab, directory: &Path) -> Process {
    let arguments = "serve --config gateway.toml --json --status-interval 1";
    let gateway = start(&lab.gateway, directory, arguments);
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    gateway
}

fn assert_echoed(program: &UdpSocket, payload: &[u8]) {
    program.send(payload).unwrap();
    let mut buffer = [0; 65_535];
    let bytes = program.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..bytes], *payload, "{} B", payload.len());
}

fn skipped() -> bool {
    match capability::require(FOR_LOAD_GENERATOR) {
        Ok(()) => false,
        Err(missing) => {
            println!("SKIPPED: {missing}");
            true
        }
    }
}

fn scenario(v6: bool) {
    let site = Site::new(v6);
    let listener = PacketSocket::open(
        &site.lab.devices,
        &site.lab.devices_end,
        &Options {
            receive_outgoing: true,
            bypass_qdisc: false,
            ..Options::default()
        },
    );
    let mut listener = listener.unwrap();

    // Datagrams of all sizes, of two programs at a time; too long datagrams are not fragmented.
    let programs = [site.program(), site.program()];
    for bytes in [1, 2, 7, 8, 9, 100, 1000, site.payload_bytes_max()] {
        for (program, fill) in programs.iter().zip([0x11, 0x22]) {
            assert_echoed(program, &vec![fill; bytes]);
        }
    }
    programs[0]
        .send(&vec![0x33; site.payload_bytes_max() + 1])
        .unwrap();
    assert_echoed(&programs[0], b"after it");
    both_checksums(&site, &programs[0]);

    unsealed_is_dropped(&site);
    replays_are_dropped(&site, &mut listener);
    the_service_learns_the_largest_size(&site, &programs[0]);

    let revoke = "device revoke d1 --reason lost --config gateway.toml";
    run(&site.lab.gateway, site.directory.path(), PROGRAM, revoke);
    site.gateway.wait_for("revocation", |line| line["revoked"] == 1);
    programs[0].send(b"no receiver").unwrap();
    site.gateway.wait_for_count("drop_revoked", 1);

    let lines = site.agent.terminate();
    let counts = &lines
        .iter()
        .find(|line| line["event"] == "tunnel_statistics")
        .unwrap();
    assert_eq!(counts["dropped_too_long"], 1, "{counts}");
    assert_eq!(counts["dropped_unopened"], 0, "{counts}");
    let lines = site.gateway.terminate();
    let counters = &lines.last().unwrap()["counters"];
    assert_eq!(counters["drop_tag"], Value::Null, "{counters}");
    assert_eq!(counters["drop_too_big"], Value::Null, "{counters}");
    // The filter was removed with the gateway.
    let from = SocketAddr::new(ip(&DEVICE_HOST, v6), 0);
    let sender = socket(&site.lab.devices, from);
    sender.send_to(b"plainly", site.service).unwrap();
    assert_eq!(sender.recv(&mut [0; 64]).unwrap(), 7, "all traffic passes");
}

/// Packets are sealed both with complete checksums and with checksums that the service leaves to its network card, whether the
/// card toward the devices would complete these or the kernel does.
fn both_checksums(site: &Site, program: &UdpSocket) {
    let set_checksums = |namespace: &NetNs, name: &str, on| {
        namespace
            .run(|| ethtool::set(name, Offload::TransmitChecksum, on).unwrap())
            .unwrap();
    };
    let (lab, far) = (&site.lab, &site.lab.service_end.name);
    for (service, gateway) in [(true, false), (true, true), (false, true), (false, false)] {
        set_checksums(&lab.service, far, service);
        set_checksums(&lab.gateway, &lab.gateway_devices_end.name, gateway);
        for bytes in [1, 8, 777] {
            assert_echoed(program, &vec![0x5a; bytes]);
        }
    }
}

/// No traffic in either direction, although the session is open.
fn unsealed_is_dropped(site: &Site) {
    let (lab, device) = (&site.lab, ip(&DEVICE_HOST, site.v6));
    let plain = socket(&lab.devices, SocketAddr::new(device, 0));
    plain.send_to(b"plainly", site.service).unwrap();
    let to_lap = SocketAddr::new(site.service.ip(), LAP_PORT);
    plain.send_to(b"not LAP", to_lap).unwrap();
    let service = socket(&lab.service, SocketAddr::new(site.service.ip(), 0));
    let target = plain.local_addr().unwrap();
    service.send_to(b"is sealed on its way", target).unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&target, Duration::from_millis(10)).is_ok();
    assert!(!lab.service.run(connect).unwrap());
    for verdict in ["drop_gate", "drop_gate_port", "drop_unsealed"] {
        site.gateway.wait_for_count(verdict, 1);
    }
    // The packet arrived as DATA_DOWN, which a program without the agent cannot read.
    let mut buffer = [0; 256];
    let bytes = plain.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..4], [0x4c, 0x57, 1, 7]);
    assert_eq!(bytes, 56 + 20);
}

/// Replays frames that were recorded on the devices' network, on the same network.
fn replays_are_dropped(site: &Site, listener: &mut PacketSocket) {
    let mut recorded = Vec::new();
    listener.receive(4096, |received| {
        let is_data = parse(received.frame)
            .ok()
            .and_then(|parsed| Some(parsed.datagram()?.1))
            .is_some_and(|udp| received.frame[udp.payload()].starts_with(&[0x4c, 0x57, 1, 6]));
        if received.outgoing && is_data {
            recorded.push(received.frame.to_vec());
        }
    });
    assert!(recorded.len() > 10);
    let mut batch = TxBatch::new(recorded.len());
    recorded.iter().for_each(|frame| assert!(batch.push(frame)));
    listener.send(&mut batch).unwrap();
    site.gateway
        .wait_for_count("drop_sequence", recorded.len() as u64);
}

/// With the route's MTU reduced by the seal, a service that sends too long datagrams gets an error.
fn the_service_learns_the_largest_size(site: &Site, program: &UdpSocket) {
    let (lab, name) = (&site.lab, &site.lab.gateway_devices_end.name);
    let route = if site.v6 {
        format!("-6 route replace fd66::/64 dev {name} proto kernel metric 256 mtu 1444")
    } else {
        format!("route replace 10.66.0.0/16 dev {name} mtu 1444")
    };
    run(&lab.gateway, site.directory.path(), "ip", &route);
    use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
    let service = socket(&lab.service, SocketAddr::new(site.service.ip(), 0));
    if site.v6 {
        sockopt::set_ipv6_mtu_discover(&service, Ipv6PathMtuDiscovery::DO).unwrap();
    } else {
        sockopt::set_ip_mtu_discover(&service, Ipv4PathMtuDiscovery::DO).unwrap();
    }
    let to = SocketAddr::new(ip(&DEVICE_HOST, site.v6), 9);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let headers = 1500 - 56 - site.payload_bytes_max();
    while service.send_to(&vec![1; 1500 - headers], to).is_ok() {
        assert!(Instant::now() < deadline, "the service receives no error");
        std::thread::yield_now();
    }
    let error = service.send_to(&vec![1; 1500 - headers], to).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::MSGSIZE.raw_os_error())
    );
    service.send_to(&vec![1; site.payload_bytes_max()], to).unwrap();
    assert_echoed(program, &vec![7; site.payload_bytes_max()]);
}

#[test]
fn datagrams_pass_a_sealed_gate_and_other_packets_do_not_ipv4() {
    if !skipped() {
        scenario(false);
    }
}

#[test]
fn datagrams_pass_a_sealed_gate_and_other_packets_do_not_ipv6() {
    if !skipped() {
        scenario(true);
    }
}

/// How many packets the gateway's network stack has forwarded.
fn forwarded(site: &Site) -> u64 {
    let read = |path: &str| {
        site.lab
            .gateway
            .run(|| std::fs::read_to_string(path).unwrap())
            .unwrap()
    };
    if site.v6 {
        let text = read("/proc/thread-self/net/snmp6");
        let line = text.lines().find(|line| line.starts_with("Ip6OutForwDatagrams"));
        return line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    }
    let text = read("/proc/thread-self/net/snmp");
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
    let mut words = || lines.next().unwrap().split_whitespace();
    let at = words().position(|word| word == "ForwDatagrams").unwrap();
    words().nth(at).unwrap().parse().unwrap()
}

/// Upstream past the stack, if the neighbor is known; downstream through the stack, because the egress filter seals there.
#[test]
fn opened_datagrams_are_forwarded_past_the_stack_if_configured() {
    if skipped() {
        return;
    }
    for v6 in [false, true] {
        for (forwards, expected) in [(false, 20), (true, 10)] {
            let site = Site::with(v6, forwards, None);
            let program = site.program();
            assert_echoed(&program, b"the first");
            let before = forwarded(&site);
            for bytes in (0..10).map(|step| 1 + step * 150) {
                assert_echoed(&program, &vec![1; bytes.min(site.payload_bytes_max())]);
            }
            assert_eq!(
                forwarded(&site) - before,
                expected,
                "IPv6 {v6}, forwards {forwards}"
            );
        }
    }
}

/// A BPF filesystem that the test mounts.
struct BpfFilesystem(tempfile::TempDir);

impl BpfFilesystem {
    fn mount() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "bpf", "-o", "mode=0700", "bpf"])
            .arg(directory.path())
            .status();
        assert!(mount.unwrap().success());
        Self(directory)
    }
}

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// Sends datagrams one after the other while `work` runs, each after the previous echo; returns their number.
fn while_datagrams_pass(program: &UdpSocket, pause: Duration, work: impl FnOnce()) -> u32 {
    /// Ends the traffic also when `work` panics, or the scope would wait forever.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut number = 0u32;
            while !done.load(Ordering::Acquire) {
                assert_echoed(program, &number.to_be_bytes());
                number += 1;
                std::thread::sleep(pause);
            }
            number
        });
        {
            let _end = End(&done);
            work();
        }
        traffic.join().unwrap()
    })
}

/// Datagrams go to and fro all the time while the gateway is killed, or stopped for another version, and started again:
/// none is lost, the session continues, and no row is used.
#[test]
fn a_gateway_is_replaced_without_a_lost_datagram() {
    if skipped() {
        return;
    }
    let filesystem = BpfFilesystem::mount();
    let mut site = Site::with(false, false, Some(&filesystem.0.path().join("gates")));
    let program = site.program();
    let sent = while_datagrams_pass(&program, Duration::ZERO, || {
        for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL] {
            site.gateway.end_with_signal(signal);
            site.gateway = site.serve();
            site.gateway
                .wait_for("the device again", |line| line["devices"] == 1);
        }
    });
    assert!(sent > 100, "{sent}");
    let counted = |verdict: &str| site.gateway.count(verdict);
    site.gateway.wait_for_count("pass_data", u64::from(sent));
    assert_eq!(counted("reply_ack"), 1, "the session at the start");

    // The new process controls the gate: a revocation takes effect.
    let revoke = "device revoke d1 --reason lost --config gateway.toml";
    run(&site.lab.gateway, site.directory.path(), PROGRAM, revoke);
    site.gateway.wait_for("revocation", |line| line["revoked"] == 1);
    program.send(b"no receiver").unwrap();
    site.gateway.wait_for_count("drop_revoked", 1);
    drop(site);
}

/// The device renews its session while no process of its gateway runs, killed or stopped, and the next process continues with
/// the session: no datagram is lost, and no session.
fn renewed_without_a_process(gate: &str) {
    // The process ends soon after a renewal: the next renewal comes after 3/4 of this time, while `fresh` is younger than 16 s.
    const SESSION_LIFETIME_S: u32 = 6;
    let filesystem = BpfFilesystem::mount();
    let pins = filesystem.0.path().join("gates");
    let mut site = Site::of(gate, SESSION_LIFETIME_S, false, false, Some(&pins));
    let program = site.program();
    let renewed = |site: &Site| site.agent.event("authenticated")["row"].as_u64().unwrap();
    let sent = while_datagrams_pass(&program, Duration::from_millis(5), || {
        let mut idx = 0;
        for signal in [Signal::SIGKILL, Signal::SIGTERM] {
            site.gateway.end_with_signal(signal);
            assert_eq!(renewed(&site), idx + 1, "{gate}, {signal}");
            site.gateway = site.serve();
            assert_eq!(renewed(&site), idx + 2, "{gate}, after {signal}");
            idx += 2;
        }
    });
    assert!(sent > 100, "{sent}");
    // Counters continue: the first session, four renewals, and no drops by the gate.
    site.gateway.wait_for_count("reply_ack", 5);
    let forward_verdict = if site.is_sealed {
        "pass_data"
    } else {
        "pass_session"
    };
    site.gateway.wait_for_count(forward_verdict, u64::from(sent));
    for verdict in [
        "drop_stopped",
        "drop_session",
        "drop_session_expired",
        "drop_fresh",
        "drop_sequence",
    ] {
        assert_eq!(site.gateway.count(verdict), 0, "{gate}, {verdict}");
    }
    let ended = site.agent.terminate();
    let is_lost = |line: &&Value| line["event"] == "session_expired" || line["event"] == "session_lost";
    assert_eq!(ended.iter().find(is_lost), None, "{ended:?}");

    // The release removes all pinned objects.
    site.gateway.end_with_signal(Signal::SIGKILL);
    let release = "serve --config gateway.toml --remove-gate";
    run(&site.lab.gateway, site.directory.path(), PROGRAM, release);
    assert_eq!(std::fs::read_dir(&pins).unwrap().count(), 0);
}

#[test]
fn a_session_is_renewed_at_a_bound_gate_while_no_process_runs() {
    if !skipped() {
        renewed_without_a_process("bound");
    }
}

#[test]
fn a_session_is_renewed_at_a_sealed_gate_while_no_process_runs() {
    if !skipped() {
        renewed_without_a_process("sealed");
    }
}

/// In the meantime another process ran as this gateway, and may have used the stored rows: none of them is used.
#[test]
fn memory_of_a_gateway_that_was_replaced_elsewhere_is_not_used() {
    if skipped() {
        return;
    }
    let filesystem = BpfFilesystem::mount();
    let mut site = Site::with(false, false, Some(&filesystem.0.path().join("gates")));
    site.gateway.end_with_signal(Signal::SIGKILL);
    let other_machine = Lab::build(&Topology::default()).unwrap();
    let path = site.directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let other_text = text.replace(
        &site.lab.gateway_devices_end.name,
        &other_machine.gateway_devices_end.name,
    );
    std::fs::write(&path, other_text).unwrap();
    drop(serve(&other_machine, site.directory.path()));
    std::fs::write(&path, text).unwrap();
    site.gateway = site.serve();
    // The session was lost with the memory.
    site.program().send(b"no receiver").unwrap();
    site.gateway.wait_for_count("drop_session", 1);
    // The device continues at the mark: rows below it may have been used elsewhere.
    site.agent.end_with_signal(Signal::SIGKILL);
    let agent = site.agent_again();
    let event = agent.wait_for("a new session", |line| line["event"] == "authenticated");
    assert!(event["row"].as_u64() >= Some(4), "{event}");
}

/// A ticket is sent to the gateway inside DATA, and its response comes back sealed: rows are renewed while tunnels carry traffic.
#[test]
fn rows_are_renewed_through_the_sealed_gate() {
    if skipped() {
        return;
    }
    for v6 in [false, true] {
        let mut site = Site::new(v6);
        assert_echoed(&site.program(), b"before");
        let gateway = SocketAddr::new(ip(&GATEWAY, v6), LAP_PORT);
        let arguments = format!(
            "agent --config devices/00000000000000d1.toml --gateway {gateway} --interface {} --renew --json",
            site.lab.devices_end.name
        );
        let at = site.directory.path();
        // Restart the device's agent: the tunnel sockets of the first agent end with it.
        site.agent.end_with_signal(Signal::SIGKILL);
        site.agent = start(&site.lab.devices, at, &arguments);
        let renewed = site
            .agent
            .wait_for("renewal", |line| line["event"] == "rows_renewed");
        assert_eq!(renewed["rows_end"], 140);
        assert_echoed(&site.program(), b"after");
        site.gateway.wait_for_count("pass_data", 4);
        assert_eq!(site.gateway.count("drop_tag"), 0);
    }
}
