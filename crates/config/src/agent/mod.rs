//! The configuration file of an agent.
//!
//! | module | content |
//! |---|---|
//! | `fields` | the fields, and their defaults |
//! | `attest` | `[attest]`: fields, validation, options, prerequisites |
//! | `validate` | validation: [`ValidAgent`] |
//! | `machine` | options of the agent, and prerequisites on its machine |

mod attest;
mod fields;
mod machine;
mod validate;

use linewarden_cli::failure::Failure;

pub use self::attest::AttestSection;
pub use self::fields::{
    AgentConfig, DeviceSection, GatewaySection, LogSection, PeerSection, PufSection, ReadoutsSection,
    RenewalSection, TunnelSection,
};
pub use self::machine::RunOptions;
pub use self::validate::{ValidAgent, parse_gateway};
use crate::file::{Configuration, Validated};
use crate::problem::{FieldError, Problem};
use crate::program::Program;

impl Configuration for AgentConfig {
    const PROGRAM: Program = Program::Agent;

    type Valid = ValidAgent;

    fn log_level(&self) -> Option<&str> {
        self.log.level.as_deref()
    }

    fn validate(&self) -> Result<ValidAgent, Vec<FieldError>> {
        ValidAgent::new(self)
    }

    fn check_machine(config: &Validated<Self>) -> Result<Vec<Problem>, Failure> {
        Ok(config.file.field_problems(&config.valid.machine_errors()))
    }
}
