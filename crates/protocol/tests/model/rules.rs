//! The rules of LAP/1 that a gateway stands on, each of which can be taken away to see whether the model notices.
//!
//! The gateway of this model is written once, with every rule asked for where it applies. That gateway with all its
//! rules is compared with the crate's oracle message by message (`node.rs`); with one rule removed, the ledger must
//! find a violation. So production code carries no switch for tests, and still what is mutated is what runs.

/// One rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The winner is who compares-and-swaps the commit word; without: it is stored.
    CompareAndSwap,
    /// A RESPONSE carries one of the last two freshness values; without: any.
    Freshness,
    /// The tag of a BOUND RESPONSE covers the MAC address it comes from; without: any MAC address will do.
    MacBinding,
    /// The same ACK again is for the winning tag only; without: for any tag from the winner's place.
    WinnerTag,
    /// A line that is not VALID verifies nothing; without: it verifies with what is there, zeros too.
    Valid,
    /// BUSY keeps the line for the winner; without: the winner leaves it VALID and nobody looks at BUSY.
    BusyOwnership,
    /// The commit word is read again before the same ACK leaves, so that it is not made of two sessions.
    AckAgainRecheck,
    /// DATA reads the window before the session's id and key; without: after.
    WindowBeforeKey,
    /// The winner zeroes the session id before it writes anything of the new session; without: it does not.
    SessionIdZeroedFirst,
    /// User space publishes a row by writing its key's second half last; without: first.
    SecondHalfLast,
    /// A row is taken by exchanging its second half with zero; without: it is read and left there.
    RowTakenByExchange,
    /// The winner releases by an atomic operation that keeps REVOKED; without: it stores the word it knows.
    ReleaseKeepsRevoked,
}

impl Rule {
    /// The six whose removal must be caught, and further ones that the steps depend on.
    pub const ALL: [Self; 12] = [
        Self::CompareAndSwap,
        Self::Freshness,
        Self::MacBinding,
        Self::WinnerTag,
        Self::Valid,
        Self::BusyOwnership,
        Self::AckAgainRecheck,
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

    pub fn keep(self, rule: Rule) -> bool {
        self.removed != Some(rule)
    }
}
