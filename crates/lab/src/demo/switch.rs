//! The P4 switch of the demonstration, between the gateway namespace's two interfaces.

use std::net::{Ipv4Addr, SocketAddr};

use linewarden_dataplane::p4runtime::{BridgeEntry, P4Options, P4Runtime, SwitchPort};
use linewarden_dataplane::{Config, DataPlane};
use linewarden_switch::host::{HostError, HostOptions, HostedSwitch};
use linewarden_switch::ports::packet::{self, PacketOptions};
use linewarden_switch::ports::{PortError, PortId, PortSet, PortSetError};

use super::DemoError;
use crate::address::GATEWAY;
use crate::topology::Lab;

/// The devices' port.
const DEVICES_PORT: SwitchPort = SwitchPort {
    port: 1,
    is_device_port: true,
};
/// The port of the gateway's own addresses, and of the service.
const SERVICE_PORT: u16 = 2;
/// The CPU port of `lap`.
const CPU_PORT: u16 = 510;
/// The switch's device id in P4Runtime.
const DEVICE_ID: u64 = 1;

/// Why the switch cannot be started or has failed.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The switch failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A port could not be added to the switch, or failed later.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// A number that no port can have.
    #[error("invalid port number {0}")]
    PortNumber(u16),
}

/// A running switch.
pub(super) struct DemoSwitch(HostedSwitch);

impl DemoSwitch {
    /// Stops the switch.
    pub(super) fn stop(self) -> Result<(), SwitchError> {
        Ok(self.0.stop()?)
    }
}

/// Starts the switch, and the data plane that controls it over the namespace's loopback interface.
///
/// The calling thread must be in the gateway namespace; the started threads inherit that namespace.
pub(super) fn start(lab: &Lab, config: &Config) -> Result<(Box<dyn DataPlane>, DemoSwitch), DemoError> {
    let switch = start_switch(lab)?;
    let options = P4Options {
        address: switch.address().to_string(),
        device_id: DEVICE_ID,
        election_id: 1,
        tls: None,
        bridge: vec![BridgeEntry {
            mac: GATEWAY.mac.0,
            port: SERVICE_PORT,
            is_device_port: false,
        }],
        default_port: Some(DEVICES_PORT),
    };
    let data_plane = P4Runtime::connect(config, &options)?;
    Ok((Box::new(data_plane), DemoSwitch(switch)))
}

fn start_switch(lab: &Lab) -> Result<HostedSwitch, SwitchError> {
    let mut ports = PortSet::new()?;
    let ends = [
        (DEVICES_PORT.port, &lab.gateway_devices_end),
        (SERVICE_PORT, &lab.gateway_service_end),
    ];
    for (number, end) in ends {
        ports.add(port(number)?, packet::open(&end.name, &PacketOptions::default())?)?;
    }
    let options = HostOptions {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        device_id: DEVICE_ID,
        cpu_port: port(CPU_PORT)?,
        evidence: None,
        tls: None,
    };
    Ok(HostedSwitch::start(ports, options)?)
}

fn port(number: u16) -> Result<PortId, SwitchError> {
    PortId::new(number).ok_or(SwitchError::PortNumber(number))
}
