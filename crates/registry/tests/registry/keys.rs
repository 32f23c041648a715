//! Key files and variables: valid ones, and refusals with remedies.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use linewarden_harness::skip;
use linewarden_registry::{KeyError, MasterKey, RegistryError};
use tempfile::TempDir;

const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn key_file(content: &[u8], mode: u32) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("master.key");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    (directory, path)
}

fn refusal(path: &Path) -> String {
    let error = MasterKey::from_file(path).unwrap_err();
    assert!(
        matches!(error, RegistryError::Key(KeyError::FileUnsafe { .. })),
        "{error}"
    );
    error.to_string()
}

#[test]
fn a_generated_key_file_is_private_and_reads_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("master.key");
    MasterKey::generate_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!((text.len(), text.ends_with('\n')), (65, true));
    MasterKey::from_file(&path).unwrap();
    // A key file is never overwritten, and each generated key is different.
    assert!(matches!(
        MasterKey::generate_file(&path),
        Err(RegistryError::Key(KeyError::FileExists { .. }))
    ));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let other = directory.path().join("other.key");
    MasterKey::generate_file(&other).unwrap();
    assert_ne!(fs::read_to_string(&other).unwrap(), text);
}

#[test]
fn both_cases_of_digits_and_white_space_around_them_are_accepted() {
    for content in [
        DIGITS.to_owned(),
        format!("{}\r\n", DIGITS.to_uppercase()),
        format!("  {DIGITS}\n\n"),
    ] {
        let (_directory, path) = key_file(content.as_bytes(), 0o400);
        MasterKey::from_file(&path).unwrap();
    }
}

#[test]
fn an_unsafe_key_file_is_refused_with_a_remedy() {
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666] {
        let (_directory, path) = key_file(DIGITS.as_bytes(), mode);
        let message = refusal(&path);
        assert!(message.contains(&format!("{mode:04o}")), "{message}");
        assert!(
            message.contains(&format!("chmod 600 {}", path.display())),
            "{message}"
        );
    }
}

#[test]
fn a_symbolic_link_is_checked_by_its_target() {
    let (directory, path) = key_file(DIGITS.as_bytes(), 0o600);
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    MasterKey::from_file(&link).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    refusal(&link);
    // A new key is never written through a symbolic link, even a dangling one.
    let dangling = directory.path().join("dangling");
    symlink(directory.path().join("nowhere"), &dangling).unwrap();
    assert!(matches!(
        MasterKey::generate_file(&dangling),
        Err(RegistryError::Key(KeyError::FileExists { .. }))
    ));
}

#[test]
fn another_users_file_is_refused() {
    let (_directory, path) = key_file(DIGITS.as_bytes(), 0o600);
    // Only root may change file owners; other users skip this case.
    if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
        skip!("giving a file to another user needs root");
    }
    assert!(refusal(&path).contains("owned by user 65534"));
}

#[test]
fn directories_and_pipes_are_refused_without_hanging() {
    let directory = tempfile::tempdir().unwrap();
    assert!(refusal(directory.path()).contains("not a regular file"));
    let fifo = directory.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(refusal(&fifo).contains("not a regular file"));
}

#[test]
fn errors_about_malformed_keys_name_the_fault_and_not_the_key() {
    let cases = [
        ("", "the key is empty"),
        (" \n", "the key is empty"),
        (&DIGITS[..62], "the key has 62 digits"),
        (&DIGITS[..63], "the key has 63 digits"),
        (&"ab".repeat(512), "the key has 1024 digits"),
        (
            &DIGITS.replace("1f", "1g"),
            "character 64 is not a hexadecimal digit",
        ),
        (
            &format!("{DIGITS}\n{DIGITS}"),
            "character 65 is not a hexadecimal digit",
        ),
        (&"0".repeat(64), "the key is all zero"),
    ];
    for (content, fault) in cases {
        let (_directory, path) = key_file(content.as_bytes(), 0o600);
        let error = MasterKey::from_file(&path).unwrap_err();
        assert!(
            matches!(error, RegistryError::Key(KeyError::Malformed { .. })),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains(fault), "{message}");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(!message.contains("0001020304"), "{message}");
    }
    let (_directory, path) = key_file("ab".repeat(600).as_bytes(), 0o600);
    let error = MasterKey::from_file(&path).unwrap_err().to_string();
    assert!(error.contains("the limit is 1024 bytes"), "{error}");
    let (_directory, path) = key_file(&[0xff; 32], 0o600);
    assert!(
        MasterKey::from_file(&path)
            .unwrap_err()
            .to_string()
            .contains("character 1 is not")
    );
}

#[test]
fn a_missing_file_and_an_unset_variable_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.key");
    let message = MasterKey::from_file(&path).unwrap_err().to_string();
    assert!(message.contains("none.key"), "{message}");
    let message = MasterKey::from_env("LINEWARDEN_TEST_UNSET")
        .unwrap_err()
        .to_string();
    assert!(message.contains("LINEWARDEN_TEST_UNSET is not set"), "{message}");
    // A variable that always exists and holds no key.
    let message = MasterKey::from_env("PATH").unwrap_err().to_string();
    assert!(
        message.contains("malformed key in the environment variable PATH"),
        "{message}"
    );
}

#[test]
fn debug_output_shows_no_key() {
    assert_eq!(
        format!("{:?}", MasterKey::from_bytes([0x5a; 32])),
        "MasterKey(..)"
    );
}
