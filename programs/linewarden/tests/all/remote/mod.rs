//! Commands through a controller over TLS: results that equal those of local commands, rejected users, a killed controller, and a
//! server that sends wrong responses.

mod controller;
mod malicious_server;
mod memory;
mod refused;
mod resumed;
mod telemetry;

use serde_json::Value;

use self::controller::TestController;

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Remote and local output is equal, as a table and as JSON.
#[test]
fn remote_and_local_queries_give_the_same_results() {
    let controller = TestController::new();
    controller.prepare(1_000);
    for command in [
        "device list",
        "device list --name pump --limit 2",
        "device list --id 00000000000000d",
        "device list --revoked",
        "device list --quarantined",
        "device list --active --mode pool",
        "device show d1",
        "device show d1 --history",
        "device show d2",
        "gateway list",
        "gateway show 7",
        "attest group list",
        "attest round list",
        "attest round list --group pumps --gateway 7 --limit 3",
        "attest list",
        "attest list --state missed",
        "device pair list d1",
        "signer list",
        "event list",
        "event list --kind revoked,quarantined --limit 5",
        "event list --device d1",
        "audit list",
        "audit list --limit 1",
        "user list",
    ] {
        for output_option in ["", " --output json"] {
            let local_output = controller.run_local(&format!("{command}{output_option}")).ok();
            let remote_output = controller
                .as_user("ada", &format!("{command}{output_option}"))
                .ok();
            assert_eq!(local_output, remote_output, "{command}{output_option}");
            assert!(
                !local_output.is_empty()
                    || output_option == " --output json"
                    || command.starts_with("device pair"),
                "{command}"
            );
        }
    }
    // A list of several pages is complete.
    let count = controller
        .as_user("ada", "device list --output json")
        .ok()
        .lines()
        .count();
    assert_eq!(count, 1_003);
}

#[test]
fn remote_changes_are_made_once_and_audited_with_user_and_reason() {
    let controller = TestController::new();
    controller.prepare(2);
    let olga = |arguments: &str| controller.as_user("olga", arguments);
    let ada = |arguments: &str| controller.as_user("ada", arguments);
    olga("device enroll simulated --count 3 --rows 2 --name fan --out fans --reason new-hall").ok();
    assert_eq!(
        controller
            .run_local("device list --name fan --output json")
            .ok()
            .lines()
            .count(),
        3
    );
    olga("device enroll simulated --device e1 --rows 2 --out fans --reason new-hall").ok();
    let repeat_error =
        olga("device enroll simulated --device e1 --rows 2 --out again --reason new-hall").refused(1);
    assert!(repeat_error.contains("already enrolled"), "{repeat_error}");
    olga("device enroll simulated --device e1 --rows 2 --replace --out fans --reason worn-out").ok();
    assert_eq!(json(&ada("device show e1 --output json").ok())["epoch"], 1);

    let quarantined = olga("device quarantine e1 --reason odd --output json").ok();
    assert_eq!(json(&quarantined)["status"], "quarantined");
    assert!(
        controller
            .run_local("device show e1")
            .ok()
            .contains("in quarantine since")
    );
    olga("device release e1 --reason explained").ok();
    let revoked = olga("device revoke e1 d3 --reason stolen --output json").ok();
    let revision = json(revoked.lines().next().unwrap())["revision"].as_u64();
    assert!(revision > Some(0), "{revoked}");
    let second_revocation = olga("device revoke e1 --reason lost --output json").ok();
    let second_revocation = json(&second_revocation);
    assert_eq!(
        (
            &second_revocation["already"],
            &second_revocation["revoked_reason"]
        ),
        (&true.into(), &"stolen".into())
    );
    let unknown_error = olga("device revoke d3 ffff --reason lost").refused(2);
    assert!(
        unknown_error.contains("000000000000ffff is not enrolled"),
        "{unknown_error}"
    );

    ada("gateway create 9 --name attic --reason new").ok();
    let revoked = ada("gateway revoke 9 --reason sold --output json").ok();
    assert_eq!(json(&revoked)["state"], "revoked");
    let refusal = ada("gateway create 9 --name cellar --reason back").refused(1);
    assert!(refusal.contains("is revoked"), "{refusal}");
    let policy =
        ada("attest group set fans --every 40 --missed-limit 2 --window-rounds 4 --release-mode manual --reason new --output json").ok();
    assert_eq!(
        (&json(&policy)["every_s"], &json(&policy)["release_mode"]),
        (&40.into(), &"manual".into())
    );
    let round = olga("attest round run fans --wait 0 --reason now --output json").ok();
    assert_eq!(json(&round)["rounds_requested"], 1);
    controller
        .run("linewarden signed keygen --scheme ed25519 --out truck8")
        .ok();
    let key = controller.public_key_file("truck8");
    let signer = json(
        &ada(&format!(
            "signer create {key} --name truck-8 --reason new --output json"
        ))
        .ok(),
    );
    let id = signer["id"].as_str().unwrap();
    olga(&format!("signer revoke {id} --reason stolen")).ok();
    let signers = ada("signer list --output json").ok();
    let revoked = signers
        .lines()
        .map(json)
        .find(|signer| signer["id"] == *id)
        .unwrap();
    assert_eq!(revoked["status"], "revoked");

    let token = ada("user create vera --reason night-shift").ok();
    controller.write_token("vera", token.trim());
    controller.as_user("vera", "device list").ok();
    ada("user delete vera --reason over").ok();
    let error = ada("user delete vera --reason over").refused(2);
    assert!(error.contains("user \"vera\" not found"), "{error}");

    let records = ada("audit list --output json --limit 1000").ok();
    let records: Vec<Value> = records.lines().map(json).collect();
    let count_of = |actor: &str, action: &str, reason: &str| {
        let matches = |record: &&Value| {
            record["actor"] == actor && record["action"] == action && record["reason"] == reason
        };
        records
            .iter()
            .filter(matches)
            .filter(|record| record["outcome"] == "ok")
            .count()
    };
    for (actor, action, reason, count) in [
        ("olga", "enrolled", "new-hall", 2),
        ("olga", "enrolled", "worn-out", 1),
        ("olga", "quarantined", "odd", 1),
        ("olga", "released", "explained", 1),
        ("olga", "revoked", "stolen", 2),
        ("ada", "gateway_revoked", "sold", 1),
        ("ada", "group_changed", "new", 1),
        ("olga", "round_requested", "now", 1),
        ("olga", "signer_changed", "stolen", 1),
        ("ada", "user_changed", "over", 1),
    ] {
        assert_eq!(
            count_of(actor, action, reason),
            count,
            "{actor} {action} {reason}"
        );
    }
    assert!(
        records.iter().all(|record| record["authentic"] == true),
        "{records:?}"
    );
}

