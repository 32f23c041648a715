//! The processes: PostgreSQL, nats-server, controllers and gateways, each in its namespace, as their users run them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linewarden_registry::{Location, MasterKey, Registry};
use linewarden_testbed::{Listen, Nats, Postgres, PostgresOptions, Unavailable};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::ledger::GatewayProcess;
use crate::network::{Network, Node, SERVERS, backbone, device_network_address};
use crate::support::{Process, command, run};

/// Number of gateways.
pub const GATEWAYS: usize = 3;
/// Time after which a gateway without a controller stops.
pub const OFFLINE_LIMIT_S: u32 = 6;
const PORT: u16 = 5432;

/// Place of a second process of a gateway. The first process of gateway i is at place i.
pub const SPARE_PLACE: usize = GATEWAYS;

/// A process of a gateway, and its latest status report.
pub struct RunningGateway {
    process: Process,
    pub status: Value,
    /// Number of received status reports.
    pub status_reports: u32,
}

pub struct Site {
    pub network: Network,
    directory: tempfile::TempDir,
    pub postgres: Postgres,
    pub nats: Nats,
    pub registry: Registry,
    pub runtime: Runtime,
    controllers: [Option<Process>; 2],
    /// Gateways by place.
    pub gateways: [Option<RunningGateway>; GATEWAYS + 1],
    process_count: u32,
}

/// The id of the gateway at a place.
pub fn gateway_id(place: usize) -> u32 {
    21 + u32::try_from(place).unwrap()
}

impl Site {
    pub fn new(network: Network) -> Result<Self, Unavailable> {
        let options = PostgresOptions {
            listen: Some(Listen {
                address: SERVERS.into(),
                port: PORT,
            }),
            ..PostgresOptions::default()
        };
        let inside = network.servers.namespace.inside();
        let postgres = inside.run(|| Postgres::start(options)).unwrap()?;
        let listen = Listen {
            address: SERVERS.into(),
            port: 4222,
        };
        let nats = inside.run(|| Nats::start(listen, &[])).unwrap()?;
        let directory = tempfile::tempdir().unwrap();
        let runtime = Runtime::new().unwrap();
        let key = MasterKey::generate_file(directory.path().join("master.key")).unwrap();
        // The test uses the server's Unix socket, which no network partition affects.
        let location: Location = postgres.new_schema("fleet").unwrap().parse().unwrap();
        let registry = runtime.block_on(Registry::create(&location, &key)).unwrap();
        let site = Self {
            network,
            directory,
            postgres,
            nats,
            registry,
            runtime,
            controllers: [None, None],
            gateways: [None, None, None, None],
            process_count: 0,
        };
        site.write_files();
        Ok(site)
    }

    fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    fn write_files(&self) {
        let make = |command_line: &str| drop(run(command(self.directory_path(), command_line)));
        make("linewarden certificate ca --out pki");
        let controllers = &self.network.controllers;
        let addresses = controllers
            .iter()
            .map(|node| format!("{}:20560", backbone(node.host)));
        let mut addresses: Vec<String> = addresses.collect();
        for node in controllers {
            let (host, address) = (node.host, backbone(node.host));
            make(&format!(
                "linewarden certificate controller --ca pki --name {address} --out ctl-{host}"
            ));
            let text = format!(
                "[service]\nname = \"ctl-{host}\"\nlisten = \"{address}:20560\"\nmetrics = \"{address}:20561\"\n\
                 [tls]\ncert = \"ctl-{host}.pem\"\nkey = \"ctl-{host}.key\"\nca = \"pki/ca.pem\"\n\
                 [registry]\npath = \"postgres://postgres@{SERVERS}:{PORT}/postgres?options[search_path]=fleet\"\n\
                 master_key_file = \"master.key\"\n[nats]\nplaintext = true\nservers = [\"{}\"]\n",
                self.nats.address()
            );
            std::fs::write(self.directory_path().join(format!("ctl-{host}.toml")), text).unwrap();
        }
        for place in 0..GATEWAYS {
            let id = gateway_id(place);
            make(&format!(
                "linewarden certificate gateway --ca pki --id {id} --out gateway-{id}"
            ));
            // The gateways try the controllers in different orders.
            addresses.rotate_left(1);
            for process_place in [place, SPARE_PLACE] {
                self.write_gateway(id, process_place, &addresses);
            }
        }
    }

