//! Masks in a file: each goes out of it once, whatever happens to the process or the machine in between.
//!
//! | offset | |
//! |---|---|
//! | 0 | header: `LWMK`, version 2, scheme, 1 if the inode counts too, a zero, signer's id, the file's own random id, machine, inode, birth, file system |
//! | 512, 1024 | two slots with the same two counts, blocks reserved and blocks written; the newer whole one counts |
//! | 4096 | blocks of [`BLOCK_MASKS`] masks, sealed, each bound to the header and its place |
//!
//! A block is *reserved*, durably, before it is opened: after a crash the next one is taken, and what the first held is lost, never
//! used again. A slot is one sector, and the one that is not the newest is written, so that a torn write leaves the other; a slot that is
//! not whole may have reserved one block more, which is skipped. Blocks that were opened are overwritten.
//!
//! A copy of the file would give every mask a second time. So the file says on which machine it was made, which inode it is and, where the
//! file system tells, when that was born (a number of an inode is given out again) and which file system that is, and is refused elsewhere;
//! moving it within its file system is all that can be done with it.
//!
//! Earlier content can be written back into the same inode (`cp backup masks`). So the inode counts reserved blocks too, in an
//! [attribute](inode). Of a block that was opened, both counts are durably above it; a crash before that leaves them one apart, in either
//! direction, and the greater one holds. Content that is further behind was written back, and is refused, as is a file whose attribute is
//! gone. A file system without attributes of users is only seen to have none when the file is made, and then such content passes.
//!
//! What this cannot see is attributes that are set back with the content, and a whole machine or volume that is set back: an image restored, a virtual machine resumed
//! twice. Masks must be made anew then.

mod error;
mod head;
mod inode;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use linewarden_files::seal::{SEAL_OVERHEAD_BYTES, Sealer};
use linewarden_files::{PrivateFileError, open_private, sync_parent};
use rustix::fs::{FallocateFlags, FlockOperation};
use zeroize::Zeroizing;

pub use self::error::MaskFileError;
use self::head::{Counts, FILE_ID_BYTES, HEADER_BYTES, header, read_head, write_slot};
use self::inode::{Count, forget_count, place, read_count, set_count};
use super::machine::MachineId;
use super::sealed::SealingKey;
use crate::message::{KeyId, MASK_NAME_BYTES};
use crate::ra::Mask;
use crate::scheme::Scheme;

/// Masks that are reserved at once: what a crash can cost, and what one durable write pays for.
pub const BLOCK_MASKS: usize = 64;

const BLOCKS_OFFSET: u64 = 4096;

/// An open file of masks, locked against other processes.
pub struct MaskFile {
    path: PathBuf,
    file: File,
    header: [u8; HEADER_BYTES],
    /// Whether the inode counts too.
    counted: bool,
    sealer: Sealer,
    modulus_bytes: usize,
    counts: Counts,
}

impl MaskFile {
    /// Makes a file without masks, mode 0600.
    ///
    /// # Errors
    /// Something is there already, or it cannot be written.
    pub fn create(
        path: &Path,
        scheme: Scheme,
        key_id: KeyId,
        machine: &MachineId,
        sealing_key: &SealingKey,
    ) -> Result<Self, MaskFileError> {
        let io = in_file(path);
        let modulus_bytes = scheme.modulus_bytes().ok_or(MaskFileError::NotABlock)?;
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
        let place = place(&file).map_err(&io)?;
        let header = |counted| header(scheme, counted, key_id, &file_id, machine, &place);
        let counted = set_count(&file, &header(true), 0).map_err(&io)?;
        let header = header(counted);
        let mut made = Self {
            path: path.to_owned(),
            file,
            header,
            counted,
            sealer: sealing_key.sealer(key_id),
            modulus_bytes,
            counts: Counts {
                generation: 0,
                reserved: 0,
                written: 0,
            },
        };
        made.file.write_all_at(&header, 0).map_err(&io)?;
        // Both slots: one that is not whole later is then a torn write, and not a file that was never finished.
        made.set_counts(0, 0)?;
        made.set_counts(0, 0)?;
        sync_parent(path).map_err(&io)?;
        Ok(made)
    }

    /// Opens a file of this signer's masks.
    ///
    /// # Errors
    /// It cannot be read or locked, others can read it, it is of another signer, machine or a copy, was set back, or is damaged.
    pub fn open(
        path: &Path,
        scheme: Scheme,
        key_id: KeyId,
        machine: &MachineId,
        sealing_key: &SealingKey,
    ) -> Result<Self, MaskFileError> {
        let modulus_bytes = scheme.modulus_bytes().ok_or(MaskFileError::NotABlock)?;
        let file = open_file(path, true)?;
        lock(path, &file)?;
        let (header, counted, counts) = read_head(path, &file, scheme, key_id, machine)?;
        let mut opened = Self {
            path: path.to_owned(),
            file,
            header,
            counted,
            sealer: sealing_key.sealer(key_id),
            modulus_bytes,
            counts,
        };
        opened.agree()?;
        Ok(opened)
    }

    /// Whether the inode counts too; if not, the file system keeps no attributes, and earlier content that is written back into the file
    /// is not recognised.
    #[must_use]
    pub fn sees_earlier_content(&self) -> bool {
        self.counted
    }

    /// Masks that are left in this signer's file, also while another process has it: it is not locked, and nothing in it is changed.
    ///
    /// # Errors
    /// It cannot be read, others can read it, it is of another signer, machine or a copy, or is damaged. Whether it was set back is only
    /// found by [`MaskFile::open`].
    pub fn left(
        path: &Path,
        scheme: Scheme,
        key_id: KeyId,
        machine: &MachineId,
    ) -> Result<u64, MaskFileError> {
        let file = open_file(path, false)?;
        let (_, _, counts) = read_head(path, &file, scheme, key_id, machine)?;
        Ok(counts.masks())
    }

