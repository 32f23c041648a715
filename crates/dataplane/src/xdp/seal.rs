//! The program of the way out, which a sealed gate needs: a filter on the egress of the devices' side (clsact, which
//! every supported kernel has).
//!
//! A filter is no link: it stays when its process ends. That is what a gate wants that stays shut. Of the others,
//! [`Seal`] takes it off at the end, and when the process is killed its program lets everything through as soon as
//! nobody has renewed the freshness value for 16 s; the next gateway takes its place.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;

use libbpf_rs::{ProgramInput, ProgramMut, TC_EGRESS, TcHook};

use super::TestRun;
use crate::DataPlaneError;
use crate::layout::Shared;

/// The filter's number among those of its priority: "LW".
const HANDLE: u32 = 0x4c57;
/// Before all others, so that none can let anything past it.
const PRIORITY: u32 = 1;

/// An element of the map `down`, see [`linewarden_protocol::data::DownWord`].
#[derive(Debug)]
#[repr(C)]
pub(super) struct DownCell(pub(super) AtomicU64);
// SAFETY: repr(C), an atomic only, valid when zero.
unsafe impl Shared for DownCell {}

/// A filter that goes when this is dropped.
pub(super) struct Seal {
    ifindex: u32,
    /// Interfaces are numbered in each network namespace anew.
    namespace: File,
}

impl Seal {
    pub(super) fn while_alive(program: &ProgramMut<'_>, ifindex: u32) -> Result<Self, DataPlaneError> {
        let namespace = File::open("/proc/thread-self/ns/net")
            .map_err(|error| DataPlaneError::kernel("finding the network namespace", error))?;
        stay(program, ifindex)?;
        Ok(Self { ifindex, namespace })
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        let (ifindex, namespace) = (self.ifindex, self.namespace.as_raw_fd());
        let number = |status: std::io::Result<std::fs::Metadata>| status.ok().map(|status| status.ino());
        let wanted = number(self.namespace.metadata());
        let is_here = wanted.is_some() && wanted == number(std::fs::metadata("/proc/thread-self/ns/net"));
        // On a thread of its own, for the dropping one may be in another namespace.
        let removed = std::thread::spawn(move || {
            // Where it is there already, it needs no privilege to get there.
            // SAFETY: the descriptor is open until this thread is joined.
            if is_here || unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } == 0 {
                remove(ifindex);
            }
        });
        removed.join().ok();
    }
}

/// Puts the program on an interface's egress, in the place of an earlier gateway's.
pub(super) fn stay(program: &ProgramMut<'_>, ifindex: u32) -> Result<(), DataPlaneError> {
    let error = |error| {
        DataPlaneError::kernel(
            format!("attaching the sealing filter to the egress of interface {ifindex}"),
            error,
        )
    };
    let mut hook = hook(program.as_fd(), ifindex);
    hook.create().map_err(error)?;
    hook.attach().map_err(error)?;
    Ok(())
}

/// Takes the filter off, if there is one.
pub(super) fn remove(ifindex: u32) {
    // Any descriptor will do: only what the filter is called counts.
    let Ok(none) = File::open("/dev/null") else {
        return;
    };
    if let Err(error) = hook(none.as_fd(), ifindex).detach() {
        tracing::debug!(%error, ifindex, "no sealing filter to take off");
    }
}

fn hook(program: BorrowedFd<'_>, ifindex: u32) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(ifindex.cast_signed())
        .attach_point(TC_EGRESS)
        .handle(HANDLE)
        .priority(PRIORITY)
        .replace(true);
    hook
}

/// `struct __sk_buff` as a test run takes it, and the place of `ifindex` in it.
const CONTEXT_BYTES: usize = 192;
const CONTEXT_IFINDEX: usize = 40;

pub(super) fn test_run(
    program: &ProgramMut<'_>,
    frame: &[u8],
    ifindex: u32,
) -> Result<TestRun, DataPlaneError> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut context = vec![0u8; CONTEXT_BYTES];
    if let Some(place) = context.get_mut(CONTEXT_IFINDEX..CONTEXT_IFINDEX + 4) {
        place.copy_from_slice(&ifindex.to_ne_bytes());
    }
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        context_in: Some(&mut context),
        ..Default::default()
    };
    let output = program
        .test_run(input)
        .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
    let action = output.return_value;
    let length = output.data.as_ref().map_or(0, |data| data.len());
    out.truncate(length);
    Ok(TestRun { action, frame: out })
}
