//! The shell around the node: its threads, clocks, randomness and link to the controller.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::{Counters, DataPlane, DataPlaneError, Live};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::sources::DeviceSources;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::audit::{AuditLog, AuditState, CloseReason, Happening, session_name};
use crate::desk::Counts as DeskCounts;
use crate::evidence_source::EvidenceSource;
use crate::exchange::{Answer, Ask};
use crate::feeder::{ControllerLink, Desks, Feeder, Look};
use crate::node::{Node, ReconfigureError, Settings, SettingsError, Status};
use crate::tasks;
use crate::time::Clock;

/// How long handshakes under way may take once the gateway is told to stop.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// How long the controller has for taking note of where the gateway stood.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Settings that do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Settings that cannot come into force.
    #[error(transparent)]
    Reconfigure(#[from] ReconfigureError),
    /// The operating system gave no thread.
    #[error("cannot start a thread: {0}; check the limit on processes (`ulimit -u`)")]
    Thread(#[from] std::io::Error),
    /// The control thread is gone.
    #[error("the gateway's control thread has ended; see the log")]
    Ended,
    /// The data plane failed.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
}

/// What a gateway leaves behind.
#[derive(Debug, Default)]
pub struct Stopped {
    /// How things stood.
    pub status: Status,
    /// All verdicts.
    pub counters: Counters,
    /// Whether the controller knows where the gateway stood; if not, each device loses the rows below its mark.
    pub settled: bool,
    /// The data plane goes on without this process, with all that it holds, for the next one to take up.
    pub goes_on: bool,
}

/// Another configuration for a gateway at work.
#[derive(Debug)]
pub struct Change {
    /// Of the node.
    pub settings: Settings,
    /// Of the data plane.
    pub live: Live,
    /// Rows that may be spent at once after a first authentication.
    pub mark_block: u32,
    /// The audit record's file, opened anew, and its rate.
    pub audit: Option<(AuditLog, u32)>,
}

/// A gateway at work. Dropping it stops it.
pub struct Gateway {
    messages: Post,
    control: Option<JoinHandle<Stopped>>,
    /// Disconnected when the link's thread has ended.
    link: Mutex<mpsc::Receiver<()>>,
    shared: Arc<Shared>,
}

enum Message {
    Answer(Answer),
    Run(Action),
    Change(
        Box<Change>,
        mpsc::SyncSender<Result<Option<AuditLog>, ReconfigureError>>,
    ),
    Refuse(Vec<String>),
    Audit(Option<(AuditLog, u32)>, mpsc::SyncSender<Option<AuditLog>>),
    Record(Happening),
    Stop,
}

/// Messages to the control thread, which is woken by them.
#[derive(Clone)]
struct Post {
    messages: mpsc::Sender<Message>,
    bell: Arc<OwnedFd>,
}

impl Post {
    fn new() -> io::Result<(Self, mpsc::Receiver<Message>)> {
        let (messages, inbox) = mpsc::channel();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(bell);
        Ok((Self { messages, bell }, inbox))
    }

    /// False when the control thread is gone.
    fn send(&self, message: Message) -> bool {
        let sent = self.messages.send(message).is_ok();
        // A full counter has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        sent
    }
}

/// Runs actions on the control thread with the data plane.
#[derive(Clone)]
pub struct PlaneHandle {
    messages: Post,
    shared: Arc<Shared>,
}

impl PlaneHandle {
    /// As [`Gateway::with_plane`].
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn with_plane<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut dyn DataPlane) -> T + Send + 'static,
    ) -> Result<T, GatewayError> {
        let (reply, result) = mpsc::sync_channel(1);
        let run = Box::new(move |plane: &mut dyn DataPlane| {
            // Nobody waits any more: the caller was interrupted.
            let _ = reply.send(action(plane));
        });
        if !self.messages.send(Message::Run(run)) {
            return Err(GatewayError::Ended);
        }
        result.recv().map_err(|_| GatewayError::Ended)
    }

    /// Publishes what has become of tickets.
    pub(crate) fn note_tickets(&self, counts: DeskCounts) {
        *self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner) = Some(counts);
    }
}

type Action = Box<dyn FnOnce(&mut dyn DataPlane) + Send>;

