//! Identifiers. Each has its own type, so that two numbers of different meaning cannot be swapped.

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $hex:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $hex, self.0)
            }
        }
    };
}

id!(
    /// A device id, sparse and chosen at enrollment; 0 is not a device.
    DeviceId, u64, "{:016x}"
);

/// The text is not a device ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseDeviceIdError;

impl fmt::Display for ParseDeviceIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device ID is 1 to 16 hexadecimal digits, not all 0")
    }
}

impl core::error::Error for ParseDeviceIdError {}

/// Parses 1 to 16 hexadecimal digits, possibly after `0x`.
impl FromStr for DeviceId {
    type Err = ParseDeviceIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_valid = digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(digits, 16) {
            Ok(id) if is_valid && id != 0 => Ok(Self(id)),
            _ => Err(ParseDeviceIdError),
        }
    }
}

id!(
    /// A gateway id, from the gateway's certificate, never reused (LAP/1 1.4.11).
    GatewayId, u32, "{}"
);
id!(
    /// Number of an enrolled row of one device; spent in increasing order. In key mode, the number only counts
    /// authentications.
    RowIndex, u32, "{}"
);
id!(
    /// A period of at most an hour in which a device proves one configuration (LAP/1 3.2).
    Period, u64, "{}"
);
id!(
    /// Number of an attestation round at one gateway: from 1, increasing, also across restarts.
    RoundNumber, u32, "{}"
);

/// The id of a session: the first 8 bytes of the winning RESPONSE's tag, never 0 (LAP/1 1.3, type 4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub NonZeroU64);

impl SessionId {
    /// The id from the eight bytes on the wire; `None` if they are all zero.
    #[must_use]
    pub fn from_wire(bytes: [u8; 8]) -> Option<Self> {
        NonZeroU64::new(u64::from_be_bytes(bytes)).map(Self)
    }

    /// The eight bytes on the wire.
    #[must_use]
    pub fn to_wire(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

/// A cipher suite; a device has exactly one, fixed at enrollment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Suite {
    /// SipHash-2-4 with 128-bit output (LAP/1 1.2).
    SipHash128 = 1,
}

impl Suite {
    /// The suite of this number, if this implementation supports it.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        (number == 1).then_some(Self::SipHash128)
    }

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// The kind of a device's credential (LAP/1 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mode {
    /// A strong PUF: a pool of rows, each spent once.
    Pool,
    /// A weak PUF: one key, never exhausted; `idx` only counts authentications.
    Key,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_ids_are_hexadecimal_and_not_zero() {
        assert_eq!("00000000000000d1".parse(), Ok(DeviceId(0xd1)));
        assert_eq!("0xD1".parse(), Ok(DeviceId(0xd1)));
        for wrong in ["", "0", "0000000000000000", "g1", "+d1", "11112222333344445"] {
            assert_eq!(wrong.parse::<DeviceId>(), Err(ParseDeviceIdError), "{wrong}");
        }
    }
}
