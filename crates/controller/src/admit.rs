//! The first authentication of a device at a gateway (LAP/1 1.4.6).

use std::collections::{HashMap, HashSet};

use linewarden_protocol::gateway::challenge;
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{
    self, Header, MESSAGE_BYTES, Message, Nak, Request, Response, message_type, nak_reason,
};
use linewarden_registry::{ActiveDevice, LeaseRequest, RegistryError};
use zerocopy::IntoBytes as _;

use crate::keys::Keys;
use crate::link::Link;
use crate::message::{Denial, Knock, Provision, Reception, Refusal};

impl Link {
    /// Receives devices that the gateway does not hold; answers in their order. `fresh` is the gateway's current value.
    ///
    /// All that verify are leased rows in one transaction, durable before the answer. The same RESPONSE again gets the
    /// same rows again, as long as the gateway asks: it must not once it has had them in its data plane.
    ///
    /// # Errors
    /// An old fence, a failure of the database, or a gateway that is not trusted: ask again.
    pub async fn receive(&self, knocks: &[Knock], fresh: [u8; 8]) -> Result<Vec<Reception>, Denial> {
        self.check_trust()?;
        let mut receptions = Vec::with_capacity(knocks.len());
        let mut proven = Vec::new();
        for (at, knock) in knocks.iter().enumerate() {
            let reception = match wire::parse(&knock.message) {
                Ok(Message::Request(request)) => self.challenge(request, fresh).await?,
                Ok(Message::Response(response)) => {
                    let proof = self.prove(response, &knock.loc).await?;
                    proven.extend(proof.map(|device| Proven {
                        at,
                        device,
                        idx: RowIndex(response.idx.get()),
                        stated: Statement::of(&response.nonce),
                    }));
                    Reception::Silence
                }
                _ => Reception::Silence,
            };
            receptions.push(reception);
        }
        if proven.is_empty() {
            // Where nothing is leased nobody else looks.
            self.check().await?;
        }
        for (at, provision) in self.admit(&proven).await? {
            if let Some(reception) = receptions.get_mut(at) {
                *reception = Reception::Admit(provision);
            }
        }
        Ok(receptions)
    }

    /// Nothing is written.
    async fn challenge(&self, request: &Request, fresh: [u8; 8]) -> Result<Reception, RegistryError> {
        let header = &request.header;
        let found = self.candidate(header.device(), header.suite, &request.nonce);
        let (device, idx) = match found.await? {
            Candidate::Row(device, idx) => (device, idx),
            Candidate::Exhausted { suite, rows_end } => {
                let nak = Box::new(exhausted(header.device(), suite, rows_end));
                let unstated = self.admission(header.device(), 0, Statement::default());
                return Ok(match self.registry().first_row(self.fence(), &unstated).await {
                    Ok(_) => Reception::NakByStatement(nak),
                    Err(RegistryError::RowsExhausted { .. }) => Reception::Nak(nak),
                    Err(error) => return refused(error).map(|()| Reception::Silence),
                });
            }
            Candidate::Nothing => return Ok(Reception::Silence),
        };
        let Some(row) = self.keys(&device).row(idx) else {
            return Ok(Reception::Silence);
        };
        let challenge = challenge(request, device.info.suite, idx, self.gateway(), &row, fresh);
        let mut message = [0u8; MESSAGE_BYTES];
        message.copy_from_slice(challenge.as_bytes());
        Ok(Reception::Challenge(Box::new(message)))
    }

    /// The device, if the RESPONSE proves the row that this gateway would be given first.
    async fn prove(&self, response: &Response, loc: &[u8; 8]) -> Result<Option<ActiveDevice>, RegistryError> {
        if response.gateway_id.get() != self.gateway().0 {
            return Ok(None);
        }
        let header = &response.header;
        let candidate = self.candidate(header.device(), header.suite, &response.nonce);
        let Candidate::Row(device, idx) = candidate.await? else {
            return Ok(None);
        };
        if response.idx.get() != idx.0 {
            return Ok(None);
        }
        let verified = self.keys(&device).row(idx).and_then(|row| {
            let expected = tag::response(&row.auth_key, response, loc);
            tag::verify(&expected, &response.tag)
        });
        Ok(verified.map(|_| device))
    }

