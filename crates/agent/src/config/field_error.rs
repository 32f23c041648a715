//! Fields of the configuration that cannot be used.

/// A field that cannot be used. The code that has read the file adds the line number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.join("."))]
pub struct FieldError {
    /// Tables and key, outermost first; an array element is named by its number, from 1.
    pub path: Vec<String>,
    /// What is wrong, and which values are accepted.
    pub problem: String,
    /// Whether the field is refused for safety, because other users can read a secret.
    pub is_unsafe: bool,
    /// Whether this is only a warning: the value is accepted, but probably not intended.
    pub is_warning: bool,
}

/// An error in a field.
pub(crate) fn field<T>(path: &[&str], problem: impl ToString) -> Result<T, FieldError> {
    Err(FieldError {
        path: path.iter().map(ToString::to_string).collect(),
        problem: problem.to_string(),
        is_unsafe: false,
        is_warning: false,
    })
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
