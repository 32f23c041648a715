//! The first authentication of a device at a gateway (LAP/1 1.4.6).

use std::collections::{HashMap, HashSet};

use linewarden_protocol::gateway::challenge;
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{
    self, Header, MESSAGE_BYTES, Message, Nak, Request, Response, message_type, nak_reason,
};
use linewarden_registry::{ActiveDevice, DeviceError, LeaseRequest, RegistryError};
use linewarden_types::{AdmissionRequest, AdmissionResponse, Provision};
use zerocopy::IntoBytes as _;

use crate::denial::{Denial, refusal_reason};
use crate::keys::Keys;
use crate::link::Link;

impl Link {
    /// Handles messages of devices that are not in the gateway's data plane. The responses are in the order of the
    /// requests. `fresh` is the gateway's current fresh value.
    ///
    /// One transaction leases rows to all devices whose RESPONSEs verify; the transaction is durable before the function
    /// returns. A repeated RESPONSE gets the same rows again. After a gateway has installed these rows in its data plane,
    /// it must not submit the RESPONSE again.
    ///
    /// # Errors
    /// A stale fencing token, a failure of the database, or an untrusted gateway; the request can be retried.
    pub async fn admit_devices(
        &self,
        requests: &[AdmissionRequest],
        fresh: [u8; 8],
    ) -> Result<Vec<AdmissionResponse>, Denial> {
        self.check_trust()?;
        let mut responses = Vec::with_capacity(requests.len());
        let mut verified_devices = Vec::new();
        for (index, admission) in requests.iter().enumerate() {
            let outcome = match wire::parse(&admission.message) {
                Ok(Message::Request(request)) => self.challenge(request, fresh).await?,
                Ok(Message::Response(response)) => {
                    let verified = self.verify_response(response, &admission.loc).await?;
                    verified_devices.extend(verified.map(|device| VerifiedDevice {
                        index,
                        device,
                        idx: RowIndex(response.idx.get()),
                        statement: RowStatement::from_nonce(&response.nonce),
                    }));
                    AdmissionResponse::NoResponse
                }
                _ => AdmissionResponse::NoResponse,
            };
            responses.push(outcome);
        }
        if verified_devices.is_empty() {
            // Without a lease, no other query verifies the fencing token.
            self.verify_registration().await?;
        }
        for (index, provision) in self.lease_admitted(&verified_devices).await? {
            if let Some(outcome) = responses.get_mut(index) {
                *outcome = AdmissionResponse::Admit(provision);
            }
        }
        Ok(responses)
    }

    /// Returns the reply to a REQUEST: a CHALLENGE, a NAK if the device has no row left, or no reply if the device may not
    /// authenticate. Writes nothing.
    async fn challenge(&self, request: &Request, fresh: [u8; 8]) -> Result<AdmissionResponse, RegistryError> {
        let header = &request.header;
        let candidate = self.candidate(header.device(), header.suite, &request.nonce);
        let (device, idx) = match candidate.await? {
            Candidate::Row(device, idx) => (device, idx),
            Candidate::Exhausted { suite, rows_end } => {
                let nak = Box::new(no_rows_nak(header.device(), suite, rows_end));
                let without_statement = self.first_lease_request(header.device(), 0, RowStatement::default());
                return Ok(
                    match self
                        .registry()
                        .first_row(self.fencing_token(), &without_statement)
                        .await
                    {
                        Ok(_) => AdmissionResponse::NakForStatement(nak),
                        Err(RegistryError::Device(DeviceError::RowsExhausted { .. })) => {
                            AdmissionResponse::Nak(nak)
                        }
                        Err(error) => {
                            return skip_device_error(error).map(|()| AdmissionResponse::NoResponse);
                        }
                    },
                );
            }
            Candidate::Ineligible => return Ok(AdmissionResponse::NoResponse),
        };
        let Some(row) = self.keys(&device).row(idx) else {
            return Ok(AdmissionResponse::NoResponse);
        };
        let challenge = challenge(request, device.info.suite, idx, self.gateway(), &row, fresh);
        let mut message = [0u8; MESSAGE_BYTES];
        message.copy_from_slice(challenge.as_bytes());
        Ok(AdmissionResponse::Challenge(Box::new(message)))
    }

