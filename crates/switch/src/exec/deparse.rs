//! Deparser: hashes, checksums and emitted headers.

use super::bits::{load1, load4};
use super::field_access::get;
use super::machine::Machine;
use crate::calculations::InternetSum;
use crate::lower::plan::{InputStep, WordRange};
use crate::program::ids::HeaderId;
use crate::program::{Checksum, ChecksumKind};

/// Offset of the checksum in an IPv4 header, bytes.
const IPV4_CHECKSUM_OFFSET: usize = 10;

impl Machine<'_> {
    /// Computes a calculation over the packet.
    pub(super) fn hash(&mut self, calculation: usize) -> u64 {
        if let Some(Some(stretches)) = self.environment.executable.sums.get(calculation) {
            return u64::from(self.sum(stretches));
        }
        let Some(found) = self.environment.calculations.get(calculation) else {
            return 0;
        };
        self.gather_input(calculation);
        found.compute(self.scratch.input.bytes())
    }

    /// Internet checksum over ranges of whole words, summed in place.
    fn sum(&self, stretches: &[WordRange]) -> u16 {
        let arena = &self.context.arena;
        let mut sum = InternetSum::default();
        for WordRange { valid, start, end } in stretches {
            if valid.is_none_or(|valid| load1(arena, valid) != 0) {
                sum.add(arena.get(*start as usize..*end as usize).unwrap_or(&[]));
            }
        }
        sum.finish()
    }

    fn gather_input(&mut self, calculation: usize) {
        let executable = self.environment.executable;
        self.scratch.input.clear();
        let steps = executable.inputs.get(calculation).map_or(&[][..], Vec::as_slice);
        for step in steps {
            let arena = &self.context.arena;
            match step {
                InputStep::Bits { valid, bit, bits } => {
                    if valid.is_none_or(|valid| load1(arena, valid) != 0) {
                        self.scratch.input.append(arena, *bit as usize, *bits as usize);
                    }
                }
                InputStep::Variable { valid, length, bytes } => {
                    if load1(arena, *valid) != 0 {
                        let bits = load4(arena, *length) as usize;
                        self.scratch.input.append(arena, *bytes as usize * 8, bits);
                    }
                }
                InputStep::Constant(bytes, bits) => {
                    let skip = bytes.len() * 8 - *bits as usize;
                    self.scratch.input.append(bytes, skip, *bits as usize);
                }
                InputStep::Header(header) => self.append_header(*header),
                InputStep::Payload => {
                    // In BMv2 a truncation takes effect immediately for the payload.
                    let payload = self.payload();
                    let length = payload.len().min(self.context.bytes_max);
                    self.scratch
                        .input
                        .append_bytes(payload.get(..length).unwrap_or(payload));
                }
            }
        }
    }

    /// Appends a header in wire format if it is valid.
    fn append_header(&mut self, header: HeaderId) {
        if !self.is_valid(header) {
            return;
        }
        let Some(place) = self.environment.executable.layout.header(header) else {
            return;
        };
        let arena = &self.context.arena;
        let start = place.start as usize * 8;
        let all = place.bytes as usize * 8;
        let Some(variable) = place.variable else {
            if !place.metadata {
                return self.scratch.input.append(arena, start, all);
            }
            // Metadata fields have separate bytes; the hidden validity field is not emitted.
            for field in place.fields.iter().rev().skip(1).rev() {
                let bit = field.end as usize * 8 - usize::from(field.shift) - field.bits as usize;
                self.scratch.input.append(arena, bit, field.bits as usize);
            }
            return;
        };
        let before = variable.bits_before as usize;
        let bits = load4(arena, variable.length).min(variable.bits_max) as usize;
        self.scratch.input.append(arena, start, before);
        self.scratch
            .input
            .append(arena, variable.bytes as usize * 8, bits);
        self.scratch.input.append(arena, start + before, all - before);
    }

    /// Compares a computed checksum with the packet's field.
    pub(super) fn verify(&mut self, checksum: u32) {
        let executable = self.environment.executable;
        let Some(checksum) = executable.program.checksums.get(checksum as usize) else {
            return;
        };
        let computed = self.compute(checksum);
        let place = executable.layout.field(checksum.target);
        if place.is_some_and(|place| get(&self.context.arena, place) != computed) {
            self.context.checksum_error = true;
        }
    }

    /// Stores a checksum.
    pub(super) fn update(&mut self, checksum: u32) {
        let executable = self.environment.executable;
        let Some(checksum) = executable.program.checksums.get(checksum as usize) else {
            return;
        };
        let computed = self.compute(checksum);
        match executable.layout.field(checksum.target) {
            Some(place) if place.saturating => {
                let (header, field) = (checksum.target.header, checksum.target.field);
                self.set_field(header, field, &computed.into());
            }
            Some(place) => self.store_field(place, computed),
            None => {}
        }
    }

    fn compute(&mut self, checksum: &Checksum) -> u64 {
        match checksum.kind {
            ChecksumKind::Calculation(calculation) => self.hash(calculation.index()),
            ChecksumKind::Ipv4 => {
                self.scratch.input.clear();
                self.append_header(checksum.target.header);
                let mut header = self.scratch.input.bytes().to_vec();
                for byte in header.iter_mut().skip(IPV4_CHECKSUM_OFFSET).take(2) {
                    *byte = 0;
                }
                u64::from(crate::calculations::checksum16(&header))
            }
        }
    }

    /// Updates checksums, runs the deparser's statements, and appends the valid headers to `out`.
    pub fn deparse(&mut self, out: &mut Vec<u8>) {
        let executable = self.environment.executable;
        self.run(executable.update);
        if !executable.program.deparser.statements.is_empty() {
            self.run(executable.deparser);
        }
        for header in &executable.program.deparser.order {
            let Some(place) = executable.layout.headers.get(header.index()) else {
                continue;
            };
            if !place.metadata && load1(&self.context.arena, place.valid) == 0 {
                continue;
            }
            if place.variable.is_none() && !place.metadata {
                let range = place.start as usize..(place.start + place.bytes) as usize;
                out.extend_from_slice(self.context.arena.get(range).unwrap_or(&[]));
                continue;
            }
            self.scratch.input.clear();
            self.append_header(*header);
            out.extend_from_slice(self.scratch.input.bytes());
        }
    }
}
