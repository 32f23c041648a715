//! Ports as the command line names them, in the form of simple_switch's `-i`: `PORT@INTERFACE`.

use std::fmt;
use std::str::FromStr;

use super::{PORT_IDS, PortId};

/// `PORT@INTERFACE`, for instance `0@veth0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// The number that P4 programs see.
    pub port: PortId,
    /// Name of the interface, or what the names of its capture files begin with; never empty.
    pub interface: String,
}

/// Why an argument is no [`PortSpec`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortSpecError {
    /// There is no `@`.
    #[error("`{0}` is not PORT@INTERFACE (as in 0@veth0): the @ is missing")]
    NoSeparator(String),
    /// What stands before the `@` is no number from 0 to 511.
    #[error("`{0}`: the port before the @ must be a number from 0 to {max}", max = PORT_IDS - 1)]
    Number(String),
    /// Nothing stands behind the `@`.
    #[error("`{0}`: the name of the interface after the @ is missing")]
    NoInterface(String),
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(argument: &str) -> Result<Self, Self::Err> {
        let owned = || argument.to_owned();
        let (number, interface) = argument
            .split_once('@')
            .ok_or_else(|| PortSpecError::NoSeparator(owned()))?;
        // Only digits: u16's parser takes a plus sign too.
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
    fn takes_what_simple_switch_takes() {
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
    fn says_what_is_wrong() {
        let error = |text: &str| text.parse::<PortSpec>().unwrap_err().to_string();
        assert_eq!(
            error("veth0"),
            "`veth0` is not PORT@INTERFACE (as in 0@veth0): the @ is missing"
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
            let says = format!("`{number}`: the port before the @ must be a number from 0 to 511");
            assert_eq!(error(number), says);
        }
        assert_eq!(
            error("3@"),
            "`3@`: the name of the interface after the @ is missing"
        );
    }
}
