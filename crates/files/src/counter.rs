//! A number in a file that is one more at each start, and never the same twice.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::{read_text_bounded, replace};

/// What the file begins with.
const HEAD: &str = "linewarden count 1: ";
/// No file of this kind is longer.
const FILE_BYTES_MAX: usize = 128;

/// Why there is no next number.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The operating system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not what [`next_count`] has written.
    #[error(
        "it is damaged: {0}; restore it, or, if nobody has seen a number of it, remove it, and the count begins anew at 1"
    )]
    Damaged(&'static str),
}

/// The number after the one in the file, which is there durably when this returns; 1 where no file is. Processes that call it at once
/// get different numbers.
///
/// # Errors
/// A file that cannot be read or written, or is damaged: then it is left as it is, for a number that was counted from it could have
/// been given before.
pub fn next_count(path: &Path) -> Result<u64, CounterError> {
    let _locked = lock_beside(path)?;
    let before = match read_text_bounded(path, FILE_BYTES_MAX) {
        Ok(text) => parse(&text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(CounterError::Damaged("no text"));
        }
        Err(error) => return Err(error.into()),
    };
    let next = before
        .checked_add(1)
        .ok_or(CounterError::Damaged("the greatest number there is"))?;
    replace(path, line(next).as_bytes())?;
    Ok(next)
}

/// A file beside it, `PATH.lock`, that is locked as long as this is held: the file itself is replaced. Nobody else may open it, for
/// whoever opens a file can hold its lock.
fn lock_beside(path: &Path) -> io::Result<File> {
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

/// The number twice, so that a changed digit does not go unseen.
fn line(number: u64) -> String {
    format!("{HEAD}{number} {:016x}\n", !number)
}

fn parse(text: &str) -> Result<u64, CounterError> {
    let rest = text
        .strip_prefix(HEAD)
        .ok_or(CounterError::Damaged("another file, or cut off"))?;
    let number = rest.split(' ').next().and_then(|number| number.parse().ok());
    let number = number.ok_or(CounterError::Damaged("no number in it"))?;
    match line(number) == text {
        true => Ok(number),
        false => Err(CounterError::Damaged("its two halves do not agree")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_read() {
        for number in [1, 2, 10, u64::MAX - 1] {
            assert_eq!(parse(&line(number)).unwrap(), number);
            let text = line(number);
            for at in 0..text.len() {
                let mut other = text.clone().into_bytes();
                if let Some(byte) = other.get_mut(at) {
                    *byte ^= 1;
                }
                assert!(
                    parse(&String::from_utf8(other).unwrap()).is_err(),
                    "byte {at} of {text}"
                );
                assert!(parse(text.get(..at).unwrap()).is_err(), "{at} bytes of {text}");
            }
        }
    }
}
