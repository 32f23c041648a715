//! Renewal of a device's credential over its session: rows in advance, or a new key (LAP/1 1.7).
//!
//! ```text
//!   session ──► STATUS ──► does the registry hold all rows of the helper file?
//!                 no ───► ROWS from the registry's end, until it does
//!                 yes ──► few left, or requested: read the PUF, write a longer helper file (durable), then as above
//!              key mode: read the PUF, write pending helper data (durable), KEY; after the response they replace the file
//! ```
//! Keys are reconstructed from the helper data, as at every authentication. No key is stored, and each row is read once
//! more with the final helper data before the row is registered.

use linewarden_protocol::device::{Device, PufQuery};
use linewarden_protocol::ids::{Mode, RowIndex, SessionId};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{
    BODY_BYTES_MAX, BodyBuffer, EnrollmentState, Kind, NewRow, Outcome, ROWS_PER_MESSAGE, write_key,
    write_rows,
};
use linewarden_puf::Puf;
use linewarden_puf::extractor::{ExtractorError, KeyEnrollment, PoolEnrollment, enroll_pool, enroll_puf};
use linewarden_puf::health::HealthTest;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use zeroize::Zeroize as _;

use crate::credential::Credential;
use crate::event::AgentEvent;
use crate::keyring::Keyring;

/// Readouts of a weak PUF for a new key, as at enrollment.
const KEY_READINGS: usize = 5;
/// Readouts of a row before the renewal fails: about one readout in a million fails.
const ROW_READINGS_MAX: u32 = 4;
/// Sessions after which the status is requested although no renewal is due: a restored registry may lack rows.
const SESSIONS_PER_STATUS: u32 = 8;
/// Responses without progress before the renewal fails.
const STALLS_MAX: u32 = 3;
/// Maximum number of rows of one renewal; the registry accepts no more in advance.
pub const ROWS_MAX: u32 = 4_096;

/// When a device renews its credential; default: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenewalOptions {
    /// Pool mode: renew when fewer rows than this remain.
    pub below_rows: Option<u32>,
    /// Pool mode: number of rows to add.
    pub rows: u32,
    /// Renew once in the first session, in any case.
    pub requests_renewal: bool,
}

/// What a renewal needs to read the PUF.
pub(crate) struct CredentialReader<'a> {
    pub(crate) puf: &'a mut dyn Puf,
    pub(crate) health: &'a HealthTest,
    pub(crate) keyring: &'a mut Keyring,
}

/// A ticket to send.
pub(crate) struct TicketRequest {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) body: Vec<u8>,
}

impl Drop for TicketRequest {
    fn drop(&mut self) {
        self.body.zeroize();
    }
}

/// The next step of a renewal.
pub(crate) enum NextAction {
    /// Wait for a new session.
    Wait,
    Send(TicketRequest),
    /// Authenticate again: the registry has, or may have, the new key, so the session under the old key may be
    /// obsolete.
    Reauthenticate,
}

/// A failure of a renewal, as text.
struct RenewalError(String);

impl<E: std::error::Error> From<E> for RenewalError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// State of a device's renewals.
#[derive(Debug)]
pub(crate) struct Renewal {
    options: RenewalOptions,
    /// Whether the renewal that [`RenewalOptions::requests_renewal`] requests is not done yet.
    requested: bool,
    /// Whether the requested renewal has failed.
    failed: bool,
    /// Whether the helper data on disk may be newer than the registry.
    is_unconfirmed: bool,
    /// The last session in which a renewal was considered.
    checked_session: Option<SessionId>,
    /// Sessions since the last status request.
    sessions: u32,
    in_progress: bool,
    /// The highest ticket number that this agent has used or that the registry has reported.
    number: u64,
    /// Number of consecutive requests without progress.
    stalls: u32,
    /// Consecutive timeouts while new helper data were pending.
    missed_responses: u32,
    /// The registry's position at the last request: the end of its rows, or the epoch of its key.
    last_sent_position: Option<u32>,
}

