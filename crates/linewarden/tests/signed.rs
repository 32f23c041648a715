//! Files of signers, and signed messages, including `kill -9` of a sender.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "signed/floods.rs"]
mod floods;
#[path = "signed/groups.rs"]
mod groups;
#[path = "signed/reports.rs"]
mod reports;
mod support;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use linewarden_signatures::lane::SingleLane;
use linewarden_signatures::message::{Envelope, MESSAGE_BYTES_MAX, TimeMs};
use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Window};
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::store::{Revocations, read_public};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{PROGRAM, Process, TEST_TIMEOUT, linewarden, run};

fn keygen(directory_path: &Path, arguments: &str) -> Value {
    serde_json::from_str(&run(linewarden(
        directory_path,
        &format!("signed keygen --json {arguments}"),
    )))
    .unwrap()
}

/// Creates an RA signer for payloads of one byte, with this number of masks. All signers of this kind share one key, because the
/// computation of the key's table takes seconds.
fn byte_signer(directory_path: &Path, name: &str, masks: u32) {
    static FILES: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        keygen(
            directory.path(),
            "--scheme ra-rsa2048 --layout bytes:1 --out byte",
        );
        let files = std::fs::read_dir(directory.path().join("byte")).unwrap();
        let contents = files.map(|file| {
            let file = file.unwrap();
            (file.file_name(), std::fs::read(file.path()).unwrap())
        });
        contents.collect()
    });
    let signer = directory_path.join(name);
    DirBuilder::new().mode(0o700).create(&signer).unwrap();
    for (name, bytes) in files {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(signer.join(name));
        file.unwrap().write_all(bytes).unwrap();
    }
    if masks > 0 {
        run(linewarden(
            directory_path,
            &format!("signed masks {name} --count {masks}"),
        ));
    }
}

/// Returns true if the machine has no /etc/machine-id, to which mask files are bound.
fn lacks_machine_id() -> bool {
    let is_missing = !Path::new("/etc/machine-id").exists();
    if is_missing {
        println!("SKIPPED: this machine has no /etc/machine-id");
    }
    is_missing
}

/// A socket that receives messages, and its address.
fn inbox() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

