//! Two devices that exchange messages. The gateway and both agents are in private network namespaces; the gateway routes between
//! two segments.

use std::path::Path;
use std::process::Command;

use crate::support::{self, Namespace, Process, write_controller_config};

/// A Python program that sends requests through the agent's listener to a program at the peer, until a response arrives.
const CLIENT: &str = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(1)\n\
    for n in range(60):\n  s.sendto(b'how do you do', ('127.0.0.1', 6000))\n  try:\n    print(s.recv(2000).decode())\n    \
    break\n  except socket.timeout: pass\n";
/// A Python program that receives datagrams at UDP port 6001, and returns each datagram with its bytes reversed.
const SERVER: &str = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('127.0.0.1', 6001))\n\
    print('{}', flush=True)\nwhile True:\n  d,a=s.recvfrom(2000)\n  s.sendto(d[::-1],a)\n";

/// Properties of a site.
#[derive(Clone, Copy, Default)]
struct SiteOptions {
    v6: bool,
    /// Whether each device has its own gateway, with one controller; otherwise both devices share one gateway.
    two_gateways: bool,
    /// Whether the gateways have a sealed gate; otherwise they have no gate.
    sealed: bool,
}

impl SiteOptions {
    /// Address of host `host` on this segment.
    fn address(self, segment: u32, host: u32) -> String {
        match self.v6 {
            true => format!("fd09:{segment}::{host}"),
            false => format!("10.9.{segment}.{host}"),
        }
    }

    fn prefix_bits(self) -> u32 {
        if self.v6 { 64 } else { 24 }
    }

    fn configuration(self, id: u32, interfaces: &[&str], segments: &[u32]) -> String {
        let addresses: Vec<String> = segments
            .iter()
            .map(|segment| format!("\"{}\"", self.address(*segment, 1)))
            .collect();
        let dataplane = match self.sealed {
            true => format!("interfaces = {interfaces:?}\ngate = \"sealed\""),
            false => "dataplane = \"host\"".to_owned(),
        };
        format!(
            "[gateway]\nid = {id}\n{dataplane}\naddresses = [{}]\nslots = 16\ngate_on_exit = \"remove\"\n\
             [controller]\nsocket = \"controller.sock\"\n",
            addresses.join(", ")
        )
    }
}

/// One gateway or two gateways between segments 1 and 2, and a device on each segment.
struct Site {
    options: SiteOptions,
    /// Agent of device d1, on segment 1.
    a: Process,
    /// Agent of device d2, on segment 2.
    b: Process,
    _gateways: Vec<Process>,
    _controller: Process,
    _responder: Process,
    /// Network namespaces of the router, of device d1 and of device d2. The gateways run on the router.
    namespaces: [Namespace; 3],
    directory: tempfile::TempDir,
}

impl Site {
    fn new(options: SiteOptions) -> Self {
        let namespaces = [(); 3].map(|()| Namespace::require());
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path();
        build_network(options, &namespaces, directory_path);
        let [router, a, b] = &namespaces;
        let configurations = match options.two_gateways {
            false => vec![options.configuration(5, &["v1", "v2"], &[1, 2])],
            true => vec![
                options.configuration(5, &["v1"], &[1]),
                options.configuration(6, &["v2"], &[2]),
            ],
        };
        for (n, text) in (1..).zip(&configurations) {
            std::fs::write(directory_path.join(format!("gateway{n}.toml")), text).unwrap();
        }
        write_controller_config(directory_path);
        let run = |command_line: &str| router.run(directory_path, command_line);
        run("linewarden registry create --registry fleet.registry --key-file master.key");
        enroll(options, directory_path, run);
        let controller = router.start_controller(directory_path);
        let serve = |n| {
            let gateway = router.start(
                directory_path,
                &format!("linewarden-gateway run --config gateway{n}.toml --output json --status-interval 1"),
            );
            gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
            gateway
        };
        let gateways = (1..=configurations.len()).map(serve).collect();
        let responder = Process::start(command_in(b, directory_path, &["python3", "-c", SERVER]));
        responder.wait_for("responder", |_| true);
        Self {
            options,
            a: agent(options, 1, a, directory_path),
            b: agent(options, 2, b, directory_path),
            _gateways: gateways,
            _controller: controller,
            _responder: responder,
            namespaces,
            directory,
        }
    }

    fn run(&self, command_line: &str) {
        let [router, ..] = &self.namespaces;
        router.run(self.directory.path(), command_line);
    }

    /// Allows the pair, and waits until both agents have connected.
    #[track_caller]
    fn allow_pair(&self) {
        self.run("linewarden device pair create d1 d2 --config controller.toml");
        for (agent, peer) in [(&self.a, "00000000000000d2"), (&self.b, "00000000000000d1")] {
            assert_eq!(agent.event("peer_connected")["peer"], peer);
        }
    }

    /// A program at the first device sends a request to a program at the second device, and receives the response.
    #[track_caller]
    fn exchange_messages(&self) {
        let [_, a, _] = &self.namespaces;
        let text = support::run(command_in(a, self.directory.path(), &["python3", "-c", CLIENT]));
        assert_eq!(text, "od uoy od woh\n");
    }

