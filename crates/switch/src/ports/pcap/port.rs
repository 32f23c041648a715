//! Capture files as ports.
//!
//! Packets of several files are replayed in the order of their timestamps: a port returns a packet only if no other
//! port has an earlier packet. The input may be a pipe. A pipe without data does not block other inputs. After a port
//! has read its next packet, the port also reads from all other inputs, so packets that one process writes to several
//! pipes are replayed in the order of writing.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::super::{
    Port, PortError, PortId, PortSpec, Readiness, Receive, RxCounters, Transmit, TxCounters, sys,
};
use super::PcapError;
use super::file::{CaptureReader, CaptureWriter, Packet, ReadResult};

/// Opens the files `NAME_in.pcap` and `NAME_out.pcap` in `directory` for all ports. Reading starts at `start`. Writers
/// of pipes may connect later, in any order.
///
/// # Errors
/// A file cannot be opened or created. Malformed files are detected during reading.
pub fn open(directory: &Path, specs: &[PortSpec], start: Instant) -> Result<Vec<(PortId, Port)>, PortError> {
    let path = |spec: &PortSpec, suffix: &str| directory.join(format!("{}{suffix}", spec.interface));
    let inputs = specs
        .iter()
        .map(|spec| Input::open(path(spec, "_in.pcap")))
        .collect::<Result<_, _>>()?;
    let replay = Arc::new(Mutex::new(Replay { inputs }));
    specs
        .iter()
        .enumerate()
        .map(|(input_index, spec)| {
            let receiver = PcapReceiver {
                file: lock(&replay).clone_file(input_index)?,
                replay: replay.clone(),
                input_index,
                start,
                counters: RxCounters::default(),
            };
            let port = Port {
                receiver: Box::new(receiver),
                sender: Box::new(PcapSender::create(&path(spec, "_out.pcap"))?),
            };
            Ok((spec.port, port))
        })
        .collect()
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> PcapError {
    move |source| PcapError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

/// Input file.
#[derive(Debug)]
struct Input {
    reader: CaptureReader<File>,
    path: PathBuf,
    is_pipe: bool,
    next: Option<Packet>,
    error: Option<PcapError>,
    ended: bool,
}

impl Input {
    fn open(path: PathBuf) -> Result<Self, PcapError> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .map_err(io_error(&path, "open"))?;
        let kind = file.metadata().map_err(io_error(&path, "open"))?.file_type();
        Ok(Self {
            reader: CaptureReader::new(file, &path),
            path,
            is_pipe: kind.is_fifo(),
            next: None,
            error: None,
            ended: false,
        })
    }

    /// Reads the next packet unless a packet is already available.
    fn fill(&mut self) {
        if self.next.is_some() || self.ended {
            return;
        }
        // The writers are checked before reading, so the data of the last writer is read before the end is reported.
        let has_no_writer = !self.is_pipe || self.writers_gone();
        match self.reader.poll() {
            Ok(ReadResult::Packet(packet)) => self.next = Some(packet),
            Ok(ReadResult::End) if has_no_writer => {
                self.error = self.reader.end().err();
                self.ended = true;
            }
            Ok(ReadResult::End | ReadResult::Pending) => {}
            Err(error) => {
                self.error = Some(error);
                self.ended = true;
            }
        }
    }

    /// Whether all writers have closed the pipe.
    fn writers_gone(&self) -> bool {
        let mut poll = [sys::poll_interest(self.reader.source().as_fd(), 0)];
        sys::poll(&mut poll, Some(Duration::ZERO)).is_ok()
            && poll.iter().any(|poll| poll.revents & libc::POLLHUP != 0)
    }
}

/// Input files of all ports.
#[derive(Debug)]
struct Replay {
    inputs: Vec<Input>,
}

/// Locks the inputs, even after a panic of another thread: a panic leaves complete packets.
fn lock(replay: &Mutex<Replay>) -> MutexGuard<'_, Replay> {
    replay.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replay {
    fn clone_file(&self, input_index: usize) -> Result<Option<File>, PcapError> {
        let clone = |input: &Input| {
            let file = input.reader.source().try_clone();
            file.map_err(io_error(&input.path, "open"))
        };
        self.inputs.get(input_index).map(clone).transpose()
    }

    /// Takes the next packet of an input if it is the earliest of all inputs. At equal times the lowest input number is first,
    /// as in simple_switch.
    fn take(&mut self, input_index: usize) -> Result<Option<Packet>, PcapError> {
        let Some(input) = self.inputs.get_mut(input_index) else {
            return Ok(None);
        };
        input.fill();
        if let Some(error) = input.error.take() {
            return Err(error);
        }
        let Some(time) = input.next.as_ref().map(|packet| packet.time) else {
            return Ok(None);
        };
        for (other_index, other_input) in self.inputs.iter_mut().enumerate() {
            other_input.fill();
            let is_earlier = |packet: &Packet| (packet.time, other_index) < (time, input_index);
            if other_input.next.as_ref().is_some_and(is_earlier) {
                return Ok(None);
            }
        }
        Ok(self
            .inputs
            .get_mut(input_index)
            .and_then(|input| input.next.take()))
    }
}

#[derive(Debug)]
struct PcapReceiver {
    replay: Arc<Mutex<Replay>>,
    input_index: usize,
    /// Duplicate of the input's descriptor, for polling.
    file: Option<File>,
    start: Instant,
    counters: RxCounters,
}

impl Receive for PcapReceiver {
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        if Instant::now() < self.start {
            return Ok(0);
        }
        let mut replay = lock(&self.replay);
        for count in 0..limit {
            let Some(packet) = replay.take(self.input_index)? else {
                return Ok(count);
            };
            self.counters.frames += 1;
            self.counters.bytes += packet.frame.len() as u64;
            take(&packet.frame);
        }
        Ok(limit)
    }

    fn readiness(&self) -> Readiness<'_> {
        if Instant::now() < self.start {
            return Readiness::At(self.start);
        }
        match lock(&self.replay).inputs.get(self.input_index) {
            Some(input) if input.next.is_some() || input.error.is_some() => Readiness::Now,
            Some(input) if !input.ended && !input.is_pipe => Readiness::Now,
            Some(input) if !input.ended => self
                .file
                .as_ref()
                .map_or(Readiness::Never, |file| Readiness::Fd(file.as_fd())),
            _ => Readiness::Never,
        }
    }

    fn counters(&mut self) -> RxCounters {
        self.counters
    }
}

impl Drop for PcapReceiver {
    /// Discards the pending packets of a removed port, so they do not block other ports.
    fn drop(&mut self) {
        if let Some(input) = lock(&self.replay).inputs.get_mut(self.input_index) {
            input.ended = true;
            input.next = None;
        }
    }
}

#[derive(Debug)]
struct PcapSender {
    writer: CaptureWriter<File>,
    counters: TxCounters,
}

impl PcapSender {
    fn create(path: &Path) -> Result<Self, PcapError> {
        let file = File::create(path).map_err(io_error(path, "create"))?;
        Ok(Self {
            writer: CaptureWriter::new(file, path)?,
            counters: TxCounters::default(),
        })
    }
}

impl Transmit for PcapSender {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.writer.write(now, headers, payload)?;
        self.counters.frames += 1;
        self.counters.bytes += (headers.len() + payload.len()) as u64;
        Ok(())
    }

    /// Each packet is written immediately so that a test driver can read the file concurrently.
    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
