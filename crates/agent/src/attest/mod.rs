//! The device as a prover: it is asked what it runs, and proves it (LAP/1 3.2).
//!
//! ```text
//!   gateway ◄── UDP ──► Attestation ── Answers     which request gets which proof (no I/O)
//!                        │       │
//!                        │       └──── Worker      a thread: TPM or software key, files, PCRs, event log
//!                        └──────────── Delivery    evidence to the controller, by tickets
//! ```
//! A proof says what was measured when its period began. If it cannot be measured, if the event log contradicts the
//! PCRs, or if the TPM does not do what it is told, nothing is proven: never something older in its place.

mod answers;
mod delivery;
#[cfg(feature = "tpm")]
mod enrol;
mod evidence;
mod key;
mod request_keys;
mod section;
mod state;
mod subject;
mod worker;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use linewarden_measurement::diff::Difference;
use linewarden_protocol::attest::{PeriodKey, PeriodStart};
use linewarden_protocol::device::{Device, DeviceConfig};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::ticket::Taken;
use linewarden_protocol::wire::MESSAGE_BYTES;
use linewarden_tpm::{AttestationKey as _, SoftwareKey};

use crate::report::Report;
use crate::way::OwnSocket;
use answers::{Answers, Refusals, Reply, Wanted};
use evidence::Evidencer;
use request_keys::RequestKeys;
use state::Kept;
use worker::{Attestor, Done, Job, Worker};

#[cfg(feature = "tpm")]
pub use enrol::{EnrolError, answer, identity};
pub use key::{KeyFile, KeyFileError, KeySource};
pub use section::AttestSection;
pub use subject::{HeldLog, MeasureError, Measured, Subject, TpmSubject};

/// Datagrams before the others have their turn.
const BATCH: usize = 64;
/// Between two attempts to listen, ms.
const LISTEN_MS: u64 = 5_000;
/// Between two attempts to read a key that was replaced, ms.
const READ_KEY_MS: u64 = 1_000;
/// Between two attempts to write the state, ms.
const SAVE_MS: u64 = 600_000;
/// Between two reports on refused requests, ms.
const TELL_MS: u64 = 60_000;

/// What a device needs to be a prover.
#[derive(Clone, Debug)]
pub struct AttestOptions {
    /// What is measured.
    pub subject: Subject,
    /// Where its key lies.
    pub key: KeySource,
    /// The file that it was read from; `None`: it is never read anew.
    pub key_file: Option<KeyFile>,
    /// UDP port at which it is asked.
    pub port: u16,
    /// Whether the controller is told when the configuration has changed.
    pub send_log: bool,
    /// Periods between two quotes of a TPM; 0: never.
    pub quote_every: u64,
    /// File with what it remembers.
    pub state: PathBuf,
    /// The period in which it was enrolled.
    pub enrolled_period: Period,
}

/// The prover with its socket and its thread.
pub(crate) struct Attestation {
    device: DeviceId,
    port: u16,
    answers: Answers,
    socket: OwnSocket,
    worker: Worker,
    /// k, where it is in this process.
    software: Option<SoftwareKey>,
    options: AttestOptions,
    /// When a key file that was replaced may be read again: one that cannot be read is tried again.
    read_key_at_ms: u64,
    /// A key that the thread has yet to take.
    new_key: Option<KeySource>,
    /// What the thread does now it does with the key before.
    is_overtaken: bool,
    began_ms: u64,
    evidence: Evidencer,
    kept: Kept,
    last: Option<Measured>,
    /// Why there is no measurement now.
    failure: Option<String>,
    listen_at_ms: u64,
    told: Refusals,
    tell_at_ms: u64,
    protection: linewarden_tpm::Protection,
    save_at_ms: u64,
}

type Sink<'a> = &'a mut dyn FnMut(&Report);

