//! Why a signed message is refused: one numbered list for all lanes, counters and outputs.

use std::fmt;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $key:literal;)+) => {
        /// Why a signed message is refused. Numbers and names are never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Refusal {
            /// All reasons, in the order of the checks.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name in counters and JSON.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)+
                }
            }

            /// The description for people.
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
    /// Not a message of this protocol: wrong first bytes, or truncated.
    Malformed = 1, "malformed";
    /// Unsupported protocol version.
    UnsupportedVersion = 2, "version";
    /// No scheme has this number.
    UnknownScheme = 3, "unknown_scheme";
    /// Shorter or longer than the header states.
    WrongLength = 4, "wrong_length";
    /// No public key with this id is configured.
    UnknownSigner = 5, "unknown_signer";
    /// The signer's key belongs to another scheme.
    KeySchemeMismatch = 6, "cross_key";
    /// The signer has been revoked.
    Revoked = 7, "revoked";
    /// The payload does not match the kind and layout of the key.
    WrongLayout = 8, "wrong_layout";
    /// Signed longer ago than the receiver accepts.
    TooOld = 9, "too_old";
    /// Signed further in the future than the receiver accepts.
    TooNew = 10, "too_new";
    /// This message was accepted before.
    Replayed = 11, "replayed";
    /// A number of the signature is not in its range.
    OutOfRange = 12, "out_of_range";
    /// A second form of a signature, where the receiver accepts one form only.
    Malleable = 13, "malleable";
    /// The signature is invalid for this signer and message.
    WrongSignature = 14, "wrong_signature";
    /// The replay memory is full, and the signer has used its share. Accepting the message would allow a replay.
    ReplayMemoryFull = 15, "replay_memory_full";
}

impl Refusal {
    /// The number in this list.
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
