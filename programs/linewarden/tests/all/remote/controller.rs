//! A controller as its operators run it, and its remote users.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Process, command};

/// Exit code, standard output and standard error of a command.
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// Asserts that the exit code is 0; returns the standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// Asserts that the command failed with this exit code; returns the standard error.
    #[track_caller]
    pub fn refused(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(
            !self.err.contains("lw_"),
            "the error contains a token: {}",
            self.err
        );
        self.err
    }
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A controller on a registry of its own, with an admin `ada`, an operator `olga` and a viewer `vic`.
pub struct TestController {
    directory: tempfile::TempDir,
    pub port: u16,
    process: Option<Process>,
}

impl TestController {
    pub fn new() -> Self {
        Self::with_registry("fleet.registry")
    }

    /// Starts a controller with this registry: a file in the directory, or the address of a database.
    pub fn with_registry(registry: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut controller = Self {
            directory,
            port: 0,
            process: None,
        };
        for command in [
            "linewarden certificate ca --out pki",
            "linewarden certificate controller --ca pki --name 127.0.0.1 --out ctl",
            &format!("linewarden registry create --registry {registry} --key-file master.key"),
        ] {
            controller.run(command).ok();
        }
        let configuration = format!(
            "[service]\nname = \"ctl-a\"\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncert = \"ctl.pem\"\nkey = \"ctl.key\"\nca = \"pki/ca.pem\"\n\
             [registry]\npath = \"{registry}\"\nmaster_key_file = \"master.key\"\n"
        );
        fs::write(controller.path("controller.toml"), configuration).unwrap();
        for (name, role) in [("ada", "admin"), ("olga", "operator"), ("vic", "viewer")] {
            let token = controller
                .run(&format!(
                    "linewarden user create {name} --role {role} --config controller.toml"
                ))
                .ok();
            controller.write_token(name, token.trim());
        }
        controller.start();
        controller
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the controller. The first start selects a free port, and later starts use the same port.
    pub fn start(&mut self) {
        let process = Process::start(command(
            self.directory_path(),
            "linewarden-controller run --config controller.toml --output json",
        ));
        let address = process.event("started")["address"].clone();
        if self.port == 0 {
            let address: SocketAddr = address.as_str().unwrap().parse().unwrap();
            self.port = address.port();
            let path = self.path("controller.toml");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace("127.0.0.1:0", &address.to_string())).unwrap();
        }
        self.process = Some(process);
    }

    /// Peak memory of the controller, KiB.
    pub fn memory_kib(&self) -> u64 {
        let id = self.process.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Ends the controller as a power cut does.
    pub fn kill(&mut self) {
        self.process
            .take()
            .unwrap()
            .end_with_signal(nix::sys::signal::Signal::SIGKILL);
    }

    /// Ends the controller as a service manager does; its exit code must be 0.
    pub fn terminate(&mut self) {
        self.process.take().unwrap().terminate();
    }

    /// Writes a user's token to a file that other users cannot read.
    pub fn write_token(&self, name: &str, token: &str) {
        let path = self.path(&format!("{name}.token"));
        fs::write(&path, format!("{token}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn command(&self, command_line: &str) -> Command {
        let mut command = command(self.directory_path(), command_line);
        for variable in [
            "SERVER",
            "SERVER_CA",
            "TOKEN_FILE",
            "CLIENT_CERT",
            "CLIENT_KEY",
            "MASTER_KEY",
            "LOG",
        ] {
            command.env_remove(format!("LINEWARDEN_{variable}"));
        }
        command
    }

    pub fn run(&self, command_line: &str) -> CommandOutput {
        self.command(command_line).output().unwrap().into()
    }

    /// Runs a command of `linewarden` on the registry directly, without the controller.
    pub fn run_local(&self, arguments: &str) -> CommandOutput {
        self.run(&format!(
            "linewarden {arguments} --registry fleet.registry --key-file master.key"
        ))
    }

    /// The options that name the controller.
    pub fn server_options(&self) -> String {
        format!("--server https://127.0.0.1:{} --server-ca pki/ca.pem", self.port)
    }

    /// Runs a command of `linewarden` through the controller, as this user.
    pub fn as_user(&self, name: &str, arguments: &str) -> CommandOutput {
        self.run(&format!(
            "linewarden {arguments} {} --token-file {name}.token",
            self.server_options()
        ))
    }

    /// Path of the file with the public key of a signer that `signed keygen` has created.
    pub fn public_key_file(&self, signer: &str) -> String {
        format!("{signer}/signer.json")
    }

    /// Creates objects of every kind, and `device_count` further devices.
    pub fn prepare(&self, device_count: usize) {
        for command in [
            format!("device enroll simulated --count {device_count} --rows 2 --name pump --out pumps")
                .as_str(),
            "device enroll simulated --device d1 --rows 4 --name \u{202e}evil --out pumps",
            "device enroll simulated --device d2 --model sram --out pumps",
            "device enroll simulated --device d3 --rows 2 --out pumps",
            "device quarantine d1 --reason odd",
            "device release d1 --reason explained",
            "device quarantine d1 --reason odd",
            "device revoke d2 --reason stolen",
            "gateway create 7 --name hall --reason new",
            "gateway create 8 --name roof --reason new",
            "gateway revoke 8 --reason burnt",
            "attest group set pumps --every 30 --reason new",
        ] {
            self.run_local(command).ok();
        }
        self.run("linewarden signed keygen --scheme ed25519 --out truck7")
            .ok();
        let key = self.public_key_file("truck7");
        self.run_local(&format!("signer create {key} --name truck --reason new"))
            .ok();
    }
}
