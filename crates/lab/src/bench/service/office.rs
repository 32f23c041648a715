//! A controller with everything that it needs: a CA, certificates, a registry, users.

use std::net::SocketAddr;
use std::sync::Arc;

use linewarden_testbed::{Missing, Postgres, PostgresOptions};
use tempfile::TempDir;

use super::Client;
use super::client::{Connector, NAME};
use super::contradiction;
use super::process::{Process, Program};
use crate::bench::{BenchError, io};

/// What the registry lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Database {
    Sqlite,
    Postgres,
}

/// A user's limit is 5,000 questions a second: several users have several of them.
const USERS: usize = 4;

/// A controller at work, in the order in which it is taken down.
pub(super) struct Office {
    pub(super) controller: Process,
    pub(super) address: SocketAddr,
    pub(super) program: Program,
    connector: Connector,
    tokens: Vec<Arc<str>>,
    _server: Option<Postgres>,
    _directory: TempDir,
}

impl Office {
    /// Makes everything and starts a controller.
    pub(super) fn open(program: std::path::PathBuf, database: Database) -> Result<Self, BenchError> {
        Self::open_if_there(program, database)?.map_err(contradiction)
    }

    /// The same, or what this machine lacks for it.
    pub(super) fn open_if_there(
        program: std::path::PathBuf,
        database: Database,
    ) -> Result<Result<Self, Missing>, BenchError> {
        let directory = tempfile::tempdir().map_err(io("making a directory"))?;
        let program = Program {
            path: program,
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
                    Err(missing) => return Ok(Err(missing)),
                };
                let address = server.new_schema("fleet").map_err(io("making a schema"))?;
                (Some(server), address)
            }
        };
        program.run("certificate ca --out pki")?;
        program.run(&format!(
            "certificate controller --ca pki --name {NAME} --out ctl"
        ))?;
        program.run(&format!(
            "registry create --registry {registry} --key-file master.key"
        ))?;
        let configuration = format!(
            "[service]\nname = \"bench\"\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncert = \"ctl.pem\"\nkey = \"ctl.key\"\nca = \"pki/ca.pem\"\n\
             [registry]\npath = \"{registry}\"\nmaster_key_file = \"master.key\"\n"
        );
        let file = program.directory.join("controller.toml");
        std::fs::write(file, configuration).map_err(io("writing a configuration"))?;
        let tokens = (0..USERS).map(|user| {
            let words = format!("user add user-{user} --role operator --config controller.toml");
            let said = program.run(&words)?;
            let token = said.split_whitespace().find(|word| word.starts_with("lw_"));
            token
                .map(Arc::from)
                .ok_or_else(|| contradiction(format_args!("no token in {said:?}")))
        });
        let tokens = tokens.collect::<Result<_, BenchError>>()?;
        let controller = program.start("controller", "controller --config controller.toml --json")?;
        let started = controller.wait_for("controller", |line| line["event"] == "started")?;
        let address = started
            .get("address")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        let address = address.parse().map_err(contradiction)?;
        let ca = std::fs::read(program.directory.join("pki/ca.pem")).map_err(io("reading the CA"))?;
        Ok(Ok(Self {
            controller,
            address,
            connector: Connector::new(address, &ca)?,
            program,
            tokens,
            _server: server,
            _directory: directory,
        }))
    }

    /// One of so many clients.
    pub(super) fn client(&self, number: usize) -> Client {
        let token = self
            .tokens
            .get(number % USERS.max(1))
            .cloned()
            .unwrap_or_default();
        Client::new(self.connector.clone(), token)
    }
}
