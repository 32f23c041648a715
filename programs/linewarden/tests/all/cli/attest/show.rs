//! A device's expected configuration, its claimed configuration, and the differences.

use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_tpm::Protection;
use linewarden_tpm::enroll::Version;
use linewarden_tpm::evidence::Evidence;

use super::*;

const DEVICE: DeviceId = DeviceId(0xd1);

/// Stores the device's claimed configuration, as its agent would send it.
fn claim(site: &Site, period: u64, configuration: &Configuration) {
    claim_at(site, period, configuration, super::rounds::now_s());
}

/// Same as [`claim`], with this time of receipt.
fn claim_at(site: &Site, period: u64, configuration: &Configuration, at_s: u64) {
    let evidence = Evidence {
        version: Version,
        period,
        configuration: configuration.encode(),
        event_log: None,
        quote: None,
        protection: Protection::Software,
    };
    let document = serde_json::to_vec(&evidence).unwrap();
    site.with_registry(async |registry| {
        registry.store_evidence(DEVICE, &document, at_s).await.unwrap();
    });
}

fn site() -> Site {
    let site = Site::attesting(1);
    site.write_configuration("own.conf", &configuration_of_files(&[("/etc/serial", 9)]));
    site.on_registry("attest enroll d1 --group pumps --software --key-out k --overlay own.conf")
        .ok();
    site.with_registry(async |registry| {
        let period = registry.create_period(None, [1; 8], 1).await.unwrap();
        assert_eq!(period.number, Period(1));
        registry.start_period(period.number, 1).await.unwrap();
    });
    site
}

#[test]
fn differences_are_reported_by_path() {
    let site = site();
    let expected = configuration_of_files(&[("/usr/bin/sensord", 1), ("/etc/serial", 9)]);
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains(&format!("expected     {} (2 paths)", expected.hash()))
            && text.contains("claimed      no evidence yet")
            && text.contains("send_log = true"),
        "{text}"
    );

    claim(&site, 1, &expected);
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("The claimed configuration is the expected one.")
            && text.contains("not signed: the device's claim, without a TPM"),
        "{text}"
    );

    let other = configuration_of_files(&[("/usr/bin/sensord", 2), ("/etc/serial", 9), ("/usr/bin/miner", 3)]);
    claim(&site, 1, &other);
    let text = site.on_registry("attest show d1").ok();
    let (_, differs) = text
        .split_once("Differences from the expected configuration:\n")
        .unwrap();
    assert!(
        differs.contains("  /usr/bin/sensord: file") && differs.contains("  /usr/bin/miner: added, file"),
        "{text}"
    );
    assert_eq!(differs.lines().count(), 2, "{text}");
    let object = json(&site.on_registry("attest show d1 --output json").ok());
    assert_eq!(object["expected"]["hash"], expected.hash().to_string());
    assert_eq!(object["claimed"]["hash"], other.hash().to_string());
    assert_eq!(object["difference"]["files"].as_array().unwrap().len(), 2);
    assert_eq!(object["device"]["state"], "awaiting_first_round");

    // A configuration that equals the roll-out is not reported as a difference.
    site.write_configuration(
        "new.conf",
        &configuration_of_files(&[("/usr/bin/sensord", 2), ("/usr/bin/miner", 3)]),
    );
    site.on_registry("attest rollout create pumps --reference new.conf --for 3600")
        .ok();
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("roll-out") && text.ends_with("The claimed configuration is the roll-out.\n"),
        "{text}"
    );
}

/// A claim that is older than the latest proof does not describe the present configuration.
#[test]
fn differences_of_a_claim_older_than_the_latest_proof_are_not_shown() {
    let site = site();
    claim(&site, 1, &configuration(2));
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("Differences from the expected configuration:"),
        "{text}"
    );
    assert_eq!(
        json(&site.on_registry("attest show d1 --output json").ok())["is_superseded"],
        false
    );
    site.with_registry(async |registry| {
        super::rounds::record_round(registry, &[DEVICE], 1, super::rounds::now_s() + 1).await;
    });
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("The device has since proven the expected configuration")
            && !text.contains("/usr/bin/sensord"),
        "{text}"
    );
    assert_eq!(
        json(&site.on_registry("attest show d1 --output json").ok())["is_superseded"],
        true
    );
}

/// A device in quarantine opens no session, so the device cannot send evidence of its present configuration.
#[test]
fn evidence_from_before_a_quarantine_or_enrollment_is_outdated() {
    let site = site();
    let expected = configuration_of_files(&[("/usr/bin/sensord", 1), ("/etc/serial", 9)]);
    claim_at(&site, 1, &expected, super::rounds::now_s() - 7_000);
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains(", 116 min ago, of period 1")
            && text.contains("outdated     evidence is older than the enrollment of")
            && text.ends_with("The claimed configuration is the expected one. Outdated: the present configuration is unknown.\n"),
        "{text}"
    );
    claim(&site, 1, &expected);
    let explanation = json(&site.on_registry("attest show d1 --output json").ok());
    assert_eq!(explanation["outdated"], serde_json::Value::Null);
    site.with_registry(async |registry| {
        let enrolled_at = registry.prover(DEVICE).await.unwrap().unwrap().enrolled_at();
        let suspect = linewarden_registry::QuarantineRequest {
            device: DEVICE,
            enrolled_at,
            reason: "no proof".to_owned(),
        };
        let at_s = super::rounds::now_s() + 1;
        let token = registry
            .register_gateway(linewarden_protocol::ids::GatewayId(99), 0)
            .await
            .unwrap();
        registry.quarantine(&token, &[suspect], at_s).await.unwrap();
    });
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("outdated     quarantined since")
            && text.contains("no gateway attests the device: no gateway knows its address")
            && text.ends_with("Outdated: the present configuration is unknown.\n"),
        "{text}"
    );
}

#[test]
fn invalid_evidence_is_shown_as_rejected() {
    let site = site();
    claim(&site, 4, &configuration(1));
    let text = site.on_registry("attest show d1").ok();
    assert!(text.contains("rejected: period 4 is no longer stored"), "{text}");
    let document = serde_json::json!({
        "version": 1, "period": 1, "configuration": "bGluZXdhcmRlbg==", "protection": "software",
    });
    site.with_registry(async |registry| {
        let document = serde_json::to_vec(&document).unwrap();
        registry.store_evidence(DEVICE, &document, 1).await.unwrap();
    });
    let text = site.on_registry("attest show d1").ok();
    assert!(
        text.contains("rejected: invalid configuration at byte")
            && text.contains("not a configuration of version 1"),
        "{text}"
    );
}
