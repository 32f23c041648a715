//! The lab's isolated network: devices ── gateway ── service, each in its own network namespace.
//!
//! ```text
//!  devices namespace            gateway namespace                    service namespace
//!  dev-XXXXXX ════ veth ════ gwd-XXXXXX   forwards   gws-XXXXXX ════ veth ════ svc-XXXXXX
//!  10.66.0.0/16, fd66::/64      .0.1                    .0.1            10.77.0.2, fd77::2
//! ```
//! With [`ForwardingMode::Switch`] the gateway namespace has no address and does not forward: a switch connects its two
//! interfaces. The service then has the gateway's addresses, too, so it receives all frames that the switch does not handle:
//! ```text
//!  dev-XXXXXX ════ veth ════ gwd-XXXXXX   a switch   gws-XXXXXX ════ veth ════ svc-XXXXXX
//!  10.66.0.0/16, fd66::/64                                              10.66.0.1, fd66::1
//!                                                                       10.77.0.2, fd77::2
//! ```
//! The network has no connection to any other network, and the kernel sends nothing by itself: no router advertisement,
//! no duplicate address detection, no generated addresses. The data plane's counters therefore count only the lab's traffic.
//! (With IPv6 the kernel still reports its multicast groups once per interface; on the devices' side only if
//! [`Topology::device_host`] is set.)
//!
//! XXXXXX is random per lab, because the kernel threads of all namespaces are in one list and are distinguished by
//! interface name ([`crate::napi`]).

use std::ffi::CString;
use std::fmt::Write as _;
use std::{fs, io};

use linewarden_dataplane::ethtool::{self, EthtoolError, Offload};

use crate::address::{
    DEVICE_HOST, DEVICES_MAX, DeviceAddress, GATEWAY, GATEWAY_SERVICE_SIDE, Mac, SERVICE, SWITCH, Station,
};
use crate::capability::{self, MissingCapabilities};
pub use crate::interface::Interface;
use crate::iproute::{self, IpError};
use crate::netns::{NetNs, NetNsError};
use crate::xdp_pass::{XdpPass, XdpPassError};

/// Why a lab could not be built.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A capability is missing.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// A network namespace failed.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The configuration of an interface, address, route or neighbor failed.
    #[error(transparent)]
    Ip(#[from] IpError),
    /// An offload could not be set.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// The XDP program on the devices' end could not be attached.
    #[error(transparent)]
    Xdp(#[from] XdpPassError),
    /// A kernel parameter could not be set.
    #[error("kernel parameter net.{key} could not be set to {value}: {source}")]
    Sysctl {
        /// Path below `/proc/sys/net`.
        key: String,
        /// The requested value.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// An interface that was just created does not exist.
    #[error("interface {0} not found: {1}")]
    NoInterface(String, #[source] io::Error),
    /// No random bytes for the interface names.
    #[error("no random bytes from the system: {0}")]
    Random(#[from] getrandom::Error),
    /// More permanent neighbors than device addresses.
    #[error("too many permanent neighbors: {0}; the devices' network has {DEVICES_MAX} addresses")]
    TooManyNeighbors(u32),
}

/// How the gateway namespace forwards between devices and service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ForwardingMode {
    /// The network stack of the gateway namespace, which forwards IP packets.
    #[default]
    Router,
    /// No forwarding until a switch connects the gateway namespace's two interfaces.
    Switch,
}

/// Options of the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// How the gateway namespace forwards.
    pub forwarding: ForwardingMode,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Receive and transmit queues of each veth end.
    pub queues: u16,
    /// Enables IPv6 addresses and forwarding, too.
    pub ipv6: bool,
    /// Gives the devices' end of the link its own IP address, for programs that use ordinary sockets.
    pub device_host: bool,
    /// Number of permanent neighbor entries for devices from index 0 on, in the namespace with the gateway's addresses,
    /// so that its network stack need not resolve the devices' addresses (at most [`DEVICES_MAX`]). Permanent entries
    /// do not count against the machine-wide `gc_thresh` limits, which a namespace cannot change.
    pub permanent_neighbors: u32,
    /// Attaches [`XdpPass`] to the devices' end; without that program, replies of the `xdp` data plane do not arrive.
    /// Off for the load generator, which attaches its own program.
    pub devices_end_accepts_xdp: bool,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            forwarding: ForwardingMode::default(),
            mtu: 1500,
            queues: 1,
            ipv6: true,
            device_host: true,
            permanent_neighbors: 0,
            devices_end_accepts_xdp: true,
        }
    }
}

