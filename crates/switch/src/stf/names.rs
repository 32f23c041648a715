//! Resolution of a test's short names to tables, actions and keys, as in p4c's runner for BMv2.

use thiserror::Error;

/// Error of resolving a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// No name matches.
    #[error("unknown name {0}: no name in the program equals it or ends with it; check the program's JSON")]
    Unknown(String),
    /// Several names match.
    #[error("ambiguous name {written}: it matches {first} and {second}; use a longer name")]
    Ambiguous {
        /// Name in the test.
        written: String,
        /// First matching name.
        first: String,
        /// Second matching name.
        second: String,
    },
}

/// Resolves a table of the program or an action of a table: the element with this name, or else the only element
/// whose name ends with this name (with or without a dot before).
///
/// # Errors
/// [`NameError`]
pub fn resolve_name<'a>(
    written: &str,
    names: impl IntoIterator<Item = &'a str> + Clone,
) -> Result<&'a str, NameError> {
    if let Some(exact) = names.clone().into_iter().find(|name| *name == written) {
        return Ok(exact);
    }
    let mut candidates = names.into_iter().filter(|name| name.ends_with(written));
    match (candidates.next(), candidates.next()) {
        (None, _) => Err(NameError::Unknown(written.to_owned())),
        (Some(only), None) => Ok(only),
        (Some(first), Some(second)) => Err(NameError::Ambiguous {
            written: written.to_owned(),
            first: first.to_owned(),
            second: second.to_owned(),
        }),
    }
}

/// Resolves a key field of a table. `names` are the names in the program's JSON (`name`, or else the `target` joined
/// by dots).
///
/// `stack$0.f` is an alias of `stack[0].f`. The name of a header, and `header.valid`, refer to its validity, which the
/// compiler names `header.$valid$`. A final `$` can be omitted (`header.$valid`). If no name is equal in one of these
/// forms, the first name that ends with a dot and the written name is the result.
///
/// # Errors
/// [`NameError::Unknown`]
pub fn resolve_key<'a>(
    written: &str,
    names: impl IntoIterator<Item = &'a str> + Clone,
) -> Result<&'a str, NameError> {
    let full_name = with_index(written);
    let find = |name: &str| names.clone().into_iter().find(|key| *key == name);
    let exact = find(&full_name)
        .or_else(|| find(&format!("{full_name}$")))
        .or_else(|| find(&format!("{full_name}.$valid$")))
        .or_else(|| find(&format!("{}.$valid$", full_name.strip_suffix(".valid")?)));
    let ends_with_name = |key: &&str| {
        let (suffix, validity_suffix) = (format!(".{full_name}"), format!(".{full_name}$"));
        key.ends_with(&suffix)
            || key.ends_with(&validity_suffix)
            || (full_name == "valid" && key.ends_with(".$valid$"))
    };
    exact
        .or_else(|| names.clone().into_iter().find(ends_with_name))
        .or_else(|| {
            if full_name == "valid" {
                find("$valid$")
            } else {
                None
            }
        })
        .ok_or_else(|| NameError::Unknown(written.to_owned()))
}

/// Converts the last `$` followed by digits to an index.
fn with_index(written: &str) -> String {
    let is_index = |(position, _): &(usize, &str)| {
        written
            .get(position + 1..)
            .is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    let Some((position, _)) = written.rmatch_indices('$').find(is_index) else {
        return written.to_owned();
    };
    let (before, rest) = written.split_at(position);
    let rest = rest.trim_start_matches('$');
    let end = rest
        .find(|digit: char| !digit.is_ascii_digit())
        .unwrap_or(rest.len());
    let (index, after) = rest.split_at(end);
    format!("{before}[{index}]{after}")
}
