//! A server process that ends with the process that started it.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Starts the server and waits for a line or the end of standard input, which the end of the parent process closes. The
/// line "kill" kills the server; otherwise the script stops the server gracefully.
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
    /// Signal that stops the server gracefully.
    pub(crate) signal: &'static str,
    /// Path to remove after the server has ended.
    pub(crate) remove_on_exit: Option<&'a Path>,
    /// Message on standard error when the server is ready.
    pub(crate) ready_message: &'static str,
    /// Message on standard error if a resource is temporarily in use; the start is then retried.
    pub(crate) busy_message: &'static str,
}

/// Maximum number of retries of a start while a resource is in use.
const START_RETRIES: u32 = 100;
const START_RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl Server {
    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// The server ends before it is ready; the error contains its error output.
    pub(crate) fn start(launch: &LaunchOptions<'_>) -> io::Result<Self> {
        for _ in 0..START_RETRIES {
            match Self::start_once(launch) {
                Err(error) if error.to_string().contains(launch.busy_message) => {
                    std::thread::sleep(START_RETRY_INTERVAL)
                }
                result => return result,
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
            // Keyboard interrupts must reach only the parent process.
            .process_group(0);
        if let Some((user, group)) = launch.user {
            command.uid(user).gid(group);
        }
        let mut child = command.spawn()?;
        let control_pipe = child.stdin.take();
        let mut output = Vec::new();
        let stderr = child
            .stderr
            .take()
            .ok_or_else(|| io::Error::other("no standard error"))?;
        let mut stderr = BufReader::new(stderr);
        loop {
            let mut line = Vec::new();
            if stderr.read_until(b'\n', &mut line)? == 0 {
                let output = String::from_utf8_lossy(&output).into_owned();
                return Err(io::Error::other(output));
            }
            output.extend_from_slice(&line);
            if String::from_utf8_lossy(&line).contains(launch.ready_message) {
                break;
            }
        }
        // The thread reads all further output, because a full pipe would block the server.
        std::thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Ok(Self {
            supervisor: child,
            control_pipe: Some(control_pipe).flatten(),
        })
    }

    /// Stops the server and waits for its end.
    pub(crate) fn stop(&mut self) {
        self.control_pipe = None;
        let _ = self.supervisor.wait();
    }

    /// Kills the server.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        if let Some(control_pipe) = &mut self.control_pipe {
            control_pipe.write_all(b"kill\n")?;
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
