//! Threaded NAPI: the receive work of an interface on its own kernel thread.
//!
//! Without threaded NAPI the packets of a veth pair are processed in the context of the sender, so the verifier's CPU
//! time cannot be measured. With threaded NAPI each receive queue has a kernel thread `napi/IFACE-ID`, which can be pinned
//! to a CPU and whose run time the scheduler accounts.

use std::ffi::CStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use crate::netns::{NetNs, NetNsError};

/// Why NAPI threads could not be set up or read.
#[derive(Debug, thiserror::Error)]
pub enum NapiError {
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The kernel refused one step.
    #[error("threaded NAPI of interface {interface}: {step} failed: {source}")]
    Kernel {
        /// The interface.
        interface: String,
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interface has no receive thread: neither GRO nor an XDP program turned its NAPI on.
    #[error("interface {0} has no NAPI thread; turn on GRO or attach an XDP program first")]
    NoThread(String),
}

/// The NAPI kernel threads of one interface. The threads end with the interface.
#[derive(Debug, Clone)]
pub struct NapiThreads {
    interface: String,
    pids: Vec<libc::pid_t>,
}

impl NapiThreads {
    /// Enables threaded NAPI on the interface and finds its threads. The interface's name must be unique on the machine,
    /// because the kernel threads of all namespaces are in one list; names of [`crate::topology::Lab`] are unique.
    ///
    /// # Errors
    /// The kernel refuses a step; [`NapiError::NoThread`] while NAPI itself is off.
    pub fn enable(netns: &NetNs, interface: &str) -> Result<Self, NapiError> {
        set_threaded(netns, interface, true)?;
        let threads = Self::find(interface);
        if threads.pids.is_empty() {
            return Err(NapiError::NoThread(interface.to_owned()));
        }
        Ok(threads)
    }

    /// The interface's threads that exist now, possibly none.
    #[must_use]
    pub fn find(interface: &str) -> Self {
        let prefix = format!("napi/{interface}-");
        let mut pids: Vec<_> = numeric_entries("/proc")
            .filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(&prefix))
            })
            .collect();
        pids.sort_unstable();
        Self {
            interface: interface.to_owned(),
            pids,
        }
    }

    /// Process ids of the threads.
    #[must_use]
    pub fn pids(&self) -> &[libc::pid_t] {
        &self.pids
    }

    /// Pins the threads: thread *i* to `processors[i % processors.len()]`.
    ///
    /// # Errors
    /// A CPU does not exist, or a thread has ended.
    pub fn pin(&self, processors: &[usize]) -> Result<(), NapiError> {
        for (pid, processor) in self.pids.iter().zip(processors.iter().cycle()) {
            pin_task(*pid, *processor).map_err(|source| self.kernel("sched_setaffinity", source))?;
        }
        Ok(())
    }

    /// Gives the threads real-time priority on their CPUs (`SCHED_FIFO`). Receive work without threaded NAPI has a comparable
    /// priority.
    ///
    /// # Errors
    /// A capability is missing, or a thread has ended.
    pub fn set_fifo_priority(&self) -> Result<(), NapiError> {
        for pid in &self.pids {
            set_fifo_priority(*pid).map_err(|source| self.kernel("sched_setscheduler", source))?;
        }
        Ok(())
    }

    /// CPU time of all threads since they were created.
    ///
    /// # Errors
    /// A thread has ended.
    pub fn cpu_time(&self) -> Result<Duration, NapiError> {
        self.pids.iter().try_fold(Duration::ZERO, |sum, pid| {
            let thread_time = task_cpu_time(*pid).map_err(|source| self.kernel("read schedstat", source))?;
            Ok(sum + thread_time)
        })
    }

    fn kernel(&self, step: &'static str, source: io::Error) -> NapiError {
        NapiError::Kernel {
            interface: self.interface.clone(),
            step,
            source,
        }
    }
}

/// Pins a task (a thread id; 0 is the calling thread) to one CPU.
///
/// # Errors
/// The CPU does not exist or is not allowed, or there is no such task.
pub fn pin_task(pid: libc::pid_t, processor: usize) -> io::Result<()> {
    // SAFETY: a `cpu_set_t` is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such CPU"));
    }
    // SAFETY: `processor` is below the number of bits of the set, as checked above.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set lives through the call and its size is given.
    let result = unsafe { libc::sched_setaffinity(pid, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives a task (a thread id; 0 is the calling thread) real-time priority (`SCHED_FIFO`).
///
/// # Errors
/// A capability is missing, or there is no such task.
pub fn set_fifo_priority(pid: libc::pid_t) -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure lives through the call, which only reads it.
    match unsafe { libc::sched_setscheduler(pid, libc::SCHED_FIFO, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPU time of one task (thread id), from the first field of `/proc/PID/schedstat`, nanoseconds.
///
/// # Errors
/// There is no such task, or the kernel has no such statistics.
pub fn task_cpu_time(pid: libc::pid_t) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    text.split_whitespace()
        .next()
        .and_then(|field| field.parse().ok())
        .map(Duration::from_nanos)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat is not a list of numbers"))
}

/// Whether a task (a thread id) runs or is ready to run.
///
/// # Errors
/// There is no such task.
pub fn is_running(pid: libc::pid_t) -> io::Result<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain any character; it ends at the last parenthesis.
    let (_, rest) = text.rsplit_once(')').unwrap_or_default();
    Ok(rest.trim_start().starts_with('R'))
}

fn set_threaded(netns: &NetNs, interface: &str, enabled: bool) -> Result<(), NapiError> {
    let step_error = |step| {
        move |source| NapiError::Kernel {
            interface: interface.to_owned(),
            step,
            source,
        }
    };
    netns.run(|| {
        let sysfs = mount_sysfs().map_err(step_error("mount of the namespace's sysfs"))?;
        let path = format!("class/net/{interface}/threaded\0");
        let mut file = open_beneath(&sysfs, &path).map_err(step_error("open of `threaded` in sysfs"))?;
        let value: &[u8] = if enabled { b"1" } else { b"0" };
        file.write_all(value)
            .map_err(step_error("write to `threaded` in sysfs"))
    })?
}

/// A detached sysfs mount of the calling thread's network namespace; it is removed when its descriptor is closed. (The
/// sysfs under
/// `/sys` shows the interfaces of the namespace that mounted it.)
fn mount_sysfs() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    let sysfs: &CStr = c"sysfs";
    // SAFETY: fsopen(2) takes a terminated string and flags.
    let context = owned_fd(unsafe { libc::syscall(libc::SYS_fsopen, sysfs.as_ptr(), FSOPEN_CLOEXEC) })?;
    // SAFETY: FSCONFIG_CMD_CREATE takes neither key nor value; the descriptor is open.
    let created = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            std::ptr::null::<libc::c_char>(),
            std::ptr::null::<libc::c_void>(),
            0,
        )
    };
    if created != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fsmount(2) takes an open descriptor and two flag words.
    owned_fd(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

/// Opens a file for writing below a directory; `path` ends with a zero byte.
fn open_beneath(directory: &OwnedFd, path: &str) -> io::Result<fs::File> {
    let path = CStr::from_bytes_with_nul(path.as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    // SAFETY: the directory's descriptor is open and the path terminated.
    let fd = unsafe {
        libc::openat(
            directory.as_raw_fd(),
            path.as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        )
    };
    owned_fd(fd.into()).map(fs::File::from)
}

fn owned_fd(fd: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(fd) {
        // SAFETY: a new descriptor without another owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The entries of a directory whose names are numbers.
fn numeric_entries(directory: &str) -> impl Iterator<Item = libc::pid_t> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