    /// Kills and restarts the second device's agent, without its session state.
    fn restart_b(&mut self) {
        let [.., b] = &self.namespaces;
        self.b.end_with_signal(nix::sys::signal::Signal::SIGKILL);
        self.b = agent(self.options, 2, b, self.directory.path());
    }
}

/// Creates segments 1 and 2, and the route between them.
fn build_network(options: SiteOptions, namespaces: &[Namespace; 3], directory_path: &Path) {
    let [router, a, b] = namespaces;
    let (family, bits) = (if options.v6 { "-6" } else { "-4" }, options.prefix_bits());
    for (n, device) in [(1, a), (2, b)] {
        let interface_address = |host| format!("{}/{bits}", options.address(n, host));
        let dad = if options.v6 { "nodad" } else { "" };
        router.run(
            directory_path,
            &format!("ip link add v{n} type veth peer name dev netns {}", device.pid()),
        );
        router.run(
            directory_path,
            &format!("ip addr add {} dev v{n} {dad}", interface_address(1)),
        );
        router.run(directory_path, &format!("ip link set v{n} up"));
        device.run(
            directory_path,
            &format!("ip addr add {} dev dev {dad}", interface_address(2)),
        );
        device.run(directory_path, "ip link set dev dev up");
        device.run(
            directory_path,
            &format!("ip {family} route add default via {}", options.address(n, 1)),
        );
        device.run(directory_path, "ethtool -K dev tx off");
    }
    for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        router.run(directory_path, &format!("sysctl -q -w {setting}"));
    }
}

/// Enrolls both devices, each with the other device as its peer.
fn enroll(options: SiteOptions, directory_path: &Path, run: impl Fn(&str) -> String) {
    for (n, id, peer) in [(1, "d1", "d2"), (2, "d2", "d1")] {
        run(&format!(
            "linewarden device enroll simulated --device {id} --rows 40 --out devices --config controller.toml"
        ));
        let file = directory_path.join(format!("devices/00000000000000{id}.toml"));
        let mut config = std::fs::read_to_string(&file).unwrap();
        config += &format!("\n[[peer]]\ndevice = \"{peer}\"\nlisten = \"127.0.0.1:6000\"\n");
        if n == 2 {
            config += "deliver = \"127.0.0.1:6001\"\n";
        }
        if options.two_gateways {
            let address = options.address(3 - n, 2);
            let address = if options.v6 {
                format!("[{address}]")
            } else {
                address
            };
            config += &format!("address = \"{address}:20553\"\n");
        }
        std::fs::write(&file, config).unwrap();
    }
}

fn command_in(namespace: &Namespace, directory_path: &Path, arguments: &[&str]) -> Command {
    let wrapper = namespace.wrapper();
    let mut command = Command::new(&wrapper[0]);
    command
        .args(&wrapper[1..])
        .args(arguments)
        .current_dir(directory_path);
    command
}

fn agent(options: SiteOptions, n: u32, namespace: &Namespace, directory_path: &Path) -> Process {
    let gateway = options.address(n, 1);
    let arguments = format!(
        "linewarden-agent run --config devices/00000000000000d{n}.toml --gateway {gateway} --output json"
    );
    let agent = namespace.start(directory_path, &arguments);
    agent.event("authenticated");
    agent
}

fn scenario(options: SiteOptions, end_command: &str) {
    let site = Site::new(options);
    site.allow_pair();
    site.exchange_messages();
    site.run(end_command);
    let closed = site.a.event("peer_disconnected");
    assert_eq!(closed["peer"], "00000000000000d2");
    assert_eq!(closed["reason"], "the pair does not exist at the controller");
}

const REVOKE_COMMAND: &str = "linewarden device revoke d2 --reason lost --config controller.toml";
const CLOSE_COMMAND: &str = "linewarden device pair delete d2 d1 --config controller.toml";

#[test]
fn a_pair_communicates_until_one_device_is_revoked() {
    scenario(SiteOptions::default(), REVOKE_COMMAND);
}

#[test]
fn a_pair_communicates_through_a_sealed_gate_until_it_is_closed() {
    let sealed = true;
    scenario(
        SiteOptions {
            sealed,
            ..SiteOptions::default()
        },
        CLOSE_COMMAND,
    );
}

#[test]
fn a_pair_communicates_over_ipv6_without_a_gate_and_through_a_sealed_gate() {
    for (sealed, end_command) in [(false, REVOKE_COMMAND), (true, CLOSE_COMMAND)] {
        let v6 = true;
        scenario(
            SiteOptions {
                v6,
                sealed,
                ..SiteOptions::default()
            },
            end_command,
        );
    }
}

/// Each gateway knows only its own device. The shared controller provides the pair's key.
#[test]
fn a_pair_communicates_across_two_gateways_of_one_registry() {
    let two_gateways = true;
    scenario(
        SiteOptions {
            two_gateways,
            ..SiteOptions::default()
        },
        REVOKE_COMMAND,
    );
}

#[test]
fn a_restarted_peer_is_reachable_again() {
    let mut site = Site::new(SiteOptions::default());
    site.allow_pair();
    site.exchange_messages();
    site.restart_b();
    site.exchange_messages();
    assert!(site.a.events("peer_disconnected").is_empty());
}
