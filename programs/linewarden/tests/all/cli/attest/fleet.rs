//! Groups, software keys, enrollment and removal of devices, and keys that sign attestation results.

use std::os::unix::fs::MetadataExt as _;

use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_registry::Protection;

use super::*;

#[test]
fn a_group_is_made_changed_listed_and_removed() {
    let site = Site::new();
    let created = site.on_registry("attest group set pumps").ok();
    assert!(
        created.starts_with("created group pumps: round every 60 s, quarantine after 3 missed rounds in 5 rounds, released by the next proof")
            && created.contains("no reference value"),
        "{created}"
    );
    site.write_configuration("pumps.conf", &configuration(1));
    let h = configuration(1).hash().to_string();
    let updated = site
        .on_registry("attest group set pumps --reference pumps.conf")
        .ok();
    assert!(
        updated.contains(&format!("reference value {h}: 1 path")),
        "{updated}"
    );

    // Settings that are not named do not change.
    site.on_registry("attest group set pumps --every 20 --jitter 3 --proof-timeout-ms 700 --missed-limit 1 --window-rounds 4 --release-mode manual --late-is-missed")
        .ok();
    site.on_registry("attest group set pumps --missed-limit 2 --late-is-missed=false")
        .ok();
    let group = site.group("pumps");
    let expected = serde_json::json!({
        "name": "pumps", "every_s": 20, "jitter_s": 3, "proof_timeout_ms": 700, "missed_limit": 2, "window_rounds": 4, "late_is_missed": false,
        "release_mode": "manual", "reference": h, "roll_out": null, "devices": 0, "rounds_requested": 0,
    });
    assert_eq!(group, expected);
    let listed = site.on_registry("attest group list").ok();
    assert!(
        listed.contains("pumps") && listed.contains(&h[..16]) && listed.ends_with("\n1 group\n"),
        "{listed}"
    );
    let text = site.on_registry("attest group show pumps").ok();
    assert!(
        text.contains(&h) && text.contains("20 s") && text.contains("2 of 4"),
        "{text}"
    );
    assert_eq!(
        json(&site.on_registry("attest group show pumps --output json").ok()),
        group
    );
    // For a short interval, the defaults of jitter and timeout are shorter.
    let quick_group = json(
        &site
            .on_registry("attest group set quick --every 1 --output json")
            .ok(),
    );
    assert_eq!(
        (
            quick_group["jitter_s"].as_u64(),
            quick_group["proof_timeout_ms"].as_u64(),
            quick_group["created"].as_bool()
        ),
        (Some(0), Some(500), Some(true))
    );
    // If the interval of an existing group changes, default values are adapted to the new interval. Explicit values remain.
    let policy = |arguments: &str| {
        let updated = json(
            &site
                .on_registry(&format!("attest group set quick {arguments} --output json"))
                .ok(),
        );
        (updated["jitter_s"].as_u64(), updated["proof_timeout_ms"].as_u64())
    };
    assert_eq!(policy("--every 3600"), (Some(5), Some(2_000)));
    assert_eq!(policy("--every 2"), (Some(1), Some(1_000)));
    assert_eq!(policy("--every 60 --proof-timeout-ms 300"), (Some(5), Some(300)));
    assert_eq!(policy("--every 2"), (Some(1), Some(300)));
    site.on_registry("attest group delete quick").ok();
    assert_eq!(
        site.on_registry("attest group list --output json")
            .ok()
            .lines()
            .count(),
        1
    );
}

