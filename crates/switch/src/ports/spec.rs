//! Port specification on the command line, as with simple_switch's `-i`: `PORT@INTERFACE`.

use std::fmt;
use std::str::FromStr;

use super::{PORT_IDS, PortId};

/// `PORT@INTERFACE`, for example `0@veth0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// Port number in P4 programs.
    pub port: PortId,
    /// Interface name, or prefix of the capture file names; never empty.
    pub interface: String,
}

/// Error of parsing a [`PortSpec`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortSpecError {
    /// The `@` is missing.
    #[error("invalid port `{0}`: the @ is missing; use PORT@INTERFACE, for example 0@veth0")]
    NoSeparator(String),
    /// The text before the `@` is not a number from 0 to 511.
    #[error("invalid port `{0}`: the port number before the @ must be 0 to {max}", max = PORT_IDS - 1)]
    Number(String),
    /// The text after the `@` is empty.
    #[error("invalid port `{0}`: the interface name after the @ is missing")]
    NoInterface(String),
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(argument: &str) -> Result<Self, Self::Err> {
        let owned = || argument.to_owned();
        let (number, interface) = argument
            .split_once('@')
            .ok_or_else(|| PortSpecError::NoSeparator(owned()))?;
        // Only digits: the parser of u16 also accepts a plus sign.
        let port = Some(number)
            .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|number| number.parse().ok())
            .and_then(PortId::new)
            .ok_or_else(|| PortSpecError::Number(owned()))?;
        if interface.is_empty() {
            return Err(PortSpecError::NoInterface(owned()));
        }
        Ok(Self {
            port,
            interface: interface.to_owned(),
        })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.port, self.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_arguments_of_simple_switch_are_accepted() {
        for (text, port, interface) in [
            ("0@veth0", 0, "veth0"),
            ("511@eth1", 511, "eth1"),
            ("007@a@b", 7, "a@b"),
            ("1@pcap1", 1, "pcap1"),
        ] {
            let spec: PortSpec = text.parse().unwrap();
            assert_eq!((spec.port.get(), spec.interface.as_str()), (port, interface));
            assert_eq!(spec.to_string().parse::<PortSpec>().unwrap(), spec);
        }
    }

    #[test]
    fn invalid_arguments_are_rejected_with_the_reason() {
        let error = |text: &str| text.parse::<PortSpec>().unwrap_err().to_string();
        assert_eq!(
            error("veth0"),
            "invalid port `veth0`: the @ is missing; use PORT@INTERFACE, for example 0@veth0"
        );
        for number in [
            "@veth0",
            "512@veth0",
            "-1@veth0",
            "+1@veth0",
            "x@veth0",
            "99999999@veth0",
            " 1@veth0",
        ] {
            let expected = format!("invalid port `{number}`: the port number before the @ must be 0 to 511");
            assert_eq!(error(number), expected);
        }
        assert_eq!(
            error("3@"),
            "invalid port `3@`: the interface name after the @ is missing"
        );
    }
}
