//! nats-server with JetStream.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::process::{LaunchOptions, Server};
use crate::{Listen, Unavailable};

const READY_MESSAGE: &str = "Server is ready";
/// Message of a server whose port is in use: after a test has chosen a free port, an outgoing connection may use the
/// port before the server binds the port.
const PORT_IN_USE_MESSAGE: &str = "address already in use";

/// A running server with its own store.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    directory: tempfile::TempDir,
    listen: Listen,
    extra_arguments: Vec<String>,
    server: Option<Server>,
}

impl Nats {
    /// Starts a server with additional arguments.
    ///
    /// # Errors
    /// The server is not installed, or does not start.
    pub fn start(listen: Listen, extra_arguments: &[&str]) -> Result<Self, Unavailable> {
        let program = find_program().ok_or(Unavailable::NotInstalled {
            program: "nats-server",
            package: "nats-server",
        })?;
        let start_server = || -> io::Result<Self> {
            let mut nats = Self {
                program,
                directory: tempfile::Builder::new().prefix("linewarden-nats-").tempdir()?,
                listen,
                extra_arguments: extra_arguments
                    .iter()
                    .map(|&argument| argument.to_owned())
                    .collect(),
                server: None,
            };
            nats.restart()?;
            Ok(nats)
        };
        start_server().map_err(|error| Unavailable::StartFailed {
            program: "nats-server",
            detail: error.to_string(),
        })
    }

    /// Starts the server again with its previous store.
    ///
    /// # Errors
    /// The server does not start; the error contains its error output.
    pub fn restart(&mut self) -> io::Result<()> {
        let Listen { address, port } = self.listen;
        let (address, port) = (address.to_string(), port.to_string());
        let mut arguments: Vec<&OsStr> = ["-a", &address, "-p", &port, "-js", "-sd"]
            .map(OsStr::new)
            .to_vec();
        arguments.push(self.directory.path().as_os_str());
        arguments.extend(self.extra_arguments.iter().map(OsStr::new));
        self.server = Some(Server::start(&LaunchOptions {
            program: self.program.as_os_str(),
            arguments: &arguments,
            user: None,
            signal: "TERM",
            remove_on_exit: None,
            ready_message: READY_MESSAGE,
            busy_message: PORT_IN_USE_MESSAGE,
        })?);
        Ok(())
    }

    /// Stops the server gracefully.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Kills the server with SIGKILL. Acknowledged data that the server has passed to the operating system survive;
    /// [`restart`](Self::restart) starts the server again.
    ///
    /// # Errors
    /// The server is not running.
    pub fn kill(&mut self) -> io::Result<()> {
        let server = self.server.take();
        server
            .ok_or_else(|| io::Error::other("no server is running"))?
            .kill()
    }

    /// URL of the server.
    #[must_use]
    pub fn address(&self) -> String {
        let Listen { address, port } = self.listen;
        format!("nats://{}", std::net::SocketAddr::new(address, port))
    }
}

fn find_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join("nats-server"))
        .find(|program| Path::exists(program))
}
