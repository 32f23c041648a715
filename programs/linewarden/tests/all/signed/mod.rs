//! Files of signers, and signed messages, including `kill -9` of a sender.

mod files;
mod floods;
mod groups;
mod outputs;
mod receiving;
mod reports;
mod sending;

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;

use linewarden_harness::skip;
use linewarden_signatures::lane::SingleLane;
use linewarden_signatures::message::{MESSAGE_BYTES_MAX, TimeMs};
use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Window};
use linewarden_signatures::refusal::Refusal;
use linewarden_signatures::store::{Revocations, read_public};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Process, TEST_TIMEOUT, command, run};

fn keygen(directory_path: &Path, arguments: &str) -> Value {
    serde_json::from_str(&run(command(
        directory_path,
        &format!("linewarden signed keygen --output json {arguments}"),
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
        run(command(
            directory_path,
            &format!("linewarden signed masks {name} --count {masks}"),
        ));
    }
}

/// Skips the test if the machine has no /etc/machine-id, to which mask files are bound.
fn require_machine_id() {
    if !Path::new("/etc/machine-id").exists() {
        skip!("this machine has no /etc/machine-id");
    }
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

/// Starts a receiver that knows these signers. Returns the process and its address.
fn start_receiver(directory_path: &Path, signers: &[&str], arguments: &str) -> (Process, String) {
    std::fs::create_dir(directory_path.join("signers")).unwrap();
    for signer in signers {
        let key = directory_path.join(signer).join("signer.json");
        std::fs::copy(key, directory_path.join("signers").join(format!("{signer}.json"))).unwrap();
    }
    let arguments =
        format!("linewarden signed receive --listen 127.0.0.1:0 --signers signers --output json {arguments}");
    let process = Process::start(command(directory_path, &arguments));
    let address = process.event("listening")["address"].as_str().unwrap().to_owned();
    (process, address)
}

fn send(directory_path: &Path, signer: &str, line: &str, to: &str) {
    std::fs::write(directory_path.join("line"), format!("{line}\n")).unwrap();
    run(command(
        directory_path,
        &format!("linewarden signed send {signer} --to {to} --input line --priority 1"),
    ));
}

/// Starts a sender whose standard input is open.
fn sender(directory_path: &Path, arguments: &str) -> std::process::Child {
    let mut command = command(directory_path, &format!("linewarden signed send {arguments}"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn send_signal(child: &std::process::Child, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
}
