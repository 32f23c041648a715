//! Error of creating evidence.

use linewarden_evidence::state::StateError;
use linewarden_evidence::statement::{InventoryError, StatementError};

use super::describe::DescribeError;

/// Error of creating evidence.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// Active state cannot be encoded.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// The executable form cannot be encoded.
    #[error("cannot encode the executable form of the program: {0}")]
    Program(String),
    /// The measurement is inconsistent.
    #[error(transparent)]
    State(#[from] StateError),
    /// The settings name a volatile register array that the program does not have.
    #[error("unknown volatile register array {0:?}: not found in the program")]
    UnknownRegister(String),
    /// The measurement has failed: memory differs from the measurement, or a change cannot be measured.
    #[error("evidence disabled because the measurement failed: {0}")]
    MeasurementFailed(String),
    /// The statement cannot be created or signed.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// The inventory exceeds its limits.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
}
