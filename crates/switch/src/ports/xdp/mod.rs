//! Port on a network interface through `AF_XDP`: frames bypass the system's network stack, with zero copy if the driver
//! supports it. The switch owns the interface: the network stack does not see received frames.
//!
//! XDP provides no information on offloads: if the peer of a virtual link is a network stack, a frame may have a partial
//! checksum without any flag. On interfaces of such drivers the port detects and completes partial checksums
//! (`unfinished.rs`). The kernel disables segmentation offloads while an XDP program is attached. VLAN tags stay in the
//! frame, with two exceptions: a network card may remove the tags (disable with
//! `ethtool -K INTERFACE rx-vlan-offload off`), and a VLAN device at the peer of a veth may not insert the tags (disable
//! with `ethtool -K PEER tx-vlan-offload off`).
//!
//! The port serves one receive queue. An interface with several receive queues is rejected.

mod program;
mod ring;
#[forbid(unsafe_code)]
mod unfinished;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::send_backoff::SendBackoff;
use super::{Port, PortError, Readiness, Receive, RxCounters, Transmit, TxCounters, sys};
use ring::{Ring, Umem};

/// Headroom before a received frame (`XDP_PACKET_HEADROOM`), bytes.
const HEADROOM_BYTES: usize = 256;
/// Ethernet header and two VLAN tags.
const LINK_BYTES_MAX: usize = 14 + 2 * 4;
const FRAME_BYTES_MIN: usize = 14;
/// Maximum size of a chunk, which holds headroom and frame and must be within one page, bytes.
const CHUNK_BYTES_MAX: usize = 4096;
const MTU_MAX: usize = CHUNK_BYTES_MAX - HEADROOM_BYTES - LINK_BYTES_MAX;
const TX_FRAMES: u32 = 1024;
/// Maximum number of frames in a batch.
const BATCH_FRAMES: u32 = 64;

/// Options of an `AF_XDP` port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpOptions {
    /// Size of the receive ring, frames; rounded up to a power of two. A frame needs 2 KiB at an MTU of 1,500.
    pub ring_frames: u32,
    /// Whether to reject an interface whose driver does not support zero copy.
    pub only_zero_copy: bool,
}

impl Default for XdpOptions {
    fn default() -> Self {
        Self {
            ring_frames: 8192,
            only_zero_copy: false,
        }
    }
}

/// Opens an interface in the calling thread's network namespace; other threads can use the port. The XDP program is
/// attached while the receiving half exists.
///
/// # Errors
/// The interface does not exist, is not an Ethernet interface, has several receive queues, an MTU above 3,818 or an XDP
/// program, or a system call failed; the error names the step.
pub fn open(interface: &str, options: &XdpOptions) -> Result<Port, PortError> {
    let index = sys::interface_index(interface).map_err(|source| PortError::NoInterface {
        interface: interface.to_owned(),
        source,
    })?;
    let fail = |(step, source)| PortError::Kernel {
        interface: interface.to_owned(),
        step,
        source,
    };
    let fd = sys::socket(libc::AF_XDP, libc::SOCK_RAW).map_err(|error| fail(("socket", error)))?;
    let ioctl_socket =
        sys::socket(libc::AF_INET, libc::SOCK_DGRAM).map_err(|error| fail(("socket", error)))?;
    super::require_ethernet(&ioctl_socket, interface)?;
    let queues =
        sys::receive_queues(&ioctl_socket, interface).map_err(|error| fail(("ETHTOOL_GCHANNELS", error)))?;
    if queues > 1 {
        return Err(PortError::Queues {
            interface: interface.to_owned(),
            queues,
        });
    }
    let mtu = sys::mtu(&ioctl_socket, interface).map_err(|error| fail(("SIOCGIFMTU", error)))?;
    if mtu > MTU_MAX {
        return Err(PortError::Mtu {
            interface: interface.to_owned(),
            mtu,
            max: MTU_MAX,
        });
    }
    let driver = sys::driver(&ioctl_socket, interface).map_err(|error| fail(("ETHTOOL_GDRVINFO", error)))?;
    let info = InterfaceInfo {
        interface,
        index,
        mtu,
        is_software: unfinished::is_software(&driver),
    };
    prepare((fd, ioctl_socket), info, options).map_err(fail)
}

/// Interface properties.
struct InterfaceInfo<'a> {
    interface: &'a str,
    index: u32,
    mtu: usize,
    /// Whether the peer may be a network stack.
    is_software: bool,
}

