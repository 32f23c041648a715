//! PostgreSQL server.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{LaunchOptions, Server};
use crate::{Listen, Unavailable};

const NOT_INSTALLED: Unavailable = Unavailable::NotInstalled {
    program: "postgres",
    package: "postgresql",
};
const READY_MESSAGE: &str = "database system is ready to accept connections";
/// Message of a new server while processes of a killed server still run: each of these processes detects the kill by itself.
const CLUSTER_IN_USE_MESSAGE: &str = "is still in use";

/// Settings of a server.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// TCP address, in addition to the Unix socket; `None`: no TCP.
    pub listen: Option<Listen>,
    /// Whether commits are written to the disk: for benchmarks. Tests need not survive a power failure.
    pub durable: bool,
}

/// A running server with its own cluster.
#[derive(Debug)]
pub struct Postgres {
    bin_directory: PathBuf,
    directory: PathBuf,
    user: Option<(u32, u32)>,
    options: PostgresOptions,
    server: Option<Server>,
    /// Whether another process has started the server.
    is_attached: bool,
}

impl Postgres {
    /// A server that another process has started in `directory`; dropping the value does not stop the server.
    #[must_use]
    pub fn attach(directory: &Path) -> Self {
        Self {
            bin_directory: find_bin_directory().unwrap_or_default(),
            directory: directory.to_owned(),
            user: None,
            options: PostgresOptions::default(),
            server: None,
            is_attached: true,
        }
    }

    /// Creates a cluster and starts the server.
    ///
    /// # Errors
    /// The server is not installed, or does not start.
    pub fn start(options: PostgresOptions) -> Result<Self, Unavailable> {
        let bin_directory = find_bin_directory().ok_or(NOT_INSTALLED)?;
        let create = || -> io::Result<Self> {
            let directory = tempfile::Builder::new()
                .prefix("linewarden-postgres-")
                .tempdir()?;
            let user = server_user(directory.path())?;
            let mut postgres = Self {
                bin_directory,
                directory: directory.keep(),
                user,
                options,
                server: None,
                is_attached: false,
            };
            postgres.initialize()?;
            postgres.restart()?;
            Ok(postgres)
        };
        create().map_err(|error| Unavailable::StartFailed {
            program: "postgres",
            detail: error.to_string(),
        })
    }

