//! Renewal of what a device proves itself with, over its session: rows ahead of need, or a new key (LAP/1 1.7).
//!
//! ```text
//!   session ──► STATUS ──► does the registry hold all rows of the helper file?
//!                 no ───► ROWS from where it ends, until it does
//!                 yes ──► few left, or told to: read the PUF, longer helper file (durable), then as above
//!              key mode: read the PUF, helper data beside the file (durable), KEY; answered: they take its place
//! ```
//! The keys that are sent are rebuilt from the helper data as at every authentication: none is stored, and no row is
//! registered that was not read once more with what the device will have then.

use linewarden_protocol::device::{Device, PufQuery};
use linewarden_protocol::ids::{Mode, RowIndex, SessionId};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{
    BODY_BYTES_MAX, Bodies, Kind, NewRow, Outcome, ROWS_PER_MESSAGE, State, write_key, write_rows,
};
use linewarden_puf::Puf;
use linewarden_puf::extractor::{ExtractorError, KeyEnrolment, PoolEnrolment, enrol_pool, enrol_puf};
use linewarden_puf::health::HealthTest;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use zeroize::Zeroize as _;

use crate::credential::Credential;
use crate::keyring::Keyring;
use crate::report::Report;

/// Readings of a weak PUF for a new key, as at enrolment.
const KEY_READINGS: usize = 5;
/// Readings of a row before it is given up: one in a million fails (LAP/1 1.1).
const ROW_READINGS_MAX: u32 = 4;
/// Sessions after which it is asked how the enrolment stands, though nothing is due: a registry that was put back may lack rows.
const SESSIONS_PER_STATUS: u32 = 8;
/// Answers without progress before it is given up.
const STALLS_MAX: u32 = 3;
/// Most rows that one renewal makes; the registry takes no more ahead.
pub(crate) const ROWS_MAX: u32 = 4_096;

/// When a device renews what it proves itself with; the default is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenewalOptions {
    /// Pool mode: with fewer rows than this ahead of the session's.
    pub below_rows: Option<u32>,
    /// Pool mode: how many rows to add.
    pub rows: u32,
    /// Once, at the first session, whatever is left.
    pub now: bool,
}

/// What a renewal reads.
pub(crate) struct Reader<'a> {
    pub(crate) puf: &'a mut dyn Puf,
    pub(crate) health: &'a HealthTest,
    pub(crate) keyring: &'a mut Keyring,
}

/// A question to be asked.
pub(crate) struct Question {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) body: Vec<u8>,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.body.zeroize();
    }
}

/// What is to be done next.
pub(crate) enum Next {
    /// Nothing, until there is a new session.
    Rest,
    Ask(Question),
    /// The registry has the new key: the session of the old one is over.
    Begin,
}

/// A renewal that ends here, in words.
struct Ends(String);

impl<E: std::error::Error> From<E> for Ends {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Where a device's renewal stands.
#[derive(Debug)]
pub(crate) struct Renewal {
    options: RenewalOptions,
    /// `now` has not been done yet.
    demanded: bool,
    /// `now` has ended without it.
    failed: bool,
    /// What lies on disk may be more than what the registry has.
    open: bool,
    /// The session in which it was seen to.
    seen: Option<SessionId>,
    /// Sessions since it was asked how the enrolment stands.
    sessions: u32,
    busy: bool,
    number: u64,
    stalls: u32,
    /// Questions in a row that got no answer while new helper data were in doubt.
    unanswered: u32,
    /// Where the registry's rows ended, or which epoch its key had, when something was sent last.
    sent_at: Option<u32>,
}

impl Renewal {
    pub(crate) fn new(options: RenewalOptions) -> Self {
        Self {
            demanded: options.now,
            failed: false,
            options,
            open: true,
            seen: None,
            sessions: 0,
            busy: false,
            number: 0,
            stalls: 0,
            unanswered: 0,
            sent_at: None,
        }
    }

    /// Whether something is under way or demanded.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy || self.demanded
    }

    /// Whether what was demanded has ended without it.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether there is something to ask in a session that is new.
    pub(crate) fn begin(&mut self, device: &Device, keyring: &Keyring) -> Option<Question> {
        let session = device.session()?;
        if self.busy || self.seen == Some(session.id) {
            return None;
        }
        self.seen = Some(session.id);
        self.sessions += 1;
        self.open |= self.sessions >= SESSIONS_PER_STATUS;
        if !self.is_wanted(session.idx, keyring) && !self.open {
            return None;
        }
        (self.busy, self.stalls, self.sent_at, self.sessions) = (true, 0, None, 0);
        Some(self.status())
    }