impl Attestation {
    /// Reads the state and starts the thread; nothing is measured before somebody asks.
    ///
    /// # Errors
    /// The state's file, or the operating system's.
    pub(crate) fn start(options: &AttestOptions, device: &DeviceConfig) -> io::Result<Self> {
        let kept = Kept::read_from(&options.state)?;
        let period = Period(kept.state.period).max(options.enrolled_period);
        let protection = options.key.protection();
        let software = options.key.in_software().cloned();
        let familiar = kept.state.gateways.iter().copied().map(GatewayId);
        let keys = RequestKeys::new(familiar, software.is_none());
        let worker = Worker::start(Attestor {
            device: device.device,
            subject: options.subject.clone(),
            source: options.key.clone(),
            key: None,
        })?;
        Ok(Self {
            device: device.device,
            port: options.port,
            answers: Answers::new(device.device, period, device.gateways, keys),
            socket: OwnSocket::new(options.port),
            worker,
            software,
            options: options.clone(),
            read_key_at_ms: 0,
            new_key: None,
            is_overtaken: false,
            began_ms: 0,
            evidence: Evidencer::new(options, protection),
            kept,
            last: None,
            failure: None,
            listen_at_ms: 0,
            told: Refusals::new(),
            tell_at_ms: 0,
            protection,
            save_at_ms: 0,
        })
    }

