//! Servers on which a controller depends.

use std::net::TcpListener;

use linewarden_harness::skip;
use linewarden_testbed::{Listen, Nats, Postgres, PostgresOptions};

/// Starts a PostgreSQL server. Skips the test if PostgreSQL is not installed.
pub fn require_postgres() -> Postgres {
    match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => skip!("needs PostgreSQL: {missing}"),
    }
}

/// Starts nats-server with these arguments. Skips the test if nats-server is not installed.
pub fn require_nats(arguments: &[&str]) -> Nats {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = Listen {
        address: free.ip(),
        port: free.port(),
    };
    match Nats::start(listen, arguments) {
        Ok(server) => server,
        Err(missing) => skip!("needs nats-server: {missing}"),
    }
}
