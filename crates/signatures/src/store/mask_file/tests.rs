use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;

use super::head::{SLOT_BYTES, SLOT_OFFSETS};
use super::*;

const SCHEME: Scheme = Scheme::RaRsa2048;
const KEY: KeyId = KeyId(*b"signer 1");

struct TestFile {
    directory: tempfile::TempDir,
    machine: MachineId,
    sealing_key: SealingKey,
}

impl TestFile {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            machine: MachineId::of_name(b"here"),
            sealing_key: SealingKey::from_bytes([5; 32]),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("masks")
    }

    fn create(&self) -> MaskFile {
        MaskFile::create(&self.path(), SCHEME, KEY, &self.machine, &self.sealing_key).unwrap()
    }

    fn open(&self) -> Result<MaskFile, MaskFileError> {
        MaskFile::open(&self.path(), SCHEME, KEY, &self.machine, &self.sealing_key)
    }

    fn remaining(&self) -> Result<u64, MaskFileError> {
        MaskFile::masks_left(&self.path(), SCHEME, KEY, &self.machine)
    }

    /// A closed mask file with this number of blocks.
    fn with_blocks(blocks: u8) -> Self {
        let test_file = Self::new();
        let mut file = test_file.create();
        for block in 0..blocks {
            file.append(&masks(block)).unwrap();
        }
        test_file
    }

    fn read(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    /// Writes content back into the file, as `cp` does.
    fn write_back(&self, bytes: &[u8]) {
        std::fs::write(self.path(), bytes).unwrap();
    }

    /// Removes all counters of the inode, then sets the counter to this count, if any.
    fn set_inode_count(&self, count: Option<u64>) {
        let file = File::open(self.path()).unwrap();
        for earlier in 0..20 {
            remove_count(&file, earlier);
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).unwrap();
        if let Some(count) = count {
            assert!(set_count(&file, &header, count).unwrap());
        }
    }

    /// Blocks that can still be taken.
    fn blocks(&self) -> Result<Vec<u8>, MaskFileError> {
        let mut file = self.open()?;
        let mut blocks = Vec::new();
        while let Some(taken) = file.take_block()? {
            assert_eq!(names(&taken), names(&masks(taken[0].name()[1])));
            blocks.push(taken[0].name()[1]);
        }
        Ok(blocks)
    }
}

/// Skips the test if the file system of temporary files lacks user attributes.
fn require_attributes() {
    if !TestFile::new().create().detects_rollback() {
        linewarden_harness::skip!("the file system of temporary files supports no user attributes");
    }
}

fn masks(block: u8) -> Vec<Mask> {
    (0..BLOCK_MASKS)
        .map(|index| {
            let mut name = [block; MASK_NAME_BYTES];
            name[0] = index as u8;
            Mask::from_unused_parts(name, Zeroizing::new(vec![index as u8 ^ block; 256]))
        })
        .collect()
}

fn names(masks: &[Mask]) -> Vec<[u8; MASK_NAME_BYTES]> {
    masks.iter().map(|mask| *mask.name()).collect()
}

#[test]
fn masks_are_used_once_and_in_order() {
    let test_file = TestFile::with_blocks(3);
    let mut seen = HashSet::new();
    for block in 0..3 {
        // Reopened each time: the counts are in the file.
        let mut file = test_file.open().unwrap();
        let remaining = (3 - u64::from(block)) * BLOCK_MASKS as u64;
        assert_eq!(file.remaining(), remaining);
        // Counting the masks works while the file is in use.
        assert_eq!(test_file.remaining().unwrap(), remaining);
        let taken = file.take_block().unwrap().unwrap();
        assert_eq!(names(&taken), names(&masks(block)));
        assert_eq!(taken[9].beta(), [9 ^ block; 256]);
        assert!(taken.iter().all(|mask| seen.insert(*mask.name())));
    }
    let mut file = test_file.open().unwrap();
    assert_eq!(file.remaining(), 0);
    assert!(file.take_block().unwrap().is_none());
    file.append(&masks(9)).unwrap();
    assert_eq!(names(&file.take_block().unwrap().unwrap()), names(&masks(9)));
}