fn prepare(
    (fd, ioctl_socket): (OwnedFd, OwnedFd),
    info: InterfaceInfo<'_>,
    options: &XdpOptions,
) -> Result<Port, (&'static str, io::Error)> {
    let rx_frames = options.ring_frames.clamp(64, 1 << 20).next_power_of_two();
    let chunk_bytes = (info.mtu + LINK_BYTES_MAX + HEADROOM_BYTES)
        .next_power_of_two()
        .max(2048);
    // The first chunks are for reception, the remaining chunks for transmission, so the halves share no mutable state.
    let umem = Umem::new((rx_frames + TX_FRAMES) as usize, chunk_bytes).map_err(|error| ("mmap", error))?;
    let chunk = |number: u32| u64::from(number) * chunk_bytes as u64;
    let set_ring_size = |step, option, value| {
        sys::set_option(&fd, libc::SOL_XDP, option, value).map_err(|error| (step, error))
    };
    sys::set_option(&fd, libc::SOL_XDP, libc::XDP_UMEM_REG, umem.registration())
        .map_err(|error| ("XDP_UMEM_REG", error))?;
    set_ring_size("XDP_UMEM_FILL_RING", libc::XDP_UMEM_FILL_RING, rx_frames)?;
    set_ring_size(
        "XDP_UMEM_COMPLETION_RING",
        libc::XDP_UMEM_COMPLETION_RING,
        TX_FRAMES,
    )?;
    set_ring_size("XDP_RX_RING", libc::XDP_RX_RING, rx_frames)?;
    set_ring_size("XDP_TX_RING", libc::XDP_TX_RING, TX_FRAMES)?;
    let offsets: libc::xdp_mmap_offsets = sys::get_option(&fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
        .map_err(|error| ("XDP_MMAP_OFFSETS", error))?;
    let map_error = |error| ("mmap", error);
    let fill_offset = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
    let completion_offset = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
    let mut fill = Ring::map(&fd, rx_frames, offsets.fr, fill_offset).map_err(map_error)?;
    let completion = Ring::map(&fd, TX_FRAMES, offsets.cr, completion_offset).map_err(map_error)?;
    let rx = Ring::map(&fd, rx_frames, offsets.rx, libc::XDP_PGOFF_RX_RING).map_err(map_error)?;
    let tx = Ring::map(&fd, TX_FRAMES, offsets.tx, libc::XDP_PGOFF_TX_RING).map_err(map_error)?;
    for number in 0..rx_frames {
        fill.push(chunk(number));
    }
    fill.publish();
    let zero_copy = if options.only_zero_copy {
        libc::XDP_ZEROCOPY
    } else {
        0
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // By default the kernel copies only if the driver does not support zero copy.
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | zero_copy,
        sxdp_ifindex: info.index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    bind(&fd, &address).map_err(|error| ("bind", error))?;
    let xdp_options: libc::xdp_options =
        sys::get_option(&fd, libc::SOL_XDP, libc::XDP_OPTIONS).map_err(|error| ("XDP_OPTIONS", error))?;
    let program_link = program::attach(info.index, &fd)?;
    let shared = Arc::new(SharedSocket {
        fd,
        ioctl_socket,
        umem,
        interface: info.interface.to_owned(),
        index: info.index,
        copy_mode: xdp_options.flags & libc::XDP_OPTIONS_ZEROCOPY == 0,
    });
    Ok(Port {
        receiver: Box::new(XdpReceiver {
            rx,
            fill,
            shared: shared.clone(),
            completes_checksums: info.is_software,
            _program_link: program_link,
            counters: RxCounters::default(),
        }),
        sender: Box::new(XdpSender {
            tx,
            completion,
            free_chunks: (rx_frames..rx_frames + TX_FRAMES).map(chunk).collect(),
            frame_bytes: info.mtu + LINK_BYTES_MAX,
            shared,
            counters: TxCounters::default(),
            send_backoff: SendBackoff::default(),
            down: false,
        }),
    })
}

/// Binds the socket. The kernel releases the queue of a closed socket asynchronously and without notification, so a
/// restarted switch may find the queue busy and must retry.
fn bind(fd: &OwnedFd, address: &libc::sockaddr_xdp) -> io::Result<()> {
    const BUSY_MAX: Duration = Duration::from_millis(500);
    const PAUSE: Duration = Duration::from_millis(1);
    let start = Instant::now();
    loop {
        match sys::bind_xdp(fd, address) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < BUSY_MAX => {
                sys::poll(&mut [], Some(PAUSE))?;
            }
            result => return result,
        }
    }
}

/// State of both halves.
#[derive(Debug)]
struct SharedSocket {
    fd: OwnedFd,
    /// Socket in the interface's namespace for ioctls, which an XDP socket does not support.
    ioctl_socket: OwnedFd,
    umem: Umem,
    interface: String,
    index: u32,
    /// Whether the driver is in copy mode: the kernel sends only during system calls of the switch.
    copy_mode: bool,
}

#[derive(Debug)]
struct XdpReceiver {
    rx: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    shared: Arc<SharedSocket>,
    /// Whether checksums may be partial.
    completes_checksums: bool,
    _program_link: OwnedFd,
    counters: RxCounters,
}

impl Receive for XdpReceiver {
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let umem = &self.shared.umem;
        let chunk_mask = !(umem.chunk_bytes as u64 - 1);
        let mut frames = 0;
        while frames < limit
            && let Some(descriptor) = self.rx.pop()
        {
            let (completes, counters) = (self.completes_checksums, &mut self.counters);
            let hand_over = |frame: &mut [u8]| {
                if completes && unfinished::complete(frame) {
                    counters.checksums_completed += 1;
                }
                counters.frames += 1;
                counters.bytes += frame.len() as u64;
                take(frame);
            };
            // SAFETY: the chunk is from the receive ring and is returned below; the sender uses other chunks.
            unsafe { umem.with_frame(&descriptor, hand_over) };
            self.fill.push(descriptor.addr & chunk_mask);
            frames += 1;
        }
        if frames > 0 {
            self.rx.release();
            self.fill.publish();
        } else if self.fill.needs_wakeup() {
            // A driver without free chunks checks for new chunks when the socket is polled.
            let result = sys::poll(
                &mut [sys::poll_interest(self.shared.fd.as_fd(), libc::POLLIN)],
                Some(Duration::ZERO),
            );
            result.map_err(|source| self.shared.kernel("poll", source))?;
        }
        Ok(frames)
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Fd(self.shared.fd.as_fd())
    }

    fn check(&mut self) -> Result<(), PortError> {
        self.shared.check()
    }

    fn counters(&mut self) -> RxCounters {
        let result =
            sys::get_option::<libc::xdp_statistics>(&self.shared.fd, libc::SOL_XDP, libc::XDP_STATISTICS);
        if let Ok(statistics) = result {
            self.counters.dropped_full = statistics.rx_dropped + statistics.rx_ring_full;
        }
        self.counters
    }
}

