//! The identity of a mask file's inode, and a counter of reserved blocks in an extended attribute.
//!
//! The count is part of the attribute's *name*, `user.linewarden.masks.COUNT`; the value binds the count to the file.
//! Writing earlier content back leaves the attribute unchanged. Copying a backup over the file with `cp -a`, which also
//! copies attributes, adds the attribute with the earlier count. The greatest count is therefore valid.

use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// Inode, birth time, file system: 8 bytes each.
pub(super) const FILE_IDENTITY_BYTES: usize = 24;
const PREFIX: &str = "user.linewarden.masks.";
const CHECK_BYTES: usize = 16;
/// The kernel's limit for all attribute names together (xattr(7)).
const NAMES_BYTES_MAX: usize = 1 << 16;
/// Types of file systems whose f_fsid outlives the mount (statfs(2)): ext2 to ext4 derive f_fsid from the file system's
/// UUID. Btrfs derives f_fsid from the UUID and the subvolume, so a snapshot has a different value. XFS and others
/// derive f_fsid from the device number, which may change at a boot.
const EXT: i64 = 0xef53;
const BTRFS: i64 = 0x9123_683e;

/// Identity of the file on this machine: inode, birth time in nanoseconds, and id of the file system; 0 where the file system provides no
/// stable value.
pub(super) fn file_identity(file: &File) -> io::Result<[u8; FILE_IDENTITY_BYTES]> {
    let requested = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, requested)?;
    let has_birth_time = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let birth_time = stat.stx_btime;
    let birth_ns = birth_time
        .tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(birth_time.tv_nsec.into());
    let birth_ns = if has_birth_time { birth_ns } else { 0 };
    let file_system = match rustix::fs::fstatfs(file)?.f_type {
        EXT | BTRFS => rustix::fs::fstatvfs(file)?.f_fsid,
        _ => 0,
    };
    let mut identity = [0; FILE_IDENTITY_BYTES];
    let numbers = [
        stat.stx_ino.to_le_bytes(),
        birth_ns.to_le_bytes(),
        file_system.to_le_bytes(),
    ];
    identity.copy_from_slice(numbers.as_flattened());
    Ok(identity)
}

/// Result of reading the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InodeCount {
    /// The greatest count.
    Value(u64),
    /// There is no count.
    Absent,
    /// The file has a count that [`set_count`] did not set for this file.
    Invalid,
}

/// Sets a count, which is durable after a sync of the file; `false` if the file system supports no user attributes.
pub(super) fn set_count(file: &File, header: &[u8], count: u64) -> io::Result<bool> {
    match rustix::fs::fsetxattr(
        file,
        attribute_name(count),
        &check_value(header, count),
        XattrFlags::empty(),
    ) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a count that a greater count has replaced. Ignores errors: a lower count that remains is harmless.
pub(super) fn remove_count(file: &File, count: u64) {
    let _ = rustix::fs::fremovexattr(file, attribute_name(count));
}

/// The greatest count. Lower counts, which a crash or a copy can leave, are removed.
pub(super) fn read_count(file: &File, header: &[u8]) -> io::Result<InodeCount> {
    let Some(mut counts) = counts(file, header)? else {
        return Ok(InodeCount::Invalid);
    };
    counts.sort_unstable();
    let Some(greatest) = counts.pop() else {
        return Ok(InodeCount::Absent);
    };
    for count in counts {
        remove_count(file, count);
    }
    Ok(InodeCount::Value(greatest))
}

/// All counts; `None` if one of them is not a count of this file.
fn counts(file: &File, header: &[u8]) -> io::Result<Option<Vec<u64>>> {
    let mut names = vec![0; NAMES_BYTES_MAX];
    let length = match rustix::fs::flistxattr(file, names.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    names.truncate(length);
    let mut counts = Vec::new();
    for attribute in names.split(|byte| *byte == 0) {
        let Some(digits) = attribute.strip_prefix(PREFIX.as_bytes()) else {
            continue;
        };
        let count = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        let Some(count) = count.filter(|count| attribute_name(*count).as_bytes() == attribute) else {
            return Ok(None);
        };
        let mut value = [0; CHECK_BYTES];
        let length = match rustix::fs::fgetxattr(file, attribute_name(count), value.as_mut_slice()) {
            Err(Errno::RANGE) => return Ok(None),
            result => result?,
        };
        if length != CHECK_BYTES || value != check_value(header, count) {
            return Ok(None);
        }
        counts.push(count);
    }
    Ok(Some(counts))
}

fn attribute_name(count: u64) -> String {
    format!("{PREFIX}{count}")
}

fn check_value(header: &[u8], count: u64) -> [u8; CHECK_BYTES] {
    let hash = Sha256::new()
        .chain_update(b"linewarden masks reserved 1\0")
        .chain_update(header)
        .chain_update(count.to_le_bytes())
        .finalize();
    let mut check_value = [0; CHECK_BYTES];
    for (byte, hash_byte) in check_value.iter_mut().zip(hash) {
        *byte = hash_byte;
    }
    check_value
}
