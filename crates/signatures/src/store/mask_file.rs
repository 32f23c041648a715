//! Mask files: each mask is returned once, even if the process or the machine crashes.
//!
//! | offset | |
//! |---|---|
//! | 0 | header: `LWMK`, version 2, scheme, 1 if the inode has a counter, a zero, signer's id, the file's own random id, machine, inode, birth, file system |
//! | 512, 1024 | two slots, each with the numbers of reserved and written blocks; the newer valid slot applies |
//! | 4096 | blocks of [`BLOCK_MASKS`] masks, sealed, each bound to the header and to its index |
//!
//! A block is *reserved*, durably, before it is read. After a crash, the next call takes the block after the reserved
//! block; the masks of the reserved block are lost and never used. A slot lies within one sector, and each write
//! replaces the older slot, so that a torn write leaves the newer slot intact. An invalid slot may come from the
//! reservation of one more block, so one block is skipped. Blocks that were read are overwritten.
//!
//! A copy of the file would return every mask a second time. The file therefore records its machine, its inode and,
//! where the file system provides them, the inode's birth time (inode numbers are reused) and the id of the file
//! system. A file with another identity is refused, so a mask file can only be moved within its file system.
//!
//! Earlier content can be written back into the same inode (`cp backup masks`). The inode therefore has a counter of
//! reserved blocks, in an [extended attribute](inode). Before a block is read, this counter and the counter in the
//! slots durably exceed the index of the block. After a crash, the two counters differ by at most one, and the greater
//! counter is valid. If the counter in the slots is lower than the inode's counter by more than one, earlier content
//! was written back, and the file is refused. A file that has lost the attribute is refused too. If the file system
//! supports no user attributes when the file is created, the inode has no counter, and content that is written back is
//! not detected.
//!
//! Not detected: attributes that are set back together with the content, and a whole machine or volume that is set back
//! (a restored image, a virtual machine resumed twice). In these cases, delete the file and make new masks.

mod error;
mod head;
mod inode;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use linewarden_files::seal::{SEAL_OVERHEAD_BYTES, Sealer};
use linewarden_files::{PrivateFileError, open_private, sync_parent};
use rustix::fs::{FallocateFlags, FlockOperation};
use zeroize::Zeroizing;

pub use self::error::{BLOCK_MASKS, MaskFileError};
use self::error::{in_file, unreadable};
use self::head::{Counts, FILE_ID_BYTES, HEADER_BYTES, header, read_head, write_slot};
use self::inode::{InodeCount, file_identity, read_count, remove_count, set_count};
use super::machine::MachineId;
use super::sealed::SealingKey;
use crate::message::{KeyId, MASK_NAME_BYTES};
use crate::ra::Mask;
use crate::scheme::Scheme;

const BLOCKS_OFFSET: u64 = 4096;

/// An open mask file, locked against other processes.
pub struct MaskFile {
    path: PathBuf,
    file: File,
    header: [u8; HEADER_BYTES],
    /// Whether the inode has a counter.
    has_inode_counter: bool,
    sealer: Sealer,
    modulus_bytes: usize,
    counts: Counts,
}

impl MaskFile {
    /// Creates a file without masks, mode 0600.
    ///
    /// # Errors
    /// The file exists, or writing failed.
    pub fn create(
        path: &Path,
        scheme: Scheme,
        key_id: KeyId,
        machine: &MachineId,
        sealing_key: &SealingKey,
    ) -> Result<Self, MaskFileError> {
        let io = in_file(path);
        let modulus_bytes = scheme.modulus_bytes().ok_or(MaskFileError::InvalidBlock)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(&io)?;
        lock(path, &file)?;
        let mut file_id = [0; FILE_ID_BYTES];
        getrandom::fill(&mut file_id).map_err(MaskFileError::Entropy)?;
        let identity = file_identity(&file).map_err(&io)?;
        let header = |has_counter| header(scheme, has_counter, key_id, &file_id, machine, &identity);
        let has_counter = set_count(&file, &header(true), 0).map_err(&io)?;
        let header = header(has_counter);
        let mut mask_file = Self {
            path: path.to_owned(),
            file,
            header,
            has_inode_counter: has_counter,
            sealer: sealing_key.sealer(key_id),
            modulus_bytes,
            counts: Counts {
                generation: 0,
                reserved: 0,
                written: 0,
            },
        };
        mask_file.file.write_all_at(&header, 0).map_err(&io)?;
        // Writes both slots: from now on, an invalid slot is a torn write, and not an unfinished file.
        mask_file.set_counts(0, 0)?;
        mask_file.set_counts(0, 0)?;
        sync_parent(path).map_err(&io)?;
        Ok(mask_file)
    }