    fn write_gateway(&self, id: u32, place: usize, controllers: &[String]) {
        let address = device_network_address(self.network.gateways[place].host);
        let text = format!(
            "[gateway]\nid = {id}\ndataplane = \"host\"\naddresses = [\"{address}\"]\nsession_lifetime_s = 60\nslots = 200\nthreads = 1\n\
             offline_limit_s = {OFFLINE_LIMIT_S}\n\
             [controller]\naddresses = {controllers:?}\nca = \"pki/ca.pem\"\ncert = \"gateway-{id}.pem\"\nkey = \"gateway-{id}.key\"\n\
             [audit]\npath = \"gateway-{id}-{place}.audit\"\nper_s = 100000\n"
        );
        std::fs::write(
            self.directory_path().join(format!("gateway-{id}-{place}.toml")),
            text,
        )
        .unwrap();
    }

    fn start(&self, node: &Node, name: &str, command_line: &str) -> Process {
        let mut command = command(self.directory_path(), command_line);
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.directory_path().join(format!("{name}.log")))
            .unwrap();
        command.stderr(log);
        node.namespace.start_command(command)
    }

    pub fn start_controller(&mut self, index: usize) {
        let node = &self.network.controllers[index];
        let name = format!("ctl-{}", node.host);
        let process = self.start(
            node,
            &name,
            &format!("linewarden-controller run --config {name}.toml --output json"),
        );
        process.event("started");
        self.controllers[index] = Some(process);
    }

    pub fn kill_controller(&mut self, index: usize) {
        let process = self.controllers[index].take();
        process.unwrap().end_with_signal(Signal::SIGKILL);
    }

    /// Starts a gateway at a place: the gateway's own place or [`SPARE_PLACE`].
    pub fn start_gateway(&mut self, gateway: usize, place: usize) -> GatewayProcess {
        let name = format!("gateway-{}-{place}", gateway_id(gateway));
        let arguments =
            format!("linewarden-gateway run --config {name}.toml --output json --status-interval 1");
        let process = self.start(&self.network.gateways[place], &name, &arguments);
        self.gateways[place] = Some(RunningGateway {
            process,
            status: Value::Null,
            status_reports: 0,
        });
        self.process_count += 1;
        GatewayProcess {
            gateway: gateway_id(gateway),
            number: self.process_count,
        }
    }

    pub fn kill_gateway(&mut self, place: usize) {
        let gateway = self.gateways[place].take();
        gateway.unwrap().process.end_with_signal(Signal::SIGKILL);
    }

    /// Waits until a gateway process has ended by itself; returns its exit code.
    pub fn wait_for_exit(&mut self, place: usize) -> i32 {
        self.gateways[place].take().unwrap().process.wait_for_exit().0
    }

    pub fn has_ended(&mut self, place: usize) -> bool {
        self.gateways[place]
            .as_mut()
            .is_none_or(|gateway| gateway.process.child.0.try_wait().unwrap().is_some())
    }

    /// Requests a status report of a gateway.
    pub fn request_status(&self, place: usize) {
        let gateway = self.gateways[place].as_ref().unwrap();
        gateway.process.signal(Signal::SIGUSR1);
    }

    /// Reads the output of the gateways.
    pub fn read_output(&mut self) {
        for gateway in self.gateways.iter_mut().flatten() {
            while let Ok(line) = gateway.process.next(Duration::ZERO) {
                if line["event"] == "status" {
                    gateway.status = line;
                    gateway.status_reports += 1;
                }
            }
        }
    }

    /// Number of status reports of a gateway.
    pub fn status_reports(&self, place: usize) -> u32 {
        self.gateways[place]
            .as_ref()
            .map_or(0, |gateway| gateway.status_reports)
    }

    pub fn status(&self, place: usize) -> &Value {
        self.gateways[place]
            .as_ref()
            .map_or(&Value::Null, |gateway| &gateway.status)
    }

    /// The records of the gateway audit logs.
    pub fn records(&self) -> Vec<Value> {
        let mut records = Vec::new();
        for path in self.files("audit") {
            let text = std::fs::read_to_string(path).unwrap();
            // A killed process can leave an incomplete line.
            records.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
        }
        records
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory_path()).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == extension));
        paths.sort();
        paths
    }

    /// The last lines of all logs, for diagnosis.
    pub fn print_logs(&self) {
        for path in self.files("log") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last_lines = lines[lines.len().saturating_sub(25)..].join("\n");
            eprintln!("==== {}\n{last_lines}", path.display());
        }
    }
}
