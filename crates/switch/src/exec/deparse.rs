//! Deparser: hashes, checksums and emitted headers.

use super::bits::{load1, load4};
use super::field_access::get;
use super::machine::Machine;
use crate::calculations::InternetSum;
use crate::executable::plan::{InputStep, WordRange};
use crate::program::ids::HeaderId;
use crate::program::{Checksum, ChecksumKind};

/// Offset of the checksum in an IPv4 header, bytes.
const IPV4_CHECKSUM_OFFSET: usize = 10;

impl Machine<'_> {
    /// Returns the result of a calculation over the packet.
    pub(super) fn hash(&mut self, calculation: usize) -> u64 {
        if let Some(Some(ranges)) = self.environment.executable.sums.get(calculation) {
            return u64::from(self.sum(ranges));
        }
        let Some(algorithm) = self.environment.calculations.get(calculation) else {
            return 0;
        };
        self.gather_input(calculation);
        algorithm.compute(self.scratch.input.bytes())
    }

    /// Computes the Internet checksum over ranges of whole words, without a copy of the words.
    fn sum(&self, ranges: &[WordRange]) -> u16 {
        let arena = &self.context.arena;
        let mut sum = InternetSum::default();
        for WordRange { valid, start, end } in ranges {
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
                    // As in BMv2, a truncation takes effect immediately for the payload.
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
        let Some(layout) = self.environment.executable.layout.header(header) else {
            return;
        };
        let arena = &self.context.arena;
        let start = layout.start as usize * 8;
        let header_bits = layout.bytes as usize * 8;
        let Some(variable) = layout.variable else {
            if !layout.metadata {
                return self.scratch.input.append(arena, start, header_bits);
            }
            // Metadata fields have bytes of their own; the hidden validity field is not emitted.
            for field in layout.fields.iter().rev().skip(1).rev() {
                let bit = field.end as usize * 8 - usize::from(field.shift) - field.bits as usize;
                self.scratch.input.append(arena, bit, field.bits as usize);
            }
            return;
        };
        let bits_before = variable.bits_before as usize;
        let bits = load4(arena, variable.length).min(variable.bits_max) as usize;
        self.scratch.input.append(arena, start, bits_before);
        self.scratch
            .input
            .append(arena, variable.bytes as usize * 8, bits);
        self.scratch
            .input
            .append(arena, start + bits_before, header_bits - bits_before);
    }

    /// Computes a checksum; records an error if the packet's field has a different value.
    pub(super) fn verify(&mut self, checksum: u32) {
        let executable = self.environment.executable;
        let Some(checksum) = executable.program.checksums.get(checksum as usize) else {
            return;
        };
        let computed = self.compute(checksum);
        let target = executable.layout.field(checksum.target);
        if target.is_some_and(|target| get(&self.context.arena, target) != computed) {
            self.context.checksum_error = true;
        }
    }

    /// Computes and stores a checksum.
    pub(super) fn update(&mut self, checksum: u32) {
        let executable = self.environment.executable;
        let Some(checksum) = executable.program.checksums.get(checksum as usize) else {
            return;
        };
        let computed = self.compute(checksum);
        match executable.layout.field(checksum.target) {
            Some(target) if target.saturating => {
                let (header, field) = (checksum.target.header, checksum.target.field);
                self.set_field(header, field, &computed.into());
            }
            Some(target) => self.store_field(target, computed),
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
            let Some(layout) = executable.layout.headers.get(header.index()) else {
                continue;
            };
            if !layout.metadata && load1(&self.context.arena, layout.valid) == 0 {
                continue;
            }
            if layout.variable.is_none() && !layout.metadata {
                let range = layout.start as usize..(layout.start + layout.bytes) as usize;
                out.extend_from_slice(self.context.arena.get(range).unwrap_or(&[]));
                continue;
            }
            self.scratch.input.clear();
            self.append_header(*header);
            out.extend_from_slice(self.scratch.input.bytes());
        }
    }
}
