//! Worker thread for slow operations: the TPM and reading files. Authentication continues during these operations.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};

use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::keys::{period_message, request_message};
use linewarden_protocol::attest::{ConfigurationHash, PeriodKey, PeriodStart, RequestKey};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_tpm::KeyError;
use linewarden_tpm::evidence::EvidenceQuote;
use rustix::event::{EventfdFlags, eventfd};
use zeroize::Zeroizing;

use super::key::{KeySource, LoadedKey};
use super::measurement::{MeasureError, Measurement, MeasurementScope};

/// A job of the worker.
pub(crate) enum Job {
    RequestKey(GatewayId, Period),
    Period(PeriodStart),
    /// The values that the quote must cover.
    Quote(PeriodStart, PcrValues),
    /// Replace the key.
    Key(Box<KeySource>),
}

/// The result of a job.
pub(crate) enum JobResult {
    RequestKey((GatewayId, Period), Result<RequestKey, KeyError>),
    Period(PeriodStart, Result<Box<(Measurement, PeriodKey)>, MeasureError>),
    Quote(PeriodStart, Result<EvidenceQuote, MeasureError>),
    Key,
    /// The worker thread has failed: no further results.
    WorkerExited,
}

/// Executes jobs in the worker thread.
pub(crate) struct JobRunner {
    pub(crate) device: DeviceId,
    pub(crate) scope: MeasurementScope,
    pub(crate) source: KeySource,
    /// The key, loaded on first use; loaded again after a failure.
    pub(crate) key: Option<LoadedKey>,
}

impl JobRunner {
    fn run(&mut self, job: Job) -> JobResult {
        match job {
            Job::RequestKey(gateway, period) => {
                JobResult::RequestKey((gateway, period), self.request_key(gateway, period))
            }
            Job::Period(start) => JobResult::Period(start, self.period(&start).map(Box::new)),
            Job::Quote(start, values) => JobResult::Quote(start, self.quote(&start, &values)),
            Job::Key(source) => {
                (self.source, self.key) = (*source, None);
                JobResult::Key
            }
        }
    }

    /// Runs a closure with the key, which is loaded if necessary.
    fn with_key<T, E: From<KeyError>>(
        &mut self,
        operation: impl FnOnce(&mut LoadedKey, &MeasurementScope) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut key = match self.key.take() {
            Some(key) => key,
            None => self.source.open()?,
        };
        let result = operation(&mut key, &self.scope);
        if result.is_ok() {
            self.key = Some(key);
        }
        result
    }

    fn request_key(&mut self, gateway: GatewayId, period: Period) -> Result<RequestKey, KeyError> {
        let device = self.device;
        self.with_key(|key, _| request_key(device, (gateway, period), |message| key.hmac(message)))
    }

    pub(super) fn period(&mut self, start: &PeriodStart) -> Result<(Measurement, PeriodKey), MeasureError> {
        let device = self.device;
        self.with_key(|key, scope| {
            let measurement = scope.measure_with(|tpm| key.pcrs(tpm.bank, tpm.pcrs))?;
            let h = configuration_hash(&measurement);
            let k2 = Zeroizing::new(key.hmac(&period_message(device, start, &h))?);
            Ok((measurement, PeriodKey::from_bytes(*k2)))
        })
    }

    #[cfg(feature = "tpm")]
    fn quote(&mut self, start: &PeriodStart, values: &PcrValues) -> Result<EvidenceQuote, MeasureError> {
        let KeySource::Tpm { blobs, .. } = &self.source else {
            return Err(no_quote());
        };
        let blobs = blobs.clone();
        let nonce = linewarden_protocol::attest::quote_nonce(self.device, start);
        self.with_key(|key, _| {
            let LoadedKey::Tpm(key) = key else {
                return Err(no_quote());
            };
            let quoted = key
                .tpm()
                .quote(&blobs, &nonce, values.bank(), values.selection())
                .map_err(KeyError::from)?;
            match quoted.values == *values {
                true => Ok(EvidenceQuote {
                    quote: quoted.attest,
                    signature: quoted.signature,
                }),
                false => Err(MeasureError::PcrsChanged),
            }
        })
    }

    #[cfg(not(feature = "tpm"))]
    fn quote(&mut self, _: &PeriodStart, _: &PcrValues) -> Result<EvidenceQuote, MeasureError> {
        Err(no_quote())
    }
}

/// The request key of a gateway and a period, derived from an HMAC under k.
pub(crate) fn request_key(
    device: DeviceId,
    (gateway, period): (GatewayId, Period),
    hmac: impl FnOnce(&[u8]) -> Result<[u8; 32], KeyError>,
) -> Result<RequestKey, KeyError> {
    let output = hmac(&request_message(device, gateway, period)).map(Zeroizing::new)?;
    Ok(RequestKey::from_hmac(&output))
}

fn no_quote() -> MeasureError {
    MeasureError::Key(KeyError::Tpm {
        message: "no TPM to create a quote".to_owned(),
        retry: linewarden_tpm::Retry::Never,
    })
}

/// The hash h, as in proofs.
pub(crate) fn configuration_hash(measurement: &Measurement) -> ConfigurationHash {
    ConfigurationHash(measurement.configuration.hash().0)
}

/// The thread, with at most one job.
pub(crate) struct Worker {
    jobs: Option<SyncSender<Job>>,
    results: Receiver<JobResult>,
    ready: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread or the event descriptor cannot be created.
    pub(crate) fn start(mut runner: JobRunner) -> io::Result<Self> {
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // The next job is submitted after the result of the previous job was taken, so no sender waits.
        let (jobs, job_receiver) = sync_channel::<Job>(1);
        let (result_sender, result_receiver) = sync_channel(1);
        let signal = CompletionSignal(Arc::clone(&ready));
        let thread = Builder::new().name("attest".to_owned()).spawn(move || {
            // Dropped after `result_sender`, so that the woken thread finds the channel closed.
            let signal = signal;
            let result_sender = result_sender;
            for job in job_receiver {
                if result_sender.send(runner.run(job)).is_err() {
                    return;
                }
                signal.notify();
            }
        })?;
        Ok(Self {
            jobs: Some(jobs),
            results: result_receiver,
            ready,
            thread: Some(thread),
            is_busy: false,
        })
    }

    /// Readable when a result is available.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy && self.jobs.is_some()
    }

    /// Submits a job; only when idle.
    pub(crate) fn submit(&mut self, job: Job) {
        // `take_result` detects a failed thread.
        self.is_busy = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()) || self.is_busy;
    }

    /// The next result.
    pub(crate) fn take_result(&mut self) -> Option<JobResult> {
        let mut count = [0; 8];
        // Resets the event counter; its value is not used.
        let _ = rustix::io::read(&*self.ready, &mut count);
        match self.results.try_recv() {
            Ok(result) => {
                self.is_busy = false;
                Some(result)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.jobs.take().map(|_| JobResult::WorkerExited),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        // A thread that waits for a TPM or a disk is not joined; the kernel's resource manager flushes the TPM objects of the
        // process.
        if let Some(thread) = self.thread.take().filter(|_| !self.is_busy) {
            let _ = thread.join();
        }
    }
}

/// Wakes the event loop, also if the thread panics.
struct CompletionSignal(Arc<OwnedFd>);

impl CompletionSignal {
    fn notify(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Drop for CompletionSignal {
    fn drop(&mut self) {
        self.notify();
    }
}
