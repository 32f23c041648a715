//! What evidence costs a register write: a packet that writes a cell, on a switch with evidence and on one without, in turns. Evidence
//! remembers what the cell held, and before the packet leaves takes it out of the array's set hash for what it holds now, and makes
//! a new state of the result, whose digests the program reads. Beside it the floor: the set hash alone.

use std::time::Instant;

use linewarden_evidence::state::{ArrayId, DirtyCells, Measured, Stability, StateError, program_digest};
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
/// Bytes behind what the program reads of a frame, so that it is one of 96.
const PADDING_BYTES: usize = 25;
/// An odd factor: every cell of an array has its turn.
const SPREAD: u32 = 0x9e37_79b1;

/// `register_write.*`
///
/// # Errors
/// Those of the program and of the measurement; packets that do not come back.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("register writes that are measured", None);
    let mut array = Array::new(CELLS)?;
    let (mut large, mut small) = (Writes::new(2, programs)?, Writes::new(1, programs)?);
    let mut again = Writes::new(2, programs)?;
    again.fill()?;
    let mut fold = f64::MAX;
    for _ in 0..size.runs {
        large.run(size.blocks)?;
        small.run(size.blocks)?;
        again.run(size.blocks)?;
        fold = fold.min(array.fold_ns(size.blocks)?);
    }
    rows.extend([
        Row::lower("register_write.ns", large.ns(), "ns", Some(1_500.0)),
        Row::lower(
            "register_write.cost_65536_over_16",
            large.ns() / small.ns(),
            "ratio",
            Some(1.2),
        ),
        Row::lower("register_write.again_ns", again.ns(), "ns", None),
        Row::fact("register_write.plain_packet_ns", large.plain_ns, "ns"),
        Row::fact("register_write.evidence_packet_ns", large.evidence_ns, "ns"),
        Row::fact("register_write.fold_ns", fold, "ns"),
    ]);
    Ok(())
}

/// Packets that write to one array of `p4/features/evidence.p4`.
struct Writes {
    /// What a frame asks for: 1 the array of 16 cells, 2 that of 65,536.
    what: u8,
    plain: Worker,
    evidence: Worker,
    written: u32,
    /// The least of the runs, a packet.
    plain_ns: f64,
    evidence_ns: f64,
}

impl Writes {
    fn new(what: u8, programs: &Programs) -> Result<Self, BenchError> {
        let mut attested = programs.switch("evidence", "")?;
        evidence::attest(&mut attested)?;
        Ok(Self {
            what,
            plain: programs.switch("evidence", "")?.worker(),
            evidence: attested.worker(),
            written: 0,
            plain_ns: f64::MAX,
            evidence_ns: f64::MAX,
        })
    }

    /// So many writes of values that no cell has held, to cells all over the array.
    fn run(&mut self, writes: u32) -> Result<(), BenchError> {
        let numbers = self.written + 1..=self.written + writes;
        let frames: Vec<_> = numbers.map(|number| self.frame(number)).collect();
        self.written += writes;
        let plain = memory::ns_per_packet(&mut self.plain, &frames, writes)?;
        self.plain_ns = self.plain_ns.min(plain);
        let evidence = memory::ns_per_packet(&mut self.evidence, &frames, writes)?;
        self.evidence_ns = self.evidence_ns.min(evidence);
        Ok(())
    }

    /// One write to every cell of the array: each later one takes a value out of the set and puts one in.
    fn fill(&mut self) -> Result<(), BenchError> {
        let cells = self.cells();
        let frames: Vec<_> = (1..=cells).map(|number| self.frame(number)).collect();
        self.written += cells;
        memory::ns_per_packet(&mut self.plain, &frames, cells)?;
        memory::ns_per_packet(&mut self.evidence, &frames, cells)?;
        Ok(())
    }

    fn cells(&self) -> u32 {
        if self.what == 2 { CELLS } else { 16 }
    }

    fn frame(&self, number: u32) -> Vec<u8> {
        let cells = self.cells();
        let index = number.wrapping_mul(SPREAD) % cells;
        let mut frame = vec![2; 12];
        frame.extend([0x88, 0xb5, self.what]);
        frame.extend(index.to_be_bytes());
        frame.extend(number.to_be_bytes());
        // Where the program writes the digests that it reads.
        frame.extend([0; 48]);
        frame.extend([0; PADDING_BYTES]);
        frame
    }

    /// What evidence adds to a packet that writes.
    fn ns(&self) -> f64 {
        self.evidence_ns - self.plain_ns
    }
}

/// An array of registers and what is measured of it.
struct Array {
    cells: Vec<u32>,
    dirty: DirtyCells,
    measured: Measured,
    id: ArrayId,
    writes: u32,
}

impl Array {
    fn new(size: u32) -> Result<Self, StateError> {
        let mut measured = Measured::new(SwitchId(1), BootCount(1), program_digest(b"none"));
        let id = measured.declare_array("flows", WIDTH, size, Stability::Static)?;
        Ok(Self {
            cells: vec![0; size as usize],
            dirty: DirtyCells::new(WIDTH, size),
            measured,
            id,
            writes: 0,
        })
    }

    /// So many writes, to cells all over the array, each measured before the next; ns a write.
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
