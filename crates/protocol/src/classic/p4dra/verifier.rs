//! The verifier, as an oracle.

use alloc::collections::{BTreeMap, BTreeSet};

use subtle::ConstantTimeEq as _;

use super::{Message, Proof, ProverId, Round, Template, sw};
use crate::attest::{AttestationKey, ConfigurationHash};
use crate::verdict::Verdict;

/// A round that is open, and who is ok in it.
#[derive(Clone, Debug)]
struct Asked {
    round: Round,
    proved: BTreeSet<ProverId>,
}

/// The provers, and the rounds that are open.
#[derive(Debug, Default)]
pub struct Verifier {
    provers: BTreeMap<ProverId, Template>,
    running: Option<Asked>,
    previous: Option<Asked>,
}

impl Verifier {
    /// Without provers and rounds.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a prover, or takes the place of the one with that id.
    pub fn install(&mut self, id: ProverId, key: &AttestationKey, h: &ConfigurationHash) {
        self.provers.insert(id, Template::new(key, &id, h));
    }

    /// Begins a round, in the place of the one before the last; `false`: it is open already, and nothing was changed.
    #[must_use]
    pub fn open_round(&mut self, round: Round) -> bool {
        let open = [&self.running, &self.previous].into_iter().flatten();
        if open.into_iter().any(|asked| asked.round == round) {
            return false;
        }
        let asked = Asked {
            round,
            proved: BTreeSet::new(),
        };
        self.previous = self.running.replace(asked);
        true
    }

    /// Whether that prover is ok in that round, if it is open still.
    #[must_use]
    pub fn is_proved(&self, id: &ProverId, round: &Round) -> bool {
        let open = [&self.running, &self.previous].into_iter().flatten();
        open.filter(|asked| asked.round == *round)
            .any(|asked| asked.proved.contains(id))
    }

    /// Judges what stands behind the Ethernet type. When the verdict is a reply, `payload` has become its beginning, and what
    /// is returned beside it stands behind that.
    pub fn handle(&mut self, payload: &mut [u8]) -> (Verdict, Option<Proof>) {
        match self.judge(payload) {
            Err(reason) => (reason, None),
            Ok((round, id, proof)) => {
                let mut verified = [0; super::MESSAGE_BYTES_MAX];
                let written = Message::Verified(round, id, proof, proof).write(&mut verified);
                match written.and(verified.get(..payload.len())) {
                    Some(beginning) => payload.copy_from_slice(beginning),
                    None => return (Verdict::DropP4draMalformed, None),
                }
                (Verdict::ReplyP4draVerified, Some(sw(proof)))
            }
        }
    }

    /// In the order of LAP/1 3.1.3.
    fn judge(&mut self, payload: &[u8]) -> Result<(Round, ProverId, Proof), Verdict> {
        let message = Message::parse(payload).ok_or(Verdict::DropP4draMalformed)?;
        let Message::Reply(round, id, proof) = message else {
            return Err(Verdict::DropP4draOperation);
        };
        let open = [&mut self.running, &mut self.previous].into_iter().flatten();
        let mut asked = open.filter(|asked| asked.round == round);
        let asked = asked.next().ok_or(Verdict::DropP4draRound)?;
        let template = self.provers.get(&id).ok_or(Verdict::DropP4draProver)?;
        if asked.proved.contains(&id) {
            return Err(Verdict::DropP4draProved);
        }
        if !bool::from(template.proof(&round).ct_eq(&proof)) {
            return Err(Verdict::DropP4draProof);
        }
        asked.proved.insert(id);
        Ok((round, id, proof))
    }
}