impl Renewal {
    pub(crate) fn new(options: RenewalOptions) -> Self {
        Self {
            requested: options.requests_renewal,
            failed: false,
            options,
            is_unconfirmed: true,
            checked_session: None,
            sessions: 0,
            in_progress: false,
            number: 0,
            stalls: 0,
            missed_responses: 0,
            last_sent_position: None,
        }
    }

    /// Whether a renewal is in progress or requested.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_progress || self.requested
    }

    /// Whether the requested renewal has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// The first request in a new session, if one is due.
    pub(crate) fn first_request(&mut self, device: &Device, keyring: &Keyring) -> Option<TicketRequest> {
        let session = device.session()?;
        if self.in_progress || self.checked_session == Some(session.id) {
            return None;
        }
        self.checked_session = Some(session.id);
        self.sessions += 1;
        self.is_unconfirmed |= self.sessions >= SESSIONS_PER_STATUS;
        if !self.is_due(session.idx, keyring) && !self.is_unconfirmed {
            return None;
        }
        (
            self.in_progress,
            self.stalls,
            self.last_sent_position,
            self.sessions,
        ) = (true, 0, None, 0);
        Some(self.status_request())
    }

    /// Continues after a response, or after a timeout (`None`).
    pub(crate) fn handle_response(
        &mut self,
        enrollment_state: Option<EnrollmentState>,
        device: &Device,
        reader: CredentialReader<'_>,
        sink: &mut dyn FnMut(&AgentEvent),
    ) -> NextAction {
        let next = match enrollment_state {
            Some(state) => self.handle_state(&state, device, reader, sink),
            // The registry may have the new key already, while the session uses the old one.
            None if reader.keyring.pending().is_some() && self.missed_responses < STALLS_MAX => {
                self.missed_responses += 1;
                Ok(NextAction::Reauthenticate)
            }
            None => Err(RenewalError("the controller did not respond".to_owned())),
        };
        match next {
            Ok(NextAction::Send(request)) => NextAction::Send(request),
            Ok(action) => {
                self.in_progress = false;
                // The next session shows which key the registry has.
                self.is_unconfirmed = matches!(action, NextAction::Reauthenticate);
                action
            }
            Err(RenewalError(reason)) => {
                sink(&AgentEvent::RenewalFailed { reason });
                // Within this session another attempt would fail too.
                self.abandon();
                NextAction::Wait
            }
        }
    }

    fn handle_state(
        &mut self,
        state: &EnrollmentState,
        device: &Device,
        reader: CredentialReader<'_>,
        sink: &mut dyn FnMut(&AgentEvent),
    ) -> Result<NextAction, RenewalError> {
        if state.outcome == Outcome::Refused {
            return Err(RenewalError(
                "the controller refuses further renewals of this device".to_owned(),
            ));
        }
        self.missed_responses = 0;
        // The controller rejects a request whose number is not above the registry's number, for example after a restart
        // of the agent. The next request therefore continues from the registry's number.
        self.number = self.number.max(state.number);
        let session_idx = device.session().map(|session| session.idx);
        match (reader.keyring.current().mode(), state.mode) {
            (Mode::Pool, Mode::Pool) => self.handle_pool_state(state, device, session_idx, reader, sink),
            (Mode::Key, Mode::Key) => self.handle_key_state(state, device, reader, sink),
            _ => Err(RenewalError(
                "the device has another mode in the registry".to_owned(),
            )),
        }
    }

    fn handle_pool_state(
        &mut self,
        state: &EnrollmentState,
        device: &Device,
        session_idx: Option<RowIndex>,
        mut reader: CredentialReader<'_>,
        sink: &mut dyn FnMut(&AgentEvent),
    ) -> Result<NextAction, RenewalError> {
        let registry_end = state.rows_end.0;
        let local_end = pool_end(reader.keyring.current())?;
        if local_end < registry_end {
            return Err(RenewalError(format!(
                "the registry has rows up to {registry_end}, but the helper data only up to {local_end}: use the newer helper file"
            )));
        }
        if local_end == registry_end {
            if self.last_sent_position.take().is_some() {
                sink(&AgentEvent::RowsRenewed { rows_end: local_end });
                self.requested = false;
                return Ok(NextAction::Wait);
            }
            let is_due = session_idx.is_some_and(|idx| self.is_due(idx, reader.keyring));
            if !is_due {
                return Ok(NextAction::Wait);
            }
            extend_pool(&mut reader, self.options.rows.clamp(1, ROWS_MAX))?;
        }
        self.record_progress(registry_end)?;
        let end = pool_end(reader.keyring.current())?;
        let end = end.min(registry_end.saturating_add(ROWS_PER_MESSAGE as u32));
        let rows = (registry_end..end)
            .map(|idx| read_row(&mut reader, device, idx))
            .collect::<Result<Vec<NewRow>, RenewalError>>()?;
        let mut buffer: BodyBuffer = [0; BODY_BYTES_MAX];
        let body = write_rows(state.epoch, state.rows_end, &rows, &mut buffer);
        let request = body.map(|body| self.request(Kind::Rows, body));
        buffer.zeroize();
        request
            .map(NextAction::Send)
            .ok_or_else(|| RenewalError("no rows to register".to_owned()))
    }

    fn handle_key_state(
        &mut self,
        state: &EnrollmentState,
        device: &Device,
        mut reader: CredentialReader<'_>,
        sink: &mut dyn FnMut(&AgentEvent),
    ) -> Result<NextAction, RenewalError> {
        if self.last_sent_position.is_some_and(|epoch| state.epoch > epoch) {
            reader.keyring.promote()?;
            sink(&AgentEvent::KeyRenewed);
            self.requested = false;
            return Ok(NextAction::Reauthenticate);
        }
        if reader.keyring.pending().is_none() {
            if !self.requested {
                return Ok(NextAction::Wait);
            }
            let pending = new_key(&mut reader)?;
            reader.keyring.store_pending(pending)?;
        }
        self.record_progress(state.epoch)?;
        let query = PufQuery {
            mode: Mode::Key,
            idx: RowIndex(0),
            challenge: [0; 8],
        };
        let CredentialReader { puf, health, keyring } = &mut reader;
        let pending = keyring
            .pending()
            .ok_or_else(|| RenewalError("the pending helper data are missing".to_owned()))?;
        let key = read_row_key(&mut **puf, health, pending, device, &query)?;
        let mut buffer: BodyBuffer = [0; BODY_BYTES_MAX];
        let body = write_key(state.epoch, &key, &mut buffer);
        let request = body.map(|body| self.request(Kind::Key, body));
        buffer.zeroize();
        request
            .map(NextAction::Send)
            .ok_or_else(|| RenewalError("no key to register".to_owned()))
    }

    /// Records that the registry has the new key, because the new helper data have opened a session. `is_replaced`: whether
    /// the file of the new helper data has replaced the old file.
    pub(crate) fn confirm(&mut self, is_replaced: bool) {
        self.failed |= self.requested && !is_replaced;
        (self.requested, self.is_unconfirmed) = (false, false);
    }

    /// Records that the helper data on disk may be newer than the registry, because the registry was restored.
    pub(crate) fn mark_unconfirmed(&mut self) {
        self.is_unconfirmed = true;
    }

    /// Records that the renewal has failed.
    pub(crate) fn abandon(&mut self) {
        self.failed |= self.requested;
        (self.in_progress, self.requested, self.is_unconfirmed) = (false, false, true);
    }

    fn is_due(&self, idx: RowIndex, keyring: &Keyring) -> bool {
        let ahead = match keyring.current() {
            Credential::Pool(helper) => helper.end_idx().saturating_sub(idx.0).saturating_sub(1),
            Credential::Key(_) => u32::MAX,
        };
        self.requested || self.options.below_rows.is_some_and(|below| ahead < below)
    }

    /// Counts requests without progress; returns an error after [`STALLS_MAX`] of them.
    fn record_progress(&mut self, position: u32) -> Result<(), RenewalError> {
        self.stalls = match self.last_sent_position == Some(position) {
            true => self.stalls + 1,
            false => 0,
        };
        self.last_sent_position = Some(position);
        match self.stalls < STALLS_MAX {
            true => Ok(()),
            false => Err(RenewalError(
                "the controller does not accept the renewal".to_owned(),
            )),
        }
    }

    fn status_request(&self) -> TicketRequest {
        TicketRequest {
            kind: Kind::Status,
            number: 0,
            body: Vec::new(),
        }
    }

    fn request(&mut self, kind: Kind, body: &[u8]) -> TicketRequest {
        self.number = self.number.saturating_add(1);
        TicketRequest {
            kind,
            number: self.number,
            body: body.to_vec(),
        }
    }
}