    /// Returns the device if the RESPONSE proves the first row that would be leased to this gateway.
    async fn verify_response(
        &self,
        response: &Response,
        loc: &[u8; 8],
    ) -> Result<Option<ActiveDevice>, RegistryError> {
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

    /// Returns a device and the first row that could be leased to the gateway, according to the row statement in the
    /// device's nonce. Writes nothing: until a RESPONSE verifies, the statement is not authenticated.
    async fn candidate(
        &self,
        device: DeviceId,
        suite: u8,
        nonce: &[u8; 16],
    ) -> Result<Candidate, RegistryError> {
        let lease_request = self.first_lease_request(device, 0, RowStatement::from_nonce(nonce));
        let first_row = match self
            .registry()
            .first_row(self.fencing_token(), &lease_request)
            .await
        {
            Ok(first_row) => first_row,
            Err(RegistryError::Device(DeviceError::RowsExhausted { rows_end, .. })) => {
                return match self.registry().get(device).await {
                    Ok(info) if info.suite.number() == suite => Ok(Candidate::Exhausted {
                        suite: info.suite,
                        rows_end: RowIndex(rows_end),
                    }),
                    Ok(_) => Ok(Candidate::Ineligible),
                    Err(error) => skip_device_error(error).map(|()| Candidate::Ineligible),
                };
            }
            Err(error) => return skip_device_error(error).map(|()| Candidate::Ineligible),
        };
        match self.registry().load(device).await {
            Ok(active_device) if active_device.info.suite.number() == suite => {
                Ok(Candidate::Row(active_device, first_row))
            }
            Ok(_) => Ok(Candidate::Ineligible),
            Err(error) => skip_device_error(error).map(|()| Candidate::Ineligible),
        }
    }

    /// Leases rows to the devices whose RESPONSEs verified. Returns the index of each message whose device is admitted,
    /// with the device's rows.
    async fn lease_admitted(
        &self,
        verified_devices: &[VerifiedDevice],
    ) -> Result<Vec<(usize, Provision)>, RegistryError> {
        if verified_devices.is_empty() {
            return Ok(Vec::new());
        }
        // Only the first proof of each device leads to a lease. A second proof in the same request, such as a copy from
        // another address, would move the lease away from the rows in the first response.
        let mut seen = HashSet::new();
        let first_proofs: Vec<&VerifiedDevice> = verified_devices
            .iter()
            .filter(|proof| seen.insert(proof.device.info.device))
            .collect();
        let lease_requests: Vec<LeaseRequest> = first_proofs
            .iter()
            .map(|proof| {
                let info = &proof.device.info;
                self.first_lease_request(info.device, info.epoch, proof.statement)
            })
            .collect();
        let leases = self
            .registry()
            .lease(self.fencing_token(), &lease_requests)
            .await?;
        let mut leased = HashMap::new();
        for (proof, lease) in first_proofs.iter().zip(leases) {
            match lease {
                Ok(granted) => {
                    leased.insert(proof.device.info.device, granted);
                }
                Err(error) => skip_device_error(error)?,
            }
        }
        let mut admitted = Vec::with_capacity(verified_devices.len());
        for VerifiedDevice {
            index, device, idx, ..
        } in verified_devices
        {
            // Another gateway may have leased these rows first, or the credentials may be new. Then the proof is not
            // for the leased rows, and the device starts again.
            if let Some(granted) = leased.get(&device.info.device)
                && granted.held_rows.start == idx.0
                && granted.epoch == device.info.epoch
            {
                let provision = self
                    .keys(device)
                    .provision(granted.held_rows.clone(), granted.mark);
                admitted.push((*index, provision));
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
struct VerifiedDevice {
    /// Index of the device's message.
    index: usize,
    device: ActiveDevice,
    idx: RowIndex,
    /// The row statement in the nonce of the RESPONSE.
    statement: RowStatement,
}

/// The first row of a device that could be leased to the gateway.
enum Candidate {
    Row(ActiveDevice, RowIndex),
    /// The device may authenticate, but no row is left for this gateway.
    Exhausted {
        suite: Suite,
        rows_end: RowIndex,
    },
    /// The device is unknown or inactive, or uses another cipher suite; it gets no reply.
    Ineligible,
}

/// Returns the NAK for a device without rows.
fn no_rows_nak(device: DeviceId, suite: Suite, rows_end: RowIndex) -> [u8; MESSAGE_BYTES] {
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

/// Returns `Ok` for an error that concerns one device, which gets no reply. Any other error fails the whole request.
fn skip_device_error(error: RegistryError) -> Result<(), RegistryError> {
    refusal_reason(error).map(|_| ())
}