#[test]
fn blocks_reserved_before_a_crash_are_not_reused() {
    let test_file = TestFile::with_blocks(2);
    // A crash between the reservation and the following steps.
    let mut file = test_file.open().unwrap();
    file.set_counts(1, 2).unwrap();
    drop(file);
    assert_eq!(
        names(&test_file.open().unwrap().take_block().unwrap().unwrap()),
        names(&masks(1))
    );
}

/// An invalid slot comes from a torn reservation or from later damage. In both cases the block is lost.
#[test]
fn a_torn_reservation_costs_a_block() {
    require_attributes();
    let test_file = TestFile::with_blocks(2);
    let before = test_file.read();
    let mut file = test_file.open().unwrap();
    let first = names(&file.take_block().unwrap().unwrap());
    drop(file);
    let after = test_file.read();
    let changed: Vec<usize> = SLOT_OFFSETS
        .into_iter()
        .filter(|offset| {
            let slot = *offset as usize..*offset as usize + SLOT_BYTES;
            before[slot.clone()] != after[slot]
        })
        .map(|offset| offset as usize)
        .collect();
    let [changed] = changed[..] else {
        panic!("expected a change in one slot, found {changed:?}");
    };
    for torn in 0..SLOT_BYTES {
        let mut bytes = before.clone();
        bytes[changed..changed + torn].copy_from_slice(&after[changed..changed + torn]);
        // The inode's counter before and after its update.
        for count in [0, 1] {
            test_file.write_back(&bytes);
            test_file.set_inode_count(Some(count));
            let taken = names(&test_file.open().unwrap().take_block().unwrap().unwrap());
            match bytes == before && count == 0 {
                true => assert_eq!(taken, first),
                false => assert_eq!(taken, names(&masks(1)), "{torn} bytes of the slot were written"),
            }
        }
    }
}

#[test]
fn blocks_that_were_read_are_erased() {
    let test_file = TestFile::with_blocks(1);
    let blob = std::fs::read(test_file.path()).unwrap()[BLOCKS_OFFSET as usize..].to_vec();
    test_file.open().unwrap().take_block().unwrap().unwrap();
    let after = std::fs::read(test_file.path()).unwrap();
    assert!(after[BLOCKS_OFFSET as usize..].iter().all(|byte| *byte == 0));
    // An attacker who copied a block and writes it back without changing the counts gains nothing.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(test_file.path())
        .unwrap();
    file.write_all_at(&blob, BLOCKS_OFFSET).unwrap();
    assert!(test_file.open().unwrap().take_block().unwrap().is_none());
}

