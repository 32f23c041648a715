//! A counter in a file. A program increments the counter at each start, so that no number repeats.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::{read_text_bounded, replace};

/// Format name and version, at the start of the file.
const FILE_PREFIX: &str = "linewarden count 1: ";
/// Maximum length of the file, in bytes.
const FILE_BYTES_MAX: usize = 128;

/// Why there is no next number.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// An error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file was not written by [`next_count`], was changed by another program, or contains the maximum number.
    #[error(
        "the file is damaged: {0}; restore it, or remove it to restart at 1 if none of its numbers is in use"
    )]
    Damaged(&'static str),
}

/// Increments the number in the file and returns the new number, or 1 if there is no file. The new number is on disk
/// before the function returns. Concurrent processes get different numbers.
///
/// # Errors
/// The file cannot be read or written, or is damaged. A damaged file is left unchanged, because a restarted count
/// could repeat a number.
pub fn next_count(path: &Path) -> Result<u64, CounterError> {
    let _lock = lock_sidecar(path)?;
    let current = match read_text_bounded(path, FILE_BYTES_MAX) {
        Ok(text) => parse(&text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(CounterError::Damaged("not text"));
        }
        Err(error) => return Err(error.into()),
    };
    let next = current
        .checked_add(1)
        .ok_or(CounterError::Damaged("the maximum number is reached"))?;
    replace(path, format_count(next).as_bytes())?;
    Ok(next)
}

/// Locks the file `PATH.lock` until the returned file is closed. The counter file itself cannot be locked, because each
/// write replaces the file. Only the owner may open the lock file, because every user who can open a file can lock it.
fn lock_sidecar(path: &Path) -> io::Result<File> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path.with_file_name(name))?;
    lock.lock()?;
    Ok(lock)
}

/// Formats the number and its bitwise complement, which detects a changed digit.
fn format_count(number: u64) -> String {
    format!("{FILE_PREFIX}{number} {:016x}\n", !number)
}

fn parse(text: &str) -> Result<u64, CounterError> {
    let rest = text
        .strip_prefix(FILE_PREFIX)
        .ok_or(CounterError::Damaged("unknown format, or truncated"))?;
    let number = rest.split(' ').next().and_then(|number| number.parse().ok());
    let number = number.ok_or(CounterError::Damaged("no number"))?;
    match format_count(number) == text {
        true => Ok(number),
        false => Err(CounterError::Damaged("the two copies of the number differ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_numbers_are_accepted() {
        for number in [1, 2, 10, u64::MAX - 1] {
            assert_eq!(parse(&format_count(number)).unwrap(), number);
            let text = format_count(number);
            for index in 0..text.len() {
                let mut altered = text.clone().into_bytes();
                if let Some(byte) = altered.get_mut(index) {
                    *byte ^= 1;
                }
                assert!(
                    parse(&String::from_utf8(altered).unwrap()).is_err(),
                    "byte {index} of {text}"
                );
                assert!(
                    parse(text.get(..index).unwrap()).is_err(),
                    "{index} bytes of {text}"
                );
            }
        }
    }
}