#[test]
fn mistakes_in_groups_are_reported() {
    let site = Site::attesting(1);
    site.write("text", "text that is not a configuration");
    for (arguments, cause) in [
        ("group set Pumps", "invalid group name \"Pumps\""),
        (
            "group set pumps --reference none",
            "none: cannot be read: No such file",
        ),
        (
            "group set pumps --reference text",
            "text: invalid configuration at byte 24: not a configuration",
        ),
        ("group set pumps --every 0", "group pumps: field every_s: 0 s"),
        (
            "group set pumps --missed-limit 6",
            "group pumps: field missed_limit: 6 of 5 rounds; 1 to 5 are accepted",
        ),
        (
            "group set pumps --window-rounds 65",
            "group pumps: field window_rounds: 65 rounds; 1 to 64 are accepted",
        ),
        (
            "group set pumps --proof-timeout-ms 60000",
            "group pumps: field proof_timeout_ms",
        ),
        ("group set pumps --late-is-missed=maybe", "invalid value 'maybe'"),
        ("group delete valves", "group valves does not exist"),
        ("group show valves", "group valves does not exist"),
        ("rollout approve valves", "group valves does not exist"),
        ("rollout approve pumps", "group pumps has no roll-out"),
        ("rollout delete pumps", "group pumps has no roll-out"),
        (
            "rollout create pumps --reference pumps.conf --for 0",
            "invalid value '0'",
        ),
        (
            "rollout create pumps --reference text --for 9",
            "text: invalid configuration at byte 24",
        ),
        (
            "enroll d1 --group valves --software --key-out k",
            "group valves does not exist",
        ),
        ("list --group valves", "group valves does not exist"),
        ("round run valves", "group valves does not exist"),
        ("round run", "group pumps has no devices"),
    ] {
        let error = site.on_registry(&format!("attest {arguments}")).refused(2);
        assert!(error.contains(cause), "{arguments}: {error}");
    }
    // A roll-out needs a reference value.
    site.on_registry("attest group set bare").ok();
    let error = site
        .on_registry("attest rollout create bare --reference pumps.conf --for 9")
        .refused(2);
    assert!(
        error.contains("`attest group set bare --reference FILE`"),
        "{error}"
    );
    site.on_registry("attest enroll d1 --group pumps --software --key-out k")
        .ok();
    let error = site.on_registry("attest group delete pumps").refused(1);
    assert!(
        error.contains("group pumps has provers, for example 00000000000000d1"),
        "{error}"
    );
}

#[test]
fn a_roll_out_is_accepted_or_withdrawn() {
    let site = Site::attesting(0);
    site.write_configuration("new.conf", &configuration(2));
    let [old, new] = [1, 2].map(|content| configuration(content).hash().to_string());
    let text = site
        .on_registry("attest rollout create pumps --reference new.conf --for 3600")
        .ok();
    assert!(
        text.contains(&format!("group pumps: {new} is also valid until 20")),
        "{text}"
    );
    let group = site.group("pumps");
    assert_eq!(
        (
            group["reference"].as_str(),
            group["roll_out"]["reference"].as_str()
        ),
        (Some(old.as_str()), Some(new.as_str()))
    );
    let text = site.on_registry("attest rollout delete pumps").ok();
    assert_eq!(
        text,
        format!("group pumps: {new} is no longer valid, only {old}\n")
    );
    assert_eq!(site.group("pumps")["roll_out"], serde_json::Value::Null);

    site.on_registry("attest rollout create pumps --reference new.conf --for 3600")
        .ok();
    let text = site.on_registry("attest rollout approve pumps").ok();
    assert_eq!(
        text,
        format!("group pumps: {new} is now the only valid reference value\n")
    );
    let group = site.group("pumps");
    assert_eq!(
        (group["reference"].as_str(), &group["roll_out"]),
        (Some(new.as_str()), &serde_json::Value::Null)
    );
}