fn pool_end(credential: &Credential) -> Result<u32, RenewalError> {
    match credential {
        Credential::Pool(helper) => Ok(helper.end_idx()),
        Credential::Key(_) => Err(RenewalError(
            "helper data have key mode, not pool mode".to_owned(),
        )),
    }
}

/// Enrolls further rows, with all checks of an enrollment, and stores the longer helper data durably.
fn extend_pool(reader: &mut CredentialReader<'_>, rows: u32) -> Result<(), RenewalError> {
    let Credential::Pool(helper) = reader.keyring.current().clone() else {
        return Err(RenewalError(
            "helper data have key mode, not pool mode".to_owned(),
        ));
    };
    let options = PoolEnrollment {
        profile: helper.profile(),
        first_idx: helper.end_idx(),
        health: *reader.health,
        is_reenrollment: true,
        ..PoolEnrollment::rows(rows)
    };
    let pool = enroll_pool(reader.puf, &options, &mut random()?)?;
    let longer = helper
        .followed_by(&pool.helper)
        .ok_or_else(|| RenewalError("no row numbers left".to_owned()))?;
    reader.keyring.extend(Credential::Pool(longer))?;
    Ok(())
}

fn new_key(reader: &mut CredentialReader<'_>) -> Result<Credential, RenewalError> {
    let Credential::Key(helper) = reader.keyring.current().clone() else {
        return Err(RenewalError(
            "helper data have pool mode, not key mode".to_owned(),
        ));
    };
    let options = KeyEnrollment {
        profile: helper.profile(),
        health: *reader.health,
        ..KeyEnrollment::default()
    };
    let cells = helper.readout_bits();
    let key = enroll_puf(reader.puf, cells, KEY_READINGS, &options, &mut random()?)?;
    Ok(Credential::Key(key.helper))
}

