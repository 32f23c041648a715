//! How a test's short names find a program's tables, actions and keys: as p4c's runner for BMv2 does.

use thiserror::Error;

/// Why a name finds nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing is called so.
    #[error("nothing is called {0}, nor ends so; look at the names in the program's JSON")]
    Unknown(String),
    /// More than one name ends so.
    #[error("{written} may be {first} or {second}; write more of the name")]
    Ambiguous {
        /// As the test writes it.
        written: String,
        /// One name that ends so.
        first: String,
        /// Another.
        second: String,
    },
}

/// Finds a table among the program's, or an action among a table's: the one of that name, or else the only one
/// whose name ends so (not only at a dot).
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

/// Finds a key among a table's, of which `names` are those in the program's JSON (`name`, or else the `target`
/// joined by dots).
///
/// `stack$0.f` stands for `stack[0].f`. A header's name stands for its validity, which the compiler calls
/// `header.$valid$` or `field$`; so does `header.valid`. Else the first name that ends in `.` and the one written
/// is meant.
///
/// # Errors
/// [`NameError::Unknown`]
pub fn resolve_key<'a>(
    written: &str,
    names: impl IntoIterator<Item = &'a str> + Clone,
) -> Result<&'a str, NameError> {
    let wanted = with_index(written);
    let find = |name: &str| names.clone().into_iter().find(|key| *key == name);
    let exact = find(&wanted)
        .or_else(|| find(&format!("{wanted}$")))
        .or_else(|| find(&format!("{wanted}.$valid$")))
        .or_else(|| find(&format!("{}.$valid$", wanted.strip_suffix(".valid")?)));
    let ends_so = |key: &&str| {
        let (dotted, marked) = (format!(".{wanted}"), format!(".{wanted}$"));
        key.ends_with(&dotted) || key.ends_with(&marked) || (wanted == "valid" && key.ends_with(".$valid$"))
    };
    exact
        .or_else(|| names.clone().into_iter().find(ends_so))
        .or_else(|| if wanted == "valid" { find("$valid$") } else { None })
        .ok_or_else(|| NameError::Unknown(written.to_owned()))
}

/// Writes the last `$` with digits behind it as an index.
fn with_index(written: &str) -> String {
    let is_index = |(at, _): &(usize, &str)| {
        written
            .get(at + 1..)
            .is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    let Some((at, _)) = written.rmatch_indices('$').find(is_index) else {
        return written.to_owned();
    };
    let (before, rest) = written.split_at(at);
    let rest = rest.trim_start_matches('$');
    let end = rest
        .find(|digit: char| !digit.is_ascii_digit())
        .unwrap_or(rest.len());
    let (index, after) = rest.split_at(end);
    format!("{before}[{index}]{after}")
}