#[test]
fn copies_and_other_machines_signers_or_keys_are_refused() {
    let test_file = TestFile::with_blocks(1);
    let copy = test_file.directory.path().join("copy");
    std::fs::copy(test_file.path(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o600)).unwrap();
    let open = |path: &Path, scheme, key_id, machine: &MachineId, sealing_key: &SealingKey| {
        MaskFile::open(path, scheme, key_id, machine, sealing_key)
    };
    assert!(matches!(
        open(&copy, SCHEME, KEY, &test_file.machine, &test_file.sealing_key),
        Err(MaskFileError::Copied { .. })
    ));
    // A copy at the original path is refused too.
    let path = test_file.path();
    let original = test_file.directory.path().join("original");
    std::fs::rename(&path, &original).unwrap();
    for _ in 0..3 {
        std::fs::copy(&copy, &path).unwrap();
        assert!(matches!(
            open(&path, SCHEME, KEY, &test_file.machine, &test_file.sealing_key),
            Err(MaskFileError::Copied { .. })
        ));
        assert!(matches!(test_file.remaining(), Err(MaskFileError::Copied { .. })));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::rename(&original, &path).unwrap();
    assert!(matches!(
        open(
            &path,
            SCHEME,
            KEY,
            &MachineId::of_name(b"there"),
            &test_file.sealing_key
        ),
        Err(MaskFileError::OtherMachine { .. })
    ));
    assert!(matches!(
        open(
            &path,
            SCHEME,
            KeyId(*b"signer 2"),
            &test_file.machine,
            &test_file.sealing_key
        ),
        Err(MaskFileError::OtherSigner { .. })
    ));
    assert!(matches!(
        open(
            &path,
            Scheme::RaRsa3072,
            KEY,
            &test_file.machine,
            &test_file.sealing_key
        ),
        Err(MaskFileError::OtherSigner { .. })
    ));
    let mut wrong_key = open(
        &path,
        SCHEME,
        KEY,
        &test_file.machine,
        &SealingKey::from_bytes([6; 32]),
    )
    .unwrap();
    assert!(matches!(
        wrong_key.take_block(),
        Err(MaskFileError::Damaged { .. })
    ));
    // A moved file is the same file.
    drop(wrong_key);
    let moved = test_file.directory.path().join("moved");
    std::fs::rename(test_file.path(), &moved).unwrap();
    assert!(open(&moved, SCHEME, KEY, &test_file.machine, &test_file.sealing_key).is_ok());
}

#[test]
fn one_process_at_a_time_and_owner_only() {
    let test_file = TestFile::with_blocks(1);
    let opened = test_file.open().unwrap();
    assert!(matches!(test_file.open(), Err(MaskFileError::InUse { .. })));
    drop(opened);
    std::fs::set_permissions(test_file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(
        test_file.open(),
        Err(MaskFileError::UnsafePermissions { .. })
    ));
    assert!(matches!(
        MaskFile::create(
            &test_file.path(),
            SCHEME,
            KEY,
            &test_file.machine,
            &test_file.sealing_key
        ),
        Err(MaskFileError::Io { .. })
    ));
}

/// Changes each byte of the header and the slots, and every 997th byte of the block: a change is refused, or does not
/// affect the masks.
#[test]
fn no_changed_byte_makes_an_invalid_mask() {
    require_attributes();
    let test_file = TestFile::with_blocks(1);
    let original = test_file.read();
    // Writes into the original inode and resets the counter of the inode to 0. Otherwise the only block would be
    // skipped as lost, and its masks would not be checked.
    let restore = |bytes: &[u8]| {
        test_file.write_back(&original);
        test_file.set_inode_count(Some(0));
        test_file.write_back(bytes);
    };
    restore(&original);
    assert_eq!(test_file.blocks().unwrap(), [0]);
    let offsets = (0..HEADER_BYTES)
        .chain(512..512 + SLOT_BYTES)
        .chain(1024..1024 + SLOT_BYTES)
        .chain((4096..original.len()).step_by(997))
        .chain([original.len() - 1]);
    for offset in offsets {
        let mut bytes = original.clone();
        bytes[offset] ^= 0x10;
        restore(&bytes);
        if let Ok(Some(taken)) = test_file.open().and_then(|mut file| file.take_block()) {
            assert_eq!(names(&taken), names(&masks(0)), "byte {offset}");
        }
    }
    for length in (0..original.len()).step_by(499) {
        restore(&original[..length]);
        let taken = test_file.open().and_then(|mut file| file.take_block());
        assert!(matches!(taken, Err(_) | Ok(None)), "{length} bytes");
    }
}

#[test]
fn blocks_are_complete_and_of_one_modulus() {
    let test_file = TestFile::new();
    let mut file = test_file.create();
    assert!(matches!(
        file.append(&masks(0)[1..]),
        Err(MaskFileError::InvalidBlock)
    ));
    let mut wrong_masks = masks(0);
    wrong_masks[3] = Mask::from_unused_parts([9; MASK_NAME_BYTES], Zeroizing::new(vec![1; 384]));
    assert!(matches!(
        file.append(&wrong_masks),
        Err(MaskFileError::InvalidBlock)
    ));
    assert_eq!(file.remaining(), 0);
}

#[test]
fn restored_content_is_refused() {
    require_attributes();
    for options in [["--no-preserve=all"].as_slice(), &["--archive"]] {
        let test_file = TestFile::with_blocks(4);
        let backup = test_file.directory.path().join("backup");
        let cp = |from: &Path, to: &Path| {
            let status = std::process::Command::new("cp")
                .args(options)
                .args([from, to])
                .status();
            assert!(status.unwrap().success());
        };
        cp(&test_file.path(), &backup);
        let mut file = test_file.open().unwrap();
        file.take_block().unwrap().unwrap();
        // Content that is one block old looks like the content after a crash that followed the update of the inode's
        // counter: the block is lost.
        drop(file);
        cp(&backup, &test_file.path());
        assert_eq!(test_file.blocks().unwrap(), [1, 2, 3], "{options:?}");
        cp(&backup, &test_file.path());
        for _ in 0..2 {
            assert!(
                matches!(
                    test_file.open(),
                    Err(MaskFileError::RolledBack {
                        content: 0,
                        inode: 4,
                        ..
                    })
                ),
                "{options:?}"
            );
        }
    }
}

/// An attacker with write access gets used masks again only by setting back both the content and the attribute.
#[test]
fn a_removed_or_replaced_attribute_is_refused_and_a_reset_attribute_has_no_effect() {
    require_attributes();
    let test_file = TestFile::with_blocks(3);
    let earlier = test_file.read();
    test_file.open().unwrap().take_block().unwrap().unwrap();
    test_file.open().unwrap().take_block().unwrap().unwrap();
    let current = test_file.read();
    test_file.set_inode_count(None);
    assert!(matches!(
        test_file.open(),
        Err(MaskFileError::InvalidCounter { problem: "gone", .. })
    ));
    test_file.write_back(&earlier);
    assert!(matches!(
        test_file.open(),
        Err(MaskFileError::InvalidCounter { .. })
    ));
    for (name, value) in [
        ("2", b"sixteen bytes...".as_slice()),
        ("2", b"short"),
        ("2", b"more than sixteen bytes"),
        ("02", b"sixteen bytes..."),
        ("", b""),
    ] {
        test_file.write_back(&current);
        test_file.set_inode_count(Some(2));
        let name = format!("user.linewarden.masks.{name}");
        let file = File::open(test_file.path()).unwrap();
        rustix::fs::fsetxattr(&file, &name, value, rustix::fs::XattrFlags::empty()).unwrap();
        assert!(
            matches!(test_file.open(), Err(MaskFileError::InvalidCounter { .. })),
            "{name}"
        );
        rustix::fs::fremovexattr(&file, &name).unwrap();
    }
    // If only the attribute is set back, the greater counter in the content is valid.
    for count in 0..3 {
        test_file.write_back(&current);
        test_file.set_inode_count(Some(count));
        assert_eq!(test_file.blocks().unwrap(), [2]);
    }
    // A count beyond the last block cannot result from a crash.
    test_file.write_back(&current);
    test_file.set_inode_count(Some(4));
    assert!(matches!(test_file.open(), Err(MaskFileError::RolledBack { .. })));
    // Attribute and content set back together are not detected, as the threat model states.
    test_file.write_back(&earlier);
    test_file.set_inode_count(Some(0));
    assert_eq!(test_file.blocks().unwrap(), [0, 1, 2]);
}

/// One sync covers both counters, so that after a crash each may be old or new.
#[test]
fn a_crash_between_the_counters_costs_at_most_a_block() {
    require_attributes();
    for (attribute_updated, slot_updated) in [(false, false), (true, false), (false, true), (true, true)] {
        let test_file = TestFile::with_blocks(5);
        let mut taken = 0;
        // Several crashes at the same step: each is repaired before the next.
        for _ in 0..2 {
            let file = test_file.open().unwrap();
            let next = file.counts.reserved;
            assert_eq!(next, taken);
            if attribute_updated {
                assert!(set_count(&file.file, &file.header, next + 1).unwrap());
            }
            if slot_updated {
                let counts = Counts {
                    generation: file.counts.generation + 1,
                    reserved: next + 1,
                    written: 5,
                };
                write_slot(&file.path, &file.file, &file.header, counts).unwrap();
            }
            taken += u64::from(attribute_updated || slot_updated);
            drop(file);
        }
        let remaining: Vec<u8> = (taken as u8..5).collect();
        assert_eq!(
            test_file.blocks().unwrap(),
            remaining,
            "{attribute_updated} {slot_updated}"
        );
        assert_eq!(test_file.open().unwrap().remaining(), 0);
    }
}

#[test]
fn an_earlier_version_is_reported() {
    let test_file = TestFile::with_blocks(1);
    let mut bytes = test_file.read();
    bytes[4] = 1;
    test_file.write_back(&bytes);
    assert!(matches!(
        test_file.open(),
        Err(MaskFileError::UnsupportedVersion { version: 1, .. })
    ));
}
