//! The egress program of a sealed gate: a filter on the egress of the devices' side (clsact, which every supported
//! kernel has).
//!
//! Unlike a link, a filter stays when its process ends, as a gate that stays closed requires. For other gates,
//! [`SealingFilter`] removes the filter on drop. If the process is killed, the program passes all frames after
//! 16 s without a new freshness value, and the next gateway replaces the filter.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;

use libbpf_rs::{ProgramInput, ProgramMut, TC_EGRESS, TcHook};

use super::test_run::TestRun;
use crate::error::DataPlaneError;
use crate::layout::Shared;

/// Handle of the filter at its priority: "LW".
const HANDLE: u32 = 0x4c57;
/// The filter runs before all other filters, so that no filter can bypass it.
const PRIORITY: u32 = 1;

/// An element of the map `down`, see [`linewarden_protocol::data::DownCounter`].
#[derive(Debug)]
#[repr(C)]
pub(super) struct DownCell(pub(super) AtomicU64);
// SAFETY: repr(C), an atomic only, valid when zero.
unsafe impl Shared for DownCell {}

/// A filter that is removed on drop.
pub(super) struct SealingFilter {
    ifindex: u32,
    /// Interface indices are only unique within a network namespace.
    namespace: File,
}

impl SealingFilter {
    pub(super) fn for_process_lifetime(
        program: &ProgramMut<'_>,
        ifindex: u32,
    ) -> Result<Self, DataPlaneError> {
        let namespace = File::open("/proc/thread-self/ns/net")
            .map_err(|error| DataPlaneError::kernel("finding the network namespace", error))?;
        attach_persistent(program, ifindex)?;
        Ok(Self { ifindex, namespace })
    }
}

impl Drop for SealingFilter {
    fn drop(&mut self) {
        let (ifindex, namespace) = (self.ifindex, self.namespace.as_raw_fd());
        let inode = |status: std::io::Result<std::fs::Metadata>| status.ok().map(|status| status.ino());
        let sealed_namespace = inode(self.namespace.metadata());
        let is_here = sealed_namespace.is_some()
            && sealed_namespace == inode(std::fs::metadata("/proc/thread-self/ns/net"));
        // In a separate thread, because the dropping thread may be in another namespace.
        let thread = std::thread::spawn(move || {
            // A thread that is already in the namespace needs no privilege to enter it.
            // SAFETY: the descriptor is open until this thread is joined.
            if is_here || unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } == 0 {
                remove(ifindex);
            }
        });
        thread.join().ok();
    }
}

/// Attaches the program to an interface's egress, in place of an earlier gateway's filter.
pub(super) fn attach_persistent(program: &ProgramMut<'_>, ifindex: u32) -> Result<(), DataPlaneError> {
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

/// Removes the filter, if there is one.
pub(super) fn remove(ifindex: u32) {
    // Any descriptor works, because the filter is identified by its handle.
    let Ok(dev_null) = File::open("/dev/null") else {
        return;
    };
    if let Err(error) = hook(dev_null.as_fd(), ifindex).detach() {
        tracing::debug!(%error, interface = ifindex, "xdp: no sealing filter to remove");
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

/// Size of `struct __sk_buff` for a test run, and the offset of `ifindex` in it.
const CONTEXT_BYTES: usize = 192;
const CONTEXT_IFINDEX: usize = 40;

pub(super) fn test_run(
    program: &ProgramMut<'_>,
    frame: &[u8],
    ifindex: u32,
) -> Result<TestRun, DataPlaneError> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut context = vec![0u8; CONTEXT_BYTES];
    if let Some(field) = context.get_mut(CONTEXT_IFINDEX..CONTEXT_IFINDEX + 4) {
        field.copy_from_slice(&ifindex.to_ne_bytes());
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
