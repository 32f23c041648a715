//! Receivers of signed messages without a reader of their output. The receivers continue to verify, and stop after a signal.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{KilledOnDrop, Process, TEST_TIMEOUT, command, run};

/// Number of messages that are sent without a pause; less than a socket's buffer can hold.
const BURST: u64 = 100;

/// A signer whose messages are all different.
struct Signer {
    directory: tempfile::TempDir,
    sent: Cell<u64>,
}

impl Signer {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        run(command(
            directory.path(),
            "linewarden signed keygen --scheme ed25519 --out plain",
        ));
        Self {
            directory,
            sent: Cell::new(0),
        }
    }

    fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    fn send_burst(&self, address: &str) {
        self.send_messages(BURST, address);
    }

    fn send_messages(&self, count: u64, address: &str) {
        let first = self.sent.get();
        self.sent.set(first + count);
        let lines: String = (first..first + count)
            .map(|number| format!("{number:0900}\n"))
            .collect();
        std::fs::write(self.directory_path().join("lines"), lines).unwrap();
        run(command(
            self.directory_path(),
            &format!("linewarden signed send plain --to {address} --input lines --lanes 1"),
        ));
    }

    fn receiver(&self, arguments: &str) -> Command {
        let arguments = format!(
            "linewarden signed receive --listen 127.0.0.1:0 --signers plain/signer.json --lanes 1 --gpu off {arguments}"
        );
        command(self.directory_path(), &arguments)
    }
}

/// Sends bursts until the receiver has verified messages and has dropped the lines of all these messages: then the queue is full,
/// and the receiver waits for the reader. `read_counts` returns the receiver's counts (dropped, verified).
fn send_until_all_lines_are_dropped(
    signer: &Signer,
    address: &str,
    mut read_counts: impl FnMut() -> (u64, u64),
) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut before = (0, 0);
    loop {
        signer.send_burst(address);
        let counts = read_counts();
        let (dropped, verified) = (counts.0 - before.0, counts.1 - before.1);
        if verified >= BURST && dropped == verified {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "lines were written after {TEST_TIMEOUT:?}: {before:?} and then {counts:?}"
        );
        before = counts;
    }
}

#[test]
fn a_receiver_continues_and_ends_without_a_reader_of_its_unix_socket() {
    let signer = Signer::new();
    let path = signer.directory_path().join("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    let command = signer.receiver("--output json --backlog 16 --out unix:socket");
    let receiver = Process::start(command);
    let address = receiver.event("listening")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    send_until_all_lines_are_dropped(&signer, &address, || {
        receiver.signal(Signal::SIGUSR1);
        let counts = receiver.event("counters");
        (
            counts["outputs"]["dropped"].as_u64().unwrap(),
            counts["verified"].as_u64().unwrap(),
        )
    });
    receiver.signal(Signal::SIGTERM);
    let (code, lines) = receiver.wait_for_exit();
    let counts = lines.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(code, 1, "{counts}");
    let output_count = |name: &str| counts["outputs"][name].as_u64().unwrap();
    // The 16 queued lines, and the line that the receiver was writing.
    assert_eq!(output_count("lost"), 17, "{counts}");
    assert_eq!(
        counts["verified"].as_u64().unwrap(),
        output_count("written") + output_count("dropped") + output_count("lost"),
        "{counts}"
    );
    socket.set_nonblocking(true).unwrap();
    let mut lines_received = 0;
    while socket.recv(&mut [0; 4096]).is_ok() {
        lines_received += 1;
    }
    assert_eq!(lines_received, output_count("written"));
}

/// A file and a UDP destination of `--out` receive one line for each message.
#[test]
fn lines_arrive_in_a_file_and_as_datagrams() {
    let signer = Signer::new();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let udp = format!("udp:{}", socket.local_addr().unwrap());
    // Fewer than a socket's buffer holds.
    let count = 20;
    std::fs::write(signer.directory_path().join("file"), "earlier line\n").unwrap();
    for out in ["file", &udp] {
        let receiver = Process::start(signer.receiver(&format!("--output json --count {count} --out {out}")));
        let address = receiver.event("listening")["address"]
            .as_str()
            .unwrap()
            .to_owned();
        signer.send_messages(count, &address);
        let (code, lines) = receiver.wait_for_exit();
        let counts = lines.iter().find(|line| line["event"] == "ended").unwrap();
        assert_eq!(
            (code, counts["outputs"]["written"].as_u64()),
            (0, Some(count)),
            "{out}: {counts}"
        );
        assert_eq!(
            counts["waiting"],
            serde_json::json!({"immediate": 0, "other": 0, "in_batches": 0})
        );
    }
    let text = std::fs::read_to_string(signer.directory_path().join("file")).unwrap();
    let appended_text = text
        .strip_prefix("earlier line\n")
        .expect("lines must be appended");
    let file_lines: Vec<_> = appended_text.lines().map(str::to_owned).collect();
    let datagram = |_| {
        let mut line = [0; 4096];
        let length = socket.recv(&mut line).unwrap();
        String::from_utf8(line[..length].to_vec()).unwrap()
    };
    for lines in [file_lines, (0..count).map(datagram).collect()] {
        let payloads = lines.iter().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["event"], "verified");
            line["payload"].clone()
        });
        let distinct_payloads: std::collections::HashSet<_> =
            payloads.map(|payload| payload.to_string()).collect();
        assert_eq!(distinct_payloads.len() as u64, count);
    }
}

