//! One frame over and over at a given rate, from the devices' end of a lab's link, and a count of what comes back: what a
//! program does with more than it can do.
//!
//! Frames are the kernel's own (`BPF_PROG_TEST_RUN` with live frames): they need no socket buffer, so one processor offers
//! several million a second. Where the other end's ring is full they are lost, as at a network card; where the sender is late
//! by more than 20 us it leaves out what was due. They come from a pool
//! and are not written anew: a frame that was changed is sent as it came back.
//!
//! The program that is measured has its receive work on a kernel thread of a processor of its own ([`crate::napi`]); what it
//! sends back is counted there too, right behind its batch: a thread of the counter's own would have to wait for its turn
//! while its ring runs over. Sender and receive thread go before everything else on their processors, which is what a card
//! and its interrupts do: a thread that waits for its turn loses what comes meanwhile.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ErrorExt as _, Link, MapCore as _, MapFlags, OpenObject, ProgramInput};

use crate::capability::{self, FOR_LOAD_GENERATOR, Missing};
use crate::clock::monotonic_ns;
use crate::napi::{pin_task, run_first};
use crate::netns::{NetNs, NetNsError};
use crate::skeletons::pace::{PaceSkel, PaceSkelBuilder};
use crate::topology::Lab;

/// What the kernel takes to offer the program a frame, ns, until it has been measured. A call offers what fills the time that is left,
/// for between two calls nothing is sent for milliseconds, and what is offered too much goes on when the time is over.
const OFFER_NS: u64 = 200;
/// From so many on, what a call takes says what a frame does.
const MEASURED_MIN: u64 = 65_536;
/// Frames of a call at least.
const OFFERED_MIN: u64 = 4096;
/// A sender that has had no turn so many times will have none.
const TRIES_PER_RUN: u32 = 10;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`, since Linux 5.18.
pub(crate) const LIVE_FRAMES: u32 = 2;

/// Why frames could not be sent at a rate.
#[derive(Debug, thiserror::Error)]
pub enum PaceError {
    /// Not allowed.
    #[error(transparent)]
    Capability(#[from] Missing),
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// Loading, attaching, running or a map.
    #[error("frames at a rate: {0}")]
    Bpf(#[from] libbpf_rs::Error),
    /// No such processor, or not to be had.
    #[error("frames at a rate: processor {processor}: {source}")]
    Processor {
        /// The one that was named.
        processor: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Frames that never had a verdict.
    #[error("{judged} of {sent} frames were judged, and for seconds no more: the others are lost")]
    Lost {
        /// Frames that were sent.
        sent: u32,
        /// Those that were judged.
        judged: u64,
    },
}

/// What was sent and what came back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Paced {
    /// How long frames were sent.
    pub elapsed: Duration,
    /// How long it was counted what comes back: longer, by the kernel's last call and until somebody had the time to count.
    pub took: Duration,
    /// When sending began, by CLOCK_MONOTONIC, ns.
    begun_ns: u64,
    /// Frames that left, those that found no room at the other end included.
    pub sent: u64,
    /// Frames that came back.
    pub received: u64,
}

impl Paced {
    /// Input rate, 1/s.
    #[must_use]
    pub fn sent_per_s(&self) -> f64 {
        self.sent as f64 / self.elapsed.as_secs_f64()
    }

    /// So many have come back by now.
    pub fn count(&mut self, received: u64) {
        self.received = received;
        self.took = Duration::from_nanos(monotonic_ns().saturating_sub(self.begun_ns));
    }

    /// Output rate, 1/s.
    #[must_use]
    pub fn received_per_s(&self) -> f64 {
        self.received as f64 / self.took.max(self.elapsed).as_secs_f64()
    }
}

/// Of so many runs that in which most came back: what disturbs a run only takes from it. A run in which the sender never had its
/// turn, as on a machine that has much else to do, is none; when that goes on, what there is is returned.
///
/// # Errors
/// The first of `run`.
pub fn best_of<E>(runs: u32, mut run: impl FnMut() -> Result<Paced, E>) -> Result<Paced, E> {
    let mut best: Option<Paced> = None;
    let mut left = runs;
    for _ in 0..runs.saturating_mul(TRIES_PER_RUN) {
        let paced = run()?;
        left -= u32::from(paced.sent > 0);
        if best.is_none_or(|best| paced.received_per_s() >= best.received_per_s()) {
            best = Some(paced);
        }
        if left == 0 {
            break;
        }
    }
    Ok(best.unwrap_or_default())
}

/// Sender and sink at the devices' end; detached when dropped.
pub struct Pacer<'lab> {
    namespace: &'lab NetNs,
    skeleton: PaceSkel<'static>,
    /// What the kernel took last to offer a frame.
    offer_ns: u64,
    _sink: Link,
}

impl<'lab> Pacer<'lab> {
    /// Attaches the sink; the lab must have been built without `devices_end_accepts_xdp`.
    ///
    /// # Errors
    /// A missing capability, or what the kernel says.
    pub fn attach(lab: &'lab Lab) -> Result<Self, PaceError> {
        capability::require(FOR_LOAD_GENERATOR)?;
        let interface = lab.devices_end.index;
        let (skeleton, sink) = lab.devices.run(|| {
            // libbpf wants the object's storage to outlive the skeleton; a few dozen bytes are left behind.
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
            offer_ns: OFFER_NS,
            _sink: sink,
        })
    }

    /// Sends `frame` so many times a second for so long, or as often as that processor can.
    ///
    /// # Errors
    /// What the kernel says; before Linux 5.18 it knows no live frames.
    pub fn run(
        &mut self,
        frame: &[u8],
        per_second: u64,
        length: Duration,
        processor: usize,
    ) -> Result<Paced, PaceError> {
        let before = self.received()?;
        let (skeleton, offer_ns) = (&mut self.skeleton, &mut self.offer_ns);
        let end_ns = self.namespace.run(move || {
            // The whole of it: its parts are not made to go to another thread.
            let skeleton = skeleton;
            // Of this thread, which ends with the run.
            pin_task(0, processor)
                .and_then(|()| run_first(0))
                .map_err(|source| PaceError::Processor { processor, source })?;
            let end_ns = begin(skeleton, per_second, length);
            let program = &skeleton.progs.pace_send;
            loop {
                let now_ns = monotonic_ns();
                let left_ns = end_ns.saturating_sub(now_ns);
                if left_ns == 0 {
                    return Ok::<_, PaceError>(end_ns);
                }
                let offered = (left_ns / *offer_ns).max(OFFERED_MIN);
                let input = ProgramInput {
                    data_in: Some(frame),
                    flags: LIVE_FRAMES,
                    repeat: u32::try_from(offered).unwrap_or(u32::MAX),
                    ..Default::default()
                };
                program
                    .test_run(input)
                    .context("BPF_PROG_TEST_RUN with live frames")?;
                if offered >= MEASURED_MIN {
                    *offer_ns = (monotonic_ns().saturating_sub(now_ns) / offered).max(1);
                }
            }
        })??;
        let sent = self.skeleton.maps.bss_data.as_deref().map(|state| state.sent);
        let mut paced = Paced {
            elapsed: length,
            begun_ns: end_ns.saturating_sub(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)),
            sent: sent.unwrap_or_default(),
            ..Paced::default()
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
        let of_cpu = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |count| u64::from_ne_bytes(*count));
        Ok(counts.into_iter().flatten().map(of_cpu).sum())
    }
}

/// From now on so many a second for so long; when it ends, by the clock of [`monotonic_ns`].
fn begin(skeleton: &mut PaceSkel<'static>, per_second: u64, length: Duration) -> u64 {
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
