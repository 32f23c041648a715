//! What must come out of the ports, and whether it did.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Command, Test};

/// A packet that is expected: hexadecimal digits, some of which may be anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedPacket {
    /// Digits, most significant first; `None` is `*`.
    digits: Vec<Option<u8>>,
    /// Whether nothing may follow (`$`).
    exact_length: bool,
}

/// Where a packet leaves what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// It ends before all digits were compared.
    TooShort,
    /// It goes on behind the last digit, where `$` forbids it.
    TooLong,
    /// The hexadecimal digit at this place, counted from 0, is another one.
    Digit(usize),
}

impl ExpectedPacket {
    /// Digits are below 16; `None` matches any.
    pub(super) const fn new(digits: Vec<Option<u8>>, exact_length: bool) -> Self {
        Self { digits, exact_length }
    }

    /// Compares a packet digit by digit. It may be longer unless `$` forbids it. A wrong length is found before a
    /// wrong digit.
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

#[derive(Debug, Clone, PartialEq, Eq)]
struct Expected {
    line: u32,
    /// `None`: any packet.
    packet: Option<ExpectedPacket>,
}

/// The packets that a test expects, by port and in order.
///
/// # How it judges
/// As p4c's `bmv2stf.py`, once the whole test has run and whatever it took to run it:
///
/// * each port is judged by itself: the order of packets on different ports does not count;
/// * a port must give exactly as many packets as the test expects there, and the first is compared with the first
///   `expect`, the second with the second, wherever these stand in the test;
/// * a packet matches if it begins with the digits expected; with `$` it must also end there. `expect PORT` alone
///   takes any packet, but one packet;
/// * a port that the test names only in `packet` must give nothing;
/// * a port that the test does not name at all has no interface there: what the switch sends to it is not looked
///   at, unless the test says `no_packet`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expectations {
    ports: BTreeMap<u32, Vec<Expected>>,
    /// Whether ports that are not named must be silent, too.
    silence: bool,
}

/// A port on which something else came out than expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// Too many packets, or too few.
    Count {
        /// The port.
        port: u32,
        /// Lines of the test that expect a packet here, with what they expect (`None`: any).
        expected: Vec<(u32, Option<ExpectedPacket>)>,
        /// What came.
        received: Vec<Vec<u8>>,
    },
    /// A packet that does not match.
    Packet {
        /// The port.
        port: u32,
        /// Which of the port's packets, from 0.
        index: usize,
        /// Line of the test that expects it.
        line: u32,
        /// What it says.
        expected: ExpectedPacket,
        /// What came.
        received: Vec<u8>,
        /// Where they part.
        difference: Difference,
    },
}

impl Expectations {
    /// What a whole test expects.
    pub fn of(test: &Test) -> Self {
        let mut expectations = Self::default();
        for statement in &test.statements {
            match &statement.command {
                Command::Packet { port, .. } => {
                    expectations.ports.entry(*port).or_default();
                }
                Command::Expect { port, packet } => {
                    let expected = Expected {
                        line: statement.line,
                        packet: packet.clone(),
                    };
                    expectations.ports.entry(*port).or_default().push(expected);
                }
                Command::NoPacket => expectations.silence = true,
                _ => {}
            }
        }
        expectations
    }

    /// The ports that the test names, which a runner must give the switch.
    pub fn ports(&self) -> impl Iterator<Item = u32> {
        self.ports.keys().copied()
    }

    /// Judges the packets that came out of each port, in order.
    ///
    /// # Errors
    /// Everything that is not as expected, by port: a wrong number of packets, or each packet that differs.
    pub fn check(&self, received: &BTreeMap<u32, Vec<Vec<u8>>>) -> Result<(), Vec<Mismatch>> {
        let unnamed = received.keys().filter(|_| self.silence);
        let ports: BTreeSet<u32> = self.ports.keys().chain(unnamed).copied().collect();
        let mut mismatches = Vec::new();
        for port in ports {
            let expected = self.ports.get(&port).map_or(&[][..], Vec::as_slice);
            let received = received.get(&port).map_or(&[][..], Vec::as_slice);
            if expected.len() == received.len() {
                mismatches.extend(different_packets(port, expected, received));
            } else {
                mismatches.push(Mismatch::Count {
                    port,
                    expected: expected
                        .iter()
                        .map(|each| (each.line, each.packet.clone()))
                        .collect(),
                    received: received.to_vec(),
                });
            }
        }
        if mismatches.is_empty() {
            Ok(())
        } else {
            Err(mismatches)
        }
    }
}

fn different_packets<'a>(
    port: u32,
    expected: &'a [Expected],
    received: &'a [Vec<u8>],
) -> impl Iterator<Item = Mismatch> + 'a {
    expected
        .iter()
        .zip(received)
        .enumerate()
        .filter_map(move |(index, (expected, received))| {
            let packet = expected.packet.as_ref()?;
            let difference = packet.difference(received)?;
            Some(Mismatch::Packet {
                port,
                index,
                line: expected.line,
                expected: packet.clone(),
                received: received.clone(),
                difference,
            })
        })
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count {
                port,
                expected,
                received,
            } => {
                write!(
                    f,
                    "port {port}: {} packets, expected {}",
                    received.len(),
                    expected.len()
                )?;
                for (line, packet) in expected {
                    match packet {
                        Some(packet) => write!(f, "\n  expected {packet} (line {line})")?,
                        None => write!(f, "\n  expected any packet (line {line})")?,
                    }
                }
                received
                    .iter()
                    .try_for_each(|packet| write!(f, "\n  received {}", hex::encode_upper(packet)))
            }
            Self::Packet {
                port,
                index,
                line,
                expected,
                received,
                difference,
            } => {
                let (what, mark) = match difference {
                    Difference::TooShort => ("is too short".to_owned(), received.len() * 2),
                    Difference::TooLong => ("is too long".to_owned(), expected.digits.len()),
                    Difference::Digit(place) => (format!("differs in byte {}", place / 2), *place),
                };
                writeln!(f, "port {port}: packet {} (line {line}) {what}", index + 1)?;
                writeln!(
                    f,
                    "  expected {expected}\n  received {}",
                    hex::encode_upper(received)
                )?;
                write!(f, "           {}^", " ".repeat(mark))
            }
        }
    }
}
