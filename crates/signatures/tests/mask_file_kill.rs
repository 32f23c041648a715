//! A process that takes masks out of a file is killed before and after each of its system calls.
//!
//! A program of its own, because an emulator cannot run this test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use(test)]
extern crate linewarden_harness;

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use linewarden_harness::skip;
use linewarden_signatures::message::{KeyId, MASK_NAME_BYTES};
use linewarden_signatures::ra::Mask;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::{BLOCK_MASKS, MachineId, MaskFile, SealingKey};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use zeroize::Zeroizing;

const SCHEME: Scheme = Scheme::RaRsa2048;
const KEY: KeyId = KeyId(*b"signer 1");
/// Number of blocks in the file.
const BLOCKS: u8 = 3;
/// Byte offset of the first block, after the header and the counts.
const BLOCKS_OFFSET: u64 = 4096;
/// The environment variable that passes the file to the child process, which runs this test again.
const VARIABLE: &str = "LINEWARDEN_TEST_MASKS";

fn open(path: &Path, create: bool) -> MaskFile {
    let (machine, key) = (MachineId::of_name(b"here"), SealingKey::from_bytes([5; 32]));
    let opened = match create {
        true => MaskFile::create(path, SCHEME, KEY, &machine, &key),
        false => MaskFile::open(path, SCHEME, KEY, &machine, &key),
    };
    opened.unwrap()
}

fn masks(block: u8) -> Vec<Mask> {
    let mask = |index| {
        let mut name = [block; MASK_NAME_BYTES];
        name[0] = index as u8;
        Mask::from_unused_parts(name, Zeroizing::new(vec![index as u8; 256]))
    };
    (0..BLOCK_MASKS).map(mask).collect()
}

/// The child process: prints its thread id, waits for a byte on standard input, and prints each block that it takes.
fn take_all(path: &Path) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nthread {}", nix::unistd::gettid()).unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let mut file = open(path, false);
    while let Some(masks) = file.take_block().unwrap() {
        writeln!(out, "block {}", masks[0].name()[1]).unwrap();
    }
}

struct TracedProcess {
    child: Child,
    thread: Pid,
    output: BufReader<std::process::ChildStdout>,
    calls: Vec<Call>,
}

/// A completed system call.
struct Call {
    number: i64,
    /// The first argument; for the calls that the test evaluates, the file.
    descriptor: u64,
    /// The fourth argument: the offset of `pread64` and `pwrite64`.
    offset: u64,
    failed: bool,
}

impl TracedProcess {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "no_block_is_used_twice_after_a_kill_at_any_call",
                "--nocapture",
            ])
            .env(VARIABLE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let thread = loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "no thread id received");
            if let Some(number) = line.strip_prefix("thread ") {
                break Pid::from_raw(number.trim().parse().unwrap());
            }
        };
        Self {
            child,
            thread,
            output,
            calls: Vec::new(),
        }
    }

    /// Records the call that started or completed.
    fn record_call(&mut self) {
        let info = ptrace::syscall_info(self.thread).unwrap();
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            // SAFETY: the kernel has filled the structure for this operation.
            let entry = unsafe { info.u.entry };
            self.calls.push(Call {
                number: entry.nr as i64,
                descriptor: entry.args[0],
                offset: entry.args[3],
                failed: true,
            });
        } else if info.op == libc::PTRACE_SYSCALL_INFO_EXIT
            && let Some(call) = self.calls.last_mut()
        {
            // SAFETY: the kernel has filled the structure for this operation.
            call.failed = unsafe { info.u.exit }.is_error != 0;
        }
    }

    /// Runs the process, which stops before and after each system call, and kills it at stop number `stops`. Returns
    /// false if the process exited before this stop.
    fn kill_at(&mut self, stops: usize) -> bool {
        let mut stdin = self.child.stdin.take().unwrap();
        ptrace::interrupt(self.thread).unwrap();
        let thread = self.thread;
        let wait = || waitpid(thread, Some(WaitPidFlag::__WALL));
        assert!(matches!(wait().unwrap(), WaitStatus::PtraceEvent(..)));
        stdin.write_all(&[0]).unwrap();
        let mut remaining_stops = stops;
        let has_reached_stop = loop {
            if remaining_stops == 0 {
                break true;
            }
            ptrace::syscall(self.thread, None).unwrap();
            match wait() {
                Ok(WaitStatus::PtraceSyscall(_)) => {
                    self.record_call();
                    remaining_stops -= 1;
                }
                Ok(WaitStatus::PtraceEvent(..)) => {}
                Ok(WaitStatus::Exited(..)) | Err(Errno::ECHILD) => break false,
                other => panic!("{other:?}"),
            }
        };
        self.child.kill().unwrap();
        // Reaps the thread first, since only the tracer of the thread can reap the thread.
        let _ = wait();
        self.child.wait().unwrap();
        has_reached_stop
    }

    fn blocks(&mut self) -> Vec<u8> {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let block = |line: &str| line.strip_prefix("block ").map(|number| number.parse().unwrap());
        text.lines().filter_map(block).collect()
    }
}

