//! A sealed gate as its users run it: a device with its agent and a local program, a gateway on `xdp`, and a service,
//! each in its own network namespace.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_dataplane::ethtool::{self, Offload};
use linewarden_lab::address::{DEVICE_HOST, GATEWAY, SERVICE, Station};
use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use linewarden_lab::netns::NetNs;
use linewarden_lab::packet_socket::{Options, PacketSocket, TxBatch};
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::frame::parse;
use linewarden_protocol::wire::LAP_PORT;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{
    self, BpfFilesystem, Process, TEST_TIMEOUT, command, require, start_controller, write_controller_config,
};

/// UDP port of the echo service, and of the agent's tunnel.
const PORT: u16 = 5683;

fn ip(station: &Station, v6: bool) -> IpAddr {
    if v6 { station.v6.into() } else { station.v4.into() }
}

fn socket(namespace: &NetNs, address: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address).unwrap()).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket
}

fn run(namespace: &NetNs, directory: &Path, command_line: &str) {
    namespace
        .run(|| support::run(command(directory, command_line)))
        .unwrap();
}

fn start(namespace: &NetNs, directory: &Path, command_line: &str) -> Process {
    namespace
        .run(|| Process::start(command(directory, command_line)))
        .unwrap()
}

/// Namespaces and processes of the test.
struct Site {
    agent: Process,
    gateway: Process,
    _controller: Process,
    service: SocketAddr,
    echo: UdpSocket,
    lab: Lab,
    directory: tempfile::TempDir,
    is_sealed: bool,
    v6: bool,
}

impl Site {
    fn new(v6: bool) -> Self {
        Self::with_options(v6, false, None)
    }

    fn serve(&self) -> Process {
        serve(&self.lab, self.directory.path())
    }

    /// Starts an agent without session state.
    fn start_new_agent(&self) -> Process {
        let address = SocketAddr::new(ip(&GATEWAY, self.v6), LAP_PORT);
        agent(&self.lab, self.directory.path(), address)
    }

    /// `forwards`: unsealed datagrams bypass the gateway's network stack. `pins`: the pin directory, which keeps the gate after
    /// the end of the gateway.
    fn with_options(v6: bool, forwards: bool, pins: Option<&Path>) -> Self {
        Self::with_gate("sealed", 300, v6, forwards, pins)
    }

