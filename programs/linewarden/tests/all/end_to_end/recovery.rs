//! A lost registry is restored by the steps of `docs/operations`, with the losses that the document states.

use std::fs;

use nix::sys::signal::Signal;

use super::Environment;
use super::operated::{OperatedFleet, documented_commands, rows, wait_for_reauthentication};
use crate::support::{require_postgres, run};

const BACKUP: &str = "fleet-2026-11-21.registry";

/// A fleet loses its registry, which `delete_registry` deletes. The gateway and the agents keep running.
fn scenario(registry: &str, delete_registry: impl FnOnce(&OperatedFleet<'_>)) {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let mut fleet = OperatedFleet::new(environment, registry);
    fleet
        .names
        .push(("postgres://linewarden@db.example/fleet", registry.to_owned()));
    let with_config = |arguments: &str| format!("{arguments} --config controller.toml");
    for command in [
        "linewarden device enroll simulated --device d1 --rows 200 --out devices",
        "linewarden device enroll simulated --device d2 --model sram --out devices",
        "linewarden device enroll simulated --device d3 --rows 4 --out devices",
        "linewarden device enroll simulated --device d4 --rows 4 --out devices",
        "linewarden device revoke d3 --reason stolen",
    ] {
        fleet.environment.run(&with_config(command));
    }
    fleet.systemctl("start", "linewarden-controller");
    fleet.keep_address();
    fleet.systemctl("start", "linewarden-gateway");
    let mut pool_agent = fleet.agent("devices", "d1", "127.0.0.1");
    fleet.agent("devices", "d2", "[::1]").terminate();
    for command in documented_commands("## Backup") {
        fleet.step(&command.replace("gateway.toml", "controller.toml"));
    }
    // Changes after the backup; the backup counts rows up to the mark as used.
    fleet
        .environment
        .run(&with_config("linewarden device revoke d4 --reason sold"));
    fleet.environment.run(&with_config(
        "linewarden device enroll simulated --device d5 --rows 2 --out devices",
    ));
    fleet.renew("devices", "d2", "[::1]");
    assert_eq!(fleet.device("d2")["epoch"], 1);
    let key_agent = fleet.agent("devices", "d2", "[::1]");
    // The agent uses a row beyond the backup's mark. Each start uses the next row.
    let backup_mark = fleet.device("d1")["idx_floor"].as_u64();
    while rows(&pool_agent).last().copied() < backup_mark {
        pool_agent.terminate();
        pool_agent = fleet.agent("devices", "d1", "127.0.0.1");
    }

    fleet.controller.take().unwrap().end_with_signal(Signal::SIGKILL);
    delete_registry(&fleet);
    // The gateway continues with the rows that it holds.
    for agent in [&pool_agent, &key_agent] {
        wait_for_reauthentication(agent);
        assert!(agent.events("session_expired").is_empty());
    }
    let (start, restore): (Vec<_>, Vec<_>) = documented_commands("## Restore a registry")
        .into_iter()
        .partition(|command| command.starts_with("systemctl start"));
    for command in &restore {
        fleet.step(command);
    }
    let status = |id: &str| fleet.device(id)["status"].as_str().unwrap().to_owned();
    assert_eq!(
        [status("d3"), status("d4")],
        ["revoked", "active"],
        "the state of the backup"
    );
    let refusal = fleet
        .environment
        .command(&with_config("linewarden device show d5"))
        .output()
        .unwrap();
    assert!(!refusal.status.success());
    assert_eq!(fleet.device("d2")["epoch"], 0, "the backup has the previous key");
    let last_used_row = *rows(&pool_agent).last().unwrap();
    assert!(
        fleet.device("d1")["idx_floor"].as_u64() <= Some(last_used_row),
        "the backup's lowest unused row was used after the backup"
    );
    fleet
        .environment
        .run(&with_config("linewarden device revoke d4 --reason sold"));
    start.iter().for_each(|command| fleet.step(command));
    assert!(fleet.gateway.is_some(), "the gateway keeps running");
    // Users in the backup have access. The registry has the previous key of device d2, so the device renews its key.
    run(fleet.remote_command("device list", "--token-file ada.token"));
    key_agent.event("previous_key_in_registry");
    key_agent.event("key_renewed");
    wait_for_reauthentication(&key_agent);
    assert_eq!(fleet.device("d2")["epoch"], 1);
    // A running device and a restarted device continue, and use no row twice.
    wait_for_reauthentication(&pool_agent);
    let mut used_rows = rows(&pool_agent);
    pool_agent.terminate();
    let pool_agent = fleet.agent("devices", "d1", "127.0.0.1");
    wait_for_reauthentication(&pool_agent);
    used_rows.extend(rows(&pool_agent));
    assert!(used_rows.is_sorted_by(|row, next| row < next), "{used_rows:?}");
    let recorded_floor = fleet.device("d1")["idx_floor"].as_u64();
    assert!(
        recorded_floor > used_rows.last().copied(),
        "{recorded_floor:?} {used_rows:?}"
    );
    let files = fs::read_dir(fleet.environment.directory).unwrap();
    assert!(files.flatten().any(|file| file.file_name() == BACKUP));
    for process in [pool_agent, key_agent] {
        process.terminate();
    }
    fleet.systemctl("stop", "linewarden-gateway");
    fleet.systemctl("stop", "linewarden-controller");
    fleet.environment.run(&with_config("linewarden registry check"));
}

#[test]
fn a_lost_file_is_restored_from_its_backup() {
    scenario("fleet.registry", |fleet| {
        for file in ["fleet.registry", "fleet.registry-wal", "fleet.registry-shm"] {
            let _ = fs::remove_file(fleet.path(file));
        }
    });
}

#[test]
fn a_lost_database_is_restored_from_its_backup() {
    let server = require_postgres();
    let database = server.new_schema("fleet").unwrap();
    scenario(&database, |_| {
        server.psql("DROP SCHEMA fleet CASCADE").unwrap();
        server.psql("CREATE SCHEMA fleet").unwrap();
    });
}
