//! Processes of the programs: commands, and services that print their state as JSON lines.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::invalid_measurement;
use crate::bench::{BenchError, io};

/// Timeout for an expected line of a service.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of output lines that no caller has read; further lines are dropped.
const QUEUED_LINES_MAX: usize = 1_024;

/// The programs and their working directory. A command line begins with the name of a program; words are separated by spaces.
pub(super) struct Programs {
    /// The directory with the executables.
    pub(super) executables: PathBuf,
    pub(super) directory: PathBuf,
}

impl Programs {
    fn command(&self, command_line: &str) -> Result<Command, BenchError> {
        let mut words = command_line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let path = self.executables.join(name);
        if !path.is_file() {
            return Err(BenchError::MissingProgram {
                name: name.to_owned(),
                directory: self.executables.clone(),
            });
        }
        let mut command = Command::new(path);
        command
            .args(words)
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a command to its end and returns its output.
    pub(super) fn run(&self, command_line: &str) -> Result<String, BenchError> {
        let output = self
            .command(command_line)?
            .output()
            .map_err(io("start a program"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(invalid_measurement(format_args!(
                "command `{command_line}` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            ))),
        }
    }

    /// Starts a service; `name` is the name of its log file.
    pub(super) fn start(&self, name: &str, command_line: &str) -> Result<Process, BenchError> {
        let log = self.directory.join(format!("{name}.log"));
        let mut child = self
            .command(command_line)?
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(io("create a log file"))?)
            .spawn()
            .map_err(io("start a program"))?;
        let output = child.stdout.take();
        let (sender, lines) = sync_channel(QUEUED_LINES_MAX);
        // Reads to the end, even without a receiver, because a full pipe would block the service.
        std::thread::spawn(move || {
            for line in output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
            {
                let Ok(line) = line else { break };
                let _ = sender.try_send(line);
            }
        });
        Ok(Process {
            child,
            lines: Mutex::new(lines),
            log,
        })
    }
}

/// A running service; killed when dropped.
pub(super) struct Process {
    child: Child,
    lines: Mutex<Receiver<String>>,
    log: PathBuf,
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the first output line for which `matches` returns true; returns the line.
    pub(super) fn wait_for(
        &self,
        description: &str,
        matches: impl Fn(&Value) -> bool,
    ) -> Result<Value, BenchError> {
        let deadline = Instant::now() + START_TIMEOUT;
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = lines.recv_timeout(remaining) else {
                return Err(invalid_measurement(format_args!(
                    "the program ended or printed no line about {description} within 60 s: {}",
                    last_log_lines(&self.log)
                )));
            };
            if let Ok(line) = serde_json::from_str(&line)
                && matches(&line)
            {
                return Ok(line);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log.
fn last_log_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(5);
    lines.get(first..).unwrap_or_default().join("; ")
}
