//! The verifier, as a reference implementation.

use alloc::collections::{BTreeMap, BTreeSet};

use subtle::ConstantTimeEq as _;

use super::{Message, Proof, ProverId, Round, Template, swap_word_bytes};
use crate::attest::{AttestationKey, ConfigurationHash};
use crate::verdict::Verdict;

/// An open round, and the provers with a valid proof in it.
#[derive(Clone, Debug)]
struct OpenRound {
    round: Round,
    proven: BTreeSet<ProverId>,
}

/// The provers and the open rounds.
#[derive(Debug, Default)]
pub struct Verifier {
    provers: BTreeMap<ProverId, Template>,
    current: Option<OpenRound>,
    previous: Option<OpenRound>,
}

impl Verifier {
    /// A verifier without provers and rounds.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a prover, or replaces the prover with this id.
    pub fn install(&mut self, id: ProverId, key: &AttestationKey, h: &ConfigurationHash) {
        self.provers.insert(id, Template::new(key, &id, h));
    }

    /// Opens a round. The round opened before stays open, and earlier rounds are closed. Returns `false`, and changes
    /// nothing, if the round is open already.
    #[must_use]
    pub fn open_round(&mut self, round: Round) -> bool {
        let open = [&self.current, &self.previous].into_iter().flatten();
        if open.into_iter().any(|open_round| open_round.round == round) {
            return false;
        }
        let open_round = OpenRound {
            round,
            proven: BTreeSet::new(),
        };
        self.previous = self.current.replace(open_round);
        true
    }

    /// Whether this prover has a valid proof in this round, if the round is still open.
    #[must_use]
    pub fn has_proven(&self, id: &ProverId, round: &Round) -> bool {
        let open = [&self.current, &self.previous].into_iter().flatten();
        open.filter(|open_round| open_round.round == *round)
            .any(|open_round| open_round.proven.contains(id))
    }

    /// Handles the bytes after the Ethernet type. If the verdict is a reply, `payload` holds the start of the reply,
    /// and the returned proof follows it.
    pub fn handle(&mut self, payload: &mut [u8]) -> (Verdict, Option<Proof>) {
        match self.check(payload) {
            Err(reason) => (reason, None),
            Ok((round, id, proof)) => {
                let mut verified = [0; super::MESSAGE_BYTES_MAX];
                let written = Message::Verified(round, id, proof, proof).write(&mut verified);
                match written.and(verified.get(..payload.len())) {
                    Some(payload_start) => payload.copy_from_slice(payload_start),
                    None => return (Verdict::DropP4draMalformed, None),
                }
                (Verdict::ReplyP4draVerified, Some(swap_word_bytes(proof)))
            }
        }
    }

    /// Checks in the order of LAP/1 3.1.2.
    fn check(&mut self, payload: &[u8]) -> Result<(Round, ProverId, Proof), Verdict> {
        let message = Message::parse(payload).ok_or(Verdict::DropP4draMalformed)?;
        let Message::Reply(round, id, proof) = message else {
            return Err(Verdict::DropP4draOperation);
        };
        let open = [&mut self.current, &mut self.previous].into_iter().flatten();
        let mut open_round = open.filter(|open_round| open_round.round == round);
        let open_round = open_round.next().ok_or(Verdict::DropP4draRound)?;
        let template = self.provers.get(&id).ok_or(Verdict::DropP4draProver)?;
        if open_round.proven.contains(&id) {
            return Err(Verdict::DropP4draProved);
        }
        if !bool::from(template.proof(&round).ct_eq(&proof)) {
            return Err(Verdict::DropP4draProof);
        }
        open_round.proven.insert(id);
        Ok((round, id, proof))
    }
}
