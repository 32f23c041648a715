//! Credentials of devices, and their byte form inside the seal.

use std::ops::Range;

use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Length of a pool row inside the seal, bytes: `challenge[8] | row_key[16]`.
pub const POOL_ROW_BYTES: usize = 24;
/// Length of a key-mode credential inside the seal, bytes: `row_key[16]`.
pub const KEY_BYTES: usize = 16;
/// Maximum number of rows of a device; the sealed credentials of such a device take 24 MiB.
pub const POOL_ROWS_MAX: usize = 1 << 20;

/// One enrolled challenge-response pair (LAP/1 1.1, pool mode).
#[derive(Clone, Debug, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct PoolRow {
    /// Seed that the device expands to its PUF's challenge; public.
    pub challenge: [u8; 8],
    /// Key derived from the error-corrected response; never leaves the controller.
    pub row_key: RowKey,
}

/// A device's credentials, wiped from memory when dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Rows of a strong PUF, each used once.
    Pool {
        /// Number of the first row: 0, or higher if the rows follow an earlier pool of the same device.
        first_idx: RowIndex,
        /// The rows `first_idx..first_idx + rows.len()`.
        rows: Vec<PoolRow>,
    },
    /// The key of a weak PUF.
    Key(RowKey),
}

impl Credentials {
    /// A pool whose first row is number 0.
    #[must_use]
    pub fn pool(rows: Vec<PoolRow>) -> Self {
        Self::Pool {
            first_idx: RowIndex(0),
            rows,
        }
    }

    /// The mode of these credentials.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Pool { .. } => Mode::Pool,
            Self::Key(_) => Mode::Key,
        }
    }

    /// Row `idx` of a pool; `None` if the pool has no such row, and in key mode.
    #[must_use]
    pub fn row(&self, idx: RowIndex) -> Option<&PoolRow> {
        match self {
            Self::Pool { first_idx, rows } => {
                rows.get(usize::try_from(idx.0.checked_sub(first_idx.0)?).ok()?)
            }
            Self::Key(_) => None,
        }
    }

    /// The row numbers of a pool; empty in key mode, where `idx` is only a counter.
    #[must_use]
    pub fn indices(&self) -> Range<u32> {
        match self {
            Self::Pool { first_idx, rows } => {
                first_idx.0
                    ..first_idx
                        .0
                        .saturating_add(u32::try_from(rows.len()).unwrap_or(u32::MAX))
            }
            Self::Key(_) => 0..0,
        }
    }

    /// The positions of two rows with the same key, which would be used twice; `None` if all keys differ.
    pub(crate) fn repeated_row(&self) -> Option<(usize, usize)> {
        let Self::Pool { rows, .. } = self else {
            return None;
        };
        let key = |position: &usize| rows.get(*position).map(|row| row.row_key.as_bytes());
        // Positions are sorted instead of keys, so that no copy of a key remains in memory.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| key(a).cmp(&key(b)));
        let same = order
            .windows(2)
            .find(|pair| matches!(pair, [a, b] if key(a) == key(b)));
        same.and_then(|pair| Some((*pair.first()?, *pair.last()?)))
    }

    /// Length of the byte form, bytes.
    pub(crate) fn encoded_len(&self) -> usize {
        Self::encoded_len_of(self.mode(), &self.indices())
    }

    /// Length of the byte form for this mode and these rows, bytes.
    pub(crate) fn encoded_len_of(mode: Mode, indices: &Range<u32>) -> usize {
        match mode {
            Mode::Pool => indices.len() * POOL_ROW_BYTES,
            Mode::Key => KEY_BYTES,
        }
    }

    /// Appends the byte form. `out` must have enough capacity: reallocation would leave copies of keys in memory.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Pool { rows, .. } => {
                for row in rows {
                    out.extend_from_slice(&row.challenge);
                    out.extend_from_slice(row.row_key.as_bytes());
                }
            }
            Self::Key(key) => out.extend_from_slice(key.as_bytes()),
        }
    }

    /// Decodes the byte form; the error names the problem.
    pub(crate) fn decode(mode: Mode, indices: &Range<u32>, bytes: &[u8]) -> Result<Self, String> {
        match mode {
            Mode::Key => {
                let key = <[u8; KEY_BYTES]>::try_from(bytes)
                    .map_err(|_| format!("{} B of credentials, expected {KEY_BYTES} B", bytes.len()))?;
                Ok(Self::Key(RowKey::from_bytes(key)))
            }
            Mode::Pool => {
                let (chunks, rest) = bytes.as_chunks::<POOL_ROW_BYTES>();
                if !rest.is_empty() || chunks.len() != indices.len() {
                    return Err(format!(
                        "{} B of credentials do not contain {} rows",
                        bytes.len(),
                        indices.len()
                    ));
                }
                let rows = chunks.iter().map(decode_row).collect();
                Ok(Self::Pool {
                    first_idx: RowIndex(indices.start),
                    rows,
                })
            }
        }
    }
}

fn decode_row(bytes: &[u8; POOL_ROW_BYTES]) -> PoolRow {
    let mut challenge = [0u8; 8];
    let mut key = [0u8; 16];
    challenge.copy_from_slice(&bytes[..8]);
    key.copy_from_slice(&bytes[8..]);
    let row = PoolRow {
        challenge,
        row_key: RowKey::from_bytes(key),
    };
    key.zeroize();
    row
}
