//! Two devices that exchange messages. The gateway and both agents are in private network namespaces; the gateway routes between
//! two segments.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::path::Path;
use std::process::Command;

use support::{Namespace, PROGRAM, Process};

/// Sends requests to a program at the peer through the agent's listener until a response arrives.
const CLIENT: &str = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(1)\n\
    for n in range(60):\n  s.sendto(b'how do you do', ('127.0.0.1', 6000))\n  try:\n    print(s.recv(2000).decode())\n    \
    break\n  except socket.timeout: pass\n";
/// Responds at UDP port 6001.
const SERVER: &str = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('127.0.0.1', 6001))\n\
    print('{}', flush=True)\nwhile True:\n  d,a=s.recvfrom(2000)\n  s.sendto(d[::-1],a)\n";

/// The variant of the site.
#[derive(Clone, Copy, Default)]
struct Plan {
    v6: bool,
    /// Whether each device has its own gateway, with one registry; otherwise both devices share one gateway.
    two_gateways: bool,
    sealed: bool,
}

impl Plan {
    /// Address of host `host` on segment `n`.
    fn address(self, n: u32, host: u32) -> String {
        match self.v6 {
            true => format!("fd09:{n}::{host}"),
            false => format!("10.9.{n}.{host}"),
        }
    }

    fn bits(self) -> u32 {
        if self.v6 { 64 } else { 24 }
    }

    fn configuration(self, id: u32, interfaces: &[&str], segments: &[u32]) -> String {
        let addresses: Vec<String> = segments
            .iter()
            .map(|n| format!("\"{}\"", self.address(*n, 1)))
            .collect();
        let dataplane = match self.sealed {
            true => format!("interfaces = {interfaces:?}\ngate = \"sealed\""),
            false => "dataplane = \"host\"".to_owned(),
        };
        format!(
            "[gateway]\nid = {id}\n{dataplane}\naddresses = [{}]\nslots = 16\ngate_on_exit = \"remove\"\n\
             [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n",
            addresses.join(", ")
        )
    }
}

/// Gateway or gateways between segments 1 and 2, a device in each.
struct Site {
    plan: Plan,
    a: Process,
    b: Process,
    _gateways: Vec<Process>,
    _responder: Process,
    /// The router between the segments, where the gateways run, and the devices.
    inside: [Namespace; 3],
    directory: tempfile::TempDir,
}

impl Site {
    fn new(plan: Plan) -> Option<Self> {
        let inside = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        connect(plan, &inside, at);
        let [router, a, b] = &inside;
        let configurations = match plan.two_gateways {
            false => vec![plan.configuration(5, &["v1", "v2"], &[1, 2])],
            true => vec![
                plan.configuration(5, &["v1"], &[1]),
                plan.configuration(6, &["v2"], &[2]),
            ],
        };
        for (n, text) in (1..).zip(&configurations) {
            std::fs::write(at.join(format!("gateway{n}.toml")), text).unwrap();
        }
        let lw = |arguments: &str| router.run(at, &format!("{PROGRAM} {arguments}"));
        lw("registry create --registry fleet.registry --key-file master.key");
        enroll(plan, at, lw);
        let serve = |n| {
            let gateway = router.start(
                at,
                &format!("serve --config gateway{n}.toml --json --status-interval 1"),
            );
            gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
            gateway
        };
        let gateways = (1..=configurations.len()).map(serve).collect();
        let responder = Process::start(inside_of(b, at, &["python3", "-c", SERVER]));
        responder.wait_for("responder", |_| true);
        Some(Self {
            plan,
            a: agent(plan, 1, a, at),
            b: agent(plan, 2, b, at),
            _gateways: gateways,
            _responder: responder,
            inside,
            directory,
        })
    }

    fn run(&self, arguments: &str) {
        let [router, ..] = &self.inside;
        router.run(self.directory.path(), &format!("{PROGRAM} {arguments}"));
    }

    /// Allows the pair, and waits until both agents have connected.
    #[track_caller]
    fn allow(&self) {
        self.run("device pair create d1 d2 --config gateway1.toml");
        for (agent, peer) in [(&self.a, "00000000000000d2"), (&self.b, "00000000000000d1")] {
            assert_eq!(agent.event("peer_connected")["peer"], peer);
        }
    }

    /// A program at the first device sends a request to a program at the second, and receives its response.
    #[track_caller]
    fn exchange_messages(&self) {
        let [_, a, _] = &self.inside;
        let text = support::run(inside_of(a, self.directory.path(), &["python3", "-c", CLIENT]));
        assert_eq!(text, "od uoy od woh\n");
    }

    /// Kills and restarts the second device's agent, without its session state.
    fn restart_b(&mut self) {
        let [.., b] = &self.inside;
        self.b.end_with_signal(nix::sys::signal::Signal::SIGKILL);
        self.b = agent(self.plan, 2, b, self.directory.path());
    }
}

