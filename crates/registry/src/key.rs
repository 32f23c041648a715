//! The two secrets that people handle: the master key of a registry and the key of an export file.
//!
//! Both are 32 random bytes, written as 64 hexadecimal digits, in a file that only its owner may read or in an
//! environment variable. They are keys, not passwords: nothing stretches them.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
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
    let unreadable = |source| RegistryError::KeyFileUnreadable {
        path: path.to_owned(),
        source,
    };
    // NONBLOCK: a FIFO put in the file's place must not hang us before we can refuse it.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(unreadable)?;
    check_key_file(path, &file)?;

    // One buffer of full size: growing one would leave copies of the key behind.
    let mut text = Zeroizing::new(vec![0u8; KEY_FILE_BYTES_MAX]);
    let mut length = 0;
    while let Some(rest) = text.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match (&file).read(rest) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    text.truncate(length);
    parse_key(&text, || path.display().to_string())
}

/// Checks the opened file, not the path, which may lead elsewhere a moment later.
fn check_key_file(path: &Path, file: &File) -> Result<()> {
    let refuse = |problem: String, remedy: String| {
        Err(RegistryError::KeyFileUnsafe {
            path: path.to_owned(),
            problem,
            remedy,
        })
    };
    let metadata = file
        .metadata()
        .map_err(|source| RegistryError::KeyFileUnreadable {
            path: path.to_owned(),
            source,
        })?;
    if !metadata.is_file() {
        return refuse(
            "it is not a regular file".to_owned(),
            "give the path of a key file".to_owned(),
        );
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return refuse(
            format!("its mode {mode:04o} gives group or others access"),
            format!(
                "run `chmod 600 {}`, and make a new key if others may have read it",
                path.display()
            ),
        );
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return refuse(
            format!(
                "it belongs to user {}, this program runs as user {user}",
                metadata.uid()
            ),
            "run as its owner, or give the file to this user".to_owned(),
        );
    }
    Ok(())
}

fn write_key_file(path: &Path, key: &[u8; KEY_BYTES]) -> Result<()> {
    let mut file = match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(RegistryError::KeyFileExists {
                path: path.to_owned(),
            });
        }
        Err(error) => {
            return Err(RegistryError::io(format!(
                "create the key file {}",
                path.display()
            ))(error));
        }
    };
    let mut digits = Zeroizing::new([0u8; 2 * KEY_BYTES]);
    let written = hex::encode_to_slice(key, digits.as_mut_slice())
        .map_err(io::Error::other)
        .and_then(|()| file.write_all(digits.as_slice()))
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_parent(path));
    written.map_err(|error| {
        // Half a key must not stay behind to be taken for a whole one.
        let _ = std::fs::remove_file(path);
        RegistryError::io(format!("write the key file {}", path.display()))(error)
    })
}

/// Makes a new directory entry durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
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
