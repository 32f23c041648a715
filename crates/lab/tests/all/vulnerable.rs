//! A verifier with the vulnerabilities of the published, earlier verifier. The published attacks must succeed against it.

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_lab::topology::Lab;
use linewarden_protocol::classic::{Block, Message, ResponseBits, hash, mask, message_type, xor};

pub const BITS: ResponseBits = ResponseBits::B64;
/// Number of challenge-response pairs of each device. A pair can be used more than once.
const PAIRS: u32 = 8;

/// The response of a device to a challenge, in place of a PUF.
pub fn response(identifier: u32, challenge: u32) -> Block {
    let mut block = [0; 32];
    let mixed = (u64::from(identifier) << 32 | u64::from(challenge)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    block[..8].copy_from_slice(&(mixed ^ mixed >> 29).to_be_bytes());
    block
}

pub struct VulnerableVerifier {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl VulnerableVerifier {
    pub fn start(lab: &Lab, port: u16) -> Self {
        let socket = lab
            .gateway
            .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))
            .unwrap()
            .unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut expected: HashMap<u32, u32> = HashMap::new();
            let mut draws = 0u32;
            let mut buffer = [0u8; 128];
            while !stop_flag.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let Some(mut message) = Message::parse(BITS, &buffer[..length]) else {
                    continue; // the earlier verifier dropped such packets or passed them to the stack
                };
                match message.kind {
                    message_type::REQ => {
                        draws += 1;
                        message.kind = message_type::CH;
                        message.challenge1 = draws.wrapping_mul(0x9e37_79b9) % PAIRS;
                        let mut rn = [0; 32];
                        rn[..8].copy_from_slice(
                            &u64::from(draws).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes(),
                        );
                        let r = response(message.identifier, message.challenge1);
                        message.rn = xor(&rn, &mask(&r, None));
                        expected.insert(message.identifier, hash(BITS, &r, None, &rn));
                    }
                    // The expected hash is zero before the first REQ, is never cleared, and is not bound to an exchange.
                    message_type::RESP
                        if expected.get(&message.identifier).copied().unwrap_or(0) == message.hash =>
                    {
                        message.kind = message_type::ACK;
                    }
                    _ => continue,
                }
                let mut reply = vec![0; BITS.message_bytes()];
                message.write(BITS, &mut reply).unwrap();
                socket.send_to(&reply, from).unwrap();
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for VulnerableVerifier {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
