//! Why a change cannot be measured.

/// Why a change cannot be measured: always an error of the data plane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A register cell was passed as an entry; registers are measured as arrays.
    #[error("register cell rejected as an entry; declare its array and fold its changes")]
    RegisterAsEntry,
    /// An array of this name is already declared.
    #[error("duplicate register array {0:?}")]
    DuplicateArray(String),
    /// The array does not exist, or has another width.
    #[error("invalid register array {0}: not declared, or its cells have another width")]
    UnknownArray(usize),
}
