//! The lab's private network: devices ── gateway ── service, each in a namespace of its own.
//!
//! ```text
//!  devices namespace            gateway namespace                    service namespace
//!  dev-XXXXXX ════ veth ════ gwd-XXXXXX   forwards   gws-XXXXXX ════ veth ════ svc-XXXXXX
//!  10.66.0.0/16, fd66::/64      .0.1                    .0.1            10.77.0.2, fd77::2
//! ```
//! With [`Middle::Switch`] the gateway namespace neither forwards nor has an address: a switch connects its two interfaces. The
//! gateway's addresses towards the devices are the service's then, so whatever the switch does not answer is answered there:
//! ```text
//!  dev-XXXXXX ════ veth ════ gwd-XXXXXX   a switch   gws-XXXXXX ════ veth ════ svc-XXXXXX
//!  10.66.0.0/16, fd66::/64                                              10.66.0.1, fd66::1
//!                                                                       10.77.0.2, fd77::2
//! ```
//! It has no connection to any other network, and is silent: no router advertisement, no duplicate address
//! detection, no addresses of the kernel's own making, so that counters of the data plane count only what the lab sends. (With
//! IPv6 on, the kernel still reports its multicast groups once per interface; on the devices' side only if
//! [`Topology::device_host`] is set.)
//!
//! XXXXXX is drawn at random per lab, because kernel threads of all namespaces stand in one list and are told apart
//! by interface name ([`crate::napi`]).

use std::ffi::CString;
use std::fmt::Write as _;
use std::{fs, io};

use linewarden_dataplane::ethtool::{self, EthtoolError, Offload};

use crate::address::{
    DEVICE_HOST, DEVICES_MAX, DeviceAddress, GATEWAY, GATEWAY_SERVICE_SIDE, Mac, SERVICE, SWITCH, Station,
};
use crate::capability::{self, Missing};
use crate::iproute::{self, IpError};
use crate::netns::{NetNs, NetNsError};
use crate::xdp_pass::{XdpPass, XdpPassError};

/// Why a lab could not be built.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not allowed.
    #[error(transparent)]
    Capability(#[from] Missing),
    /// A namespace.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// An interface, address, route or neighbour.
    #[error(transparent)]
    Ip(#[from] IpError),
    /// An offload.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// The program on the devices' end.
    #[error(transparent)]
    Xdp(#[from] XdpPassError),
    /// A kernel parameter.
    #[error("cannot set net.{key} = {value}: {source}")]
    Sysctl {
        /// Path below `/proc/sys/net`.
        key: String,
        /// The value wanted.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An interface that was just made is not there.
    #[error("interface {0} is not there: {1}")]
    NoInterface(String, #[source] io::Error),
    /// No random name.
    #[error("no randomness from the system: {0}")]
    Random(#[from] getrandom::Error),
    /// More neighbours than addresses.
    #[error("{0} permanent neighbours wanted, the devices' network has room for {DEVICES_MAX}")]
    TooManyNeighbours(u32),
}

/// What stands between devices and service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Middle {
    /// The network stack of the gateway namespace, which forwards IP packets.
    #[default]
    Router,
    /// Nothing, until a switch connects the gateway namespace's two interfaces.
    Switch,
}

/// What to build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Who forwards.
    pub middle: Middle,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Receive and transmit queues of each veth end.
    pub queues: u16,
    /// IPv6 addresses and forwarding too.
    pub ipv6: bool,
    /// Gives the devices' end of the link an IP address of its own, for programs that use ordinary sockets.
    pub device_host: bool,
    /// Fixed neighbour entries for the devices 0.. where the gateway's addresses are, so that its network stack need not resolve them
    /// (at most [`DEVICES_MAX`]). Permanent entries do not count against the machine-wide `gc_thresh` limits, which
    /// a namespace cannot change.
    pub permanent_neighbours: u32,
    /// Attaches [`XdpPass`] to the devices' end, without which nothing that the `xdp` data plane answers arrives
    /// there. Off for the load generator, which attaches a program of its own.
    pub devices_end_accepts_xdp: bool,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            middle: Middle::default(),
            mtu: 1500,
            queues: 1,
            ipv6: true,
            device_host: true,
            permanent_neighbours: 0,
            devices_end_accepts_xdp: true,
        }
    }
}

/// One end of a veth pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name, unique on the machine.
    pub name: String,
    /// Its number inside its namespace.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: Mac,
}

/// A built network; dropping it (or dying) removes it.
#[derive(Debug)]
pub struct Lab {
    /// Where the fleet and the attackers are.
    pub devices: NetNs,
    /// Where the data plane is.
    pub gateway: NetNs,
    /// Where the service is.
    pub service: NetNs,
    /// In `devices`, towards the gateway.
    pub devices_end: Interface,
    /// In `gateway`, towards the devices: here a data plane is attached.
    pub gateway_devices_end: Interface,
    /// In `gateway`, towards the service.
    pub gateway_service_end: Interface,
    /// In `service`.
    pub service_end: Interface,
    middle: Middle,
    _devices_end_program: Option<XdpPass>,
}

