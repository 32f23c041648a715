//! A database that is slow, hangs or is gone: questions are refused in time and say why, gateways go on with the rows that they hold, and
//! all is well once it is back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use linewarden_gateway::Gateway;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{Location, Registry, Role};
use linewarden_testbed::{Postgres, PostgresOptions};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::gateways::{enrol, start};
use crate::office::{Ca, Caller, Office, key};
use crate::site::{Client as Device, LONG};

/// Questions at once: far more than there are connections to the database.
const AT_ONCE: usize = 40;

fn server() -> Option<Postgres> {
    Postgres::start(PostgresOptions::default())
        .inspect_err(|missing| println!("SKIPPED: needs PostgreSQL: {missing}"))
        .ok()
}

fn office(server: &Postgres) -> Office {
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    let registry = runtime.block_on(Registry::create(&location, &key())).unwrap();
    Office::over(Arc::new(Ca::new()), runtime, registry, "ctl-a")
}

/// Somebody else has all tables for themselves, until it is dropped.
struct Held<'s> {
    server: &'s Postgres,
    session: Option<JoinHandle<()>>,
}

impl<'s> Held<'s> {
    fn new(server: &'s Postgres) -> Self {
        let tables = server
            .psql(
                "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables \
                 WHERE schemaname = 'fleet'",
            )
            .unwrap();
        let statements = format!(
            "BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE; SET application_name = 'holder'; SELECT pg_sleep(600)",
            tables.trim()
        );
        let until = Instant::now() + LONG;
        let begin = || {
            let (statements, other) = (statements.clone(), Postgres::attach(server.directory()));
            // It ends with an error, whoever ends it.
            thread::spawn(move || drop(other.psql(&statements)))
        };
        let mut session = begin();
        while server.psql(&format!("SELECT count(*) {HOLDER}")).unwrap().trim() != "1" {
            assert!(Instant::now() < until, "the tables cannot be had");
            // The controller was in the way, and the server has ended this one.
            if session.is_finished() {
                session = begin();
            }
        }
        Self {
            server,
            session: Some(session),
        }
    }
}

const HOLDER: &str = "FROM pg_stat_activity WHERE application_name = 'holder'";

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.server
            .psql(&format!("SELECT pg_terminate_backend(pid) {HOLDER}"))
            .unwrap();
        self.session.take().unwrap().join().unwrap();
    }
}

/// What a path of the metrics' address answers.
fn health(office: &Office, path: &str) -> u16 {
    let address = format!("http://{}{path}", office.metrics);
    let asked = async { reqwest::get(address).await.unwrap().status().as_u16() };
    office.runtime.block_on(asked)
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "not within {LONG:?}: {what}");
    }
}

/// All questions are refused, and whoever watches over the controller sees why.
fn is_refused(otto: &Caller<'_>) {
    let office = otto.office;
    let mut asked = JoinSet::new();
    for _ in 0..AT_ONCE {
        let question = otto.request(Method::GET, "/api/v1/devices");
        asked.spawn_on(async { question.send().await }, office.runtime.handle());
    }
    let answers = office.runtime.block_on(asked.join_all());
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status().as_u16(), 503, "{answer:?}");
        assert_eq!(answer.headers()["retry-after"], "1");
        let text = office.runtime.block_on(answer.text()).unwrap();
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(body["error"]["code"], "unavailable", "{text}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("registry") || message.contains("database"),
            "it says what is away: {message}"
        );
    }
    let revocation = json!({"reason": "stolen"});
    otto.post("/api/v1/devices/ff/revoke", &revocation)
        .refused(503, "unavailable");
    // What it was a moment ago may still be told.
    until("it is not ready", || health(office, "/readyz") == 503);
    assert_eq!(health(office, "/healthz"), 200);
}

/// Everything is as before.
fn is_well(otto: &Caller<'_>) {
    until("questions are answered", || {
        otto.get("/api/v1/devices").status == 200
    });
    until("it is ready", || health(otto.office, "/readyz") == 200);
}

/// A gateway, and devices that have been there once each: they have some rows there that the registry need not hear of.
struct Site {
    gateway: Gateway,
    devices: Vec<Device>,
}

impl Site {
    fn new(office: &Office, devices: u64) -> Self {
        let ids = (1..=devices).map(DeviceId);
        ids.clone().for_each(|id| enrol(office, id, 60));
        let (gateway, address): (Gateway, SocketAddr) = start(office.link(GatewayId(3), &[]), GatewayId(3));
        let device = |id| {
            let mut device = Device::new(id, Mode::Pool, address);
            assert_eq!(device.authenticate(LONG), Some(RowIndex(0)));
            device
        };
        Self {
            gateway,
            devices: ids.map(device).collect(),
        }
    }

    /// A device that was idle until now authenticates.
    fn goes_on(&mut self) {
        let mut device = self.devices.pop().unwrap();
        for row in 1..=2 {
            assert_eq!(device.authenticate(LONG), Some(RowIndex(row)));
        }
    }
}

#[test]
fn questions_are_refused_in_time_and_gateways_go_on_without_the_database() {
    let Some(mut server) = server() else { return };
    let office = office(&server);
    let otto = office.caller("otto", Role::Operator);
    let mut site = Site::new(&office, 5);
    let revoked = |gateway: &Gateway, id: &str, count: u64| {
        otto.post(
            &format!("/api/v1/devices/{id}/revoke"),
            &json!({"reason": "stolen"}),
        )
        .ok();
        assert!(
            gateway.wait_until(LONG, |status| status.revoked == count),
            "{:?}",
            gateway.status()
        );
    };

    // Slow: whoever wants a table waits for somebody else.
    let held = Held::new(&server);
    site.goes_on();
    is_refused(&otto);
    drop(held);
    is_well(&otto);
    revoked(&site.gateway, "1", 1);

    // Hanging: connections are there, and nothing comes.
    let paused = server.pause().unwrap();
    site.goes_on();
    is_refused(&otto);
    drop(paused);
    is_well(&otto);
    revoked(&site.gateway, "2", 2);

    // Gone.
    server.stop();
    site.goes_on();
    is_refused(&otto);
    server.resume().unwrap();
    is_well(&otto);
    drop(site);
    let problems = office.runtime.block_on(office.registry.check()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

/// No bound of the server's own ends what was asked before it hung.
#[test]
fn a_database_that_hangs_in_the_middle_of_a_question_keeps_nobody_waiting() {
    let Some(server) = server() else { return };
    let office = office(&server);
    let otto = office.caller("otto", Role::Operator);
    let held = Held::new(&server);
    let question = otto.request(Method::GET, "/api/v1/devices");
    let question = office.runtime.spawn(async { question.send().await });
    let probe = reqwest::get(format!("http://{}/readyz", office.metrics));
    let probe = office.runtime.spawn(probe);
    // The first thing that either asks.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT moved_to%FROM registry%'";
    until("both wait", || server.psql(waiting).unwrap().trim() == "2");
    let paused = server.pause().unwrap();
    let answers = async { (question.await.unwrap().unwrap(), probe.await.unwrap().unwrap()) };
    let (question, probe) = office.runtime.block_on(answers);
    assert_eq!((question.status().as_u16(), probe.status().as_u16()), (503, 503));
    drop(paused);
    drop(held);
    is_well(&otto);
}
