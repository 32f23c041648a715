//! Errors of commands.

use crate::forwarding::ForwardingError;
use crate::meter::MeterError;
use crate::stf::NumberError;
use crate::stf::names::NameError;
use crate::tables::KeyError;

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Number(#[from] NumberError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Forwarding(#[from] ForwardingError),
    #[error(transparent)]
    Meter(#[from] MeterError),
    #[error("{0}")]
    Other(String),
}

pub(super) type CommandResult<T> = Result<T, CommandError>;

pub(super) fn fail<T>(problem: impl Into<String>) -> CommandResult<T> {
    Err(CommandError::Other(problem.into()))
}

pub(super) fn number(index: Option<usize>) -> CommandResult<u32> {
    let number = index.and_then(|index| u32::try_from(index).ok());
    number.ok_or_else(|| CommandError::Other("unknown element".to_owned()))
}
