//! Validates the fields of a configuration, and reports all errors.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use linewarden_agent::source::{CommandPuf, SimulatedPuf};
use linewarden_agent::{Peer, Tunnel};
use linewarden_protocol::device::GatewayPolicy;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::ticket;
use linewarden_protocol::wire::LAP_PORT;

use super::attest::ValidAttest;
use super::fields::{AgentConfig, PeerSection, PufSection, ReadoutsSection, RenewalSection, TunnelSection};
use crate::problem::FieldError;

/// The validated configuration of an agent. The gateway's name is resolved; files and interfaces of the machine are not read
/// yet.
#[derive(Debug)]
pub struct ValidAgent {
    pub(super) device: DeviceId,
    pub(super) helper: PathBuf,
    pub(super) gateway: SocketAddr,
    pub(super) gateways: GatewayPolicy,
    pub(super) interface: Option<String>,
    pub(super) ticket_port: u16,
    pub(super) peer_port: u16,
    pub(super) renewal: Option<RenewalSection>,
    pub(super) tunnels: Vec<Tunnel>,
    pub(super) peers: Vec<Peer>,
    pub(super) puf: PufSource,
    pub(super) attest: Option<ValidAttest>,
}

/// A source of PUF bits.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PufSource {
    Simulated(SimulatedPuf),
    Readouts(ReadoutsSection),
    Command(CommandPuf),
}

impl ValidAgent {
    /// Validates the fields.
    ///
    /// # Errors
    /// All fields that cannot be used.
    pub(super) fn new(fields: &AgentConfig) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut refuse = |error| errors.push(error);
        let device = fields.device_id().map_err(&mut refuse);
        let gateways = fields.gateway_policy().map_err(&mut refuse);
        let renewal = fields.valid_renewal().map_err(&mut refuse);
        let puf = fields.puf.source().map_err(&mut refuse);
        let gateway = fields.gateway_address().map_err(&mut refuse);
        fields.duplicate_listeners().for_each(&mut refuse);
        let lap_port = gateway.as_ref().map_or(LAP_PORT, SocketAddr::port);
        let ports = [lap_port, fields.device.peer_port];
        let attest = fields
            .attest
            .as_ref()
            .map(|attest| attest.validate(&ports))
            .transpose();
        let attest = attest.map_err(|found| found.into_iter().for_each(&mut refuse));
        let Ok(gateway) = gateway else {
            return Err(errors);
        };
        let peer_port = fields.peer_port(gateway).map_err(&mut refuse);
        let ticket_port = fields.ticket_port(gateway).map_err(&mut refuse);
        let tunnels = fields.tunnels(gateway, &mut refuse);
        let peers = fields.peers(device.ok(), gateway, &mut refuse);
        match (device, gateways, renewal, puf, attest, peer_port, ticket_port) {
            (Ok(device), Ok(gateways), Ok(renewal), Ok(puf), Ok(attest), Ok(peer_port), Ok(ticket_port))
                if errors.is_empty() =>
            {
                Ok(Self {
                    device,
                    helper: fields.device.helper.clone(),
                    gateway,
                    gateways,
                    interface: fields.gateway.interface.clone(),
                    ticket_port,
                    peer_port,
                    renewal,
                    tunnels,
                    peers,
                    puf,
                    attest,
                })
            }
            _ => Err(errors),
        }
    }
}

impl AgentConfig {
    fn device_id(&self) -> Result<DeviceId, FieldError> {
        parse_device_id(&self.device.id).map_err(|problem| FieldError::new(&["device", "id"], problem))
    }

    /// The gateway's address; a host name is resolved.
    fn gateway_address(&self) -> Result<SocketAddr, FieldError> {
        let refuse = |problem| FieldError::new(&["gateway", "address"], problem);
        let missing = || {
            refuse(
                "is missing: set the gateway's address, such as \"192.0.2.1\" (or use --gateway)".to_owned(),
            )
        };
        parse_gateway(self.gateway.address.as_ref().ok_or_else(missing)?).map_err(refuse)
    }

    fn gateway_policy(&self) -> Result<GatewayPolicy, FieldError> {
        let Some(ids) = &self.gateway.ids else {
            return Ok(GatewayPolicy::ANY);
        };
        let ids: Vec<GatewayId> = ids.iter().copied().map(GatewayId).collect();
        GatewayPolicy::pinned(&ids).ok_or_else(|| {
            let problem = format!(
                "{} gateways: name 1 to 4, or omit the field to accept all",
                ids.len()
            );
            FieldError::new(&["gateway", "ids"], problem)
        })
    }

    fn valid_renewal(&self) -> Result<Option<RenewalSection>, FieldError> {
        match self.renewal {
            Some(RenewalSection { below_rows, rows }) if below_rows > rows => {
                let problem = format!(
                    "{below_rows}: must be at most `rows`, {rows}; otherwise one renewal is not sufficient, and every session renews"
                );
                Err(FieldError::new(&["renewal", "below_rows"], problem))
            }
            valid => Ok(valid),
        }
    }