    /// Opens the mask file of this signer.
    ///
    /// # Errors
    /// Reading or locking failed; other users can read the file; the file belongs to another signer or machine, is a copy, was rolled back,
    /// or is damaged.
    pub fn open(
        path: &Path,
        scheme: Scheme,
        key_id: KeyId,
        machine: &MachineId,
        sealing_key: &SealingKey,
    ) -> Result<Self, MaskFileError> {
        let modulus_bytes = scheme.modulus_bytes().ok_or(MaskFileError::InvalidBlock)?;
        let file = open_file(path, true)?;
        lock(path, &file)?;
        let (header, has_counter, counts) = read_head(path, &file, scheme, key_id, machine)?;
        let mut mask_file = Self {
            path: path.to_owned(),
            file,
            header,
            has_inode_counter: has_counter,
            sealer: sealing_key.sealer(key_id),
            modulus_bytes,
            counts,
        };
        mask_file.reconcile_counts()?;
        Ok(mask_file)
    }

    /// Whether the inode has a counter. It has none if the file system supports no user attributes. Without a counter,
    /// earlier content that is written back is not detected.
    #[must_use]
    pub fn detects_rollback(&self) -> bool {
        self.has_inode_counter
    }

    /// Number of masks that remain in this signer's file. Works even while another process uses the file: the file is
    /// neither locked nor changed.
    ///
    /// # Errors
    /// Reading failed; other users can read the file; the file belongs to another signer or machine, is a copy, or is damaged. Only
    /// [`MaskFile::open`] detects a rollback.
    pub fn masks_left(
        path: &Path,
        scheme: Scheme,
        key_id: KeyId,
        machine: &MachineId,
    ) -> Result<u64, MaskFileError> {
        let file = open_file(path, false)?;
        let (_, _, counts) = read_head(path, &file, scheme, key_id, machine)?;
        Ok(counts.masks())
    }

