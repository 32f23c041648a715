//! The location of a registry: a SQLite file or a PostgreSQL database.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sqlx::postgres::PgConnectOptions;

/// The location of a registry: `postgres://USER@HOST/DATABASE`, `sqlite:PATH` or `PATH`. Displayed without a
/// password.
///
/// A PostgreSQL address accepts some of libpq's parameters: `?sslmode=verify-full&sslrootcert=FILE`,
/// `?host=/run/postgresql`, `?options[search_path]=SCHEMA`. Do not write a password into the address:
/// `PGPASSWORD` and `~/.pgpass` are read, too.
#[derive(Clone)]
pub enum Location {
    /// A file.
    Sqlite(PathBuf),
    /// A database, or a schema in it.
    Postgres(Arc<PostgresAddress>),
}

/// The address of a database.
#[derive(Clone)]
pub struct PostgresAddress {
    pub(crate) options: PgConnectOptions,
    /// The address as configured.
    text: String,
}

/// An invalid address.
#[derive(Debug, thiserror::Error)]
#[error("invalid PostgreSQL address {text}: {problem}; the form is postgres://USER@HOST/DATABASE")]
pub struct LocationError {
    text: String,
    problem: String,
}

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// Accepted parameters, in addition to `options[NAME]`. The driver would ignore an unknown or misspelled parameter,
/// and the connection might then not be encrypted.
const PARAMETERS: [&str; 11] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
];

/// Parameters that name files.
const FILE_PARAMETERS: [&str; 3] = ["sslrootcert", "sslcert", "sslkey"];

impl PostgresAddress {
    /// The files that the address names, which the driver opens.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let query = self.text.split_once('?').map_or("", |(_, query)| query);
        let values = query.split('&').filter_map(|part| {
            let (name, value) = part.split_once('=')?;
            FILE_PARAMETERS.contains(&name).then(|| percent_decoded(value))
        });
        // A parameter may contain the certificate itself instead of a file name.
        values
            .filter(|value| !value.trim_ascii_start().starts_with(b"-----BEGIN"))
            .map(|value| PathBuf::from(OsString::from_vec(value)))
    }
}

/// Decodes a value of a query (application/x-www-form-urlencoded).
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| hex::decode(digits).ok());
        rest = tail
            .get(if digits.is_some() { 2 } else { 0 }..)
            .unwrap_or_default();
        match (digits, first) {
            (Some(digits), _) => bytes.extend(digits),
            (None, b'+') => bytes.push(b' '),
            (None, byte) => bytes.push(*byte),
        }
    }
    bytes
}

impl Location {
    /// The path, if the location is a file.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }

    /// The path as a mutable reference, if the location is a file.
    pub fn file_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return parse_path(text);
        }
        let error = |problem: String| LocationError {
            text: without_password(text),
            problem,
        };
        if let Some(name) = unknown_parameter(text) {
            return Err(error(format!(
                "unknown parameter {name:?}; known are {}, options[NAME]",
                PARAMETERS.join(", ")
            )));
        }
        let options = PgConnectOptions::from_str(text).map_err(|cause| error(cause.to_string()))?;
        if options.get_database().is_none_or(str::is_empty) {
            return Err(error("the database name is missing".to_owned()));
        }
        Ok(Self::Postgres(Arc::new(PostgresAddress {
            options,
            text: text.to_owned(),
        })))
    }
}

/// Parses a path. A text that looks like an address of another scheme is refused.
fn parse_path(text: &str) -> Result<Location, LocationError> {
    if let Some(path) = text.strip_prefix("sqlite:") {
        return Ok(Location::Sqlite(PathBuf::from(path)));
    }
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphabetic());
    match scheme {
        Some(scheme) if is_scheme(scheme) => Err(LocationError {
            text: without_password(text),
            problem: format!(
                "unknown scheme {scheme}: (for a file with this name use sqlite:PATH or ./PATH)"
            ),
        }),
        _ => Ok(Location::Sqlite(PathBuf::from(text))),
    }
}

