//! A controller, a gateway that only knows it by the network, and devices, operated by the commands that `docs/operations.md` has.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::Place;
use crate::support::{Process, free_udp_port, run};

/// The commands of the first shell block below this heading, without what is said beside them.
pub fn documented(heading: &str) -> Vec<String> {
    let text = include_str!("../../../../docs/operations.md");
    let mut below = text.lines().skip_while(|line| *line != heading);
    below.next().unwrap_or_else(|| panic!("no {heading:?}"));
    let block = below.skip_while(|line| *line != "```sh").skip(1);
    let commands = block.take_while(|line| *line != "```");
    let bare = |line: &str| line.split(" #").next().unwrap().trim().to_owned();
    commands.map(bare).filter(|command| !command.is_empty()).collect()
}

/// The fleet: gateway 7 by a controller at `ctl-a.example`, in one directory.
pub struct Operated<'a> {
    pub place: Place<'a>,
    pub controller: Option<Process>,
    pub gateway: Option<Process>,
    /// Where devices find the gateway.
    port: u16,
    /// Where the API is, of the controller that runs.
    api: Option<SocketAddr>,
    /// What stands in the documents, and what it is here.
    pub names: Vec<(&'static str, String)>,
}

impl<'a> Operated<'a> {
    /// With a new registry there, and nothing running. Users: `ada` by a token, `build` by a certificate.
    pub fn new(place: Place<'a>, registry: &str) -> Self {
        let fleet = Self {
            place,
            controller: None,
            gateway: None,
            port: free_udp_port(),
            api: None,
            names: vec![("ctl-a.example", "127.0.0.1".to_owned())],
        };
        for command in [
            "certificate ca --out pki",
            "certificate controller --ca pki --name 127.0.0.1 --out ctl-a",
            "certificate gateway --ca pki --id 7 --out gateway-7",
            "certificate user --ca pki --name build --out build",
            &format!("registry create --registry {registry} --key-file master.key"),
        ] {
            fleet.place.run(command);
        }
        fs::copy(fleet.path("pki/ca.pem"), fleet.path("ca.pem")).unwrap();
        fleet.configure(registry, "master.key");
        fleet
            .place
            .run("user add build --role admin --certificate --config controller.toml");
        fleet.add_ada();
        fleet
    }

    /// Names registry and key in the controller's configuration.
    pub fn configure(&self, registry: &str, key: &str) {
        let text = format!(
            "[service]\nname = \"ctl-a\"\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncert = \"ctl-a.pem\"\nkey = \"ctl-a.key\"\nca = \"ca.pem\"\n\
             [registry]\npath = \"{registry}\"\nmaster_key_file = \"{key}\"\n"
        );
        fs::write(self.path("controller.toml"), text).unwrap();
    }

    /// A token for `ada`, in place of the one of before.
    pub fn add_ada(&self) {
        let token = run(self
            .place
            .command("user add ada --role admin --config controller.toml"));
        let path = self.path("ada.token");
        fs::write(&path, token).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.directory.join(name)
    }

    /// A command by the controller, as that user.
    pub fn asked(&self, words: &str, user: &str) -> Command {
        let api = self.api.unwrap();
        let words = format!("{words} --server https://{api} --server-ca ca.pem --patience 0 {user}");
        self.place.command(&words)
    }

    /// Runs a command of the documents.
    pub fn step(&mut self, command: &str) {
        let here = self
            .names
            .iter()
            .fold(command.to_owned(), |text, (name, here)| text.replace(name, here));
        let words: Vec<&str> = here.split_whitespace().collect();
        match words.as_slice() {
            ["systemctl", verb, unit] => self.systemctl(verb, unit),
            ["lw" | "linewarden", words @ ..] => self.place.run(&words.join(" ")),
            _ => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &here]).current_dir(self.place.directory);
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
        let controller = self.place.start("controller --config controller.toml --json");
        let address = controller.event("started")["address"]
            .as_str()
            .unwrap()
            .to_owned();
        self.api = Some(address.parse().unwrap());
        self.controller = Some(controller);
        let text = format!(
            "[gateway]\nid = 7\ndataplane = \"host\"\naddresses = [\"127.0.0.1\", \"::1\"]\nport = {}\nlease_s = 2\n\
             slots = 100\nthreads = 1\n\
             [controller]\naddresses = [\"{address}\"]\nca = \"ca.pem\"\ncert = \"gateway-7.pem\"\nkey = \"gateway-7.key\"\n",
            self.port
        );
        fs::write(self.path("gateway.toml"), text).unwrap();
    }

    fn start_gateway(&mut self) {
        let gateway = self.place.start("serve --config gateway.toml --json --every 1");
        gateway.wait_for("loaded fleet", |line| {
            line["event"] == "status" && line["loaded"] == true
        });
        self.gateway = Some(gateway);
    }

    /// The agent of a device whose files are in that directory, which has authenticated.
    pub fn agent(&self, files: &str, id: &str, gateway: &str) -> Process {
        let agent = self.place.start(&format!(
            "agent --config {files}/{id:0>16}.toml --gateway {gateway}:{} --json",
            self.port
        ));
        agent.event("authenticated");
        agent
    }

    /// From now on the controller listens where it does now.
    pub fn keep_address(&self) {
        let (path, api) = (self.path("controller.toml"), self.api.unwrap());
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("127.0.0.1:0", &api.to_string())).unwrap();
    }

    /// Gives a device new rows or a new key.
    pub fn renew(&self, files: &str, id: &str, gateway: &str) {
        let words = format!(
            "agent --config {files}/{id:0>16}.toml --gateway {gateway}:{} --once --renew --timeout 50",
            self.port
        );
        self.place.run(&words);
    }

    /// What the registry of the controller's configuration says of a device.
    pub fn device(&self, id: &str) -> Value {
        let shown = run(self
            .place
            .command(&format!("device show {id} --json --config controller.toml")));
        serde_json::from_str(&shown).unwrap()
    }
}

/// It authenticates again from now on: what it has said before counts for nothing.
#[track_caller]
pub fn goes_on(agent: &Process) {
    while agent.next(Duration::ZERO).is_ok() {}
    // The first may have been on its way.
    agent.event("authenticated");
    agent.event("authenticated");
}

/// The rows that were spent, in their order.
pub fn rows(agent: &Process) -> Vec<u64> {
    let row = |line: &Value| line["idx"].as_u64().unwrap();
    agent.events("authenticated").iter().map(row).collect()
}