    /// Number of remaining masks.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.counts.masks()
    }

    /// Appends a block of masks, durably.
    ///
    /// # Errors
    /// The number of masks is not [`BLOCK_MASKS`], a mask has another modulus size than the file, or writing failed.
    pub fn append(&mut self, masks: &[Mask]) -> Result<(), MaskFileError> {
        if masks.len() != BLOCK_MASKS || masks.iter().any(|mask| mask.beta().len() != self.modulus_bytes) {
            return Err(MaskFileError::InvalidBlock);
        }
        let index = self.counts.written;
        let blob = self
            .sealer
            .seal(&self.block_context(index), self.plain_bytes(), |out| {
                for mask in masks {
                    out.extend_from_slice(mask.name());
                    out.extend_from_slice(mask.beta());
                }
            })
            .map_err(MaskFileError::Entropy)?;
        let io = in_file(&self.path);
        self.file.write_all_at(&blob, self.offset(index)).map_err(&io)?;
        self.file.sync_data().map_err(&io)?;
        self.set_counts(self.counts.reserved, index + 1)
    }

    /// Takes the masks of the next block; `None` if no block is left. The block is durably reserved first, so that no process gets the same
    /// masks again, even after a crash.
    ///
    /// # Errors
    /// Writing or reading failed, or the block is damaged: then the block is lost, and the next call takes the next
    /// block.
    pub fn take_block(&mut self) -> Result<Option<Vec<Mask>>, MaskFileError> {
        let index = self.counts.reserved;
        if index == self.counts.written {
            return Ok(None);
        }
        self.set_counts(index + 1, self.counts.written)?;
        let mut blob = vec![0; self.plain_bytes() + SEAL_OVERHEAD_BYTES];
        self.file
            .read_exact_at(&mut blob, self.offset(index))
            .map_err(|error| unreadable(&self.path, error))?;
        let damaged = |problem| MaskFileError::Damaged {
            path: self.path.clone(),
            problem,
        };
        let plain = self
            .sealer
            .open(&self.block_context(index), &blob)
            .map_err(|_| damaged("opening a block with this sealing key failed"))?;
        self.wipe(index, &mut blob)?;
        let masks: Option<Vec<Mask>> = plain
            .chunks_exact(MASK_NAME_BYTES + self.modulus_bytes)
            .map(|mask| {
                let (name, beta) = mask.split_first_chunk()?;
                Some(Mask::from_unused_parts(*name, Zeroizing::new(beta.to_vec())))
            })
            .collect();
        masks.map(Some).ok_or_else(|| damaged("a block is truncated"))
    }

    /// Context to which a block is bound.
    fn block_context(&self, index: u64) -> Vec<u8> {
        [self.header.as_slice(), &index.to_le_bytes()].concat()
    }

    fn plain_bytes(&self) -> usize {
        BLOCK_MASKS * (MASK_NAME_BYTES + self.modulus_bytes)
    }

    fn offset(&self, index: u64) -> u64 {
        BLOCKS_OFFSET + index * (self.plain_bytes() + SEAL_OVERHEAD_BYTES) as u64
    }

    /// Overwrites a block, and returns its space to the file system if possible.
    fn wipe(&self, index: u64, blob: &mut [u8]) -> Result<(), MaskFileError> {
        blob.fill(0);
        let io = in_file(&self.path);
        self.file.write_all_at(blob, self.offset(index)).map_err(&io)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // The block is already overwritten with zeros; a file system without holes keeps the zeros.
        let _ = rustix::fs::fallocate(&self.file, punch, self.offset(index), blob.len() as u64);
        Ok(())
    }

    /// Sets the inode's counter of reserved blocks and the counter in the slots to the greater of the two, durably.
    /// Otherwise a second crash could leave counters that differ by more than one.
    fn reconcile_counts(&mut self) -> Result<(), MaskFileError> {
        if !self.has_inode_counter {
            return Ok(());
        }
        let invalid_counter = |problem| MaskFileError::InvalidCounter {
            path: self.path.clone(),
            problem,
        };
        let Counts {
            reserved: in_slots,
            written,
            ..
        } = self.counts;
        let in_inode = match read_count(&self.file, &self.header).map_err(in_file(&self.path))? {
            InodeCount::Value(in_inode) => in_inode,
            InodeCount::Absent => return Err(invalid_counter("gone")),
            InodeCount::Invalid => return Err(invalid_counter("the counter of another file")),
        };
        if in_inode == in_slots {
            return Ok(());
        }
        if in_inode > in_slots.saturating_add(1) || in_inode > written {
            return Err(MaskFileError::RolledBack {
                path: self.path.clone(),
                content: in_slots,
                inode: in_inode,
            });
        }
        self.set_counts(in_inode.max(in_slots), written)?;
        if in_inode < in_slots {
            remove_count(&self.file, in_inode);
        }
        Ok(())
    }

    /// Writes new counts into the older slot, and a new counter of reserved blocks to the inode. Slot and counter are
    /// durable on return; after an error, each of the two has either the new or the old value. One sync covers both, so
    /// a crash can leave them different: then the greater counter is valid.
    fn set_counts(&mut self, reserved: u64, written: u64) -> Result<(), MaskFileError> {
        let previous = self.counts.reserved;
        let counts = Counts {
            generation: self.counts.generation + 1,
            reserved,
            written,
        };
        let io = in_file(&self.path);
        if self.has_inode_counter && !set_count(&self.file, &self.header, reserved).map_err(&io)? {
            return Err(MaskFileError::InvalidCounter {
                path: self.path.clone(),
                problem: "not supported by the file system any more",
            });
        }
        write_slot(&self.path, &self.file, &self.header, counts)?;
        // Calls fsync, since fdatasync does not cover attributes.
        self.file.sync_all().map_err(&io)?;
        self.counts = counts;
        if self.has_inode_counter && previous != reserved {
            remove_count(&self.file, previous);
        }
        Ok(())
    }
}

impl Drop for MaskFile {
    /// Unlocks explicitly: a child process that is being started shares the open file until it executes its own program.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn open_file(path: &Path, writable: bool) -> Result<File, MaskFileError> {
    open_private(path, writable).map_err(|error| match error {
        PrivateFileError::Io(error) => in_file(path)(error),
        PrivateFileError::Unsafe { problem, .. } => MaskFileError::UnsafePermissions {
            path: path.to_owned(),
            problem,
        },
    })
}

fn lock(path: &Path, file: &File) -> Result<(), MaskFileError> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => MaskFileError::InUse {
            path: path.to_owned(),
        },
        error => in_file(path)(error.into()),
    })
}

#[cfg(test)]
mod tests;
