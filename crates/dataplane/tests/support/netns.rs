//! Networks of a test's own, by `ip` of iproute2.

use std::process::Command;

/// Leaves the calling thread in a network namespace of its own; `false`, with the reason, where that is not allowed.
pub fn leave_namespace() -> bool {
    // SAFETY: takes no pointer; affects the calling thread only.
    let left = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !left {
        println!(
            "SKIPPED: a network namespace: {}",
            std::io::Error::last_os_error()
        );
    }
    left
}

/// Runs `ip`, which must succeed.
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}
