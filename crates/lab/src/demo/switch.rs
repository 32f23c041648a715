//! The P4 switch of the demonstration, between the gateway namespace's two interfaces.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use linewarden_dataplane::Config;
use linewarden_dataplane::p4runtime::{Neighbour, P4Options, P4Runtime, Place};
use linewarden_switch::hosted::{HostOptions, Hosted};
use linewarden_switch::ports::packet::{self, PacketOptions};
use linewarden_switch::ports::{PortId, PortSet};

use super::DemoError;
use crate::address::GATEWAY;
use crate::topology::Lab;

/// Where the devices are.
const DEVICES: Place = Place {
    port: 1,
    is_devices: true,
};
/// The port of the gateway's own addresses, and of the service.
const SERVICE: u16 = 2;
/// The CPU port of `lap`.
const CPU: u16 = 510;
const DEVICE_ID: u64 = 1;

/// Starts the switch, and the data plane that controls it over the namespace's loopback interface.
///
/// The calling thread is in the gateway namespace, and so are those that are started here.
pub(super) fn start(lab: &Lab, config: &Config) -> Result<(P4Runtime, Hosted), DemoError> {
    let mut ports = PortSet::new()?;
    let ends = [
        (DEVICES.port, &lab.gateway_devices_end),
        (SERVICE, &lab.gateway_service_end),
    ];
    for (number, end) in ends {
        ports.add(port(number)?, packet::open(&end.name, &PacketOptions::default())?)?;
    }
    let options = HostOptions {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        device_id: DEVICE_ID,
        cpu_port: port(CPU)?,
        evidence: None,
        tls: None,
    };
    let switch = Hosted::start(ports, options)?;
    let options = P4Options {
        address: switch.address().to_string(),
        device_id: DEVICE_ID,
        election_id: 1,
        tls: None,
        bridge: vec![Neighbour {
            mac: GATEWAY.mac.0,
            port: SERVICE,
            is_devices: false,
        }],
        elsewhere: Some(DEVICES),
    };
    Ok((P4Runtime::connect(config, &options)?, switch))
}

fn port(number: u16) -> Result<PortId, DemoError> {
    let wrong = || DemoError::system("the number of a port")(ErrorKind::InvalidInput.into());
    PortId::new(number).ok_or_else(wrong)
}
