//! A controller, a gateway that uses this controller over the network, and devices, operated with the commands of
//! `docs/operations`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Environment;
use crate::support::{Process, free_udp_port, run};

/// The documents with the commands that the tests run.
const PAGES: [&str; 3] = [
    include_str!("../../../../../docs/operations/backup.md"),
    include_str!("../../../../../docs/operations/disaster-recovery.md"),
    include_str!("../../../../../docs/operations/key-rotation.md"),
];

/// The commands of the shell blocks below this heading, up to the next heading, without comments.
pub fn documented_commands(heading: &str) -> Vec<String> {
    let page = PAGES.iter().find(|page| page.lines().any(|line| line == heading));
    let page = page.unwrap_or_else(|| panic!("no {heading:?}"));
    let section = page.lines().skip_while(|line| *line != heading).skip(1);
    let mut commands = Vec::new();
    let mut is_command = false;
    for line in section.map(str::trim) {
        match line {
            "```sh" => is_command = true,
            "```" => is_command = false,
            command if is_command => commands.push(command.split(" #").next().unwrap().trim().to_owned()),
            text if text.starts_with('#') => break,
            _ => {}
        }
    }
    commands.retain(|command| !command.is_empty());
    assert!(!commands.is_empty(), "no commands below {heading:?}");
    commands
}

/// A fleet with its files in one directory: gateway 7, and its controller, which the documents call `ctl-a.example`.
pub struct OperatedFleet<'a> {
    pub environment: Environment<'a>,
    pub controller: Option<Process>,
    pub gateway: Option<Process>,
    /// The gateway's LAP port.
    port: u16,
    /// The API address of the running controller.
    api: Option<SocketAddr>,
    /// Names in the documents, and their replacements in this fleet.
    pub names: Vec<(&'static str, String)>,
}

impl<'a> OperatedFleet<'a> {
    /// Creates a new registry and starts no process. `ada` authenticates with a token, `build` with a certificate.
    pub fn new(environment: Environment<'a>, registry: &str) -> Self {
        let fleet = Self {
            environment,
            controller: None,
            gateway: None,
            port: free_udp_port(),
            api: None,
            names: vec![("ctl-a.example", "127.0.0.1".to_owned())],
        };
        for command in [
            "linewarden certificate ca --out pki",
            "linewarden certificate controller --ca pki --name 127.0.0.1 --out ctl-a",
            "linewarden certificate gateway --ca pki --id 7 --out gateway-7",
            "linewarden certificate user --ca pki --name build --out build",
            &format!("linewarden registry create --registry {registry} --key-file master.key"),
        ] {
            fleet.environment.run(command);
        }
        fs::copy(fleet.path("pki/ca.pem"), fleet.path("ca.pem")).unwrap();
        fleet.configure(registry, "master.key");
        fleet
            .environment
            .run("linewarden user create build --role admin --certificate --config controller.toml");
        fleet.add_ada();
        fleet
    }

    /// Writes the controller's configuration with this registry and this master key file.
    pub fn configure(&self, registry: &str, key: &str) {
        let text = format!(
            "[service]\nname = \"ctl-a\"\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncert = \"ctl-a.pem\"\nkey = \"ctl-a.key\"\nca = \"ca.pem\"\n\
             [registry]\npath = \"{registry}\"\nmaster_key_file = \"{key}\"\n"
        );
        fs::write(self.path("controller.toml"), text).unwrap();
    }

    /// Creates a new token for `ada`, which replaces the previous one.
    pub fn add_ada(&self) {
        let token = run(self
            .environment
            .command("linewarden user create ada --role admin --config controller.toml"));
        let path = self.path("ada.token");
        fs::write(&path, token).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.environment.directory.join(name)
    }

    /// A command of `linewarden` through the controller. `user` are the options that authenticate the user.
    pub fn remote_command(&self, arguments: &str, user: &str) -> Command {
        let api = self.api.unwrap();
        let arguments =
            format!("linewarden {arguments} --server https://{api} --server-ca ca.pem --retry-for 0 {user}");
        self.environment.command(&arguments)
    }

