//! Rewrites messages of the TOML library in plain English.

/// Minimum similarity of a suggested name to the name in the file.
const SIMILARITY_MIN: f64 = 0.75;
/// Maximum length of a value that a message repeats, characters.
const VALUE_CHARACTERS_MAX: usize = 60;

/// Rewrites a message about a field; `value` is the text of the field's value in the file.
pub(crate) fn rewrite(message: &str, value: Option<&str>) -> String {
    let message = message.lines().collect::<Vec<_>>().join(" ");
    let is_short = |value: &&str| !value.contains('\n') && value.chars().count() <= VALUE_CHARACTERS_MAX;
    let Some(value) = value.filter(is_short) else {
        return with_suggestion(&message);
    };
    let expected = match message.as_str() {
        "invalid IP address syntax" => Some("an address, such as \"192.0.2.1\" or \"2001:db8::1\""),
        "invalid MAC address syntax" => Some("a MAC address, such as \"08:00:00:00:01:01\""),
        "invalid socket address syntax" => {
            Some("an address and a port, such as \"127.0.0.1:5683\" or \"[::1]:5683\"")
        }
        _ => {
            let is_about_value = ["invalid type: ", "invalid value: "]
                .iter()
                .any(|start| message.starts_with(start));
            message
                .rsplit_once(", expected ")
                .filter(|_| is_about_value)
                .map(|(_, expected)| expected)
        }
    };
    match expected {
        Some(expected) => format!("{value}: expected {}", describe_type(expected)),
        None => with_suggestion(&message),
    }
}

/// Describes a Rust type as a value in a configuration file.
fn describe_type(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of 0 or more",
        "f64" => "a number",
        "a string" | "string" => "a string in quotes",
        "path string" => "a path in quotes",
        "a sequence" => "a list, such as [\"a\", \"b\"]",
        "IP address" => "an address in quotes, such as \"192.0.2.1\"",
        "socket address" => "an address and a port in quotes, such as \"127.0.0.1:5683\"",
        "a boolean" => "true or false",
        _ if expected.starts_with("struct ") => "a table with fields",
        other => other,
    }
}

/// Returns the first known name in a message about an unknown variant; `None` for all other messages.
pub(crate) fn first_variant(message: &str) -> Option<&str> {
    let (_, known) = message
        .strip_prefix("unknown variant ")?
        .split_once(", expected ")?;
    known.split('`').nth(1)
}

/// Replaces the list of known names in a message by the most similar name, if there is one.
fn with_suggestion(message: &str) -> String {
    let Some((unknown, known)) = message
        .strip_prefix("unknown ")
        .and_then(|_| message.split_once(", expected "))
    else {
        return message.to_owned();
    };
    let mut quoted = unknown.split('`');
    let Some(unknown_name) = quoted.nth(1) else {
        return message.to_owned();
    };
    let similarity = |known: &str| strsim::jaro_winkler(unknown_name, known);
    let most_similar = known
        .split('`')
        .skip(1)
        .step_by(2)
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match most_similar.filter(|name| similarity(name) >= SIMILARITY_MIN) {
        Some(name) => format!("{unknown}; did you mean `{name}`?"),
        None => message.to_owned(),
    }
}
