//! The command line far from the registry: by a controller over TLS, which says the same, refuses whom it must, dies, and lies.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "remote/liar.rs"]
mod liar;
#[path = "remote/memory.rs"]
mod memory;
#[path = "remote/office.rs"]
mod office;
#[path = "remote/refused.rs"]
mod refused;
#[path = "remote/resumed.rs"]
mod resumed;
mod support;
#[path = "remote/telemetry.rs"]
mod telemetry;

use serde_json::Value;

use self::office::Office;

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// What is there is the same wherever one stands: as a table, and for machines.
#[test]
fn what_is_read_from_afar_is_what_is_read_at_hand() {
    let office = Office::new();
    office.prepare(1_000);
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
        "gateway status 7",
        "policy list",
        "policy rounds",
        "policy rounds --group pumps --gateway 7 --limit 3",
        "policy results",
        "policy results --state silent",
        "signer list",
        "events",
        "events --kind revoked,quarantined --limit 5",
        "events --device d1",
        "audit",
        "audit --limit 1",
        "user list",
    ] {
        for form in ["", " --json"] {
            let here = office.at_hand(&format!("{command}{form}")).ok();
            let there = office.as_user("ada", &format!("{command}{form}")).ok();
            assert_eq!(here, there, "{command}{form}");
            assert!(!here.is_empty() || form == " --json", "{command}");
        }
    }
    // A list of more than one part is whole.
    let count = office.as_user("ada", "device list --json").ok().lines().count();
    assert_eq!(count, 1_003);
}

#[test]
fn what_is_done_from_afar_is_done_once_and_kept_with_who_and_why() {
    let office = Office::new();
    office.prepare(2);
    let olga = |words: &str| office.as_user("olga", words);
    let ada = |words: &str| office.as_user("ada", words);
    olga("device enroll simulated --count 3 --rows 2 --name fan --out fans --reason new-hall").ok();
    assert_eq!(
        office
            .at_hand("device list --name fan --json")
            .ok()
            .lines()
            .count(),
        3
    );
    olga("device enroll simulated --device e1 --rows 2 --out fans --reason new-hall").ok();
    let again = olga("device enroll simulated --device e1 --rows 2 --out again --reason new-hall").refused(1);
    assert!(again.contains("enrolled already"), "{again}");
    olga("device enroll simulated --device e1 --rows 2 --replace --out fans --reason worn-out").ok();
    assert_eq!(json(&ada("device show e1 --json").ok())["epoch"], 1);

    let done = olga("device quarantine e1 --reason odd --json").ok();
    assert_eq!(json(&done)["status"], "quarantined");
    assert!(
        office
            .at_hand("device show e1")
            .ok()
            .contains("in quarantine since")
    );
    olga("device release e1 --reason explained").ok();
    let revoked = olga("device revoke e1 d3 --reason stolen --json").ok();
    let revision = json(revoked.lines().next().unwrap())["revision"].as_u64();
    assert!(revision > Some(0), "{revoked}");
    let already = olga("device revoke e1 --reason lost --json").ok();
    let already = json(&already);
    assert_eq!(
        (&already["already"], &already["revoked_reason"]),
        (&true.into(), &"stolen".into())
    );
    let unknown = olga("device revoke d3 ffff --reason lost").refused(2);
    assert!(unknown.contains("000000000000ffff is not enrolled"), "{unknown}");

    ada("gateway enter 9 --name attic --reason new").ok();
    let retired = ada("gateway retire 9 --reason sold --json").ok();
    assert_eq!(json(&retired)["state"], "retired");
    let gone = ada("gateway enter 9 --name cellar --reason back").refused(1);
    assert!(gone.contains("is retired"), "{gone}");
    let policy =
        ada("policy set fans --every 40 --silent 2 --of 4 --reopen command --reason new --json").ok();
    assert_eq!(
        (&json(&policy)["every_s"], &json(&policy)["reopen"]),
        (&40.into(), &"command".into())
    );
    let asked = olga("policy round fans --reason now --json").ok();
    assert_eq!(json(&asked)["rounds_wanted"], 1);
    office.run("signed keygen --scheme ed25519 --out truck8").ok();
    let key = office.public_key("truck8");
    let signer = json(&ada(&format!("signer add {key} --name truck-8 --reason new --json")).ok());
    let id = signer["id"].as_str().unwrap();
    olga(&format!("signer revoke {id} --reason stolen")).ok();
    let signers = ada("signer list --json").ok();
    let gone = signers
        .lines()
        .map(json)
        .find(|signer| signer["id"] == *id)
        .unwrap();
    assert_eq!(gone["status"], "revoked");

    let token = ada("user add vera --reason night-shift").ok();
    office.token("vera", token.trim());
    office.as_user("vera", "device list").ok();
    ada("user remove vera --reason over").ok();
    let nobody = ada("user remove vera --reason over").refused(2);
    assert!(nobody.contains("no user \"vera\""), "{nobody}");

    let told = ada("audit --json --limit 1000").ok();
    let told: Vec<Value> = told.lines().map(json).collect();
    let done = |by: &str, what: &str, reason: &str| {
        let is = |act: &&Value| act["by"] == by && act["what"] == what && act["reason"] == reason;
        told.iter()
            .filter(is)
            .filter(|act| act["outcome"] == "ok")
            .count()
    };
    for (by, what, reason, count) in [
        ("olga", "enrolled", "new-hall", 2),
        ("olga", "enrolled", "worn-out", 1),
        ("olga", "quarantined", "odd", 1),
        ("olga", "released", "explained", 1),
        ("olga", "revoked", "stolen", 2),
        ("ada", "gateway_retired", "sold", 1),
        ("ada", "policy", "new", 1),
        ("olga", "round_wanted", "now", 1),
        ("olga", "signer", "stolen", 1),
        ("ada", "user", "over", 1),
    ] {
        assert_eq!(done(by, what, reason), count, "{by} {what} {reason}");
    }
    assert!(told.iter().all(|act| act["authentic"] == true), "{told:?}");
}

