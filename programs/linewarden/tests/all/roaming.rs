//! A device that roams from one gateway to another and back: two gateways on `xdp` with one controller, each with its own
//! segment, and a device with an interface in both segments. The old session ends at the gateway that the device left.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use linewarden_lab::xdp_pass::XdpPass;

use crate::support::{Namespace, Process, assert_echoed, write_controller_config};

const SERVICE_PORT: u16 = 5683;

/// Gateways 5 and 6, in segments 1 and 2.
struct Site {
    gateways: [Namespace; 2],
    processes: [Process; 2],
    _controller: Process,
    device: Namespace,
    _programs: [XdpPass; 2],
    directory: tempfile::TempDir,
    gate: &'static str,
    v6: bool,
}

/// The address of host number `host` in this segment.
fn address(v6: bool, segment: usize, host: u8) -> IpAddr {
    match v6 {
        true => IpAddr::from([0xfd09, segment as u16, 0, 0, 0, 0, 0, host.into()]),
        false => IpAddr::from([10, 9, segment as u8, host]),
    }
}

/// The service has the same address behind both gateways.
fn service(v6: bool) -> SocketAddr {
    let ip = match v6 {
        true => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1]),
        false => IpAddr::from([10, 77, 0, 1]),
    };
    SocketAddr::new(ip, SERVICE_PORT)
}

/// Creates segment N between the gateway's interface `v` and the device's interface `dN`. The device replies through the
/// interface at which a request arrived.
fn build_segment(segment: usize, gateway: &Namespace, device: &Namespace, directory_path: &Path) -> XdpPass {
    let peer = device.pid();
    gateway.run(
        directory_path,
        &format!("ip link add v type veth peer name d{segment} netns {peer}"),
    );
    for (namespace, name, host) in [(gateway, "v", 1), (device, &*format!("d{segment}"), 2)] {
        namespace.run(directory_path, &format!("ip link set {name} up"));
        for v6 in [false, true] {
            let (bits, flags) = if v6 { (64, "nodad") } else { (24, "") };
            let local_address = address(v6, segment, host);
            namespace.run(
                directory_path,
                &format!("ip addr add {local_address}/{bits} dev {name} {flags}"),
            );
        }
    }
    device.run(directory_path, &format!("ethtool -K d{segment} tx off"));
    for (family, v6) in [("-4", false), ("-6", true)] {
        let (from, next_hop) = (address(v6, segment, 2), address(v6, segment, 1));
        device.run(
            directory_path,
            &format!("ip {family} rule add from {from} table {segment}"),
        );
        device.run(
            directory_path,
            &format!("ip {family} route add default via {next_hop} table {segment}"),
        );
        device.run(
            directory_path,
            &format!("ip {family} route append default via {next_hop} metric {segment}"),
        );
        let host = if v6 { 128 } else { 32 };
        gateway.run(
            directory_path,
            &format!("ip {family} addr add {}/{host} dev lo", service(v6).ip()),
        );
    }
    // The service's address is on `lo` of the gateway, but datagrams from the sealed gate arrive on another interface.
    gateway.run(directory_path, "sysctl -q -w net.ipv4.conf.all.rp_filter=0");
    device.accept_xdp(directory_path, &format!("d{segment}"))
}

fn configure(directory_path: &Path, gate: &str, segment: usize) {
    let (v4, v6) = (address(false, segment, 1), address(true, segment, 1));
    std::fs::write(
        directory_path.join(format!("gateway{segment}.toml")),
        format!(
            "[gateway]\nid = {}\ninterfaces = [\"v\"]\naddresses = [\"{v4}\", \"{v6}\"]\ngate = \"{gate}\"\nslots = 16\n\
             gate_on_exit = \"remove\"\n[controller]\nsocket = \"controller.sock\"\n\
             [audit]\npath = \"audit{segment}.jsonl\"\n",
            4 + segment
        ),
    )
    .unwrap();
}

impl Site {
    fn new(gate: &'static str, v6: bool) -> Self {
        let [first, second, device] = [(); 3].map(|()| Namespace::require());
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path();
        let programs = [(1, &first), (2, &second)].map(|(segment, gateway)| {
            configure(directory_path, gate, segment);
            build_segment(segment, gateway, &device, directory_path)
        });
        write_controller_config(directory_path);
        let run = |command_line: &str| first.run(directory_path, command_line);
        run("linewarden registry create --registry fleet.registry --key-file master.key");
        run(
            "linewarden device enroll simulated --device d1 --rows 40 --out devices1 --config controller.toml",
        );
        // The device has one agent for each gateway. Each agent has its own tunnel to the service.
        first.run(directory_path, "cp -r devices1 devices2");
        for segment in [1, 2] {
            let file = directory_path.join(format!("devices{segment}/00000000000000d1.toml"));
            let config = std::fs::read_to_string(&file).unwrap();
            let listen = SocketAddr::from(([127, 0, 0, 1], SERVICE_PORT + segment));
            let tunnel = format!(
                "\n[[tunnel]]\nlisten = \"{listen}\"\nservice = \"{}\"\n",
                service(v6)
            );
            std::fs::write(&file, config + &tunnel).unwrap();
        }
        let controller = first.start_controller(directory_path);
        let processes = [(1, &first), (2, &second)].map(|(segment, gateway)| {
            gateway.echo(service(v6));
            let arguments = format!(
                "linewarden-gateway run --config gateway{segment}.toml --output json --status-interval 1"
            );
            let process = gateway.start(directory_path, &arguments);
            process.wait_for("loaded fleet", |line| line["loaded"] == true);
            process
        });
        Self {
            gateways: [first, second],
            processes,
            _controller: controller,
            device,
            _programs: programs,
            directory,
            gate,
            v6,
        }
    }

