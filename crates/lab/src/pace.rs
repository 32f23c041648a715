//! Sends one frame at a given rate from the devices' end of a lab's link and counts the frames that come back, for
//! measurements of programs under overload.
//!
//! The kernel creates the frames (`BPF_PROG_TEST_RUN` with live frames). Such frames need no socket buffer, so one CPU
//! sends several million frames per second. Frames that find the other end's ring full are lost, as at a network card.
//! A sender that is late by more than 20 us skips the frames that it should have sent. Frames come from a pool and are not
//! rewritten: a frame that the program changed is sent in its changed form.
//!
//! The receive work of the measured program runs on a kernel thread of its own CPU ([`crate::napi`]). Returned frames
//! are counted there, too, after each batch; a separate counting thread would have to wait for the CPU while its ring
//! overflows. Sender and receive thread have real-time priority, as a card and its interrupts do: a thread that waits for
//! its CPU loses frames.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ErrorExt as _, Link, MapCore as _, MapFlags, OpenObject, ProgramInput};

use crate::capability::{self, FOR_LOAD_GENERATOR, MissingCapabilities};
use crate::clock::monotonic_ns;
use crate::napi::{pin_task, set_fifo_priority};
use crate::netns::{NetNs, NetNsError};
use crate::skeletons::pace::{PaceSkel, PaceSkelBuilder};
use crate::topology::Lab;