#[derive(Default)]
struct Shared {
    /// Without `tickets`.
    status: Mutex<Status>,
    tickets: Mutex<Option<DeskCounts>>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Status> {
        // A status is whole at every moment, whoever panicked.
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
    /// Starts a node over this data plane, which the caller has attached to its interface or sockets already; it
    /// answers nothing before the first freshness value is drawn.
    ///
    /// # Errors
    /// Settings that do not fit together, or no thread to be had.
    pub fn start(
        plane: Box<dyn DataPlane>,
        controller: impl Into<ControllerLink>,
        gateway_id: GatewayId,
        settings: Settings,
    ) -> Result<Self, GatewayError> {
        Self::start_with(plane, controller, gateway_id, settings, None)
    }

    /// Likewise, with who signs what the data plane runs.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_with(
        plane: Box<dyn DataPlane>,
        controller: impl Into<ControllerLink>,
        gateway_id: GatewayId,
        settings: Settings,
        source: Option<EvidenceSource>,
    ) -> Result<Self, GatewayError> {
        let controller = controller.into();
        let node = Node::new(plane, settings)?;
        let (messages, inbox) = Post::new()?;
        let shared = Arc::new(Shared::default());
        let (desks, link) = start_feeder(
            Feeder::new(controller.clone(), gateway_id, source),
            &messages,
            &shared,
        )?;
        let control = Control {
            node,
            inbox,
            bell: Arc::clone(&messages.bell),
            desks,
            controller,
            audit: None,
            lost_before: 0,
            published: Arc::clone(&shared),
        };
        let control = std::thread::Builder::new()
            .name("lw-control".to_owned())
            .spawn(move || control.run())?;
        Ok(Self {
            messages,
            control: Some(control),
            link: Mutex::new(link),
            shared,
        })
    }