/// A reference value that conflicts with the overlay of a device is rejected, because the device could not be attested.
#[test]
fn a_reference_value_that_conflicts_with_the_overlay_of_a_device_is_refused() {
    let site = Site::attesting(1);
    for (name, bank) in [
        ("sha256.conf", HashAlgorithm::Sha256),
        ("sha384.conf", HashAlgorithm::Sha384),
    ] {
        let mut pcrs = PcrValues::new(bank);
        pcrs.set(11.try_into().unwrap(), bank.digest(&[b"kernel"]))
            .unwrap();
        site.write_configuration(name, &Configuration::new(pcrs, BTreeMap::new()).unwrap());
    }
    let enroll = "attest enroll d1 --group pumps --software --overlay sha256.conf --key-out";
    let refused = |arguments: &str, field: &str| {
        let error = site.on_registry(&format!("attest {arguments}")).refused(2);
        let expected = format!(
            "group pumps: field {field}: the overlay of device 00000000000000d1 does not fit: overlay rejected: its PCR bank"
        );
        assert!(error.contains(&expected), "{arguments}: {error}");
    };
    // A device with an overlay that conflicts with a running roll-out is not enrolled, because otherwise the operator could
    // not accept the roll-out.
    site.on_registry("attest rollout create pumps --reference sha384.conf --for 60")
        .ok();
    let error = site.on_registry(&format!("{enroll} k")).refused(2);
    let expected = "sha256.conf: overlay does not fit the roll-out of group pumps: overlay rejected: its PCR bank is sha256";
    assert!(error.contains(expected), "{error}");
    assert!(!site.path("k").exists());
    site.on_registry("attest rollout delete pumps").ok();
    site.on_registry(&format!("{enroll} k")).ok();
    refused("group set pumps --reference sha384.conf", "reference");
    refused(
        "rollout create pumps --reference sha384.conf --for 60",
        "roll_out",
    );
    let group = site.group("pumps");
    assert_eq!(
        (group["reference"].as_str(), &group["roll_out"]),
        (
            Some(configuration(1).hash().to_string().as_str()),
            &serde_json::Value::Null
        )
    );
    site.on_registry("attest group set pumps --reference sha256.conf")
        .ok();
}

#[test]
fn a_software_key_is_in_its_file_and_in_the_registry() {
    let site = Site::attesting(1);
    site.write_configuration("own.conf", &configuration_of_files(&[("/etc/serial", 9)]));
    site.with_registry(async |registry| {
        let period = registry.create_period(Some(Period(6)), [1; 8], 1).await.unwrap();
        registry.start_period(period.number, 1).await.unwrap();
        // A period that has not begun is not used.
        registry
            .create_period(Some(period.number), [2; 8], 1)
            .await
            .unwrap();
    });
    let report = json(
        &site
            .on_registry(
                "attest enroll d1 --group pumps --software --key-out d1.key --port 7000 --gateway 5 --address 192.0.2.7 \
                 --overlay own.conf --output json",
            )
            .ok(),
    );
    assert_eq!(
        (
            report["device_id"].as_str(),
            report["enrolled_period"].as_u64(),
            report["port"].as_u64()
        ),
        (Some("00000000000000d1"), Some(7), Some(7000))
    );
    let text = fs::read_to_string(site.path("d1.key")).unwrap();
    assert_eq!(fs::metadata(site.path("d1.key")).unwrap().mode() & 0o7777, 0o600);
    let prover = site.with_registry(async |registry| registry.prover(DeviceId(0xd1)).await.unwrap().unwrap());
    assert_eq!(text, format!("{}\n", hex::encode(prover.key.as_bytes())));
    assert_eq!((prover.port, prover.protection), (7000, Protection::Software));
    assert_eq!(
        prover.overlay,
        Some(configuration_of_files(&[("/etc/serial", 9)]).encode())
    );
    let location = prover.location.unwrap();
    assert_eq!(
        (location.gateway.0, location.address.to_string()),
        (5, "192.0.2.7".to_owned())
    );

    // A second enrollment is rejected, and the valid key file is never overwritten.
    let enroll_command = "attest enroll d1 --group pumps --software --key-out";
    let error = site
        .on_registry(&format!("{enroll_command} other.key"))
        .refused(1);
    assert!(
        error.contains("already enrolled for attestation: use --replace"),
        "{error}"
    );
    let error = site
        .on_registry(&format!("{enroll_command} d1.key --replace"))
        .refused(2);
    assert!(
        error.contains("d1.key already exists and is not overwritten"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(site.path("d1.key")).unwrap(), text);
    assert!(!site.path("other.key").exists());
    site.on_registry(&format!("{enroll_command} other.key --replace"))
        .ok();
    assert_ne!(fs::read_to_string(site.path("other.key")).unwrap(), text);
}

#[test]
fn a_device_is_attested_at_another_address_with_its_key() {
    let site = Site::attesting(1);
    site.on_registry("attest enroll d1 --group pumps --software --key-out k --port 7000")
        .ok();
    let prover =
        || site.with_registry(async |registry| registry.prover(DeviceId(0xd1)).await.unwrap().unwrap());
    let prover_before = prover();
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("attested at  UDP port 7000, not attested before its first session"),
        "{text}"
    );
    let text = site
        .on_registry("attest set d1 --gateway 5 --address 192.0.2.7")
        .ok();
    assert_eq!(
        text,
        "device 00000000000000d1 is attested at UDP port 7000; while the device has no session, gateway 5 attests it at 192.0.2.7\n"
    );
    site.on_registry("attest set d1 --port 7001").ok();
    let prover_after = prover();
    assert_eq!(prover_after.key.as_bytes(), prover_before.key.as_bytes());
    assert_eq!(
        (
            prover_after.port,
            prover_after.group,
            prover_after.enrolled_period
        ),
        (7001, prover_before.group, prover_before.enrolled_period)
    );
    // Each of the two moves advances the time of enrollment by at least 1 s, even if both moves happen within one second.
    assert!(prover_after.enrolled_at_s >= prover_before.enrolled_at_s + 2);
    let status = site.status("d1");
    assert_eq!(
        (&status["port"], &status["location"]),
        (
            &serde_json::json!(7001),
            &serde_json::json!({ "gateway": 5, "address": "192.0.2.7" })
        )
    );
    let error = site.on_registry("attest set d1").refused(2);
    assert!(error.contains("--port"), "{error}");
}

