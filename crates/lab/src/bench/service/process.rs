//! Processes of `linewarden`: commands, and services that print their state as JSON lines.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::invalid_measurement;
use crate::bench::{BenchError, io};

/// Timeout for an expected line of a service.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The program and its working directory.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) directory: PathBuf,
}

impl Program {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(arguments.split_whitespace())
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end and returns its output.
    pub(super) fn run(&self, arguments: &str) -> Result<String, BenchError> {
        let output = self.command(arguments).output().map_err(io("start linewarden"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(invalid_measurement(format_args!(
                "command `linewarden {arguments}` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            ))),
        }
    }

    /// Starts a service; `name` is the name of its log file.
    pub(super) fn start(&self, name: &str, arguments: &str) -> Result<Process, BenchError> {
        let log = self.directory.join(format!("{name}.log"));
        let mut child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(io("create a log file"))?)
            .spawn()
            .map_err(io("start linewarden"))?;
        let output = child.stdout.take();
        let (sender, lines) = channel();
        // Reads to the end, even without a receiver, because a full pipe would block the service.
        std::thread::spawn(move || {
            for line in output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
            {
                let Ok(line) = line else { break };
                let _ = sender.send(line);
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
