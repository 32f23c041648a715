//! A signer's directory: written files are read back, and changed files are refused.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::{NOW, key, sign, stamp};
use linewarden_signatures::key::{PrivateKey, PublicKey};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::{
    MachineId, SealedFileError, SealedKind, SealingKey, SignerDirectory, SignerFileError, create_sealed,
    open_sealed, read_public,
};

fn sealing_key() -> SealingKey {
    SealingKey::from_bytes([9; 32])
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn keys_of_all_schemes_are_read_back() {
    for scheme in Scheme::ALL {
        let temporary = tempfile::tempdir().unwrap();
        let directory = SignerDirectory::at(temporary.path());
        let key = key(scheme);
        directory.create(key, None, &sealing_key()).unwrap();
        assert_eq!(mode(&temporary.path().join("key")), 0o600);
        let key_read = directory.key(&sealing_key()).unwrap();
        assert_eq!(key_read.public().id(), key.public().id());
        assert_eq!(key_read.to_bytes().unwrap(), key.to_bytes().unwrap());
        assert_eq!(
            read_public(&directory.public_path()).unwrap().id(),
            key.public().id()
        );
        assert!(
            directory.create(key, None, &sealing_key()).is_err(),
            "an existing signer is not overwritten"
        );
        let other_sealing_key = SealingKey::from_bytes([8; 32]);
        assert!(matches!(
            directory.key(&other_sealing_key),
            Err(SignerFileError::Sealed(SealedFileError::NotAuthentic { .. }))
        ));
    }
}

#[test]
fn private_keys_with_changed_or_missing_bytes_are_refused() {
    let key = key(Scheme::Ed25519);
    let bytes = key.to_bytes().unwrap();
    for length in 0..bytes.len() {
        assert!(
            PrivateKey::from_bytes(&bytes[..length]).is_err(),
            "{length} bytes"
        );
    }
    let temporary = tempfile::tempdir().unwrap();
    let directory = SignerDirectory::at(temporary.path());
    directory.create(key, None, &sealing_key()).unwrap();
    let path = temporary.path().join("key");
    let original = std::fs::read(&path).unwrap();
    for offset in 0..original.len() {
        let mut changed = original.clone();
        changed[offset] ^= 4;
        std::fs::write(&path, &changed).unwrap();
        assert!(directory.key(&sealing_key()).is_err(), "byte {offset}");
    }
    for length in 0..original.len() {
        std::fs::write(&path, &original[..length]).unwrap();
        assert!(directory.key(&sealing_key()).is_err(), "{length} bytes");
    }
}

#[test]
fn a_sealed_file_is_bound_to_its_kind_and_signer() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("file");
    let id = key(Scheme::Ed25519).public().id();
    create_sealed(&path, SealedKind::Table, id, &sealing_key(), b"rows").unwrap();
    let (file_signer, secret) = open_sealed(&path, SealedKind::Table, &sealing_key(), 4).unwrap();
    assert_eq!((file_signer, secret.as_slice()), (id, b"rows".as_slice()));
    assert!(matches!(
        open_sealed(&path, SealedKind::Key, &sealing_key(), 4),
        Err(SealedFileError::WrongKind { .. })
    ));
    assert!(matches!(
        open_sealed(&path, SealedKind::Table, &sealing_key(), 3),
        Err(SealedFileError::WrongKind { .. })
    ));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
    assert!(matches!(
        open_sealed(&path, SealedKind::Table, &sealing_key(), 4),
        Err(SealedFileError::UnsafePermissions { .. })
    ));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut newer = std::fs::read(&path).unwrap();
    newer[4] = 2;
    std::fs::write(&path, newer).unwrap();
    let error = open_sealed(&path, SealedKind::Table, &sealing_key(), 4).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn sealing_keys_are_64_digits_readable_by_their_owner_only() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("seal.key");
    SealingKey::create(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert!(SealingKey::read(&path).is_ok());
    assert!(
        SealingKey::create(&path).is_err(),
        "an existing key is not overwritten"
    );
    let text = std::fs::read_to_string(&path).unwrap();
    for invalid_text in [
        "",
        "00",
        &text[1..],
        &text.replace(|digit: char| digit.is_ascii_hexdigit(), "x"),
    ] {
        std::fs::write(&path, invalid_text).unwrap();
        assert!(
            matches!(
                SealingKey::read(&path),
                Err(SignerFileError::InvalidSealingKey { .. })
            ),
            "{invalid_text:?}"
        );
    }
    std::fs::write(&path, &text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(
        SealingKey::read(&path),
        Err(SignerFileError::UnsafeSealingKey { .. })
    ));
}

/// Debug output is written to logs.
#[test]
fn debug_output_has_no_secrets() {
    let key = key(Scheme::RaRsa2048);
    let output = format!("{key:?} {:?} {:?}", key.ra().unwrap(), sealing_key());
    let secret = hex::encode(key.to_bytes().unwrap().as_slice());
    for window in secret.as_bytes().windows(16).step_by(8) {
        assert!(!output.contains(str::from_utf8(window).unwrap()));
    }
    assert!(output.len() < 120, "{output}");
}

#[test]
fn machines_are_distinguished_by_their_ids() {
    assert_eq!(MachineId::of_name(b"one"), MachineId::of_name(b"one"));
    assert_ne!(MachineId::of_name(b"one"), MachineId::of_name(b"two"));
}

/// Weak public keys: even and short moduli, points that are not on the curve or verify any message.
#[test]
fn weak_public_keys_are_refused() {
    let modulus = |bytes: usize, first: u8, last: u8| {
        let mut modulus = vec![0x5a; bytes];
        modulus[0] = first;
        modulus[bytes - 1] = last;
        modulus
    };
    for (scheme, bytes) in [(Scheme::RsaPss2048, 256), (Scheme::RsaPss3072, 384)] {
        assert!(PublicKey::plain(scheme, &modulus(bytes, 0x80, 1)).is_ok());
        assert!(
            PublicKey::plain(scheme, &modulus(bytes, 0x80, 2)).is_err(),
            "even"
        );
        assert!(
            PublicKey::plain(scheme, &modulus(bytes, 0x7f, 1)).is_err(),
            "one bit short"
        );
        assert!(PublicKey::plain(scheme, &modulus(bytes - 1, 0x80, 1)).is_err());
        assert!(PublicKey::plain(scheme, &modulus(128, 0x80, 1)).is_err());
        assert!(PublicKey::plain(scheme, &[3]).is_err());
        assert!(PublicKey::plain(scheme, &[]).is_err());
    }
    let mut off_curve = [4; 65];
    off_curve[64] = 5;
    assert!(PublicKey::plain(Scheme::EcdsaP256, &off_curve).is_err());
    assert!(PublicKey::plain(Scheme::EcdsaP256, &[0; 65]).is_err());
    let mut identity = [0; 32];
    identity[0] = 1;
    assert!(
        PublicKey::plain(Scheme::Ed25519, &identity).is_err(),
        "the neutral point"
    );
    assert!(
        PublicKey::plain(Scheme::Ed25519, &[0; 32]).is_err(),
        "a point of order 4"
    );
    assert!(
        PublicKey::plain(Scheme::Ed25519, &[0xff; 32]).is_err(),
        "not canonically encoded"
    );
    assert!(
        PublicKey::plain(Scheme::RaRsa2048, &modulus(256, 0x80, 1)).is_err(),
        "no layout"
    );
}

#[test]
fn messages_of_all_schemes_fit_an_mtu_of_1500() {
    for scheme in Scheme::ALL {
        assert!(sign(scheme, stamp(NOW, 0), 1).len() <= 500);
    }
}
