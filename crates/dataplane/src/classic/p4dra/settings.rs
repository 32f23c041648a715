//! The configuration of `p4dra-classic`.

use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::ProverId;
use linewarden_protocol::frame::{Mac, header};

use super::table;
use crate::config::ConfigError;

/// A prover of `p4dra-classic`.
#[derive(Clone, Debug)]
pub struct P4draProver {
    /// The identifier `d`.
    pub id: ProverId,
    /// The key `k`.
    pub key: AttestationKey,
    /// Hash of the configuration that the prover should run (`h`).
    pub configuration_hash: ConfigurationHash,
}

impl PartialEq for P4draProver {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.configuration_hash) == (other.id, other.configuration_hash)
            && self.key.as_bytes() == other.key.as_bytes()
    }
}

impl Eq for P4draProver {}

/// `p4dra-classic` (LAP/1 3.1); insecure, for measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4dra {
    /// Ethernet type; the published tools use 0x1234.
    pub ether_type: u16,
    /// MAC address of the controller that receives the verified replies.
    pub controller: Mac,
    /// The provers that are verified.
    pub provers: Vec<P4draProver>,
}

/// Maximum number of provers. Their table has at least 2^21 places of 128 B (256 MiB), and more if all places are occupied
/// where a prover's hash permits the prover ([`table::build`]).
const PROVERS_MAX: usize = 1 << 20;

impl P4dra {
    /// Checks all fields. Returns the table of provers for this hash seed.
    ///
    /// # Errors
    /// The first invalid field.
    pub(in crate::classic) fn check(&self, seed: [u64; 2]) -> Result<Vec<Option<usize>>, ConfigError> {
        let refuse = |field, value: String, hint| Err(ConfigError::Field { field, value, hint });
        let reserved = [
            header::ETHER_IPV4,
            header::ETHER_ARP,
            header::ETHER_VLAN,
            header::ETHER_QINQ,
            header::ETHER_IPV6,
        ];
        if self.ether_type < header::ETHER_TYPE_MIN || reserved.contains(&self.ether_type) {
            let value = format!("{:#06x}", self.ether_type);
            return refuse("p4dra.ether_type", value, "a type of its own, 0x0600 or above");
        }
        let [first, ..] = self.controller;
        if first & 1 == 1 || self.controller == [0; 6] {
            let value = format!("{:02x?}", self.controller);
            return refuse("p4dra.controller", value, "the MAC address of one interface");
        }
        let ids: Vec<ProverId> = self.provers.iter().map(|prover| prover.id).collect();
        let mut sorted_ids = ids.clone();
        sorted_ids.sort_unstable();
        if let Some([duplicate, _]) = sorted_ids.array_windows().find(|[a, b]| a == b) {
            return refuse("p4dra.provers", duplicate.to_string(), "each prover once");
        }
        let table = (ids.len() <= PROVERS_MAX)
            .then(|| table::build(&ids, seed))
            .flatten();
        table.ok_or_else(|| ConfigError::Field {
            field: "p4dra.provers",
            value: ids.len().to_string(),
            hint: "at most 1048576",
        })
    }
}
