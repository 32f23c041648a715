//! Receivers: verified messages, revocations and counts.

use std::net::UdpSocket;
use std::path::Path;

use nix::sys::signal::Signal;

use super::{inbox, keygen, receive_message, require_machine_id, send, start_receiver};
use crate::support::command;

/// The message with the other valid ECDSA P-256 signature: n - s in place of s, where n is the group order (SEC 2, 2.4.2).
fn negated_s(message: &[u8]) -> Vec<u8> {
    let order = hex::decode("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551").unwrap();
    let mut negated = message.to_vec();
    let s_offset = message.len() - 32;
    let mut borrow = 0;
    for i in (0..32).rev() {
        let difference = i16::from(order[i]) - i16::from(message[s_offset + i]) - borrow;
        borrow = i16::from(difference < 0);
        negated[s_offset + i] = difference.rem_euclid(256) as u8;
    }
    negated
}

#[test]
fn p256_signatures_with_high_s_are_accepted_unless_the_receiver_requires_low_s() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ecdsa-p256 --out one");
    let (inbox, inbox_address) = inbox();
    let both_signatures = || {
        send(directory_path, "one", "hello", &inbox_address);
        let low_s = receive_message(&inbox);
        [negated_s(&low_s), low_s]
    };

    let (receiver, address) = start_receiver(directory_path, &["one"], "");
    inbox.send_to(&both_signatures()[0], &address).unwrap();
    assert_eq!(receiver.event("verified")["payload"]["text"], "hello");
    receiver.terminate();

    std::fs::remove_dir_all(directory_path.join("signers")).unwrap();
    let (receiver, address) = start_receiver(directory_path, &["one"], "--p256-low-s");
    for message in both_signatures() {
        inbox.send_to(&message, &address).unwrap();
    }
    receiver.event("verified");
    let ended = receiver.terminate();
    let counts = ended.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(
        (&counts["verified"], &counts["refused"]["malleable"]),
        (&1.into(), &1.into()),
        "{counts}"
    );
}

/// Writes a list of revoked signers.
fn write_revocations(directory_path: &Path, signers: &[&str]) {
    let lines = signers.iter().map(|signer| format!("{signer} stolen\n"));
    let list = format!("linewarden revoked 1\n{}end\n", lines.collect::<String>());
    std::fs::write(directory_path.join("revoked"), list).unwrap();
}

/// The command fails even on a machine with a driver and a GPU, because there is no compiler at the given path.
#[test]
fn a_required_gpu_that_is_missing_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    let arguments =
        "linewarden signed receive --listen 127.0.0.1:0 --signers plain/signer.json --gpu require";
    let output = command(directory_path, arguments)
        .env("LINEWARDEN_NVRTC", directory_path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("--gpu require: "), "{errors}");
}

#[test]
fn a_receiver_delivers_verified_messages_and_counts_the_others() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let plain = keygen(directory_path, "--scheme ed25519 --out plain");
    keygen(directory_path, "--scheme ecdsa-p256 --out unknown");
    keygen(
        directory_path,
        "--scheme ra-rsa2048 --layout bytes:2 --masks 64 --out truck",
    );
    write_revocations(directory_path, &[]);
    let (receiver, address) = start_receiver(directory_path, &["plain", "truck"], "--revoked revoked");

    send(directory_path, "plain", "hello", &address);
    let verified = receiver.event("verified");
    assert_eq!(
        (&verified["signer"], &verified["scheme"]),
        (&plain["signer"], &"ed25519".into())
    );
    assert_eq!(
        (&verified["payload"]["text"], &verified["priority"]),
        (&"hello".into(), &1.into())
    );
    send(directory_path, "truck", "ab", &address);
    assert_eq!(receiver.event("verified")["payload"]["hex"], "6162");

    // The message with one wrong byte, the correct message twice, and two datagrams that are not messages.
    let (inbox, inbox_address) = inbox();
    send(directory_path, "truck", "cd", &inbox_address);
    let message = receive_message(&inbox);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut forged = message.clone();
    let offset = forged.len() - 2;
    forged[offset] ^= 1;
    for bytes in [
        &forged,
        &message,
        &message,
        &message[1..].to_vec(),
        &b"nonsense".to_vec(),
    ] {
        socket.send_to(bytes, &address).unwrap();
    }
    assert_eq!(receiver.event("verified")["payload"]["text"], "cd");
    send(directory_path, "unknown", "who", &address);

    write_revocations(directory_path, &[plain["signer"].as_str().unwrap()]);
    receiver.signal(Signal::SIGHUP);
    assert_eq!(receiver.event("reloaded")["revoked"], 1);
    send(directory_path, "plain", "again", &address);
    write_revocations(directory_path, &["no id"]);
    receiver.signal(Signal::SIGHUP);
    assert!(
        receiver.event("reloaded")["problem"]
            .as_str()
            .unwrap()
            .contains("revoked:2")
    );
    send(directory_path, "plain", "and again", &address);
    send(directory_path, "truck", "ef", &address);
    assert_eq!(receiver.event("verified")["payload"]["text"], "ef");

    let ended = receiver.terminate();
    let counts = ended.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(
        (&counts["received"], &counts["verified"]),
        (&11.into(), &4.into()),
        "{counts}"
    );
    let refused = &counts["refused"];
    for (reason, count) in [
        ("wrong_signature", 1),
        ("malformed", 2),
        ("unknown_signer", 1),
        ("revoked", 2),
    ] {
        assert_eq!(refused[reason], count, "{reason}: {counts}");
    }
    // The copy was recognized before or after its verification.
    let copies =
        refused["replayed"].as_u64().unwrap_or(0) + counts["shed"]["duplicate"].as_u64().unwrap_or(0);
    assert_eq!(copies, 1, "{counts}");
}

