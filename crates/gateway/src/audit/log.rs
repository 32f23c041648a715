//! The file: appended to by a thread of its own, so that nobody waits for a disk.

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

use super::record::{Happening, Record};
use crate::time::Clock;

/// Records on their way to the thread.
const WAITING_MAX: usize = 4096;
/// The part of the file's length that is kept for what no packet can cause: one in so many.
const RESERVED: u64 = 8;
/// What could not be written is tried again after this.
const AGAIN: Duration = Duration::from_millis(500);
/// How long the end waits for the disk.
const END_MAX: Duration = Duration::from_secs(5);

/// Where to, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file; made with mode 0600.
    pub path: PathBuf,
    /// It is not made longer than this. The last eighth is for what no packet can cause.
    pub bytes_max: u64,
}

/// How the file fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditState {
    /// Records that could not be written.
    pub lost: u64,
    /// Whether the last one could not be.
    pub failing: bool,
}

/// A gateway's audit file. Dropping it writes what waits, and takes its time: another one may be opened before.
#[derive(Debug)]
pub struct AuditLog {
    mail: Option<SyncSender<Record>>,
    shared: Arc<Shared>,
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
    /// What the operating system says; something that is no file.
    pub fn open(gateway: GatewayId, options: &AuditOptions) -> io::Result<Self> {
        let (mail, inbox) = sync_channel(WAITING_MAX);
        let (end, ended) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let mut writer = Writer {
            gateway,
            options: options.clone(),
            file: open(&options.path)?,
            unwritten: Vec::new(),
            reserved_only: false,
            told: 0,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new()
            .name("lw-audit".to_owned())
            .spawn(move || {
                writer.run(&inbox);
                drop(end);
            })?;
        Ok(Self {
            mail: Some(mail),
            shared,
            ended,
        })
    }

    /// Hands a record over; never waits.
    pub fn hand_in(&self, record: Record) {
        let sent = self
            .mail
            .as_ref()
            .is_some_and(|mail| mail.try_send(record).is_ok());
        if !sent {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// How the file fares.
    #[must_use]
    pub fn state(&self) -> AuditState {
        AuditState {
            lost: self.shared.lost.load(Relaxed),
            failing: self.shared.failing.load(Relaxed),
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.mail = None;
        // A disk that hangs does not keep the gateway from ending.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = open_regular(path, &mut options)?;
    // A line that a crash cut off stays a line of its own.
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
    /// The rest of a line of which a part is in the file.
    unwritten: Vec<u8>,
    /// Only what no packet can cause finds room.
    reserved_only: bool,
    /// Losses that the file tells of.
    told: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(&mut self, inbox: &Receiver<Record>) {
        loop {
            let record = match self.is_behind() {
                true => inbox.recv_timeout(AGAIN),
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match record {
                Ok(record) => self.take(&record),
                Err(RecvTimeoutError::Timeout) => drop(self.catch_up()),
                Err(RecvTimeoutError::Disconnected) => return drop(self.catch_up()),
            }
        }
    }

    /// Whether the file lacks something that it should tell.
    fn is_behind(&self) -> bool {
        !self.unwritten.is_empty() || self.told < self.shared.lost.load(Relaxed)
    }

    fn take(&mut self, record: &Record) {
        // Where a loss cannot be told for want of room, what has room of its own is written all the same.
        let caught_up = self.catch_up().is_ok() || (self.unwritten.is_empty() && record.what.is_rare());
        if !caught_up || self.write(record).is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Writes what is left of a line, and how many records are missing.
    fn catch_up(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.unwritten);
        let (written, result) = self.append(&rest);
        self.unwritten = rest.get(written..).unwrap_or_default().to_vec();
        result?;
        let lost = self.shared.lost.load(Relaxed);
        if lost > self.told {
            let count = lost - self.told;
            self.write(&Record {
                boot_ns: Clock::now().boot_ns,
                what: Happening::RecordsLost { count },
            })?;
            self.told = lost;
        }
        Ok(())
    }

    /// An error means that nothing of the record is in the file; one that has been begun is ended, sooner or later.
    fn write(&mut self, record: &Record) -> io::Result<()> {
        let age_ns = Clock::now().boot_ns.saturating_sub(record.boot_ns);
        let time = SystemTime::now()
            .checked_sub(Duration::from_nanos(age_ns))
            .unwrap_or(SystemTime::UNIX_EPOCH);
        let line = record.line(self.gateway, DateTime::<Utc>::from(time));
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        let is_rare = record.what.is_rare();
        let room = match is_rare {
            true => self.options.bytes_max,
            false => self.options.bytes_max - self.options.bytes_max / RESERVED,
        };
        let is_full = length.saturating_add(line.len() as u64) > room;
        if is_full || !is_rare {
            self.reserved_only = is_full;
        }
        if is_full {
            let error =
                io::Error::other("it is as long as `audit.bytes_max` allows; move it away and reload");
            self.note(Some(&error));
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

    /// Appends bytes: how many went in, and why not all.
    fn append(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut written = 0;
        while let Some(left) = bytes.get(written..).filter(|left| !left.is_empty()) {
            let error = match self.file.write(left) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.note(Some(&error));
            return (written, Err(error));
        }
        if written > 0 && !self.reserved_only {
            self.note(None);
        }
        (written, Ok(()))
    }

    /// Tells the log when it begins to fail, and when it works again.
    fn note(&self, problem: Option<&io::Error>) {
        let before = self.shared.failing.swap(problem.is_some(), Relaxed);
        let path = self.options.path.display();
        match problem {
            Some(error) if !before => {
                tracing::error!(%path, %error, "the audit file cannot be written; counting on")
            }
            None if before => tracing::info!(%path, "the audit file can be written again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use linewarden_protocol::ids::DeviceId;

    use super::*;

    fn evicted(device: u64) -> Record {
        Record {
            boot_ns: Clock::now().boot_ns,
            what: Happening::Evicted {
                device: DeviceId(device),
            },
        }
    }

    fn lines(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn records_are_appended_and_a_line_that_was_cut_off_stays_alone() {
        let directory = tempfile::tempdir().unwrap();
        let options = AuditOptions {
            path: directory.path().join("audit.jsonl"),
            bytes_max: 1 << 20,
        };
        for round in 0..2 {
            let log = AuditLog::open(GatewayId(1), &options).unwrap();
            log.hand_in(evicted(round));
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
    fn a_full_file_loses_records_and_says_so_when_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let options = AuditOptions {
            path: directory.path().join("audit.jsonl"),
            bytes_max: 300,
        };
        let log = AuditLog::open(GatewayId(1), &options).unwrap();
        (0..10).for_each(|device| log.hand_in(evicted(device)));
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while log.state().lost == 0 {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert!(log.state().failing);
        drop(log);
        assert!(options.path.metadata().unwrap().len() <= 300);
        let written = lines(&options.path).len();
        assert!(written > 0 && written < 10, "{written}");
    }

    #[test]
    fn packets_leave_room_for_what_they_cannot_cause() {
        let directory = tempfile::tempdir().unwrap();
        let options = AuditOptions {
            path: directory.path().join("audit.jsonl"),
            bytes_max: 8_000,
        };
        let log = AuditLog::open(GatewayId(1), &options).unwrap();
        (0..200).for_each(|device| log.hand_in(evicted(device)));
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while log.state().lost == 0 {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        let revoked = |device| Record {
            boot_ns: Clock::now().boot_ns,
            what: Happening::Revoked {
                device: DeviceId(device),
                shut_out: true,
            },
        };
        (0..3).for_each(|device| log.hand_in(revoked(device)));
        (0..50).for_each(|device| log.hand_in(evicted(device)));
        let (_, state) = (log.hand_in(revoked(3)), log.shared.clone());
        drop(log);
        assert!(state.failing.load(Relaxed), "others are lost still");
        let lines = lines(&options.path);
        let of = |event: &str| lines.iter().filter(|line| line.contains(event)).count();
        assert_eq!(of("\"revoked\""), 4, "{lines:#?}");
        let others: usize = lines
            .iter()
            .filter(|line| !line.contains("\"revoked\""))
            .map(|line| line.len() + 1)
            .sum();
        assert!(others <= 7_000, "{others} B");
        assert!(options.path.metadata().unwrap().len() <= 8_000);
    }

    #[test]
    fn what_is_no_file_is_refused() {
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
