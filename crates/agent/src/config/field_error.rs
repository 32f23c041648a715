//! Fields of the configuration that cannot be used.

use linewarden_config::FieldError;

/// An error in a field.
pub(crate) fn field<T>(path: &[&str], problem: impl ToString) -> Result<T, FieldError> {
    Err(FieldError::new(path, problem))
}

/// An error in element `n` (from 0) of an array of tables.
pub(crate) fn indexed_field<T>(
    table: &str,
    n: usize,
    key: &str,
    problem: impl ToString,
) -> Result<T, FieldError> {
    field(&[table, &(n + 1).to_string(), key], problem)
}
