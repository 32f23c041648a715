//! The device as a prover: proves its configuration to gateways (LAP/1 3.2).
//!
//! ```text
//!   gateway ◄── UDP ──► Attestation ── Responder   responds to requests (no I/O)
//!                        │       │
//!                        │       └──── Worker      thread for TPM or software key, files, PCRs, event log
//!                        └──────────── Delivery    delivers evidence to the controller, by tickets
//! ```
//! A proof covers the configuration that was measured when its period began. If the measurement fails, the event log
//! contradicts the PCRs, or the TPM fails, the device sends no proof, and in particular no proof of an older
//! measurement.

mod delivery;
#[cfg(feature = "tpm")]
mod enroll;
mod evidence;
mod key;
mod measurement;
mod options;
mod request_keys;
mod responder;
mod state;
mod worker;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_measurement::diff::Difference;
use linewarden_protocol::attest::{PeriodKey, PeriodStart};
use linewarden_protocol::device::{Device, DeviceConfig};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::ticket::ChunkAck;
use linewarden_protocol::wire::MESSAGE_BYTES;
use linewarden_tpm::{AttestationKey as _, SoftwareKey};

use crate::device_socket::DeviceSocket;
use crate::event::{AgentEvent, EventSink};
use crate::retry::{self, RetryTimer};
use evidence::EvidenceReporter;
use request_keys::RequestKeys;
use responder::{KeyJob, ProofReply, Rejections, Responder};
use worker::{Job, JobResult, JobRunner, Worker};

#[cfg(feature = "tpm")]
pub use enroll::{EnrollError, accept_offer, identity};
pub use key::{KeyFile, KeyFileError, KeySource};
pub use measurement::{
    CheckedLog, EVENT_LOG, LogFile, MeasureError, Measurement, MeasurementScope, TpmScope,
};
pub use options::AttestOptions;
pub use state::StateFile;

/// Maximum number of datagrams before other sockets are served.
const BATCH: usize = 64;
/// Longest interval between attempts to open the socket, ms.
const LISTEN_RETRY_MS: u64 = 5_000;
/// Longest interval between attempts to read a replaced key, ms.
const READ_KEY_RETRY_MS: u64 = 1_000;
/// Longest interval between attempts to write the state, ms.
const SAVE_RETRY_MS: u64 = 600_000;
/// Interval between reports of rejected requests, ms.
const REPORT_INTERVAL_MS: u64 = 60_000;

/// The prover with its socket and its worker thread.
pub(crate) struct Attestation {
    device: DeviceId,
    port: u16,
    responder: Responder,
    socket: DeviceSocket,
    worker: Worker,
    key: KeyState,
    options: AttestOptions,
    job_started_ms: u64,
    evidence: EvidenceReporter,
    state_file: StateFile,
    measured: MeasurementState,
    listen_retry: RetryTimer,
    rejections: RejectionReport,
    protection: linewarden_tpm::Protection,
    save_retry: RetryTimer,
}

/// The attestation key, and its replacement.
struct KeyState {
    /// The attestation key k, if k is in this process.
    software: Option<SoftwareKey>,
    /// When a replaced key file is read; an unreadable file is read again later.
    read_retry: RetryTimer,
    /// A new key that the worker has not received yet.
    new: Option<KeySource>,
    /// Whether the worker's present job uses the previous key, so that its result is ignored.
    is_job_superseded: bool,
}

/// The results of measurements.
#[derive(Default)]
struct MeasurementState {
    last: Option<Measurement>,
    /// The last logged error; `None` after a successful measurement.
    failure: Option<String>,
}

/// Rejected requests, as they were reported last.
struct RejectionReport {
    reported: Rejections,
    /// Time of the next report.
    report_at_ms: u64,
}

impl Attestation {
    /// Reads the state and starts the worker; nothing is measured before the first request.
    ///
    /// # Errors
    /// The state file is unusable, or the thread cannot be started.
    pub(crate) fn start(options: &AttestOptions, device: &DeviceConfig) -> io::Result<Self> {
        let state_file = StateFile::read_from(&options.state)?;
        let period = Period(state_file.state.period).max(options.enrolled_period);
        let protection = options.key.protection();
        let software = options.key.software_key().cloned();
        let known_gateways = state_file.state.gateways.iter().copied().map(GatewayId);
        let keys = RequestKeys::new(known_gateways, software.is_none());
        let worker = Worker::start(JobRunner {
            device: device.device,
            scope: options.scope.clone(),
            source: options.key.clone(),
            key: None,
        })?;
        Ok(Self {
            device: device.device,
            port: options.port,
            responder: Responder::new(device.device, period, device.gateways, keys),
            socket: DeviceSocket::new(options.port),
            worker,
            key: KeyState {
                software,
                read_retry: RetryTimer::every(READ_KEY_RETRY_MS),
                new: None,
                is_job_superseded: false,
            },
            options: options.clone(),
            job_started_ms: 0,
            evidence: EvidenceReporter::new(options, protection),
            state_file,
            measured: MeasurementState::default(),
            listen_retry: RetryTimer::every(LISTEN_RETRY_MS),
            rejections: RejectionReport {
                reported: Rejections::new(),
                report_at_ms: 0,
            },
            protection,
            save_retry: RetryTimer::every(SAVE_RETRY_MS),
        })
    }