fn receive_message(inbox: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX + 1];
    let length = inbox.recv(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn receiver(directory_path: &Path, signers: &[&str]) -> Receiver {
    let mut known_signers = Signers::default();
    for signer in signers {
        known_signers
            .add(read_public(&directory_path.join(signer).join("signer.json")).unwrap())
            .unwrap();
    }
    let window = Window {
        age_ms_max: 600_000,
        ahead_ms_max: 600_000,
    };
    let replays = ReplayMemory::new(window, 1 << 16, [3; 16]);
    Receiver::new(known_signers, Revocations::default(), window, replays)
}

fn now() -> TimeMs {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    TimeMs::from_unix_ms(since_epoch.as_millis().try_into().unwrap())
}

/// Verifies a message and returns its payload.
fn verify(receiver: &mut Receiver, bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let screened = receiver.screen(bytes.to_vec(), now())?;
    let is_valid = SingleLane::default().verify_one(&screened);
    Ok(receiver
        .accept(screened, is_valid, now())?
        .message()
        .payload()
        .to_vec())
}

#[test]
fn sent_messages_verify_and_carry_the_payloads_of_the_lines() {
    if lacks_machine_id() {
        return;
    }
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
    let sent = run(linewarden(
        directory_path,
        &format!("signed send plain --to {address} --input lines --lanes 1 --json"),
    ));
    assert_eq!(serde_json::from_str::<Value>(&sent).unwrap()["sent"], 2);
    assert_eq!(verify(&mut receiver, &receive_message(&inbox)).unwrap(), b"hello");
    let second = receive_message(&inbox);
    assert_eq!(verify(&mut receiver, &second).unwrap(), b"world");
    assert_eq!(verify(&mut receiver, &second), Err(Refusal::Replayed));

    std::fs::write(directory_path.join("lines"), "[\"close\", 7]\n").unwrap();
    let arguments = format!(
        "signed send breaker --to {address} --input lines --count 70 --priority 0 --idle-masks 0 --json"
    );
    let sent: Value = serde_json::from_str(&run(linewarden(directory_path, &arguments))).unwrap();
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
    if lacks_machine_id() {
        return;
    }
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
        let arguments = format!("signed send truck --to {address} --input lines --count 100000");
        let mut sender = linewarden(directory_path, &arguments)
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

#[test]
fn files_that_others_could_have_read_or_copied_are_refused() {
    if lacks_machine_id() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    byte_signer(directory_path, "truck", 64);
    let assert_refused = |code: i32, cause: &str| {
        let arguments = "signed send truck --to 127.0.0.1:9 --input truck/signer.json";
        let output = linewarden(directory_path, arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(cause), "{errors}");
    };
    for name in ["key", "table", "masks", "seal.key"] {
        let file = directory_path.join("truck").join(name);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_refused(4, name);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let masks = directory_path.join("truck/masks");
    std::fs::copy(&masks, directory_path.join("copy")).unwrap();
    std::fs::remove_file(&masks).unwrap();
    std::fs::copy(directory_path.join("copy"), &masks).unwrap();
    assert_refused(4, "is a copy");
    std::fs::remove_file(&masks).unwrap();
    run(linewarden(directory_path, "signed masks truck --count 128"));
    let backup = directory_path.join("backup");
    std::fs::copy(&masks, &backup).unwrap();
    std::fs::write(directory_path.join("line"), "a\n").unwrap();
    for _ in 0..2 {
        let arguments = "signed send truck --to 127.0.0.1:9 --input line --idle-masks 0";
        run(linewarden(directory_path, arguments));
    }
    std::fs::write(&masks, std::fs::read(&backup).unwrap()).unwrap();
    assert_refused(4, "was rolled back");
    std::fs::write(&masks, b"nonsense").unwrap();
    assert_refused(2, "masks");
    std::fs::write(directory_path.join("truck/table"), b"nonsense").unwrap();
    assert_refused(2, "table");
    let output = linewarden(directory_path, "signed keygen --scheme ed25519 --out truck")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Runs a script in a private mount namespace. Prints the reason and returns `None` without the privilege; otherwise returns
/// whether the script succeeded, and its output of both streams.
fn in_private_mounts(directory_path: &Path, script: &str) -> Option<(bool, String)> {
    let script = format!("set -e; exec 2>&1; mount -t tmpfs none /mnt && umount /mnt || exit 77; {script}");
    let run = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env("LINEWARDEN", PROGRAM)
        .current_dir(directory_path)
        .output();
    let output = match run {
        Ok(output) if output.status.code() != Some(77) => output,
        _ => {
            println!("SKIPPED: file systems cannot be mounted here; needs root");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((output.status.success(), text))
}

/// ramfs has no user extended attributes. The mask file is created without attributes, and the command prints a notice.
#[test]
fn a_file_system_without_attributes_is_reported() {
    if lacks_machine_id() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mkdir ram; mount -t ramfs none ram; cd ram
        $LINEWARDEN signed keygen --scheme ra-rsa2048 --layout bytes:1 --masks 128 --out truck
        echo a > line; $LINEWARDEN signed send truck --to 127.0.0.1:9 --input line --idle-masks 0";
    let Some((succeeded, text)) = in_private_mounts(directory.path(), script) else {
        return;
    };
    assert!(succeeded, "{text}");
    assert!(
        text.contains("truck/masks: the file system has no user extended attributes"),
        "{text}"
    );
    assert!(text.contains("64 masks left in the file"), "{text}");
}

/// The clone has the same inode numbers, creation times and attributes as the original file system, but another UUID. To mount
/// both file systems, XFS and btrfs require different UUIDs, and ext4 recommends them.
#[test]
fn masks_on_a_cloned_file_system_are_refused() {
    if lacks_machine_id() {
        return;
    }
    for tool in ["mkfs.ext4", "tune2fs"] {
        if Command::new(tool).arg("-V").output().is_err() {
            println!("SKIPPED: there is no {tool}");
            return;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "truncate -s 16M one; mkfs.ext4 -q -F one; mkdir at; mount -o loop one at || exit 77
        (cd at; $LINEWARDEN signed keygen --scheme ra-rsa2048 --layout bytes:1 --masks 64 --out truck)
        umount at; cp one two; tune2fs -U random two > /dev/null
        echo a > line; send='$LINEWARDEN signed send at/truck --to 127.0.0.1:9 --input line --idle-masks 0'
        mount -o loop two at; code=0; eval $send || code=$?; echo code $code; umount at
        mount -o loop one at; eval $send; umount at";
    let Some((succeeded, text)) = in_private_mounts(directory.path(), script) else {
        return;
    };
    assert!(succeeded, "{text}");
    assert!(text.contains("code 4") && text.contains("is a copy"), "{text}");
    // After a remount, the original file is valid.
    assert!(text.contains("1 with masks, 0 without"), "{text}");
}

/// Starts a receiver that knows these signers. Returns the process and its address.
fn start_receiver(directory_path: &Path, signers: &[&str], arguments: &str) -> (Process, String) {
    std::fs::create_dir(directory_path.join("signers")).unwrap();
    for signer in signers {
        let key = directory_path.join(signer).join("signer.json");
        std::fs::copy(key, directory_path.join("signers").join(format!("{signer}.json"))).unwrap();
    }
    let arguments = format!("signed receive --listen 127.0.0.1:0 --signers signers --json {arguments}");
    let process = Process::start(linewarden(directory_path, &arguments));
    let address = process.event("listening")["address"].as_str().unwrap().to_owned();
    (process, address)
}

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

fn send(directory_path: &Path, signer: &str, line: &str, to: &str) {
    std::fs::write(directory_path.join("line"), format!("{line}\n")).unwrap();
    run(linewarden(
        directory_path,
        &format!("signed send {signer} --to {to} --input line --priority 1"),
    ));
}

/// The command fails even on a machine with a driver and a GPU, because there is no compiler at the given path.
#[test]
fn a_required_gpu_that_is_missing_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    let arguments = "signed receive --listen 127.0.0.1:0 --signers plain/signer.json --gpu require";
    let output = linewarden(directory_path, arguments)
        .env("LINEWARDEN_NVRTC", directory_path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("--gpu require: "), "{errors}");
}

#[test]
fn a_receiver_delivers_verified_messages_and_counts_the_others() {
    if lacks_machine_id() {
        return;
    }
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
        let arguments = format!("signed receive --listen 127.0.0.1:0 {arguments}");
        let output = linewarden(directory_path, &arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(cause), "{errors}");
    }
}

/// Starts a sender whose standard input is open.
fn sender(directory_path: &Path, arguments: &str) -> std::process::Child {
    let mut command = linewarden(directory_path, &format!("signed send {arguments}"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn send_signal(child: &std::process::Child, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// After a signal or an invalid line, all lines that were read before are sent and counted.
#[test]
fn a_sender_prints_its_counters_at_every_end() {
    use std::io::Write as _;
    // The line format of the documentation.
    let documentation = include_str!("../../../docs/operations/signed-messages.md").lines();
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
    let receive = "signed receive --listen 127.0.0.1:0 --signers plain/signer.json";
    for (arguments, expected) in [
        (
            "signed send bytes --to 127.0.0.1:9 --input line",
            "line 1: payload of 5 bytes, but the key's layout has 1",
        ),
        ("signed send plain --to 127.0.0.1:9 --input line", "--seal-key"),
        (
            "signed send bytes --kind bsm --to 127.0.0.1:9 --input line",
            "--kind",
        ),
        (
            &format!("{receive} --out tcp:127.0.0.1:9"),
            "unknown destination: use udp:ADDRESS:PORT or unix:PATH",
        ),
        (&format!("{receive} --interface lo"), "not a multicast group"),
        (&format!("{receive} --remember 0"), "--remember"),
        (
            "signed keygen --scheme ra-rsa2048 --layout BSM --out new",
            "bsm, bytes:N or a file",
        ),
        (
            "signed keygen --scheme ed25519 --seal-key no/such --out new",
            "no/such",
        ),
    ] {
        let output = linewarden(directory_path, arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(expected),
            "{arguments}: {error}"
        );
        assert!(!directory_path.join("new").exists(), "{arguments}");
    }
}
