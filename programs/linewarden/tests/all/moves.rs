//! Devices change their IP or MAC address at one gateway, and hosts take over the old addresses: the gate passes packets as
//! LAP/1 1.4.9 and 1.4.15 specify. The site has two hosts on one segment, a gateway on `xdp`, and a service behind the gateway.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Instant;

use linewarden_lab::xdp_pass::XdpPass;

use crate::support::{Namespace, Process, TEST_TIMEOUT, assert_echoed, write_controller_config};

const SERVICE_PORT: u16 = 5683;
/// Time after which a sent datagram is either lost or in the gateway's counters. The kernel drops packets that wait for neighbor
/// resolution after three solicitations, one per second. The gateway reports its counters every second.
const NEIGHBOR_WAIT_S: u32 = 5;
const MACS: [&str; 3] = ["02:00:00:00:00:d1", "02:00:00:00:00:d2", "02:00:00:00:00:d3"];

/// Host 1 is the gateway.
fn address(v6: bool, host: u8) -> IpAddr {
    match v6 {
        true => IpAddr::from([0xfd09, 1, 0, 0, 0, 0, 0, host.into()]),
        false => IpAddr::from([10, 9, 1, host]),
    }
}

/// Address of the service, which differs from the addresses of the gateway.
fn service(v6: bool) -> SocketAddr {
    let ip = match v6 {
        true => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1]),
        false => IpAddr::from([10, 77, 0, 1]),
    };
    SocketAddr::new(ip, SERVICE_PORT)
}

struct Host {
    namespace: Namespace,
    directory_path: std::path::PathBuf,
    v6: bool,
}

impl Host {
    fn run(&self, arguments: &str) {
        self.namespace.run(&self.directory_path, arguments);
    }

    fn family(&self) -> &'static str {
        if self.v6 { "-6" } else { "-4" }
    }

    /// Adds this address to the host. The host then sends from this address.
    fn move_to(&self, host: u8) {
        let (local_address, bits) = (address(self.v6, host), if self.v6 { 64 } else { 24 });
        let (family, gateway) = (self.family(), address(self.v6, 1));
        let nodad = if self.v6 { "nodad" } else { "" };
        self.run(&format!(
            "ip {family} addr replace {local_address}/{bits} dev h0 {nodad}"
        ));
        for target in [gateway, service(self.v6).ip()] {
            let via = match target == gateway {
                true => String::new(),
                false => format!("via {gateway}"),
            };
            self.run(&format!(
                "ip {family} route replace {target} {via} dev h0 src {local_address}"
            ));
        }
    }

    fn remove_address(&self, host: u8) {
        let (local_address, bits) = (address(self.v6, host), if self.v6 { 64 } else { 24 });
        self.run(&format!(
            "ip {} addr del {local_address}/{bits} dev h0",
            self.family()
        ));
    }

    fn set_mac(&self, mac: &str) {
        self.run(&format!("ip link set dev h0 address {mac}"));
    }

    fn socket(&self, host: u8) -> UdpSocket {
        self.namespace.socket(SocketAddr::new(address(self.v6, host), 0))
    }
}

struct Site {
    gateway_process: Process,
    _controller: Process,
    gateway: Namespace,
    _switch: Namespace,
    _program: XdpPass,
    hosts: [Host; 2],
    directory: tempfile::TempDir,
    v6: bool,
}

/// Connects the namespaces of the gateway and the hosts by a bridge. Returns the XDP program at the gateway's port of the bridge.
fn build_network(
    gateway: &Namespace,
    switch: &Namespace,
    hosts: &[Host; 2],
    directory_path: &Path,
) -> XdpPass {
    switch.run(directory_path, "ip link add br0 type bridge mcast_snooping 0");
    switch.run(directory_path, "ip link set br0 up");
    let interfaces = [
        (gateway, "v"),
        (&hosts[0].namespace, "h0"),
        (&hosts[1].namespace, "h0"),
    ];
    for (n, (namespace, name)) in interfaces.into_iter().enumerate() {
        let peer = switch.pid();
        namespace.run(
            directory_path,
            &format!("ip link add dev {name} type veth peer name s{n} netns {peer}"),
        );
        switch.run(directory_path, &format!("ip link set s{n} master br0 up"));
        switch.run(directory_path, &format!("ethtool -K s{n} tx off gro on"));
    }
    for (host, mac) in hosts.iter().zip(MACS) {
        host.run("ethtool -K h0 tx off");
        // Without this setting, the removal of the first address would also remove the second address.
        host.run("sysctl -q -w net.ipv4.conf.all.promote_secondaries=1");
        host.set_mac(mac);
        host.run("ip link set h0 up");
    }
    gateway.run(directory_path, "ip link set v up");
    for v6 in [false, true] {
        let (bits, host, nodad) = if v6 { (64, 128, "nodad") } else { (24, 32, "") };
        gateway.run(
            directory_path,
            &format!("ip addr add {}/{bits} dev v {nodad}", address(v6, 1)),
        );
        gateway.run(
            directory_path,
            &format!("ip addr add {}/{host} dev lo {nodad}", service(v6).ip()),
        );
    }
    switch.accept_xdp(directory_path, "s0")
}