/// The first unknown parameter of an address.
fn unknown_parameter(address: &str) -> Option<&str> {
    let (_, query) = address.split_once('?')?;
    let names = query
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').map_or(part, |(name, _)| name));
    let is_known = |name: &str| {
        let option = name
            .strip_prefix("options[")
            .and_then(|tail| tail.strip_suffix(']'));
        PARAMETERS.contains(&name) || option.is_some_and(|option| !option.is_empty())
    };
    names.into_iter().find(|name| !is_known(name))
}

/// The address with its password replaced by dots.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let (address, query) = rest
        .split_once('?')
        .map_or((rest, None), |(address, query)| (address, Some(query)));
    let address = match address.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:...@{host}"),
            None => format!("{user}@{host}"),
        },
        None => address.to_owned(),
    };
    let redact = |part: &str| match part.split_once('=') {
        Some((name, _)) if name.eq_ignore_ascii_case("password") => format!("{name}=..."),
        _ => part.to_owned(),
    };
    match query {
        Some(query) => {
            let parts: Vec<String> = query.split('&').map(redact).collect();
            format!("{scheme}://{address}?{}", parts.join("&"))
        }
        None => format!("{scheme}://{address}"),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Postgres(address) => f.write_str(&without_password(&address.text)),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sqlite(a), Self::Sqlite(b)) => a == b,
            (Self::Postgres(a), Self::Postgres(b)) => a.text == b.text,
            _ => false,
        }
    }
}

impl Eq for Location {}

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::Sqlite(path)
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        Self::Sqlite(path.clone())
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::Sqlite(path.to_owned())
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_files_are_distinguished() {
        for (text, is_file) in [
            ("fleet.registry", true),
            ("sqlite:/var/lib/linewarden/fleet.registry", true),
            ("./postgres:fleet", true),
            (
                "postgres://db.example/fleet?sslmode=verify-full&options[search_path]=a",
                false,
            ),
            ("postgres://linewarden@db.example/fleet", false),
            (
                "postgresql://linewarden@db.example:5433/fleet?sslmode=verify-full",
                false,
            ),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location.file().is_some(), is_file, "{text}");
        }
        assert_eq!(
            "sqlite:a".parse::<Location>().unwrap(),
            Location::Sqlite(PathBuf::from("a"))
        );
    }

    #[test]
    fn an_invalid_address_is_refused_without_showing_its_password() {
        for text in [
            "postgres://linewarden:secret@db.example:port/fleet",
            "postgres://linewarden:secret@db.example/fleet?sslmode=perhaps",
            "postgres://linewarden:secret@db.example/fleet?ssl_mode=verify-full",
            "postgres://linewarden:secret@db.example/fleet?host=/run&connect_timeout=3",
            "Postgres://linewarden:secret@db.example/fleet",
            "postgres:fleet",
        ] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
            assert!(error.contains("postgres://USER@HOST/DATABASE"), "{error}");
        }
    }

    #[test]
    fn an_address_names_its_files() {
        let text = "postgres://u@h/d?sslrootcert=/a%20b+c%2fd%&sslmode=require&sslkey=k&\
                    sslcert=-----BEGIN+CERTIFICATE-----&application_name=n";
        let Location::Postgres(address) = text.parse().unwrap() else {
            panic!("{text}");
        };
        let files: Vec<PathBuf> = address.files().collect();
        assert_eq!(files, [PathBuf::from("/a b c/d%"), PathBuf::from("k")]);
    }

    #[test]
    fn no_password_is_shown() {
        for (text, redacted) in [
            ("postgres://u:secret@h/d", "postgres://u:...@h/d"),
            ("postgres://u:se@cret@h/d", "postgres://u:...@h/d"),
            (
                "postgres://u@h/d?password=secret&host=/run",
                "postgres://u@h/d?password=...&host=/run",
            ),
            ("postgres://u@h/d", "postgres://u@h/d"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location.to_string(), redacted);
            assert_eq!(format!("{location:?}"), redacted);
        }
    }
}
