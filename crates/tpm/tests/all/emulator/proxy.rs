//! A proxy between the device and its TPM that counts commands. At a given command, the proxy kills the TPM, or
//! responds instead of the TPM.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use crate::emulator::swtpm::{Emulator, two_listeners};

/// The length of the header of commands and responses: tag, size, code.
const HEADER_BYTES: usize = 10;

/// The injected fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The TPM is killed before it receives the command.
    KilledBeforeCommand,
    /// The TPM is killed after its response, before the device receives the response.
    KilledAfterResponse,
    /// The proxy responds with this code to `times` commands; the TPM does not receive them.
    ErrorResponse { code: u32, times: usize },
}

/// A fault, and the number of the first command that it affects; the first command has number 1.
#[derive(Clone, Copy, Debug)]
pub struct FaultPoint(pub usize, pub Fault);

/// The proxy. It ends when the TPM is killed.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    failed_at: Arc<Mutex<Option<u32>>>,
}

impl Proxy {
    /// Starts a proxy for one connection to the emulator's TPM.
    pub fn to(emulator: &Arc<Mutex<Emulator>>, fault_point: FaultPoint) -> Self {
        let (data, control) = two_listeners();
        let port = data.local_addr().unwrap().port();
        let tpm_port = emulator.lock().unwrap().port();
        // The reference is weak: a waiting proxy must not keep the TPM running.
        let emulator = Arc::downgrade(emulator);
        let failed_at = Arc::new(Mutex::new(None));
        let proxy_failed_at = Arc::clone(&failed_at);
        thread::spawn(move || {
            // The device opens one connection per command, and one more connection before the first command.
            let mut command_number = 0;
            while let Some((device, tpm)) = accept_and_connect(&data, tpm_port) {
                if forward_commands(
                    device,
                    tpm,
                    &emulator,
                    fault_point,
                    &mut command_number,
                    &proxy_failed_at,
                )
                .is_err()
                {
                    break;
                }
            }
        });
        thread::spawn(move || {
            // Each control command has a connection of its own.
            while let Some((device, tpm)) = accept_and_connect(&control, tpm_port + 1) {
                forward_both_ways(&device, &tpm);
            }
        });
        Self { port, failed_at }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The code of the last command with a fault, if there was one.
    pub fn failed_at(&self) -> Option<u32> {
        *self.failed_at.lock().unwrap()
    }
}

fn accept_and_connect(listener: &TcpListener, port: u16) -> Option<(TcpStream, TcpStream)> {
    let (device, _) = listener.accept().ok()?;
    let tpm = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    Some((device, tpm))
}

fn forward_both_ways(device: &TcpStream, tpm: &TcpStream) {
    thread::scope(|scope| {
        for (from, to) in [(device, tpm), (tpm, device)] {
            scope.spawn(move || {
                let (mut from, mut to) = (from, to);
                io::copy(&mut from, &mut to).ok();
                to.shutdown(Shutdown::Both).ok();
            });
        }
    });
}

/// Returns the next message, or `None` at the end of the connection.
fn read_message(from: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; HEADER_BYTES];
    match from.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let size = u32::from_be_bytes(bytes[2..6].try_into().unwrap());
    bytes.resize(size as usize, 0);
    from.read_exact(&mut bytes[HEADER_BYTES..])?;
    Ok(Some(bytes))
}

/// Kills the TPM and returns the error that ends the proxy.
fn kill_tpm(emulator: &Weak<Mutex<Emulator>>) -> io::Error {
    if let Some(emulator) = emulator.upgrade() {
        emulator.lock().unwrap().kill();
    }
    io::ErrorKind::ConnectionAborted.into()
}

/// Forwards the commands of one connection; an error ends the proxy, for example because the TPM was killed.
fn forward_commands(
    mut device: TcpStream,
    mut tpm: TcpStream,
    emulator: &Weak<Mutex<Emulator>>,
    FaultPoint(first_command, fault): FaultPoint,
    command_number: &mut usize,
    failed_at: &Mutex<Option<u32>>,
) -> io::Result<()> {
    while let Some(command) = read_message(&mut device)? {
        *command_number += 1;
        let last_command = match fault {
            Fault::ErrorResponse { times, .. } => first_command + times - 1,
            Fault::KilledBeforeCommand | Fault::KilledAfterResponse => first_command,
        };
        let fault = (first_command..=last_command)
            .contains(command_number)
            .then_some(fault);
        if fault.is_some() {
            *failed_at.lock().unwrap() = Some(u32::from_be_bytes(command[6..10].try_into().unwrap()));
        }
        if let Some(Fault::ErrorResponse { code, .. }) = fault {
            device.write_all(&[&[0x80, 1, 0, 0, 0, 10][..], &code.to_be_bytes()].concat())?;
            continue;
        }
        if let Some(Fault::KilledBeforeCommand) = fault {
            return Err(kill_tpm(emulator));
        }
        tpm.write_all(&command)?;
        let response = read_message(&mut tpm)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(Fault::KilledAfterResponse) = fault {
            return Err(kill_tpm(emulator));
        }
        device.write_all(&response)?;
    }
    Ok(())
}