#[test]
fn a_reader_that_reconnects_receives_the_queued_lines() {
    let signer = Signer::new();
    let socket = UnixDatagram::bind(signer.directory_path().join("socket")).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let receiver = Process::start(signer.receiver("--output json --out unix:socket"));
    let address = receiver.event("listening")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    // Sends more messages than the kernel queues lines for a socket (net.unix.max_dgram_qlen). The test reads no line before all
    // messages are verified.
    let queue_length: u64 = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut verified = 0;
    while verified <= queue_length + BURST {
        signer.send_burst(&address);
        receiver.signal(Signal::SIGUSR1);
        verified = receiver.event("counters")["verified"].as_u64().unwrap();
    }
    receiver.signal(Signal::SIGTERM);
    let mut lines_read = 0;
    while lines_read < verified {
        let mut line = [0; 4096];
        let length = socket.recv(&mut line).unwrap();
        let line: Value = serde_json::from_slice(&line[..length]).unwrap();
        assert_eq!(line["event"], "verified");
        lines_read += 1;
    }
    drop(socket);
    let (_, lines) = receiver.wait_for_exit();
    let counts = lines.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(counts["outputs"]["dropped"], 0, "{counts}");
}

/// A receiver whose standard error is read line by line.
struct RunningReceiver {
    process: KilledOnDrop,
    lines: Receiver<String>,
}

impl RunningReceiver {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = read_lines(child.stderr.take().unwrap());
        Self {
            process: KilledOnDrop(child),
            lines,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id() as i32), signal).unwrap();
    }

    /// Waits for the next line that begins with `prefix`, and returns the text after the prefix.
    fn text_after(&self, prefix: &str) -> String {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(remaining).unwrap();
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
    }
}

fn read_lines(stderr: ChildStderr) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// The first number after `label` in `text`.
fn number_after(text: &str, label: &str) -> u64 {
    let (_, rest) = text.split_once(label).unwrap();
    let digits: String = rest.trim().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn a_receiver_continues_and_ends_with_a_full_standard_output() {
    let signer = Signer::new();
    let mut receiver = RunningReceiver::start(signer.receiver("--backlog 16"));
    let address = receiver.text_after("listening on ");
    send_until_all_lines_are_dropped(&signer, &address, || {
        receiver.signal(Signal::SIGUSR1);
        let verified = number_after(&receiver.text_after("received "), "verified ");
        (
            number_after(&receiver.text_after("delivered "), "dropped "),
            verified,
        )
    });
    receiver.signal(Signal::SIGTERM);
    let last = receiver.text_after("delivered ");
    assert_eq!(number_after(&last, "lost at the end "), 17, "{last}");
    receiver.text_after("error: --out -: ");
    assert_eq!(receiver.process.0.wait().unwrap().code(), Some(1));
    // All lines that the receiver counts as delivered are complete; the line that it was writing is truncated.
    let mut text = String::new();
    let mut stdout = receiver.process.0.stdout.take().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    let line_count = text.matches('\n').count() as u64;
    assert_eq!(
        line_count,
        last.split(',').next().unwrap().parse::<u64>().unwrap()
    );
}

/// Waits until the receive queue of the socket on 127.0.0.1 is empty; a receiver verifies received messages before it ends.
fn wait_until_received(address: &str) {
    let (_, port) = address.split_once(':').unwrap();
    let local = format!("0100007F:{:04X}", port.parse::<u16>().unwrap());
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
        let socket = sockets.lines().find(|line| line.contains(&local)).unwrap();
        if socket.contains(":00000000 00:") {
            return;
        }
        assert!(Instant::now() < deadline, "{socket}");
        std::thread::yield_now();
    }
}

