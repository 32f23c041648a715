//! Senders: messages on the wire, masks after a kill, and the end of a sender.

use std::collections::HashSet;
use std::io::Write as _;
use std::process::Stdio;

use linewarden_signatures::message::{Envelope, MESSAGE_BYTES_MAX};
use linewarden_signatures::refusal::Refusal;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    byte_signer, inbox, keygen, receive_message, receiver, require_machine_id, send_signal, sender, verify,
};
use crate::support::{command, run};

#[test]
fn sent_messages_verify_and_carry_the_payloads_of_the_lines() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    std::fs::write(
        directory_path.join("breaker.json"),
        r#"{"kind": "submessages", "components": [{"submessages": ["open", "close"]}, "byte"]}"#,
    )
    .unwrap();
    keygen(
        directory_path,
        "--scheme ra-rsa2048 --layout breaker.json --masks 1 --out breaker",
    );
    let (inbox, address) = inbox();
    let mut receiver = receiver(directory_path, &["plain", "breaker"]);

    std::fs::write(directory_path.join("lines"), "hello\nworld\n").unwrap();
    let sent = run(command(
        directory_path,
        &format!("linewarden signed send plain --to {address} --input lines --lanes 1 --output json"),
    ));
    assert_eq!(serde_json::from_str::<Value>(&sent).unwrap()["sent"], 2);
    assert_eq!(verify(&mut receiver, &receive_message(&inbox)).unwrap(), b"hello");
    let second = receive_message(&inbox);
    assert_eq!(verify(&mut receiver, &second).unwrap(), b"world");
    assert_eq!(verify(&mut receiver, &second), Err(Refusal::Replayed));

    std::fs::write(directory_path.join("lines"), "[\"close\", 7]\n").unwrap();
    let arguments = format!(
        "linewarden signed send breaker --to {address} --input lines --count 70 --priority 0 --idle-masks 0 --output json"
    );
    let sent: Value = serde_json::from_str(&run(command(directory_path, &arguments))).unwrap();
    // One mask was requested, and a whole block of 64 masks was generated. Six messages were signed without masks.
    assert_eq!(
        (&sent["sent"], &sent["signed_with_masks"]),
        (&70.into(), &64.into())
    );
    assert_eq!(
        (&sent["signed_without_masks"], &sent["masks_left"]),
        (&6.into(), &0.into())
    );
    for _ in 0..70 {
        assert_eq!(verify(&mut receiver, &receive_message(&inbox)).unwrap(), [1, 7]);
    }
}

#[test]
fn no_mask_is_sent_twice_after_a_kill() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(
        directory_path,
        "--scheme ra-rsa2048 --layout bytes:2 --masks 1024 --out truck",
    );
    std::fs::write(directory_path.join("lines"), "ab\n").unwrap();
    let (inbox, address) = inbox();
    let mut mask_names = HashSet::new();
    let mut receiver = receiver(directory_path, &["truck"]);
    for pass in 0..8 {
        let arguments = format!("linewarden signed send truck --to {address} --input lines --count 100000");
        let mut sender = command(directory_path, &arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Each kill comes at another position in a block.
        for _ in 0..1 + 37 * pass {
            let message = receive_message(&inbox);
            assert!(verify(&mut receiver, &message).is_ok());
            assert!(
                mask_names.insert(*Envelope::parse(&message).unwrap().mask_name.unwrap()),
                "a mask was sent twice"
            );
        }
        sender.kill().unwrap();
        sender.wait().unwrap();
        inbox.set_nonblocking(true).unwrap();
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        while let Ok(length) = inbox.recv(&mut bytes) {
            let name = *Envelope::parse(&bytes[..length]).unwrap().mask_name.unwrap();
            assert!(mask_names.insert(name), "a mask was sent twice");
        }
        inbox.set_nonblocking(false).unwrap();
    }
}

/// After a signal or an invalid line, all lines that were read before are sent and counted.
#[test]
fn a_sender_prints_its_counters_at_every_end() {
    // The line format of the documentation.
    let documentation = include_str!("../../../../../docs/operations/signed-messages.md").lines();
    let bsm = documentation
        .clone()
        .find(|line| line.starts_with("{\"msgCnt\""))
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    let (inbox, to) = inbox();

    let mut child = sender(directory_path, &format!("plain --to {to}"));
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n\nhalf a li").unwrap();
    for payload in [b"one".as_slice(), b""] {
        assert_eq!(
            Envelope::parse(&receive_message(&inbox)).unwrap().payload,
            payload
        );
    }
    send_signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success()
            && String::from_utf8(output.stdout)
                .unwrap()
                .contains("sent 2 messages")
    );
    drop(input);

    let mut invalid_sender = sender(directory_path, &format!("plain --kind bsm --to {to}"));
    let lines = format!("{bsm}\n\n{bsm}\n{{}}\n{bsm}\n");
    invalid_sender
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = invalid_sender.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("sent 2 messages")
    );
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("line 4: missing field"), "{error}");
}

/// No requested option is ignored without an error.
#[test]
fn impossible_operations_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    byte_signer(directory_path, "bytes", 0);
    std::fs::write(directory_path.join("line"), "hello\n").unwrap();
    std::fs::remove_file(directory_path.join("plain/seal.key")).unwrap();
    let receive = "linewarden signed receive --listen 127.0.0.1:0 --signers plain/signer.json";
    for (arguments, expected) in [
        (
            "linewarden signed send bytes --to 127.0.0.1:9 --input line",
            "line 1: payload of 5 bytes, but the key's layout has 1",
        ),
        (
            "linewarden signed send plain --to 127.0.0.1:9 --input line",
            "--seal-key",
        ),
        (
            "linewarden signed send bytes --kind bsm --to 127.0.0.1:9 --input line",
            "--kind",
        ),
        (
            &format!("{receive} --out tcp:127.0.0.1:9"),
            "unknown destination: use udp:ADDRESS:PORT or unix:PATH",
        ),
        (&format!("{receive} --interface lo"), "not a multicast group"),
        (&format!("{receive} --remember 0"), "--remember"),
        (
            "linewarden signed keygen --scheme ra-rsa2048 --layout BSM --out new",
            "bsm, bytes:N or a file",
        ),
        (
            "linewarden signed keygen --scheme ed25519 --seal-key no/such --out new",
            "no/such",
        ),
    ] {
        let output = command(directory_path, arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(expected),
            "{arguments}: {error}"
        );
        assert!(!directory_path.join("new").exists(), "{arguments}");
    }
}
