//! Expected packets of a test and their comparison with the sent packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::expected_packet::{Difference, ExpectedPacket};
use super::{Command, Test};

/// Expected packet and the line of its `expect`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpectedLine {
    line: u32,
    /// Expected packet; `None` for any packet.
    packet: Option<ExpectedPacket>,
}

/// Expected packets of a test, by port and in order.
///
/// # Rules
/// The rules are those of p4c's `bmv2stf.py`; they apply after the whole test has run:
///
/// * each port is checked separately: the order of packets on different ports does not matter;
/// * a port must send exactly the expected number of packets. The first packet is compared with the first `expect` of the
///   port, the second packet with the second `expect`, regardless of their positions in the test;
/// * a packet matches if it starts with the expected digits; with `$` it must also end there. `expect PORT` alone
///   matches exactly one packet with any content;
/// * a port that occurs only in `packet` must send nothing;
/// * a port that does not occur in the test has no interface: packets to this port are ignored unless the test
///   contains `no_packet`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expectations {
    ports: BTreeMap<u32, Vec<ExpectedLine>>,
    /// Whether ports that do not occur in the test must send nothing.
    no_other_packets: bool,
}

/// Mismatch between expected and sent packets of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// Too many or too few packets.
    Count {
        /// Port.
        port: u32,
        /// Expectations of this port with their lines (`None` for any packet).
        expected: Vec<(u32, Option<ExpectedPacket>)>,
        /// Sent packets.
        received: Vec<Vec<u8>>,
    },
    /// A packet differs from its expectation.
    Packet {
        /// Port.
        port: u32,
        /// Index of the packet on the port, from 0.
        index: usize,
        /// Line of the expectation.
        line: u32,
        /// Expectation.
        expected: ExpectedPacket,
        /// Sent packet.
        received: Vec<u8>,
        /// First difference.
        difference: Difference,
    },
}

impl Expectations {
    /// Collects the expectations of a test.
    pub fn from_test(test: &Test) -> Self {
        let mut expectations = Self::default();
        for statement in &test.statements {
            match &statement.command {
                Command::Packet { port, .. } => {
                    expectations.ports.entry(*port).or_default();
                }
                Command::Expect { port, packet } => {
                    let expected = ExpectedLine {
                        line: statement.line,
                        packet: packet.clone(),
                    };
                    expectations.ports.entry(*port).or_default().push(expected);
                }
                Command::NoPacket => expectations.no_other_packets = true,
                _ => {}
            }
        }
        expectations
    }

    /// Ports of the test, which a runner must provide.
    pub fn ports(&self) -> impl Iterator<Item = u32> {
        self.ports.keys().copied()
    }

    /// Checks the packets sent on each port, in order.
    ///
    /// # Errors
    /// All mismatches by port: a wrong number of packets, or each packet that differs.
    pub fn check(&self, received: &BTreeMap<u32, Vec<Vec<u8>>>) -> Result<(), Vec<Mismatch>> {
        let other_ports = received.keys().filter(|_| self.no_other_packets);
        let ports: BTreeSet<u32> = self.ports.keys().chain(other_ports).copied().collect();
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
                        .map(|line| (line.line, line.packet.clone()))
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
    expected: &'a [ExpectedLine],
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
                let (description, offset) = match difference {
                    Difference::TooShort => ("is too short".to_owned(), received.len() * 2),
                    Difference::TooLong => ("is too long".to_owned(), expected.digits.len()),
                    Difference::Digit(digit) => (format!("differs in byte {}", digit / 2), *digit),
                };
                writeln!(f, "port {port}: packet {} (line {line}) {description}", index + 1)?;
                writeln!(
                    f,
                    "  expected {expected}\n  received {}",
                    hex::encode_upper(received)
                )?;
                write!(f, "           {}^", " ".repeat(offset))
            }
        }
    }
}
