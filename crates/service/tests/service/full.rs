//! A disk that is full: what would write is refused and says why, what reads is answered, gateways go on, and all is well once there is
//! room.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{Location, Registry, Role};
use linewarden_testbed::{Postgres, PostgresOptions};
use reqwest::Method;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::gateways::{enrol, start};
use crate::office::{Ca, Office, key};
use crate::site::{Client as Device, LONG};

/// Names the directory with the small disk to the process that has one.
const DISK: &str = "LINEWARDEN_SMALL_DISK";

#[test]
fn a_full_disk_refuses_what_writes_and_nothing_else() {
    if let Some(disk) = small_disk("full::a_full_disk_refuses_what_writes_and_nothing_else") {
        let runtime = Arc::new(Runtime::new().unwrap());
        let location = Location::Sqlite(disk.join("fleet.registry"));
        fills_up(&disk, runtime, &location);
    }
}

/// Tables are on a small disk, the log of what is written is not: PostgreSQL ends where that has no room.
#[test]
fn a_database_server_whose_disk_is_full_refuses_what_writes_and_nothing_else() {
    let test = "full::a_database_server_whose_disk_is_full_refuses_what_writes_and_nothing_else";
    let Some(disk) = small_disk(test) else { return };
    let server = match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => return println!("SKIPPED: needs PostgreSQL: {missing}"),
    };
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
    fills_up(&disk, Arc::new(Runtime::new().unwrap()), &location);
}

/// A small disk, in a process that has one. Any other process starts such a one to run the test of this name, and gets none.
fn small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = std::env::var_os(DISK) {
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
        .env(DISK, directory.path());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: no unshare: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.starts_with("unshare:") {
        println!("SKIPPED: no disk can be mounted: {said}");
        return None;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    for line in said.lines().filter(|line| line.starts_with("SKIPPED: ")) {
        println!("{line}");
    }
    None
}

/// Takes all the room that there is.
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

/// A fleet whose registry has its tables on that disk, while it has room, has none, and has some again.
fn fills_up(disk: &Path, runtime: Arc<Runtime>, location: &Location) {
    let registry = runtime.block_on(Registry::create(location, &key())).unwrap();
    let office = Office::over(Arc::new(Ca::new()), runtime, registry, "ctl-a");
    let otto = office.caller("otto", Role::Operator);
    let token = otto.token.clone().unwrap();
    let id = DeviceId(0xd1);
    enrol(&office, id, 60);
    let (gateway, address) = start(office.link(GatewayId(3), &[]), GatewayId(3));
    let mut device = Device::new(id, Mode::Pool, address);
    assert_eq!(device.authenticate(LONG), Some(RowIndex(0)));

    let ballast = disk.join("ballast");
    fill(&ballast);
    let new = json!({"id": "d2", "credentials": {"key": "11".repeat(16)}, "reason": "new"});
    let login = || {
        let request = otto.request(Method::POST, "/api/v1/login");
        otto.send(request.json(&json!({"token": token})))
    };
    let import = || {
        let request = otto.request(Method::POST, "/api/v1/devices/import?on_conflict=replace");
        let line = json!({"id": "d3", "credentials": {"key": "11".repeat(16)}});
        otto.send(request.header("X-Reason", "new").body(format!("{line}\n")))
    };
    // There may be room in what the tables have already.
    let is_refused = |number: u32| {
        let other =
            json!({"id": format!("f{number:x}"), "credentials": {"key": "11".repeat(16)}, "reason": "new"});
        otto.post("/api/v1/devices", &other).status == 503 && import().status == 503 && login().status == 503
    };
    assert!((0..2_000).any(is_refused), "the disk is not full");
    for _ in 0..3 {
        for said in [otto.post("/api/v1/devices", &new), import(), login()] {
            let message = said.refused(503, "unavailable");
            assert!(message.contains("is full; make room"), "{message}");
        }
        let found = otto.get("/api/v1/devices/d1").ok();
        assert_eq!(found["id"], "00000000000000d1", "what reads is answered");
        otto.get("/api/v1/status").ok();
    }
    otto.get("/api/v1/devices/d2").refused(404, "unknown_device");
    for row in 1..=2 {
        assert_eq!(device.authenticate(LONG), Some(RowIndex(row)));
    }

    fs::remove_file(&ballast).unwrap();
    otto.post("/api/v1/devices", &new).ok();
    import().ok();
    login().ok();
    // More rows than it had meanwhile: the registry takes note of them, and gives others.
    for row in 3..30 {
        assert_eq!(device.authenticate(LONG), Some(RowIndex(row)));
    }
    let stopped = gateway.stop().unwrap();
    assert!(stopped.settled);
    let problems = office.runtime.block_on(office.registry.check()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}