/// The import includes the state of the exported devices. The devices are encrypted in the file, and are sent over TLS.
#[test]
fn a_fleet_moves_to_a_registry_that_only_a_controller_reaches() {
    let controller = TestController::new();
    let run = |arguments: &str| controller.run(arguments);
    run("linewarden registry create --registry old.registry --key-file old.key").ok();
    let old_registry = "--registry old.registry --key-file old.key";
    run(&format!(
        "linewarden device enroll simulated --count 4 --rows 3 --out devices {old_registry}"
    ))
    .ok();
    for id in ["a1", "a2"] {
        run(&format!(
            "linewarden device enroll simulated --device {id} --rows 3 --out devices {old_registry}"
        ))
        .ok();
    }
    run(&format!(
        "linewarden device revoke a1 --reason stolen {old_registry}"
    ))
    .ok();
    run(&format!(
        "linewarden device quarantine a2 --reason odd {old_registry}"
    ))
    .ok();
    run(&format!(
        "linewarden device export fleet.jsonl --export-key export.key {old_registry}"
    ))
    .ok();
    let import = "device import fleet.jsonl --export-key export.key";
    let error = controller.as_user("olga", import).refused(2);
    assert!(error.contains("--reason"), "{error}");
    let imported = controller
        .as_user("olga", &format!("{import} --reason moved --output json"))
        .ok();
    assert_eq!(json(&imported)["imported"], 6);
    let source_list = run(&format!("linewarden device list --output json {old_registry}")).ok();
    assert_eq!(
        source_list,
        controller.as_user("olga", "device list --output json").ok()
    );
    // A second import is rejected and changes nothing.
    let repeat_error = controller
        .as_user("olga", &format!("{import} --reason moved"))
        .refused(1);
    assert!(
        repeat_error.contains("is already enrolled") || repeat_error.contains("is revoked"),
        "{repeat_error}"
    );
    assert_eq!(
        source_list,
        controller.as_user("olga", "device list --output json").ok()
    );
    controller
        .as_user("vic", &format!("{import} --reason moved"))
        .refused(3);
}

#[test]
fn commands_that_need_direct_access_to_the_registry_report_this() {
    let controller = TestController::new();
    for command in [
        "registry check",
        "registry backup copy.registry",
        "device export fleet.jsonl --public",
        "attest show d1",
        "attest delete d1",
        "attest set d1 --port 9",
    ] {
        let error = controller
            .run(&format!("linewarden {command} --server https://127.0.0.1:1"))
            .refused(2);
        assert!(
            error.contains("on the machine of the registry"),
            "{command}: {error}"
        );
    }
    for command in ["device list", "audit list", "user list", "gateway list"] {
        let error = controller.run(&format!("linewarden {command}")).refused(2);
        assert!(
            error.contains("--server") && error.contains("--config"),
            "{error}"
        );
    }
    let conflict_error = controller
        .run("linewarden device list --server https://127.0.0.1:1 --config controller.toml")
        .refused(2);
    assert!(conflict_error.contains("cannot be used with"), "{conflict_error}");
}

/// Commands can read the registry's location from the configuration of a controller.
#[test]
fn commands_on_a_registry_accept_the_controllers_configuration() {
    let controller = TestController::new();
    controller.prepare(2);
    for command in ["registry check", "device list", "attest group list", "user list"] {
        controller
            .run(&format!("linewarden {command} --config controller.toml"))
            .ok();
    }
    let backup = controller
        .run("linewarden registry backup copy.registry --config controller.toml --output json")
        .ok();
    assert!(json(&backup)["rows"].as_u64() > Some(0), "{backup}");
}
