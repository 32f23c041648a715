//! What the inode of a file of masks tells beside its content: which inode it is, and how many blocks have been reserved.
//!
//! The count stands in an attribute's *name*, `user.linewarden.masks.COUNT`; the value binds it to the file. Content that is written back
//! leaves the attribute alone, and a copy with attributes (`cp -a`) adds the earlier one to the later: the greatest counts.

use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// Inode, birth, file system.
pub(super) const PLACE_BYTES: usize = 24;
const PREFIX: &str = "user.linewarden.masks.";
const CHECK_BYTES: usize = 16;
/// The kernel's bound for all names together (xattr(7)).
const NAMES_BYTES_MAX: usize = 1 << 16;
/// Types of file systems whose f_fsid outlives the mount (statfs(2)): ext2 to ext4 make it of the file system's UUID, btrfs of that
/// and the subvolume, which a snapshot does not share. XFS and others make it of the device's number, which may be another after a boot.
const EXT: i64 = 0xef53;
const BTRFS: i64 = 0x9123_683e;

/// Which file of this machine it is: its inode, when that was born, in nanoseconds, and the file system's id; 0 for what the file system
/// does not tell, or not for good.
pub(super) fn place(file: &File) -> io::Result<[u8; PLACE_BYTES]> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let birth = found.stx_btime;
    let birth_ns = birth
        .tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(birth.tv_nsec.into());
    let birth_ns = if told { birth_ns } else { 0 };
    let file_system = match rustix::fs::fstatfs(file)?.f_type {
        EXT | BTRFS => rustix::fs::fstatvfs(file)?.f_fsid,
        _ => 0,
    };
    let mut place = [0; PLACE_BYTES];
    let numbers = [
        found.stx_ino.to_le_bytes(),
        birth_ns.to_le_bytes(),
        file_system.to_le_bytes(),
    ];
    place.copy_from_slice(numbers.as_flattened());
    Ok(place)
}

/// What the attributes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// The greatest count.
    Is(u64),
    /// There is none.
    Absent,
    /// One that was not set by [`set_count`] for this file.
    Foreign,
}

/// Sets a count, which lasts when the file has been synced; `false` if the file system keeps no attributes of users.
pub(super) fn set_count(file: &File, header: &[u8], count: u64) -> io::Result<bool> {
    match rustix::fs::fsetxattr(file, name(count), &check(header, count), XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes away a count that a greater one has followed. It does no harm where it stays.
pub(super) fn forget_count(file: &File, count: u64) {
    let _ = rustix::fs::fremovexattr(file, name(count));
}

/// The greatest count; the others, left by a crash or a copy, are taken away.
pub(super) fn read_count(file: &File, header: &[u8]) -> io::Result<Count> {
    let Some(mut counts) = counts(file, header)? else {
        return Ok(Count::Foreign);
    };
    counts.sort_unstable();
    let Some(greatest) = counts.pop() else {
        return Ok(Count::Absent);
    };
    for count in counts {
        forget_count(file, count);
    }
    Ok(Count::Is(greatest))
}

/// All counts; `None` if one of them is no count of this file.
fn counts(file: &File, header: &[u8]) -> io::Result<Option<Vec<u64>>> {
    let mut names = vec![0; NAMES_BYTES_MAX];
    let length = match rustix::fs::flistxattr(file, names.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        listed => listed?,
    };
    names.truncate(length);
    let mut counts = Vec::new();
    for found in names.split(|byte| *byte == 0) {
        let Some(digits) = found.strip_prefix(PREFIX.as_bytes()) else {
            continue;
        };
        let count = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        let Some(count) = count.filter(|count| name(*count).as_bytes() == found) else {
            return Ok(None);
        };
        let mut value = [0; CHECK_BYTES];
        let length = match rustix::fs::fgetxattr(file, name(count), value.as_mut_slice()) {
            Err(Errno::RANGE) => return Ok(None),
            read => read?,
        };
        if length != CHECK_BYTES || value != check(header, count) {
            return Ok(None);
        }
        counts.push(count);
    }
    Ok(Some(counts))
}

fn name(count: u64) -> String {
    format!("{PREFIX}{count}")
}

fn check(header: &[u8], count: u64) -> [u8; CHECK_BYTES] {
    let hash = Sha256::new()
        .chain_update(b"linewarden masks reserved 1\0")
        .chain_update(header)
        .chain_update(count.to_le_bytes())
        .finalize();
    let mut check = [0; CHECK_BYTES];
    for (byte, of_hash) in check.iter_mut().zip(hash) {
        *byte = of_hash;
    }
    check
}