#[test]
fn a_receiver_ends_without_a_reader_of_its_standard_output() {
    let signer = Signer::new();
    let mut command = signer.receiver("--output json --backlog 16");
    let mut receiver = KilledOnDrop(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    // The test reads only the first line, which contains the address.
    let mut stdout = BufReader::with_capacity(1, receiver.0.stdout.take().unwrap());
    let mut listening = String::new();
    stdout.read_line(&mut listening).unwrap();
    let listening: Value = serde_json::from_str(&listening).unwrap();
    let address = listening["address"].as_str().unwrap();
    // Sends more lines than the pipe (64 KiB) and the backlog hold.
    for _ in 0..4 {
        signer.send_burst(address);
    }
    wait_until_received(address);
    let process = Pid::from_raw(receiver.0.id() as i32);
    kill(process, Signal::SIGUSR1).unwrap();
    kill(process, Signal::SIGTERM).unwrap();
    assert_eq!(receiver.0.wait().unwrap().code(), Some(1));
    // The counters that could not be written are on standard error.
    let mut text = String::new();
    receiver
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let ended = text.lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["event"] == "ended").then_some(line)
    });
    let ended = ended.expect(&text);
    assert!(ended["outputs"]["dropped"].as_u64().unwrap() > 0, "{ended}");
}

#[test]
fn a_fifo_without_a_reader_is_an_error_and_errors_are_counted() {
    let signer = Signer::new();
    nix::unistd::mkfifo(
        &signer.directory_path().join("pipe"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let output = signer.receiver("--out pipe").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("FIFO has no reader"), "{errors}");

    let socket = UnixDatagram::bind(signer.directory_path().join("socket")).unwrap();
    let receiver = Process::start(signer.receiver("--output json --count 1 --out unix:socket"));
    let address = receiver.event("listening")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(socket);
    signer.send_burst(&address);
    let (code, lines) = receiver.wait_for_exit();
    let counts = lines.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(code, 1, "{counts}");
    assert_eq!(
        counts["outputs"]["failed"]["Connection refused"], counts["verified"],
        "{counts}"
    );
}

#[test]
fn a_reader_that_starts_again_is_found() {
    let signer = Signer::new();
    let path = signer.directory_path().join("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    let receiver = Process::start(signer.receiver("--output json --out unix:socket"));
    let address = receiver.event("listening")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(socket);
    signer.send_burst(&address);
    receiver.signal(Signal::SIGUSR1);
    receiver.wait_for("a line without a reader", |line| {
        let has_failed = line["outputs"]["failed"]["Connection refused"].as_u64() > Some(0);
        if line["event"] == "counters" && !has_failed {
            receiver.signal(Signal::SIGUSR1);
        }
        has_failed
    });
    std::fs::remove_file(&path).unwrap();
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    signer.send_burst(&address);
    let mut line = [0; 4096];
    let length = socket.recv(&mut line).unwrap();
    let line: Value = serde_json::from_slice(&line[..length]).unwrap();
    assert_eq!(line["event"], "verified");
    receiver.signal(Signal::SIGTERM);
    assert_eq!(receiver.wait_for_exit().0, 1);
}
