//! The head of a mask file: signer, identity of the file, and counts of written and reserved blocks.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::error::{BLOCK_MASKS, MaskFileError, in_file, unreadable};
use super::inode::{FILE_IDENTITY_BYTES, file_identity};
use crate::message::{KEY_ID_BYTES, KeyId};
use crate::scheme::Scheme;
use crate::store::machine::{MACHINE_BYTES, MachineId};

const MAGIC: &[u8; 4] = b"LWMK";
const VERSION: u8 = 2;
pub(super) const HEADER_BYTES: usize = 8 + KEY_ID_BYTES + FILE_ID_BYTES + MACHINE_BYTES + FILE_IDENTITY_BYTES;
pub(super) const FILE_ID_BYTES: usize = 16;
pub(super) const SLOT_OFFSETS: [u64; 2] = [512, 1024];
pub(super) const SLOT_BYTES: usize = 32;

/// Numbers of written and reserved blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Number of changes, which identifies the newer slot.
    pub(super) generation: u64,
    pub(super) reserved: u64,
    pub(super) written: u64,
}

impl Counts {
    /// Number of remaining masks.
    pub(super) fn masks(self) -> u64 {
        (self.written - self.reserved).saturating_mul(BLOCK_MASKS as u64)
    }
}

/// Checks that the file belongs to this signer and is not a copy. Returns the header, whether the inode has a counter,
/// and the counts.
pub(super) fn read_head(
    path: &Path,
    file: &File,
    scheme: Scheme,
    key_id: KeyId,
    machine: &MachineId,
) -> Result<([u8; HEADER_BYTES], bool, Counts), MaskFileError> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)
        .map_err(|error| unreadable(path, error))?;
    let identity = file_identity(file).map_err(in_file(path))?;
    let has_counter = check_header(path, &header, scheme, key_id, machine, &identity)?;
    Ok((header, has_counter, read_counts(path, file, &header)?))
}

/// The header of a new file.
pub(super) fn header(
    scheme: Scheme,
    has_counter: bool,
    key_id: KeyId,
    file_id: &[u8; FILE_ID_BYTES],
    machine: &MachineId,
    identity: &[u8; FILE_IDENTITY_BYTES],
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let parts = [
        MAGIC.as_slice(),
        &[VERSION, scheme.number(), u8::from(has_counter), 0],
        &key_id.0,
        file_id,
        machine.as_bytes(),
        identity,
    ];
    for (byte, source_byte) in header.iter_mut().zip(parts.concat()) {
        *byte = source_byte;
    }
    header
}

/// Checks that the file belongs to this signer and is not a copy. Returns whether the inode has a counter.
fn check_header(
    path: &Path,
    header: &[u8; HEADER_BYTES],
    scheme: Scheme,
    key_id: KeyId,
    machine: &MachineId,
    identity: &[u8; FILE_IDENTITY_BYTES],
) -> Result<bool, MaskFileError> {
    let not_a_mask_file = || MaskFileError::NotAMaskFile {
        path: path.to_owned(),
    };
    let (head, rest) = header.split_first_chunk::<8>().ok_or_else(not_a_mask_file)?;
    let (file_signer, rest) = rest
        .split_first_chunk::<KEY_ID_BYTES>()
        .ok_or_else(not_a_mask_file)?;
    let (_, rest) = rest
        .split_first_chunk::<FILE_ID_BYTES>()
        .ok_or_else(not_a_mask_file)?;
    let (file_machine, stored_identity) = rest
        .split_first_chunk::<MACHINE_BYTES>()
        .ok_or_else(not_a_mask_file)?;
    let [magic @ .., version, file_scheme, has_counter, _] = *head;
    if magic != *MAGIC {
        return Err(not_a_mask_file());
    }
    if version != VERSION {
        return Err(MaskFileError::UnsupportedVersion {
            path: path.to_owned(),
            version,
        });
    }
    if KeyId(*file_signer) != key_id || file_scheme != scheme.number() {
        return Err(MaskFileError::OtherSigner {
            path: path.to_owned(),
            found: KeyId(*file_signer),
            expected: key_id,
        });
    }
    if file_machine != machine.as_bytes() {
        return Err(MaskFileError::OtherMachine {
            path: path.to_owned(),
        });
    }
    if stored_identity != identity {
        return Err(MaskFileError::Copied {
            path: path.to_owned(),
        });
    }
    Ok(has_counter != 0)
}

/// Writes counts into the older slot, not durably.
pub(super) fn write_slot(
    path: &Path,
    file: &File,
    header: &[u8; HEADER_BYTES],
    counts: Counts,
) -> Result<(), MaskFileError> {
    let [even, odd] = SLOT_OFFSETS;
    let offset = if counts.generation.is_multiple_of(2) {
        even
    } else {
        odd
    };
    file.write_all_at(&encode_slot(header, counts), offset)
        .map_err(in_file(path))
}

/// Encodes the counts, with a hash that binds the counts to the header.
fn encode_slot(header: &[u8; HEADER_BYTES], counts: Counts) -> [u8; SLOT_BYTES] {
    let numbers = [counts.generation, counts.reserved, counts.written].map(u64::to_le_bytes);
    let check = Sha256::new()
        .chain_update(header)
        .chain_update(numbers.as_flattened())
        .finalize();
    let mut slot = [0; SLOT_BYTES];
    for (byte, source_byte) in slot.iter_mut().zip(numbers.as_flattened().iter().chain(&check)) {
        *byte = *source_byte;
    }
    slot
}

/// The counts of the newer valid slot. Each invalid slot adds one reserved block, since the slot may come from a torn
/// reservation.
fn read_counts(path: &Path, file: &File, header: &[u8; HEADER_BYTES]) -> Result<Counts, MaskFileError> {
    let mut newest: Option<Counts> = None;
    let mut invalid_slots = 0;
    for offset in SLOT_OFFSETS {
        let mut bytes = [0; SLOT_BYTES];
        file.read_exact_at(&mut bytes, offset)
            .map_err(|error| unreadable(path, error))?;
        let (numbers, _) = bytes.as_chunks::<8>();
        let [generation, reserved, written, _] = *numbers else {
            continue;
        };
        let [generation, reserved, written] = [generation, reserved, written].map(u64::from_le_bytes);
        let counts = Counts {
            generation,
            reserved,
            written,
        };
        if encode_slot(header, counts) != bytes || reserved > written {
            invalid_slots += 1;
        } else if newest.is_none_or(|newest| generation > newest.generation) {
            newest = Some(counts);
        }
    }
    let newest = newest.ok_or(MaskFileError::Damaged {
        path: path.to_owned(),
        problem: "both slots of counts are invalid",
    })?;
    Ok(Counts {
        reserved: (newest.reserved + invalid_slots).min(newest.written),
        ..newest
    })
}
