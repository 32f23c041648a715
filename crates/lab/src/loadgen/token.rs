//! The generator's tokens, one per concurrent handshake.

use crate::skeletons::loadgen::types;

/// A REQUEST was sent; a CHALLENGE is expected.
pub(super) const PHASE_REQUESTED: u32 = types::loadgen_phase::LOADGEN_REQUESTED.0;
/// The token was stopped, or its device cannot be served.
pub(super) const PHASE_ENDED: u32 = types::loadgen_phase::LOADGEN_ENDED.0;

/// `struct loadgen_token`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub(super) device: u32,
    pub(super) phase: u32,
    pub(super) steps: u64,
}

impl Token {
    /// The first state of a token: the token starts with the device of the same number.
    pub(super) fn new(token_index: u32) -> Self {
        Self {
            device: token_index,
            phase: PHASE_REQUESTED,
            steps: 0,
        }
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.phase.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.steps.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let word = |offset: usize| {
            let mut word = [0; 4];
            for (to, from) in word.iter_mut().zip(bytes.iter().skip(offset)) {
                *to = *from;
            }
            u32::from_ne_bytes(word)
        };
        let mut steps = [0; 8];
        for (to, from) in steps.iter_mut().zip(bytes.iter().skip(8)) {
            *to = *from;
        }
        Self {
            device: word(0),
            phase: word(4),
            steps: u64::from_ne_bytes(steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_layout_of_the_program() {
        let token = Token {
            device: 7,
            phase: 2,
            steps: 1 << 40,
        };
        assert_eq!(Token::from_bytes(&token.to_bytes()), token);
        assert_eq!(size_of::<types::loadgen_token>(), 16);
    }
}
