//! Sends prepared frames in bursts, each frame once, from the devices' end of a lab's link. The next burst starts when the
//! verifier has processed the previous burst, so no frame is lost.
//!
//! The kernel creates the frames (`BPF_PROG_TEST_RUN` with live frames), as in [`crate::pace`]: their transport to the other
//! end costs almost nothing, and the other end receives them as from a card without checksum offload or aggregation.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ErrorExt as _, MapHandle, ProgramInput};

use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::loadgen::maps;
use crate::napi::pin_task;
use crate::netns::NetNs;
use crate::pace::{LIVE_FRAMES, PaceError};
use crate::skeletons::burst::{BurstSkel, BurstSkelBuilder};
use crate::topology::Lab;

/// Bytes of a frame: Ethernet, IPv4, UDP, PROOF.
pub const FRAME_BYTES: usize = 138;
/// `struct burst_frame`.
const ELEMENT_BYTES: usize = 144;
/// Timeout for the verifier to process a burst; long enough for busy machines.
const BURST_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two reads of the processed frames.
const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Frames that the kernel offers per call: a run ends only at the end of a call.
const FRAMES_PER_CALL: u32 = 50_000;

/// A burst sender at the devices' end.
pub struct BurstSender<'lab> {
    namespace: &'lab NetNs,
    skeleton: BurstSkel<'static>,
    /// Number of prepared frames.
    frame_count: u32,
}

impl<'lab> BurstSender<'lab> {
    /// A sender with room for `frames_max` frames.
    ///
    /// # Errors
    /// A capability is missing, or the kernel refuses the program.
    pub fn new(lab: &'lab Lab, frames_max: u32) -> Result<Self, PaceError> {
        capability::require(FOR_LOAD_GENERATOR)?;
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes are leaked.
        let storage: &'static mut MaybeUninit<_> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = BurstSkelBuilder::default().open(storage)?;
        open.maps.prepared.set_max_entries(frames_max)?;
        let mut skeleton = open.load()?;
        if let Some(state) = skeleton.maps.bss_data.as_deref_mut() {
            state.interface = lab.devices_end.index;
        }
        Ok(Self {
            namespace: &lab.devices,
            skeleton,
            frame_count: 0,
        })
    }

    /// Stores the frames to send; the next run starts with the first frame.
    ///
    /// # Errors
    /// There are more frames than the sender has room for.
    pub fn prepare(&mut self, frames: &[[u8; FRAME_BYTES]]) -> Result<(), PaceError> {
        self.frame_count = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let element = |index: u32| {
            let mut element = [0; ELEMENT_BYTES];
            let frame = frames.get(index as usize).into_iter().flatten();
            element.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
            element
        };
        maps::fill(&self.skeleton.maps.prepared, self.frame_count, element)?;
        if let Some(state) = self.skeleton.maps.bss_data.as_deref_mut() {
            state.next = 0;
        }
        maps::write(&self.skeleton.maps.allowed, 0, &0u32.to_ne_bytes())?;
        Ok(())
    }

    /// Sends all prepared frames from the CPU `sender` in bursts of `burst` frames. The thread on the CPU `regulator` calls
    /// `processed`, which returns how many frames the verifier has processed.
    ///
    /// # Errors
    /// The kernel's error, the error of `processed`, or [`PaceError::FramesLost`].
    pub fn run<E: Send + From<PaceError>>(
        &mut self,
        burst: u32,
        [sender, regulator]: [usize; 2],
        processed: &(dyn Fn() -> Result<u64, E> + Sync),
    ) -> Result<(), E> {
        let (skeleton, frame_count, namespace) = (&mut self.skeleton, self.frame_count, self.namespace);
        let allowed = maps::handle(&skeleton.maps.allowed).map_err(PaceError::from)?;
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let regulator_thread = scope.spawn(|| {
                let result = pin(regulator)
                    .map_err(E::from)
                    .and_then(|()| allow_bursts(&allowed, burst, frame_count, processed));
                is_done.store(true, Ordering::Release);
                result
            });
            let send_result = namespace.run(|| {
                // Moves the whole skeleton, because its parts are not `Send`.
                let skeleton = skeleton;
                pin(sender)?;
                while !is_done.load(Ordering::Acquire) {
                    offer_frames(skeleton)?;
                }
                Ok::<_, PaceError>(())
            });
            let regulator_result = regulator_thread.join();
            send_result.map_err(PaceError::from)??;
            match regulator_result {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

fn pin(processor: usize) -> Result<(), PaceError> {
    pin_task(0, processor).map_err(|source| PaceError::Processor { processor, source })
}

/// Allows the next burst when the verifier has processed the previous burst.
fn allow_bursts<E: From<PaceError>>(
    allowed: &MapHandle,
    burst: u32,
    frame_count: u32,
    processed: &dyn Fn() -> Result<u64, E>,
) -> Result<(), E> {
    let (mut sent, mut deadline) = (0, Instant::now() + BURST_TIMEOUT);
    loop {
        let done = processed()?;
        if done >= frame_count.into() {
            return Ok(());
        }
        if done >= u64::from(sent) {
            sent = frame_count.min(sent + burst);
            maps::write(allowed, 0, &sent.to_ne_bytes()).map_err(PaceError::from)?;
            deadline = Instant::now() + BURST_TIMEOUT;
        }
        if Instant::now() > deadline {
            return Err(PaceError::FramesLost {
                sent,
                processed: done,
            }
            .into());
        }
        // Continuous reads would evict the counters from the verifier's cache for each frame.
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Offers frames to the program for some milliseconds.
fn offer_frames(skeleton: &BurstSkel<'static>) -> Result<(), PaceError> {
    let input = ProgramInput {
        data_in: Some(&[0; FRAME_BYTES]),
        flags: LIVE_FRAMES,
        repeat: FRAMES_PER_CALL,
        ..Default::default()
    };
    skeleton
        .progs
        .burst_send
        .test_run(input)
        .context("BPF_PROG_TEST_RUN with live frames")?;
    Ok(())
}
