//! PostgreSQL.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Launch, Server};
use crate::{Listen, Missing};

const MISSING: Missing = Missing::Program {
    program: "postgres",
    package: "postgresql",
};
const READY: &str = "database system is ready to accept connections";
/// What it says while processes of an earlier start are still there: those of one that was killed notice it one by one.
const IN_USE: &str = "is still in use";

/// How a server is run.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// Where it listens beside its socket in the file system; `None`: nowhere.
    pub listen: Option<Listen>,
    /// Whether a commit is on the disk when it returns: for measurements. Tests do not turn machines off.
    pub durable: bool,
}

/// A running server with a cluster of its own.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    directory: PathBuf,
    user: Option<(u32, u32)>,
    options: PostgresOptions,
    server: Option<Server>,
    /// Whether the cluster is another process's.
    attached: bool,
}

impl Postgres {
    /// One that another process has started in that directory.
    #[must_use]
    pub fn attach(directory: &Path) -> Self {
        Self {
            programs: programs().unwrap_or_default(),
            directory: directory.to_owned(),
            user: None,
            options: PostgresOptions::default(),
            server: None,
            attached: true,
        }
    }

    /// Makes a cluster and starts it.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(options: PostgresOptions) -> Result<Self, Missing> {
        let programs = programs().ok_or(MISSING)?;
        let made = || -> io::Result<Self> {
            let directory = tempfile::Builder::new()
                .prefix("linewarden-postgres-")
                .tempdir()?;
            let user = server_user(directory.path())?;
            let mut postgres = Self {
                programs,
                directory: directory.keep(),
                user,
                options,
                server: None,
                attached: false,
            };
            postgres.initialise()?;
            postgres.resume()?;
            Ok(postgres)
        };
        made().map_err(|error| Missing::Start {
            program: "postgres",
            detail: error.to_string(),
        })
    }

    fn initialise(&self) -> io::Result<()> {
        let mut command = Command::new(self.programs.join("initdb"));
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

    /// Starts it once more, on what it held when it was stopped.
    ///
    /// # Errors
    /// What it said.
    pub fn resume(&mut self) -> io::Result<()> {
        let program = self.programs.join("postgres");
        let data = self.directory.join("data");
        let mut arguments: Vec<String> = Vec::new();
        let mut set = |setting: String| arguments.extend(["-c".to_owned(), setting]);
        set(format!("unix_socket_directories={}", self.directory.display()));
        set("max_connections=200".to_owned());
        match self.options.listen {
            Some(Listen { address, port }) => {
                set(format!("listen_addresses={address}"));
                set(format!("port={port}"));
                // Whoever reaches it is a test.
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
        let mut all: Vec<&OsStr> = vec![OsStr::new("-D"), data.as_os_str()];
        all.extend(arguments.iter().map(OsStr::new));
        let launch = Launch {
            program: program.as_os_str(),
            arguments: &all,
            user: self.user,
            // Without waiting for who is connected.
            signal: "INT",
            remove: None,
            ready: READY,
            in_use: IN_USE,
        };
        self.server = Some(Server::start(&launch)?);
        Ok(())
    }

    /// Ends it, whoever is connected; what was committed stays.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// `kill -9`. What was committed stays, as far as the operating system has it; [`resume`](Self::resume) starts it again.
    ///
    /// # Errors
    /// It was not running.
    pub fn kill(&mut self) -> io::Result<()> {
        let server = self.server.take();
        server
            .ok_or_else(|| io::Error::other("no server is running"))?
            .kill()
    }

    /// Its processes do nothing any more, as on a machine whose disk has hung, until what is returned is dropped.
    ///
    /// # Errors
    /// It is not running.
    pub fn pause(&self) -> io::Result<Paused> {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        let first = file.lines().next().unwrap_or_default().to_owned();
        // It makes no more of them from here on.
        if !signal("STOP", &first)? {
            return Err(io::Error::other("no server is running"));
        }
        let mut paused = Paused { processes: first };
        let children = format!("/proc/{0}/task/{0}/children", paused.processes);
        paused.processes = format!("{} {}", paused.processes, fs::read_to_string(children)?);
        // Some end meanwhile.
        signal("STOP", &paused.processes)?;
        Ok(paused)
    }

    fn port(&self) -> u16 {
        self.options.listen.map_or(5432, |listen| listen.port)
    }

    /// Where its cluster and its socket are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The address of a new, empty schema of this name, by the socket in the file system.
    ///
    /// # Errors
    /// What `psql` said.
    pub fn new_schema(&self, name: &str) -> io::Result<String> {
        self.psql(&format!("CREATE SCHEMA {name}"))?;
        Ok(format!(
            "postgres://postgres@localhost:{}/postgres?host={}&options[search_path]={name}",
            self.port(),
            self.directory.display()
        ))
    }

    /// The address of the database `postgres` where it listens.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        let Listen { address, port } = self.options.listen?;
        Some(match address {
            IpAddr::V4(address) => format!("postgres://postgres@{address}:{port}/postgres"),
            IpAddr::V6(address) => format!("postgres://postgres@[{address}]:{port}/postgres"),
        })
    }

    /// Runs statements, as somebody with a shell on the server would; returns what they return, a line a row.
    ///
    /// # Errors
    /// What `psql` said.
    pub fn psql(&self, statements: &str) -> io::Result<String> {
        let output = Command::new(self.programs.join("psql"))
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

/// A server that does nothing; dropped, it goes on.
#[derive(Debug)]
pub struct Paused {
    processes: String,
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = signal("CONT", &self.processes);
    }
}

/// Whether all of them were there.
fn signal(name: &str, processes: &str) -> io::Result<bool> {
    let status = Command::new("/bin/sh")
        .args(["-c", "kill -\"$0\" \"$@\"", name])
        .args(processes.split_whitespace())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.attached {
            return;
        }
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The directory of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, programs)| programs.join("postgres").exists())
        .collect();
    versions.sort();
    versions.pop().map(|(_, programs)| programs)
}

/// As whom it runs: it refuses to be root. The directory becomes that user's.
fn server_user(directory: &Path) -> io::Result<Option<(u32, u32)>> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    if fs::metadata(directory)?.uid() != 0 {
        return Ok(None);
    }
    let accounts = fs::read_to_string("/etc/passwd")?;
    let account = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_servers = fields.next() == Some("postgres");
        let numbers = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_servers.then_some(numbers)
    });
    const NOBODY: (u32, u32) = (65534, 65534);
    let (user, group) = account.unwrap_or(NOBODY);
    chown(directory, Some(user), Some(group))?;
    Ok(Some((user, group)))
}
