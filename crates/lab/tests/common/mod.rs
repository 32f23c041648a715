//! What the tests that need root share.

use std::time::{Duration, Instant};

/// True when this test cannot run here; says why.
pub fn skipped(needed: &[linewarden_lab::capability::Capability]) -> bool {
    match linewarden_lab::capability::require(needed) {
        Ok(()) => false,
        Err(missing) => {
            eprintln!("skipped: {missing}");
            true
        }
    }
}

/// Asks again and again until `condition` holds; fails after a minute.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "still not so after a minute: {what}"
        );
        std::thread::yield_now();
    }
}
