//! A ledger that checks that each message leaves exactly once.

use std::fmt;

/// Why a run is invalid: the scheduler, or the event loop, lost or duplicated a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LedgerError {
    /// A message left twice.
    Duplicate {
        /// Index in the trace.
        message: usize,
    },
    /// Messages that never left.
    Missing {
        /// Index of the first one in the trace.
        first: usize,
        /// Number of messages.
        count: usize,
    },
    /// A message left that is not in the trace.
    Unknown {
        /// The index.
        message: usize,
    },
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { message } => write!(f, "message {message} left twice"),
            Self::Missing { first, count } => write!(f, "{count} messages never left, message {first} first"),
            Self::Unknown { message } => write!(f, "message {message} is not in the trace"),
        }
    }
}

pub(super) struct MessageLedger {
    completed: Vec<bool>,
}

impl MessageLedger {
    pub(super) fn new(messages: usize) -> Self {
        Self {
            completed: vec![false; messages],
        }
    }

    pub(super) fn record_departure(&mut self, message: usize) -> Result<(), LedgerError> {
        let is_completed = self
            .completed
            .get_mut(message)
            .ok_or(LedgerError::Unknown { message })?;
        if std::mem::replace(is_completed, true) {
            Err(LedgerError::Duplicate { message })
        } else {
            Ok(())
        }
    }

    pub(super) fn check_complete(&self) -> Result<(), LedgerError> {
        let count = self
            .completed
            .iter()
            .filter(|is_completed| !**is_completed)
            .count();
        match self.completed.iter().position(|is_completed| !*is_completed) {
            Some(first) => Err(LedgerError::Missing { first, count }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_duplicate_and_unknown_messages_are_detected() {
        let mut ledger = MessageLedger::new(3);
        assert_eq!(ledger.record_departure(1), Ok(()));
        assert_eq!(
            ledger.check_complete(),
            Err(LedgerError::Missing { first: 0, count: 2 })
        );
        assert_eq!(
            ledger.record_departure(1),
            Err(LedgerError::Duplicate { message: 1 })
        );
        assert_eq!(
            ledger.record_departure(3),
            Err(LedgerError::Unknown { message: 3 })
        );
        ledger.record_departure(0).unwrap();
        ledger.record_departure(2).unwrap();
        assert_eq!(ledger.check_complete(), Ok(()));
    }
}