    /// Runs a command of the documents, with the replacements of `names`.
    pub fn step(&mut self, command: &str) {
        let local_command = self
            .names
            .iter()
            .fold(command.to_owned(), |text, (name, local_name)| {
                text.replace(name, local_name)
            });
        let arguments: Vec<&str> = local_command.split_whitespace().collect();
        match arguments.as_slice() {
            ["systemctl", verb, unit] => self.systemctl(verb, unit),
            ["lw", arguments @ ..] => self
                .environment
                .run(&format!("linewarden {}", arguments.join(" "))),
            [program, ..] if program.starts_with("linewarden") => self.environment.run(&local_command),
            _ => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", &local_command])
                    .current_dir(self.environment.directory);
                run(shell);
            }
        }
    }

    pub fn systemctl(&mut self, verb: &str, unit: &str) {
        match (verb, unit) {
            ("start", "linewarden-controller") => self.start_controller(),
            ("start", "linewarden-gateway") => self.start_gateway(),
            ("reload", "linewarden-controller") => {
                let controller = self.controller.as_ref().unwrap();
                controller.signal(Signal::SIGHUP);
                controller.event("reloaded");
            }
            ("stop", "linewarden-controller") => drop(self.controller.take().map(Process::terminate)),
            ("stop", "linewarden-gateway") => drop(self.gateway.take().map(Process::terminate)),
            _ => panic!("systemctl {verb} {unit}"),
        }
    }

    fn start_controller(&mut self) {
        let controller = self
            .environment
            .start("linewarden-controller run --config controller.toml --output json");
        let address = controller.event("started")["address"]
            .as_str()
            .unwrap()
            .to_owned();
        self.api = Some(address.parse().unwrap());
        self.controller = Some(controller);
        let text = format!(
            "[gateway]\nid = 7\ndataplane = \"host\"\naddresses = [\"127.0.0.1\", \"::1\"]\nport = {}\nsession_lifetime_s = 5\n\
             slots = 100\nthreads = 1\n\
             [controller]\naddresses = [\"{address}\"]\nca = \"ca.pem\"\ncert = \"gateway-7.pem\"\nkey = \"gateway-7.key\"\n",
            self.port
        );
        fs::write(self.path("gateway.toml"), text).unwrap();
    }

    fn start_gateway(&mut self) {
        let gateway = self
            .environment
            .start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
        gateway.wait_for("loaded fleet", |line| {
            line["event"] == "status" && line["loaded"] == true
        });
        self.gateway = Some(gateway);
    }

    /// Starts the agent of a device with files in the directory `files`, and waits until the device has authenticated.
    pub fn agent(&self, files: &str, id: &str, gateway: &str) -> Process {
        let agent = self.environment.start(&format!(
            "linewarden-agent run --config {files}/{id:0>16}.toml --gateway {gateway}:{} --output json",
            self.port
        ));
        agent.event("authenticated");
        agent
    }

    /// Keeps the controller's present address for its next start.
    pub fn keep_address(&self) {
        let (path, api) = (self.path("controller.toml"), self.api.unwrap());
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("127.0.0.1:0", &api.to_string())).unwrap();
    }

    /// Renews a device's rows or key.
    pub fn renew(&self, files: &str, id: &str, gateway: &str) {
        let arguments = format!(
            "linewarden-agent run --config {files}/{id:0>16}.toml --gateway {gateway}:{} --once --renew --timeout 50",
            self.port
        );
        self.environment.run(&arguments);
    }

    /// The output of `device show --output json` about a device in the controller's registry.
    pub fn device(&self, id: &str) -> Value {
        let text = run(self.environment.command(&format!(
            "linewarden device show {id} --output json --config controller.toml"
        )));
        serde_json::from_str(&text).unwrap()
    }
}

/// Waits until the agent authenticates again; earlier events do not count.
#[track_caller]
pub fn wait_for_reauthentication(agent: &Process) {
    while agent.next(Duration::ZERO).is_ok() {}
    // The first event may have been in transit.
    agent.event("authenticated");
    agent.event("authenticated");
}

/// The used rows, in order.
pub fn rows(agent: &Process) -> Vec<u64> {
    let row = |line: &Value| line["row"].as_u64().unwrap();
    agent.events("authenticated").iter().map(row).collect()
}
