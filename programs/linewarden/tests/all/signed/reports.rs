//! Reports of signers, senders and receivers.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    byte_signer, inbox, keygen, receive_message, require_machine_id, send_signal, sender, start_receiver,
};
use crate::support::{KilledOnDrop, Process, TEST_TIMEOUT, command, run};

fn show(directory_path: &Path, path: &str) -> Value {
    serde_json::from_str(&run(command(
        directory_path,
        &format!("linewarden signed show {path} --output json"),
    )))
    .unwrap()
}

#[test]
fn a_signer_shows_how_many_masks_are_left_and_why_none_can_be_used() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    byte_signer(directory_path, "truck", 128);
    byte_signer(directory_path, "bare", 0);
    keygen(directory_path, "--scheme ed25519 --out plain");
    let show = |path| show(directory_path, path);
    assert_eq!(show("truck")["masks_left"], 128);
    assert_eq!(show("bare")["masks_left"], 0);
    assert!(show("plain")["masks_left"].is_null());
    assert!(show("truck/signer.json")["masks_left"].is_null());

    // A sender uses the masks at the same time.
    let (inbox, address) = inbox();
    let mut process = sender(directory_path, &format!("truck --to {address} --idle-masks 0"));
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"a\n").unwrap();
    receive_message(&inbox);
    assert_eq!(show("truck")["masks_left"], 64);
    drop(input);
    assert!(process.wait().unwrap().success());

    let masks = directory_path.join("truck/masks");
    std::fs::copy(&masks, directory_path.join("copy")).unwrap();
    std::fs::rename(directory_path.join("copy"), &masks).unwrap();
    assert!(
        run(command(directory_path, "linewarden signed show truck")).contains("is a copy"),
        "{}",
        show("truck")
    );
}

/// The command writes the first masks early, and needs a long time for all masks. The signal arrives in this time.
#[test]
fn an_interrupted_keygen_leaves_no_signer() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let arguments = "linewarden signed keygen --scheme ra-rsa2048 --layout bytes:1 --masks 1000000 --out truck --output json";
    let keygen = Process::start(command(directory_path, arguments));
    let started_at = Instant::now();
    while !directory_path.join("truck/masks").exists() {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "no masks were generated");
        std::thread::yield_now();
    }
    keygen.signal(Signal::SIGINT);
    let (code, lines) = keygen.wait_for_exit();
    assert!(code == 1 && lines.is_empty(), "{code} {lines:?}");
    assert!(!directory_path.join("truck").exists());
}

#[test]
fn a_sender_prints_its_counters_and_reports_exhausted_masks() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    byte_signer(directory_path, "truck", 64);
    let (inbox, address) = inbox();
    let arguments = format!(
        "linewarden signed send truck --to {address} --priority 2 --idle-masks 0 --lanes 1 --output json"
    );
    let mut command = command(directory_path, &arguments);
    let file = std::fs::File::create(directory_path.join("errors")).unwrap();
    let (read, write) = std::io::pipe().unwrap();
    command.stdin(read).stderr(file);
    let process = Process::start(command);
    let mut input = write;
    for _ in 0..66 {
        input.write_all(b"a\n").unwrap();
        receive_message(&inbox);
    }
    process.signal(Signal::SIGUSR1);
    let counters = process.event("counters");
    // The sender counts a message after its transmission, and before the transmission of the next message.
    let sent = counters["sent"].as_u64().unwrap();
    assert!((65..=66).contains(&sent), "{counters}");
    assert_eq!(counters["signed_with_masks"], 64, "{counters}");
    let latency = &counters["latency_by_priority"]["2"];
    assert!(
        latency["count"].as_u64().unwrap() >= 64 && latency["p50_us"].as_u64().unwrap() > 0,
        "{counters}"
    );
    // The error is reported once, with the next message.
    input.write_all(b"a\n").unwrap();
    receive_message(&inbox);
    let errors = || std::fs::read_to_string(directory_path.join("errors")).unwrap();
    let started_at = Instant::now();
    while !errors().contains("no masks left") {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "no error was printed");
        std::thread::yield_now();
    }
    drop(input);
    let lines = process.wait_for_success();
    let ended = lines.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(
        (&ended["sent"], &ended["signed_without_masks"]),
        (&67.into(), &3.into())
    );
    assert_eq!(errors().matches("no masks left").count(), 1, "{}", errors());
}