/// What a device has been through elsewhere comes along, sealed on its way to this program, and by TLS from there.
#[test]
fn a_fleet_moves_to_a_registry_that_only_a_controller_reaches() {
    let office = Office::new();
    let run = |words: &str| office.run(words);
    run("registry create --registry old.registry --key-file old.key").ok();
    let old = "--registry old.registry --key-file old.key";
    run(&format!(
        "device enroll simulated --count 4 --rows 3 --out devices {old}"
    ))
    .ok();
    for id in ["a1", "a2"] {
        run(&format!(
            "device enroll simulated --device {id} --rows 3 --out devices {old}"
        ))
        .ok();
    }
    run(&format!("device revoke a1 --reason stolen {old}")).ok();
    run(&format!("device quarantine a2 --reason odd {old}")).ok();
    run(&format!(
        "device export fleet.jsonl --export-key export.key {old}"
    ))
    .ok();
    let import = "device import fleet.jsonl --export-key export.key";
    let unreasoned = office.as_user("olga", import).refused(2);
    assert!(unreasoned.contains("--reason"), "{unreasoned}");
    let imported = office
        .as_user("olga", &format!("{import} --reason moved --json"))
        .ok();
    assert_eq!(json(&imported)["imported"], 6);
    let here = run(&format!("device list --json {old}")).ok();
    assert_eq!(here, office.as_user("olga", "device list --json").ok());
    // Once more it is refused, and nothing is changed; to replace is allowed, but revoked ones stay so.
    let again = office
        .as_user("olga", &format!("{import} --reason moved"))
        .refused(1);
    assert!(
        again.contains("is enrolled already") || again.contains("is revoked"),
        "{again}"
    );
    assert_eq!(here, office.as_user("olga", "device list --json").ok());
    office
        .as_user("vic", &format!("{import} --reason moved"))
        .refused(3);
}

#[test]
fn what_needs_the_registry_says_so() {
    let office = Office::new();
    for command in [
        "registry check",
        "registry backup copy.registry",
        "device export fleet.jsonl --public",
        "device pair list d1",
        "attest status",
        "attest round",
        "attest group list",
    ] {
        let said = office
            .run(&format!("{command} --server https://127.0.0.1:1"))
            .refused(2);
        assert!(said.contains("run it where the registry is"), "{command}: {said}");
    }
    for command in ["device list", "audit", "user list", "gateway list"] {
        let said = office.run(command).refused(2);
        assert!(said.contains("--server") && said.contains("--config"), "{said}");
    }
    let both = office
        .run("device list --server https://127.0.0.1:1 --config controller.toml")
        .refused(2);
    assert!(both.contains("cannot be used with"), "{both}");
}

/// A controller's configuration names a registry as a gateway's does.
#[test]
fn commands_on_a_registry_take_the_controllers_configuration() {
    let office = Office::new();
    office.prepare(2);
    for command in ["registry check", "device list", "attest group list", "user list"] {
        office.run(&format!("{command} --config controller.toml")).ok();
    }
    let backup = office
        .run("registry backup copy.registry --config controller.toml --json")
        .ok();
    assert!(json(&backup)["rows"].as_u64() > Some(0), "{backup}");
}