/// Initial estimate of the kernel's time to offer a frame to the program, ns. One call offers enough frames for the remaining
/// time, because no frame is sent for milliseconds between two calls, and surplus frames extend the run.
const INITIAL_FRAME_OFFER_NS: u64 = 200;
/// Minimum number of frames of a call whose duration updates the estimate.
const FRAMES_FOR_ESTIMATE_MIN: u64 = 65_536;
/// Minimum number of frames of a call.
const FRAMES_PER_CALL_MIN: u64 = 4096;
/// Maximum attempts per run: an attempt in which the sender got no CPU time is repeated.
const ATTEMPTS_PER_RUN: u32 = 10;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`, since Linux 5.18.
pub(crate) const LIVE_FRAMES: u32 = 2;

/// Why frames could not be sent at a rate.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    /// A capability is missing.
    #[error(transparent)]
    Capability(#[from] MissingCapabilities),
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// Loading, attaching or running a program, or accessing a map, failed.
    #[error("frame sender failed: {0}")]
    Bpf(#[from] libbpf_rs::Error),
    /// The CPU does not exist or cannot be used.
    #[error("frame sender could not use CPU {processor}: {source}")]
    Processor {
        /// The requested CPU.
        processor: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// Frames were lost before the verifier.
    #[error("frames lost: the verifier has processed {processed} of {sent} frames and no more for 10 s")]
    FramesLost {
        /// Frames that were sent.
        sent: u32,
        /// Frames that the verifier has processed.
        processed: u64,
    },
}

/// Sent and returned frames of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PacedRun {
    /// Duration of sending.
    pub elapsed: Duration,
    /// Duration of counting returned frames: longer than `elapsed` by the kernel's last call and the delay of the reader.
    pub count_duration: Duration,
    /// Start of sending, CLOCK_MONOTONIC, ns.
    started_ns: u64,
    /// Sent frames, including frames that were lost at the other end.
    pub sent: u64,
    /// Returned frames.
    pub received: u64,
}

impl PacedRun {
    /// Input rate, 1/s.
    #[must_use]
    pub fn sent_per_s(&self) -> f64 {
        self.sent as f64 / self.elapsed.as_secs_f64()
    }

    /// Sets the number of returned frames and the duration of counting.
    pub fn count(&mut self, received: u64) {
        self.received = received;
        self.count_duration = Duration::from_nanos(monotonic_ns().saturating_sub(self.started_ns));
    }

    /// Output rate, 1/s.
    #[must_use]
    pub fn received_per_s(&self) -> f64 {
        self.received as f64 / self.count_duration.max(self.elapsed).as_secs_f64()
    }
}

/// The run with the highest output rate of `runs` runs: disturbances only lower the rate. A run in which the sender never got
/// CPU time, as on a busy machine, is repeated; after too many repetitions the best run so far is returned.
///
/// # Errors
/// The first error of `run`.
pub fn best_of<E>(runs: u32, mut run: impl FnMut() -> Result<PacedRun, E>) -> Result<PacedRun, E> {
    let mut best: Option<PacedRun> = None;
    let mut remaining_runs = runs;
    for _ in 0..runs.saturating_mul(ATTEMPTS_PER_RUN) {
        let paced = run()?;
        remaining_runs -= u32::from(paced.sent > 0);
        if best.is_none_or(|best| paced.received_per_s() >= best.received_per_s()) {
            best = Some(paced);
        }
        if remaining_runs == 0 {
            break;
        }
    }
    Ok(best.unwrap_or_default())
}

/// Frame sender and counting sink at the devices' end; detached when dropped.
pub struct Pacer<'lab> {
    namespace: &'lab NetNs,
    skeleton: PaceSkel<'static>,
    /// Latest measured time of the kernel to offer a frame.
    frame_offer_ns: u64,
    _sink: Link,
}

impl<'lab> Pacer<'lab> {
    /// Attaches the sink; the lab must have been built without `devices_end_accepts_xdp`.
    ///
    /// # Errors
    /// A capability is missing, or the kernel refuses the program.
    pub fn attach(lab: &'lab Lab) -> Result<Self, PaceError> {
        capability::require(FOR_LOAD_GENERATOR)?;
        let interface = lab.devices_end.index;
        let (skeleton, sink) = lab.devices.run(|| {
            // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes are leaked.
            let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
            let mut skeleton = PaceSkelBuilder::default().open(storage)?.load()?;
            if let Some(state) = skeleton.maps.bss_data.as_deref_mut() {
                state.interface = interface;
            }
            let sink = skeleton.progs.pace_sink.attach_xdp(interface.cast_signed())?;
            Ok::<_, libbpf_rs::Error>((skeleton, sink))
        })??;
        Ok(Self {
            namespace: &lab.devices,
            skeleton,
            frame_offer_ns: INITIAL_FRAME_OFFER_NS,
            _sink: sink,
        })
    }

    /// Sends `frame` `per_second` times per second for `length`, or as often as the CPU `processor` can.
    ///
    /// # Errors
    /// The kernel refuses the run; live frames need Linux 5.18.
    pub fn run(
        &mut self,
        frame: &[u8],
        per_second: u64,
        length: Duration,
        processor: usize,
    ) -> Result<PacedRun, PaceError> {
        let before = self.received()?;
        let (skeleton, offer_ns) = (&mut self.skeleton, &mut self.frame_offer_ns);
        let end_ns = self.namespace.run(move || {
            // Moves the whole skeleton, because its parts are not `Send`.
            let skeleton = skeleton;
            // Applies to this thread, which ends with the run.
            pin_task(0, processor)
                .and_then(|()| set_fifo_priority(0))
                .map_err(|source| PaceError::Processor { processor, source })?;
            let end_ns = start_sending(skeleton, per_second, length);
            let program = &skeleton.progs.pace_send;
            loop {
                let now_ns = monotonic_ns();
                let remaining_ns = end_ns.saturating_sub(now_ns);
                if remaining_ns == 0 {
                    return Ok::<_, PaceError>(end_ns);
                }
                let offered = (remaining_ns / *offer_ns).max(FRAMES_PER_CALL_MIN);
                let input = ProgramInput {
                    data_in: Some(frame),
                    flags: LIVE_FRAMES,
                    repeat: u32::try_from(offered).unwrap_or(u32::MAX),
                    ..Default::default()
                };
                program
                    .test_run(input)
                    .context("BPF_PROG_TEST_RUN with live frames")?;
                if offered >= FRAMES_FOR_ESTIMATE_MIN {
                    *offer_ns = (monotonic_ns().saturating_sub(now_ns) / offered).max(1);
                }
            }
        })??;
        let sent = self.skeleton.maps.bss_data.as_deref().map(|state| state.sent);
        let mut paced = PacedRun {
            elapsed: length,
            started_ns: end_ns.saturating_sub(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)),
            sent: sent.unwrap_or_default(),
            ..PacedRun::default()
        };
        paced.count(self.received()? - before);
        Ok(paced)
    }

    fn received(&self) -> Result<u64, PaceError> {
        let counts = self
            .skeleton
            .maps
            .received
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        let count_of_cpu = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |count| u64::from_ne_bytes(*count));
        Ok(counts.into_iter().flatten().map(count_of_cpu).sum())
    }
}

/// Sets rate and length, with the start at the present time; returns the end time by [`monotonic_ns`].
fn start_sending(skeleton: &mut PaceSkel<'static>, per_second: u64, length: Duration) -> u64 {
    let start_ns = monotonic_ns();
    let end_ns = start_ns.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    if let Some(state) = skeleton.maps.bss_data.as_deref_mut() {
        state.next_ps = start_ns.saturating_mul(1000);
        state.interval_ps = 1_000_000_000_000 / per_second.max(1);
        state.end_ns = end_ns;
        state.sent = 0;
    }
    end_ns
}
