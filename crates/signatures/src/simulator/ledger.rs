//! The book in which each message must leave exactly once.

use std::fmt;

/// Why a run is no good: the scheduler, or whoever drives it, lost or doubled something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A message left twice.
    Twice {
        /// Its place in the trace.
        message: usize,
    },
    /// Messages never left.
    Missing {
        /// The first one's place in the trace.
        first: usize,
        /// How many.
        count: usize,
    },
    /// A message left that the trace does not have.
    Unknown {
        /// Its place.
        message: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice { message } => write!(f, "message {message} left twice"),
            Self::Missing { first, count } => write!(f, "{count} messages never left, message {first} first"),
            Self::Unknown { message } => write!(f, "message {message} is not in the trace"),
        }
    }
}

pub(super) struct Ledger {
    left: Vec<bool>,
}

impl Ledger {
    pub(super) fn new(messages: usize) -> Self {
        Self {
            left: vec![false; messages],
        }
    }

    pub(super) fn leave(&mut self, message: usize) -> Result<(), Fault> {
        let left = self.left.get_mut(message).ok_or(Fault::Unknown { message })?;
        if std::mem::replace(left, true) {
            Err(Fault::Twice { message })
        } else {
            Ok(())
        }
    }

    pub(super) fn close(&self) -> Result<(), Fault> {
        let count = self.left.iter().filter(|left| !**left).count();
        match self.left.iter().position(|left| !*left) {
            Some(first) => Err(Fault::Missing { first, count }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_notices_what_is_lost_doubled_and_invented() {
        let mut ledger = Ledger::new(3);
        assert_eq!(ledger.leave(1), Ok(()));
        assert_eq!(ledger.close(), Err(Fault::Missing { first: 0, count: 2 }));
        assert_eq!(ledger.leave(1), Err(Fault::Twice { message: 1 }));
        assert_eq!(ledger.leave(3), Err(Fault::Unknown { message: 3 }));
        ledger.leave(0).unwrap();
        ledger.leave(2).unwrap();
        assert_eq!(ledger.close(), Ok(()));
    }
}
