//! The network: a backbone for gateways, controllers and servers, and a field for gateways and devices.
//!
//! ```text
//!  devices 10.66.1.N ── field ── 10.66.0.21..24 gateways 10.77.0.21..24 ── backbone ── 10.77.0.11, .12 controllers
//!                                                                             └────── 10.77.0.5 servers
//! ```
//! Each node is a network namespace of its own.

use std::net::Ipv4Addr;

use linewarden_lab::iproute;

use crate::support::Namespace;

/// Where PostgreSQL and nats-server are.
pub const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 5);
/// No interface has this address: datagrams to it are lost without an error.
const NOWHERE: &str = "02:00:00:00:00:99";

/// Address of a node on the backbone.
pub fn backbone(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}

/// Address of a gateway in the field.
pub fn in_field(host: u8) -> Ipv4Addr {
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

    /// Drops traffic from this node to the other.
    fn block(&self, to: &Self) {
        let to = backbone(to.host);
        self.ip(&format!(
            "neigh replace {to} lladdr {NOWHERE} dev bb nud permanent\n"
        ));
    }

    fn unblock(&self, to: &Self) {
        self.ip(&format!("neigh del {} dev bb\n", backbone(to.host)));
    }
}

/// All namespaces; removed when dropped, also after a failure.
pub struct Network {
    hub: Namespace,
    pub field: Namespace,
    pub servers: Node,
    pub controllers: Vec<Node>,
    /// One more than the number of gateways.
    pub gateways: Vec<Node>,
}

impl Network {
    /// `None` without the privilege or the programs.
    pub fn new(devices: u8) -> Option<Self> {
        let node = |host| {
            Some(Node {
                namespace: Namespace::new()?,
                host,
            })
        };
        let network = Self {
            hub: Namespace::new()?,
            field: Namespace::new()?,
            servers: node(5)?,
            controllers: (11..13).map(node).collect::<Option<_>>()?,
            gateways: (21..25).map(node).collect::<Option<_>>()?,
        };
        network.build(devices);
        Some(network)
    }

    fn build(&self, devices: u8) {
        let bridge = "link add br0 type bridge mcast_snooping 0\nlink set br0 up\n";
        let end = |node: &Node, inside: &str| {
            let (port, pid) = (node.port(), node.namespace.pid());
            format!(
                "link add dev {port} type veth peer name {inside} netns {pid}\nlink set {port} master br0 up\n"
            )
        };
        let mut hub = bridge.to_owned();
        for node in self.nodes() {
            hub += &end(node, "bb");
        }
        iproute::batch(self.hub.inside(), &hub).unwrap();
        let mut field = bridge.to_owned();
        field += &format!("addr add {}/16 dev br0\n", in_field(254));
        (0..devices).for_each(|number| field += &format!("addr add {}/16 dev br0\n", device(number)));
        self.gateways.iter().for_each(|node| field += &end(node, "lan"));
        iproute::batch(self.field.inside(), &field).unwrap();
        for node in self.nodes() {
            let address = backbone(node.host);
            node.ip(&format!("addr add {address}/24 dev bb\nlink set bb up\n"));
        }
        for node in &self.gateways {
            let address = in_field(node.host);
            node.ip(&format!("addr add {address}/16 dev lan\nlink set lan up\n"));
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        let servers = std::iter::once(&self.servers);
        servers.chain(&self.controllers).chain(&self.gateways)
    }

    /// Drops all traffic between the two in both directions, without an error to either.
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