    fn initialize(&self) -> io::Result<()> {
        let mut command = Command::new(self.bin_directory.join("initdb"));
        command
            .args([
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg("--pgdata")
            .arg(self.directory.join("data"))
            .current_dir("/")
            .stdin(Stdio::null());
        if let Some((user, group)) = self.user {
            use std::os::unix::process::CommandExt as _;
            command.uid(user).gid(group);
        }
        let output = command.output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )),
        }
    }

    /// Starts the server again with its previous cluster.
    ///
    /// # Errors
    /// The server does not start; the error contains its error output.
    pub fn restart(&mut self) -> io::Result<()> {
        let program = self.bin_directory.join("postgres");
        let data = self.directory.join("data");
        let mut arguments: Vec<String> = Vec::new();
        let mut set = |setting: String| arguments.extend(["-c".to_owned(), setting]);
        set(format!("unix_socket_directories={}", self.directory.display()));
        set("max_connections=200".to_owned());
        match self.options.listen {
            Some(Listen { address, port }) => {
                set(format!("listen_addresses={address}"));
                set(format!("port={port}"));
                // Everyone who can reach the address has access: it is a test's own address.
                fs::write(
                    data.join("pg_hba.conf"),
                    "local all all trust\nhost all all all trust\n",
                )?;
            }
            None => set("listen_addresses=".to_owned()),
        }
        if !self.options.durable {
            set("fsync=off".to_owned());
            set("full_page_writes=off".to_owned());
        }
        let mut server_arguments: Vec<&OsStr> = vec![OsStr::new("-D"), data.as_os_str()];
        server_arguments.extend(arguments.iter().map(OsStr::new));
        let launch = LaunchOptions {
            program: program.as_os_str(),
            arguments: &server_arguments,
            user: self.user,
            // Fast shutdown: does not wait for connected clients.
            signal: "INT",
            remove_on_exit: None,
            ready_message: READY_MESSAGE,
            busy_message: CLUSTER_IN_USE_MESSAGE,
        };
        self.server = Some(Server::start(&launch)?);
        Ok(())
    }

    /// Stops the server, also with connected clients; committed data remain.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Kills the server with SIGKILL. Committed data that the server has passed to the operating system survive;
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

    /// Suspends all processes of the server, as if its disk hung, until the returned guard is dropped.
    ///
    /// # Errors
    /// The server is not running.
    pub fn pause(&self) -> io::Result<Paused> {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        let postmaster_pid = file.lines().next().unwrap_or_default().to_owned();
        // The stopped postmaster starts no more processes.
        if !signal("STOP", &postmaster_pid)? {
            return Err(io::Error::other("no server is running"));
        }
        let mut paused = Paused {
            process_ids: postmaster_pid,
        };
        let children = format!("/proc/{0}/task/{0}/children", paused.process_ids);
        paused.process_ids = format!("{} {}", paused.process_ids, fs::read_to_string(children)?);
        // Processes that have ended meanwhile are ignored.
        signal("STOP", &paused.process_ids)?;
        Ok(paused)
    }

    fn port(&self) -> u16 {
        self.options.listen.map_or(5432, |listen| listen.port)
    }

    /// Directory of the cluster and the Unix socket.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates an empty schema with this name; returns a URL of the schema, which uses the Unix socket.
    ///
    /// # Errors
    /// `psql` fails; the error contains its error output.
    pub fn new_schema(&self, name: &str) -> io::Result<String> {
        self.psql(&format!("CREATE SCHEMA {name}"))?;
        Ok(format!(
            "postgres://postgres@localhost:{}/postgres?host={}&options[search_path]={name}",
            self.port(),
            self.directory.display()
        ))
    }

    /// URL of the database `postgres`, which uses TCP; `None`: the server has no TCP address.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        let Listen { address, port } = self.options.listen?;
        Some(match address {
            IpAddr::V4(address) => format!("postgres://postgres@{address}:{port}/postgres"),
            IpAddr::V6(address) => format!("postgres://postgres@[{address}]:{port}/postgres"),
        })
    }

    /// Runs SQL statements; returns their results, one line per result row.
    ///
    /// # Errors
    /// `psql` fails; the error contains its error output.
    pub fn psql(&self, statements: &str) -> io::Result<String> {
        let output = Command::new(self.bin_directory.join("psql"))
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
                "-d",
                "postgres",
            ])
            .arg("-h")
            .arg(&self.directory)
            .arg("-p")
            .arg(self.port().to_string())
            .args(["-c", statements])
            .stdin(Stdio::null())
            .output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )),
        }
    }
}

/// A suspended server; dropping the guard resumes it.
#[derive(Debug)]
pub struct Paused {
    /// Process ids, separated by spaces.
    process_ids: String,
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = signal("CONT", &self.process_ids);
    }
}

/// Sends a signal to processes; their ids are separated by spaces. Returns whether all processes existed.
fn signal(name: &str, process_ids: &str) -> io::Result<bool> {
    let status = Command::new("/bin/sh")
        .args(["-c", "kill -\"$0\" \"$@\"", name])
        .args(process_ids.split_whitespace())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.is_attached {
            return;
        }
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The program directory of the newest installed version.
fn find_bin_directory() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, bin_directory)| bin_directory.join("postgres").exists())
        .collect();
    versions.sort();
    versions.pop().map(|(_, bin_directory)| bin_directory)
}

/// Returns the user and group for the server, because PostgreSQL refuses to run as root; `None` if this process does not
/// run as root. The user becomes the owner of the directory.
fn server_user(directory: &Path) -> io::Result<Option<(u32, u32)>> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    if fs::metadata(directory)?.uid() != 0 {
        return Ok(None);
    }
    let accounts = fs::read_to_string("/etc/passwd")?;
    let account = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_postgres = fields.next() == Some("postgres");
        let user_and_group = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_postgres.then_some(user_and_group)
    });
    const UNPRIVILEGED: (u32, u32) = (65534, 65534);
    let (user, group) = account.unwrap_or(UNPRIVILEGED);
    chown(directory, Some(user), Some(group))?;
    Ok(Some((user, group)))
}
