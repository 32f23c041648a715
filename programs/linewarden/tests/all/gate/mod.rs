//! A bound or sealed gate after its gateway was killed, terminated or restarted, and the removal of the gate. The interface to
//! the devices is the loopback interface of a network namespace that the test creates.

mod closing;
mod interfaces;
mod left_behind;
mod pin_directory;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use linewarden_lab::netns::NetNs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support;

struct Site {
    namespace: NetNs,
    directory: PathBuf,
    service: UdpSocket,
    _controller: support::Process,
}

impl Site {
    fn command(&self, command_line: &str) -> Command {
        support::command(&self.directory, command_line)
    }

    /// Runs a command in the namespace: a child process is in the namespace of the thread that starts it.
    fn run(&self, command_line: &str) -> Output {
        let mut command = self.command(command_line);
        self.namespace.run(|| command.output().unwrap()).unwrap()
    }

    /// Runs a command that must succeed.
    #[track_caller]
    fn ok(&self, command_line: &str) {
        let output = self.run(command_line);
        assert!(output.status.success(), "{command_line}: {output:?}");
    }

    /// Runs a command that must fail, and returns its standard error.
    #[track_caller]
    fn refused(&self, command_line: &str) -> String {
        let output = self.run(command_line);
        assert!(!output.status.success(), "{command_line}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn serve(&self) -> Gateway {
        self.serve_to(Stdio::inherit())
    }

    fn serve_to(&self, log: Stdio) -> Gateway {
        let mut command =
            self.command("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
        let command = command.stdout(Stdio::piped()).stderr(log);
        let mut child = self.namespace.run(|| command.spawn().unwrap()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("\"loaded\":true")));
        Gateway(child)
    }

    /// Whether an egress filter of linewarden is attached.
    fn is_filtered(&self) -> bool {
        let filters = self.run("tc filter show dev lo egress");
        String::from_utf8(filters.stdout).unwrap().contains("linewarden")
    }

    /// Whether a datagram from a sender without a session arrives at the service.
    fn passes(&self) -> bool {
        let service_address = self.service.local_addr().unwrap();
        let sender = self
            .namespace
            .run(|| UdpSocket::bind("127.0.0.1:0").unwrap())
            .unwrap();
        sender.send_to(b"probe", service_address).unwrap();
        self.service.recv(&mut [0; 16]).is_ok()
    }
}

struct Gateway(Child);

impl Gateway {
    fn end(mut self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn site(directory: &Path, settings: &str) -> Site {
    site_with_gate("bound", directory, settings)
}

fn site_with_gate(gate: &str, directory: &Path, settings: &str) -> Site {
    let namespace = NetNs::new().unwrap();
    let service = namespace
        .run(|| {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            assert!(up.unwrap().success());
            UdpSocket::bind("127.0.0.1:0").unwrap()
        })
        .unwrap();
    service
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    support::write_controller_config(directory);
    std::fs::write(
        directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\"]\ngate = \"{gate}\"\nslots = 16\ndevice_prefixes = [\"127.0.0.0/8\"]\n{settings}\n\
             [controller]\nsocket = \"controller.sock\"\n"
        ),
    )
    .unwrap();
    support::run(support::command(
        directory,
        "linewarden registry create --registry fleet.registry --key-file master.key",
    ));
    Site {
        namespace,
        directory: directory.to_owned(),
        service,
        _controller: support::start_controller(directory),
    }
}
