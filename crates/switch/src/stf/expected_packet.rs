//! An expected packet and its comparison with a sent packet.

use std::fmt;

/// Expected packet: hexadecimal digits with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedPacket {
    /// Digits, most significant first; `None` is the wildcard `*`.
    pub(super) digits: Vec<Option<u8>>,
    /// Whether the length must be exact (`$`).
    exact_length: bool,
}

/// First difference between a packet and its expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The packet is shorter than expected.
    TooShort,
    /// The packet is longer than expected with `$`.
    TooLong,
    /// The hexadecimal digit at this index, counted from 0, differs.
    Digit(usize),
}

impl ExpectedPacket {
    /// Creates an expectation. Digits are below 16; `None` matches any digit.
    pub(super) const fn new(digits: Vec<Option<u8>>, exact_length: bool) -> Self {
        Self { digits, exact_length }
    }

    /// Returns the first difference, or `None` if the packet matches. With `$`, the packet must not be longer than expected. A
    /// wrong length is reported before a wrong digit.
    pub fn difference(&self, received: &[u8]) -> Option<Difference> {
        let length = received.len() * 2;
        if self.exact_length && length > self.digits.len() {
            return Some(Difference::TooLong);
        }
        if length < self.digits.len() {
            return Some(Difference::TooShort);
        }
        let received = received.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        let differs =
            |(expected, received): (&Option<u8>, u8)| expected.is_some_and(|digit| digit != received);
        self.digits
            .iter()
            .zip(received)
            .position(differs)
            .map(Difference::Digit)
    }
}

impl fmt::Display for ExpectedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for digit in &self.digits {
            match digit {
                Some(digit) => write!(f, "{digit:X}")?,
                None => write!(f, "*")?,
            }
        }
        if self.exact_length { write!(f, "$") } else { Ok(()) }
    }
}