impl Lab {
    /// Builds the network.
    ///
    /// # Errors
    /// A missing capability by name, or the step that failed; nothing stays behind then.
    pub fn build(topology: &Topology) -> Result<Self, LabError> {
        capability::require(capability::FOR_NETWORK)?;
        if topology.permanent_neighbours > DEVICES_MAX {
            return Err(LabError::TooManyNeighbours(topology.permanent_neighbours));
        }
        let devices = NetNs::new()?;
        let gateway = NetNs::new()?;
        let service = NetNs::new()?;
        quiet(&devices, topology.ipv6 && topology.device_host)?;
        let is_router = topology.middle == Middle::Router;
        quiet(&gateway, topology.ipv6 && is_router)?;
        quiet(&service, topology.ipv6)?;
        if is_router {
            forward(&gateway, topology.ipv6)?;
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
            middle: topology.middle,
            devices,
            gateway,
            service,
        };
        lab.set_offloads()?;
        Ok(lab)
    }

    /// Whole checksums on every packet; NAPI (by GRO) wherever an `XDP_TX` of the peer can arrive.
    fn set_offloads(&self) -> Result<(), LabError> {
        for (netns, end) in self.ends() {
            netns.run(|| {
                ethtool::set(&end.name, Offload::TransmitChecksum, false)?;
                ethtool::set(&end.name, Offload::GenericReceive, true)
            })??;
        }
        Ok(())
    }

    /// Where the gateway's addresses are, with the interface towards the devices.
    #[must_use]
    pub fn gateway_stack(&self) -> (&NetNs, &Interface) {
        match self.middle {
            Middle::Router => (&self.gateway, &self.gateway_devices_end),
            Middle::Switch => (&self.service, &self.service_end),
        }
    }

    /// Gives the interface towards the devices the gateway's MAC address, where a switch had it: a data plane that answers by
    /// itself takes only frames for its interface.
    ///
    /// # Errors
    /// The address cannot be set.
    pub fn replace_switch(&self) -> Result<(), IpError> {
        match self.middle {
            Middle::Router => Ok(()),
            Middle::Switch => iproute::batch(
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
    /// Of the gateway's two interfaces, and of the service's.
    fn macs(&self) -> [Mac; 3] {
        match self.middle {
            Middle::Router => [GATEWAY.mac, GATEWAY_SERVICE_SIDE.mac, SERVICE.mac],
            Middle::Switch => {
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

    /// Both veth pairs, made in the gateway's namespace.
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
        match topology.middle {
            Middle::Router => {
                script += &station(&self.gateway_devices, &GATEWAY, 16, topology.ipv6);
                script += &station(&self.gateway_service, &GATEWAY_SERVICE_SIDE, 24, topology.ipv6);
                script += &neighbour(&self.gateway_service, &SERVICE, topology.ipv6);
                script += &device_neighbours(&self.gateway_devices, topology);
            }
            Middle::Switch => {
                script += &up(&self.gateway_devices);
                script += &up(&self.gateway_service);
            }
        }
        script
    }

    fn service_addresses(&self, topology: &Topology) -> String {
        let mut script = up("lo");
        script += &station(&self.service, &SERVICE, 24, topology.ipv6);
        match topology.middle {
            Middle::Router => {
                script += &neighbour(&self.service, &GATEWAY_SERVICE_SIDE, topology.ipv6);
                script += &default_route(&GATEWAY_SERVICE_SIDE, topology.ipv6);
            }
            Middle::Switch => {
                script += &station(&self.service, &GATEWAY, 16, topology.ipv6);
                script += &device_neighbours(&self.service, topology);
            }
        }
        script
    }

    fn device_addresses(&self, topology: &Topology) -> String {
        let mut script = up("lo");
        if topology.device_host {
            script += &station(&self.devices, &DEVICE_HOST, 16, topology.ipv6);
            script += &neighbour(&self.devices, &GATEWAY, topology.ipv6);
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
        // Without a link-local address the kernel solicits no neighbour for packets that it forwards.
        let [.., last] = station.mac.0;
        script += &format!("address add fe80::{last:x}/64 dev {name} nodad\n");
    }
    script + &up(name)
}

fn neighbour(name: &str, station: &Station, ipv6: bool) -> String {
    let Station { mac, v4, v6 } = station;
    let mut script = format!("neigh replace {v4} lladdr {mac} dev {name} nud permanent\n");
    if ipv6 {
        script += &format!("neigh replace {v6} lladdr {mac} dev {name} nud permanent\n");
    }
    script
}

/// The device host and the first devices.
fn device_neighbours(name: &str, topology: &Topology) -> String {
    let mut script = String::new();
    if topology.device_host {
        script += &neighbour(name, &DEVICE_HOST, topology.ipv6);
    }
    for device in (0..topology.permanent_neighbours).map(DeviceAddress::new) {
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

/// Keeps the namespace's kernel from sending anything by itself; before its interfaces are made.
fn quiet(netns: &NetNs, ipv6: bool) -> Result<(), LabError> {
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
            ("ipv6/conf/default/addr_gen_mode", "1"), // no address of its own making
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

fn forward(netns: &NetNs, ipv6: bool) -> Result<(), LabError> {
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
/// The first one that could not be set.
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
    let found = netns.run(|| {
        let name = CString::new(name.as_str())?;
        // SAFETY: the name is a terminated string that lives through the call.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(io::Error::last_os_error()),
            index => Ok(index),
        }
    })?;
    match found {
        Ok(index) => Ok(Interface { name, index, mac }),
        Err(source) => Err(LabError::NoInterface(name, source)),
    }
}
