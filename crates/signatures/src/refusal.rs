//! Why a signed message is refused: one numbered list for all lanes, counters and outputs.

use std::fmt;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $key:literal;)+) => {
        /// Why a signed message is refused. Numbers and names are never used again for something else.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Refusal {
            /// All of them, in the order in which they are looked for.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Its name in counters and JSON.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)+
                }
            }

            /// What it says to a person.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

refusals! {
    /// Not a message of this protocol: wrong first bytes, or cut short.
    Malformed = 1, "malformed";
    /// A version that this program does not speak.
    Version = 2, "version";
    /// No scheme has this number.
    UnknownScheme = 3, "unknown_scheme";
    /// Shorter or longer than its header says.
    WrongLength = 4, "wrong_length";
    /// No public key with this id is known here.
    UnknownSigner = 5, "unknown_signer";
    /// The signer's key is of another scheme.
    CrossKey = 6, "cross_key";
    /// The signer has been revoked.
    Revoked = 7, "revoked";
    /// The payload is not of the kind and shape that the key's layout demands.
    WrongLayout = 8, "wrong_layout";
    /// Signed longer ago than is accepted.
    TooOld = 9, "too_old";
    /// Signed in the future, beyond what clocks may differ.
    TooNew = 10, "too_new";
    /// This message was accepted before.
    Replayed = 11, "replayed";
    /// A number of the signature is not in its range.
    OutOfRange = 12, "out_of_range";
    /// A second form of a signature that has one form only; with ECDSA, where the receiver asks for one.
    Malleable = 13, "malleable";
    /// The signature is not this signer's over this message.
    WrongSignature = 14, "wrong_signature";
    /// More messages were accepted in the window than are remembered, and of this signer more than its share; accepting this one could
    /// let a replay in.
    ReplayMemoryFull = 15, "replay_memory_full";
}

impl Refusal {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::Refusal;

    #[test]
    fn numbers_follow_each_other_and_names_differ() {
        for (index, refusal) in Refusal::ALL.iter().enumerate() {
            assert_eq!(usize::from(refusal.number()), index + 1);
            assert!(
                Refusal::ALL[..index]
                    .iter()
                    .all(|other| other.key() != refusal.key())
            );
            assert!(refusal.description().ends_with('.') && !refusal.description().starts_with(' '));
        }
    }
}
