//! The network: a backbone of gateways, controllers and servers, and a device network of gateways and devices.
//!
//! ```text
//!  devices 10.66.1.N ── device network ── 10.66.0.21..24 gateways 10.77.0.21..24 ── backbone ── 10.77.0.11, .12 controllers
//!                                                                                      └────── 10.77.0.5 servers
//! ```
//! Each node is a network namespace of its own.

use std::net::Ipv4Addr;

use linewarden_lab::iproute;

use crate::support::Namespace;

/// Address of PostgreSQL and nats-server.
pub const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 5);
/// No interface has this address: datagrams to it are lost without an error.
const UNUSED_MAC: &str = "02:00:00:00:00:99";

/// Address of a node on the backbone.
pub fn backbone(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}

/// Address of a gateway in the device network.
pub fn device_network_address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 66, 0, host)
}

/// Address of a device.
pub fn device(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 66, 1, number)
}

/// A node on the backbone.
pub struct Node {
    pub namespace: Namespace,
    pub host: u8,
}

impl Node {
    fn ip(&self, script: &str) {
        iproute::batch(self.namespace.inside(), script).unwrap();
    }

    fn port(&self) -> String {
        format!("p{}", self.host)
    }

    /// Drops traffic from this node to the node `to`.
    fn block(&self, to: &Self) {
        let to = backbone(to.host);
        self.ip(&format!(
            "neigh replace {to} lladdr {UNUSED_MAC} dev bb nud permanent\n"
        ));
    }

    fn unblock(&self, to: &Self) {
        self.ip(&format!("neigh del {} dev bb\n", backbone(to.host)));
    }
}

/// All network namespaces. Dropping this value removes the namespaces, even after a failure of the test.
pub struct Network {
    hub: Namespace,
    pub device_network: Namespace,
    pub servers: Node,
    pub controllers: Vec<Node>,
    /// The nodes of all gateways, and a spare node.
    pub gateways: Vec<Node>,
}

impl Network {
    /// Returns `None` if this process lacks the privilege, or if a program is not installed.
    pub fn new(devices: u8) -> Option<Self> {
        let node = |host| {
            Some(Node {
                namespace: Namespace::new()?,
                host,
            })
        };
        let network = Self {
            hub: Namespace::new()?,
            device_network: Namespace::new()?,
            servers: node(5)?,
            controllers: (11..13).map(node).collect::<Option<_>>()?,
            gateways: (21..25).map(node).collect::<Option<_>>()?,
        };
        network.build(devices);
        Some(network)
    }

    fn build(&self, devices: u8) {
        let bridge = "link add br0 type bridge mcast_snooping 0\nlink set br0 up\n";
        let link_commands = |node: &Node, inside: &str| {
            let (port, pid) = (node.port(), node.namespace.pid());
            format!(
                "link add dev {port} type veth peer name {inside} netns {pid}\nlink set {port} master br0 up\n"
            )
        };
        let mut hub = bridge.to_owned();
        for node in self.nodes() {
            hub += &link_commands(node, "bb");
        }
        iproute::batch(self.hub.inside(), &hub).unwrap();
        let mut device_network = bridge.to_owned();
        device_network += &format!("addr add {}/16 dev br0\n", device_network_address(254));
        (0..devices)
            .for_each(|number| device_network += &format!("addr add {}/16 dev br0\n", device(number)));
        self.gateways
            .iter()
            .for_each(|node| device_network += &link_commands(node, "lan"));
        iproute::batch(self.device_network.inside(), &device_network).unwrap();
        for node in self.nodes() {
            let address = backbone(node.host);
            node.ip(&format!("addr add {address}/24 dev bb\nlink set bb up\n"));
        }
        for node in &self.gateways {
            let address = device_network_address(node.host);
            node.ip(&format!("addr add {address}/16 dev lan\nlink set lan up\n"));
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        let servers = std::iter::once(&self.servers);
        servers.chain(&self.controllers).chain(&self.gateways)
    }

    /// Drops all traffic between two nodes in both directions. The nodes receive no error.
    pub fn disconnect(&self, first: &Node, second: &Node) {
        first.block(second);
        second.block(first);
    }

    pub fn connect(&self, first: &Node, second: &Node) {
        first.unblock(second);
        second.unblock(first);
    }

    /// Sets a node's link to the backbone up or down.
    pub fn set_link(&self, node: &Node, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        let script = format!("link set {} {state}\n", node.port());
        iproute::batch(self.hub.inside(), &script).unwrap();
    }
}
