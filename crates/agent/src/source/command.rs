//! A PUF that an external command reads: real hardware.
//!
//! The program is run once per readout, without a shell, in an environment with PATH only. It receives one line on
//! standard input,
//!
//! ```text
//! CHALLENGE BITS
//! ```
//!
//! where CHALLENGE is the row's seed as 16 hexadecimal digits (pool mode) or `-` for the power-up state of the first
//! BITS cells (key mode), and BITS is the number of response bits, decimal. The program prints ⌈BITS/8⌉ bytes as
//! hexadecimal digits, the first bit in the least significant bit of the first byte; white space is ignored. Exit
//! status 0 means success; any other status is a failure, and the last line of standard error is the reason. A program
//! that exceeds its timeout is killed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use linewarden_puf::bits::Bits;
use linewarden_puf::readout::DUMP_BYTES_MAX;
use linewarden_puf::{Challenge, Puf, PufError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Maximum timeout of a readout.
const READOUT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of bytes of standard error that are kept; further bytes are read and discarded.
const MESSAGE_BYTES_MAX: usize = 4096;

/// An external command as a PUF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandPuf {
    /// Path of the program; a name without a slash is searched in `PATH`.
    #[schemars(extend("format" = "program"), example = "/usr/local/bin/read-puf")]
    pub program: PathBuf,
    /// Arguments of the program.
    #[serde(default)]
    #[schemars(extend("examples" = [["--bus", "1"]]))]
    pub arguments: Vec<String>,
    /// Timeout of one readout, milliseconds; at most an hour.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

fn default_timeout_ms() -> u64 {
    5000
}

fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"))
}

impl Puf for CommandPuf {
    fn read(&mut self, challenge: Challenge, bits: usize) -> Result<Bits, PufError> {
        // The number of bits is limited, as for dumps, because the buffer for the output is allocated in advance.
        let available = DUMP_BYTES_MAX * 8;
        if bits > available {
            return Err(PufError::TooFewBits {
                requested: bits,
                available,
            });
        }
        let output = self
            .run(challenge, bits)
            .map_err(|problem| PufError::Source(format!("{}: {problem}", self.program.display())))?;
        let readout = Bits::from_bytes(&output);
        Ok(readout.window(0, bits).unwrap_or(readout))
    }
}

impl CommandPuf {
    /// Checks that the program exists, without running it.
    ///
    /// # Errors
    /// The program does not exist, at its path or in PATH, or is not executable.
    pub fn find(&self) -> Result<(), String> {
        let is_program = |path: &Path| {
            let metadata = path.metadata();
            metadata.is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
        };
        let (is_found, location) = match self.program.components().count() {
            1 => {
                let directories = search_path();
                let mut directories = std::env::split_paths(&directories);
                (
                    directories.any(|directory| is_program(&directory.join(&self.program))),
                    " in PATH",
                )
            }
            _ => (is_program(&self.program), ""),
        };
        let missing = || format!("{}: program not found{location}", self.program.display());
        is_found.then_some(()).ok_or_else(missing)
    }