/// A network. The network is removed when the value is dropped or the process ends.
#[derive(Debug)]
pub struct Lab {
    /// Namespace of the fleet and the attackers.
    pub devices: NetNs,
    /// Namespace of the data plane.
    pub gateway: NetNs,
    /// Namespace of the service.
    pub service: NetNs,
    /// In `devices`, towards the gateway.
    pub devices_end: Interface,
    /// In `gateway`, towards the devices: here a data plane is attached.
    pub gateway_devices_end: Interface,
    /// In `gateway`, towards the service.
    pub gateway_service_end: Interface,
    /// In `service`, towards the gateway.
    pub service_end: Interface,
    forwarding: ForwardingMode,
    _devices_end_program: Option<XdpPass>,
}

impl Lab {
    /// Builds the network.
    ///
    /// # Errors
    /// A capability is missing, or a step failed; a partly built network is removed.
    pub fn build(topology: &Topology) -> Result<Self, LabError> {
        capability::require(capability::FOR_NETWORK)?;
        if topology.permanent_neighbors > DEVICES_MAX {
            return Err(LabError::TooManyNeighbors(topology.permanent_neighbors));
        }
        let devices = NetNs::new()?;
        let gateway = NetNs::new()?;
        let service = NetNs::new()?;
        disable_kernel_traffic(&devices, topology.ipv6 && topology.device_host)?;
        let is_router = topology.forwarding == ForwardingMode::Router;
        disable_kernel_traffic(&gateway, topology.ipv6 && is_router)?;
        disable_kernel_traffic(&service, topology.ipv6)?;
        if is_router {
            enable_forwarding(&gateway, topology.ipv6)?;
        }

        let names = Names::random()?;
        let links = names.links(topology, &devices, &service);
        iproute::batch(&gateway, &links)?;
        iproute::batch(&gateway, &names.gateway_addresses(topology))?;
        iproute::batch(&service, &names.service_addresses(topology))?;
        iproute::batch(&devices, &names.device_addresses(topology))?;

        let [gateway_devices, gateway_service, service_mac] = topology.macs();
        let devices_end = interface(&devices, names.devices, DEVICE_HOST.mac)?;
        let program = topology
            .devices_end_accepts_xdp
            .then(|| XdpPass::attach(&devices, &devices_end))
            .transpose()?;
        let lab = Self {
            devices_end,
            _devices_end_program: program,
            gateway_devices_end: interface(&gateway, names.gateway_devices, gateway_devices)?,
            gateway_service_end: interface(&gateway, names.gateway_service, gateway_service)?,
            service_end: interface(&service, names.service, service_mac)?,
            forwarding: topology.forwarding,
            devices,
            gateway,
            service,
        };
        lab.set_offloads()?;
        Ok(lab)
    }

    /// Disables checksum offload, so that every packet carries its checksum, and enables NAPI (by GRO) on every interface that
    /// can receive an `XDP_TX` frame of its peer.
    fn set_offloads(&self) -> Result<(), LabError> {
        for (netns, end) in self.ends() {
            netns.run(|| {
                ethtool::set(&end.name, Offload::TransmitChecksum, false)?;
                ethtool::set(&end.name, Offload::GenericReceive, true)
            })??;
        }
        Ok(())
    }

    /// The namespace with the gateway's addresses, and its interface towards the devices.
    #[must_use]
    pub fn gateway_stack(&self) -> (&NetNs, &Interface) {
        match self.forwarding {
            ForwardingMode::Router => (&self.gateway, &self.gateway_devices_end),
            ForwardingMode::Switch => (&self.service, &self.service_end),
        }
    }

