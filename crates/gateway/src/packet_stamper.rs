//! Updates the evidence that packets carry: a thread measures the data plane periodically, so that a slow signer does
//! not delay devices.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_dataplane::{DataPlaneError, MeasurementSource, STAMP_LIFETIME_NS, Stamp};
use linewarden_evidence::inband::{EvidenceKey, MasterKey, Template};

use crate::attester::{Attester, AttesterError};
use crate::gateway::{DataPlaneHandle, GatewayError};
use crate::time::Clock;

/// Interval between two measurements. A change that another process made becomes visible after this time at most. A
/// measurement takes some milliseconds.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why packets carry no evidence.
#[derive(Debug, thiserror::Error)]
enum StampError {
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
    #[error(transparent)]
    Attester(#[from] AttesterError),
    /// The configuration requires evidence that the data plane cannot provide.
    #[error("this data plane cannot be measured")]
    NotMeasured,
}

/// The running thread. Dropping the value ends the thread; the evidence in packets ends at once or when it expires.
#[derive(Debug)]
pub struct PacketStamper {
    refresh: Option<mpsc::SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PacketStamper {
    /// Starts a thread that puts evidence about the data plane into packets. `attester` numbers the measured states.
    ///
    /// # Errors
    /// The operating system provides no thread.
    pub fn start(
        data_plane: DataPlaneHandle,
        attester: Arc<Mutex<Attester>>,
        master: &MasterKey,
    ) -> io::Result<Self> {
        let key = lock(&attester).packet_key(master);
        // One waiting request covers all changes before its measurement, so further requests are dropped.
        let (refresh, requests) = mpsc::sync_channel(1);
        let updater = StampUpdater {
            data_plane,
            attester,
            key,
        };
        let thread = std::thread::Builder::new()
            .name("lw-in-packets".to_owned())
            .spawn(move || updater.run(&requests))?;
        Ok(Self {
            refresh: Some(refresh),
            thread: Some(thread),
        })
    }

    /// Requests an immediate measurement, because the data plane has changed.
    pub fn refresh(&self) {
        // If a request waits already, or the thread has ended, there is nothing to request.
        let _ = self.refresh.as_ref().map(|refresh| refresh.try_send(()));
    }
}

impl Drop for PacketStamper {
    fn drop(&mut self) {
        drop(self.refresh.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct StampUpdater {
    data_plane: DataPlaneHandle,
    attester: Arc<Mutex<Attester>>,
    key: EvidenceKey,
}

impl StampUpdater {
    fn run(&self, requests: &mpsc::Receiver<()>) {
        let mut is_failing = false;
        loop {
            let result = self.update();
            match &result {
                Err(StampError::Gateway(_)) => return,
                Err(error) if !is_failing => {
                    tracing::error!(%error, action = "check the capabilities of the process (CAP_SYS_ADMIN) and the error", "measuring the data plane failed; packets carry no evidence; retrying");
                }
                Ok(()) if is_failing => tracing::info!("packets carry evidence again"),
                _ => {}
            }
            is_failing = result.is_err();
            match requests.recv_timeout(MEASURE_INTERVAL) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Measures the data plane and updates the evidence. If the measurement fails, packets carry no evidence.
    fn update(&self) -> Result<(), StampError> {
        let stamp = match self.stamp() {
            Ok(stamp) => stamp,
            Err(error) => {
                self.data_plane
                    .with_data_plane(|data_plane| data_plane.set_stamp(None))?;
                return Err(error);
            }
        };
        Ok(self
            .data_plane
            .with_data_plane(move |data_plane| data_plane.set_stamp(Some(&stamp)))?)
    }

    fn stamp(&self) -> Result<Stamp, StampError> {
        // The validity starts before the measurement.
        let until_ns = Clock::now().monotonic_ns.saturating_add(STAMP_LIFETIME_NS);
        // The lock keeps the order of measurements, so an older state does not get a higher number.
        let mut attester = lock(&self.attester);
        let MeasurementSource::Kernel(measurement) = self
            .data_plane
            .with_data_plane(|data_plane| data_plane.measure())??
        else {
            return Err(StampError::NotMeasured);
        };
        let snapshot = attester.snapshot(*measurement)?;
        drop(attester);
        Ok(Stamp {
            template: Template::new(&self.key, &snapshot),
            until_ns,
        })
    }
}

fn lock(attester: &Mutex<Attester>) -> std::sync::MutexGuard<'_, Attester> {
    // The state is consistent at every moment, so a poisoned lock is usable.
    attester.lock().unwrap_or_else(PoisonError::into_inner)
}
