//! Frames prepared ahead, each sent once, in bursts, from the devices' end of a lab's link: the next burst when the last one was
//! judged. So a verifier always has a burst's work before it, and nothing is lost.
//!
//! Frames are the kernel's own (`BPF_PROG_TEST_RUN` with live frames), as those of [`crate::pace`]: on their way to the other end
//! they cost next to nothing, and the other end sees what comes from a card without checksums or aggregation.

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
/// How long a burst may take to be judged; on a loaded machine it may take long.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked what has been judged.
const LOOK: Duration = Duration::from_micros(20);
/// Frames that the kernel offers in a call: the end of a run waits for the end of a call.
const OFFERED: u32 = 50_000;

/// A sender at the devices' end.
pub struct Burster<'lab> {
    namespace: &'lab NetNs,
    skeleton: BurstSkel<'static>,
    prepared: u32,
}

impl<'lab> Burster<'lab> {
    /// With room for so many frames.
    ///
    /// # Errors
    /// A missing capability, or what the kernel says.
    pub fn new(lab: &'lab Lab, frames_max: u32) -> Result<Self, PaceError> {
        capability::require(FOR_LOAD_GENERATOR)?;
        // libbpf wants the object's storage to outlive the skeleton; a few dozen bytes are left behind.
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
            prepared: 0,
        })
    }

    /// Lays these frames out; the first of them is the next.
    ///
    /// # Errors
    /// More than there is room for, as the kernel says it.
    pub fn prepare(&mut self, frames: &[[u8; FRAME_BYTES]]) -> Result<(), PaceError> {
        self.prepared = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let element = |at: u32| {
            let mut element = [0; ELEMENT_BYTES];
            let frame = frames.get(at as usize).into_iter().flatten();
            element.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
            element
        };
        maps::fill(&self.skeleton.maps.prepared, self.prepared, element)?;
        if let Some(state) = self.skeleton.maps.bss_data.as_deref_mut() {
            state.next = 0;
        }
        maps::write(&self.skeleton.maps.allowed, 0, &0u32.to_ne_bytes())?;
        Ok(())
    }

    /// Sends all that was prepared, from the first of these processors, in bursts of so many; `judged`, asked on the second one,
    /// tells how many of all have been judged.
    ///
    /// # Errors
    /// The kernel's, or that of `judged`; frames that are not judged in time.
    pub fn run<E: Send + From<PaceError>>(
        &mut self,
        burst: u32,
        [sender, regulator]: [usize; 2],
        judged: &(dyn Fn() -> Result<u64, E> + Sync),
    ) -> Result<(), E> {
        let (skeleton, prepared, namespace) = (&mut self.skeleton, self.prepared, self.namespace);
        let allowed = maps::handle(&skeleton.maps.allowed).map_err(PaceError::from)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let regulating = scope.spawn(|| {
                let result = pin(regulator)
                    .map_err(E::from)
                    .and_then(|()| regulate(&allowed, burst, prepared, judged));
                is_over.store(true, Ordering::Release);
                result
            });
            let sent = namespace.run(|| {
                // The whole of it: its parts are not made to go to another thread.
                let skeleton = skeleton;
                pin(sender)?;
                while !is_over.load(Ordering::Acquire) {
                    offer(skeleton)?;
                }
                Ok::<_, PaceError>(())
            });
            let regulated = regulating.join();
            sent.map_err(PaceError::from)??;
            match regulated {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

fn pin(processor: usize) -> Result<(), PaceError> {
    pin_task(0, processor).map_err(|source| PaceError::Processor { processor, source })
}

/// Allows a burst when the one before has been judged.
fn regulate<E: From<PaceError>>(
    allowed: &MapHandle,
    burst: u32,
    prepared: u32,
    judged: &dyn Fn() -> Result<u64, E>,
) -> Result<(), E> {
    let (mut sent, mut deadline) = (0, Instant::now() + PATIENCE);
    loop {
        let done = judged()?;
        if done >= prepared.into() {
            return Ok(());
        }
        if done >= u64::from(sent) {
            sent = prepared.min(sent + burst);
            maps::write(allowed, 0, &sent.to_ne_bytes()).map_err(PaceError::from)?;
            deadline = Instant::now() + PATIENCE;
        }
        if Instant::now() > deadline {
            return Err(PaceError::Lost { sent, judged: done }.into());
        }
        // To look all the time would take the counters out of the verifier's cache for each frame.
        std::thread::sleep(LOOK);
    }
}

/// Offers the program frames for some milliseconds.
fn offer(skeleton: &BurstSkel<'static>) -> Result<(), PaceError> {
    let input = ProgramInput {
        data_in: Some(&[0; FRAME_BYTES]),
        flags: LIVE_FRAMES,
        repeat: OFFERED,
        ..Default::default()
    };
    skeleton
        .progs
        .burst_send
        .test_run(input)
        .context("BPF_PROG_TEST_RUN with live frames")?;
    Ok(())
}
