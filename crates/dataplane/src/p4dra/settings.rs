//! The configuration of `p4dra-classic`.

use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::ProverId;
use linewarden_protocol::frame::Mac;

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
    /// Interfaces, by index, from which `host` takes frames. `xdp` takes frames from the interfaces to which it is
    /// attached.
    pub interfaces: Vec<u32>,
    /// The provers that this gateway verifies.
    pub provers: Vec<P4draProver>,
}