#[test]
fn several_devices_are_enrolled_together_or_not_at_all() {
    let site = Site::attesting(3);
    let enroll = "attest enroll --group pumps --software --key-dir keys";
    // If a device is unknown or a key file exists already, no key file is created.
    let error = site.on_registry(&format!("{enroll} d1 d2 d9")).refused(2);
    assert!(error.contains("00000000000000d9 is not enrolled"), "{error}");
    assert!(!site.path("keys").exists());
    fs::create_dir(site.path("keys")).unwrap();
    site.write("keys/00000000000000d3.attest-key", "another file");
    let error = site.on_registry(&format!("{enroll} d1 d2 d3")).refused(2);
    assert!(
        error.contains("00000000000000d3.attest-key already exists"),
        "{error}"
    );
    assert_eq!(site.file_names("keys").len(), 1);
    fs::remove_file(site.path("keys/00000000000000d3.attest-key")).unwrap();

    let text = site.on_registry(&format!("{enroll} d1 d2 d3")).ok();
    assert!(
        text.contains("enrolled 3 devices for attestation in group pumps")
            && text.contains("port = 20554, enrolled_period = 0"),
        "{text}"
    );
    assert_eq!(
        site.file_names("keys"),
        ["d1", "d2", "d3"].map(|id| format!("00000000000000{id}.attest-key"))
    );
    assert_eq!(site.group("pumps")["devices"], 3);
    let listed = site.on_registry("attest list").ok();
    assert!(
        listed.contains("pump2") && listed.ends_with("3 devices: 3 awaiting first round\n"),
        "{listed}"
    );

    let error = site.on_registry("attest delete d1 d9").refused(2);
    assert!(
        error.contains("00000000000000d9 is not enrolled; check the id"),
        "{error}"
    );
    assert_eq!(site.on_registry("attest delete d1 d2").ok().lines().count(), 2);
    assert_eq!(site.group("pumps")["devices"], 1);
    let error = site.on_registry("attest delete d1").refused(2);
    assert!(
        error.contains("00000000000000d1 is not enrolled for attestation: `attest list`"),
        "{error}"
    );
    for arguments in ["list d1", "show d1", "set d1 --port 9"] {
        let error = site.on_registry(&format!("attest {arguments}")).refused(2);
        assert!(
            error.contains("00000000000000d1 is not enrolled for attestation"),
            "{arguments}: {error}"
        );
    }
}

