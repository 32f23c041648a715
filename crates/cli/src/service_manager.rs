//! Notifications to the service manager: sd_notify(3), `Type=notify` and `notify-reload`. The units are in `deploy/systemd`.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service is ready, or a reload has ended.
pub const READY: &str = "READY=1";
/// The service is stopping.
pub const STOPPING: &str = "STOPPING=1";

/// The service reloads its configuration.
pub fn reloading() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    format!("RELOADING=1\nMONOTONIC_USEC={now_us}")
}

/// Sends a notification, if a service manager listens.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    let result =
        address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = result {
        tracing::warn!(%error, "service manager notification failed");
    }
}