    /// A device and the first row that the gateway could use of it, by what the device's nonce states. Nothing is written: until a
    /// RESPONSE verifies, the statement is anybody's.
    async fn candidate(
        &self,
        device: DeviceId,
        suite: u8,
        nonce: &[u8; 16],
    ) -> Result<Candidate, RegistryError> {
        let wish = self.admission(device, 0, Statement::of(nonce));
        let first = match self.registry().first_row(self.fence(), &wish).await {
            Ok(first) => first,
            Err(RegistryError::RowsExhausted { rows_end, .. }) => {
                return match self.registry().get(device).await {
                    Ok(info) if info.suite.number() == suite => Ok(Candidate::Exhausted {
                        suite: info.suite,
                        rows_end: RowIndex(rows_end),
                    }),
                    Ok(_) => Ok(Candidate::Nothing),
                    Err(error) => refused(error).map(|()| Candidate::Nothing),
                };
            }
            Err(error) => return refused(error).map(|()| Candidate::Nothing),
        };
        match self.registry().load(device).await {
            Ok(found) if found.info.suite.number() == suite => Ok(Candidate::Row(found, first)),
            Ok(_) => Ok(Candidate::Nothing),
            Err(error) => refused(error).map(|()| Candidate::Nothing),
        }
    }

    async fn admit(&self, proven: &[Proven]) -> Result<Vec<(usize, Provision)>, RegistryError> {
        if proven.is_empty() {
            return Ok(Vec::new());
        }
        // Of each device the first proof is leased for. Another one in the same question, as a copy from elsewhere, would move the lease
        // away from rows that the answer to the first one names.
        let mut seen = HashSet::new();
        let first: Vec<&Proven> = proven
            .iter()
            .filter(|proof| seen.insert(proof.device.info.device))
            .collect();
        let wishes: Vec<LeaseRequest> = first
            .iter()
            .map(|proof| {
                let info = &proof.device.info;
                self.admission(info.device, info.epoch, proof.stated)
            })
            .collect();
        let answers = self.registry().lease(self.fence(), &wishes).await?;
        let mut leased = HashMap::new();
        for (proof, answer) in first.iter().zip(answers) {
            match answer {
                Ok(granted) => {
                    leased.insert(proof.device.info.device, granted);
                }
                Err(error) => refused(error)?,
            }
        }
        let mut admitted = Vec::with_capacity(proven.len());
        for Proven { at, device, idx, .. } in proven {
            // Another gateway may have been faster, and the credentials may be new ones: what was proved is then not
            // what is leased, and the device begins again.
            if let Some(granted) = leased.get(&device.info.device)
                && granted.held.start == idx.0
                && granted.epoch == device.info.epoch
            {
                let provision = self.keys(device).provision(granted.held.clone(), granted.mark);
                admitted.push((*at, provision));
            }
        }
        Ok(admitted)
    }

    pub(crate) fn keys<'a>(&self, device: &'a ActiveDevice) -> Keys<'a> {
        Keys {
            info: &device.info,
            credentials: &device.credentials,
            gateway: self.gateway(),
        }
    }
}

/// A device that has proven a row.
struct Proven {
    /// Its message's place among the others.
    at: usize,
    device: ActiveDevice,
    idx: RowIndex,
    /// What the proof's nonce states.
    stated: Statement,
}

/// What the gateway could use of a device.
enum Candidate {
    Row(ActiveDevice, RowIndex),
    /// It may authenticate, and no row is left for this gateway.
    Exhausted {
        suite: Suite,
        rows_end: RowIndex,
    },
    Nothing,
}

/// The NAK for a device without rows.
fn exhausted(device: DeviceId, suite: Suite, rows_end: RowIndex) -> [u8; MESSAGE_BYTES] {
    let nak = Nak {
        header: Header::new(message_type::NAK, suite, 0, device),
        idx: rows_end.0.into(),
        reason: nak_reason::NO_ROWS,
        reserved: [0; 43],
    };
    let mut message = [0u8; MESSAGE_BYTES];
    message.copy_from_slice(nak.as_bytes());
    message
}

/// What concerns one device only is silence; everything else is the whole question's failure.
fn refused(error: RegistryError) -> Result<(), RegistryError> {
    Refusal::of(error).map(|_| ())
}
