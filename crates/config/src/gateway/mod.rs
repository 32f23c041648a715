//! The configuration file of a gateway.
//!
//! | module | content |
//! |---|---|
//! | `fields` | the fields, and their defaults |
//! | `validate`, `p4` | validation: [`ValidGateway`] |
//! | `controller` | `[controller]`: validation, and the client |
//! | `resolve`, `devices` | interfaces and addresses of this machine: [`ResolvedGateway`] |
//! | `live` | fields that can change while a gateway runs |
//! | `machine` | prerequisites on this machine |
//! | `evidence` | `[evidence]`: keys and prerequisites |

mod controller;
mod devices;
mod evidence;
mod fields;
mod live;
mod machine;
mod p4;
mod resolve;
mod validate;

use linewarden_cli::failure::Failure;

pub use self::devices::DetectedSources;
pub use self::evidence::{read_evidence_signer, read_packet_key};
pub use self::fields::{
    AttestSection, AuditSection, Backend, BridgeSection, ControllerSection, EvidenceSection, Gate,
    GateOnExit, GatewayConfig, GatewaySection, LogSection, P4Section, PacketCarrier, Side,
};
pub use self::machine::check_veths;
pub use self::resolve::ResolvedGateway;
pub use self::validate::ValidGateway;
use crate::file::{Configuration, Validated};
use crate::problem::{FieldError, Problem};
use crate::program::Program;

impl Configuration for GatewayConfig {
    const PROGRAM: Program = Program::Gateway;

    type Valid = ValidGateway;

    fn log_level(&self) -> Option<&str> {
        self.log.level.as_deref()
    }

    fn validate(&self) -> Result<ValidGateway, Vec<FieldError>> {
        ValidGateway::new(self)
    }

    fn check_machine(config: &Validated<Self>) -> Result<Vec<Problem>, Failure> {
        let mut problems = config.machine_problems();
        problems.extend(machine::interfaces_without_subnet(config));
        Ok(problems)
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