    /// Starts the device's agent for the gateway of this segment, and waits until the device has authenticated.
    fn authenticate_at(&self, segment: usize) -> Process {
        let gateway = address(self.v6, segment, 1);
        let arguments = format!(
            "linewarden-agent run --config devices{segment}/00000000000000d1.toml --gateway {gateway} --interface d{segment} --output json"
        );
        let agent = self.device.start(self.directory.path(), &arguments);
        agent.event("authenticated");
        agent
    }

    /// A socket on the device, and the destination at which the socket reaches the service through the gateway of this segment.
    fn program(&self, segment: usize) -> (UdpSocket, SocketAddr) {
        match self.gate {
            "sealed" => {
                let listen = SocketAddr::from(([127, 0, 0, 1], SERVICE_PORT + segment as u16));
                (self.device.socket("127.0.0.1:0".parse().unwrap()), listen)
            }
            _ => {
                let local_address = SocketAddr::new(address(self.v6, segment, 2), 0);
                (self.device.socket(local_address), service(self.v6))
            }
        }
    }

    #[track_caller]
    fn assert_passes(&self, segment: usize) {
        let (program, destination) = self.program(segment);
        assert_echoed(&program, destination);
    }

    /// Asserts that no packet of the device passes the gateway of this segment.
    #[track_caller]
    fn assert_closed(&self, segment: usize) {
        let (program, destination) = self.program(segment);
        let gateway = &self.processes[segment - 1];
        let verdict = if self.gate == "sealed" {
            "drop_session"
        } else {
            "drop_gate"
        };
        let count_before = gateway.count(verdict);
        program.send_to(b"no receiver", destination).unwrap();
        gateway.wait_for_count(verdict, count_before + 1);
        program.set_nonblocking(true).unwrap();
        assert!(program.recv(&mut [0; 64]).is_err());
    }

    #[track_caller]
    fn wait_for_closed_sessions(&self, segment: usize, count: u64) {
        let gateway = &self.processes[segment - 1];
        gateway.wait_for("closed session", |line| line["sessions_closed"] == count);
    }

    /// Whether the audit log of this segment's gateway names the device's new gateway.
    fn audit_log_names(&self, segment: usize, newer_gateway: u64) -> bool {
        let file = self.directory.path().join(format!("audit{segment}.jsonl"));
        let text = std::fs::read_to_string(file).unwrap();
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.any(|line| {
            line["event"] == "session_closed"
                && line["device"] == "00000000000000d1"
                && line["newer_gateway"] == newer_gateway
        })
    }
}

fn scenario(gate: &'static str, v6: bool) {
    let site = Site::new(gate, v6);
    let first_agent = site.authenticate_at(1);
    site.assert_passes(1);
    // The first agent continues to send, like an attacker with its session key.
    let second_agent = site.authenticate_at(2);
    site.wait_for_closed_sessions(1, 1);
    site.assert_closed(1);
    site.assert_passes(2);
    assert!(site.audit_log_names(1, 6));

    drop(first_agent);
    let returned_agent = site.authenticate_at(1);
    site.wait_for_closed_sessions(2, 1);
    site.assert_closed(2);
    site.assert_passes(1);
    assert!(site.audit_log_names(2, 5));

    drop(second_agent);
    let _last_agent = site.authenticate_at(2);
    site.wait_for_closed_sessions(1, 2);
    site.assert_closed(1);
    site.assert_passes(2);
    drop(returned_agent);
    let registry = site.gateways[0].run(
        site.directory.path(),
        "linewarden registry check --config controller.toml",
    );
    assert!(registry.contains("registry check passed"), "{registry}");
}

#[test]
fn a_bound_gate_is_closed_for_a_device_that_has_roamed() {
    [false, true].into_iter().for_each(|v6| scenario("bound", v6));
}

#[test]
fn a_sealed_gate_is_closed_for_a_device_that_has_roamed() {
    [false, true].into_iter().for_each(|v6| scenario("sealed", v6));
}
