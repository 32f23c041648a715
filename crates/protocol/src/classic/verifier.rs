//! The verifier of the classic profiles, as a reference implementation.

use alloc::vec::Vec;
use core::fmt;

use super::rng::SplitMix64;
use super::{Block, Message, Profile, RESPONSE_BYTES_MAX, ResponseBits, hash, mask, message_type, xor};
use crate::verdict::Verdict;

/// One challenge-response pair. The response itself is stored, as the papers specify.
#[derive(Clone, PartialEq, Eq)]
pub struct Crp {
    /// The challenge.
    pub challenge: u32,
    /// The response.
    pub response: Block,
}

impl fmt::Debug for Crp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crp({:08x}, ..)", self.challenge)
    }
}

/// Why a verifier cannot be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClassicError {
    /// An identifier has too few pairs for the profile that picks two pairs, one from each half.
    #[error("too few CRPs for identifier {0}: {1}; the two-challenge profile needs at least 2")]
    TooFewPairs(u32, usize),
    /// Identifiers and CRP numbers are 32 bit.
    #[error("too many CRPs or identifiers: {0}; the maximum is 2^32 - 1")]
    TooMany(usize),
}

/// The CRPs and the expected hash of each identifier.
#[derive(Debug)]
pub struct Verifier {
    profile: Profile,
    bits: ResponseBits,
    rng: SplitMix64,
    /// Identifier `i` is at index `i - 1`.
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Device {
    crps: Vec<Crp>,
    /// [`Profile::Iot`]: index of the next pair.
    next_pair_index: u32,
    /// The expected hash, if a challenge is outstanding.
    expected: Option<u32>,
}

impl Verifier {
    /// A verifier for identifiers 1, 2, … with their pairs.
    ///
    /// # Errors
    /// [`ClassicError`].
    pub fn new(
        profile: Profile,
        bits: ResponseBits,
        rng: SplitMix64,
        crps: Vec<Vec<Crp>>,
    ) -> Result<Self, ClassicError> {
        if u32::try_from(crps.len()).is_err() {
            return Err(ClassicError::TooMany(crps.len()));
        }
        for (identifier, pairs) in (1u32..).zip(&crps) {
            if u32::try_from(pairs.len()).is_err() {
                return Err(ClassicError::TooMany(pairs.len()));
            }
            if profile == Profile::Uav && pairs.len() < 2 {
                return Err(ClassicError::TooFewPairs(identifier, pairs.len()));
            }
        }
        let device = |crps| Device {
            crps,
            next_pair_index: 0,
            expected: None,
        };
        Ok(Self {
            profile,
            bits,
            rng,
            devices: crps.into_iter().map(device).collect(),
        })
    }

    /// The profile and the response size.
    #[must_use]
    pub fn profile_and_bits(&self) -> (Profile, ResponseBits) {
        (self.profile, self.bits)
    }

    /// The expected hash of an identifier; `None` if no challenge is outstanding.
    #[must_use]
    pub fn expected(&self, identifier: u32) -> Option<u32> {
        let device = usize::try_from(identifier.checked_sub(1)?).ok()?;
        self.devices.get(device)?.expected
    }

    /// Handles the payload of a datagram to the classic port; writes the reply in place if the verdict is a reply.
    pub fn handle(&mut self, payload: &mut [u8]) -> Verdict {
        let Some(message) = Message::parse(self.bits, payload) else {
            return Verdict::DropClassicMalformed;
        };
        let outcome = match message.kind {
            message_type::REQ => self
                .challenge(&message)
                .map(|reply| (Verdict::ReplyClassicChallenge, reply)),
            message_type::RESP => self
                .accept(&message)
                .map(|reply| (Verdict::ReplyClassicAck, reply)),
            _ => Err(Verdict::DropClassicMalformed),
        };
        match outcome {
            Err(reason) => reason,
            Ok((verdict, reply)) => reply
                .write(self.bits, payload)
                .map_or(Verdict::DropClassicMalformed, |()| verdict),
        }
    }

    /// The CH for a REQ. Any REQ replaces the expected hash, as the papers specify.
    fn challenge(&mut self, request: &Message) -> Result<Message, Verdict> {
        let device = device_mut(&mut self.devices, request.identifier)?;
        let (first, second) = match self.profile {
            Profile::Iot => (device.next_pair()?, None),
            Profile::Uav => {
                let (first, second) = device.two_pairs(self.rng.draw())?;
                (first, Some(second))
            }
        };
        let rn = draw_block(&mut self.rng, self.bits);
        let r2 = second.as_ref().map(|crp| &crp.response);
        device.expected = Some(hash(self.bits, &first.response, r2, &rn));
        let mut challenge = Message::new(message_type::CH, request.identifier);
        challenge.challenge1 = first.challenge;
        challenge.challenge2 = second.as_ref().map_or(0, |crp| crp.challenge);
        challenge.rn = xor(&rn, &mask(&first.response, r2));
        Ok(challenge)
    }

    fn accept(&mut self, response: &Message) -> Result<Message, Verdict> {
        let device = device_mut(&mut self.devices, response.identifier)?;
        if device.expected != Some(response.hash) {
            return Err(Verdict::DropClassicHash);
        }
        device.expected = None;
        Ok(Message {
            kind: message_type::ACK,
            process_time_ns: 0,
            ..*response
        })
    }
}

fn device_mut(devices: &mut [Device], identifier: u32) -> Result<&mut Device, Verdict> {
    let index = identifier
        .checked_sub(1)
        .and_then(|index| usize::try_from(index).ok());
    index
        .and_then(|index| devices.get_mut(index))
        .ok_or(Verdict::DropClassicUnknown)
}

impl Device {
    /// Takes the next pair; each pair is used once. An identifier without unused pairs is treated as unknown.
    fn next_pair(&mut self) -> Result<Crp, Verdict> {
        let crp = self.pair(u64::from(self.next_pair_index))?;
        self.next_pair_index = self.next_pair_index.saturating_add(1);
        Ok(crp)
    }

    /// One pair from each half, selected by the low and the high 32 bits of one draw. If the number of pairs is odd,
    /// the last pair is unused.
    fn two_pairs(&self, draw: u64) -> Result<(Crp, Crp), Verdict> {
        let half = u64::try_from(self.crps.len() / 2).map_err(|_| Verdict::DropClassicUnknown)?;
        let first = ((draw & 0xffff_ffff) * half) >> 32;
        let second = half + (((draw >> 32) * half) >> 32);
        Ok((self.pair(first)?, self.pair(second)?))
    }

    fn pair(&self, index: u64) -> Result<Crp, Verdict> {
        let crp = usize::try_from(index).ok().and_then(|index| self.crps.get(index));
        crp.cloned().ok_or(Verdict::DropClassicUnknown)
    }
}

/// Draws a random number, eight bytes per draw, big-endian.
fn draw_block(rng: &mut SplitMix64, bits: ResponseBits) -> Block {
    let mut block = [0; RESPONSE_BYTES_MAX];
    for word in block.chunks_exact_mut(8).take(bits.bytes() / 8) {
        word.copy_from_slice(&rng.draw().to_be_bytes());
    }
    block
}
