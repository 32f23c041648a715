//! A server's process, which does not outlive who started it.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Waits for the end of its input, which comes with the end of who holds the other side, however that ends; then ends the server, or
/// kills it if it is told so before.
const KEEPER: &str = r#"
"$@" </dev/null &
server=$!
read -r word || :
[ "$word" != kill ] || SIGNAL=KILL
kill -"$SIGNAL" "$server" 2>/dev/null
wait "$server"
[ -z "$REMOVE" ] || rm -rf "$REMOVE"
"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    keeper: Child,
    /// Closed, it ends the server.
    line: Option<ChildStdin>,
}

/// How it is run.
pub(crate) struct Launch<'a> {
    pub(crate) program: &'a OsStr,
    pub(crate) arguments: &'a [&'a OsStr],
    /// The user and group that it runs as; `None`: as this process.
    pub(crate) user: Option<(u32, u32)>,
    /// What ends it in good order.
    pub(crate) signal: &'static str,
    /// What goes with it.
    pub(crate) remove: Option<&'a Path>,
    /// What it says on standard error once it serves.
    pub(crate) ready: &'static str,
    /// What it says where somebody is in its way who will be gone soon.
    pub(crate) in_use: &'static str,
}

/// How often it is started again then, and how long after another.
const TRIES: u32 = 100;
const TRY_EVERY: Duration = Duration::from_millis(100);

impl Server {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// What it said, if it ends before.
    pub(crate) fn start(launch: &Launch<'_>) -> io::Result<Self> {
        for _ in 0..TRIES {
            match Self::start_once(launch) {
                Err(error) if error.to_string().contains(launch.in_use) => std::thread::sleep(TRY_EVERY),
                started => return started,
            }
        }
        Self::start_once(launch)
    }

    fn start_once(launch: &Launch<'_>) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", KEEPER, "sh"])
            .arg(launch.program)
            .args(launch.arguments)
            .env("SIGNAL", launch.signal)
            .env("REMOVE", launch.remove.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // An interrupt from the keyboard is for who started it.
            .process_group(0);
        if let Some((user, group)) = launch.user {
            command.uid(user).gid(group);
        }
        let mut keeper = command.spawn()?;
        let line = keeper.stdin.take();
        let mut said = Vec::new();
        let errors = keeper
            .stderr
            .take()
            .ok_or_else(|| io::Error::other("no standard error"))?;
        let mut errors = BufReader::new(errors);
        loop {
            let mut text = Vec::new();
            if errors.read_until(b'\n', &mut text)? == 0 {
                let said = String::from_utf8_lossy(&said).into_owned();
                return Err(io::Error::other(said));
            }
            said.extend_from_slice(&text);
            if String::from_utf8_lossy(&text).contains(launch.ready) {
                break;
            }
        }
        // It goes on talking; nobody listens, but a full pipe would stop it.
        std::thread::spawn(move || io::copy(&mut errors, &mut io::sink()));
        Ok(Self {
            keeper,
            line: Some(line).flatten(),
        })
    }

    /// Ends it in good order and waits until it has ended.
    pub(crate) fn stop(&mut self) {
        self.line = None;
        let _ = self.keeper.wait();
    }

    /// Kills it in the middle of whatever it does.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        if let Some(line) = &mut self.line {
            line.write_all(b"kill\n")?;
        }
        self.stop();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