    /// Masks that are left.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.counts.masks()
    }

    /// Adds a block of masks, durably.
    ///
    /// # Errors
    /// Not [`BLOCK_MASKS`] masks of the file's modulus, or it cannot be written.
    pub fn append(&mut self, masks: &[Mask]) -> Result<(), MaskFileError> {
        if masks.len() != BLOCK_MASKS || masks.iter().any(|mask| mask.beta().len() != self.modulus_bytes) {
            return Err(MaskFileError::NotABlock);
        }
        let index = self.counts.written;
        let blob = self
            .sealer
            .seal(&self.place(index), self.plain_bytes(), |out| {
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

    /// Takes the next block's masks out; `None` if none is left. They are reserved durably before anybody sees them: whatever becomes of
    /// this process, nobody will get them again.
    ///
    /// # Errors
    /// It cannot be written or read, or the block is damaged: then it is lost, and the next call takes the next.
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
        let damaged = |what| MaskFileError::Damaged {
            path: self.path.clone(),
            what,
        };
        let plain = self
            .sealer
            .open(&self.place(index), &blob)
            .map_err(|_| damaged("a block does not open with this sealing key"))?;
        self.wipe(index, &mut blob)?;
        let masks: Option<Vec<Mask>> = plain
            .chunks_exact(MASK_NAME_BYTES + self.modulus_bytes)
            .map(|mask| {
                let (name, beta) = mask.split_first_chunk()?;
                Some(Mask::assertion(*name, Zeroizing::new(beta.to_vec())))
            })
            .collect();
        masks.map(Some).ok_or_else(|| damaged("a block is cut short"))
    }

    /// What a block is bound to.
    fn place(&self, index: u64) -> Vec<u8> {
        [self.header.as_slice(), &index.to_le_bytes()].concat()
    }

    fn plain_bytes(&self) -> usize {
        BLOCK_MASKS * (MASK_NAME_BYTES + self.modulus_bytes)
    }

    fn offset(&self, index: u64) -> u64 {
        BLOCKS_OFFSET + index * (self.plain_bytes() + SEAL_OVERHEAD_BYTES) as u64
    }

    /// Overwrites a block; its place is given back to the file system where that can be done.
    fn wipe(&self, index: u64, blob: &mut [u8]) -> Result<(), MaskFileError> {
        blob.fill(0);
        let io = in_file(&self.path);
        self.file.write_all_at(blob, self.offset(index)).map_err(&io)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Zeros are there already; a file system without holes keeps them.
        let _ = rustix::fs::fallocate(&self.file, punch, self.offset(index), blob.len() as u64);
        Ok(())
    }

    /// Has both counts of reserved blocks say the same, durably, before either goes on: they never are more than one apart.
    fn agree(&mut self) -> Result<(), MaskFileError> {
        if !self.counted {
            return Ok(());
        }
        let uncounted = |what| MaskFileError::Uncounted {
            path: self.path.clone(),
            what,
        };
        let Counts {
            reserved: content,
            written,
            ..
        } = self.counts;
        let inode = match read_count(&self.file, &self.header).map_err(in_file(&self.path))? {
            Count::Is(inode) => inode,
            Count::Absent => return Err(uncounted("gone")),
            Count::Foreign => return Err(uncounted("another file's")),
        };
        if inode == content {
            return Ok(());
        }
        if inode > content.saturating_add(1) || inode > written {
            return Err(MaskFileError::SetBack {
                path: self.path.clone(),
                content,
                inode,
            });
        }
        self.set_counts(inode.max(content), written)?;
        if inode < content {
            forget_count(&self.file, inode);
        }
        Ok(())
    }

    /// Writes new counts into the older slot, and a new one of reserved blocks to the inode; they count once this has returned, and for
    /// each of the two either it or the one before if it fails. One sync is for both: whichever is there first after a crash, the greater
    /// one holds.
    fn set_counts(&mut self, reserved: u64, written: u64) -> Result<(), MaskFileError> {
        let before = self.counts.reserved;
        let counts = Counts {
            generation: self.counts.generation + 1,
            reserved,
            written,
        };
        let io = in_file(&self.path);
        if self.counted && !set_count(&self.file, &self.header, reserved).map_err(&io)? {
            return Err(MaskFileError::Uncounted {
                path: self.path.clone(),
                what: "not kept by the file system any more",
            });
        }
        write_slot(&self.path, &self.file, &self.header, counts)?;
        // Not only its data: attributes are none.
        self.file.sync_all().map_err(&io)?;
        self.counts = counts;
        if self.counted && before != reserved {
            forget_count(&self.file, before);
        }
        Ok(())
    }
}

impl Drop for MaskFile {
    /// Not left to the closing of the file: a process that this one is just starting has it open too, until it runs its own program.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn in_file(path: &Path) -> impl Fn(io::Error) -> MaskFileError + use<> {
    let path = path.to_owned();
    move |source| MaskFileError::Io {
        path: path.clone(),
        source,
    }
}

/// A file that ends too early is damaged; whatever else the operating system says is its own error.
fn unreadable(path: &Path, error: io::Error) -> MaskFileError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => MaskFileError::Damaged {
            path: path.to_owned(),
            what: "it is cut short",
        },
        _ => in_file(path)(error),
    }
}

fn open_file(path: &Path, writable: bool) -> Result<File, MaskFileError> {
    open_private(path, writable).map_err(|error| match error {
        PrivateFileError::Io(error) => in_file(path)(error),
        PrivateFileError::Unsafe { problem, .. } => MaskFileError::Unsafe {
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
