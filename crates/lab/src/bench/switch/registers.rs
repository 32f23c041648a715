//! The cost of evidence per register write: packets that write a cell, alternating on a switch with and without evidence. With
//! evidence the switch stores the old value, replaces this value in the array's set hash before the packet is sent, and
//! computes a new state. The program reads the state's digests. The lower bound is the set hash alone.

use std::time::Instant;

use linewarden_evidence::state::{ArrayId, DirtyCells, MeasuredState, Stability, StateError, program_digest};
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_switch::switch::Worker;

use super::programs::Programs;
use super::{Size, evidence, memory};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Bits of a cell.
const WIDTH: u32 = 32;
/// Cells of the large array.
const CELLS: u32 = 65_536;
/// Padding after the fields that the program reads, for a frame of 96 bytes.
const PADDING_BYTES: usize = 25;
/// An odd factor, so that every cell of an array is written.
const SPREAD: u32 = 0x9e37_79b1;

/// Measures the rows `register_write.*`.
///
/// # Errors
/// An error of the program or of the measurement, or a lost packet.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("register writes with evidence", None);
    let mut array = MeasuredArray::new(CELLS)?;
    let (mut large, mut small) = (
        RegisterWrites::new(2, programs)?,
        RegisterWrites::new(1, programs)?,
    );
    let mut overwriting = RegisterWrites::new(2, programs)?;
    overwriting.fill()?;
    let mut fold_ns = f64::MAX;
    for _ in 0..size.runs {
        large.run(size.blocks)?;
        small.run(size.blocks)?;
        overwriting.run(size.blocks)?;
        fold_ns = fold_ns.min(array.fold_ns(size.blocks)?);
    }
    rows.extend([
        Row::lower("register_write.ns", large.ns(), "ns", Some(1_500.0)),
        Row::lower(
            "register_write.cost_65536_over_16",
            large.ns() / small.ns(),
            "ratio",
            Some(1.2),
        ),
        Row::lower("register_write.again_ns", overwriting.ns(), "ns", None),
        Row::fact("register_write.plain_packet_ns", large.plain_ns, "ns"),
        Row::fact("register_write.evidence_packet_ns", large.evidence_ns, "ns"),
        Row::fact("register_write.fold_ns", fold_ns, "ns"),
    ]);
    Ok(())
}

/// Packets that write to one array of `p4/features/evidence.p4`.
struct RegisterWrites {
    /// The array that frames select: 1 has 16 cells, 2 has 65,536.
    array_number: u8,
    plain: Worker,
    evidence: Worker,
    write_count: u32,
    /// The minimum time per packet.
    plain_ns: f64,
    evidence_ns: f64,
}

impl RegisterWrites {
    fn new(array_number: u8, programs: &Programs) -> Result<Self, BenchError> {
        let mut attested = programs.switch("evidence", "")?;
        evidence::attest(&mut attested)?;
        Ok(Self {
            array_number,
            plain: programs.switch("evidence", "")?.worker(),
            evidence: attested.worker(),
            write_count: 0,
            plain_ns: f64::MAX,
            evidence_ns: f64::MAX,
        })
    }

    /// Writes new values to cells all over the array.
    fn run(&mut self, writes: u32) -> Result<(), BenchError> {
        let numbers = self.write_count + 1..=self.write_count + writes;
        let frames: Vec<_> = numbers.map(|number| self.frame(number)).collect();
        self.write_count += writes;
        let plain = memory::ns_per_packet(&mut self.plain, &frames, writes)?;
        self.plain_ns = self.plain_ns.min(plain);
        let evidence = memory::ns_per_packet(&mut self.evidence, &frames, writes)?;
        self.evidence_ns = self.evidence_ns.min(evidence);
        Ok(())
    }

    /// Writes every cell of the array once, so that each later write replaces a value in the set hash.
    fn fill(&mut self) -> Result<(), BenchError> {
        let cells = self.cells();
        let frames: Vec<_> = (1..=cells).map(|number| self.frame(number)).collect();
        self.write_count += cells;
        memory::ns_per_packet(&mut self.plain, &frames, cells)?;
        memory::ns_per_packet(&mut self.evidence, &frames, cells)?;
        Ok(())
    }

    fn cells(&self) -> u32 {
        if self.array_number == 2 { CELLS } else { 16 }
    }

    fn frame(&self, number: u32) -> Vec<u8> {
        let cells = self.cells();
        let index = number.wrapping_mul(SPREAD) % cells;
        let mut frame = vec![2; 12];
        frame.extend([0x88, 0xb5, self.array_number]);
        frame.extend(index.to_be_bytes());
        frame.extend(number.to_be_bytes());
        // Space for the digests that the program writes into the frame.
        frame.extend([0; 48]);
        frame.extend([0; PADDING_BYTES]);
        frame
    }

    /// The additional time of evidence per packet.
    fn ns(&self) -> f64 {
        self.evidence_ns - self.plain_ns
    }
}

/// A register array and its measurement.
struct MeasuredArray {
    cells: Vec<u32>,
    dirty: DirtyCells,
    measured: MeasuredState,
    id: ArrayId,
    writes: u32,
}

impl MeasuredArray {
    fn new(size: u32) -> Result<Self, StateError> {
        let mut measured = MeasuredState::new(SwitchId(1), BootCount(1), program_digest(b"none"));
        let id = measured.declare_array("flows", WIDTH, size, Stability::Static)?;
        Ok(Self {
            cells: vec![0; size as usize],
            dirty: DirtyCells::new(WIDTH, size),
            measured,
            id,
            writes: 0,
        })
    }

    /// Writes to cells all over the array and measures each write before the next write. Returns ns per write.
    fn fold_ns(&mut self, writes: u32) -> Result<f64, StateError> {
        let start = Instant::now();
        for _ in 0..writes {
            self.writes = self.writes.wrapping_add(1);
            let index = self.writes.wrapping_mul(SPREAD) as usize % self.cells.len();
            if let Some(cell) = self.cells.get_mut(index) {
                self.dirty.mark_u64(index as u32, u64::from(*cell));
                *cell = self.writes;
            }
            let cells = &self.cells;
            self.measured.fold(self.id, &mut self.dirty, |index, out| {
                let value = cells.get(index as usize).copied().unwrap_or_default();
                out.copy_from_slice(&value.to_be_bytes());
            })?;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(writes))
    }
}
