//! The audit file. A thread appends to it, so a slow disk delays no other thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use linewarden_files::open_regular;
use linewarden_protocol::ids::GatewayId;

use super::record::{AuditEvent, AuditRecord};
use crate::time::Clock;

/// Maximum number of records that wait for the thread.
const QUEUE_MAX: usize = 4096;
/// 1/`RESERVED_SHARE` of the file is reserved for records that packets cannot cause.
const RESERVED_SHARE: u64 = 8;
/// Maximum interval between two attempts to write, after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout for writing the remaining records.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of the audit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file; created with mode 0600.
    pub path: PathBuf,
    /// Maximum length of the file, bytes. The last eighth is reserved for records that packets cannot cause.
    pub bytes_max: u64,
}

/// State of the audit file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditState {
    /// Number of records that could not be written.
    pub lost: u64,
    /// Whether the last write failed.
    pub is_failing: bool,
}

/// A gateway's audit file. The drop writes the remaining records, which may take seconds: open the next file before the
/// drop.
#[derive(Debug)]
pub struct AuditLog {
    sender: Option<SyncSender<AuditRecord>>,
    shared: Arc<Shared>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug, Default)]
struct Shared {
    lost: AtomicU64,
    failing: AtomicBool,
}

impl AuditLog {
    /// Opens the file, and starts its thread.
    ///
    /// # Errors
    /// Opening failed, or the path is no regular file.
    pub fn open(gateway: GatewayId, options: &AuditOptions) -> io::Result<Self> {
        let (sender, inbox) = sync_channel(QUEUE_MAX);
        let (end, ended) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let mut writer = Writer {
            gateway,
            options: options.clone(),
            file: open(&options.path)?,
            unwritten: Vec::new(),
            reserved_only: false,
            reported_losses: 0,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new()
            .name("lw-audit".to_owned())
            .spawn(move || {
                writer.run(&inbox);
                drop(end);
            })?;
        Ok(Self {
            sender: Some(sender),
            shared,
            ended,
        })
    }

    /// Queues a record without waiting.
    pub fn submit(&self, record: AuditRecord) {
        let is_sent = self
            .sender
            .as_ref()
            .is_some_and(|sender| sender.try_send(record).is_ok());
        if !is_sent {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// The state of the file.
    #[must_use]
    pub fn state(&self) -> AuditState {
        AuditState {
            lost: self.shared.lost.load(Relaxed),
            is_failing: self.shared.failing.load(Relaxed),
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.sender = None;
        // A disk that hangs must not prevent the gateway from ending.
        let _ = self.ended.recv_timeout(CLOSE_TIMEOUT);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = open_regular(path, &mut options)?;
    // A line that a crash truncated stays a line of its own.
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

struct Writer {
    gateway: GatewayId,
    options: AuditOptions,
    file: File,
    /// The rest of a line that was written in part.
    unwritten: Vec<u8>,
    /// Whether only records that packets cannot cause have room.
    reserved_only: bool,
    /// Number of lost records that the file reports.
    reported_losses: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(&mut self, inbox: &Receiver<AuditRecord>) {
        loop {
            let record = match self.has_backlog() {
                true => inbox.recv_timeout(RETRY_INTERVAL),
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match record {
                Ok(record) => self.write_or_count(&record),
                Err(RecvTimeoutError::Timeout) => drop(self.flush_backlog()),
                Err(RecvTimeoutError::Disconnected) => return drop(self.flush_backlog()),
            }
        }
    }

    /// Whether the file lacks a part of a line or a report of lost records.
    fn has_backlog(&self) -> bool {
        !self.unwritten.is_empty() || self.reported_losses < self.shared.lost.load(Relaxed)
    }

    fn write_or_count(&mut self, record: &AuditRecord) {
        // If a loss cannot be reported for lack of room, a record with reserved room is written anyway.
        let caught_up = self.flush_backlog().is_ok() || (self.unwritten.is_empty() && record.event.is_rare());
        if !caught_up || self.write(record).is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Writes the rest of a line, and a report of lost records.
    fn flush_backlog(&mut self) -> io::Result<()> {
        let remaining = std::mem::take(&mut self.unwritten);
        let (written, result) = self.append(&remaining);
        self.unwritten = remaining.get(written..).unwrap_or_default().to_vec();
        result?;
        let lost = self.shared.lost.load(Relaxed);
        if lost > self.reported_losses {
            let count = lost - self.reported_losses;
            self.write(&AuditRecord {
                boot_ns: Clock::now().boot_ns,
                event: AuditEvent::RecordsLost { count },
            })?;
            self.reported_losses = lost;
        }
        Ok(())
    }

    /// Writes a record. If the result is an error, no part of the record is in the file. If the file has only a part of
    /// the line, the result is `Ok`, and the rest of the line is written later.
    fn write(&mut self, record: &AuditRecord) -> io::Result<()> {
        let age_ns = Clock::now().boot_ns.saturating_sub(record.boot_ns);
        let time = SystemTime::now()
            .checked_sub(Duration::from_nanos(age_ns))
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let line = record.line(self.gateway, DateTime::<Utc>::from(time));
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        let is_rare = record.event.is_rare();
        let length_max = match is_rare {
            true => self.options.bytes_max,
            false => self.options.bytes_max - self.options.bytes_max / RESERVED_SHARE,
        };
        let is_full = length.saturating_add(line.len() as u64) > length_max;
        if is_full || !is_rare {
            self.reserved_only = is_full;
        }
        if is_full {
            let error = io::Error::other(
                "file has reached `audit.bytes_max`; move the file away and reload the gateway",
            );
            self.note_result(Some(&error));
            return Err(error);
        }
        match self.append(&line) {
            (0, result) => result,
            (written, _) => {
                self.unwritten = line.get(written..).unwrap_or_default().to_vec();
                Ok(())
            }
        }
    }

    /// Appends bytes; returns how many were written, and the error if not all were written.
    fn append(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut written = 0;
        while let Some(remaining) = bytes.get(written..).filter(|remaining| !remaining.is_empty()) {
            let error = match self.file.write(remaining) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.note_result(Some(&error));
            return (written, Err(error));
        }
        if written > 0 && !self.reserved_only {
            self.note_result(None);
        }
        (written, Ok(()))
    }

    /// Logs when writing starts to fail, and when it works again.
    fn note_result(&self, problem: Option<&io::Error>) {
        let was_failing = self.shared.failing.swap(problem.is_some(), Relaxed);
        let path = self.options.path.display();
        match problem {
            Some(error) if !was_failing => {
                tracing::error!(
                    %path,
                    %error,
                    action = "check the free space of the disk, and the owner and mode of the file",
                    "writing the gateway audit log failed; retrying; lost records are counted"
                )
            }
            None if was_failing => tracing::info!(%path, "gateway audit log is writable again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use linewarden_protocol::ids::DeviceId;

    use super::*;

    fn evicted(device: u64) -> AuditRecord {
        AuditRecord {
            boot_ns: Clock::now().boot_ns,
            event: AuditEvent::Evicted {
                device: DeviceId(device),
            },
        }
    }

    fn lines(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn records_are_appended_and_a_truncated_line_stays_separate() {
        let directory = tempfile::tempdir().unwrap();
        let options = AuditOptions {
            path: directory.path().join("audit.jsonl"),
            bytes_max: 1 << 20,
        };
        for round in 0..2 {
            let log = AuditLog::open(GatewayId(1), &options).unwrap();
            log.submit(evicted(round));
            drop(log);
            let mut file = OpenOptions::new().append(true).open(&options.path).unwrap();
            file.write_all(b"{\"half\":").unwrap();
        }
        let lines = lines(&options.path);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].contains("0000000000000000") && lines[2].contains("0000000000000001"));
        let mode = options.path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_full_file_keeps_its_limit_and_lost_records_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let options = AuditOptions {
            path: directory.path().join("audit.jsonl"),
            bytes_max: 300,
        };
        let log = AuditLog::open(GatewayId(1), &options).unwrap();
        (0..10).for_each(|device| log.submit(evicted(device)));
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while log.state().lost == 0 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert!(log.state().is_failing);
        drop(log);
        assert!(options.path.metadata().unwrap().len() <= 300);
        let written = lines(&options.path).len();
        assert!(written > 0 && written < 10, "{written}");
    }

    #[test]
    fn records_of_packets_leave_room_for_other_records() {
        let directory = tempfile::tempdir().unwrap();
        let options = AuditOptions {
            path: directory.path().join("audit.jsonl"),
            bytes_max: 8_000,
        };
        let log = AuditLog::open(GatewayId(1), &options).unwrap();
        (0..200).for_each(|device| log.submit(evicted(device)));
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while log.state().lost == 0 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        let blocked = |device| AuditRecord {
            boot_ns: Clock::now().boot_ns,
            event: AuditEvent::Blocked {
                device: DeviceId(device),
                was_installed: true,
            },
        };
        (0..3).for_each(|device| log.submit(blocked(device)));
        (0..50).for_each(|device| log.submit(evicted(device)));
        let (_, state) = (log.submit(blocked(3)), log.shared.clone());
        drop(log);
        assert!(state.failing.load(Relaxed), "other records are still lost");
        let lines = lines(&options.path);
        let count_of = |event: &str| lines.iter().filter(|line| line.contains(event)).count();
        assert_eq!(count_of("\"blocked\""), 4, "{lines:#?}");
        let others: usize = lines
            .iter()
            .filter(|line| !line.contains("\"blocked\""))
            .map(|line| line.len() + 1)
            .sum();
        assert!(others <= 7_000, "{others} B");
        assert!(options.path.metadata().unwrap().len() <= 8_000);
    }

    #[test]
    fn a_path_that_is_no_regular_file_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        for path in [
            directory.path().to_owned(),
            "/dev/null".into(),
            directory.path().join("none/audit"),
        ] {
            let options = AuditOptions { path, bytes_max: 1 };
            assert!(AuditLog::open(GatewayId(1), &options).is_err(), "{options:?}");
        }
    }
}