    /// How things stand.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Waits until the status is as wanted, at most for `timeout`. Says whether it is.
    #[must_use]
    pub fn wait_until(&self, timeout: Duration, wanted: impl Fn(&Status) -> bool) -> bool {
        let (status, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), timeout, |status| !wanted(status))
            .unwrap_or_else(PoisonError::into_inner);
        wanted(&status)
    }

    /// Runs `action` on the control thread with the data plane.
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn with_plane<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut dyn DataPlane) -> T + Send + 'static,
    ) -> Result<T, GatewayError> {
        self.plane_handle().with_plane(action)
    }

    /// Takes messages from other sources from now on; see [`DataPlane::set_sources`]. Sessions that this closes are put into the audit
    /// record.
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn set_sources(&self, sources: DeviceSources) -> Result<(), GatewayError> {
        let closed = self.with_plane(move |plane| plane.set_sources(&sources))?;
        for closed in closed {
            let (device, address) = (closed.device, closed.address);
            tracing::warn!(%device, %address, "closed the session: this machine has the device's address now");
            self.record(Happening::SessionClosed {
                device,
                session: session_name(closed.session),
                reason: CloseReason::OwnAddress { own_address: address },
            });
        }
        Ok(())
    }

    /// A way to the data plane for another thread.
    #[must_use]
    pub fn plane_handle(&self) -> PlaneHandle {
        PlaneHandle {
            messages: self.messages.clone(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Puts another configuration into force: all of it at once, or nothing.
    ///
    /// # Errors
    /// What does not fit together; the data plane's refusal; the control thread has ended.
    pub fn change(&self, change: Change) -> Result<(), GatewayError> {
        let (reply, result) = mpsc::sync_channel(1);
        if !self.messages.send(Message::Change(Box::new(change), reply)) {
            return Err(GatewayError::Ended);
        }
        // The old file is closed here, where a slow disk keeps nobody waiting.
        drop(result.recv().map_err(|_| GatewayError::Ended)??);
        Ok(())
    }

    /// Takes note that another configuration was refused.
    pub fn refuse_change(&self, errors: Vec<String>) {
        self.messages.send(Message::Refuse(errors));
    }

    /// Sets where the audit record goes, and at most how many of each kind a second.
    ///
    /// # Errors
    /// The control thread has ended.
    pub fn set_audit(&self, audit: Option<(AuditLog, u32)>) -> Result<(), GatewayError> {
        let (reply, old) = mpsc::sync_channel(1);
        if !self.messages.send(Message::Audit(audit, reply)) {
            return Err(GatewayError::Ended);
        }
        drop(old.recv().map_err(|_| GatewayError::Ended)?);
        Ok(())
    }

    /// Puts something into the audit record.
    pub fn record(&self, what: Happening) {
        self.messages.send(Message::Record(what));
    }

    /// All verdicts so far.
    ///
    /// # Errors
    /// The control thread has ended, or the kernel gives no counters.
    pub fn counters(&self) -> Result<Counters, GatewayError> {
        Ok(self.with_plane(|plane| plane.counters())??)
    }

    /// Answers REQUESTs with NAKs, lets handshakes under way end, shuts all devices out, says where each stood and
    /// detaches the data plane. One that outlives its process is left as it is: the next process goes on with it.
    ///
    /// # Errors
    /// The control thread has ended before.
    pub fn stop(mut self) -> Result<Stopped, GatewayError> {
        let control = self.control.take().ok_or(GatewayError::Ended)?;
        self.messages.send(Message::Stop);
        let stopped = control.join().map_err(|_| GatewayError::Ended);
        self.await_link();
        stopped
    }

    /// Whoever closes the registry next is the last to have it open, unless somebody is still being asked for evidence.
    fn await_link(&mut self) {
        let link = self.link.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = link.recv_timeout(tasks::GRACE);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            self.messages.send(Message::Stop);
            let _ = control.join();
            self.await_link();
        }
    }
}

fn start_feeder(
    (feeder, desks): (Feeder, Desks),
    messages: &Post,
    shared: &Arc<Shared>,
) -> Result<(Desks, mpsc::Receiver<()>), GatewayError> {
    // The database's own work is done by threads of the driver; unsealing is a few milliseconds a chunk.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let plane = PlaneHandle {
        messages: messages.clone(),
        shared: Arc::clone(shared),
    };
    let shared = Arc::clone(shared);
    let look = move || {
        let counted = plane.with_plane(|plane| {
            let now_ns = Clock::now().boot_ns;
            let now_s = u32::try_from(now_ns / 1_000_000_000).unwrap_or(u32::MAX);
            Ok::<_, DataPlaneError>(Look {
                at_ns: now_ns,
                status: Status::default(),
                counters: plane.counters()?,
                handling: plane.handling()?,
                sessions: plane.sessions(now_s),
            })
        });
        Some(Look {
            status: shared.status(),
            ..counted.ok()?.ok()?
        })
    };
    let messages = messages.clone();
    let (at_work, link) = mpsc::sync_channel(0);
    std::thread::Builder::new()
        .name("lw-link".to_owned())
        .spawn(move || {
            // Once the control thread is gone, so is everybody who asked.
            let answer = |answer| {
                messages.send(Message::Answer(answer));
            };
            runtime.block_on(feeder.serve(answer, look));
            tasks::end(runtime);
            drop(at_work);
        })?;
    Ok((desks, link))
}

struct Control {
    node: Node,
    inbox: mpsc::Receiver<Message>,
    bell: Arc<OwnedFd>,
    desks: Desks,
    controller: ControllerLink,
    audit: Option<AuditLog>,
    /// Records that earlier files lost.
    lost_before: u64,
    published: Arc<Shared>,
}

impl Control {
    fn run(mut self) -> Stopped {
        while self.turn() {}
        if self.node.outlives_process() {
            let audit = self.end_audit(true);
            self.publish();
            drop(audit);
            return Stopped {
                status: self.node.status().clone(),
                counters: self.node.plane().counters().unwrap_or_default(),
                settled: true,
                goes_on: true,
            };
        }
        self.node.begin_stop();
        let grace_ends = Instant::now() + STOP_GRACE;
        while Instant::now() < grace_ends {
            self.turn();
        }
        let stood = self.node.close();
        // They are answered in their order, so the last answer is to this one.
        let answers = 1 + usize::from(self.node.is_settling());
        self.desks.hand_in(Ask::Settle(stood));
        let settled = self.await_settled(answers);
        let counters = self.node.plane().counters().unwrap_or_default();
        let audit = self.end_audit(settled);
        self.publish();
        // The status is out before the disk is waited for.
        drop(audit);
        Stopped {
            status: self.node.status().clone(),
            counters,
            settled,
            goes_on: false,
        }
    }

