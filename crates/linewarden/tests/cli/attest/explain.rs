//! What a device should run, what it says it runs, and what differs.

use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_tpm::Protection;
use linewarden_tpm::enrol::Version;
use linewarden_tpm::evidence::Evidence;

use super::*;

const DEVICE: DeviceId = DeviceId(0xd1);

/// Has the device say what it runs, as its agent would.
fn says(site: &Site, period: u64, configuration: &Configuration) {
    says_at(site, period, configuration, super::rounds::now_s());
}

fn says_at(site: &Site, period: u64, configuration: &Configuration, at_s: u64) {
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
        registry.put_evidence(DEVICE, &document, at_s).await.unwrap();
    });
}

fn site() -> Site {
    let site = Site::attesting(1);
    site.write_configuration("own.conf", &files(&[("/etc/serial", 9)]));
    site.on_registry("attest enroll d1 --group pumps --software --key-out k --own own.conf")
        .ok();
    site.with_registry(async |registry| {
        let period = registry.draw_period(None, [1; 8], 1).await.unwrap();
        assert_eq!(period.number, Period(1));
        registry.begin_period(period.number, 1).await.unwrap();
    });
    site
}

#[test]
fn what_differs_is_told_by_path() {
    let site = site();
    let should = files(&[("/usr/bin/sensord", 1), ("/etc/serial", 9)]);
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains(&format!("should run    {} (2 paths)", should.hash()))
            && shown.contains("says it runs  nothing yet")
            && shown.contains("send_log = true"),
        "{shown}"
    );

    says(&site, 1, &should);
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains("It says it runs what it should.")
            && shown.contains("the device's word, it has no TPM"),
        "{shown}"
    );

    let other = files(&[("/usr/bin/sensord", 2), ("/etc/serial", 9), ("/usr/bin/miner", 3)]);
    says(&site, 1, &other);
    let shown = site.on_registry("attest explain d1").ok();
    let (_, differs) = shown
        .split_once("What differs from what it should run:\n")
        .unwrap();
    assert!(
        differs.contains("  /usr/bin/sensord: file") && differs.contains("  /usr/bin/miner: new, file"),
        "{shown}"
    );
    assert_eq!(differs.lines().count(), 2, "{shown}");
    let object = json(&site.on_registry("attest explain d1 --json").ok());
    assert_eq!(object["should_run"]["hash"], should.hash().to_string());
    assert_eq!(object["says"]["hash"], other.hash().to_string());
    assert_eq!(object["difference"]["files"].as_array().unwrap().len(), 2);
    assert_eq!(object["device"]["state"], "never_asked");

    // What is rolled out is no difference.
    site.write_configuration(
        "new.conf",
        &files(&[("/usr/bin/sensord", 2), ("/usr/bin/miner", 3)]),
    );
    site.on_registry("attest group roll-out pumps --reference new.conf --for 3600")
        .ok();
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains("or, rolled out") && shown.ends_with("It says it runs what is being rolled out.\n"),
        "{shown}"
    );
}

/// What it said before it proved itself again is no word on what it runs now.
#[test]
fn a_difference_from_before_the_last_proof_is_not_shown() {
    let site = site();
    says(&site, 1, &configuration(2));
    let shown = site.on_registry("attest explain d1").ok();
    assert!(shown.contains("What differs from what it should run:"), "{shown}");
    assert_eq!(
        json(&site.on_registry("attest explain d1 --json").ok())["is_old"],
        false
    );
    site.with_registry(async |registry| {
        super::rounds::record(registry, &[DEVICE], 1, super::rounds::now_s() + 1).await;
    });
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains("It has proven since that it runs what it should")
            && !shown.contains("/usr/bin/sensord"),
        "{shown}"
    );
    assert_eq!(
        json(&site.on_registry("attest explain d1 --json").ok())["is_old"],
        true
    );
}

/// A device that was started anew and cannot prove anything any more can say nothing either: quarantine allows no session.
#[test]
fn what_a_device_said_before_it_fell_silent_or_was_enrolled_is_outdated() {
    let site = site();
    let should = files(&[("/usr/bin/sensord", 1), ("/etc/serial", 9)]);
    says_at(&site, 1, &should, super::rounds::now_s() - 7_000);
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains(", 116 min ago, of period 1")
            && shown.contains("outdated      it is older than the enrolment of")
            && shown.ends_with("It says it runs what it should. Outdated: what it runs now is not known.\n"),
        "{shown}"
    );
    says(&site, 1, &should);
    let says_now = json(&site.on_registry("attest explain d1 --json").ok());
    assert_eq!(says_now["outdated"], serde_json::Value::Null);
    site.with_registry(async |registry| {
        let enrolled_at = registry.prover(DEVICE).await.unwrap().unwrap().enrolled_at();
        let suspect = linewarden_registry::Suspect {
            device: DEVICE,
            enrolled_at,
            reason: "silent".to_owned(),
        };
        let at_s = super::rounds::now_s() + 1;
        registry.quarantine(&[suspect], at_s).await.unwrap();
    });
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains("outdated      quarantined since")
            && shown.contains("no gateway asks it, for none has seen it")
            && shown.ends_with("Outdated: what it runs now is not known.\n"),
        "{shown}"
    );
}

#[test]
fn what_cannot_be_believed_is_told_as_such() {
    let site = site();
    says(&site, 4, &configuration(1));
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains("what cannot be believed: its period 4 is not kept any more"),
        "{shown}"
    );
    let document = serde_json::json!({
        "version": 1, "period": 1, "configuration": "bGluZXdhcmRlbg==", "protection": "software",
    });
    site.with_registry(async |registry| {
        let document = serde_json::to_vec(&document).unwrap();
        registry.put_evidence(DEVICE, &document, 1).await.unwrap();
    });
    let shown = site.on_registry("attest explain d1").ok();
    assert!(
        shown.contains("what cannot be believed: byte")
            && shown.contains("this is no configuration of version 1"),
        "{shown}"
    );
}
