//! Keeps what packets carry of this gateway what the kernel was measured to run: again and again, by a thread of its own, so that a signer
//! that takes its time holds up no device.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_dataplane::{DataPlaneError, STAMP_LIFE_NS, Stamp, Witness};
use linewarden_evidence::inband::{EvidenceKey, Form, MasterKey, Template};

use crate::attester::{Attester, AttesterError};
use crate::gateway::{GatewayError, PlaneHandle};
use crate::time::Clock;

/// From one measurement to the next: what is changed behind the gateway's back shows after this at most. One takes some milliseconds.
const EVERY: Duration = Duration::from_secs(1);

/// Why packets carry nothing.
#[derive(Debug, thiserror::Error)]
enum StampError {
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
    #[error(transparent)]
    Attester(#[from] AttesterError),
    /// The data plane and its configuration do not go together.
    #[error("nobody measures this data plane")]
    Unmeasured,
}

/// The thread at work; dropping it ends it, and with it, at once or when its time is over, what packets carry.
#[derive(Debug)]
pub struct InPackets {
    refresh: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl InPackets {
    /// Has packets carry the states of this attester.
    ///
    /// # Errors
    /// The operating system gave no thread.
    pub fn start(
        plane: PlaneHandle,
        attester: Arc<Mutex<Attester>>,
        master: &MasterKey,
        form: Form,
    ) -> io::Result<Self> {
        let key = lock(&attester).packet_key(master);
        let (refresh, asked) = mpsc::channel();
        let hand = Hand {
            plane,
            attester,
            key,
            form,
        };
        let thread = std::thread::Builder::new()
            .name("lw-in-packets".to_owned())
            .spawn(move || hand.run(&asked))?;
        Ok(Self {
            refresh: Some(refresh),
            thread: Some(thread),
        })
    }

    /// Something was changed: it is measured at once.
    pub fn refresh(&self) {
        // A thread that is gone has nothing to measure.
        let _ = self.refresh.as_ref().map(|refresh| refresh.send(()));
    }
}

impl Drop for InPackets {
    fn drop(&mut self) {
        drop(self.refresh.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Hand {
    plane: PlaneHandle,
    attester: Arc<Mutex<Attester>>,
    key: EvidenceKey,
    form: Form,
}

impl Hand {
    fn run(&self, asked: &mpsc::Receiver<()>) {
        let mut is_failing = false;
        loop {
            let put = self.put();
            match &put {
                Err(StampError::Gateway(_)) => return,
                Err(error) if !is_failing => {
                    tracing::error!(%error, "packets carry no evidence: the data plane cannot be measured");
                }
                Ok(()) if is_failing => tracing::info!("packets carry evidence again"),
                _ => {}
            }
            is_failing = put.is_err();
            match asked.recv_timeout(EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Measures, and puts what was found into force; what cannot be measured is carried by no packet.
    fn put(&self) -> Result<(), StampError> {
        let stamp = match self.stamp() {
            Ok(stamp) => stamp,
            Err(error) => {
                self.plane.with_plane(|plane| plane.stamp(None))?;
                return Err(error);
            }
        };
        Ok(self.plane.with_plane(move |plane| plane.stamp(Some(&stamp)))?)
    }

    fn stamp(&self) -> Result<Stamp, StampError> {
        // Before it is measured: that is what it is evidence of.
        let until_ns = Clock::now().monotonic_ns.saturating_add(STAMP_LIFE_NS);
        // What is measured first is taken first: an older state must not get a later number.
        let mut attester = lock(&self.attester);
        let Witness::Kernel(measurement) = self.plane.with_plane(|plane| plane.measure())?? else {
            return Err(StampError::Unmeasured);
        };
        let snapshot = attester.snapshot(*measurement)?;
        drop(attester);
        Ok(Stamp {
            template: Template::new(&self.key, self.form, &snapshot),
            until_ns,
        })
    }
}

fn lock(attester: &Mutex<Attester>) -> std::sync::MutexGuard<'_, Attester> {
    // What was measured is whole at every moment, whoever panicked.
    attester.lock().unwrap_or_else(PoisonError::into_inner)
}
