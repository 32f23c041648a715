//! Messages of the TOML library in the words of people who write configurations.

/// Names that are further from what was written are not what was meant.
const LIKENESS_MIN: f64 = 0.75;
/// A longer value is not repeated.
const VALUE_CHARACTERS_MAX: usize = 60;

/// A message about a field, of which `written` is in the file.
pub(super) fn plain(message: &str, written: Option<&str>) -> String {
    // Further lines repeat the text of the file.
    let message = message.lines().collect::<Vec<_>>().join(" ");
    let is_short =
        |written: &&str| !written.contains('\n') && written.chars().count() <= VALUE_CHARACTERS_MAX;
    let Some(written) = written.filter(is_short) else {
        return with_suggestion(&message);
    };
    let wanted = match message.as_str() {
        "invalid IP address syntax" => Some("an address, such as \"192.0.2.1\" or \"2001:db8::1\""),
        "invalid MAC address syntax" => Some("a MAC address, such as \"08:00:00:00:01:01\""),
        "invalid socket address syntax" => {
            Some("an address and a port, such as \"127.0.0.1:5683\" or \"[::1]:5683\"")
        }
        _ => {
            let is_of_type = ["invalid type: ", "invalid value: "]
                .iter()
                .any(|start| message.starts_with(start));
            message
                .rsplit_once(", expected ")
                .filter(|_| is_of_type)
                .map(|(_, wanted)| wanted)
        }
    };
    match wanted {
        Some(wanted) => format!("{written}: {}", kind(wanted)),
        None => with_suggestion(&message),
    }
}

/// A type of Rust as what is to be written.
fn kind(wanted: &str) -> &str {
    match wanted {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 on",
        "f64" => "a number",
        "a string" | "string" => "a text in quotes",
        "path string" => "a path in quotes",
        "a sequence" => "a list, such as [\"a\", \"b\"]",
        "IP address" => "an address in quotes, such as \"192.0.2.1\"",
        "socket address" => "an address and a port in quotes, such as \"127.0.0.1:5683\"",
        "a boolean" => "true or false",
        _ if wanted.starts_with("struct ") => "a table of its own, with fields",
        other => other,
    }
}

/// The first of the names that a message about an unknown one tells.
pub(super) fn first_variant(message: &str) -> Option<&str> {
    let (_, known) = message
        .strip_prefix("unknown variant ")?
        .split_once(", expected ")?;
    known.split('`').nth(1)
}

/// A message about an unknown name, with the known one that is like it in place of all.
fn with_suggestion(message: &str) -> String {
    let Some((unknown, known)) = message
        .strip_prefix("unknown ")
        .and_then(|_| message.split_once(", expected "))
    else {
        return message.to_owned();
    };
    let mut quoted = unknown.split('`');
    let Some(written) = quoted.nth(1) else {
        return message.to_owned();
    };
    let like = |known: &str| strsim::jaro_winkler(written, known);
    let nearest = known
        .split('`')
        .skip(1)
        .step_by(2)
        .max_by(|a, b| like(a).total_cmp(&like(b)));
    match nearest.filter(|name| like(name) >= LIKENESS_MIN) {
        Some(name) => format!("{unknown}; did you mean `{name}`?"),
        None => message.to_owned(),
    }
}
