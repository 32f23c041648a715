//! Runs `ip -batch` (iproute2) inside a namespace.
//!
//! One process configures any number of interfaces, addresses, routes and neighbors. The script has the syntax of the
//! command line, so a failing line can be tried by hand.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use crate::netns::{NetNs, NetNsError};

/// Why a script failed.
#[derive(Debug, thiserror::Error)]
pub enum IpError {
    /// The namespace could not be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// `ip` could not be started or its input could not be written.
    #[error("`ip` could not be run: {0}; install the package iproute2")]
    Run(#[source] io::Error),
    /// `ip` refused a line.
    #[error("`ip -batch` failed: {stderr}; its input was:\n{script}")]
    Refused {
        /// The error output of `ip`.
        stderr: String,
        /// The input of `ip`, cut off after 2,000 characters.
        script: String,
    },
}

/// Runs the script, one `ip` command without the leading `ip` per line; stops at the first failing command.
///
/// # Errors
/// `ip` cannot be run or refuses a line; the error contains the output of `ip`.
pub fn batch(netns: &NetNs, script: &str) -> Result<(), IpError> {
    let output = netns
        .run(|| -> io::Result<_> {
            let mut child = Command::new("ip")
                .args(["-batch", "-"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                // `ip` closes its input at a bad line; its exit status is then more useful than EPIPE.
                match stdin.write_all(script.as_bytes()) {
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                    _ => {}
                }
            }
            child.wait_with_output()
        })?
        .map_err(IpError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    Err(IpError::Refused {
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        script: script.chars().take(2_000).collect(),
    })
}
