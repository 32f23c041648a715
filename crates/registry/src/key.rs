//! The two secrets that people handle: the master key of a registry and the key of an export file.
//!
//! Both are 32 random bytes, written as 64 hexadecimal digits, in a file that only its owner may read or in an
//! environment variable. They are keys, not passwords: nothing stretches them.

use std::fmt;
use std::io;
use std::path::Path;

use linewarden_files::{PrivateFileError, create_private, read_private};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::error::{RegistryError, Result};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// No key file is longer; reading stops there.
const KEY_FILE_BYTES_MAX: usize = 1024;

macro_rules! key_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; KEY_BYTES]);

        impl $name {
            /// Takes over 32 random bytes.
            #[must_use]
            pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
                Self(bytes)
            }

            /// Reads a key file. Symbolic links are followed; what they lead to is what is checked.
            ///
            /// # Errors
            /// A file that cannot be read, is not a regular file, belongs to another user, may be read or
            /// written by group or others, or does not hold exactly 64 hexadecimal digits.
            pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
                read_key_file(path.as_ref()).map(Self)
            }

            /// Reads the key from the environment variable of that name.
            ///
            /// # Errors
            /// A variable that is not set or does not hold exactly 64 hexadecimal digits.
            pub fn from_env(variable: &str) -> Result<Self> {
                let value = std::env::var_os(variable)
                    .ok_or_else(|| RegistryError::KeyVariableUnset { variable: variable.to_owned() })?;
                let text = Zeroizing::new(value.into_encoded_bytes());
                parse_key(&text, || format!("the environment variable {variable}")).map(Self)
            }

            /// Makes a new random key and stores it in a new file of mode 0600, durably.
            ///
            /// # Errors
            /// An existing file (never overwritten), a directory that cannot be written, no random bytes.
            pub fn generate_file(path: impl AsRef<Path>) -> Result<Self> {
                let mut key = Self([0; KEY_BYTES]);
                getrandom::fill(&mut key.0).map_err(RegistryError::Entropy)?;
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
    /// The key under which a registry's credentials are sealed. Without it the registry is useless; with it and
    /// the file, every device can be impersonated, so keep the two apart in backups.
    MasterKey
);
key_type!(
    /// The key under which an export file's credentials are sealed, so that the file can travel to a registry
    /// with another master key.
    ExportKey
);

fn read_key_file(path: &Path) -> Result<[u8; KEY_BYTES]> {
    let text = read_private(path, KEY_FILE_BYTES_MAX).map_err(|error| match error {
        PrivateFileError::Io(source) => RegistryError::KeyFileUnreadable {
            path: path.to_owned(),
            source,
        },
        PrivateFileError::Unsafe { problem, remedy } => RegistryError::KeyFileUnsafe {
            path: path.to_owned(),
            problem,
            remedy,
        },
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
        io::ErrorKind::AlreadyExists => RegistryError::KeyFileExists {
            path: path.to_owned(),
        },
        _ => RegistryError::io(format!("write the key file {}", path.display()))(error),
    })
}

fn parse_key(text: &[u8], origin: impl Fn() -> String) -> Result<[u8; KEY_BYTES]> {
    let malformed = |problem: String| {
        Err(RegistryError::KeyMalformed {
            origin: origin(),
            problem,
        })
    };
    let digits = text.trim_ascii();
    if digits.is_empty() {
        return malformed("it is empty".to_owned());
    }
    if let Some(position) = digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        return malformed(format!("character {} is not a hexadecimal digit", position + 1));
    }
    let mut key = [0u8; KEY_BYTES];
    if hex::decode_to_slice(digits, &mut key).is_err() {
        return malformed(format!("it has {} digits", digits.len()));
    }
    if key == [0u8; KEY_BYTES] {
        return malformed("it is all zero".to_owned());
    }
    Ok(key)
}
