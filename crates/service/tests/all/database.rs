//! A slow, hanging or unavailable database: the controller refuses requests in time and states the reason, and gateways
//! continue with their rows. Afterwards the controller serves requests again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use linewarden_gateway::Gateway;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{Location, Registry, Role};
use linewarden_testbed::Postgres;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::controller::{ApiClient, Ca, TestController, master_key};
use crate::gateways::{enroll, start_gateway};
use crate::servers::require_postgres;
use crate::site::{TIMEOUT, TestDevice as Device};

/// Number of concurrent requests, far more than database connections.
const CONCURRENT_REQUESTS: usize = 40;

fn controller(server: &Postgres) -> TestController {
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    let registry = runtime
        .block_on(Registry::create(&location, &master_key()))
        .unwrap();
    TestController::with_registry(Arc::new(Ca::new()), runtime, registry, "ctl-a")
}

/// A database session that locks all tables until this value is dropped.
struct TableLocks<'s> {
    server: &'s Postgres,
    session: Option<JoinHandle<()>>,
}

impl<'s> TableLocks<'s> {
    fn new(server: &'s Postgres) -> Self {
        let tables = server
            .psql(
                "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables \
                 WHERE schemaname = 'fleet'",
            )
            .unwrap();
        let statements = format!(
            "BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE; SET application_name = 'locking session'; SELECT pg_sleep(600)",
            tables.trim()
        );
        let deadline = Instant::now() + TIMEOUT;
        let start_session = || {
            let (statements, server) = (statements.clone(), Postgres::attach(server.directory()));
            // psql always returns an error here, because the server terminates the session.
            thread::spawn(move || drop(server.psql(&statements)))
        };
        let mut session = start_session();
        while server
            .psql(&format!("SELECT count(*) {FROM_LOCKING_SESSION}"))
            .unwrap()
            .trim()
            != "1"
        {
            assert!(Instant::now() < deadline, "the tables cannot be locked");
            // The server ended this session because of a deadlock with the controller.
            if session.is_finished() {
                session = start_session();
            }
        }
        Self {
            server,
            session: Some(session),
        }
    }
}

const FROM_LOCKING_SESSION: &str = "FROM pg_stat_activity WHERE application_name = 'locking session'";

impl Drop for TableLocks<'_> {
    fn drop(&mut self) {
        self.server
            .psql(&format!(
                "SELECT pg_terminate_backend(pid) {FROM_LOCKING_SESSION}"
            ))
            .unwrap();
        self.session.take().unwrap().join().unwrap();
    }
}

/// The HTTP status of a path at the metrics address.
fn health(controller: &TestController, path: &str) -> u16 {
    let address = format!("http://{}{path}", controller.metrics);
    let status_request = async { reqwest::get(address).await.unwrap().status().as_u16() };
    controller.runtime.block_on(status_request)
}

#[track_caller]
fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {description}");
    }
}

/// Asserts that all requests are refused and that health checks report the cause.
fn expect_refused(otto: &ApiClient<'_>) {
    let controller = otto.controller;
    let mut requests = JoinSet::new();
    for _ in 0..CONCURRENT_REQUESTS {
        let request = otto.request(Method::GET, "/api/v1/devices");
        requests.spawn_on(async { request.send().await }, controller.runtime.handle());
    }
    let responses = controller.runtime.block_on(requests.join_all());
    for response in responses {
        let response = response.unwrap();
        assert_eq!(response.status().as_u16(), 503, "{response:?}");
        assert_eq!(response.headers()["retry-after"], "1");
        let text = controller.runtime.block_on(response.text()).unwrap();
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(body["error"]["code"], "unavailable", "{text}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("registry") || message.contains("database"),
            "the message does not name the database: {message}"
        );
    }
    let revocation = json!({"reason": "stolen"});
    otto.post("/api/v1/devices/ff/revoke", &revocation)
        .refused(503, "unavailable");
    // For a short time, /readyz can still report the cached result of an earlier check.
    wait_until("the controller is not ready", || {
        health(controller, "/readyz") == 503
    });
    assert_eq!(health(controller, "/healthz"), 200);
}