    /// Same as [`Self::with_options`], with this kind of gate and this session lifetime.
    fn with_gate(gate: &str, session_lifetime_s: u32, v6: bool, forwards: bool, pins: Option<&Path>) -> Self {
        let lab = Lab::build(&Topology::default()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path();
        let interface = &lab.gateway_devices_end.name;
        let gate_action = match pins {
            Some(path) => format!("pin_directory = \"{}\"", path.display()),
            None => "gate_on_exit = \"remove\"".to_owned(),
        };
        std::fs::write(
            directory_path.join("gateway.toml"),
            format!(
                "[gateway]\nid = 5\ninterfaces = [\"{interface}\"]\naddresses = [\"{}\", \"{}\"]\ngate = \"{gate}\"\n\
                 session_lifetime_s = {session_lifetime_s}\n{gate_action}\nslots = 16\n[controller]\nsocket = \"controller.sock\"\n",
                GATEWAY.v4, GATEWAY.v6
            ),
        )
        .unwrap();
        write_controller_config(directory_path);
        if forwards {
            let path = directory_path.join("gateway.toml");
            let text = std::fs::read_to_string(&path).unwrap();
            let line = format!(
                "forward_to = [\"{}\"]\n[controller]",
                lab.gateway_service_end.name
            );
            std::fs::write(&path, text.replace("[controller]", &line)).unwrap();
        }
        run(
            &lab.gateway,
            directory_path,
            "linewarden registry create --registry fleet.registry --key-file master.key",
        );
        let enroll =
            "linewarden device enroll simulated --device d1 --rows 40 --out devices --config controller.toml";
        run(&lab.gateway, directory_path, enroll);
        let controller = start_controller(directory_path);
        let gateway = serve(&lab, directory_path);

        let service = SocketAddr::new(ip(&SERVICE, v6), PORT);
        let file = directory_path.join("devices/00000000000000d1.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        let is_sealed = gate == "sealed";
        let tunnel = format!("\n[[tunnel]]\nlisten = \"127.0.0.1:{PORT}\"\nservice = \"{service}\"\n");
        std::fs::write(&file, config + if is_sealed { &tunnel } else { "" }).unwrap();
        let gateway_address = SocketAddr::new(ip(&GATEWAY, v6), LAP_PORT);
        let agent = agent(&lab, directory_path, gateway_address);
        agent.wait_for("session", |line| line["event"] == "authenticated");
        let echo = socket(&lab.service, service);
        let site = Self {
            agent,
            gateway,
            _controller: controller,
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

    /// The socket of a local program on the device. With a sealed gate, the program sends to the tunnel, otherwise directly to
    /// the service.
    fn program(&self) -> UdpSocket {
        let (local_address, destination) = match self.is_sealed {
            true => (
                "127.0.0.1".parse().unwrap(),
                SocketAddr::from(([127, 0, 0, 1], PORT)),
            ),
            false => (ip(&DEVICE_HOST, self.v6), self.service),
        };
        let socket = socket(&self.lab.devices, SocketAddr::new(local_address, 0));
        socket.connect(destination).unwrap();
        socket
    }

    /// The longest payload of a sealed datagram in a packet of 1,500 bytes.
    fn payload_bytes_max(&self) -> usize {
        if self.v6 { 1396 } else { 1416 }
    }
}

fn agent(lab: &Lab, directory: &Path, gateway: SocketAddr) -> Process {
    let arguments = format!(
        "linewarden-agent run --config devices/00000000000000d1.toml --gateway {gateway} --interface {} --output json",
        lab.devices_end.name
    );
    start(&lab.devices, directory, &arguments)
}

fn serve(lab: &Lab, directory: &Path) -> Process {
    let arguments = "linewarden-gateway run --config gateway.toml --output json --status-interval 1";
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

    // Two programs send datagrams of all sizes. Datagrams that are too long are dropped, not fragmented.
    let programs = [site.program(), site.program()];
    for bytes in [1, 2, 7, 8, 9, 100, 1000, site.payload_bytes_max()] {
        for (program, fill) in programs.iter().zip([0x11, 0x22]) {
            assert_echoed(program, &vec![fill; bytes]);
        }
    }
    programs[0]
        .send(&vec![0x33; site.payload_bytes_max() + 1])
        .unwrap();
    assert_echoed(&programs[0], b"after the long datagram");
    check_checksums(&site, &programs[0]);

    check_unsealed_packets(&site);
    check_replays(&site, &mut listener);
    check_path_mtu(&site, &programs[0]);

    let revoke = "linewarden device revoke d1 --reason lost --config controller.toml";
    run(&site.lab.gateway, site.directory.path(), revoke);
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

/// Checks that packets are sealed, whether the service completes checksums or leaves checksums to its network card. The kernel or
/// the network card toward the devices can then complete the checksums.
fn check_checksums(site: &Site, program: &UdpSocket) {
    let set_checksums = |namespace: &NetNs, name: &str, on| {
        namespace
            .run(|| ethtool::set(name, Offload::TransmitChecksum, on).unwrap())
            .unwrap();
    };
    let (lab, service_interface) = (&site.lab, &site.lab.service_end.name);
    for (service_offload, gateway_offload) in [(true, false), (true, true), (false, true), (false, false)] {
        set_checksums(&lab.service, service_interface, service_offload);
        set_checksums(&lab.gateway, &lab.gateway_devices_end.name, gateway_offload);
        for bytes in [1, 8, 777] {
            assert_echoed(program, &vec![0x5a; bytes]);
        }
    }
}

/// Checks that no unsealed packet passes in either direction, although the session is open.
fn check_unsealed_packets(site: &Site) {
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
    // The service's packet arrived as DATA_DOWN, which a program without the agent cannot read.
    let mut buffer = [0; 256];
    let bytes = plain.recv(&mut buffer).unwrap();
    assert_eq!(buffer[..4], [0x4c, 0x57, 1, 7]);
    assert_eq!(bytes, 56 + 20);
}

/// Checks that replays of frames from the devices' network are dropped.
fn check_replays(site: &Site, listener: &mut PacketSocket) {
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

/// Checks that a service that sends too long datagrams gets an error. The route's MTU is reduced by the length of the seal.
fn check_path_mtu(site: &Site, program: &UdpSocket) {
    let (lab, name) = (&site.lab, &site.lab.gateway_devices_end.name);
    let route = if site.v6 {
        format!("ip -6 route replace fd66::/64 dev {name} proto kernel metric 256 mtu 1444")
    } else {
        format!("ip route replace 10.66.0.0/16 dev {name} mtu 1444")
    };
    run(&lab.gateway, site.directory.path(), &route);
    use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
    let service = socket(&lab.service, SocketAddr::new(site.service.ip(), 0));
    if site.v6 {
        sockopt::set_ipv6_mtu_discover(&service, Ipv6PathMtuDiscovery::DO).unwrap();
    } else {
        sockopt::set_ip_mtu_discover(&service, Ipv4PathMtuDiscovery::DO).unwrap();
    }
    let destination = SocketAddr::new(ip(&DEVICE_HOST, site.v6), 9);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let headers = 1500 - 56 - site.payload_bytes_max();
    while service.send_to(&vec![1; 1500 - headers], destination).is_ok() {
        assert!(Instant::now() < deadline, "the service receives no error");
        std::thread::yield_now();
    }
    let error = service
        .send_to(&vec![1; 1500 - headers], destination)
        .unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::MSGSIZE.raw_os_error())
    );
    service
        .send_to(&vec![1; site.payload_bytes_max()], destination)
        .unwrap();
    assert_echoed(program, &vec![7; site.payload_bytes_max()]);
}

#[test]
fn over_ipv4_datagrams_pass_a_sealed_gate_and_other_packets_do_not() {
    require(FOR_LOAD_GENERATOR);
    scenario(false);
}

#[test]
fn over_ipv6_datagrams_pass_a_sealed_gate_and_other_packets_do_not() {
    require(FOR_LOAD_GENERATOR);
    scenario(true);
}

/// Number of packets that the gateway's network stack has forwarded.
fn forwarded_packets(site: &Site) -> u64 {
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
    let column = words().position(|word| word == "ForwDatagrams").unwrap();
    words().nth(column).unwrap().parse().unwrap()
}

/// Datagrams from the device bypass the gateway's network stack if the neighbor is known. Datagrams to the device pass the stack,
/// because the egress filter seals them there.
#[test]
fn unsealed_datagrams_bypass_the_network_stack_if_configured() {
    require(FOR_LOAD_GENERATOR);
    for v6 in [false, true] {
        for (forwards, expected) in [(false, 20), (true, 10)] {
            let site = Site::with_options(v6, forwards, None);
            let program = site.program();
            assert_echoed(&program, b"the first");
            let before = forwarded_packets(&site);
            for bytes in (0..10).map(|step| 1 + step * 150) {
                assert_echoed(&program, &vec![1; bytes.min(site.payload_bytes_max())]);
            }
            assert_eq!(
                forwarded_packets(&site) - before,
                expected,
                "IPv6 {v6}, forwards {forwards}"
            );
        }
    }
}

/// While `work` runs, sends a datagram after each echo of the previous datagram. Returns the number of datagrams.
fn while_datagrams_pass(program: &UdpSocket, pause: Duration, work: impl FnOnce()) -> u32 {
    /// Ends the traffic even if `work` panics. Otherwise the scope would wait forever.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
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
            let _stop = StopOnDrop(&done);
            work();
        }
        traffic.join().unwrap()
    })
}

/// While datagrams pass in both directions, the gateway is killed or terminated, and started again. No datagram is lost, the
/// session continues, and no row is used.
#[test]
fn a_gateway_is_replaced_without_a_lost_datagram() {
    require(FOR_LOAD_GENERATOR);
    let filesystem = BpfFilesystem::mount();
    let mut site = Site::with_options(false, false, Some(&filesystem.path().join("gates")));
    let program = site.program();
    let sent = while_datagrams_pass(&program, Duration::ZERO, || {
        for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL] {
            site.gateway.end_with_signal(signal);
            site.gateway = site.serve();
            site.gateway
                .wait_for("the restored device", |line| line["devices"] == 1);
        }
    });
    assert!(sent > 100, "{sent}");
    let counter = |verdict: &str| site.gateway.count(verdict);
    site.gateway.wait_for_count("pass_data", u64::from(sent));
    assert_eq!(counter("reply_ack"), 1, "only the first session was opened");