#[test]
fn mistakes_in_enrollments_are_reported() {
    let site = Site::attesting(2);
    site.write("file", "");
    let enroll = "enroll --group pumps";
    for (arguments, cause) in [
        ("d1", "required arguments were not provided"),
        ("d1 --software", "use --key-out FILE or --key-dir DIR"),
        (
            "d1 d2 --software --key-out k",
            "use --key-dir for several devices",
        ),
        (
            "d1 d2 --software --key-dir k --gateway 5 --address 192.0.2.7",
            "--address applies to one device",
        ),
        ("d1 --software --key-out k --gateway 5", "--address"),
        ("d1 --software --key-out k --port 0", "invalid value '0'"),
        ("d1 --software --key-out k --overlay none", "none: cannot be read"),
        ("d1 --software --key-out no/k", "no/k: cannot be written"),
        ("d1 --software --key-dir file", "file: cannot be created"),
        ("d1 --software --key-out k --identity i", "cannot be used with"),
        ("d1 --identity i", "--offer"),
        (
            "d1 --identity i --offer o --pending p --port 9",
            "cannot be used with",
        ),
        (
            "d1 --identity i --offer o --pending p --pin abc",
            "64 hexadecimal digits",
        ),
        ("d1 --identity none --offer o --pending p", "none: cannot be read"),
        (
            "d1 --identity file --offer o --pending p",
            "file: expected a device's identity: message empty or truncated",
        ),
        ("d1 --answer file", "--pending"),
        (
            "d1 --answer file --pending none",
            "none: file not found; an enrollment deletes the file at its end",
        ),
        (
            "d1 d2 --identity i --offer o --pending p",
            "--identity and --answer enroll one device",
        ),
    ] {
        let error = site
            .on_registry(&format!("attest {enroll} {arguments}"))
            .refused(2);
        assert!(error.contains(cause), "{arguments}: {error}");
    }
    for (name, bank) in [
        ("group.conf", HashAlgorithm::Sha256),
        ("own.conf", HashAlgorithm::Sha384),
    ] {
        let mut pcrs = PcrValues::new(bank);
        pcrs.set(11.try_into().unwrap(), bank.digest(&[b"kernel"]))
            .unwrap();
        site.write_configuration(name, &Configuration::new(pcrs, BTreeMap::new()).unwrap());
    }
    site.on_registry("attest group set boots --reference group.conf")
        .ok();
    let error = site
        .on_registry("attest enroll d1 --group boots --software --key-out k --overlay own.conf")
        .refused(2);
    assert!(
        error.contains(
            "own.conf: overlay does not fit the reference value of group boots: overlay rejected: its PCR bank is sha384"
        ),
        "{error}"
    );
    // The registry rejects the enrollment after the command has written the key file. The command then deletes the file.
    let paths: Vec<String> = (0..3_000)
        .map(|number| format!("/etc/a-long-name/{number}"))
        .collect();
    let paths: Vec<(&str, u8)> = paths.iter().map(|path| (path.as_str(), 1)).collect();
    site.write_configuration("many.conf", &configuration_of_files(&paths));
    let error = site
        .on_registry("attest enroll d1 --group pumps --software --key-out k --overlay many.conf")
        .refused(2);
    assert!(error.contains("1 to 65536 B are accepted"), "{error}");
    assert!(!site.path("k").exists());
    site.on_registry("device revoke d2").ok();
    let error = site
        .on_registry("attest enroll d2 --group pumps --software --key-out k")
        .refused(1);
    assert!(error.contains("00000000000000d2 is revoked"), "{error}");
    assert!(!site.path("k").exists() && !site.path("o").exists() && !site.path("p").exists());
}