    /// Goes on after an answer, or after none.
    pub(crate) fn go_on(
        &mut self,
        told: Option<State>,
        device: &Device,
        reader: Reader<'_>,
        sink: &mut dyn FnMut(&Report),
    ) -> Next {
        let next = match told {
            Some(state) => self.after(&state, device, reader, sink),
            // The registry may have the new key already, and the session be of the old one.
            None if reader.keyring.pending().is_some() && self.unanswered < STALLS_MAX => {
                self.unanswered += 1;
                Ok(Next::Begin)
            }
            None => Err(Ends("no answer from the controller".to_owned())),
        };
        match next {
            Ok(Next::Ask(question)) => Next::Ask(question),
            Ok(other) => {
                self.busy = false;
                // After a new beginning it will be seen which key the registry has.
                self.open = matches!(other, Next::Begin);
                other
            }
            Err(Ends(why)) => {
                sink(&Report::NotRenewed { why });
                // In what is left of the session nothing would be different.
                self.abandon();
                Next::Rest
            }
        }
    }

    fn after(
        &mut self,
        state: &State,
        device: &Device,
        reader: Reader<'_>,
        sink: &mut dyn FnMut(&Report),
    ) -> Result<Next, Ends> {
        if state.outcome == Outcome::Refused {
            return Err(Ends("the controller takes no more from this device".to_owned()));
        }
        self.unanswered = 0;
        // Nobody else counts for this device: a number that was too low is the registry's that is ahead.
        self.number = self.number.max(state.number);
        let session_idx = device.session().map(|session| session.idx);
        match (reader.keyring.current().mode(), state.mode) {
            (Mode::Pool, Mode::Pool) => self.after_pool(state, device, session_idx, reader, sink),
            (Mode::Key, Mode::Key) => self.after_key(state, device, reader, sink),
            _ => Err(Ends("the registry has this device in another mode".to_owned())),
        }
    }

    fn after_pool(
        &mut self,
        state: &State,
        device: &Device,
        session_idx: Option<RowIndex>,
        mut reader: Reader<'_>,
        sink: &mut dyn FnMut(&Report),
    ) -> Result<Next, Ends> {
        let registered = state.rows_end.0;
        let held = pool_end(reader.keyring.current())?;
        if held < registered {
            return Err(Ends(format!(
                "the registry has rows up to {registered}, the helper data only up to {held}: fetch the newer helper file"
            )));
        }
        if held == registered {
            if self.sent_at.take().is_some() {
                sink(&Report::RowsRenewed { rows_end: held });
                self.demanded = false;
                return Ok(Next::Rest);
            }
            let is_wanted = session_idx.is_some_and(|idx| self.is_wanted(idx, reader.keyring));
            if !is_wanted {
                return Ok(Next::Rest);
            }
            grow(&mut reader, self.options.rows.clamp(1, ROWS_MAX))?;
        }
        self.note_progress(registered)?;
        let end = pool_end(reader.keyring.current())?;
        let end = end.min(registered.saturating_add(ROWS_PER_MESSAGE as u32));
        let rows = (registered..end)
            .map(|idx| read_row(&mut reader, device, idx))
            .collect::<Result<Vec<NewRow>, Ends>>()?;
        let mut room: Bodies = [0; BODY_BYTES_MAX];
        let body = write_rows(state.epoch, state.rows_end, &rows, &mut room);
        let question = body.map(|body| self.question(Kind::Rows, body));
        room.zeroize();
        question
            .map(Next::Ask)
            .ok_or_else(|| Ends("no rows to send".to_owned()))
    }

    fn after_key(
        &mut self,
        state: &State,
        device: &Device,
        mut reader: Reader<'_>,
        sink: &mut dyn FnMut(&Report),
    ) -> Result<Next, Ends> {
        if self.sent_at.is_some_and(|epoch| state.epoch > epoch) {
            reader.keyring.promote()?;
            sink(&Report::KeyRenewed);
            self.demanded = false;
            return Ok(Next::Begin);
        }
        if reader.keyring.pending().is_none() {
            if !self.demanded {
                return Ok(Next::Rest);
            }
            let pending = new_key(&mut reader)?;
            reader.keyring.put_beside(pending)?;
        }
        self.note_progress(state.epoch)?;
        let query = PufQuery {
            mode: Mode::Key,
            idx: RowIndex(0),
            challenge: [0; 8],
        };
        let Reader { puf, health, keyring } = &mut reader;
        let pending = keyring
            .pending()
            .ok_or_else(|| Ends("the new helper data are gone".to_owned()))?;
        let key = read(&mut **puf, health, pending, device, &query)?;
        let mut room: Bodies = [0; BODY_BYTES_MAX];
        let body = write_key(state.epoch, &key, &mut room);
        let question = body.map(|body| self.question(Kind::Key, body));
        room.zeroize();
        question
            .map(Next::Ask)
            .ok_or_else(|| Ends("no key to send".to_owned()))
    }

