//! A thread of its own for what takes time: the TPM and reading files. Authentication goes on meanwhile.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};

use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::keys::{period_message, request_message};
use linewarden_protocol::attest::{ConfigurationHash, PeriodKey, PeriodStart, RequestKey};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_tpm::KeyError;
use linewarden_tpm::evidence::EvidenceQuote;
use rustix::event::{EventfdFlags, eventfd};
use zeroize::Zeroizing;

use super::key::{KeySource, OpenKey};
use super::subject::{MeasureError, Measured, Subject};

/// What is to be done.
pub(crate) enum Job {
    RequestKey(GatewayId, Period),
    Period(PeriodStart),
    /// With the values that the quote must be of.
    Quote(PeriodStart, PcrValues),
    /// Another key takes the place of the one before.
    Key(Box<KeySource>),
}

/// What was done.
pub(crate) enum Done {
    RequestKey((GatewayId, Period), Result<RequestKey, KeyError>),
    Period(PeriodStart, Result<Box<(Measured, PeriodKey)>, MeasureError>),
    Quote(PeriodStart, Result<EvidenceQuote, MeasureError>),
    Key,
    /// The thread has ended by itself: nothing is done any more.
    Gone,
}

/// Who does it.
pub(crate) struct Attestor {
    pub(crate) device: DeviceId,
    pub(crate) subject: Subject,
    pub(crate) source: KeySource,
    /// Loaded in the TPM, from the first use on; after a failure it is opened anew.
    pub(crate) key: Option<OpenKey>,
}

impl Attestor {
    fn run(&mut self, job: Job) -> Done {
        match job {
            Job::RequestKey(gateway, period) => {
                Done::RequestKey((gateway, period), self.request_key(gateway, period))
            }
            Job::Period(start) => Done::Period(start, self.period(&start).map(Box::new)),
            Job::Quote(start, values) => Done::Quote(start, self.quote(&start, &values)),
            Job::Key(source) => {
                (self.source, self.key) = (*source, None);
                Done::Key
            }
        }
    }

    /// Does something with the key, which is loaded if it is not.
    fn with_key<T, E: From<KeyError>>(
        &mut self,
        what: impl FnOnce(&mut OpenKey, &Subject) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut key = match self.key.take() {
            Some(key) => key,
            None => self.source.open()?,
        };
        let done = what(&mut key, &self.subject);
        if done.is_ok() {
            self.key = Some(key);
        }
        done
    }

    fn request_key(&mut self, gateway: GatewayId, period: Period) -> Result<RequestKey, KeyError> {
        let device = self.device;
        self.with_key(|key, _| request_key(device, (gateway, period), |message| key.hmac(message)))
    }

    pub(super) fn period(&mut self, start: &PeriodStart) -> Result<(Measured, PeriodKey), MeasureError> {
        let device = self.device;
        self.with_key(|key, subject| {
            let measured = subject.measure_with(|tpm| key.pcrs(tpm))?;
            let h = hash_of(&measured);
            let k2 = Zeroizing::new(key.hmac(&period_message(device, start, &h))?);
            Ok((measured, PeriodKey::from_bytes(*k2)))
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
            let OpenKey::Tpm(key) = key else {
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

/// The key under which a gateway asks in a period, of the HMAC under k.
pub(crate) fn request_key(
    device: DeviceId,
    (gateway, period): (GatewayId, Period),
    hmac: impl FnOnce(&[u8]) -> Result<[u8; 32], KeyError>,
) -> Result<RequestKey, KeyError> {
    let made = hmac(&request_message(device, gateway, period)).map(Zeroizing::new)?;
    Ok(RequestKey::of_hmac(&made))
}

fn no_quote() -> MeasureError {
    MeasureError::Key(KeyError::Tpm {
        what: "there is no TPM that could quote".to_owned(),
        again: linewarden_tpm::Again::Never,
    })
}

/// h as proofs have it.
pub(crate) fn hash_of(measured: &Measured) -> ConfigurationHash {
    ConfigurationHash(measured.configuration.hash().0)
}

/// The thread, with at most one job.
pub(crate) struct Worker {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    ready: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    is_busy: bool,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread or no descriptor.
    pub(crate) fn start(mut attestor: Attestor) -> io::Result<Self> {
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, to_do) = channel::<Job>();
        let (finished, done) = channel();
        let bell = Bell(Arc::clone(&ready));
        let thread = Builder::new().name("attest".to_owned()).spawn(move || {
            // Dropped last, so that whoever it wakes finds the channel closed.
            let bell = bell;
            let finished = finished;
            for job in to_do {
                if finished.send(attestor.run(job)).is_err() {
                    return;
                }
                bell.ring();
            }
        })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            ready,
            thread: Some(thread),
            is_busy: false,
        })
    }

    /// Readable when something is done.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy && self.jobs.is_some()
    }

    /// Begins a job; only when idle.
    pub(crate) fn begin(&mut self, job: Job) {
        // A thread that is gone is found out about by `take`.
        self.is_busy = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()) || self.is_busy;
    }

    /// What was done, once.
    pub(crate) fn take(&mut self) -> Option<Done> {
        let mut count = [0; 8];
        // It counts up; what it has counted is no matter.
        let _ = rustix::io::read(&*self.ready, &mut count);
        match self.done.try_recv() {
            Ok(done) => {
                self.is_busy = false;
                Some(done)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.jobs.take().map(|_| Done::Gone),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        // One that waits for a TPM or a disk is left to itself; the kernel's resource manager flushes what it has loaded.
        if let Some(thread) = self.thread.take().filter(|_| !self.is_busy) {
            let _ = thread.join();
        }
    }
}

/// Wakes the loop up, also when the thread ends in a way that nobody foresaw.
struct Bell(Arc<OwnedFd>);

impl Bell {
    fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}
