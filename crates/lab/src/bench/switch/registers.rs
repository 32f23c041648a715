//! What evidence costs a register write: remembering what the cell held, and taking it out of the array's set hash for what it holds
//! now, after every single write.

use std::time::Instant;

use linewarden_evidence::state::{ArrayId, DirtyCells, Measured, Stability, StateError, program_digest};
use linewarden_evidence::{BootCount, SwitchId};

use super::Size;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Bits of a cell.
const WIDTH: u32 = 32;
/// Cells of the large array and of the small one.
const SIZES: [u32; 2] = [65_536, 16];

/// `register_write.*`
///
/// # Errors
/// Those of the measurement's own state.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    progress("register writes that are measured", None);
    let [large, small] = SIZES;
    let (mut large, mut small) = (Array::new(large)?, Array::new(small)?);
    let (mut large_ns, mut small_ns) = (f64::MAX, f64::MAX);
    for _ in 0..size.runs {
        large_ns = large_ns.min(large.fold_ns(size.blocks)?);
        small_ns = small_ns.min(small.fold_ns(size.blocks)?);
    }
    rows.extend([
        Row::lower("register_write.fold_ns", large_ns, "ns", None),
        Row::lower(
            "register_write.fold_65536_over_16",
            large_ns / small_ns,
            "ratio",
            None,
        ),
    ]);
    Ok(())
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
            // An odd factor: every cell has its turn.
            let index = self.writes.wrapping_mul(0x9e37_79b1) as usize % self.cells.len();
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
