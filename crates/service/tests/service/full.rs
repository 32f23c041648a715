//! A disk that is full: what would write is refused and says why, what reads is answered, gateways go on, and all is well once there is
//! room.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{Location, Registry, Role};
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
    if let Some(disk) = std::env::var_os(DISK) {
        return with_small_disk(Path::new(&disk));
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=16m tmpfs \"$0\" || exit 77; exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", mount])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "full::a_full_disk_refuses_what_writes_and_nothing_else",
        ])
        .env(DISK, directory.path());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return println!("SKIPPED: no unshare: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.starts_with("unshare:") {
        return println!("SKIPPED: no disk can be mounted: {said}");
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
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

fn with_small_disk(disk: &Path) {
    let runtime = Arc::new(Runtime::new().unwrap());
    let location = Location::Sqlite(disk.join("fleet.registry"));
    let registry = runtime.block_on(Registry::create(&location, &key())).unwrap();
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
        let request = otto.request(Method::POST, "/api/v1/devices/import");
        let line = json!({"id": "d3", "credentials": {"key": "11".repeat(16)}});
        otto.send(request.header("X-Reason", "new").body(format!("{line}\n")))
    };
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