    /// Addresses for local programs that are used twice.
    fn duplicate_listeners(&self) -> impl Iterator<Item = FieldError> {
        let tunnels = self.tunnel.iter().enumerate();
        let peers = self.peer.iter().enumerate();
        let listeners = tunnels
            .map(|(n, tunnel)| ("tunnel", n, tunnel.listen))
            .chain(peers.map(|(n, peer)| ("peer", n, peer.listen)));
        let mut seen = HashSet::new();
        listeners
            .filter(move |(.., listen)| listen.port() != 0 && !seen.insert(*listen))
            .map(|(table, n, listen)| {
                let problem = format!("{listen} is already in use by another table: choose another port");
                element_error(table, n, "listen", problem)
            })
    }

    fn peer_port(&self, gateway: SocketAddr) -> Result<u16, FieldError> {
        match self.device.peer_port {
            port if port != 0 && port != gateway.port() => Ok(port),
            port => {
                let problem =
                    format!("{port}: use a port other than 0 and LAP's, and the same one on all peers");
                Err(FieldError::new(&["device", "peer_port"], problem))
            }
        }
    }

    fn ticket_port(&self, gateway: SocketAddr) -> Result<u16, FieldError> {
        match self.gateway.ticket_port.or(ticket::ticket_port(gateway.port())) {
            Some(port) if port != 0 && port != gateway.port() => Ok(port),
            _ => {
                let problem = "invalid port: use the gateway's UDP port for tickets, other than 0 and LAP's";
                Err(FieldError::new(&["gateway", "ticket_port"], problem))
            }
        }
    }

    /// The valid tunnels; errors go to `refuse`.
    fn tunnels(&self, gateway: SocketAddr, refuse: &mut dyn FnMut(FieldError)) -> Vec<Tunnel> {
        let mut tunnels = Vec::new();
        for (n, TunnelSection { listen, service }) in self.tunnel.iter().enumerate() {
            let problem = if service.is_ipv4() != gateway.is_ipv4() {
                format!(
                    "{service} has another address family than the gateway {gateway}, to which the session is bound"
                )
            } else if service.port() == 0 || service.port() == gateway.port() {
                format!(
                    "{service}: a sealed gate does not forward to port 0 and LAP's port: use another port"
                )
            } else {
                tunnels.push(Tunnel {
                    listen: *listen,
                    service: *service,
                });
                continue;
            };
            refuse(element_error("tunnel", n, "service", problem));
        }
        tunnels
    }

    /// The valid peers; errors go to `refuse`.
    fn peers(
        &self,
        own_id: Option<DeviceId>,
        gateway: SocketAddr,
        refuse: &mut dyn FnMut(FieldError),
    ) -> Vec<Peer> {
        let mut known_ids: HashSet<DeviceId> = own_id.into_iter().collect();
        let mut peers = Vec::new();
        for (n, section) in self.peer.iter().enumerate() {
            match section.validate(gateway, &mut known_ids) {
                Ok(peer) => peers.push(peer),
                Err((field, problem)) => refuse(element_error("peer", n, field, problem)),
            }
        }
        peers
    }
}

impl PeerSection {
    /// # Errors
    /// The first field that cannot be used, and the reason.
    fn validate(
        &self,
        gateway: SocketAddr,
        known_ids: &mut HashSet<DeviceId>,
    ) -> Result<Peer, (&'static str, String)> {
        let device = parse_device_id(&self.device).map_err(|problem| ("device", problem))?;
        if !known_ids.insert(device) {
            let problem = format!("{device} is this device, or already a peer: remove this entry");
            return Err(("device", problem));
        }
        if let Some(address) = self.address
            && (address.is_ipv4() != gateway.is_ipv4() || address.port() == 0)
        {
            let problem = format!(
                "{address}: use a port other than 0, and an address of the same family as the gateway's address {gateway}"
            );
            return Err(("address", problem));
        }
        if self.deliver.is_some_and(|deliver| deliver.port() == 0) {
            return Err(("deliver", "port 0: use another port".to_owned()));
        }
        Ok(Peer {
            device,
            listen: self.listen,
            deliver: self.deliver,
            address: self.address,
        })
    }
}

impl PufSection {
    /// # Errors
    /// No source or several are named.
    fn source(&self) -> Result<PufSource, FieldError> {
        match (&self.simulated, &self.readouts, &self.command) {
            (Some(simulated), None, None) => Ok(PufSource::Simulated(simulated.clone())),
            (None, Some(readouts), None) => Ok(PufSource::Readouts(readouts.clone())),
            (None, None, Some(command)) => Ok(PufSource::Command(command.clone())),
            _ => Err(FieldError::new(
                &["puf"],
                "set exactly one of [puf.simulated], [puf.readouts], [puf.command]",
            )),
        }
    }
}

