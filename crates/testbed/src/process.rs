//! A server process that ends with the process that started it.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Waits for the end of its input, which the end of the parent process causes in any case, then stops the server; kills it after the
/// input "kill".
const SUPERVISOR_SCRIPT: &str = r#"
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
    supervisor: Child,
    /// Closing the pipe stops the server.
    control_pipe: Option<ChildStdin>,
}

/// How a server is started.
pub(crate) struct LaunchOptions<'a> {
    pub(crate) program: &'a OsStr,
    pub(crate) arguments: &'a [&'a OsStr],
    /// User and group of the server; `None`: those of this process.
    pub(crate) user: Option<(u32, u32)>,
    /// Signal that stops the server in good order.
    pub(crate) signal: &'static str,
    /// Path to remove after the server has ended.
    pub(crate) remove_on_exit: Option<&'a Path>,
    /// Message on standard error when the server is ready.
    pub(crate) ready_message: &'static str,
    /// Message on standard error if a resource is temporarily in use.
    pub(crate) busy_message: &'static str,
}

/// Number of start attempts in that case, and the interval between them.
const START_ATTEMPTS: u32 = 100;
const START_RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl Server {
    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// The error output, if the server ends before it is ready.
    pub(crate) fn start(launch: &LaunchOptions<'_>) -> io::Result<Self> {
        for _ in 0..START_ATTEMPTS {
            match Self::start_once(launch) {
                Err(error) if error.to_string().contains(launch.busy_message) => {
                    std::thread::sleep(START_RETRY_INTERVAL)
                }
                started => return started,
            }
        }
        Self::start_once(launch)
    }

    fn start_once(launch: &LaunchOptions<'_>) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SUPERVISOR_SCRIPT, "sh"])
            .arg(launch.program)
            .args(launch.arguments)
            .env("SIGNAL", launch.signal)
            .env("REMOVE", launch.remove_on_exit.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Keyboard interrupts are only for the parent process.
            .process_group(0);
        if let Some((user, group)) = launch.user {
            command.uid(user).gid(group);
        }
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        let mut output = Vec::new();
        let errors = child
            .stderr
            .take()
            .ok_or_else(|| io::Error::other("no standard error"))?;
        let mut errors = BufReader::new(errors);
        loop {
            let mut text = Vec::new();
            if errors.read_until(b'\n', &mut text)? == 0 {
                let output = String::from_utf8_lossy(&output).into_owned();
                return Err(io::Error::other(output));
            }
            output.extend_from_slice(&text);
            if String::from_utf8_lossy(&text).contains(launch.ready_message) {
                break;
            }
        }
        // Reads further output, because a full pipe would block the server.
        std::thread::spawn(move || io::copy(&mut errors, &mut io::sink()));
        Ok(Self {
            supervisor: child,
            control_pipe: Some(line).flatten(),
        })
    }

    /// Stops the server and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.control_pipe = None;
        let _ = self.supervisor.wait();
    }

    /// Kills the server.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        if let Some(line) = &mut self.control_pipe {
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
