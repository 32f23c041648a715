//! Errors of the records of a controller.

/// Errors of the records of a controller.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A field of a service record is invalid.
    #[error("field {field}: {problem}")]
    InvalidField {
        /// The field's name.
        field: &'static str,
        /// The problem and the accepted values.
        problem: String,
    },
    /// An event does not authenticate, or does not follow the previous event.
    #[error(
        "event {number}, or the one before it, was modified or deleted; check write access to the database"
    )]
    DamagedEvent {
        /// The number of the event.
        number: u64,
    },
}
