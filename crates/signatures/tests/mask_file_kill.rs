//! A process that takes masks out of a file is killed before and after each of its system calls.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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
const BLOCKS: u8 = 3;
/// Where blocks begin in the file, behind its header and counts.
const BLOCKS_OFFSET: u64 = 4096;
/// Names the file for the process that is killed, which is this test once more.
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
        Mask::assertion(name, Zeroizing::new(vec![index as u8; 256]))
    };
    (0..BLOCK_MASKS).map(mask).collect()
}

/// Says which thread it is, waits for a byte, and says each block it takes.
fn take_all(path: &Path) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nthread {}", nix::unistd::gettid()).unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let mut file = open(path, false);
    while let Some(masks) = file.take_block().unwrap() {
        writeln!(out, "block {}", masks[0].name()[1]).unwrap();
    }
}

struct Taker {
    child: Child,
    thread: Pid,
    output: BufReader<std::process::ChildStdout>,
    calls: Vec<Call>,
}

/// A system call that has returned.
struct Call {
    number: i64,
    /// The first argument: of these three calls, of which file.
    descriptor: u64,
    /// The fourth argument: where `pread64` and `pwrite64` read and write.
    offset: u64,
    failed: bool,
}

impl Taker {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "no_block_comes_twice_whichever_call_a_kill_comes_before",
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
            assert!(output.read_line(&mut line).unwrap() > 0, "no thread was named");
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

    /// Notes which call has begun or returned.
    fn note_call(&mut self) {
        let info = ptrace::syscall_info(self.thread).unwrap();
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            // SAFETY: the kernel has filled in what the operation says.
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
            // SAFETY: as above.
            call.failed = unsafe { info.u.exit }.is_error != 0;
        }
    }

    /// Lets it come to so many stops, one before and one after each system call, and kills it there. Whether it came so far.
    fn kill_at(&mut self, stops: usize) -> bool {
        let mut stdin = self.child.stdin.take().unwrap();
        ptrace::interrupt(self.thread).unwrap();
        let thread = self.thread;
        let wait = || waitpid(thread, Some(WaitPidFlag::__WALL));
        assert!(matches!(wait().unwrap(), WaitStatus::PtraceEvent(..)));
        stdin.write_all(&[0]).unwrap();
        let mut left = stops;
        let reached = loop {
            if left == 0 {
                break true;
            }
            ptrace::syscall(self.thread, None).unwrap();
            match wait() {
                Ok(WaitStatus::PtraceSyscall(_)) => {
                    self.note_call();
                    left -= 1;
                }
                Ok(WaitStatus::PtraceEvent(..)) => {}
                Ok(WaitStatus::Exited(..)) | Err(Errno::ECHILD) => break false,
                other => panic!("{other:?}"),
            }
        };
        self.child.kill().unwrap();
        // The thread first: its end is its tracer's to take.
        let _ = wait();
        self.child.wait().unwrap();
        reached
    }

    fn blocks(&mut self) -> Vec<u8> {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let block = |line: &str| line.strip_prefix("block ").map(|number| number.parse().unwrap());
        said.lines().filter_map(block).collect()
    }
}

/// Each block is read after a sync that came after the write of the counts: what a loss of power leaves, no kill shows. How many blocks.
fn blocks_read_after_a_sync(calls: &[Call]) -> usize {
    // The file whose counts have been written, and whether they are durable.
    let (mut blocks, mut file, mut durable) = (0, None, false);
    for call in calls.iter().filter(|call| !call.failed) {
        match call.number {
            libc::SYS_pwrite64 if call.offset < BLOCKS_OFFSET => {
                (file, durable) = (Some(call.descriptor), false);
            }
            libc::SYS_fsync if file == Some(call.descriptor) => durable = true,
            libc::SYS_pread64 if call.offset >= BLOCKS_OFFSET => {
                assert!(durable, "block {blocks} is read before its reservation is synced");
                blocks += 1;
                // The next one needs a reservation of its own.
                durable = false;
            }
            _ => {}
        }
    }
    blocks
}

#[test]
fn no_block_comes_twice_whichever_call_a_kill_comes_before() {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return take_all(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("masks");
    let mut with_losses = 0;
    for stops in 1.. {
        let _ = std::fs::remove_file(&path);
        let mut file = open(&path, true);
        for block in 0..BLOCKS {
            file.append(&masks(block)).unwrap();
        }
        drop(file);
        let mut taker = Taker::start(&path);
        if let Err(error) = ptrace::seize(taker.thread, Options::PTRACE_O_TRACESYSGOOD) {
            println!("SKIPPED: a process may not trace its own child: {error}");
            taker.child.kill().unwrap();
            taker.child.wait().unwrap();
            return;
        }
        let reached = taker.kill_at(stops);
        let mut blocks = taker.blocks();
        let mut file = open(&path, false);
        while let Some(masks) = file.take_block().unwrap() {
            blocks.push(masks[0].name()[1]);
        }
        let once: HashSet<u8> = blocks.iter().copied().collect();
        assert_eq!(once.len(), blocks.len(), "killed at stop {stops}: {blocks:?}");
        assert!(
            blocks.len() + 1 >= usize::from(BLOCKS),
            "killed at stop {stops}: {blocks:?}"
        );
        with_losses += usize::from(blocks.len() < usize::from(BLOCKS));
        if !reached {
            // It ended by itself, after it had done everything.
            assert_eq!(blocks_read_after_a_sync(&taker.calls), usize::from(BLOCKS));
            assert_eq!(blocks.len(), usize::from(BLOCKS));
            assert!(
                stops > 40 && with_losses > 0,
                "{stops} stops, {with_losses} with losses"
            );
            return;
        }
    }
}
