//! Runs a node: threads, clocks, random numbers and the link to the controller.

use linewarden_types::{ControllerLink, ControllerResponse, ReportUnusedRows};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::{Counters, DataPlane, DataPlaneError, LiveSettings};
use linewarden_protocol::sources::DeviceSources;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::audit::{AuditEvent, AuditLog, AuditState, CloseReason, session_name};
use crate::dispatcher::{Completion, DataPlaneInfo, RequestDispatcher, RequestQueues, StatusSample};
use crate::evidence_source::EvidenceSource;
use crate::node::{Node, ReconfigureError, Settings, SettingsError, Status, TicketCounts};
use crate::tasks;
use crate::time::Clock;

/// Time for handshakes in progress after the stop was requested.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// Maximum number of messages that wait for the control thread. A sender that finds a full queue waits: the control thread
/// empties the queue after each of its steps, and never waits for a sender. Most senders wait for a reply anyway, and
/// responses are at most one for each kind of request.
const QUEUED_MESSAGES_MAX: usize = 64;
/// Timeout for the final report of unused rows.
const UNUSED_ROWS_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The settings are inconsistent.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The settings cannot be applied.
    #[error(transparent)]
    Reconfigure(#[from] ReconfigureError),
    /// The operating system provides no thread.
    #[error("starting a thread failed: {0}; check the limit on processes (`ulimit -u`)")]
    Thread(#[from] std::io::Error),
    /// The control thread has ended.
    #[error("the gateway's control thread has ended; see the log")]
    Ended,
    /// The data plane failed.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
}

/// The result of stopping a gateway.
#[derive(Debug, Default)]
pub struct StopReport {
    /// The last status.
    pub status: Status,
    /// Frames by verdict.
    pub counters: Counters,
    /// Whether the controller has recorded the unused rows; if not, each device loses the rows below its mark.
    pub unused_rows_reported: bool,
    /// Whether the data plane keeps running without this process; the next process continues with the memory of the
    /// data plane.
    pub keeps_running: bool,
}

/// A new configuration for a running gateway.
#[derive(Debug)]
pub struct ConfigChange {
    /// The settings of the node.
    pub settings: Settings,
    /// The settings of the data plane.
    pub live: LiveSettings,
    /// The newly opened gateway audit log, and its maximum number of records of each kind a second; `None`: no log.
    pub audit: Option<(AuditLog, u32)>,
}

/// A running gateway. Dropping the value stops the gateway.
pub struct Gateway {
    control_sender: ControlSender,
    control_thread: Option<JoinHandle<StopReport>>,
    /// Disconnected when the link's thread has ended.
    link: Mutex<mpsc::Receiver<()>>,
    shared: Arc<Shared>,
}

enum ControlMessage {
    Completion(Completion),
    Run(Action),
    Reconfigure(
        Box<ConfigChange>,
        mpsc::SyncSender<Result<Option<AuditLog>, ReconfigureError>>,
    ),
    ConfigRefused(Vec<String>),
    SetAudit(Option<(AuditLog, u32)>, mpsc::SyncSender<Option<AuditLog>>),
    Record(AuditEvent),
    Stop,
}

/// Sends messages to the control thread and wakes it.
#[derive(Clone)]
struct ControlSender {
    messages: mpsc::SyncSender<ControlMessage>,
    wakeup: Arc<OwnedFd>,
}

impl ControlSender {
    fn new() -> io::Result<(Self, mpsc::Receiver<ControlMessage>)> {
        let (messages, inbox) = mpsc::sync_channel(QUEUED_MESSAGES_MAX);
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wakeup = Arc::new(wakeup);
        Ok((Self { messages, wakeup }, inbox))
    }

    /// Waits while the queue is full. Returns `false` if the control thread has ended.
    fn send(&self, message: ControlMessage) -> bool {
        let is_sent = self.messages.send(message).is_ok();
        // If the counter is full, the thread has been woken already.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
        is_sent
    }
}

/// Runs actions on the control thread with the data plane.
#[derive(Clone)]
pub struct DataPlaneHandle {
    control_sender: ControlSender,
    shared: Arc<Shared>,
}

impl DataPlaneHandle {
    /// As [`Gateway::with_data_plane`].
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn with_data_plane<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut dyn DataPlane) -> T + Send + 'static,
    ) -> Result<T, GatewayError> {
        let (reply, result) = mpsc::sync_channel(1);
        let run = Box::new(move |data_plane: &mut dyn DataPlane| {
            // If the caller was interrupted, no receiver is left.
            let _ = reply.send(action(data_plane));
        });
        if !self.control_sender.send(ControlMessage::Run(run)) {
            return Err(GatewayError::Ended);
        }
        result.recv().map_err(|_| GatewayError::Ended)
    }

    /// Publishes the ticket counts.
    pub(crate) fn publish_ticket_counts(&self, counts: TicketCounts) {
        *self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner) = Some(counts);
    }
}

