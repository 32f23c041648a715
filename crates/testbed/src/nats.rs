//! nats-server, with JetStream.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::process::{Launch, Server};
use crate::{Listen, Missing};

const READY: &str = "Server is ready";
/// What it says while somebody has its port: who has looked for a free one does not hold it until here, and a connection that begins
/// meanwhile may get it.
const IN_USE: &str = "address already in use";

/// A running server with a store of its own.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    directory: tempfile::TempDir,
    listen: Listen,
    more: Vec<String>,
    server: Option<Server>,
}

impl Nats {
    /// Starts one there, with more arguments of its own.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(listen: Listen, more: &[&str]) -> Result<Self, Missing> {
        let program = program().ok_or(Missing::Program {
            program: "nats-server",
            package: "nats-server",
        })?;
        let started = || -> io::Result<Self> {
            let mut nats = Self {
                program,
                directory: tempfile::Builder::new().prefix("linewarden-nats-").tempdir()?,
                listen,
                more: more.iter().map(|&argument| argument.to_owned()).collect(),
                server: None,
            };
            nats.resume()?;
            Ok(nats)
        };
        started().map_err(|error| Missing::Start {
            program: "nats-server",
            detail: error.to_string(),
        })
    }

    /// Starts it once more, on what it held when it ended.
    ///
    /// # Errors
    /// What it said.
    pub fn resume(&mut self) -> io::Result<()> {
        let Listen { address, port } = self.listen;
        let (address, port) = (address.to_string(), port.to_string());
        let mut arguments: Vec<&OsStr> = ["-a", &address, "-p", &port, "-js", "-sd"]
            .map(OsStr::new)
            .to_vec();
        arguments.push(self.directory.path().as_os_str());
        arguments.extend(self.more.iter().map(OsStr::new));
        self.server = Some(Server::start(&Launch {
            program: self.program.as_os_str(),
            arguments: &arguments,
            user: None,
            signal: "TERM",
            remove: None,
            ready: READY,
            in_use: IN_USE,
        })?);
        Ok(())
    }

    /// Ends it in good order.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// `kill -9`. What it has acknowledged stays, as far as the operating system has it; [`resume`](Self::resume) starts it again.
    ///
    /// # Errors
    /// It was not running.
    pub fn kill(&mut self) -> io::Result<()> {
        let server = self.server.take();
        server
            .ok_or_else(|| io::Error::other("no server is running"))?
            .kill()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        let Listen { address, port } = self.listen;
        format!("nats://{}", std::net::SocketAddr::new(address, port))
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join("nats-server"))
        .find(|program| Path::exists(program))
}
