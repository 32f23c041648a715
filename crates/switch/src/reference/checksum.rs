//! Calculation inputs, checksums and the deparser.

use num_bigint::BigInt;

use super::number::{self, Bits};
use super::state::Packet;
use super::{DropReason, Interpreter};
use crate::calculations::{self, checksum16};
use crate::program::ids::{CalculationId, HeaderId};
use crate::program::{Checksum, ChecksumKind, Input, Program};

/// Offset of the checksum in an IPv4 header, bytes.
const IPV4_CHECKSUM_OFFSET: usize = 10;

/// Returns the result of a calculation over a packet.
pub fn output(
    program: &Program,
    calculations: &[calculations::Calculation],
    packet: &Packet<'_>,
    id: CalculationId,
) -> u64 {
    let definition = program.calculations.get(id.index());
    let inputs = definition.map_or(&[][..], |calculation| &calculation.inputs);
    let input = gather(packet, inputs);
    let calculation = calculations.get(id.index());
    calculation.map_or(0, |calculation| calculation.compute(&input))
}

fn gather(packet: &Packet<'_>, inputs: &[Input]) -> Vec<u8> {
    let mut bits = Bits::default();
    for input in inputs {
        match input {
            Input::Field(field) => {
                if packet.headers.is_valid(Some(field.header)) {
                    bits.push(&packet.headers.raw(*field), packet.headers.bits(*field));
                }
            }
            Input::Constant(bytes, width) => bits.push(number::from_bytes(bytes).magnitude(), *width),
            Input::Header(header) => {
                if packet.headers.is_valid(Some(*header)) {
                    packet.headers.emit(*header, &mut bits);
                }
            }
            Input::Payload => {}
        }
    }
    let mut bytes = bits.into_bytes();
    if inputs.contains(&Input::Payload) {
        bytes.extend_from_slice(packet.payload());
    }
    bytes
}

/// Computes the checksum of a whole header whose checksum field counts as 0.
fn ipv4(packet: &Packet<'_>, header: HeaderId) -> u64 {
    let mut bits = Bits::default();
    packet.headers.emit(header, &mut bits);
    let mut bytes = bits.into_bytes();
    for byte in bytes.iter_mut().skip(IPV4_CHECKSUM_OFFSET).take(2) {
        *byte = 0;
    }
    u64::from(checksum16(&bytes))
}

impl<'a> Interpreter<'a> {
    fn checksum(&self, packet: &Packet<'a>, checksum: &Checksum) -> u64 {
        match checksum.kind {
            ChecksumKind::Ipv4 => ipv4(packet, checksum.target.header),
            ChecksumKind::Calculation(id) => output(self.program, self.calculations, packet, id),
        }
    }

    fn applies(&self, packet: &Packet<'a>, checksum: &Checksum) -> bool {
        let condition = checksum.condition.as_ref();
        condition.is_none_or(|condition| self.scope(packet, &[]).bool(condition))
    }

    /// Verifies the checksums of a parsed packet.
    pub(super) fn verify_checksums(&self, packet: &mut Packet<'a>) {
        for checksum in self.program.checksums.iter().filter(|checksum| checksum.verify) {
            if packet.headers.is_valid(Some(checksum.target.header)) && self.applies(packet, checksum) {
                let stored = number::low_u64(&packet.headers.raw(checksum.target).into());
                if self.checksum(packet, checksum) != stored {
                    packet.checksum_error = true;
                }
            }
        }
    }

    fn update_checksums(&self, packet: &mut Packet<'a>) {
        for checksum in self.program.checksums.iter().filter(|checksum| checksum.update) {
            let has_target = match checksum.kind {
                ChecksumKind::Ipv4 => packet.headers.is_valid(Some(checksum.target.header)),
                ChecksumKind::Calculation(_) => true,
            };
            if has_target && self.applies(packet, checksum) {
                let value = BigInt::from(self.checksum(packet, checksum));
                packet.headers.set(checksum.target, &value);
            }
        }
    }

    /// Emits the headers before the payload.
    pub(super) fn deparse(&mut self, packet: &mut Packet<'a>) -> Result<(), DropReason> {
        let program = self.program;
        self.update_checksums(packet);
        for statement in &program.deparser.statements {
            self.statements(packet, std::slice::from_ref(statement), &[])?;
        }
        let mut bits = Bits::default();
        for header in &program.deparser.order {
            if packet.headers.is_valid(Some(*header)) {
                packet.headers.emit(*header, &mut bits);
            }
        }
        let mut bytes = bits.into_bytes();
        bytes.append(&mut packet.data);
        packet.data = bytes;
        Ok(())
    }
}