#[test]
fn a_receiver_reports_its_signers_and_a_reload_without_a_list() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out one");
    keygen(directory_path, "--scheme ecdsa-p256 --out two");
    let (receiver, _) = start_receiver(directory_path, &["one", "two"], "");
    let listening = &receiver.events("listening")[0];
    assert_eq!(
        (&listening["signers"], &listening["revoked"]),
        (&2.into(), &0.into())
    );
    // The program requests 8 MiB. Only root receives more than net.core.rmem_max (SO_RCVBUFFORCE).
    if nix::unistd::geteuid().is_root() {
        assert_eq!(listening["receive_buffer_bytes"], 8 << 20);
    }
    receiver.signal(Signal::SIGHUP);
    let problem = receiver.event("reloaded")["problem"].clone();
    assert!(
        problem.as_str().unwrap().contains("--revoked was not given"),
        "{problem}"
    );
}

#[test]
fn a_sender_continues_without_writable_counters() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    let (inbox, address) = inbox();
    let full = std::fs::File::create("/dev/full").unwrap();
    let (read, mut input) = std::io::pipe().unwrap();
    let mut command = command(
        directory_path,
        &format!("linewarden signed send plain --to {address}"),
    );
    command.stdin(read).stdout(full).stderr(Stdio::piped());
    let mut process = KilledOnDrop(command.spawn().unwrap());
    drop(command);
    for _ in 0..2 {
        input.write_all(b"a\n").unwrap();
        receive_message(&inbox);
        send_signal(&process.0, Signal::SIGUSR1);
    }
    input.write_all(b"a\n").unwrap();
    receive_message(&inbox);
    drop(input);
    let mut errors = String::new();
    let mut stderr = process.0.stderr.take().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    assert_eq!(process.0.wait().unwrap().code(), Some(1));
    assert!(errors.contains("standard output: No space left"), "{errors}");
}

/// All lines are available immediately. At this rate, the last line would be sent after more than a quarter of an hour.
#[test]
fn a_paced_sender_handles_signals_between_messages() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    let (inbox, address) = inbox();
    let (stdin, mut input) = std::io::pipe().unwrap();
    let mut command = command(
        directory_path,
        &format!("linewarden signed send plain --to {address} --rate 1 --output json"),
    );
    command.stdin(stdin);
    input.write_all(&b"a\n".repeat(1000)).unwrap();
    let process = Process::start(command);
    receive_message(&inbox);
    process.signal(Signal::SIGUSR1);
    process.event("counters");
    process.signal(Signal::SIGTERM);
    let (code, lines) = process.wait_for_exit();
    assert_eq!(code, 0, "{lines:?}");
    assert!(
        lines.last().unwrap()["sent"].as_u64().unwrap() < 1000,
        "{lines:?}"
    );
}

/// Without a distinction by the sender, equal payloads within one millisecond would result in identical messages.
#[test]
fn equal_lines_are_separate_messages() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    for scheme in ["ed25519", "ecdsa-p256"] {
        keygen(directory_path, &format!("--scheme {scheme} --out {scheme}"));
    }
    std::fs::write(directory_path.join("line"), "stop\n").unwrap();
    let (receiver, address) = start_receiver(directory_path, &["ed25519", "ecdsa-p256"], "");
    for scheme in ["ed25519", "ecdsa-p256"] {
        let arguments = format!("linewarden signed send {scheme} --to {address} --input line --count 100");
        run(command(directory_path, &arguments));
        for _ in 0..100 {
            receiver.event("verified");
        }
    }
    let events = receiver.terminate();
    let ended = events.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(
        (&ended["received"], &ended["verified"]),
        (&200.into(), &200.into()),
        "{ended}"
    );
}

#[test]
fn multicast_options_are_rejected_for_a_unicast_address() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    for option in ["--interface lo", "--hops 2"] {
        let arguments = format!("linewarden signed send plain --to 127.0.0.1:7447 {option} --input nothing");
        let output = command(directory_path, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("127.0.0.1 is not a multicast group"), "{error}");
    }
    let output = command(
        directory_path,
        "linewarden signed send nowhere --to 127.0.0.1:7447",
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nowhere: not a signer"), "{error}");
}

/// The generation of one block of masks takes some hundredths of a second, and of a million masks about an hour.
#[test]
fn interrupted_mask_generation_keeps_the_generated_masks() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    byte_signer(directory_path, "truck", 0);
    let masks_left = || show(directory_path, "truck")["masks_left"].as_u64().unwrap();
    let process = Process::start(command(
        directory_path,
        "linewarden signed masks truck --count 1000000 --output json",
    ));
    let started_at = Instant::now();
    while masks_left() == 0 {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "no mask was generated");
        std::thread::yield_now();
    }
    process.signal(Signal::SIGINT);
    let (code, _) = process.wait_for_exit();
    assert_eq!(code, 1);
    assert!(masks_left() >= 64);
}