    /// What to wait for; without a way to the gateway nothing is received.
    pub(crate) fn descriptors(&self, is_linked: bool) -> impl Iterator<Item = BorrowedFd<'_>> {
        let socket = self.socket.descriptor().filter(|_| is_linked);
        socket.into_iter().chain([self.worker.descriptor()])
    }

    /// Requests that the kernel has dropped.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.socket.kernel_drops()
    }

    /// When [`Attestation::carry`] has something to do though nothing has come.
    pub(crate) fn deadline(&self, is_linked: bool) -> Option<u64> {
        let waits = is_linked && self.socket.descriptor().is_none();
        let listen = waits.then_some(self.listen_at_ms);
        let tell = (self.told != *self.answers.refusals()).then_some(self.tell_at_ms);
        let idle = self.worker.is_idle();
        let work = [self.answers.deadline(), self.evidence.quote_deadline()];
        let work = work.into_iter().flatten().filter(|_| idle);
        listen.into_iter().chain(tell).chain(work).min()
    }

    /// Answers what has come, takes what is done, begins what is to be done.
    pub(crate) fn carry(&mut self, device: &Device, own: Option<IpAddr>, now_ms: u64, sink: Sink<'_>) {
        if let Some(own) = own {
            self.listen(own, now_ms, sink);
            self.receive(device, now_ms, sink);
        }
        while let Some(done) = self.worker.take() {
            self.take(done, now_ms, sink);
        }
        if self.worker.is_idle()
            && let Some(job) = self.next_job(now_ms)
        {
            self.began_ms = now_ms;
            self.worker.begin(job);
        }
        self.kept.state.period = self.kept.state.period.max(self.answers.period().0);
        let familiar = self.answers.familiar();
        self.kept.state.gateways = familiar.into_iter().map(|gateway| gateway.0).collect();
        self.save(now_ms, sink);
        if self.told != *self.answers.refusals() && self.tell_at_ms <= now_ms {
            self.tell_at_ms = now_ms.saturating_add(TELL_MS);
            self.tell_refusals(sink);
        }
    }

    /// The gateway that has asked for a proof as one does that has no session of this device, if one has since it was asked last.
    pub(crate) fn take_stranger(&mut self) -> Option<GatewayId> {
        self.answers.take_stranger()
    }

    /// Tells at the end what has not been told.
    pub(crate) fn finish(&mut self, sink: Sink<'_>) {
        if self.told != *self.answers.refusals() {
            self.tell_refusals(sink);
        }
    }

    fn tell_refusals(&mut self, sink: Sink<'_>) {
        self.told.clone_from(self.answers.refusals());
        sink(&Report::AttestRefused {
            requests: self.told.clone(),
        });
    }

    fn listen(&mut self, own: IpAddr, now_ms: u64, sink: Sink<'_>) {
        if self.listen_at_ms > now_ms {
            return;
        }
        if let Err(error) = self.socket.bind(own) {
            self.listen_at_ms = now_ms.saturating_add(LISTEN_MS);
            sink(&Report::NotAttesting {
                why: format!("cannot listen on {}: {error}", SocketAddr::new(own, self.port)),
                retry_in_ms: Some(LISTEN_MS),
            });
        }
    }

    fn receive(&mut self, device: &Device, now_ms: u64, sink: Sink<'_>) {
        // One byte more than a request has, so that a longer one is not mistaken for one.
        let mut buffer = [0u8; MESSAGE_BYTES + 1];
        for number in 0..BATCH {
            let Some(received) = self.socket.receive_plain(&mut buffer) else {
                return;
            };
            // A device that is enrolled anew is asked with its new key, and asked again until it answers.
            if number == 0 {
                self.look_at_key(now_ms, sink);
            }
            let (length, from) = received;
            let datagram = buffer.get(..length).unwrap_or_default();
            let session = device.session();
            let reply = self.answers.receive(datagram, from, session, now_ms);
            self.send(reply, sink);
            self.make_request_keys(sink);
        }
    }

    /// Reads the key anew if its file was replaced.
    fn look_at_key(&mut self, now_ms: u64, sink: Sink<'_>) {
        let file = self.options.key_file.as_mut();
        let Some(file) = file.filter(|file| self.read_key_at_ms <= now_ms && file.is_replaced()) else {
            return;
        };
        match file.read() {
            Ok(key) => {
                self.use_key(key);
                sink(&Report::AttestKeyReplaced);
            }
            // An enrolment that is not finished, a file that is being written, or an error that passes.
            Err(error) => {
                self.read_key_at_ms = now_ms.saturating_add(READ_KEY_MS);
                tracing::warn!(
                    %error,
                    file = %file.path().display(),
                    retry_in_ms = READ_KEY_MS,
                    "the new attestation key cannot be used; the key before stays in use"
                );
            }
        }
    }

    /// Begins anew with another key. The controller has forgotten what it was told of the enrolment before.
    fn use_key(&mut self, key: KeySource) {
        self.protection = key.protection();
        self.software = key.in_software().cloned();
        let familiar = self.kept.state.gateways.iter().copied().map(GatewayId);
        self.answers
            .renew(self.device, RequestKeys::new(familiar, self.software.is_none()));
        self.evidence = Evidencer::new(&self.options, self.protection);
        (self.kept.state.taken, self.kept.state.quoted) = (None, None);
        self.is_overtaken = !self.worker.is_idle();
        self.new_key = Some(key.clone());
        self.options.key = key;
    }

    /// With the key at hand a request key costs no more than the check of its tag: nothing waits for one, so nobody can fill the
    /// queue.
    fn make_request_keys(&mut self, sink: Sink<'_>) {
        let Some(software) = &mut self.software else {
            return;
        };
        let mut replies = Vec::new();
        while let Some(asks) = self.answers.wanted_key() {
            let made = worker::request_key(self.device, asks, |message| software.hmac(message));
            let Ok(key) = made else {
                break;
            };
            replies.extend(self.answers.key_made(asks, key));
        }
        self.send(replies, sink);
    }

    fn send(&self, replies: impl IntoIterator<Item = Reply>, sink: Sink<'_>) {
        for reply in replies {
            if let Err(error) = self.socket.send_plain(&reply.proof, reply.to) {
                tracing::debug!(%error, to = %reply.to, "a proof was not sent");
                continue;
            }
            tracing::debug!(to = %reply.to, "sent a proof");
            if let Some(first) = reply.first {
                sink(&Report::Attested {
                    gateway_id: first.gateway.0,
                    period: first.period.0,
                    configuration: first.h.to_string(),
                    protection: self.protection,
                });
            }
        }
    }

    fn next_job(&mut self, now_ms: u64) -> Option<Job> {
        if let Some(key) = self.new_key.take() {
            return Some(Job::Key(Box::new(key)));
        }
        match self.answers.next(now_ms) {
            Some(Wanted::RequestKey(gateway, period)) => Some(Job::RequestKey(gateway, period)),
            Some(Wanted::Period(start)) => Some(Job::Period(start)),
            None => {
                let (start, values) = self.evidence.quote_due(now_ms)?;
                Some(Job::Quote(start, values))
            }
        }
    }

    fn take(&mut self, done: Done, now_ms: u64, sink: Sink<'_>) {
        if std::mem::take(&mut self.is_overtaken) && !matches!(done, Done::Gone) {
            return;
        }
        match done {
            Done::Key => {}
            Done::RequestKey(asks, Ok(key)) => {
                let replies = self.answers.key_made(asks, key);
                self.send(replies, sink);
            }
            Done::RequestKey(_, Err(error)) => {
                let retry_in_ms = Some(self.answers.key_failed(now_ms));
                let why = error.to_string();
                sink(&Report::NotAttesting { why, retry_in_ms });
            }
            Done::Period(start, Ok(made)) => {
                let (measured, key) = *made;
                self.measured(start, measured, &key, now_ms, sink);
            }
            Done::Period(start, Err(error)) => {
                self.failed(&error);
                let retry_in_ms = self.answers.period_failed(start, error.is_final(), now_ms);
                let why = error.to_string();
                sink(&Report::NotAttesting { why, retry_in_ms });
            }
            Done::Quote(start, quote) => {
                let told = self.evidence.quoted(start, quote, now_ms);
                self.tell(told, sink);
            }
            Done::Gone => sink(&Report::NotAttesting {
                why: "the thread that measures has ended, which is a fault of this program; start it anew"
                    .to_owned(),
                retry_in_ms: None,
            }),
        }
    }

    /// A person must act, or nothing is ever proven: said once for each cause.
    fn failed(&mut self, error: &MeasureError) {
        let error = error.to_string();
        if self.failure.as_ref() != Some(&error) {
            tracing::error!(
                error,
                action = "remove the cause; `linewarden attest measure` as the service's user shows it too",
                "measurement failed; this device proves nothing until it succeeds"
            );
            self.failure = Some(error);
        }
    }

    fn measured(
        &mut self,
        start: PeriodStart,
        measured: Measured,
        key: &PeriodKey,
        now_ms: u64,
        sink: Sink<'_>,
    ) {
        let h = worker::hash_of(&measured);
        let shown = h.to_string();
        self.failure = None;
        if self
            .last
            .as_ref()
            .is_none_or(|last| last.configuration != measured.configuration)
        {
            notify(&measured);
        }
        let before = self.kept.state.measured.replace(shown.clone());
        if before.is_some_and(|before| before != shown) {
            let changes = self
                .last
                .as_ref()
                .map(|last| Box::new(difference(last, &measured)));
            sink(&Report::ConfigurationChanged {
                configuration: shown,
                changes,
            });
        }
        let took_ms = now_ms.saturating_sub(self.began_ms);
        let replies = self.answers.period_made(start, key.clone(), h, took_ms, now_ms);
        self.send(replies, sink);
        let told = self
            .evidence
            .measured(start, h, &measured, &self.kept.state, now_ms);
        self.tell(told, sink);
        self.last = Some(measured);
    }

    /// The body of the next piece of evidence, if it is time for one.
    pub(crate) fn question(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        self.evidence.question(now_ms)
    }

    /// When [`Attestation::question`] has one.
    pub(crate) fn question_deadline(&self) -> Option<u64> {
        self.evidence.question_deadline()
    }

    /// What became of the piece.
    pub(crate) fn answered(&mut self, taken: Option<Taken>, now_ms: u64, sink: Sink<'_>) {
        let told = self.evidence.answered(taken, &mut self.kept.state, now_ms);
        self.tell(told, sink);
        self.save(now_ms, sink);
    }

    fn tell(&self, report: Option<Report>, sink: Sink<'_>) {
        if let Some(report) = report {
            sink(&report);
        }
    }

    /// A state that is not written costs nothing before the next start.
    fn save(&mut self, now_ms: u64, sink: Sink<'_>) {
        if self.save_at_ms > now_ms {
            return;
        }
        if let Err(error) = self.kept.save() {
            self.save_at_ms = now_ms.saturating_add(SAVE_MS);
            sink(&Report::AttestNotKept {
                why: format!("{}: {error}", self.kept.path().display()),
            });
        }
    }
}

/// What the operator should know of a measurement that succeeded.
fn notify(measured: &Measured) {
    for notice in measured.notices() {
        tracing::warn!(%notice, "measured PCRs");
    }
    for path in measured.absent() {
        tracing::warn!(%path, "measured path is absent, or hidden by the service's sandbox");
    }
}

fn difference(old: &Measured, new: &Measured) -> Difference {
    let difference = Difference::between(&old.configuration, &new.configuration);
    match (old.replayed(), new.replayed()) {
        (Some((_, old)), Some((_, new))) => difference.with_events(old, new),
        _ => difference,
    }
}