#[test]
fn revoked_devices_are_omitted_unless_their_ids_are_given() {
    let site = Site::attesting(2);
    site.on_registry("attest enroll d1 d2 --group pumps --software --key-dir keys")
        .ok();
    site.on_registry("device revoke d2").ok();
    let text = site.on_registry("attest list").ok();
    assert!(text.ends_with("\n1 device: 1 awaiting first round\n"), "{text}");
    assert_eq!(site.status("d2")["state"], "revoked");
    let error = site.on_registry("attest list d1 d9").refused(2);
    assert!(error.contains("00000000000000d9 is not enrolled"), "{error}");
    let error = site.on_registry("attest check").refused(1);
    assert!(error.contains("not ok: 1 of 1 device"), "{error}");
}

#[test]
fn a_signing_key_is_created_once_and_shown() {
    let site = Site::new();
    let created = site.run("linewarden attest key --out results.pem").ok();
    assert_eq!(json(&created)["crv"], "P-256");
    assert_eq!(
        fs::metadata(site.path("results.pem")).unwrap().mode() & 0o7777,
        0o600
    );
    assert_eq!(site.run("linewarden attest key --show results.pem").ok(), created);
    let key = json(
        &site
            .run("linewarden attest key --show results.pem --output json")
            .ok(),
    );
    assert_eq!(
        (key["created"].as_bool(), &key["jwk"]),
        (Some(false), &json(&created))
    );

    let error = site.run("linewarden attest key --out results.pem").refused(2);
    assert!(error.contains("results.pem already exists"), "{error}");
    site.write("text", "no key");
    fs::set_permissions(site.path("text"), fs::Permissions::from_mode(0o600)).unwrap();
    for (arguments, code, cause) in [
        ("key", 2, "--out"),
        ("key --show none", 2, "none: cannot be read"),
        (
            "key --show text",
            2,
            "text: not a P-256 private key in PEM format",
        ),
        (
            "key --show master.key",
            2,
            "not a P-256 private key in PEM format",
        ),
        ("key --out no/results.pem", 2, "no/results.pem: cannot be written"),
    ] {
        let error = site.run(&format!("linewarden attest {arguments}")).refused(code);
        assert!(error.contains(cause), "{arguments}: {error}");
    }
    fs::set_permissions(site.path("results.pem"), fs::Permissions::from_mode(0o640)).unwrap();
    let error = site.run("linewarden attest key --show results.pem").refused(4);
    assert!(error.contains("chmod 600"), "{error}");
}

/// `check` and `run` report the same error for the key that signs results.
#[test]
fn an_invalid_signing_key_is_reported_with_its_line() {
    let site = Site::new();
    site.write(
        "controller.toml",
        "[service]\nsocket = \"controller.sock\"\n[registry]\npath = \"fleet.registry\"\n\
         master_key_file = \"master.key\"\n[attest]\nsigning_key = \"results.pem\"\n",
    );
    let refused = |code: i32, cause: &str| {
        let error = site
            .run("linewarden-controller check --machine controller.toml")
            .refused(code);
        assert!(
            error.contains("controller.toml:7:1: attest.signing_key: ") && error.contains(cause),
            "{error}"
        );
        let error = site
            .run("linewarden-controller run --config controller.toml")
            .refused(code);
        assert!(error.contains("results.pem") && error.contains(cause), "{error}");
    };
    refused(2, "cannot be read: No such file");
    site.run("linewarden attest key --out results.pem").ok();
    site.run("linewarden-controller check --machine controller.toml")
        .ok();
    fs::set_permissions(site.path("results.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    refused(4, "chmod 600");
}

#[test]
fn releasing_a_device_that_is_not_in_quarantine_changes_nothing() {
    let site = Site::attesting(2);
    site.on_registry("attest enroll d1 --group pumps --software --key-out k")
        .ok();
    assert_eq!(
        site.on_registry("device release d1").ok(),
        "device 00000000000000d1 is not in quarantine\n"
    );
    let error = site.on_registry("device release d1 d9").refused(2);
    assert!(error.contains("00000000000000d9 is not enrolled"), "{error}");
    site.on_registry("device revoke d2").ok();
    let error = site.on_registry("device release d2").refused(1);
    assert!(error.contains("00000000000000d2 is revoked"), "{error}");
}