    /// A session that was opened with the new helper data has shown that the registry has their key. Whether they have
    /// taken the old ones' place is known, too.
    pub(crate) fn confirmed(&mut self, in_place: bool) {
        self.failed |= self.demanded && !in_place;
        (self.demanded, self.open) = (false, false);
    }

    /// A registry that was put back has less than what lies on disk.
    pub(crate) fn reopen(&mut self) {
        self.open = true;
    }

    /// It ends here.
    pub(crate) fn abandon(&mut self) {
        self.failed |= self.demanded;
        (self.busy, self.demanded, self.open) = (false, false, true);
    }

    fn is_wanted(&self, idx: RowIndex, keyring: &Keyring) -> bool {
        let ahead = match keyring.current() {
            Credential::Pool(helper) => helper.end_idx().saturating_sub(idx.0).saturating_sub(1),
            Credential::Key(_) => u32::MAX,
        };
        self.demanded || self.options.below_rows.is_some_and(|below| ahead < below)
    }

    /// What was sent before has moved the registry on, or is sent a few times only.
    fn note_progress(&mut self, at: u32) -> Result<(), Ends> {
        self.stalls = match self.sent_at == Some(at) {
            true => self.stalls + 1,
            false => 0,
        };
        self.sent_at = Some(at);
        match self.stalls < STALLS_MAX {
            true => Ok(()),
            false => Err(Ends("the controller does not take what is sent".to_owned())),
        }
    }

    fn status(&self) -> Question {
        Question {
            kind: Kind::Status,
            number: 0,
            body: Vec::new(),
        }
    }

    fn question(&mut self, kind: Kind, body: &[u8]) -> Question {
        self.number = self.number.saturating_add(1);
        Question {
            kind,
            number: self.number,
            body: body.to_vec(),
        }
    }
}

fn pool_end(credential: &Credential) -> Result<u32, Ends> {
    match credential {
        Credential::Pool(helper) => Ok(helper.end_idx()),
        Credential::Key(_) => Err(Ends("the helper data are of key mode".to_owned())),
    }
}

/// Enrols rows behind the last one, with the checks of every enrolment, and makes the longer helper data durable.
fn grow(reader: &mut Reader<'_>, rows: u32) -> Result<(), Ends> {
    let Credential::Pool(helper) = reader.keyring.current().clone() else {
        return Err(Ends("the helper data are of key mode".to_owned()));
    };
    let options = PoolEnrolment {
        profile: helper.profile(),
        first_idx: helper.end_idx(),
        health: *reader.health,
        is_known: true,
        ..PoolEnrolment::rows(rows)
    };
    let pool = enrol_pool(reader.puf, &options, &mut random()?)?;
    let longer = helper
        .followed_by(&pool.helper)
        .ok_or_else(|| Ends("no row number is left".to_owned()))?;
    reader.keyring.grow(Credential::Pool(longer))?;
    Ok(())
}

fn new_key(reader: &mut Reader<'_>) -> Result<Credential, Ends> {
    let Credential::Key(helper) = reader.keyring.current().clone() else {
        return Err(Ends("the helper data are of pool mode".to_owned()));
    };
    let options = KeyEnrolment {
        profile: helper.profile(),
        health: *reader.health,
        ..KeyEnrolment::default()
    };
    let cells = helper.readout_bits();
    let key = enrol_puf(reader.puf, cells, KEY_READINGS, &options, &mut random()?)?;
    Ok(Credential::Key(key.helper))
}

fn read_row(reader: &mut Reader<'_>, device: &Device, idx: u32) -> Result<NewRow, Ends> {
    let Reader { puf, health, keyring } = reader;
    let credential = keyring.current();
    let challenge = match credential {
        Credential::Pool(helper) => helper.row(idx).map(|row| row.challenge),
        Credential::Key(_) => None,
    };
    let challenge = challenge.ok_or_else(|| Ends(format!("row {idx} is not in the helper data")))?;
    let query = PufQuery {
        mode: Mode::Pool,
        idx: RowIndex(idx),
        challenge,
    };
    let row_key = read(&mut **puf, health, credential, device, &query)?;
    Ok(NewRow { challenge, row_key })
}

fn read(
    puf: &mut dyn Puf,
    health: &HealthTest,
    credential: &Credential,
    device: &Device,
    query: &PufQuery,
) -> Result<RowKey, ExtractorError> {
    let config = device.config();
    let mut tried = 0;
    loop {
        tried += 1;
        let key = credential.row_key(puf, health, config.suite, config.device, query);
        match key {
            Err(_) if tried < ROW_READINGS_MAX => {}
            key => return key,
        }
    }
}

fn random() -> Result<ChaCha20Rng, Ends> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|error| Ends(error.to_string()))?;
    let rng = ChaCha20Rng::from_seed(seed);
    seed.zeroize();
    Ok(rng)
}
