//! Keys are rotated by the steps of `docs/operations/key-rotation.md`, while a fleet works.

use std::fs;

use crate::Environment;
use crate::operated::{Operated, documented, rows, wait_for_reauthentication};
use crate::support::{Process, run};

/// A pool-mode and a key-mode device, which have authenticated.
fn working(fleet: &mut Operated<'_>) -> [Process; 2] {
    fleet
        .environment
        .run("device enroll simulated --device d1 --rows 200 --out devices --config controller.toml");
    fleet
        .environment
        .run("device enroll simulated --device d2 --model sram --out devices --config controller.toml");
    fleet.systemctl("start", "linewarden-controller");
    fleet.systemctl("start", "linewarden-gateway");
    // Each device has its own address: no two live sessions may share an address.
    [
        fleet.agent("devices", "d1", "127.0.0.1"),
        fleet.agent("devices", "d2", "[::1]"),
    ]
}

/// Replaces the certificate and its key by new ones.
fn exchange(fleet: &Operated<'_>, new: &str, old: &str) {
    for end in ["pem", "key"] {
        fs::rename(
            fleet.path(&format!("{new}.{end}")),
            fleet.path(&format!("{old}.{end}")),
        )
        .unwrap();
    }
}

#[test]
fn no_client_is_rejected_while_the_ca_is_replaced() {
    const OLD: &str = "--client-cert build.pem --client-key build.key";
    const NEW: &str = "--client-cert build-2.pem --client-key build-2.key";
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let mut fleet = Operated::new(environment, "fleet.registry");
    let agents = working(&mut fleet);
    for command in documented("## Another CA") {
        match &*command {
            // The gateway may wait for its next connection.
            "systemctl restart linewarden-gateway" => {}
            command => fleet.step(command),
        }
        // The documents describe this step in the comment after the command.
        let last = command.starts_with("cp ");
        if command.starts_with("linewarden certificate controller") {
            exchange(&fleet, "ctl-a-2", "ctl-a");
            fleet.systemctl("reload", "linewarden-controller");
        } else if command.starts_with("linewarden certificate gateway") {
            exchange(&fleet, "gateway-7-2", "gateway-7");
            fleet
                .environment
                .run("certificate user --ca pki-2 --name build --out build-2");
            run(fleet.remote_command("device list", NEW));
        } else if last {
            fleet.systemctl("reload", "linewarden-controller");
        }
        if !last {
            run(fleet.remote_command("device list", OLD));
        }
        agents.iter().for_each(wait_for_reauthentication);
    }
    let refused = fleet.remote_command("device list", OLD).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && error.contains("rejected the client certificate"),
        "{error}"
    );
    // With the new certificates only: the gateway learns of the revocation, so it is connected.
    run(fleet.remote_command("device revoke d1 --reason lost", NEW));
    let gateway = fleet.gateway.as_ref().unwrap();
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    let [pool, key] = agents;
    assert_eq!(
        (
            pool.events("session_expired").len(),
            key.events("session_expired").len()
        ),
        (0, 0)
    );
    pool.event("session_expired");
    key.event("authenticated");
    fleet.systemctl("stop", "linewarden-gateway");
    fleet.systemctl("stop", "linewarden-controller");
}

#[test]
fn devices_keep_their_data_under_another_master_key() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let mut fleet = Operated::new(environment, "fleet.registry");
    for command in [
        "device enroll simulated --device d3 --rows 2 --out devices",
        "device enroll simulated --device d4 --rows 2 --out devices",
        "device revoke d3 --reason stolen",
        "device quarantine d4 --reason odd",
        "gateway create 8 --name roof --reason new",
        "gateway revoke 8 --reason burnt",
    ] {
        fleet
            .environment
            .run(&format!("{command} --config controller.toml"));
    }
    let [pool, key] = working(&mut fleet);
    pool.event("authenticated");
    for command in documented("## Another master key") {
        fleet.step(&command);
    }
    assert!(!fleet.path("export.key").exists() && !fleet.path("fleet.jsonl").exists());
    let other = "device list --registry fleet-2.registry --key-file master.key";
    assert!(
        !fleet
            .environment
            .command(other)
            .output()
            .unwrap()
            .status
            .success()
    );
    // Then name both in the configurations.
    let floor_before = fleet.device("d1")["idx_floor"].as_u64().unwrap();
    fleet.configure("fleet-2.registry", "master-2.key");
    assert_eq!(fleet.device("d1")["idx_floor"], floor_before);
    assert!(
        floor_before > *rows(&pool).last().unwrap(),
        "no row is offered again"
    );
    assert_eq!(fleet.device("d3")["status"], "revoked");
    assert_eq!(fleet.device("d4")["status"], "quarantined");
    // Users and revoked numbers are not in the export.
    fleet.systemctl("start", "linewarden-controller");
    let token = "--token-file ada.token";
    assert!(
        !fleet
            .remote_command("device list", token)
            .output()
            .unwrap()
            .status
            .success()
    );
    fleet.add_ada();
    run(fleet.remote_command("device list", token));
    assert_eq!(run(fleet.remote_command("gateway list --json", token)), "");
    fleet
        .environment
        .run("gateway create 8 --name roof --reason new --config controller.toml");
    fleet
        .environment
        .run("gateway revoke 8 --reason burnt --config controller.toml");
    fleet.systemctl("start", "linewarden-gateway");
    // The same agents continue with their data.
    let gateway = fleet.gateway.as_ref().unwrap();
    gateway.wait_for("both devices", |line| line["devices"] == 2);
    for agent in [&pool, &key] {
        wait_for_reauthentication(agent);
    }
    let used = rows(&pool);
    assert!(used.is_sorted_by(|row, next| row < next), "{used:?}");
    for process in [pool, key] {
        process.terminate();
    }
    fleet.systemctl("stop", "linewarden-gateway");
    fleet.systemctl("stop", "linewarden-controller");
}
