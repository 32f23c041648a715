use linewarden_protocol::ids::DeviceId;
use linewarden_puf::extractor::{KeyEnrollment, PoolEnrollment, enroll_pool, enroll_puf};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use tempfile::TempDir;

use super::*;
use crate::source::{FleetSeed, SimulatedPuf};

fn chip(model: &str) -> Box<dyn linewarden_puf::Puf> {
    let puf: SimulatedPuf = toml::from_str(&format!("model = \"{model}\"\nseed_file = \"unused\"")).unwrap();
    puf.build(&FleetSeed::from_bytes([1; 32]), DeviceId(1), 1)
        .unwrap()
}

fn key(seed: u64) -> Credential {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let enrolled = enroll_puf(&mut *chip("sram"), 32_768, 5, &KeyEnrollment::default(), &mut rng);
    Credential::Key(enrolled.unwrap().helper)
}

fn pool() -> Credential {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let enrolled = enroll_pool(&mut *chip("xor-arbiter"), &PoolEnrollment::rows(1), &mut rng);
    Credential::Pool(enrolled.unwrap().helper)
}

fn files(sets: &[(&str, &[u8])]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d1.helper");
    for (suffix, content) in sets {
        std::fs::write(sibling_path(&path, suffix), content).unwrap();
    }
    (directory, path)
}

#[test]
fn unusable_previous_helper_data_are_skipped() {
    let (one, other, pool) = (key(1), key(2), pool());
    let (_directory, path) = files(&[
        ("", &one.to_bytes()),
        (".previous", b"damaged"),
        (".previous.2", &pool.to_bytes()),
        (".previous.3", &other.to_bytes()),
        (".previous.4", &one.to_bytes()),
    ]);
    let previous = Keyring::read_from(&path).unwrap().previous;
    assert!(
        matches!(&previous[..], [kept] if *kept == other),
        "{}",
        previous.len()
    );
    let (_directory, path) = files(&[("", &pool.to_bytes()), (".previous", &other.to_bytes())]);
    assert_eq!(Keyring::read_from(&path).unwrap().previous, []);
    let (_directory, path) = files(&[("", &one.to_bytes())]);
    std::fs::create_dir(sibling_path(&path, ".previous")).unwrap();
    assert_eq!(Keyring::read_from(&path).unwrap().previous, []);
}

#[test]
fn helper_data_of_the_last_three_renewals_are_kept() {
    let sets: Vec<Credential> = (0..6).map(key).collect();
    let (_directory, path) = files(&[("", &sets[0].to_bytes())]);
    let mut keyring = Keyring::read_from(&path).unwrap();
    for set in &sets[1..] {
        keyring.store_pending(set.clone()).unwrap();
        keyring.promote().unwrap();
        assert!(!sibling_path(&path, PENDING).exists());
    }
    let kept = [sets[4].clone(), sets[3].clone(), sets[2].clone()];
    let read = Keyring::read_from(&path).unwrap();
    assert_eq!((read.current(), &read.previous[..]), (&sets[5], &kept[..]));
    assert_eq!(keyring.previous, kept);
    remove_previous(&path);
    assert_eq!(Keyring::read_from(&path).unwrap().previous, []);
}

#[test]
fn helper_data_stay_pending_when_their_file_cannot_be_written() {
    let (one, other) = (key(1), key(2));
    let (_directory, path) = files(&[("", &one.to_bytes())]);
    let mut keyring = Keyring::read_from(&path).unwrap();
    keyring.store_pending(other.clone()).unwrap();
    // A non-empty directory at the path of the file.
    let blocked = sibling_path(&path, PREVIOUS);
    std::fs::create_dir_all(blocked.join("content")).unwrap();
    keyring.promote().unwrap_err();
    assert_eq!((keyring.current(), keyring.pending()), (&one, Some(&other)));
    std::fs::remove_dir_all(&blocked).unwrap();
    keyring.promote().unwrap();
    assert_eq!(Keyring::read_from(&path).unwrap().current(), &other);
}