/// Waits until requests are served and the controller is ready.
fn expect_healthy(otto: &ApiClient<'_>) {
    wait_until("requests are served", || {
        otto.get("/api/v1/devices").status == 200
    });
    wait_until("the controller is ready", || {
        health(otto.controller, "/readyz") == 200
    });
}

/// A gateway, and devices that have authenticated one time. The gateway can use its unspent rows of these devices without
/// the registry.
struct SiteWithDatabase {
    gateway: Gateway,
    devices: Vec<Device>,
}

impl SiteWithDatabase {
    fn new(controller: &TestController, devices: u64) -> Self {
        let ids = (1..=devices).map(DeviceId);
        ids.clone().for_each(|id| enroll(controller, id, 60));
        let (gateway, address): (Gateway, SocketAddr) =
            start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
        let device = |id| {
            let mut device = Device::new(id, Mode::Pool, address);
            assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(0)));
            device
        };
        Self {
            gateway,
            devices: ids.map(device).collect(),
        }
    }

    /// Removes a device from `devices` and asserts that this device authenticates twice with rows that the gateway has.
    fn expect_authentication(&mut self) {
        let mut device = self.devices.pop().unwrap();
        for row in 1..=2 {
            assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(row)));
        }
    }
}

#[test]
fn requests_are_refused_in_time_and_gateways_continue_without_the_database() {
    let mut server = require_postgres();
    let controller = controller(&server);
    let otto = controller.caller("otto", Role::Operator);
    let mut site = SiteWithDatabase::new(&controller, 5);
    let revoke_and_wait = |gateway: &Gateway, id: &str, count: u64| {
        otto.post(
            &format!("/api/v1/devices/{id}/revoke"),
            &json!({"reason": "stolen"}),
        )
        .ok();
        assert!(
            gateway.wait_until(TIMEOUT, |status| status.revoked == count),
            "{:?}",
            gateway.status()
        );
    };

    // The database is slow: each table access waits for a lock.
    let locks = TableLocks::new(&server);
    site.expect_authentication();
    expect_refused(&otto);
    drop(locks);
    expect_healthy(&otto);
    revoke_and_wait(&site.gateway, "1", 1);

    // The database hangs: connections remain open, but the server sends no reply.
    let paused = server.pause().unwrap();
    site.expect_authentication();
    expect_refused(&otto);
    drop(paused);
    expect_healthy(&otto);
    revoke_and_wait(&site.gateway, "2", 2);

    // The database is unavailable.
    server.stop();
    site.expect_authentication();
    expect_refused(&otto);
    server.restart().unwrap();
    expect_healthy(&otto);
    drop(site);
    let problems = controller.runtime.block_on(controller.registry.check()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

/// The database server hangs after it has received the queries. Timeouts of the database server have no effect then, so the
/// controller must end the requests.
#[test]
fn a_database_that_hangs_during_a_request_times_out() {
    let server = require_postgres();
    let controller = controller(&server);
    let otto = controller.caller("otto", Role::Operator);
    let locks = TableLocks::new(&server);
    let request = otto.request(Method::GET, "/api/v1/devices");
    let request = controller.runtime.spawn(async { request.send().await });
    let probe = reqwest::get(format!("http://{}/readyz", controller.metrics));
    let probe = controller.runtime.spawn(probe);
    // Counts the database sessions that wait in the first statement of a request.
    let waiting_sessions = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT moved_to%FROM registry%'";
    wait_until("both requests wait", || {
        server.psql(waiting_sessions).unwrap().trim() == "2"
    });
    let paused = server.pause().unwrap();
    let responses = async { (request.await.unwrap().unwrap(), probe.await.unwrap().unwrap()) };
    let (request, probe) = controller.runtime.block_on(responses);
    assert_eq!((request.status().as_u16(), probe.status().as_u16()), (503, 503));
    drop(paused);
    drop(locks);
    expect_healthy(&otto);
}
