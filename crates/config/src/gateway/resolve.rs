//! Resolves interfaces and addresses on the gateway's machine.

use linewarden_dataplane as dataplane;
use linewarden_gateway::data_plane::DataPlaneOptions;
use linewarden_gateway::{Settings, addresses};

use super::fields::{GatewayConfig, GatewaySection};
use super::validate::ValidGateway;
use super::validate::data_plane_errors;
use crate::file::Validated;
use crate::problem::FieldError;

/// The options of a gateway on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedGateway {
    /// The configuration of the data plane.
    pub config: dataplane::Config,
    /// The settings of the node.
    pub settings: Settings,
    /// Interfaces without a subnet, while `device_prefixes` is not set. The gateway can start, but admits no device
    /// behind them until they have a subnet. Empty on a completely configured machine.
    pub without_subnet: Vec<FieldError>,
    /// A warning, if device prefixes are the subnets of bridges, bonds, VLANs or macvlans because `device_prefixes`
    /// is not set: these subnets may contain services.
    pub upper_subnets: Option<FieldError>,
    /// Indexes of the interfaces on the devices' side, in the order of `interfaces`.
    pub interfaces: Vec<u32>,
    /// Indexes of the interfaces of `forward_to`.
    pub forward_to: Vec<u32>,
    /// The port of the ticket relay, if any.
    pub ticket_port: Option<u16>,
    /// The kind of the data plane, and its options.
    pub data_plane: DataPlaneOptions,
}

impl Validated<GatewayConfig> {
    /// Looks up interfaces and their addresses; `hash_seed` is random.
    ///
    /// # Errors
    /// All fields that cannot be used on this machine.
    pub fn resolve(&self, hash_seed: [u64; 2]) -> Result<ResolvedGateway, Vec<FieldError>> {
        self.valid.resolve(&self.file.value.gateway, hash_seed)
    }
}

impl ValidGateway {
    pub(super) fn resolve(
        &self,
        section: &GatewaySection,
        hash_seed: [u64; 2],
    ) -> Result<ResolvedGateway, Vec<FieldError>> {
        let mut errors = Vec::new();
        let interfaces = section.interface_indices(&mut errors);
        let forward_to = section.forward_indices(&interfaces, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let addresses = section.detect_addresses().map_err(|error| vec![error])?;
        let mut config = dataplane::Config {
            local: addresses.local,
            device_prefixes: addresses.devices,
            follows_interfaces: addresses.follows_interfaces,
            other_addresses: addresses.others,
            ..self.config.clone()
        };
        config.geometry.hash_seed = hash_seed;
        let errors = data_plane_errors(&config, Some(&self.data_plane));
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(ResolvedGateway {
            config,
            settings: self.settings,
            without_subnet: addresses.without_subnet,
            upper_subnets: addresses.upper_subnets,
            interfaces,
            forward_to,
            ticket_port: self.ticket_port,
            data_plane: self.data_plane.clone(),
        })
    }
}

impl GatewaySection {
    fn interface_indices(&self, errors: &mut Vec<FieldError>) -> Vec<u32> {
        indices("interfaces", &self.interfaces, errors)
    }

    fn forward_indices(&self, device_side: &[u32], errors: &mut Vec<FieldError>) -> Vec<u32> {
        let forward_to = indices("forward_to", &self.forward_to, errors);
        // An interface can have alternative names.
        if forward_to.iter().any(|index| device_side.contains(index)) {
            let problem = "names an interface that is also in `interfaces`, where frames must be sealed; remove the interface from one of the two lists";
            errors.push(FieldError::new(&["gateway", "forward_to"], problem));
        }
        forward_to
    }
}

/// Returns the indexes of these interfaces, in their order. An interface that does not exist is added to `errors`.
fn indices(field: &'static str, names: &[String], errors: &mut Vec<FieldError>) -> Vec<u32> {
    let mut indexes = Vec::new();
    for name in names {
        match addresses::index(name) {
            Ok(index) => indexes.push(index),
            Err(error) => errors.push(FieldError::new(&["gateway", field], error)),
        }
    }
    indexes
}
