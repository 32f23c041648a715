//! `classic-iot` and `classic-uav` on UDP sockets, with the sockets and batches of the data plane `host`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::verdict::{Disposition, Verdict};

use super::{Classic, ClassicVerifier, rng_state};
use crate::counters::Counters;
use crate::error::DataPlaneError;
use crate::host::batch::Batch;
use crate::host::socket::Socket;
use crate::host::stats::Stats;
use crate::host::worker::is_temporary;
use crate::host::{HostOptions, pin};

/// Threads that serve a profile. They stop when this value is dropped.
#[derive(Debug)]
pub struct ClassicHost {
    threads: Vec<RunningThread>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct RunningThread {
    socket: Arc<Socket>,
    stats: Arc<Stats>,
    /// Taken when the thread is joined.
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl ClassicHost {
    /// Opens the sockets in the calling thread's network namespace, and starts the threads, whose names are `lw-host-`
    /// and a number.
    ///
    /// # Errors
    /// The settings are invalid, or an operation of the kernel failed.
    pub fn start(local: &[IpAddr], classic: &Classic, options: &HostOptions) -> Result<Self, DataPlaneError> {
        let verifier = Arc::new(ClassicVerifier::new(classic)?);
        let mut host = Self {
            threads: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
        };
        let socket_error = |error| DataPlaneError::kernel("opening a socket", error);
        for ip in local {
            let address = SocketAddr::new(*ip, classic.port);
            Socket::check_unused(address).map_err(socket_error)?;
            for _ in 0..options.threads.max(1) {
                let number = host.threads.len();
                let socket = Arc::new(Socket::open(address, options).map_err(socket_error)?);
                let stats = Arc::new(Stats::new());
                let worker = Worker {
                    verifier: Arc::clone(&verifier),
                    rng: SplitMix64::from_state(rng_state(classic.seed, number as u64)),
                    socket: Arc::clone(&socket),
                    stats: Arc::clone(&stats),
                    stop: Arc::clone(&host.stop),
                };
                let cpu = options.cpus.get(number % options.cpus.len().max(1)).copied();
                let thread = std::thread::Builder::new()
                    .name(format!("lw-host-{number}"))
                    .spawn(move || {
                        if let Some(cpu) = cpu {
                            pin(cpu);
                        }
                        worker.run()
                    })
                    .map_err(|error| DataPlaneError::kernel("starting a thread", error))?;
                host.threads.push(RunningThread {
                    socket,
                    stats,
                    thread: Some(thread),
                });
            }
        }
        Ok(host)
    }

    /// Verdicts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        let threads = self.threads.iter();
        threads.for_each(|running| sum.merge(&running.stats.counters()));
        sum
    }
}

impl Drop for ClassicHost {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        for running in &self.threads {
            running.socket.shut_down();
        }
        for thread in self
            .threads
            .iter_mut()
            .filter_map(|running| running.thread.take())
        {
            if !matches!(thread.join(), Ok(Ok(()))) {
                tracing::error!("classic profile: a thread of the UDP sockets failed");
            }
        }
    }
}

/// The data of one thread.
struct Worker {
    verifier: Arc<ClassicVerifier>,
    rng: SplitMix64,
    socket: Arc<Socket>,
    stats: Arc<Stats>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self) -> io::Result<()> {
        let mut batch = Batch::new();
        loop {
            let result = batch.receive(self.socket.raw_fd());
            if self.stop.load(Acquire) {
                return Ok(());
            }
            match result {
                Ok(count) => self.handle(&mut batch, count),
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn handle(&mut self, batch: &mut Batch, count: usize) {
        for index in 0..count {
            let Some(datagram) = batch.datagram(index) else {
                continue;
            };
            let length = datagram.payload.len();
            let verdict = match datagram.is_unicast {
                true => self.verifier.handle(&mut self.rng, datagram.payload),
                false => Verdict::PassForeign,
            };
            self.stats.count(verdict);
            if verdict.disposition() == Disposition::Reply {
                batch.reply(index, length, self.socket.is_wildcard());
            }
        }
        batch.send(self.socket.raw_fd());
    }
}
