//! Unnamed network namespaces, which end with the test, and a forwarder between two ports in one of them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use linewarden_harness::skip;
use linewarden_switch::ports::{Port, PortCounters, PortId, PortSet, Waker};

/// Network namespace. It exists until this value and all sockets and threads in the namespace are dropped.
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Creates a namespace. Skips the test if this process lacks the permission.
    pub fn new() -> Self {
        let creator = thread::spawn(|| {
            // SAFETY: takes no pointer, and concerns this short-lived thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        match creator.join().unwrap() {
            Ok(file) => {
                let namespace = Self { file };
                namespace.shell("ip link set lo up");
                namespace
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                skip!("network namespaces need root: {error}");
            }
            Err(error) => panic!("no network namespace: {error}"),
        }
    }

    /// Runs a closure in the namespace. Sockets that the closure opens stay in the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace.
    pub fn enter(&self) {
        // SAFETY: the descriptor is open, and only the calling thread moves.
        let result = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "setns: {}", io::Error::last_os_error());
    }

    /// Runs commands in the namespace.
    pub fn shell(&self, commands: &str) -> String {
        self.run(|| {
            let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{commands}: {errors}");
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// Path of the namespace, for commands.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// Creates a veth link between two namespaces and brings both ends up, without traffic from the kernel.
pub fn link(first: (&Namespace, &str), second: (&Namespace, &str)) {
    first.0.shell(&format!(
        "ip link add name {} type veth peer name {} netns {}",
        first.1,
        second.1,
        second.0.path()
    ));
    for (namespace, interface) in [first, second] {
        namespace.shell(&format!(
            "sysctl -qw net.ipv6.conf.{interface}.accept_dad=0 net.ipv6.conf.{interface}.router_solicitations=0 \
             net.ipv6.conf.{interface}.mldv2_unsolicited_report_interval=0
             ip link set dev {interface} up"
        ));
    }
}

pub fn id(number: u16) -> PortId {
    PortId::new(number).unwrap()
}

/// Forwards between ports 0 and 1 until dropped.
pub struct Forwarder {
    thread: Option<thread::JoinHandle<PortSet>>,
    stop: std::sync::Arc<AtomicBool>,
    waker: Waker,
}

impl Forwarder {
    /// `inspect` receives each frame with its ingress port.
    pub fn start(ports: [Port; 2], mut inspect: impl FnMut(PortId, &[u8]) + Send + 'static) -> Self {
        let mut set = PortSet::new().unwrap();
        for (number, port) in (0..).zip(ports) {
            set.add(id(number), port).unwrap();
        }
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let (waker, is_stopped) = (set.waker(), stop.clone());
        let thread = thread::spawn(move || {
            while !is_stopped.load(Ordering::Relaxed) {
                set.serve(Some(Duration::from_secs(1)), |port, frame, senders| {
                    inspect(port, frame);
                    let (headers, payload) = frame.split_at(frame.len() / 3);
                    senders.send(id(1 - port.get()), headers, payload);
                })
                .unwrap();
            }
            set
        });
        Self {
            thread: Some(thread),
            stop,
            waker,
        }
    }

    /// Stops the forwarder and returns the counters of both ports.
    pub fn stop(mut self) -> [PortCounters; 2] {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        let mut set = self.thread.take().unwrap().join().unwrap();
        [0, 1].map(|number| set.counters(id(number)).unwrap())
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}
