//! A flood of invalid datagrams at a running receiver.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use linewarden_signatures::udp::{BATCH, UdpSender};
use nix::sys::signal::Signal;

use super::{keygen, require_machine_id, send, start_receiver};

/// Ends the flood even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each datagram of the flood is received, dropped by the filter, or lost in the socket's buffer.
#[test]
fn a_flood_is_filtered_and_reported() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    keygen(directory_path, "--scheme ed25519 --out plain");
    let (receiver, address) = start_receiver(directory_path, &["plain"], "");
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop_guard = StopOnDrop(&stop);
        scope.spawn(|| {
            let flood = UdpSender::open(address.parse().unwrap(), 0, 0).unwrap();
            let garbage = vec![vec![0; 40]; BATCH];
            while !stop.load(Ordering::Relaxed) {
                flood.send(&garbage).unwrap();
                sent.fetch_add(BATCH as u64, Ordering::Relaxed);
            }
        });
        let filter = receiver.event("flood_filter");
        assert_eq!(filter["state"], "attached");
        assert!(filter["sample_one_in"].as_u64().unwrap() >= 10, "{filter}");
        assert!(filter["known_senders"].is_null(), "{filter}");
        send(directory_path, "plain", "hello", &address);
        assert_eq!(receiver.event("verified")["payload"]["text"], "hello");
        drop(stop_guard);
    });
    assert_eq!(receiver.event("flood_filter")["state"], "detached");
    receiver.signal(Signal::SIGTERM);
    let ended = receiver.event("ended");
    let count = |count: &serde_json::Value| count.as_u64().unwrap();
    let (received, filtered) = (count(&ended["received"]), count(&ended["shed"]["overload"]));
    assert!(filtered > 0, "{ended}");
    let total = received + filtered + count(&ended["kernel_drops"]);
    assert_eq!(total, 1 + sent.load(Ordering::Relaxed), "{ended}");
}
