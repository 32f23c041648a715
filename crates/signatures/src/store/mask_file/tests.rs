use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;

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

    /// A file with so many blocks, closed.
    fn with_blocks(blocks: u8) -> Self {
        let place = Self::new();
        let mut file = place.create();
        for block in 0..blocks {
            file.append(&masks(block)).unwrap();
        }
        place
    }
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
        assert_eq!(file.remaining(), (3 - u64::from(block)) * BLOCK_MASKS as u64);
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
    let place = Place::with_blocks(2);
    let before = std::fs::read(place.path()).unwrap();
    let mut file = place.open().unwrap();
    let first = names(&file.take_block().unwrap().unwrap());
    drop(file);
    let after = std::fs::read(place.path()).unwrap();
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
        std::fs::OpenOptions::new()
            .write(true)
            .open(place.path())
            .unwrap()
            .write_all_at(&bytes, 0)
            .unwrap();
        let taken = names(&place.open().unwrap().take_block().unwrap().unwrap());
        match bytes == before {
            true => assert_eq!(taken, first),
            false => assert_eq!(taken, names(&masks(1)), "{torn} bytes of the slot were written"),
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
    let place = Place::with_blocks(1);
    let whole = std::fs::read(place.path()).unwrap();
    let offsets = (0..HEADER_BYTES)
        .chain(512..512 + SLOT_BYTES)
        .chain(1024..1024 + SLOT_BYTES)
        .chain((4096..whole.len()).step_by(997))
        .chain([whole.len() - 1]);
    for offset in offsets {
        let mut bytes = whole.clone();
        bytes[offset] ^= 0x10;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(place.path())
            .unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        drop(file);
        if let Ok(Some(taken)) = place.open().and_then(|mut file| file.take_block()) {
            assert_eq!(names(&taken), names(&masks(0)), "byte {offset}");
        }
    }
    for length in (0..whole.len()).step_by(499) {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(place.path())
            .unwrap();
        file.set_len(0).unwrap();
        file.write_all_at(&whole[..length], 0).unwrap();
        drop(file);
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
