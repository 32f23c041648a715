//! A lost registry is restored by the steps of `docs/operations`, with the documented losses.

use std::fs;

use linewarden_testbed::{Postgres, PostgresOptions};
use nix::sys::signal::Signal;

use crate::Environment;
use crate::operated::{Operated, documented, rows, wait_for_reauthentication};
use crate::support::run;

const BACKUP: &str = "fleet-2026-11-21.registry";

/// A fleet loses its registry; `lose` removes it. Gateway and agents keep running.
fn scenario(registry: &str, lose: impl FnOnce(&Operated<'_>)) {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let mut fleet = Operated::new(environment, registry);
    fleet
        .names
        .push(("postgres://linewarden@db.example/fleet", registry.to_owned()));
    let with_config = |arguments: &str| format!("{arguments} --config controller.toml");
    for command in [
        "device enroll simulated --device d1 --rows 200 --out devices",
        "device enroll simulated --device d2 --model sram --out devices",
        "device enroll simulated --device d3 --rows 4 --out devices",
        "device enroll simulated --device d4 --rows 4 --out devices",
        "device revoke d3 --reason stolen",
    ] {
        fleet.environment.run(&with_config(command));
    }
    fleet.systemctl("start", "linewarden-controller");
    fleet.keep_address();
    fleet.systemctl("start", "linewarden-gateway");
    let pool = fleet.agent("devices", "d1", "127.0.0.1");
    fleet.agent("devices", "d2", "[::1]").terminate();
    for command in documented("## Backup") {
        fleet.step(&command.replace("gateway.toml", "controller.toml"));
    }
    // Changes after the backup; the backup counts rows up to the mark as used.
    fleet
        .environment
        .run(&with_config("device revoke d4 --reason sold"));
    fleet.environment.run(&with_config(
        "device enroll simulated --device d5 --rows 2 --out devices",
    ));
    fleet.renew("devices", "d2", "[::1]");
    assert_eq!(fleet.device("d2")["epoch"], 1);
    let key = fleet.agent("devices", "d2", "[::1]");
    let marked = fleet.device("d1")["idx_floor"].as_u64();
    pool.wait_for("a row beyond the backup's mark", |line| {
        line["event"] == "authenticated" && line["row"].as_u64() >= marked
    });

    fleet.controller.take().unwrap().end_with_signal(Signal::SIGKILL);
    lose(&fleet);
    // The gateway continues with the rows that it holds.
    for agent in [&pool, &key] {
        wait_for_reauthentication(agent);
        assert!(agent.events("session_expired").is_empty());
    }
    let (start, restore): (Vec<_>, Vec<_>) = documented("## Restore a registry")
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
        .command(&with_config("device show d5"))
        .output()
        .unwrap();
    assert!(!refusal.status.success());
    assert_eq!(fleet.device("d2")["epoch"], 0, "the backup has the previous key");
    let used = *rows(&pool).last().unwrap();
    assert!(
        fleet.device("d1")["idx_floor"].as_u64() <= Some(used),
        "the backup is older than the device's credential"
    );
    fleet
        .environment
        .run(&with_config("device revoke d4 --reason sold"));
    start.iter().for_each(|command| fleet.step(command));
    assert!(fleet.gateway.is_some(), "the gateway keeps running");
    // Users in the backup have access. The registry has the older key of the device with the newer key: the device renews its
    // key.
    run(fleet.remote_command("device list", "--token-file ada.token"));
    key.event("previous_key_in_registry");
    key.event("key_renewed");
    wait_for_reauthentication(&key);
    assert_eq!(fleet.device("d2")["epoch"], 1);
    // A running device continues, and so does a restarted one: no row is used twice.
    wait_for_reauthentication(&pool);
    let mut used = rows(&pool);
    pool.terminate();
    let pool = fleet.agent("devices", "d1", "127.0.0.1");
    wait_for_reauthentication(&pool);
    used.extend(rows(&pool));
    assert!(used.is_sorted_by(|one, next| one < next), "{used:?}");
    let recorded_floor = fleet.device("d1")["idx_floor"].as_u64();
    assert!(
        recorded_floor > used.last().copied(),
        "{recorded_floor:?} {used:?}"
    );
    let files = fs::read_dir(fleet.environment.directory).unwrap();
    assert!(files.flatten().any(|file| file.file_name() == BACKUP));
    for process in [pool, key] {
        process.terminate();
    }
    fleet.systemctl("stop", "linewarden-gateway");
    fleet.systemctl("stop", "linewarden-controller");
    fleet.environment.run(&with_config("registry check"));
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
    let server = match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => {
            println!("SKIPPED: needs PostgreSQL: {missing}");
            return;
        }
    };
    let database = server.new_schema("fleet").unwrap();
    scenario(&database, |_| {
        server.psql("DROP SCHEMA fleet CASCADE").unwrap();
        server.psql("CREATE SCHEMA fleet").unwrap();
    });
}
