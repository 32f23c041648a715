//! Keys that operators handle: the master key of a registry and the key of an export file.
//!
//! Each key has 32 random bytes, written as 64 hexadecimal digits, in a file that only its owner may read or in an
//! environment variable. A key must be random and not a password: no key derivation strengthens a password.

use std::fmt;
use std::io;
use std::path::Path;

use linewarden_files::{PrivateFileError, create_private, read_private};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::error::{DatabaseError, KeyError, RegistryError, Result};

/// Length of a key, bytes.
pub const KEY_BYTES: usize = 32;
/// Maximum length of a key file, bytes.
const KEY_FILE_BYTES_MAX: usize = 1024;

macro_rules! key_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; KEY_BYTES]);

        impl $name {
            /// Creates a key from 32 random bytes.
            #[must_use]
            pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
                Self(bytes)
            }

            /// Reads a key file. Symbolic links are followed, and their target is checked.
            ///
            /// # Errors
            /// A file that cannot be read, is not a regular file, has another owner, is accessible to group or
            /// others, or does not contain exactly 64 hexadecimal digits.
            pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
                read_key_file(path.as_ref()).map(Self)
            }

            /// Reads the key from an environment variable.
            ///
            /// # Errors
            /// A variable that is not set or does not contain exactly 64 hexadecimal digits.
            pub fn from_env(variable: &str) -> Result<Self> {
                let value = std::env::var_os(variable)
                    .ok_or_else(|| RegistryError::Key(KeyError::VariableMissing { variable: variable.to_owned() }))?;
                let text = Zeroizing::new(value.into_encoded_bytes());
                parse_key(&text, || format!("the environment variable {variable}")).map(Self)
            }

            /// Generates a random key and stores it durably in a new file of mode 0600.
            ///
            /// # Errors
            /// An existing file (never overwritten), a directory that cannot be written, no random bytes.
            pub fn generate_file(path: impl AsRef<Path>) -> Result<Self> {
                let mut key = Self([0; KEY_BYTES]);
                getrandom::fill(&mut key.0).map_err(DatabaseError::NoRandomBytes)?;
                write_key_file(path.as_ref(), &key.0)?;
                Ok(key)
            }

            pub(crate) fn expose(&self) -> &[u8; KEY_BYTES] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

key_type!(
    /// The key that seals a registry's credentials. Without the key the registry is unusable. A party with both the key
    /// and the registry can impersonate every device, so keep the key and the registry apart in backups.
    MasterKey
);
key_type!(
    /// The key that seals the credentials in an export file, so that a registry with another master key can import the
    /// credentials.
    ExportKey
);

fn read_key_file(path: &Path) -> Result<[u8; KEY_BYTES]> {
    let text = read_private(path, KEY_FILE_BYTES_MAX).map_err(|error| match error {
        PrivateFileError::Io(source) => RegistryError::Key(KeyError::FileUnreadable {
            path: path.to_owned(),
            source,
        }),
        PrivateFileError::Unsafe { problem, remedy } => RegistryError::Key(KeyError::FileUnsafe {
            path: path.to_owned(),
            problem,
            remedy,
        }),
    })?;
    parse_key(&text, || path.display().to_string())
}

fn write_key_file(path: &Path, key: &[u8; KEY_BYTES]) -> Result<()> {
    let mut line = Zeroizing::new([b'\n'; 2 * KEY_BYTES + 1]);
    let written = line
        .first_chunk_mut::<{ 2 * KEY_BYTES }>()
        .map_or(Ok(()), |digits| hex::encode_to_slice(key, digits))
        .map_err(io::Error::other)
        .and_then(|()| create_private(path, line.as_slice()));
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => RegistryError::Key(KeyError::FileExists {
            path: path.to_owned(),
        }),
        _ => RegistryError::io(format!("write the key file {}", path.display()))(error),
    })
}

fn parse_key(text: &[u8], origin: impl Fn() -> String) -> Result<[u8; KEY_BYTES]> {
    let malformed = |problem: String| {
        Err(RegistryError::Key(KeyError::Malformed {
            origin: origin(),
            problem,
        }))
    };
    let digits = text.trim_ascii();
    if digits.is_empty() {
        return malformed("the key is empty".to_owned());
    }
    if let Some(position) = digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        return malformed(format!("character {} is not a hexadecimal digit", position + 1));
    }
    let mut key = [0u8; KEY_BYTES];
    if hex::decode_to_slice(digits, &mut key).is_err() {
        return malformed(format!("the key has {} digits", digits.len()));
    }
    if key == [0u8; KEY_BYTES] {
        return malformed("the key is all zero".to_owned());
    }
    Ok(key)
}
