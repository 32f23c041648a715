//! The shell around the node: its threads, clocks, randomness and registry.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::{Counters, DataPlane, DataPlaneError};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Registry, Revision};
use tokio::sync::mpsc::UnboundedSender;

use crate::exchange::{Answer, Ask};
use crate::feeder::{RowKeeper, RowsAsk, serve_changes, serve_rows};
use crate::node::{Node, Settings, SettingsError, Status};
use crate::time::Clock;

/// Time between two ticks when nothing happens.
const TICK: Duration = Duration::from_millis(10);
/// How long handshakes under way may take once the gateway is told to stop.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// How long the registry has for taking unused rows back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Settings that do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
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
    /// Devices whose unused rows went back to the registry; `None` if it did not answer in time.
    pub given_back: Option<u64>,
}

/// A gateway at work. Dropping it stops it.
pub struct Gateway {
    messages: mpsc::Sender<Message>,
    control: Option<JoinHandle<Stopped>>,
    shared: Arc<Shared>,
}

enum Message {
    Answer(Answer),
    Run(Action),
    Stop,
}

type Action = Box<dyn FnOnce(&mut dyn DataPlane) + Send>;

#[derive(Default)]
struct Shared {
    status: Mutex<Status>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Status> {
        // A status is whole at every moment, whoever panicked.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
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
        registry: Registry,
        gateway_id: GatewayId,
        settings: Settings,
    ) -> Result<Self, GatewayError> {
        let node = Node::new(plane, settings)?;
        let (messages, inbox) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let keeper = RowKeeper::new(registry.clone(), gateway_id, settings.reserve_block);
        let desks = start_feeder(keeper, registry, &messages)?;
        let published = Arc::clone(&shared);
        let control = std::thread::Builder::new()
            .name("lw-control".to_owned())
            .spawn(move || {
                Control {
                    node,
                    inbox,
                    desks,
                    published,
                }
                .run()
            })?;
        Ok(Self {
            messages,
            control: Some(control),
            shared,
        })
    }

    /// How things stand.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.lock().clone()
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
        let (reply, result) = mpsc::sync_channel(1);
        let run = Box::new(move |plane: &mut dyn DataPlane| {
            // Nobody waits any more: the caller was interrupted.
            let _ = reply.send(action(plane));
        });
        self.messages
            .send(Message::Run(run))
            .map_err(|_| GatewayError::Ended)?;
        result.recv().map_err(|_| GatewayError::Ended)
    }

    /// All verdicts so far.
    ///
    /// # Errors
    /// The control thread has ended, or the kernel gives no counters.
    pub fn counters(&self) -> Result<Counters, GatewayError> {
        Ok(self.with_plane(|plane| plane.counters())??)
    }

    /// Answers REQUESTs with NAKs, lets handshakes under way end, shuts all devices out, gives unused rows back and
    /// detaches the data plane, but for a gate that is to stay shut.
    ///
    /// # Errors
    /// The control thread has ended before.
    pub fn stop(mut self) -> Result<Stopped, GatewayError> {
        let control = self.control.take().ok_or(GatewayError::Ended)?;
        let _ = self.messages.send(Message::Stop);
        control.join().map_err(|_| GatewayError::Ended)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            let _ = self.messages.send(Message::Stop);
            let _ = control.join();
        }
    }
}

/// Where questions to the registry are handed in.
struct Desks {
    rows: UnboundedSender<RowsAsk>,
    changes: UnboundedSender<Revision>,
}

fn start_feeder(
    keeper: RowKeeper,
    registry: Registry,
    messages: &mpsc::Sender<Message>,
) -> Result<Desks, GatewayError> {
    let (rows, rows_inbox) = tokio::sync::mpsc::unbounded_channel();
    let (changes, changes_inbox) = tokio::sync::mpsc::unbounded_channel();
    // The database's own work is done by threads of the driver; unsealing is a few milliseconds a chunk.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let to_control = |messages: mpsc::Sender<Message>| {
        move |answer| {
            // The control thread is gone: so is everybody who asked.
            let _ = messages.send(Message::Answer(answer));
        }
    };
    let (answer_rows, answer_changes) = (to_control(messages.clone()), to_control(messages.clone()));
    std::thread::Builder::new()
        .name("lw-registry".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                tokio::join!(
                    serve_rows(keeper, rows_inbox, answer_rows),
                    serve_changes(registry, changes_inbox, answer_changes),
                )
            });
        })?;
    Ok(Desks { rows, changes })
}

struct Control {
    node: Node,
    inbox: mpsc::Receiver<Message>,
    desks: Desks,
    published: Arc<Shared>,
}

impl Control {
    fn run(mut self) -> Stopped {
        while self.turn(TICK) {}
        self.node.begin_stop();
        let grace_ends = Instant::now() + STOP_GRACE;
        while Instant::now() < grace_ends {
            self.turn(TICK);
        }
        let unused = self.node.close();
        let _ = self.desks.rows.send(RowsAsk::GiveBack(unused));
        let given_back = self.await_given_back();
        let counters = self.node.plane().counters().unwrap_or_default();
        self.publish();
        Stopped {
            status: self.node.status().clone(),
            counters,
            given_back,
        }
    }

    /// Does what is due, then waits for the next message, at most for `wait`. False when it is time to stop.
    fn turn(&mut self, wait: Duration) -> bool {
        let asks = self.node.tick(Clock::now(), &mut random);
        asks.into_iter().for_each(|ask| self.hand_in(ask));
        self.publish();
        let mut message = match self.inbox.recv_timeout(wait) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        while let Some(current) = message {
            match current {
                Message::Answer(answer) => self.node.answer(answer, Clock::now()),
                Message::Run(action) => action(self.node.plane_mut()),
                Message::Stop => return false,
            }
            message = self.inbox.try_recv().ok();
        }
        true
    }

    fn hand_in(&self, ask: Ask) {
        // Without a registry thread no answer comes; the node goes on with what it holds.
        match ask {
            Ask::Load => drop(self.desks.rows.send(RowsAsk::Load)),
            Ask::Rows(wants) => drop(self.desks.rows.send(RowsAsk::Rows(wants))),
            Ask::Changes { since } => drop(self.desks.changes.send(since)),
        }
    }

    fn await_given_back(&mut self) -> Option<u64> {
        let until = Instant::now() + GIVE_BACK_MAX;
        loop {
            let left = until.checked_duration_since(Instant::now())?;
            match self.inbox.recv_timeout(left) {
                Ok(Message::Answer(Answer::GivenBack(Ok(devices)))) => return Some(devices),
                Ok(Message::Answer(Answer::GivenBack(Err(error)))) => {
                    tracing::warn!(error, "unused rows stay spent");
                    return None;
                }
                Ok(Message::Run(action)) => action(self.node.plane_mut()),
                Ok(Message::Answer(_) | Message::Stop) => {}
                Err(_) => return None,
            }
        }
    }

    fn publish(&self) {
        let mut status = self.published.lock();
        if *status != *self.node.status() {
            status.clone_from(self.node.status());
            self.published.changed.notify_all();
        }
    }
}

fn random() -> Option<[u8; 8]> {
    let mut bytes = [0u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Some(bytes),
        Err(error) => {
            tracing::error!(%error, "the operating system gives no random bytes");
            None
        }
    }
}