impl Site {
    fn new(gate: &str, v6: bool) -> Self {
        let (gateway, switch) = (Namespace::require(), Namespace::require());
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path();
        let host = || Host {
            namespace: Namespace::require(),
            directory_path: directory_path.to_owned(),
            v6,
        };
        let hosts = [host(), host()];
        let program = build_network(&gateway, &switch, &hosts, directory_path);
        let gateway_addresses = [false, true].map(|v6| address(v6, 1));
        std::fs::write(
            directory_path.join("gateway.toml"),
            format!(
                "[gateway]\nid = 5\ninterfaces = [\"v\"]\naddresses = [\"{}\", \"{}\"]\ngate = \"{gate}\"\nslots = 16\n\
                 gate_on_exit = \"remove\"\n[controller]\nsocket = \"controller.sock\"\n",
                gateway_addresses[0], gateway_addresses[1]
            ),
        )
        .unwrap();
        write_controller_config(directory_path);
        let run = |command_line: &str| gateway.run(directory_path, command_line);
        run("linewarden registry create --registry fleet.registry --key-file master.key");
        for id in ["d1", "d2"] {
            run(&format!(
                "linewarden device enroll simulated --device {id} --rows 40 --out devices --config controller.toml"
            ));
        }
        gateway.echo(service(v6));
        let controller = gateway.start_controller(directory_path);
        let gateway_process = gateway.start(
            directory_path,
            "linewarden-gateway run --config gateway.toml --output json --status-interval 1",
        );
        gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
        Self {
            gateway_process,
            _controller: controller,
            gateway,
            _switch: switch,
            _program: program,
            hosts,
            directory,
            v6,
        }
    }

    /// Writes a configuration of device d1 with a tunnel from UDP port `port` of the device to the service.
    fn write_tunnel_configuration(&self, file: &str, port: u16) {
        let path = self.directory.path().join("devices");
        let config = std::fs::read_to_string(path.join("00000000000000d1.toml")).unwrap();
        let tunnel = format!(
            "\n[[tunnel]]\nlisten = \"127.0.0.1:{port}\"\nservice = \"{}\"\n",
            service(self.v6)
        );
        std::fs::write(path.join(file), config + &tunnel).unwrap();
    }

    fn start_agent(&self, host: usize, file: &str) -> Process {
        let arguments = format!(
            "linewarden-agent run --config devices/{file} --gateway {} --interface h0 --output json",
            address(self.v6, 1)
        );
        self.hosts[host]
            .namespace
            .start(self.directory.path(), &arguments)
    }

    fn authenticate(&self, host: usize, file: &str) -> Process {
        let agent = self.start_agent(host, file);
        agent.event("authenticated");
        agent
    }

    /// Asserts that the gate counts this verdict for a datagram to the service. On a new segment, a datagram can be lost before
    /// neighbor resolution, so this function sends the datagram repeatedly.
    #[track_caller]
    fn assert_verdict(&self, from: &UdpSocket, verdict: &str) {
        let count_before = self.gateway_process.count(verdict);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.gateway_process.count(verdict) == count_before {
            assert!(
                Instant::now() < deadline,
                "no {verdict}: {:#?}",
                self.gateway_process.printed_lines()
            );
            from.send_to(b"a measurement", service(self.v6)).unwrap();
            for _ in 0..NEIGHBOR_WAIT_S {
                self.gateway_process
                    .wait_for("a status report", |line| line["counters"].is_object());
                if self.gateway_process.count(verdict) > count_before {
                    break;
                }
            }
        }
    }

    /// Clears the neighbor tables.
    fn forget_neighbors(&self) {
        self.gateway.run(self.directory.path(), "ip neigh flush dev v");
    }
}