impl SharedSocket {
    /// Checks that the interface still exists.
    fn check(&self) -> Result<(), PortError> {
        match sys::interface_exists(&self.ioctl_socket, self.index) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PortError::NoInterface {
                interface: self.interface.clone(),
                source: io::Error::from_raw_os_error(libc::ENODEV),
            }),
            Err(source) => Err(self.kernel("SIOCGIFNAME", source)),
        }
    }

    fn kernel(&self, step: &'static str, source: io::Error) -> PortError {
        PortError::Kernel {
            interface: self.interface.clone(),
            step,
            source,
        }
    }
}

#[derive(Debug)]
struct XdpSender {
    tx: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    /// Addresses of the free chunks.
    free_chunks: Vec<u64>,
    frame_bytes: usize,
    shared: Arc<SharedSocket>,
    counters: TxCounters,
    send_backoff: SendBackoff,
    /// Whether the interface was down at the last attempt.
    down: bool,
}

impl XdpSender {
    /// Reclaims sent chunks and counts accepted frames. True if there was progress.
    fn reclaim(&mut self) -> bool {
        let counters = &mut self.counters;
        let accepted = self.tx.reclaim(|descriptor| {
            counters.frames += 1;
            counters.bytes += u64::from(descriptor.len);
        });
        let free_before = self.free_chunks.len();
        while let Some(address) = self.completion.pop() {
            self.free_chunks.push(address);
        }
        self.completion.release();
        let progress = accepted > 0 || self.free_chunks.len() > free_before;
        self.down &= !progress;
        progress
    }

    /// Makes the kernel send the frames in the ring. False if the kernel accepts no frame now.
    fn kick(&mut self) -> Result<bool, PortError> {
        if self.shared.copy_mode || self.tx.needs_wakeup() {
            match sys::kick(&self.shared.fd) {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                    Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                        self.down = true;
                        return Ok(false);
                    }
                    _ => return Err(self.shared.kernel("send", error)),
                },
            }
        }
        Ok(self.reclaim())
    }

    fn pause(&mut self) -> bool {
        self.counters.queue_full_retries += 1;
        !self.down && self.send_backoff.pause()
    }
}

impl Transmit for XdpSender {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        let length = headers.len() + payload.len();
        if length < FRAME_BYTES_MIN {
            self.counters.dropped_short += 1;
            return Ok(());
        }
        if length > self.frame_bytes {
            self.counters.dropped_long += 1;
            return Ok(());
        }
        let address = loop {
            if let Some(address) = self.free_chunks.pop() {
                break address;
            }
            self.tx.publish();
            if !self.kick()? && !self.pause() {
                let drop_counter = if self.down {
                    &mut self.counters.dropped_down
                } else {
                    &mut self.counters.dropped_full
                };
                *drop_counter += 1;
                return Ok(());
            }
        };
        // SAFETY: the chunk is from the list of free chunks.
        let is_written = unsafe { self.shared.umem.write(address, headers, payload) };
        let descriptor = libc::xdp_desc {
            addr: address,
            len: length as u32,
            options: 0,
        };
        // The ring has an entry for each chunk, so the push succeeds.
        if !is_written || !self.tx.push(descriptor) {
            self.free_chunks.push(address);
            self.counters.dropped_full += 1;
        } else if self.tx.unconsumed().is_multiple_of(BATCH_FRAMES) {
            self.flush()?;
        }
        Ok(())
    }

    /// Frames that the kernel does not accept in time stay in the ring and are sent later. Frames that find no space in the
    /// ring are dropped and counted.
    fn flush(&mut self) -> Result<(), PortError> {
        self.tx.publish();
        loop {
            let progress = self.kick()?;
            let is_done = self.tx.unconsumed() == 0 || !self.shared.copy_mode;
            if is_done || (!progress && !self.pause()) {
                self.send_backoff.reset();
                return Ok(());
            }
        }
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