    fn run(&self, challenge: Challenge, bits: usize) -> Result<Zeroizing<Vec<u8>>, String> {
        let expected_bytes = bits.div_ceil(8);
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .env("PATH", search_path())
            // A process group, so that its child processes can be killed too.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting the program failed: {error}"))?;
        let request = match challenge {
            Challenge::Pool(seed) => format!("{} {bits}\n", hex::encode(seed)),
            Challenge::PowerUp => format!("- {bits}\n"),
        };
        // Two digits per byte, and room for white space.
        let exchange_result = self.exchange(&mut child, &request, 4 * expected_bytes + 1024);
        if !matches!(exchange_result, Ok(Some(_))) {
            // Kills the program and its child processes, and reaps the program.
            if let Some(group) = pid(&child) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
        }
        let process_output = exchange_result
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("timeout after {} ms; program killed", self.timeout_ms))?;
        if !process_output.status.success() {
            return Err(failure(process_output.status, &process_output.message));
        }
        parse(&process_output.output, expected_bytes)
    }

    /// Writes the request, reads both outputs to their ends and waits for the exit. `None` after the
    /// timeout.
    fn exchange(
        &self,
        child: &mut Child,
        request: &str,
        output_bytes_max: usize,
    ) -> io::Result<Option<ProcessOutput>> {
        // A longer timeout might exceed the range of the clock.
        let timeout = Duration::from_millis(self.timeout_ms).min(READOUT_TIMEOUT_MAX);
        let deadline = Instant::now() + timeout;
        if let Some(mut input) = child.stdin.take() {
            // The request fits into the buffer of the pipe. A write error means that the program has closed its input.
            let _ = input.write_all(request.as_bytes());
        }
        let mut output = BoundedPipe::new(child.stdout.take().map(OwnedFd::from), output_bytes_max);
        let mut message = BoundedPipe::new(child.stderr.take().map(OwnedFd::from), MESSAGE_BYTES_MAX);
        while output.pipe.is_some() || message.pipe.is_some() {
            let mut streams = [&mut output, &mut message];
            if !read_ready(&mut streams, deadline)? {
                return Ok(None);
            }
        }
        let id = pid(child).ok_or_else(|| io::Error::other("the process has no ID"))?;
        let process = pidfd_open(id, PidfdFlags::empty())?;
        if !wait(&mut [PollFd::new(&process, PollFlags::IN)], deadline)? {
            return Ok(None);
        }
        Ok(child.try_wait()?.map(|status| ProcessOutput {
            status,
            output: output.bytes,
            message: message.bytes,
        }))
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Status and outputs of a program that has exited.
struct ProcessOutput {
    status: ExitStatus,
    output: Zeroizing<Vec<u8>>,
    message: Zeroizing<Vec<u8>>,
}

/// An output of the program. Bytes beyond the limit are read and discarded. Only the first byte beyond the limit is
/// kept; it shows that the output is too long.
struct BoundedPipe {
    pipe: Option<File>,
    bytes: Zeroizing<Vec<u8>>,
    bytes_max: usize,
}

impl BoundedPipe {
    fn new(pipe: Option<OwnedFd>, bytes_max: usize) -> Self {
        Self {
            pipe: pipe.map(File::from),
            // Allocated at full size: growing would leave copies of response bits in memory.
            bytes: Zeroizing::new(Vec::with_capacity(bytes_max + 1)),
            bytes_max,
        }
    }

    fn read_chunk(&mut self) -> io::Result<()> {
        let mut chunk = Zeroizing::new([0u8; 4096]);
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        match pipe.read(chunk.as_mut_slice()) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                let free_bytes = (self.bytes_max + 1).saturating_sub(self.bytes.len());
                self.bytes
                    .extend_from_slice(chunk.get(..length.min(free_bytes)).unwrap_or_default());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Waits until an open stream is readable and reads it; false at the deadline.
fn read_ready(streams: &mut [&mut BoundedPipe; 2], deadline: Instant) -> io::Result<bool> {
    let ready: Vec<bool> = {
        let mut polled: Vec<PollFd<'_>> = streams
            .iter()
            .filter_map(|stream| stream.pipe.as_ref())
            .map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN))
            .collect();
        if !wait(&mut polled, deadline)? {
            return Ok(false);
        }
        polled.iter().map(|polled| !polled.revents().is_empty()).collect()
    };
    let open_streams = streams.iter_mut().filter(|stream| stream.pipe.is_some());
    for (stream, ready) in open_streams.zip(ready) {
        if ready {
            stream.read_chunk()?;
        }
    }
    Ok(true)
}

/// Waits until a descriptor is ready; false at the deadline.
fn wait(polled: &mut [PollFd<'_>], deadline: Instant) -> io::Result<bool> {
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(polled, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn failure(status: ExitStatus, message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    match text.lines().rfind(|line| !line.trim().is_empty()) {
        // The text may be shown in a log or on a terminal.
        Some(line) => format!("{status}: {}", line.trim().replace(char::is_control, " ")),
        None => format!("{status}, without a message on standard error"),
    }
}

fn parse(output: &[u8], expected_bytes: usize) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut digits: Zeroizing<Vec<u8>> = Zeroizing::new(Vec::with_capacity(output.len()));
    digits.extend(output.iter().filter(|byte| !byte.is_ascii_whitespace()));
    if let Some(position) = digits.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        return Err(format!(
            "invalid output: character {} is not a hexadecimal digit",
            position + 1
        ));
    }
    if digits.len() != 2 * expected_bytes {
        let or_more = if digits.len() > 2 * expected_bytes {
            "or more "
        } else {
            ""
        };
        return Err(format!(
            "invalid output: {} {or_more}hexadecimal digits, expected {}",
            digits.len(),
            2 * expected_bytes
        ));
    }
    hex::decode(&*digits)
        .map(Zeroizing::new)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> CommandPuf {
        CommandPuf {
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            timeout_ms: 20_000,
        }
    }

    fn refused(puf: &mut CommandPuf) -> String {
        puf.read(Challenge::Pool([1; 8]), 16).unwrap_err().to_string()
    }

    #[test]
    fn the_program_receives_challenge_and_bits_and_prints_the_response() {
        let mut puf = shell(r#"read c n; [ "$c $n" = "0102030405060708 12" ] && echo "a5 0f""#);
        let bits = puf.read(Challenge::Pool([1, 2, 3, 4, 5, 6, 7, 8]), 12).unwrap();
        let expected = [
            true, false, true, false, false, true, false, true, true, true, true, true,
        ];
        assert_eq!(bits, Bits::from_bools(expected));
        let mut puf = shell(r#"read c n; [ "$c $n" = "- 8" ] && echo ff"#);
        assert_eq!(puf.read(Challenge::PowerUp, 8).unwrap().count_ones(), 8);
    }

    #[test]
    fn each_failure_has_its_reason() {
        assert!(
            refused(&mut shell("echo sensor is cold >&2; exit 3")).contains("exit status: 3: sensor is cold")
        );
        assert!(refused(&mut shell("exit 1")).contains("without a message"));
        assert!(refused(&mut shell("echo a5")).contains("2 hexadecimal digits, expected 4"));
        assert!(refused(&mut shell("echo a5xx")).contains("character 3"));
        assert!(refused(&mut shell("head -c 100000 /dev/zero | tr '\\0' 0")).contains("or more"));
        let mut missing = CommandPuf {
            program: "/nonexistent/puf".into(),
            ..shell("")
        };
        assert!(refused(&mut missing).contains("starting the program failed"));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let mut puf = shell("exec sleep 1000");
        puf.timeout_ms = 50;
        assert!(refused(&mut puf).contains("timeout after 50 ms"));
        // Child processes keep the outputs open, and are killed too.
        let directory = tempfile::tempdir().unwrap();
        let alive = directory.path().join("alive");
        rustix::fs::mkfifoat(rustix::fs::CWD, &alive, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let mut puf = shell(&format!("exec 3>{}; sleep 1000 & sleep 1000", alive.display()));
        puf.timeout_ms = 500;
        // The FIFO ends when all processes have exited.
        let reader = std::thread::spawn(move || std::fs::read(alive).unwrap());
        assert!(refused(&mut puf).contains("timeout after 500 ms"));
        assert!(reader.join().unwrap().is_empty());
        // Closed outputs do not mean that the program has exited.
        let mut puf = shell("exec sleep 1000 >&- 2>&-");
        puf.timeout_ms = 50;
        assert!(refused(&mut puf).contains("timeout after 50 ms"));
    }

    #[test]
    fn the_environment_does_not_leak() {
        let mut puf = shell(r#"[ -z "$HOME$USER" ] && echo 0000"#);
        assert_eq!(puf.read(Challenge::Pool([1; 8]), 16).unwrap().count_ones(), 0);
    }
}
