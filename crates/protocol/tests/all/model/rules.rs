//! The rules of LAP/1 that a gateway depends on. Each rule can be removed to check that the model detects its
//! removal.
//!
//! The gateway of this model is written once and checks every rule where it applies. With all rules it is compared
//! with the crate's oracle message by message (`node.rs`); with one rule removed, the invariants must detect a
//! violation. So production code needs no test switches. The code from which a rule is removed is the same code that is
//! compared with the oracle.

/// One rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The CPU that compares-and-swaps the commit word wins; without: the word is stored.
    CompareAndSwap,
    /// A RESPONSE carries one of the last two freshness values; without: any.
    Freshness,
    /// The tag of a BOUND RESPONSE covers its source MAC address; without: any MAC address is accepted.
    MacBinding,
    /// The repeated ACK is for the winning tag only; without: for any tag from the winner's origin.
    WinnerTag,
    /// A line that is not VALID verifies nothing; without: it verifies with its content, even zeros.
    Valid,
    /// BUSY reserves the line for the winner; without: the winner leaves the line VALID, and BUSY is ignored.
    BusyOwnership,
    /// The commit word is read again before the repeated ACK is sent, so that the ACK does not mix two sessions.
    RepeatedAckRecheck,
    /// DATA reads the window before the session's id and key; without: after.
    WindowBeforeKey,
    /// The winner zeroes the session id before it writes anything of the new session; without: the old id stays.
    SessionIdZeroedFirst,
    /// User space publishes a row by writing its key's second half last; without: first.
    SecondHalfLast,
    /// A row is taken by exchanging its second half with zero; without: it is read and not removed.
    RowTakenByExchange,
    /// The winner releases by an atomic operation that keeps REVOKED; without: it stores its own copy of the word.
    ReleaseKeepsRevoked,
}

impl Rule {
    /// All twelve rules; the model must detect the removal of each of them.
    pub const ALL: [Self; 12] = [
        Self::CompareAndSwap,
        Self::Freshness,
        Self::MacBinding,
        Self::WinnerTag,
        Self::Valid,
        Self::BusyOwnership,
        Self::RepeatedAckRecheck,
        Self::WindowBeforeKey,
        Self::SessionIdZeroedFirst,
        Self::SecondHalfLast,
        Self::RowTakenByExchange,
        Self::ReleaseKeepsRevoked,
    ];
}

/// All rules, or all but one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    removed: Option<Rule>,
}

impl Rules {
    pub fn without(rule: Rule) -> Self {
        Self { removed: Some(rule) }
    }

    pub fn contains(self, rule: Rule) -> bool {
        self.removed != Some(rule)
    }
}