/// Checks that each block is read only after the write of its counts is synced: after a loss of power, which a kill does
/// not emulate, only synced data remain. Returns the number of blocks.
fn blocks_read_after_a_sync(calls: &[Call]) -> usize {
    // The number of read blocks, the file whose counts are written, and whether these counts are synced.
    let (mut blocks, mut file, mut is_durable) = (0, None, false);
    for call in calls.iter().filter(|call| !call.failed) {
        match call.number {
            libc::SYS_pwrite64 if call.offset < BLOCKS_OFFSET => {
                (file, is_durable) = (Some(call.descriptor), false);
            }
            libc::SYS_fsync if file == Some(call.descriptor) => is_durable = true,
            libc::SYS_pread64 if call.offset >= BLOCKS_OFFSET => {
                assert!(
                    is_durable,
                    "block {blocks} is read before its reservation is synced"
                );
                blocks += 1;
                // The next block needs its own reservation.
                is_durable = false;
            }
            _ => {}
        }
    }
    blocks
}

#[test]
fn no_block_is_used_twice_after_a_kill_at_any_call() {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return take_all(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("masks");
    let mut runs_with_losses = 0;
    for stops in 1.. {
        let _ = std::fs::remove_file(&path);
        let mut file = open(&path, true);
        for block in 0..BLOCKS {
            file.append(&masks(block)).unwrap();
        }
        drop(file);
        let mut process = TracedProcess::start(&path);
        if let Err(error) = ptrace::seize(process.thread, Options::PTRACE_O_TRACESYSGOOD) {
            process.child.kill().unwrap();
            process.child.wait().unwrap();
            skip!("this process is not permitted to trace its child process: {error}");
        }
        let has_reached_stop = process.kill_at(stops);
        let mut blocks = process.blocks();
        let mut file = open(&path, false);
        while let Some(masks) = file.take_block().unwrap() {
            blocks.push(masks[0].name()[1]);
        }
        let distinct: HashSet<u8> = blocks.iter().copied().collect();
        assert_eq!(distinct.len(), blocks.len(), "killed at stop {stops}: {blocks:?}");
        assert!(
            blocks.len() + 1 >= usize::from(BLOCKS),
            "killed at stop {stops}: {blocks:?}"
        );
        runs_with_losses += usize::from(blocks.len() < usize::from(BLOCKS));
        if !has_reached_stop {
            // The process ended by itself, after completing its work.
            assert_eq!(blocks_read_after_a_sync(&process.calls), usize::from(BLOCKS));
            assert_eq!(blocks.len(), usize::from(BLOCKS));
            assert!(
                stops > 40 && runs_with_losses > 0,
                "{stops} stops, {runs_with_losses} with losses"
            );
            return;
        }
    }
}

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
