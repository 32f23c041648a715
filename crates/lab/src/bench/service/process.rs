//! Processes of `linewarden`: commands that end, and services that say in lines of JSON how they stand.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::contradiction;
use crate::bench::{BenchError, io};

/// How long a service may take to say what it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, and the directory that it works in.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) directory: PathBuf,
}

impl Program {
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(words.split_whitespace())
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end; what it printed.
    pub(super) fn run(&self, words: &str) -> Result<String, BenchError> {
        let output = self.command(words).output().map_err(io("starting the program"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(contradiction(format_args!(
                "`linewarden {words}`: {}",
                String::from_utf8_lossy(&output.stderr).trim_end()
            ))),
        }
    }

    /// Starts a service; `name` is that of the file for its log.
    pub(super) fn start(&self, name: &str, words: &str) -> Result<Process, BenchError> {
        let log = self.directory.join(format!("{name}.log"));
        let mut child = self
            .command(words)
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(io("making a log"))?)
            .spawn()
            .map_err(io("starting the program"))?;
        let output = child.stdout.take();
        let (sender, lines) = channel();
        // To the end, even if nobody listens any more: a full pipe would stop the service.
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

/// A service at work; killed when dropped.
pub(super) struct Process {
    child: Child,
    lines: Mutex<Receiver<String>>,
    log: PathBuf,
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first line that `is_it`.
    pub(super) fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value, BenchError> {
        let until = Instant::now() + PATIENCE;
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = lines.recv_timeout(left) else {
                return Err(contradiction(format_args!("no {what}: {}", end_of(&self.log))));
            };
            if let Ok(line) = serde_json::from_str(&line)
                && is_it(&line)
            {
                return Ok(line);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(5);
    lines.get(from..).unwrap_or_default().join("; ")
}
