//! A full disk: the controller refuses writes and states the reason, and serves reads; gateways continue. When the disk has
//! free space again, the controller accepts writes.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use linewarden_gateway::LinkState;
use linewarden_harness::skip;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{Location, Registry, Role};
use reqwest::Method;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::controller::{Ca, TestController, master_key};
use crate::gateways::{enroll, start_gateway};
use crate::servers::require_postgres;
use crate::site::{TIMEOUT, TestDevice as Device};

/// Environment variable with the mount point of the small disk. Only the child process of a test has this variable.
const SMALL_DISK_VARIABLE: &str = "LINEWARDEN_SMALL_DISK";

#[test]
fn a_full_disk_refuses_writes_only() {
    if let Some(disk) = small_disk("full::a_full_disk_refuses_writes_only") {
        let runtime = Arc::new(Runtime::new().unwrap());
        let location = Location::Sqlite(disk.join("fleet.registry"));
        test_with_full_disk(&disk, runtime, &location);
    }
}

/// The tables are on the small disk. The write-ahead log is on another disk, because PostgreSQL stops if the disk of the log
/// is full.
#[test]
fn a_full_database_server_refuses_writes_only() {
    let test = "full::a_full_database_server_refuses_writes_only";
    let Some(disk) = small_disk(test) else { return };
    let server = require_postgres();
    let tables = disk.join("tables");
    fs::create_dir(&tables).unwrap();
    let owner = fs::metadata(server.directory()).unwrap();
    chown(&tables, Some(owner.uid()), Some(owner.gid())).unwrap();
    for statement in [
        format!("CREATE TABLESPACE small LOCATION '{}'", tables.display()),
        "ALTER ROLE postgres SET default_tablespace = small".to_owned(),
    ] {
        server.psql(&statement).unwrap();
    }
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    test_with_full_disk(&disk, Arc::new(Runtime::new().unwrap()), &location);
}

/// Returns the mount point of the small disk if this process has one. Otherwise mounts a small disk, runs the test with this
/// name in a child process that has the disk, and returns `None`. Skips the test if no disk can be mounted, or if the child
/// process has skipped the test.
fn small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = std::env::var_os(SMALL_DISK_VARIABLE) {
        return Some(disk.into());
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=16m tmpfs \"$0\" || exit 77; exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", mount])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(SMALL_DISK_VARIABLE, directory.path());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => skip!("no unshare: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || text.starts_with("unshare:") {
        skip!("no disk can be mounted: {text}");
    }
    assert!(output.status.success(), "{text}");
    // The harness prints the reason of an ignored test after the name of the test.
    if let Some((_, reason)) = text.rsplit_once(&format!("\n    {test}: ")) {
        skip!("{}", reason.trim_end());
    }
    assert!(text.contains("1 passed"), "{text}");
    None
}

/// Writes to a file until its disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        loop {
            match file.write_all(&vec![1; size]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Tests a fleet with its registry on this disk: with free space, without free space, and with free space again.
fn test_with_full_disk(disk: &Path, runtime: Arc<Runtime>, location: &Location) {
    let registry = runtime
        .block_on(Registry::create(location, &master_key()))
        .unwrap();
    let controller = TestController::with_registry(Arc::new(Ca::new()), runtime, registry, "ctl-a");
    let otto = controller.caller("otto", Role::Operator);
    let token = otto.token.clone().unwrap();
    let id = DeviceId(0xd1);
    enroll(&controller, id, 60);
    let (gateway, address) = start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
    let mut device = Device::new(id, Mode::Pool, address);
    assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(0)));

    let ballast = disk.join("ballast");
    fill(&ballast);
    let d2 = json!({"id": "d2", "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let login = || {
        let request = otto.request(Method::POST, "/api/v1/login");
        otto.send(request.json(&json!({"token": token})))
    };
    let import = || {
        let request = otto.request(Method::POST, "/api/v1/devices/import?on_conflict=replace");
        let line = json!({"id": "d3", "credentials": {"key": "11".repeat(16)}});
        otto.send(request.header("X-Reason", "new").body(format!("{line}\n")))
    };
    // Tables can contain free space, so some writes succeed on a full disk.
    let is_refused = |number: u32| {
        let new_device =
            json!({"id": format!("f{number:x}"), "credentials": {"key": "11".repeat(16)}, "reason": "new"});
        otto.post("/api/v1/devices", &new_device).status == 503
            && import().status == 503
            && login().status == 503
    };
    assert!((0..2_000).any(is_refused), "the disk is not full");
    for _ in 0..3 {
        for response in [otto.post("/api/v1/devices", &d2), import(), login()] {
            let message = response.refused(503, "unavailable");
            assert!(message.contains("is full; free space"), "{message}");
        }
        let device_detail = otto.get("/api/v1/devices/d1").ok();
        assert_eq!(device_detail["id"], "00000000000000d1", "reads are served");
        otto.get("/api/v1/status").ok();
    }
    otto.get("/api/v1/devices/d2").refused(404, "unknown_device");
    for row in 1..=2 {
        assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(row)));
    }
    assert!(
        gateway.wait_until(TIMEOUT, |status| status.link == LinkState::Reachable),
        "requests that write nothing are served: {:?}",
        gateway.status()
    );

    fs::remove_file(&ballast).unwrap();
    otto.post("/api/v1/devices", &d2).ok();
    import().ok();
    login().ok();
    // The gateway had fewer unspent rows than this loop uses, so the registry must record spent rows and lease new rows.
    for row in 3..30 {
        assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(row)));
    }
    let outcome = gateway.stop().unwrap();
    assert!(outcome.unused_rows_reported);
    let problems = controller.runtime.block_on(controller.registry.check()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}