    // The new process controls the gate: a revocation takes effect.
    let revoke = "linewarden device revoke d1 --reason lost --config controller.toml";
    run(&site.lab.gateway, site.directory.path(), revoke);
    site.gateway.wait_for("revocation", |line| line["revoked"] == 1);
    program.send(b"no receiver").unwrap();
    site.gateway.wait_for_count("drop_revoked", 1);
    drop(site);
}

/// Checks that the device renews its session while no process of its gateway runs. The next process continues with the session.
/// No datagram and no session is lost.
fn check_renewal_without_a_process(gate: &str) {
    // The process ends soon after a renewal: the next renewal comes after 3/4 of this time, while `fresh` is younger than 16 s.
    const SESSION_LIFETIME_S: u32 = 6;
    let filesystem = BpfFilesystem::mount();
    let pins = filesystem.path().join("gates");
    let mut site = Site::with_gate(gate, SESSION_LIFETIME_S, false, false, Some(&pins));
    let program = site.program();
    let renewed_row = |site: &Site| site.agent.event("authenticated")["row"].as_u64().unwrap();
    let sent = while_datagrams_pass(&program, Duration::from_millis(5), || {
        let mut idx = 0;
        for signal in [Signal::SIGKILL, Signal::SIGTERM] {
            site.gateway.end_with_signal(signal);
            assert_eq!(renewed_row(&site), idx + 1, "{gate}, {signal}");
            site.gateway = site.serve();
            assert_eq!(renewed_row(&site), idx + 2, "{gate}, after {signal}");
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
    let agent_lines = site.agent.terminate();
    let is_lost = |line: &&Value| line["event"] == "session_expired" || line["event"] == "session_lost";
    assert_eq!(agent_lines.iter().find(is_lost), None, "{agent_lines:?}");

    // `remove-gate` removes all pinned objects.
    site.gateway.end_with_signal(Signal::SIGKILL);
    let remove_gate = "linewarden-gateway remove-gate --config gateway.toml";
    run(&site.lab.gateway, site.directory.path(), remove_gate);
    assert_eq!(std::fs::read_dir(&pins).unwrap().count(), 0);
}

#[test]
fn a_session_is_renewed_at_a_bound_gate_while_no_process_runs() {
    require(FOR_LOAD_GENERATOR);
    check_renewal_without_a_process("bound");
}

#[test]
fn a_session_is_renewed_at_a_sealed_gate_while_no_process_runs() {
    require(FOR_LOAD_GENERATOR);
    check_renewal_without_a_process("sealed");
}

/// After the kill of the gateway, another process ran as this gateway on another machine, and could have used the rows in the
/// pinned memory. The restarted gateway uses none of these rows.
#[test]
fn memory_of_a_gateway_that_was_replaced_elsewhere_is_not_used() {
    require(FOR_LOAD_GENERATOR);
    let filesystem = BpfFilesystem::mount();
    let mut site = Site::with_options(false, false, Some(&filesystem.path().join("gates")));
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
    // The session is lost, because the gateway does not use the pinned memory.
    site.program().send(b"no receiver").unwrap();
    site.gateway.wait_for_count("drop_session", 1);
    // The device continues at the mark, because rows below the mark could have been used elsewhere.
    site.agent.end_with_signal(Signal::SIGKILL);
    let agent = site.start_new_agent();
    let event = agent.wait_for("a new session", |line| line["event"] == "authenticated");
    assert!(event["row"].as_u64() >= Some(4), "{event}");
}

/// A ticket is sent to the gateway inside DATA, and its response comes back sealed: rows are renewed while tunnels carry traffic.
#[test]
fn rows_are_renewed_through_the_sealed_gate() {
    require(FOR_LOAD_GENERATOR);
    for v6 in [false, true] {
        let mut site = Site::new(v6);
        assert_echoed(&site.program(), b"before");
        let gateway = SocketAddr::new(ip(&GATEWAY, v6), LAP_PORT);
        let arguments = format!(
            "linewarden-agent run --config devices/00000000000000d1.toml --gateway {gateway} --interface {} --renew --output json",
            site.lab.devices_end.name
        );
        let directory_path = site.directory.path();
        // A restart of the device's agent closes the tunnel sockets of the first agent.
        site.agent.end_with_signal(Signal::SIGKILL);
        site.agent = start(&site.lab.devices, directory_path, &arguments);
        let renewed = site
            .agent
            .wait_for("renewal", |line| line["event"] == "rows_renewed");
        assert_eq!(renewed["rows_end"], 140);
        assert_echoed(&site.program(), b"after");
        site.gateway.wait_for_count("pass_data", 4);
        assert_eq!(site.gateway.count("drop_tag"), 0);
    }
}
