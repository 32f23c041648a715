//! A controller process with its CA, certificates, registry and users.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use linewarden_testbed::{Postgres, PostgresOptions, Unavailable};
use tempfile::TempDir;

use super::Client;
use super::client::{Connector, SERVER_NAME};
use super::invalid_measurement;
use super::process::{Process, Programs};
use crate::bench::{BenchError, io};

/// The database of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Database {
    Sqlite,
    Postgres,
}

/// Number of API users: the rate limit of 5,000 requests/s applies per user.
const USERS: usize = 4;

/// A running controller; fields are in the order in which they are dropped.
pub(super) struct TestController {
    pub(super) process: Process,
    pub(super) address: SocketAddr,
    pub(super) programs: Programs,
    connector: Connector,
    tokens: Vec<Arc<str>>,
    _database: Option<Postgres>,
    _directory: TempDir,
}

impl TestController {
    /// Creates all files and starts a controller. `executables` is the directory with the programs.
    pub(super) fn start(executables: &Path, database: Database) -> Result<Self, BenchError> {
        Self::start_if_available(executables, database)?.map_err(invalid_measurement)
    }

    /// Starts a controller; the inner error names the database server that the machine lacks.
    pub(super) fn start_if_available(
        executables: &Path,
        database: Database,
    ) -> Result<Result<Self, Unavailable>, BenchError> {
        let directory = tempfile::tempdir().map_err(io("create a directory"))?;
        let programs = Programs {
            executables: executables.to_owned(),
            directory: directory.path().to_owned(),
        };
        let (server, registry) = match database {
            Database::Sqlite => (None, "fleet.registry".to_owned()),
            Database::Postgres => {
                let options = PostgresOptions {
                    durable: true,
                    ..PostgresOptions::default()
                };
                let server = match Postgres::start(options) {
                    Ok(server) => server,
                    Err(unavailable) => return Ok(Err(unavailable)),
                };
                let address = server
                    .new_schema("fleet")
                    .map_err(io("create a database schema"))?;
                (Some(server), address)
            }
        };
        programs.run("linewarden certificate ca --out pki")?;
        programs.run(&format!(
            "linewarden certificate controller --ca pki --name {SERVER_NAME} --out ctl"
        ))?;
        programs.run(&format!(
            "linewarden registry create --registry {registry} --key-file master.key"
        ))?;
        let configuration = format!(
            "[service]\nname = \"bench\"\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncert = \"ctl.pem\"\nkey = \"ctl.key\"\nca = \"pki/ca.pem\"\n\
             [registry]\npath = \"{registry}\"\nmaster_key_file = \"master.key\"\n"
        );
        let file = programs.directory.join("controller.toml");
        std::fs::write(file, configuration).map_err(io("write a configuration file"))?;
        let tokens = (0..USERS).map(|user| {
            let arguments =
                format!("linewarden user create user-{user} --role operator --config controller.toml");
            let output = programs.run(&arguments)?;
            let token = output.split_whitespace().find(|word| word.starts_with("lw_"));
            token
                .map(Arc::from)
                .ok_or_else(|| invalid_measurement(format_args!("no token in the output {output:?}")))
        });
        let tokens = tokens.collect::<Result<_, BenchError>>()?;
        let controller = programs.start(
            "controller",
            "linewarden-controller run --config controller.toml --output json",
        )?;
        let started = controller.wait_for("controller", |line| line["event"] == "started")?;
        let address = started
            .get("address")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        let address = address.parse().map_err(invalid_measurement)?;
        let ca =
            std::fs::read(programs.directory.join("pki/ca.pem")).map_err(io("read the CA certificate"))?;
        Ok(Ok(Self {
            process: controller,
            address,
            connector: Connector::new(address, &ca)?,
            programs,
            tokens,
            _database: server,
            _directory: directory,
        }))
    }

    /// A client with the token of API user `number`, modulo the number of users.
    pub(super) fn client(&self, number: usize) -> Client {
        let token = self
            .tokens
            .get(number % USERS.max(1))
            .cloned()
            .unwrap_or_default();
        Client::new(self.connector.clone(), token)
    }
}
