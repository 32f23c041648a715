//! Options of the host data plane.

/// Options of the host data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Number of threads per gateway address; at least 1.
    pub threads: usize,
    /// CPUs to which the threads are pinned, round-robin. Empty: the scheduler decides.
    pub cpus: Vec<usize>,
    /// SO_BUSY_POLL, microseconds. Needs CAP_NET_ADMIN and a driver that supports polling.
    pub busy_poll_us: Option<u32>,
    /// Receive buffer of each socket, bytes. Needs CAP_NET_ADMIN above net.core.rmem_max.
    pub receive_buffer_bytes: usize,
}

impl Default for HostOptions {
    /// One thread per CPU, buffers of 4 MiB.
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            cpus: Vec::new(),
            busy_poll_us: None,
            receive_buffer_bytes: 4 << 20,
        }
    }
}