const D1: &str = "00000000000000d1.toml";
const D2: &str = "00000000000000d2.toml";

/// A bound gate identifies a device by its MAC address: the device may change its IP address.
fn bound_gate(v6: bool) {
    let site = Site::new("bound", v6);
    let [device_host, other_host] = &site.hosts;
    device_host.move_to(2);
    site.assert_verdict(&device_host.socket(2), "drop_gate");
    let agent = site.authenticate(0, D1);
    assert_echoed(&device_host.socket(2), service(v6));

    device_host.move_to(3);
    device_host.remove_address(2);
    assert_echoed(&device_host.socket(3), service(v6));
    // A host with another MAC address does not pass with the old IP address.
    other_host.move_to(2);
    site.assert_verdict(&other_host.socket(2), "drop_gate");
    // The host also gets no session at this address before the gateway has learned that the device has moved.
    let agent_before_move = site.start_agent(1, D2);
    site.gateway_process.wait_for_count("drop_address_owned", 1);
    drop(agent_before_move);
    drop(agent);
    let agent = site.authenticate(0, D1);
    let other_agent = site.authenticate(1, D2);
    site.forget_neighbors();
    assert_echoed(&other_host.socket(2), service(v6));
    assert_echoed(&device_host.socket(3), service(v6));

    // With another MAC address the device does not pass until it has authenticated.
    device_host.set_mac(MACS[2]);
    site.assert_verdict(&device_host.socket(3), "drop_gate");
    drop(agent);
    let _agent = site.authenticate(0, D1);
    site.forget_neighbors();
    assert_echoed(&device_host.socket(3), service(v6));
    // The device's old MAC address does not pass if another host uses it.
    drop(other_agent);
    other_host.set_mac(MACS[0]);
    site.assert_verdict(&other_host.socket(2), "drop_gate");
    // A host with the device's present MAC address passes: a bound gate trusts MAC addresses (threat model).
    device_host.run("ip link set h0 down");
    other_host.set_mac(MACS[2]);
    site.assert_verdict(&other_host.socket(2), "pass_session");
}

/// A sealed gate identifies a session by its IP address and ignores MAC addresses.
fn sealed_gate(v6: bool) {
    let site = Site::new("sealed", v6);
    let [device_host, other_host] = &site.hosts;
    site.write_tunnel_configuration("before.toml", 6001);
    site.write_tunnel_configuration("after.toml", 6002);
    let program = device_host.namespace.socket("127.0.0.1:0".parse().unwrap());
    let tunnel_address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    device_host.move_to(2);
    let _before = site.authenticate(0, "before.toml");
    assert_echoed(&program, tunnel_address(6001));

    // Another MAC address changes nothing.
    device_host.set_mac(MACS[2]);
    site.forget_neighbors();
    assert_echoed(&program, tunnel_address(6001));
    // A host with the device's old MAC address has no session key.
    other_host.set_mac(MACS[0]);
    other_host.move_to(4);
    site.assert_verdict(&other_host.socket(4), "drop_gate");

    // From another IP address the device has another session; the previous session is closed, even for datagrams from the old
    // address.
    device_host.move_to(3);
    let _after = site.authenticate(0, "after.toml");
    assert_echoed(&program, tunnel_address(6002));
    let dropped_before = site.gateway_process.count("drop_session");
    program.send_to(b"no receiver", tunnel_address(6001)).unwrap();
    site.gateway_process
        .wait_for_count("drop_session", dropped_before + 1);
    assert_echoed(&program, tunnel_address(6002));

    // A host that takes the old IP address receives none of the device's packets, because the host has no session there.
    device_host.remove_address(2);
    other_host.move_to(2);
    site.assert_verdict(&other_host.socket(2), "drop_gate");
    let service_end = site.gateway.socket(SocketAddr::new(service(v6).ip(), 0));
    let dropped_before = site.gateway_process.count("drop_session");
    let old_address = SocketAddr::new(address(v6, 2), 9);
    service_end.send_to(b"to the old address", old_address).unwrap();
    site.gateway_process
        .wait_for_count("drop_session", dropped_before + 1);
    // The host receives its own packets after it has authenticated at this address.
    let _other = site.authenticate(1, D2);
}

#[test]
fn a_bound_gate_identifies_devices_by_mac_address() {
    [false, true].into_iter().for_each(bound_gate);
}

#[test]
fn a_sealed_gate_identifies_sessions_by_ip_address() {
    [false, true].into_iter().for_each(sealed_gate);
}