/// Creates segments 1 and 2, and the route between them.
fn connect(plan: Plan, inside: &[Namespace; 3], at: &Path) {
    let [router, a, b] = inside;
    let (family, bits) = (if plan.v6 { "-6" } else { "-4" }, plan.bits());
    for (n, device) in [(1, a), (2, b)] {
        let end = |host| format!("{}/{bits}", plan.address(n, host));
        let dad = if plan.v6 { "nodad" } else { "" };
        router.run(
            at,
            &format!("ip link add v{n} type veth peer name dev netns {}", device.pid()),
        );
        router.run(at, &format!("ip addr add {} dev v{n} {dad}", end(1)));
        router.run(at, &format!("ip link set v{n} up"));
        device.run(at, &format!("ip addr add {} dev dev {dad}", end(2)));
        device.run(at, "ip link set dev dev up");
        device.run(
            at,
            &format!("ip {family} route add default via {}", plan.address(n, 1)),
        );
        device.run(at, "ethtool -K dev tx off");
    }
    for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        router.run(at, &format!("sysctl -q -w {setting}"));
    }
}

/// Enrolls both devices, each with the other as its peer.
fn enroll(plan: Plan, at: &Path, lw: impl Fn(&str) -> String) {
    for (n, id, peer) in [(1, "d1", "d2"), (2, "d2", "d1")] {
        lw(&format!(
            "device enroll simulated --device {id} --rows 40 --out devices --config gateway1.toml"
        ));
        let file = at.join(format!("devices/00000000000000{id}.toml"));
        let mut config = std::fs::read_to_string(&file).unwrap();
        config += &format!("\n[[peer]]\ndevice = \"{peer}\"\nlisten = \"127.0.0.1:6000\"\n");
        if n == 2 {
            config += "deliver = \"127.0.0.1:6001\"\n";
        }
        if plan.two_gateways {
            let address = plan.address(3 - n, 2);
            let address = if plan.v6 { format!("[{address}]") } else { address };
            config += &format!("address = \"{address}:20553\"\n");
        }
        std::fs::write(&file, config).unwrap();
    }
}

fn inside_of(namespace: &Namespace, at: &Path, arguments: &[&str]) -> Command {
    let wrapper = namespace.wrapper();
    let mut command = Command::new(&wrapper[0]);
    command.args(&wrapper[1..]).args(arguments).current_dir(at);
    command
}

fn agent(plan: Plan, n: u32, namespace: &Namespace, at: &Path) -> Process {
    let gateway = plan.address(n, 1);
    let arguments = format!("agent --config devices/00000000000000d{n}.toml --gateway {gateway} --json");
    let agent = namespace.start(at, &arguments);
    agent.event("authenticated");
    agent
}

fn scenario(plan: Plan, close: &str) {
    let Some(site) = Site::new(plan) else {
        println!("SKIPPED: no root, or no unshare, nsenter, ip and ethtool");
        return;
    };
    site.allow();
    site.exchange_messages();
    site.run(close);
    let closed = site.a.event("peer_disconnected");
    assert_eq!(closed["peer"], "00000000000000d2");
    assert_eq!(closed["reason"], "the pair does not exist at the controller");
}

const REVOKE: &str = "device revoke d2 --reason lost --config gateway1.toml";
const CLOSE: &str = "device pair delete d2 d1 --config gateway1.toml";

#[test]
fn a_pair_communicates_until_one_device_is_revoked() {
    scenario(Plan::default(), REVOKE);
}

#[test]
fn a_pair_communicates_through_a_sealed_gate_until_it_is_closed() {
    let sealed = true;
    scenario(
        Plan {
            sealed,
            ..Plan::default()
        },
        CLOSE,
    );
}

#[test]
fn a_pair_communicates_over_ipv6_past_no_gate_and_a_sealed_one() {
    for (sealed, close) in [(false, REVOKE), (true, CLOSE)] {
        let v6 = true;
        scenario(
            Plan {
                v6,
                sealed,
                ..Plan::default()
            },
            close,
        );
    }
}

/// Each device is known to its own gateway only; the shared registry provides the key.
#[test]
fn a_pair_communicates_across_two_gateways_of_one_registry() {
    let two_gateways = true;
    scenario(
        Plan {
            two_gateways,
            ..Plan::default()
        },
        REVOKE,
    );
}

#[test]
fn a_restarted_peer_is_reachable_again() {
    let Some(mut site) = Site::new(Plan::default()) else {
        println!("SKIPPED: no root, or no unshare, nsenter, ip and ethtool");
        return;
    };
    site.allow();
    site.exchange_messages();
    site.restart_b();
    site.exchange_messages();
    assert!(site.a.events("peer_disconnected").is_empty());
}