    /// Sets the gateway's MAC address on the interface towards the devices after the switch has ended: other data planes accept
    /// only frames that are addressed to their interface.
    ///
    /// # Errors
    /// The address cannot be set.
    pub fn replace_switch(&self) -> Result<(), IpError> {
        match self.forwarding {
            ForwardingMode::Router => Ok(()),
            ForwardingMode::Switch => iproute::batch(
                &self.gateway,
                &format!(
                    "link set {} address {}\n",
                    self.gateway_devices_end.name, GATEWAY.mac
                ),
            ),
        }
    }

    /// Every interface with its namespace, from the devices to the service.
    #[must_use]
    pub fn ends(&self) -> [(&NetNs, &Interface); 4] {
        [
            (&self.devices, &self.devices_end),
            (&self.gateway, &self.gateway_devices_end),
            (&self.gateway, &self.gateway_service_end),
            (&self.service, &self.service_end),
        ]
    }
}

impl Topology {
    /// The MAC addresses of the gateway's two interfaces and of the service's interface.
    fn macs(&self) -> [Mac; 3] {
        match self.forwarding {
            ForwardingMode::Router => [GATEWAY.mac, GATEWAY_SERVICE_SIDE.mac, SERVICE.mac],
            ForwardingMode::Switch => {
                let [devices_side, service_side] = SWITCH;
                [devices_side, service_side, GATEWAY.mac]
            }
        }
    }
}

struct Names {
    devices: String,
    gateway_devices: String,
    gateway_service: String,
    service: String,
}

impl Names {
    fn random() -> Result<Self, LabError> {
        let suffix = getrandom::u32()? & 0x00ff_ffff;
        let name = |role: &str| format!("{role}-{suffix:06x}");
        Ok(Self {
            devices: name("dev"),
            gateway_devices: name("gwd"),
            gateway_service: name("gws"),
            service: name("svc"),
        })
    }

    /// The commands that create both veth pairs in the gateway's namespace.
    fn links(&self, topology: &Topology, devices: &NetNs, service: &NetNs) -> String {
        let end = |name: &str, mac: Mac| {
            let Topology { mtu, queues, .. } = topology;
            format!("{name} mtu {mtu} address {mac} numtxqueues {queues} numrxqueues {queues}")
        };
        let pair = |near: String, far: String, netns: &NetNs| {
            format!(
                "link add name {near} type veth peer name {far} netns {}\n",
                netns.path()
            )
        };
        let [gateway_devices, gateway_service, service_mac] = topology.macs();
        [
            pair(
                end(&self.gateway_devices, gateway_devices),
                end(&self.devices, DEVICE_HOST.mac),
                devices,
            ),
            pair(
                end(&self.gateway_service, gateway_service),
                end(&self.service, service_mac),
                service,
            ),
        ]
        .concat()
    }

    fn gateway_addresses(&self, topology: &Topology) -> String {
        let mut script = up("lo");
        match topology.forwarding {
            ForwardingMode::Router => {
                script += &station(&self.gateway_devices, &GATEWAY, 16, topology.ipv6);
                script += &station(&self.gateway_service, &GATEWAY_SERVICE_SIDE, 24, topology.ipv6);
                script += &neighbor(&self.gateway_service, &SERVICE, topology.ipv6);
                script += &device_neighbors(&self.gateway_devices, topology);
            }
            ForwardingMode::Switch => {
                script += &up(&self.gateway_devices);
                script += &up(&self.gateway_service);
            }
        }
        script
    }

    fn service_addresses(&self, topology: &Topology) -> String {
        let mut script = up("lo");
        script += &station(&self.service, &SERVICE, 24, topology.ipv6);
        match topology.forwarding {
            ForwardingMode::Router => {
                script += &neighbor(&self.service, &GATEWAY_SERVICE_SIDE, topology.ipv6);
                script += &default_route(&GATEWAY_SERVICE_SIDE, topology.ipv6);
            }
            ForwardingMode::Switch => {
                script += &station(&self.service, &GATEWAY, 16, topology.ipv6);
                script += &device_neighbors(&self.service, topology);
            }
        }
        script
    }

    fn device_addresses(&self, topology: &Topology) -> String {
        let mut script = up("lo");
        if topology.device_host {
            script += &station(&self.devices, &DEVICE_HOST, 16, topology.ipv6);
            script += &neighbor(&self.devices, &GATEWAY, topology.ipv6);
            script += &default_route(&GATEWAY, topology.ipv6);
        } else {
            script += &up(&self.devices);
        }
        script
    }
}

