//! Keys are rotated by the steps of `docs/operations/key-rotation.md` while a fleet is in operation.

use std::fs;

use super::Environment;
use super::operated::{OperatedFleet, documented_commands, rows, wait_for_reauthentication};
use crate::support::{Process, run};

/// Enrolls a pool-mode and a key-mode device, and starts all processes. Returns the agents after their authentication.
fn start_fleet(fleet: &mut OperatedFleet<'_>) -> [Process; 2] {
    fleet.environment.run(
        "linewarden device enroll simulated --device d1 --rows 200 --out devices --config controller.toml",
    );
    fleet.environment.run(
        "linewarden device enroll simulated --device d2 --model sram --out devices --config controller.toml",
    );
    fleet.systemctl("start", "linewarden-controller");
    fleet.systemctl("start", "linewarden-gateway");
    // Each device has its own address: no two live sessions may share an address.
    [
        fleet.agent("devices", "d1", "127.0.0.1"),
        fleet.agent("devices", "d2", "[::1]"),
    ]
}

/// Replaces the certificate and the key `old` with the certificate and the key `new`.
fn replace_certificate(fleet: &OperatedFleet<'_>, new: &str, old: &str) {
    for extension in ["pem", "key"] {
        fs::rename(
            fleet.path(&format!("{new}.{extension}")),
            fleet.path(&format!("{old}.{extension}")),
        )
        .unwrap();
    }
}

#[test]
fn no_client_is_rejected_while_the_ca_is_replaced() {
    const OLD_CERTIFICATE: &str = "--client-cert build.pem --client-key build.key";
    const NEW_CERTIFICATE: &str = "--client-cert build-2.pem --client-key build-2.key";
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let mut fleet = OperatedFleet::new(environment, "fleet.registry");
    let agents = start_fleet(&mut fleet);
    for command in documented_commands("## Another CA") {
        match &*command {
            // No restart is necessary: the gateway reads its new certificate before its next connection.
            "systemctl restart linewarden-gateway" => {}
            command => fleet.step(command),
        }
        // The documents describe this step in the comment after the command.
        let is_last = command.starts_with("cp ");
        if command.starts_with("linewarden certificate controller") {
            replace_certificate(&fleet, "ctl-a-2", "ctl-a");
            fleet.systemctl("reload", "linewarden-controller");
        } else if command.starts_with("linewarden certificate gateway") {
            replace_certificate(&fleet, "gateway-7-2", "gateway-7");
            fleet
                .environment
                .run("linewarden certificate user --ca pki-2 --name build --out build-2");
            run(fleet.remote_command("device list", NEW_CERTIFICATE));
        } else if is_last {
            fleet.systemctl("reload", "linewarden-controller");
        }
        if !is_last {
            run(fleet.remote_command("device list", OLD_CERTIFICATE));
        }
        agents.iter().for_each(wait_for_reauthentication);
    }
    let refusal = fleet
        .remote_command("device list", OLD_CERTIFICATE)
        .output()
        .unwrap();
    let error = String::from_utf8(refusal.stderr).unwrap();
    assert!(
        !refusal.status.success() && error.contains("rejected the client certificate"),
        "{error}"
    );
    // Now only the new certificates are valid. The gateway receives the revocation, so the gateway is connected.
    run(fleet.remote_command("device revoke d1 --reason lost", NEW_CERTIFICATE));
    let gateway = fleet.gateway.as_ref().unwrap();
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    let [pool_agent, key_agent] = agents;
    assert_eq!(
        (
            pool_agent.events("session_expired").len(),
            key_agent.events("session_expired").len()
        ),
        (0, 0)
    );
    pool_agent.event("session_expired");
    key_agent.event("authenticated");
    fleet.systemctl("stop", "linewarden-gateway");
    fleet.systemctl("stop", "linewarden-controller");
}

#[test]
fn devices_keep_their_data_with_another_master_key() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    let mut fleet = OperatedFleet::new(environment, "fleet.registry");
    for command in [
        "linewarden device enroll simulated --device d3 --rows 2 --out devices",
        "linewarden device enroll simulated --device d4 --rows 2 --out devices",
        "linewarden device revoke d3 --reason stolen",
        "linewarden device quarantine d4 --reason odd",
        "linewarden gateway create 8 --name roof --reason new",
        "linewarden gateway revoke 8 --reason burnt",
    ] {
        fleet
            .environment
            .run(&format!("{command} --config controller.toml"));
    }
    let [pool_agent, key_agent] = start_fleet(&mut fleet);
    pool_agent.event("authenticated");
    for command in documented_commands("## Another master key") {
        fleet.step(&command);
    }
    assert!(!fleet.path("export.key").exists() && !fleet.path("fleet.jsonl").exists());
    let list_with_old_key = "linewarden device list --registry fleet-2.registry --key-file master.key";
    assert!(
        !fleet
            .environment
            .command(list_with_old_key)
            .output()
            .unwrap()
            .status
            .success()
    );
    // Next step of the document: the configuration names the new registry and the new key.
    let floor_before = fleet.device("d1")["idx_floor"].as_u64().unwrap();
    fleet.configure("fleet-2.registry", "master-2.key");
    assert_eq!(fleet.device("d1")["idx_floor"], floor_before);
    assert!(
        floor_before > *rows(&pool_agent).last().unwrap(),
        "no row is offered again"
    );
    assert_eq!(fleet.device("d3")["status"], "revoked");
    assert_eq!(fleet.device("d4")["status"], "quarantined");
    // The export contains no users and no revoked gateway IDs.
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
    assert_eq!(run(fleet.remote_command("gateway list --output json", token)), "");
    fleet
        .environment
        .run("linewarden gateway create 8 --name roof --reason new --config controller.toml");
    fleet
        .environment
        .run("linewarden gateway revoke 8 --reason burnt --config controller.toml");
    fleet.systemctl("start", "linewarden-gateway");
    // The running agents continue with their credentials.
    let gateway = fleet.gateway.as_ref().unwrap();
    gateway.wait_for("both devices", |line| line["devices"] == 2);
    for agent in [&pool_agent, &key_agent] {
        wait_for_reauthentication(agent);
    }
    let used_rows = rows(&pool_agent);
    assert!(used_rows.is_sorted_by(|row, next| row < next), "{used_rows:?}");
    for process in [pool_agent, key_agent] {
        process.terminate();
    }
    fleet.systemctl("stop", "linewarden-gateway");
    fleet.systemctl("stop", "linewarden-controller");
}
