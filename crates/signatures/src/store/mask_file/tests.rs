use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;

use super::head::{SLOT_BYTES, SLOT_OFFSETS};
use super::*;

const SCHEME: Scheme = Scheme::RaRsa2048;
const KEY: KeyId = KeyId(*b"signer 1");

struct Place {
    directory: tempfile::TempDir,
    machine: MachineId,
    sealing_key: SealingKey,
}

impl Place {
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

    fn left(&self) -> Result<u64, MaskFileError> {
        MaskFile::left(&self.path(), SCHEME, KEY, &self.machine)
    }

    /// A file with so many blocks, closed.
    fn with_blocks(blocks: u8) -> Self {
        let place = Self::new();
        let mut file = place.create();
        for block in 0..blocks {
            file.append(&masks(block)).unwrap();
        }
        place
    }

    fn read(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    /// Writes content back into the file, as `cp` does.
    fn write_back(&self, bytes: &[u8]) {
        std::fs::write(self.path(), bytes).unwrap();
    }

    /// Leaves the inode with this count alone, or with none.
    fn count(&self, count: Option<u64>) {
        let file = File::open(self.path()).unwrap();
        for other in 0..20 {
            forget_count(&file, other);
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).unwrap();
        if let Some(count) = count {
            assert!(set_count(&file, &header, count).unwrap());
        }
    }

    /// Blocks that are given out from here on.
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

/// Whether the inodes of temporary files count.
fn without_attributes() -> bool {
    let without = !Place::new().create().sees_earlier_content();
    if without {
        println!("SKIPPED: the file system of temporary files keeps no attributes of users");
    }
    without
}

fn masks(block: u8) -> Vec<Mask> {
    (0..BLOCK_MASKS)
        .map(|index| {
            let mut name = [block; MASK_NAME_BYTES];
            name[0] = index as u8;
            Mask::assertion(name, Zeroizing::new(vec![index as u8 ^ block; 256]))
        })
        .collect()
}

fn names(masks: &[Mask]) -> Vec<[u8; MASK_NAME_BYTES]> {
    masks.iter().map(|mask| *mask.name()).collect()
}

#[test]
fn what_was_appended_is_taken_in_its_order_and_once() {
    let place = Place::with_blocks(3);
    let mut seen = HashSet::new();
    for block in 0..3 {
        // Opened anew each time: the counts are the file's.
        let mut file = place.open().unwrap();
        let left = (3 - u64::from(block)) * BLOCK_MASKS as u64;
        assert_eq!(file.remaining(), left);
        // Who only looks may do so while it is in use.
        assert_eq!(place.left().unwrap(), left);
        let taken = file.take_block().unwrap().unwrap();
        assert_eq!(names(&taken), names(&masks(block)));
        assert_eq!(taken[9].beta(), [9 ^ block; 256]);
        assert!(taken.iter().all(|mask| seen.insert(*mask.name())));
    }
    let mut file = place.open().unwrap();
    assert_eq!(file.remaining(), 0);
    assert!(file.take_block().unwrap().is_none());
    file.append(&masks(9)).unwrap();
    assert_eq!(names(&file.take_block().unwrap().unwrap()), names(&masks(9)));
}

#[test]
fn what_a_crash_has_reserved_is_not_given_again() {
    let place = Place::with_blocks(2);
    // A crash between the reservation and anything that follows it.
    let mut file = place.open().unwrap();
    file.set_counts(1, 2).unwrap();
    drop(file);
    assert_eq!(
        names(&place.open().unwrap().take_block().unwrap().unwrap()),
        names(&masks(1))
    );
}

/// A slot that is not whole is a reservation that nobody has waited for, or one that was damaged later: the block is lost.
#[test]
fn a_reservation_that_is_not_whole_costs_a_block() {
    if without_attributes() {
        return;
    }
    let place = Place::with_blocks(2);
    let before = place.read();
    let mut file = place.open().unwrap();
    let first = names(&file.take_block().unwrap().unwrap());
    drop(file);
    let after = place.read();
    let changed: Vec<usize> = SLOT_OFFSETS
        .into_iter()
        .filter(|offset| {
            let slot = *offset as usize..*offset as usize + SLOT_BYTES;
            before[slot.clone()] != after[slot]
        })
        .map(|offset| offset as usize)
        .collect();
    let [changed] = changed[..] else {
        panic!("one slot is written, not {changed:?}");
    };
    for torn in 0..SLOT_BYTES {
        let mut bytes = before.clone();
        bytes[changed..changed + torn].copy_from_slice(&after[changed..changed + torn]);
        // Before and after the inode's count was there.
        for count in [0, 1] {
            place.write_back(&bytes);
            place.count(Some(count));
            let taken = names(&place.open().unwrap().take_block().unwrap().unwrap());
            match bytes == before && count == 0 {
                true => assert_eq!(taken, first),
                false => assert_eq!(taken, names(&masks(1)), "{torn} bytes of the slot were written"),
            }
        }
    }
}

#[test]
fn blocks_that_were_opened_are_not_in_the_file_any_more() {
    let place = Place::with_blocks(1);
    let blob = std::fs::read(place.path()).unwrap()[BLOCKS_OFFSET as usize..].to_vec();
    place.open().unwrap().take_block().unwrap().unwrap();
    let after = std::fs::read(place.path()).unwrap();
    assert!(after[BLOCKS_OFFSET as usize..].iter().all(|byte| *byte == 0));
    // Who had copied it there, and sets it back with the counts as they are, gets nothing.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(place.path())
        .unwrap();
    file.write_all_at(&blob, BLOCKS_OFFSET).unwrap();
    assert!(place.open().unwrap().take_block().unwrap().is_none());
}

#[test]
fn a_copy_another_machine_signer_or_key_is_refused() {
    let place = Place::with_blocks(1);
    let copy = place.directory.path().join("copy");
    std::fs::copy(place.path(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o600)).unwrap();
    let open = |path: &Path, scheme, key_id, machine: &MachineId, sealing_key: &SealingKey| {
        MaskFile::open(path, scheme, key_id, machine, sealing_key)
    };
    assert!(matches!(
        open(&copy, SCHEME, KEY, &place.machine, &place.sealing_key),
        Err(MaskFileError::Copied { .. })
    ));
    // Put in the first one's place, it may get the number of its inode.
    let path = place.path();
    let original = place.directory.path().join("original");
    std::fs::rename(&path, &original).unwrap();
    for _ in 0..3 {
        std::fs::copy(&copy, &path).unwrap();
        assert!(matches!(
            open(&path, SCHEME, KEY, &place.machine, &place.sealing_key),
            Err(MaskFileError::Copied { .. })
        ));
        assert!(matches!(place.left(), Err(MaskFileError::Copied { .. })));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::rename(&original, &path).unwrap();
    assert!(matches!(
        open(
            &path,
            SCHEME,
            KEY,
            &MachineId::of_name(b"there"),
            &place.sealing_key
        ),
        Err(MaskFileError::OtherMachine { .. })
    ));
    assert!(matches!(
        open(
            &path,
            SCHEME,
            KeyId(*b"signer 2"),
            &place.machine,
            &place.sealing_key
        ),
        Err(MaskFileError::OtherSigner { .. })
    ));
    assert!(matches!(
        open(&path, Scheme::RaRsa3072, KEY, &place.machine, &place.sealing_key),
        Err(MaskFileError::OtherSigner { .. })
    ));
    let mut other = open(
        &path,
        SCHEME,
        KEY,
        &place.machine,
        &SealingKey::from_bytes([6; 32]),
    )
    .unwrap();
    assert!(matches!(other.take_block(), Err(MaskFileError::Damaged { .. })));
    // Moved, it is the same file.
    drop(other);
    let moved = place.directory.path().join("moved");
    std::fs::rename(place.path(), &moved).unwrap();
    assert!(open(&moved, SCHEME, KEY, &place.machine, &place.sealing_key).is_ok());
}

#[test]
fn one_process_at_a_time_and_nobody_elses_eyes() {
    let place = Place::with_blocks(1);
    let held = place.open().unwrap();
    assert!(matches!(place.open(), Err(MaskFileError::InUse { .. })));
    drop(held);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(place.open(), Err(MaskFileError::Unsafe { .. })));
    assert!(matches!(
        MaskFile::create(&place.path(), SCHEME, KEY, &place.machine, &place.sealing_key),
        Err(MaskFileError::Io { .. })
    ));
}

/// Every byte of header, counts and block: a change is refused, or changes nothing that is given out.
#[test]
fn no_changed_byte_gives_a_mask_that_was_not_there() {
    if without_attributes() {
        return;
    }
    let place = Place::with_blocks(1);
    let whole = place.read();
    // As it was made, or its bytes would be refused for having been written back.
    let again = |bytes: &[u8]| {
        place.write_back(&whole);
        place.count(Some(0));
        place.write_back(bytes);
    };
    again(&whole);
    assert_eq!(place.blocks().unwrap(), [0]);
    let offsets = (0..HEADER_BYTES)
        .chain(512..512 + SLOT_BYTES)
        .chain(1024..1024 + SLOT_BYTES)
        .chain((4096..whole.len()).step_by(997))
        .chain([whole.len() - 1]);
    for offset in offsets {
        let mut bytes = whole.clone();
        bytes[offset] ^= 0x10;
        again(&bytes);
        if let Ok(Some(taken)) = place.open().and_then(|mut file| file.take_block()) {
            assert_eq!(names(&taken), names(&masks(0)), "byte {offset}");
        }
    }
    for length in (0..whole.len()).step_by(499) {
        again(&whole[..length]);
        let taken = place.open().and_then(|mut file| file.take_block());
        assert!(matches!(taken, Err(_) | Ok(None)), "{length} bytes");
    }
}

#[test]
fn blocks_are_whole_and_of_one_modulus() {
    let place = Place::new();
    let mut file = place.create();
    assert!(matches!(
        file.append(&masks(0)[1..]),
        Err(MaskFileError::NotABlock)
    ));
    let mut wrong = masks(0);
    wrong[3] = Mask::assertion([9; MASK_NAME_BYTES], Zeroizing::new(vec![1; 384]));
    assert!(matches!(file.append(&wrong), Err(MaskFileError::NotABlock)));
    assert_eq!(file.remaining(), 0);
}

#[test]
fn content_that_is_written_back_is_refused_however_it_is_copied() {
    if without_attributes() {
        return;
    }
    for copy in [["--no-preserve=all"].as_slice(), &["--archive"]] {
        let place = Place::with_blocks(4);
        let backup = place.directory.path().join("backup");
        let cp = |from: &Path, to: &Path| {
            let copied = std::process::Command::new("cp")
                .args(copy)
                .args([from, to])
                .status();
            assert!(copied.unwrap().success());
        };
        cp(&place.path(), &backup);
        let mut file = place.open().unwrap();
        file.take_block().unwrap().unwrap();
        // One that is taken while nobody sees it looks as a crash before the content's count does: its block is lost.
        drop(file);
        cp(&backup, &place.path());
        assert_eq!(place.blocks().unwrap(), [1, 2, 3], "{copy:?}");
        cp(&backup, &place.path());
        for _ in 0..2 {
            assert!(
                matches!(
                    place.open(),
                    Err(MaskFileError::SetBack {
                        content: 0,
                        inode: 4,
                        ..
                    })
                ),
                "{copy:?}"
            );
        }
    }
}

/// What an attacker can reach who may write everything, and what he cannot.
#[test]
fn an_attribute_that_is_gone_replaced_or_set_back() {
    if without_attributes() {
        return;
    }
    let place = Place::with_blocks(3);
    let earlier = place.read();
    place.open().unwrap().take_block().unwrap().unwrap();
    place.open().unwrap().take_block().unwrap().unwrap();
    let now = place.read();
    place.count(None);
    assert!(matches!(
        place.open(),
        Err(MaskFileError::Uncounted { what: "gone", .. })
    ));
    place.write_back(&earlier);
    assert!(matches!(place.open(), Err(MaskFileError::Uncounted { .. })));
    for (name, value) in [
        ("2", b"sixteen bytes...".as_slice()),
        ("2", b"short"),
        ("2", b"more than sixteen bytes"),
        ("02", b"sixteen bytes..."),
        ("", b""),
    ] {
        place.write_back(&now);
        place.count(Some(2));
        let name = format!("user.linewarden.masks.{name}");
        let file = File::open(place.path()).unwrap();
        rustix::fs::fsetxattr(&file, &name, value, rustix::fs::XattrFlags::empty()).unwrap();
        assert!(
            matches!(place.open(), Err(MaskFileError::Uncounted { .. })),
            "{name}"
        );
        rustix::fs::fremovexattr(&file, &name).unwrap();
    }
    // Set back alone, it is behind the content, which counts.
    for count in 0..3 {
        place.write_back(&now);
        place.count(Some(count));
        assert_eq!(place.blocks().unwrap(), [2]);
    }
    // A count beyond the last block follows from no crash.
    place.write_back(&now);
    place.count(Some(4));
    assert!(matches!(place.open(), Err(MaskFileError::SetBack { .. })));
    // Both set back are as they were: this is not stopped, and the threat model says so.
    place.write_back(&earlier);
    place.count(Some(0));
    assert_eq!(place.blocks().unwrap(), [0, 1, 2]);
}

/// One sync is for both counts, so that after a crash each of them is there or not.
#[test]
fn a_crash_between_the_counts_costs_a_block_and_never_the_file() {
    if without_attributes() {
        return;
    }
    for (attribute, slot) in [(false, false), (true, false), (false, true), (true, true)] {
        let place = Place::with_blocks(5);
        let mut taken = 0;
        // Crash after crash in the same place: each is mended before the next.
        for _ in 0..2 {
            let file = place.open().unwrap();
            let next = file.counts.reserved;
            assert_eq!(next, taken);
            if attribute {
                assert!(set_count(&file.file, &file.header, next + 1).unwrap());
            }
            if slot {
                let counts = Counts {
                    generation: file.counts.generation + 1,
                    reserved: next + 1,
                    written: 5,
                };
                write_slot(&file.path, &file.file, &file.header, counts).unwrap();
            }
            taken += u64::from(attribute || slot);
            drop(file);
        }
        let left: Vec<u8> = (taken as u8..5).collect();
        assert_eq!(place.blocks().unwrap(), left, "{attribute} {slot}");
        assert_eq!(place.open().unwrap().remaining(), 0);
    }
}

#[test]
fn an_earlier_version_is_named() {
    let place = Place::with_blocks(1);
    let mut bytes = place.read();
    bytes[4] = 1;
    place.write_back(&bytes);
    assert!(matches!(
        place.open(),
        Err(MaskFileError::Version { version: 1, .. })
    ));
}