    /// The descriptors to poll; without a route to the gateway the socket is not polled.
    pub(crate) fn descriptors(&self, is_linked: bool) -> impl Iterator<Item = BorrowedFd<'_>> {
        let socket = self.socket.descriptor().filter(|_| is_linked);
        socket.into_iter().chain([self.worker.descriptor()])
    }

    /// Requests that the kernel has dropped.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.socket.kernel_drops()
    }

    /// When [`Attestation::poll`] must be called although no datagram has arrived.
    pub(crate) fn deadline(&self, is_linked: bool) -> Option<u64> {
        let is_waiting = is_linked && self.socket.descriptor().is_none();
        let listen = is_waiting.then(|| self.listen_retry.due_ms());
        let report_at_ms = (self.rejections.reported != *self.responder.rejections())
            .then_some(self.rejections.report_at_ms);
        let is_worker_idle = self.worker.is_idle();
        let work = [self.responder.deadline(), self.evidence.quote_deadline()];
        let work = work.into_iter().flatten().filter(|_| is_worker_idle);
        listen.into_iter().chain(report_at_ms).chain(work).min()
    }

    /// Handles requests and finished jobs, and starts due jobs.
    pub(crate) fn poll(
        &mut self,
        device: &Device,
        device_address: Option<IpAddr>,
        now_ms: u64,
        sink: EventSink<'_>,
    ) {
        if let Some(device_address) = device_address {
            self.listen(device_address, now_ms, sink);
            self.receive(device, now_ms, sink);
        }
        while let Some(result) = self.worker.take_result() {
            self.handle_result(result, now_ms, sink);
        }
        if self.worker.is_idle()
            && let Some(job) = self.next_job(now_ms)
        {
            self.job_started_ms = now_ms;
            self.worker.submit(job);
        }
        self.state_file.state.period = self.state_file.state.period.max(self.responder.period().0);
        let verified = self.responder.verified_gateways();
        self.state_file.state.gateways = verified.into_iter().map(|gateway| gateway.0).collect();
        self.save(now_ms, sink);
        if self.rejections.reported != *self.responder.rejections() && self.rejections.report_at_ms <= now_ms
        {
            self.rejections.report_at_ms = now_ms.saturating_add(REPORT_INTERVAL_MS);
            self.report_rejections(sink);
        }
    }

    /// Returns the gateway that, since the last call, has sent an attestation request of the kind for devices without a
    /// session.
    pub(crate) fn take_sessionless_gateway(&mut self) -> Option<GatewayId> {
        self.responder.take_sessionless_gateway()
    }

    /// Reports rejected requests at the end.
    pub(crate) fn finish(&mut self, sink: EventSink<'_>) {
        if self.rejections.reported != *self.responder.rejections() {
            self.report_rejections(sink);
        }
    }

    fn report_rejections(&mut self, sink: EventSink<'_>) {
        self.rejections.reported.clone_from(self.responder.rejections());
        sink(&AgentEvent::AttestationRequestsRejected {
            requests: self.rejections.reported.clone(),
        });
    }

    fn listen(&mut self, device_address: IpAddr, now_ms: u64, sink: EventSink<'_>) {
        if !self.listen_retry.is_due(now_ms) {
            return;
        }
        if let Err(error) = self.socket.bind(device_address) {
            let retry_in_ms = Some(self.listen_retry.fail(now_ms, retry::random()));
            sink(&AgentEvent::AttestationFailed {
                reason: format!(
                    "cannot listen on {}: {error}",
                    SocketAddr::new(device_address, self.port)
                ),
                retry_in_ms,
            });
        }
    }

    fn receive(&mut self, device: &Device, now_ms: u64, sink: EventSink<'_>) {
        // One byte longer than a request, so that longer datagrams are detected.
        let mut buffer = [0u8; MESSAGE_BYTES + 1];
        for number in 0..BATCH {
            let Some(received) = self.socket.receive_plain(&mut buffer) else {
                return;
            };
            // A device that was enrolled again receives requests under its new key; the gateway repeats these requests until
            // the device answers.
            if number == 0 {
                self.reload_replaced_key(now_ms, sink);
            }
            let (length, from) = received;
            let datagram = buffer.get(..length).unwrap_or_default();
            let session = device.session();
            let reply = self.responder.receive(datagram, from, session, now_ms);
            self.send(reply, sink);
            self.make_request_keys(sink);
        }
    }

    /// Reads the key again if its file was replaced.
    fn reload_replaced_key(&mut self, now_ms: u64, sink: EventSink<'_>) {
        let file = self.options.key_file.as_mut();
        let Some(file) = file.filter(|file| self.key.read_retry.is_due(now_ms) && file.is_replaced()) else {
            return;
        };
        match file.read() {
            Ok(key) => {
                self.replace_key(key);
                sink(&AgentEvent::AttestationKeyReplaced);
            }
            // The enrollment is incomplete, the file is being written, or the error is temporary.
            Err(error) => {
                let retry_in_ms = self.key.read_retry.fail(now_ms, retry::random());
                tracing::warn!(
                    %error,
                    path = %file.path().display(),
                    retry_in_ms,
                    "reading the new attestation key failed; the previous key stays in use"
                );
            }
        }
    }

    /// Replaces the key and forgets all evidence, because the controller has deleted the evidence of the previous enrollment.
    fn replace_key(&mut self, key: KeySource) {
        self.protection = key.protection();
        self.key.software = key.software_key().cloned();
        let known_gateways = self.state_file.state.gateways.iter().copied().map(GatewayId);
        self.responder.replace_key(
            self.device,
            RequestKeys::new(known_gateways, self.key.software.is_none()),
        );
        self.evidence = EvidenceReporter::new(&self.options, self.protection);
        (
            self.state_file.state.accepted,
            self.state_file.state.quoted_period,
        ) = (None, None);
        self.key.is_job_superseded = !self.worker.is_idle();
        self.key.new = Some(key.clone());
        self.options.key = key;
    }

    /// Makes all pending request keys at once if the key is in this process: a request key then costs no more than
    /// checking a tag, and an attacker cannot fill the queue.
    fn make_request_keys(&mut self, sink: EventSink<'_>) {
        let Some(software) = &mut self.key.software else {
            return;
        };
        let mut replies = Vec::new();
        while let Some(key_id) = self.responder.next_request_key() {
            let result = worker::request_key(self.device, key_id, |message| software.hmac(message));
            let Ok(key) = result else {
                break;
            };
            replies.extend(self.responder.request_key_ready(key_id, key));
        }
        self.send(replies, sink);
    }

    fn send(&self, replies: impl IntoIterator<Item = ProofReply>, sink: EventSink<'_>) {
        for reply in replies {
            if let Err(error) = self.socket.send_plain(&reply.proof, reply.to) {
                tracing::debug!(%error, peer = %reply.to, "sending a proof failed");
                continue;
            }
            tracing::debug!(peer = %reply.to, "proof sent");
            if let Some(first) = reply.first_proof {
                sink(&AgentEvent::Attested {
                    gateway_id: first.gateway.0,
                    period: first.period.0,
                    configuration: first.h.to_string(),
                    protection: self.protection,
                });
            }
        }
    }

    fn next_job(&mut self, now_ms: u64) -> Option<Job> {
        if let Some(key) = self.key.new.take() {
            return Some(Job::Key(Box::new(key)));
        }
        match self.responder.next_job(now_ms) {
            Some(KeyJob::RequestKey(gateway, period)) => Some(Job::RequestKey(gateway, period)),
            Some(KeyJob::Period(start)) => Some(Job::Period(start)),
            None => {
                let (start, values) = self.evidence.quote_due(now_ms)?;
                Some(Job::Quote(start, values))
            }
        }
    }

    fn handle_result(&mut self, result: JobResult, now_ms: u64, sink: EventSink<'_>) {
        if std::mem::take(&mut self.key.is_job_superseded) && !matches!(result, JobResult::WorkerExited) {
            return;
        }
        match result {
            JobResult::Key => {}
            JobResult::RequestKey(key_id, Ok(key)) => {
                let replies = self.responder.request_key_ready(key_id, key);
                self.send(replies, sink);
            }
            JobResult::RequestKey(_, Err(error)) => {
                let retry_in_ms = Some(self.responder.request_key_failed(now_ms, retry::random()));
                let reason = error.to_string();
                sink(&AgentEvent::AttestationFailed { reason, retry_in_ms });
            }
            JobResult::Period(start, Ok(measured_period)) => {
                let (measured, key) = *measured_period;
                self.handle_measurement(start, measured, &key, now_ms, sink);
            }
            JobResult::Period(start, Err(error)) => {
                self.log_failure(&error);
                let random = retry::random();
                let retry_in_ms = self
                    .responder
                    .period_key_failed(start, error.is_final(), now_ms, random);
                let reason = error.to_string();
                sink(&AgentEvent::AttestationFailed { reason, retry_in_ms });
            }
            JobResult::Quote(start, quote) => {
                let event = self.evidence.on_quote(start, quote, now_ms, retry::random());
                self.report(event, sink);
            }
            JobResult::WorkerExited => sink(&AgentEvent::AttestationFailed {
                reason:
                    "the measuring thread has failed, which is a fault of this program; restart the agent"
                        .to_owned(),
                retry_in_ms: None,
            }),
        }
    }

    /// Logs a measurement failure, once per cause, because an operator must act.
    fn log_failure(&mut self, error: &MeasureError) {
        let error = error.to_string();
        if self.measured.failure.as_ref() != Some(&error) {
            tracing::error!(
                error,
                action =
                    "remove the cause; `linewarden-agent measure`, run as the service's user, shows it too",
                "measurement failed; this device proves nothing until a measurement succeeds"
            );
            self.measured.failure = Some(error);
        }
    }

    fn handle_measurement(
        &mut self,
        start: PeriodStart,
        measurement: Measurement,
        key: &PeriodKey,
        now_ms: u64,
        sink: EventSink<'_>,
    ) {
        let h = worker::configuration_hash(&measurement);
        let measured_hash = h.to_string();
        self.measured.failure = None;
        if self
            .measured
            .last
            .as_ref()
            .is_none_or(|last| last.configuration != measurement.configuration)
        {
            log_notices(&measurement);
        }
        let previous_hash = self.state_file.state.measured.replace(measured_hash.clone());
        if previous_hash.is_some_and(|previous| previous != measured_hash) {
            let changes = self
                .measured
                .last
                .as_ref()
                .map(|last| Box::new(difference(last, &measurement)));
            sink(&AgentEvent::ConfigurationChanged {
                configuration: measured_hash,
                changes,
            });
        }
        let measurement_ms = now_ms.saturating_sub(self.job_started_ms);
        let replies = self
            .responder
            .period_key_ready(start, key.clone(), h, measurement_ms, now_ms);
        self.send(replies, sink);
        let event = self
            .evidence
            .on_measurement(start, h, &measurement, &self.state_file.state);
        self.report(event, sink);
        self.measured.last = Some(measurement);
    }

    /// The body of the next piece of evidence, if one is due.
    pub(crate) fn next_evidence_piece(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        self.evidence.next_piece(now_ms)
    }

    /// When [`Attestation::next_evidence_piece`] returns a piece.
    pub(crate) fn evidence_deadline(&self) -> Option<u64> {
        self.evidence.piece_deadline()
    }

    /// Handles the response to a piece.
    pub(crate) fn handle_evidence_response(
        &mut self,
        ack: Option<ChunkAck>,
        now_ms: u64,
        sink: EventSink<'_>,
    ) {
        let event = self
            .evidence
            .handle_response(ack, &mut self.state_file.state, now_ms, retry::random());
        self.report(event, sink);
        self.save(now_ms, sink);
    }

    fn report(&self, report: Option<AgentEvent>, sink: EventSink<'_>) {
        if let Some(report) = report {
            sink(&report);
        }
    }

    /// Writes the state; a failure has no effect before the next start.
    fn save(&mut self, now_ms: u64, sink: EventSink<'_>) {
        if !self.save_retry.is_due(now_ms) {
            return;
        }
        if let Err(error) = self.state_file.save() {
            self.save_retry.fail(now_ms, retry::random());
            sink(&AgentEvent::AttestationStateNotSaved {
                error: format!("{}: {error}", self.state_file.path().display()),
            });
        }
    }
}

/// Logs what the operator should know about a successful measurement.
fn log_notices(measurement: &Measurement) {
    for notice in measurement.notices() {
        tracing::warn!(reason = %notice, "measured PCRs need attention");
    }
    for path in measurement.absent() {
        tracing::warn!(%path, "measured path does not exist, or is hidden by the service's sandbox");
    }
}

fn difference(old: &Measurement, new: &Measurement) -> Difference {
    let difference = Difference::between(&old.configuration, &new.configuration);
    match (old.replayed(), new.replayed()) {
        (Some((_, old)), Some((_, new))) => difference.with_events(old, new),
        _ => difference,
    }
}