/// A pipe in place of the list is rejected at once: opening a pipe would wait for a writer.
#[test]
fn a_truncated_revocation_list_is_rejected_and_a_complete_list_reports_unrevoked_signers() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let plain = keygen(directory_path, "--scheme ed25519 --out plain");
    let signer = plain["signer"].as_str().unwrap();
    write_revocations(directory_path, &["0011223344556677", signer]);
    let list = std::fs::read(directory_path.join("revoked")).unwrap();
    let (receiver, address) = start_receiver(directory_path, &["plain"], "--revoked revoked");
    let reload = || {
        receiver.signal(Signal::SIGHUP);
        receiver.event("reloaded")
    };
    for length in [0, 1, list.len() / 2, list.len() - "end\n".len()] {
        std::fs::write(directory_path.join("revoked"), &list[..length]).unwrap();
        let reloaded = reload();
        assert!(
            reloaded["problem"].is_string() && reloaded["revoked"].is_null(),
            "{reloaded}"
        );
    }
    std::fs::remove_file(directory_path.join("revoked")).unwrap();
    assert!(reload()["problem"].is_string());
    nix::unistd::mkfifo(&directory_path.join("revoked"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reloaded = reload();
    assert!(
        reloaded["problem"]
            .as_str()
            .unwrap()
            .contains("not a regular file"),
        "{reloaded}"
    );
    // A revoked signer is still rejected after each of these reloads.
    send(directory_path, "plain", "hello", &address);
    receiver.signal(Signal::SIGUSR1);
    receiver.wait_for("the refusal", |line| {
        if line["event"] == "counters" && line["refused"]["revoked"] != 1 {
            receiver.signal(Signal::SIGUSR1);
        }
        line["refused"]["revoked"] == 1
    });

    std::fs::remove_file(directory_path.join("revoked")).unwrap();
    write_revocations(directory_path, &["0011223344556677"]);
    let reloaded = reload();
    assert_eq!(reloaded["revoked"], 1);
    assert_eq!(reloaded["unrevoked"], 1);
    assert_eq!(reloaded["unrevoked_signers"][0], signer);
    send(directory_path, "plain", "hello again", &address);
    receiver.event("verified");
    let ended = receiver.terminate();
    let counts = ended.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(counts["failed_reloads"], 6, "{counts}");

    // At the start there is no earlier list: an invalid list is an error.
    std::fs::write(directory_path.join("revoked"), "").unwrap();
    let pipe = directory_path.join("pipe.json");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (arguments, cause) in [
        (
            "--signers plain/signer.json --revoked revoked",
            "linewarden revoked 1",
        ),
        ("--signers pipe.json", "not a regular file"),
    ] {
        let arguments = format!("linewarden signed receive --listen 127.0.0.1:0 {arguments}");
        let output = command(directory_path, &arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(cause), "{errors}");
    }
}