fn read_row(reader: &mut CredentialReader<'_>, device: &Device, idx: u32) -> Result<NewRow, RenewalError> {
    let CredentialReader { puf, health, keyring } = reader;
    let credential = keyring.current();
    let challenge = match credential {
        Credential::Pool(helper) => helper.row(idx).map(|row| row.challenge),
        Credential::Key(_) => None,
    };
    let challenge = challenge.ok_or_else(|| RenewalError(format!("row {idx} is not in the helper data")))?;
    let query = PufQuery {
        mode: Mode::Pool,
        idx: RowIndex(idx),
        challenge,
    };
    let row_key = read_row_key(&mut **puf, health, credential, device, &query)?;
    Ok(NewRow { challenge, row_key })
}

fn read_row_key(
    puf: &mut dyn Puf,
    health: &HealthTest,
    credential: &Credential,
    device: &Device,
    query: &PufQuery,
) -> Result<RowKey, ExtractorError> {
    let config = device.config();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let key = credential.row_key(puf, health, config.suite, config.device, query);
        match key {
            Err(_) if attempts < ROW_READINGS_MAX => {}
            key => return key,
        }
    }
}

fn random() -> Result<ChaCha20Rng, RenewalError> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|error| RenewalError(error.to_string()))?;
    let rng = ChaCha20Rng::from_seed(seed);
    seed.zeroize();
    Ok(rng)
}
