//! A device that roams from one gateway to another and back: two gateways on `xdp` with one registry, each with its own
//! segment, and a device with an interface in both segments. The old session ends at the gateway that the device left.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use linewarden_lab::xdp_pass::XdpPass;
use support::{Namespace, PROGRAM, Process, assert_echoed};

const SERVICE_PORT: u16 = 5683;

/// Gateways 5 and 6, in segments 1 and 2.
struct Site {
    gateways: [Namespace; 2],
    serving: [Process; 2],
    device: Namespace,
    _programs: [XdpPass; 2],
    directory: tempfile::TempDir,
    gate: &'static str,
    v6: bool,
}

/// The address of host number `host` in segment `n`.
fn address(v6: bool, n: usize, host: u8) -> IpAddr {
    match v6 {
        true => IpAddr::from([0xfd09, n as u16, 0, 0, 0, 0, 0, host.into()]),
        false => IpAddr::from([10, 9, n as u8, host]),
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

/// Creates a segment between the interface `v` of the gateway and `dN` of the device. The device replies through the interface
/// at which a request arrived.
fn segment(n: usize, gateway: &Namespace, device: &Namespace, at: &Path) -> XdpPass {
    let peer = device.pid();
    gateway.run(
        at,
        &format!("ip link add v type veth peer name d{n} netns {peer}"),
    );
    for (namespace, name, host) in [(gateway, "v", 1), (device, &*format!("d{n}"), 2)] {
        namespace.run(at, &format!("ip link set {name} up"));
        for v6 in [false, true] {
            let (bits, flags) = if v6 { (64, "nodad") } else { (24, "") };
            let local_address = address(v6, n, host);
            namespace.run(
                at,
                &format!("ip addr add {local_address}/{bits} dev {name} {flags}"),
            );
        }
    }
    device.run(at, &format!("ethtool -K d{n} tx off"));
    for (family, v6) in [("-4", false), ("-6", true)] {
        let (from, next_hop) = (address(v6, n, 2), address(v6, n, 1));
        device.run(at, &format!("ip {family} rule add from {from} table {n}"));
        device.run(
            at,
            &format!("ip {family} route add default via {next_hop} table {n}"),
        );
        device.run(
            at,
            &format!("ip {family} route append default via {next_hop} metric {n}"),
        );
        let host = if v6 { 128 } else { 32 };
        gateway.run(
            at,
            &format!("ip {family} addr add {}/{host} dev lo", service(v6).ip()),
        );
    }
    // The service's address is on `lo` of the gateway, but datagrams from the sealed gate arrive on another interface.
    gateway.run(at, "sysctl -q -w net.ipv4.conf.all.rp_filter=0");
    device.accept_xdp(at, &format!("d{n}"))
}

fn configure(at: &Path, gate: &str, n: usize) {
    let (v4, v6) = (address(false, n, 1), address(true, n, 1));
    std::fs::write(
        at.join(format!("gateway{n}.toml")),
        format!(
            "[gateway]\nid = {}\ninterfaces = [\"v\"]\naddresses = [\"{v4}\", \"{v6}\"]\ngate = \"{gate}\"\nslots = 16\n\
             gate_on_exit = \"remove\"\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n\
             [audit]\npath = \"audit{n}.jsonl\"\n",
            4 + n
        ),
    )
    .unwrap();
}

impl Site {
    fn new(gate: &'static str, v6: bool) -> Option<Self> {
        let (first, second, device) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let programs = [(1, &first), (2, &second)].map(|(n, gateway)| {
            configure(at, gate, n);
            segment(n, gateway, &device, at)
        });
        let lw = |arguments: &str| first.run(at, &format!("{PROGRAM} {arguments}"));
        lw("registry create --registry fleet.registry --key-file master.key");
        lw("device enroll simulated --device d1 --rows 40 --out devices1 --config gateway1.toml");
        // The device has one agent for each gateway, each with its own route to the service.
        first.run(at, "cp -r devices1 devices2");
        for n in [1, 2] {
            let file = at.join(format!("devices{n}/00000000000000d1.toml"));
            let config = std::fs::read_to_string(&file).unwrap();
            let listen = SocketAddr::from(([127, 0, 0, 1], SERVICE_PORT + n));
            let tunnel = format!(
                "\n[[tunnel]]\nlisten = \"{listen}\"\nservice = \"{}\"\n",
                service(v6)
            );
            std::fs::write(&file, config + &tunnel).unwrap();
        }
        let serving = [(1, &first), (2, &second)].map(|(n, gateway)| {
            gateway.echo(service(v6));
            let arguments = format!("serve --config gateway{n}.toml --json --status-interval 1");
            let serving = gateway.start(at, &arguments);
            serving.wait_for("loaded fleet", |line| line["loaded"] == true);
            serving
        });
        Some(Self {
            gateways: [first, second],
            serving,
            device,
            _programs: programs,
            directory,
            gate,
            v6,
        })
    }

    /// Starts the agent of the device for gateway `n`, and waits until it has authenticated.
    fn arrive(&self, n: usize) -> Process {
        let gateway = address(self.v6, n, 1);
        let arguments = format!(
            "agent --config devices{n}/00000000000000d1.toml --gateway {gateway} --interface d{n} --json"
        );
        let agent = self.device.start(self.directory.path(), &arguments);
        agent.event("authenticated");
        agent
    }

    /// A socket on the device that reaches the service through gateway `n`, and its destination.
    fn program(&self, n: usize) -> (UdpSocket, SocketAddr) {
        match self.gate {
            "sealed" => {
                let listen = SocketAddr::from(([127, 0, 0, 1], SERVICE_PORT + n as u16));
                (self.device.socket("127.0.0.1:0".parse().unwrap()), listen)
            }
            _ => {
                let local_address = SocketAddr::new(address(self.v6, n, 2), 0);
                (self.device.socket(local_address), service(self.v6))
            }
        }
    }

    #[track_caller]
    fn assert_passes(&self, n: usize) {
        let (program, to) = self.program(n);
        assert_echoed(&program, to);
    }

    /// Asserts that no packet of the device passes gateway `n`.
    #[track_caller]
    fn assert_closed(&self, n: usize) {
        let (program, to) = self.program(n);
        let gateway = &self.serving[n - 1];
        let verdict = if self.gate == "sealed" {
            "drop_session"
        } else {
            "drop_gate"
        };
        let count_before = gateway.count(verdict);
        program.send_to(b"no receiver", to).unwrap();
        gateway.wait_for_count(verdict, count_before + 1);
        program.set_nonblocking(true).unwrap();
        assert!(program.recv(&mut [0; 64]).is_err());
    }

    #[track_caller]
    fn wait_for_closed_sessions(&self, n: usize, count: u64) {
        let gateway = &self.serving[n - 1];
        gateway.wait_for("closed session", |line| line["sessions_closed"] == count);
    }

    /// Whether the gateway audit log of gateway `n` names the device's new gateway.
    fn audit_log_names(&self, n: usize, newer_gateway: u64) -> bool {
        let file = self.directory.path().join(format!("audit{n}.jsonl"));
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
    let Some(site) = Site::new(gate, v6) else {
        println!("SKIPPED: no root, or no unshare, ip and ethtool");
        return;
    };
    let at_first = site.arrive(1);
    site.assert_passes(1);
    // The old agent continues to send, like an attacker with its key.
    let at_second = site.arrive(2);
    site.wait_for_closed_sessions(1, 1);
    site.assert_closed(1);
    site.assert_passes(2);
    assert!(site.audit_log_names(1, 6));

    drop(at_first);
    let back_at_first = site.arrive(1);
    site.wait_for_closed_sessions(2, 1);
    site.assert_closed(2);
    site.assert_passes(1);
    assert!(site.audit_log_names(2, 5));

    drop(at_second);
    let _back_at_second = site.arrive(2);
    site.wait_for_closed_sessions(1, 2);
    site.assert_closed(1);
    site.assert_passes(2);
    drop(back_at_first);
    let registry = site.gateways[0].run(
        site.directory.path(),
        &format!("{PROGRAM} registry check --config gateway1.toml"),
    );
    assert!(registry.contains("registry check passed"), "{registry}");
}

#[test]
fn a_device_that_roams_leaves_no_gate_open_behind() {
    [false, true].into_iter().for_each(|v6| scenario("bound", v6));
}

#[test]
fn a_device_that_roams_leaves_no_sealed_gate_open_behind() {
    [false, true].into_iter().for_each(|v6| scenario("sealed", v6));
}