fn up(name: &str) -> String {
    format!("link set {name} up\n")
}

fn station(name: &str, station: &Station, prefix_v4: u8, ipv6: bool) -> String {
    let mut script = format!("address add {}/{prefix_v4} dev {name}\n", station.v4);
    if ipv6 {
        script += &format!("address add {}/64 dev {name} nodad\n", station.v6);
        // Without a link-local address the kernel solicits no neighbor for packets that it forwards.
        let [.., last] = station.mac.0;
        script += &format!("address add fe80::{last:x}/64 dev {name} nodad\n");
    }
    script + &up(name)
}

fn neighbor(name: &str, station: &Station, ipv6: bool) -> String {
    let Station { mac, v4, v6 } = station;
    let mut script = format!("neigh replace {v4} lladdr {mac} dev {name} nud permanent\n");
    if ipv6 {
        script += &format!("neigh replace {v6} lladdr {mac} dev {name} nud permanent\n");
    }
    script
}

/// The commands for the neighbor entries of the device host and the first devices.
fn device_neighbors(name: &str, topology: &Topology) -> String {
    let mut script = String::new();
    if topology.device_host {
        script += &neighbor(name, &DEVICE_HOST, topology.ipv6);
    }
    for device in (0..topology.permanent_neighbors).map(DeviceAddress::new) {
        let (v4, v6, mac) = (device.v4(), device.v6(), device.mac());
        // Writing to a String cannot fail.
        let _ = writeln!(script, "neigh replace {v4} lladdr {mac} dev {name} nud permanent");
        if topology.ipv6 {
            let _ = writeln!(script, "neigh replace {v6} lladdr {mac} dev {name} nud permanent");
        }
    }
    script
}

fn default_route(via: &Station, ipv6: bool) -> String {
    let mut script = format!("route add default via {}\n", via.v4);
    if ipv6 {
        script += &format!("route add default via {}\n", via.v6);
    }
    script
}

/// Disables all traffic that the namespace's kernel sends by itself; called before the namespace's interfaces are created.
fn disable_kernel_traffic(netns: &NetNs, ipv6: bool) -> Result<(), LabError> {
    let mut parameters = vec![
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/default/send_redirects", "0"),
    ];
    if ipv6 {
        parameters.extend([
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv6/conf/default/autoconf", "0"),
            ("ipv6/conf/default/addr_gen_mode", "1"), // no generated link-local address
            ("ipv6/conf/default/dad_transmits", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
        ]);
    } else if fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
        parameters.extend([
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
        ]);
    }
    sysctl(netns, &parameters)
}

fn enable_forwarding(netns: &NetNs, ipv6: bool) -> Result<(), LabError> {
    let mut parameters = vec![("ipv4/ip_forward", "1")];
    if ipv6 {
        parameters.push(("ipv6/conf/all/forwarding", "1"));
        parameters.push(("ipv6/conf/default/forwarding", "1"));
    }
    sysctl(netns, &parameters)
}

/// Sets parameters below `/proc/sys/net` of a namespace, in order.
///
/// # Errors
/// The error of the first parameter that could not be set.
pub fn sysctl(netns: &NetNs, parameters: &[(&str, &str)]) -> Result<(), LabError> {
    netns.run(|| {
        parameters.iter().try_for_each(|(key, value)| {
            fs::write(format!("/proc/sys/net/{key}"), value).map_err(|source| LabError::Sysctl {
                key: (*key).to_owned(),
                value: (*value).to_owned(),
                source,
            })
        })
    })?
}

fn interface(netns: &NetNs, name: String, mac: Mac) -> Result<Interface, LabError> {
    let lookup = netns.run(|| {
        let name = CString::new(name.as_str())?;
        // SAFETY: the name is a terminated string that lives through the call.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(io::Error::last_os_error()),
            index => Ok(index),
        }
    })?;
    match lookup {
        Ok(index) => Ok(Interface { name, index, mac }),
        Err(source) => Err(LabError::NoInterface(name, source)),
    }
}