type Action = Box<dyn FnOnce(&mut dyn DataPlane) + Send>;

#[derive(Default)]
struct Shared {
    /// The node's status; its `tickets` are not set.
    status: Mutex<Status>,
    tickets: Mutex<Option<TicketCounts>>,
    /// Wakes threads that wait for a change of `status`.
    status_changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Status> {
        // The status is consistent at every moment, so a poisoned lock is usable.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> Status {
        Status {
            tickets: *self.tickets.lock().unwrap_or_else(PoisonError::into_inner),
            ..self.lock().clone()
        }
    }
}

impl Gateway {
    /// Starts a node over this data plane, which the caller has attached to its interfaces or sockets. The gateway
    /// sends no reply before the first freshness value is drawn.
    ///
    /// # Errors
    /// The settings are inconsistent, or the operating system provides no thread.
    pub fn start(
        data_plane: Box<dyn DataPlane>,
        controller: Arc<dyn ControllerLink>,
        settings: Settings,
    ) -> Result<Self, GatewayError> {
        Self::start_with_evidence(data_plane, controller, settings, DataPlaneInfo::default(), None)
    }

    /// Starts a node as [`Gateway::start`] does, with properties for status reports and a source of signed evidence.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_with_evidence(
        data_plane: Box<dyn DataPlane>,
        controller: Arc<dyn ControllerLink>,
        settings: Settings,
        info: DataPlaneInfo,
        source: Option<EvidenceSource>,
    ) -> Result<Self, GatewayError> {
        let node = Node::new(data_plane, settings)?;
        let (control_sender, inbox) = ControlSender::new()?;
        let shared = Arc::new(Shared::default());
        let (queues, link) = start_dispatcher(
            RequestDispatcher::new(controller, info, source),
            &control_sender,
            &shared,
        )?;
        let control = ControlLoop {
            node,
            inbox,
            wakeup: Arc::clone(&control_sender.wakeup),
            queues,
            audit: None,
            records_lost_before: 0,
            published: Arc::clone(&shared),
        };
        let control = std::thread::Builder::new()
            .name("lw-control".to_owned())
            .spawn(move || control.run())?;
        Ok(Self {
            control_sender,
            control_thread: Some(control),
            link: Mutex::new(link),
            shared,
        })
    }

    /// The counts and states of the node, and the counts of the ticket relay.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Waits until the status satisfies `condition`, at most for `timeout`. Returns whether the status satisfies
    /// `condition`.
    #[must_use]
    pub fn wait_until(&self, timeout: Duration, condition: impl Fn(&Status) -> bool) -> bool {
        let (status, _) = self
            .shared
            .status_changed
            .wait_timeout_while(self.shared.lock(), timeout, |status| !condition(status))
            .unwrap_or_else(PoisonError::into_inner);
        condition(&status)
    }

    /// Runs `action` on the control thread with the data plane.
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn with_data_plane<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut dyn DataPlane) -> T + Send + 'static,
    ) -> Result<T, GatewayError> {
        self.data_plane_handle().with_data_plane(action)
    }

    /// Sets the sources from which messages are accepted; see
    /// [`Admission::set_sources`](linewarden_dataplane::Admission::set_sources). Sessions that the change closes are recorded
    /// in the gateway audit log.
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn set_sources(&self, sources: DeviceSources) -> Result<(), GatewayError> {
        let closed_sessions = self.with_data_plane(move |data_plane| data_plane.set_sources(&sources))?;
        for closed in closed_sessions {
            let (device, address) = (closed.device, closed.address);
            tracing::warn!(device_id = %device, %address, "session closed: an interface of this machine has the address of the device now");
            self.record(AuditEvent::SessionClosed {
                device,
                session: session_name(closed.session),
                reason: CloseReason::OwnAddress { own_address: address },
            });
        }
        Ok(())
    }

    /// Returns a handle to the data plane for another thread.
    #[must_use]
    pub fn data_plane_handle(&self) -> DataPlaneHandle {
        DataPlaneHandle {
            control_sender: self.control_sender.clone(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Applies a new configuration, completely or not at all.
    ///
    /// # Errors
    /// The settings are inconsistent, the data plane rejects them, or the control thread has ended.
    pub fn reconfigure(&self, change: ConfigChange) -> Result<(), GatewayError> {
        let (reply, result) = mpsc::sync_channel(1);
        if !self
            .control_sender
            .send(ControlMessage::Reconfigure(Box::new(change), reply))
        {
            return Err(GatewayError::Ended);
        }
        // The old file is closed on this thread, so a slow disk delays no device.
        drop(result.recv().map_err(|_| GatewayError::Ended)??);
        Ok(())
    }

    /// Records that a new configuration was rejected.
    pub fn record_refused_config(&self, errors: Vec<String>) {
        self.control_sender.send(ControlMessage::ConfigRefused(errors));
    }

    /// Sets the gateway audit log, and the maximum number of records of each kind a second.
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn set_audit(&self, audit: Option<(AuditLog, u32)>) -> Result<(), GatewayError> {
        let (reply, old) = mpsc::sync_channel(1);
        if !self.control_sender.send(ControlMessage::SetAudit(audit, reply)) {
            return Err(GatewayError::Ended);
        }
        drop(old.recv().map_err(|_| GatewayError::Ended)?);
        Ok(())
    }

    /// Adds an event to the gateway audit log.
    pub fn record(&self, event: AuditEvent) {
        self.control_sender.send(ControlMessage::Record(event));
    }

    /// Returns the number of packets by verdict.
    ///
    /// # Errors
    /// The control thread has ended, or the kernel returns no counters.
    pub fn counters(&self) -> Result<Counters, GatewayError> {
        Ok(self.with_data_plane(|data_plane| data_plane.counters())??)
    }

    /// Stops the gateway: replies to REQUESTs with NAKs, completes handshakes in progress, revokes all devices, reports
    /// the unused rows and detaches the data plane. A data plane that outlives its process is not stopped: it keeps
    /// running for the next process, and no row is reported.
    ///
    /// # Errors
    /// The control thread had already ended.
    pub fn stop(mut self) -> Result<StopReport, GatewayError> {
        let control = self.control_thread.take().ok_or(GatewayError::Ended)?;
        self.control_sender.send(ControlMessage::Stop);
        let report = control.join().map_err(|_| GatewayError::Ended);
        self.wait_for_link();
        report
    }

    /// Waits for the end of the link's thread, for a limited time. Afterwards, no request is in flight, unless
    /// the thread is still creating evidence.
    fn wait_for_link(&mut self) {
        let link = self.link.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = link.recv_timeout(tasks::GRACE);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(control) = self.control_thread.take() {
            self.control_sender.send(ControlMessage::Stop);
            let _ = control.join();
            self.wait_for_link();
        }
    }
}

fn start_dispatcher(
    (dispatcher, queues): (RequestDispatcher, RequestQueues),
    control_sender: &ControlSender,
    shared: &Arc<Shared>,
) -> Result<(RequestQueues, mpsc::Receiver<()>), GatewayError> {
    // One thread is sufficient: the threads of the database driver do the database work, and decrypting one part of
    // the leases takes a few milliseconds.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let data_plane = DataPlaneHandle {
        control_sender: control_sender.clone(),
        shared: Arc::clone(shared),
    };
    let shared = Arc::clone(shared);
    let sample_status = move || {
        let sample = data_plane.with_data_plane(|data_plane| {
            let now_ns = Clock::now().boot_ns;
            let now_s = u32::try_from(now_ns / 1_000_000_000).unwrap_or(u32::MAX);
            Ok::<_, DataPlaneError>(StatusSample {
                at_ns: now_ns,
                status: Status::default(),
                counters: data_plane.counters()?,
                handling: data_plane.handling_times()?,
                sessions: data_plane.session_count(now_s),
            })
        });
        Some(StatusSample {
            status: shared.status(),
            ..sample.ok()?.ok()?
        })
    };
    let control_sender = control_sender.clone();
    let (is_running, link) = mpsc::sync_channel(0);
    std::thread::Builder::new()
        .name("lw-link".to_owned())
        .spawn(move || {
            // After the end of the control thread, no receiver is left.
            let on_completion = |completion| {
                control_sender.send(ControlMessage::Completion(completion));
            };
            runtime.block_on(dispatcher.serve(on_completion, sample_status));
            tasks::end(runtime);
            drop(is_running);
        })?;
    Ok((queues, link))
}

struct ControlLoop {
    node: Node,
    inbox: mpsc::Receiver<ControlMessage>,
    wakeup: Arc<OwnedFd>,
    queues: RequestQueues,
    audit: Option<AuditLog>,
    /// Number of records that earlier log files have lost.
    records_lost_before: u64,
    published: Arc<Shared>,
}

impl ControlLoop {
    fn run(mut self) -> StopReport {
        while self.run_once() {}
        if self.node.outlives_process() {
            let audit = self.close_audit(true);
            self.publish();
            drop(audit);
            return StopReport {
                status: self.node.status(),
                counters: self.node.data_plane().counters().unwrap_or_default(),
                unused_rows_reported: true,
                keeps_running: true,
            };
        }
        self.node.begin_stop();
        let grace_ends = Instant::now() + STOP_GRACE;
        while Instant::now() < grace_ends {
            self.run_once();
        }
        let unused_rows = self.node.close();
        // Responses have the order of the requests, so the last response belongs to this request.
        let responses = 1 + usize::from(self.node.is_reporting_unused_rows());
        self.queues.send(ReportUnusedRows(unused_rows).into());
        let unused_rows_reported = self.wait_for_unused_rows(responses);
        let counters = self.node.data_plane().counters().unwrap_or_default();
        let audit = self.close_audit(unused_rows_reported);
        self.publish();
        // The status is published before waiting for the disk.
        drop(audit);
        StopReport {
            status: self.node.status(),
            counters,
            unused_rows_reported,
            keeps_running: false,
        }
    }

    /// Does the work that is due, then waits for the next message or event. Returns `false` after a stop request.
    fn run_once(&mut self) -> bool {
        // The wake-up is armed before the events are read, so that an event after the read makes the descriptor
        // readable.
        self.node.data_plane_mut().arm_wake();
        let requests = self.node.tick(Clock::now(), &mut random);
        requests.into_iter().for_each(|request| self.queues.send(request));
        if let Some(request) = self.node.evidence_request() {
            self.queues.create_evidence(request);
        }
        self.forward_records(false);
        self.publish();
        self.wait_for_work();
        loop {
            match self.inbox.try_recv() {
                Ok(ControlMessage::Completion(completion)) => {
                    // Without a random number, only the jitter of a retry is missing.
                    let random = random().map_or(0, u64::from_ne_bytes);
                    match completion {
                        Completion::Response(response) => {
                            self.node.handle_response(response, Clock::now(), random);
                        }
                        Completion::Evidence(nonce, result) => {
                            self.node.handle_evidence(nonce, result, Clock::now(), random);
                        }
                    }
                }
                Ok(ControlMessage::Run(action)) => action(self.node.data_plane_mut()),
                Ok(ControlMessage::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(command) => self.handle_command(command),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Handles commands that are handled in the same way while the gateway runs and while it stops.
    fn handle_command(&mut self, message: ControlMessage) {
        match message {
            ControlMessage::Reconfigure(change, reply) => {
                let _ = reply.send(self.reconfigure(*change));
            }
            ControlMessage::ConfigRefused(errors) => self.node.record_refused_config(errors),
            ControlMessage::SetAudit(audit, reply) => {
                let _ = reply.send(self.replace_audit_log(audit));
            }
            ControlMessage::Record(event) => self.node.record(event),
            ControlMessage::Completion(_) | ControlMessage::Run(_) | ControlMessage::Stop => {}
        }
    }

    fn reconfigure(&mut self, change: ConfigChange) -> Result<Option<AuditLog>, ReconfigureError> {
        self.node
            .reconfigure(change.settings, &change.live, Clock::now())?;
        Ok(self.replace_audit_log(change.audit))
    }

    /// Replaces the gateway audit log. Returns the previous log, which the caller closes.
    fn replace_audit_log(&mut self, audit: Option<(AuditLog, u32)>) -> Option<AuditLog> {
        self.forward_records(false);
        let (log, per_s) = audit.map_or((None, 0), |(log, per_s)| (Some(log), per_s));
        let old = std::mem::replace(&mut self.audit, log);
        self.records_lost_before += old.as_ref().map_or(0, |old| old.state().lost);
        self.node.set_audit_rate(per_s);
        old
    }

    fn forward_records(&mut self, is_final: bool) {
        let records = self.node.take_audit_records(is_final);
        let Some(audit) = &self.audit else {
            return;
        };
        records.into_iter().for_each(|record| audit.submit(record));
        let state = audit.state();
        self.node.set_audit_state(AuditState {
            lost: self.records_lost_before + state.lost,
            ..state
        });
    }

    fn close_audit(&mut self, unused_rows_reported: bool) -> Option<AuditLog> {
        self.forward_records(true);
        self.node.record(AuditEvent::Stopped { unused_rows_reported });
        self.forward_records(true);
        self.audit.take()
    }

    fn wait_for_work(&mut self) {
        let now_ns = Clock::now().monotonic_ns;
        let wait_ns = self.node.due_ns(now_ns).saturating_sub(now_ns);
        let timeout = Timespec {
            tv_sec: 0,
            // At most one second; rounded up, because the work would not be due yet otherwise.
            tv_nsec: i64::try_from(wait_ns.saturating_add(1000))
                .unwrap_or(0)
                .min(999_999_999),
        };
        let mut fds = vec![PollFd::from_borrowed_fd(self.wakeup.as_fd(), PollFlags::IN)];
        let wake_fd = self.node.data_plane().wake_fd();
        fds.extend(wake_fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // After an interrupt or an error, the loop checks everything anyway.
        let _ = poll(&mut fds, Some(&timeout));
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wakeup, &mut count);
    }

    /// Waits for the responses to reports of unused rows. Returns whether the report of the last of `responses`
    /// responses succeeded.
    fn wait_for_unused_rows(&mut self, mut responses: usize) -> bool {
        let deadline = Instant::now() + UNUSED_ROWS_TIMEOUT;
        while let Some(remaining) = deadline.checked_duration_since(Instant::now()) {
            match self.inbox.recv_timeout(remaining) {
                Ok(ControlMessage::Completion(Completion::Response(
                    ControllerResponse::ReportUnusedRows(result),
                ))) => match result {
                    _ if responses > 1 => responses -= 1,
                    Ok(_) => return true,
                    Err(error) => {
                        tracing::warn!(
                            ?error,
                            "reporting unused rows failed; rows below the marks count as spent"
                        );
                        return false;
                    }
                },
                Ok(ControlMessage::Run(action)) => action(self.node.data_plane_mut()),
                Ok(ControlMessage::Completion(_) | ControlMessage::Stop) => {}
                Ok(command) => self.handle_command(command),
                Err(_) => return false,
            }
        }
        false
    }

    fn publish(&self) {
        let current = self.node.status();
        let mut status = self.published.lock();
        if *status != current {
            *status = current;
            self.published.status_changed.notify_all();
        }
    }
}

pub(crate) fn random() -> Option<[u8; 8]> {
    let mut bytes = [0u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Some(bytes),
        Err(error) => {
            tracing::error!(
                %error,
                action = "check the random number generator of the kernel (getrandom)",
                "reading random bytes failed; retrying; if this lasts longer than 16 s, no device can authenticate"
            );
            None
        }
    }
}