    /// Does what is due, then waits for the next message or event. False when it is time to stop.
    fn turn(&mut self) -> bool {
        // Told to listen before it is looked at: what comes in between makes the descriptor readable.
        self.node.plane_mut().listen();
        let asks = self.node.tick(Clock::now(), &mut random);
        asks.into_iter().for_each(|ask| self.desks.hand_in(ask));
        self.hand_records(false);
        self.publish();
        self.wait();
        loop {
            match self.inbox.try_recv() {
                Ok(Message::Answer(answer)) => self.node.answer(answer, Clock::now()),
                Ok(Message::Run(action)) => action(self.node.plane_mut()),
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(order) => self.take_order(order),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// What does not touch the node's course.
    fn take_order(&mut self, message: Message) {
        match message {
            Message::Change(change, reply) => {
                let _ = reply.send(self.change(*change));
            }
            Message::Refuse(errors) => self.node.refuse_reload(errors),
            Message::Audit(audit, reply) => {
                let _ = reply.send(self.exchange_audit(audit));
            }
            Message::Record(what) => self.node.record(what),
            Message::Answer(_) | Message::Run(_) | Message::Stop => {}
        }
    }

    fn change(&mut self, change: Change) -> Result<Option<AuditLog>, ReconfigureError> {
        self.node
            .reconfigure(change.settings, &change.live, Clock::now())?;
        // What others give out, they decide.
        if let ControllerLink::InProcess(controller) = &self.controller {
            controller.set_mark_block(change.mark_block);
        }
        Ok(self.exchange_audit(change.audit))
    }

    /// Returns the one before, to be closed by somebody who has time.
    fn exchange_audit(&mut self, audit: Option<(AuditLog, u32)>) -> Option<AuditLog> {
        self.hand_records(false);
        let (log, per_s) = audit.map_or((None, 0), |(log, per_s)| (Some(log), per_s));
        let old = std::mem::replace(&mut self.audit, log);
        self.lost_before += old.as_ref().map_or(0, |old| old.state().lost);
        self.node.set_audit_rate(per_s);
        old
    }

    fn hand_records(&mut self, end: bool) {
        let records = self.node.take_records(end);
        let Some(audit) = &self.audit else {
            return;
        };
        records.into_iter().for_each(|record| audit.hand_in(record));
        let state = audit.state();
        self.node.note_audit(AuditState {
            lost: self.lost_before + state.lost,
            ..state
        });
    }

    fn end_audit(&mut self, settled: bool) -> Option<AuditLog> {
        self.hand_records(true);
        self.node.record(Happening::Stopped { settled });
        self.hand_records(true);
        self.audit.take()
    }

    fn wait(&mut self) {
        let now_ns = Clock::now().monotonic_ns;
        let wait_ns = self.node.due_ns(now_ns).saturating_sub(now_ns);
        let timeout = Timespec {
            tv_sec: 0,
            // A tenth of a second at most; rounded up, or it would not be due yet.
            tv_nsec: i64::try_from(wait_ns.saturating_add(1000))
                .unwrap_or(0)
                .min(999_999_999),
        };
        let mut fds = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        let listening = self.node.plane().bell();
        fds.extend(listening.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // Interrupted or failed: the loop looks at everything anyway.
        let _ = poll(&mut fds, Some(&timeout));
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    fn await_settled(&mut self, mut answers: usize) -> bool {
        let until = Instant::now() + SETTLE_MAX;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.inbox.recv_timeout(left) {
                Ok(Message::Answer(Answer::Settled(_))) if answers > 1 => answers -= 1,
                Ok(Message::Answer(Answer::Settled(Ok(_)))) => return true,
                Ok(Message::Answer(Answer::Settled(Err(error)))) => {
                    tracing::warn!(?error, "rows below the marks stay spent");
                    return false;
                }
                Ok(Message::Run(action)) => action(self.node.plane_mut()),
                Ok(Message::Answer(_) | Message::Stop) => {}
                Ok(order) => self.take_order(order),
                Err(_) => return false,
            }
        }
        false
    }

    fn publish(&self) {
        let mut status = self.published.lock();
        if *status != *self.node.status() {
            status.clone_from(self.node.status());
            self.published.changed.notify_all();
        }
    }
}

pub(crate) fn random() -> Option<[u8; 8]> {
    let mut bytes = [0u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Some(bytes),
        Err(error) => {
            tracing::error!(%error, "the operating system gives no random bytes");
            None
        }
    }
}