/// An error in element `n` (from 0) of an array of tables.
fn element_error(table: &str, n: usize, field: &str, problem: impl ToString) -> FieldError {
    FieldError::new(&[table, &(n + 1).to_string(), field], problem)
}

fn parse_device_id(text: &str) -> Result<DeviceId, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// Parses a gateway's address: `HOST`, `HOST:PORT`, `IPV6` or `[IPV6]:PORT`.
///
/// # Errors
/// The text is not an address, or the host name does not resolve.
pub fn parse_gateway(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, LAP_PORT));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let host_and_port = if text.contains(':') {
        text.to_owned()
    } else {
        format!("{text}:{LAP_PORT}")
    };
    let first_address = host_and_port
        .to_socket_addrs()
        .map_err(|error| format!("resolving {text:?} failed: {error}"))?
        .next();
    first_address.ok_or_else(|| format!("{text:?} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Configuration as _;

    const GATEWAY: &str = "[gateway]\naddress = \"192.0.2.1\"\n";
    const SIMULATED: &str = "[puf.simulated]\nseed_file = \"fleet.seed\"\n";

    fn parse(text: &str) -> AgentConfig {
        toml::from_str(&format!("[device]\nid = \"d1\"\nhelper = \"h\"\n{text}")).unwrap()
    }

    #[test]
    fn addresses_have_a_default_port() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:20550"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("2001:db8::1", "[2001:db8::1]:20550"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ] {
            assert_eq!(parse_gateway(text).unwrap(), address.parse().unwrap());
        }
        assert!(parse_gateway("192.0.2.1:99999").is_err());
    }

    #[test]
    fn tunnels_use_services_that_a_sealed_gate_forwards_to() {
        let tunnel = |service: &str| {
            let text = format!(
                "{GATEWAY}{SIMULATED}[[tunnel]]\nlisten = \"127.0.0.1:1\"\nservice = \"{service}\"\n"
            );
            parse(&text).validate()
        };
        assert_eq!(
            tunnel("192.0.2.9:5683").unwrap().tunnels,
            [Tunnel {
                listen: "127.0.0.1:1".parse().unwrap(),
                service: "192.0.2.9:5683".parse().unwrap()
            }]
        );
        for wrong in ["[2001:db8::1]:5683", "192.0.2.9:20550", "192.0.2.9:0"] {
            assert_eq!(tunnel(wrong).unwrap_err()[0].path, ["tunnel", "1", "service"]);
        }
    }

    #[test]
    fn one_renewal_is_sufficient() {
        let renewal = |text: &str| parse(&format!("{GATEWAY}{SIMULATED}[renewal]\n{text}")).validate();
        for wrong in ["below_rows = 500\nrows = 100\n", "below_rows = 101\n"] {
            let error = renewal(wrong).unwrap_err().remove(0);
            assert_eq!(error.path, ["renewal", "below_rows"]);
            assert!(error.problem.contains("at most `rows`, 100"), "{error}");
        }
        assert!(renewal("below_rows = 100\n").unwrap().renewal.is_some());
    }

    fn fields(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(|error| error.path.join(".")).collect()
    }

    #[test]
    fn each_mistake_names_its_field() {
        let config = parse("[gateway]\naddress = \"192.0.2.1:x\"\nids = []\n[puf]\n");
        let errors = config.validate().unwrap_err();
        assert_eq!(fields(&errors), ["gateway.ids", "puf", "gateway.address"]);
        assert_eq!(
            fields(&parse(SIMULATED).validate().unwrap_err()),
            ["gateway.address"]
        );
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let listen = "listen = \"127.0.0.1:1\"\n";
        let text = format!(
            "peer_port = 0\n[gateway]\naddress = \"192.0.2.1\"\nids = []\nticket_port = 20550\n[puf]\n[renewal]\n\
             below_rows = 101\n[[tunnel]]\n{listen}service = \"192.0.2.9:1\"\n[[tunnel]]\n{listen}service = \
             \"[::1]:1\"\n[[peer]]\ndevice = \"d2\"\nlisten = \"127.0.0.1:2\"\n[[peer]]\ndevice = \"d2\"\nlisten = \
             \"127.0.0.1:3\"\n[[peer]]\ndevice = \"d3\"\n{listen}address = \"[::1]:1\"\n"
        );
        let errors = parse(&text).validate().unwrap_err();
        assert_eq!(
            fields(&errors),
            [
                "gateway.ids",
                "renewal.below_rows",
                "puf",
                "tunnel.2.listen",
                "peer.3.listen",
                "device.peer_port",
                "gateway.ticket_port",
                "tunnel.2.service",
                "peer.2.device",
                "peer.3.address",
            ]
        );
    }
}
