//! The commands of `linewarden-agent` for attestation.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use linewarden_measurement::configuration::Configuration;

use super::tpm::log_with_event;
use super::*;

/// Same as [`write_config`], with the additional field `key`.
fn write_config_with_key(site: &Site, fields: &str) {
    write_config(site, &format!("key = \"attest.key\"\n{fields}"));
}

/// Writes `a.toml`, an agent's configuration. Its section `[attest]` has `fields` and the field `files`, which names an existing
/// file and a missing file.
fn write_config(site: &Site, fields: &str) {
    site.write("sensord", "first");
    let measured = site.path("sensord");
    let measured = measured.display();
    site.write(
        "a.toml",
        &format!(
            "[device]\nid = \"d1\"\nhelper = \"h\"\n[gateway]\naddress = \"127.0.0.1\"\n[puf.command]\nprogram = \"p\"\n\
             [attest]\nfiles = [\"{measured}\", \"{measured}-2\"]\n{fields}"
        ),
    );
}

#[test]
fn measure_prints_the_reference_value_and_needs_no_key() {
    let site = Site::empty();
    write_config(&site, "");
    let report = site.run("linewarden-agent check a.toml").refused(2);
    assert!(report.contains("attest.key: is missing"), "{report}");
    let output = site.run("linewarden-agent measure --config a.toml --out v1");
    assert!(
        output.err.contains("path does not exist") && output.err.contains("sensord-2"),
        "{}",
        output.err
    );
    let report = output.ok();
    let v1 = Configuration::decode(&fs::read(site.path("v1")).unwrap()).unwrap();
    assert!(report.contains(&format!("h {}", v1.hash())), "{report}");
    assert!(report.contains("sensord: file "), "{report}");
    let json = site
        .run("linewarden-agent measure --config a.toml --output json")
        .ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["hash"], v1.hash().to_string());
    assert_eq!(json["files"].as_object().unwrap().len(), 2);
    site.write("sensord", "second");
    let error = site
        .run("linewarden-agent measure --config a.toml --out v1")
        .refused(2);
    assert!(error.contains("v1 already exists"), "{error}");
    assert_eq!(fs::read(site.path("v1")).unwrap(), v1.encode());
    let unchanged = site
        .run("linewarden-agent measure --config a.toml --out v1 --force")
        .ok();
    assert!(!unchanged.contains(&v1.hash().to_string()), "{unchanged}");
    site.run("linewarden-agent measure --config a.toml --out v2").ok();
    let v2 = Configuration::decode(&fs::read(site.path("v2")).unwrap()).unwrap();
    assert_ne!(v1, v2);
    let error = site
        .run("linewarden-agent measure --config a.toml --out none/v2")
        .refused(2);
    assert!(error.contains("none/v2"), "{error}");
}

#[test]
fn mistakes_in_the_attest_section_are_reported_with_their_positions() {
    let site = Site::empty();
    write_config_with_key(&site, "pcrs = [0]\n");
    let report = site.run("linewarden-agent measure --config a.toml").refused(2);
    assert!(
        report.contains("a.toml:11:1: attest.pcrs: requires `tpm`"),
        "{report}"
    );
    assert_eq!(site.run("linewarden-agent check a.toml").refused(2), report);
    write_config_with_key(&site, "port = 20550\n");
    let report = site.run("linewarden-agent check a.toml").refused(2);
    assert!(report.contains("a.toml:11:1: attest.port: 20550"), "{report}");
    write_config_with_key(&site, "quote = 1\n");
    let report = site.run("linewarden-agent check a.toml").refused(2);
    assert!(report.contains("did you mean `quote_every`?"), "{report}");
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    let (without_section, _) = text.split_once("[attest]").unwrap();
    site.write("a.toml", without_section);
    let report = site.run("linewarden-agent measure --config a.toml").refused(2);
    assert!(report.contains("attest: is missing"), "{report}");
}

/// `check` and `run` end with exit code 4 if other users can read a key.
#[test]
fn a_key_that_other_users_can_read_causes_exit_code_4() {
    let site = Site::attesting(1);
    site.on_registry("attest enroll d1 --group pumps --software --key-out devices/k")
        .ok();
    let agent = site.path("devices/00000000000000d1.toml");
    let text = fs::read_to_string(&agent).unwrap();
    let text = text.replace("[gateway]", "[gateway]\naddress = \"127.0.0.1:9\"");
    site.write(
        "devices/00000000000000d1.toml",
        &format!("{text}\n[attest]\nkey = \"k\"\nfiles = [\"/etc/hostname\"]\n"),
    );
    fs::set_permissions(site.path("devices/k"), fs::Permissions::from_mode(0o644)).unwrap();
    for arguments in [
        "linewarden-agent check --machine devices/00000000000000d1.toml",
        "linewarden-agent run --config devices/00000000000000d1.toml",
    ] {
        let error = site.run(arguments).refused(4);
        assert!(
            error.contains("attest.key: ") && error.contains("0644"),
            "{arguments}: {error}"
        );
    }
}

#[test]
fn missing_requirements_of_the_machine_are_reported_with_the_field() {
    let site = Site::empty();
    write_config_with_key(&site, "");
    let report = site.run("linewarden-agent check --machine a.toml").refused(2);
    assert!(report.contains("attest.key: "), "{report}");
    site.write("attest.key", &"ab".repeat(32));
    let key = site.path("attest.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let report = site.run("linewarden-agent check --machine a.toml").refused(2);
    assert!(report.contains("mode 0640"), "{report}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let report = site.run("linewarden-agent check --machine a.toml").refused(2);
    // Ignores a possible warning that the service has a private instance of the directory above the test's directory.
    let errors = report.lines().filter(|line| !line.starts_with("warning: "));
    assert_eq!(
        errors.filter(|line| line.contains("attest.")).count(),
        0,
        "{report}"
    );
    // `check` finds a path that cannot be measured before the device misses rounds. Reading /proc/self/mem at offset 0 fails
    // even for root.
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    site.write(
        "a.toml",
        &text.replace("files = [", "files = [\"/proc/self/mem\", \"/var/tmp/none\", "),
    );
    let report = site.run("linewarden-agent check --machine a.toml").refused(2);
    assert!(
        report.contains("attest.files: /proc/self/mem cannot be read: Input/output error")
            && report.contains("give the measuring process access"),
        "{report}"
    );
    assert!(
        report.contains("warning: ")
            && report.contains("/var/tmp/none: linewarden-agent.service has a private /var/tmp"),
        "{report}"
    );
}

#[cfg(feature = "tpm")]
#[test]
fn a_missing_tpm_is_reported_and_no_file_is_written() {
    let site = Site::empty();
    write_config_with_key(
        &site,
        "tpm = \"swtpm:host=127.0.0.1,port=1\"\nevent_log = \"log.bin\"\n",
    );
    let report = site
        .run("linewarden-agent identity --config a.toml --out d1.identity")
        .refused(1);
    assert!(report.contains("log.bin"), "{report}");
    // The operator would reject this log.
    site.write("log.bin", "no log");
    let report = site
        .run("linewarden-agent identity --config a.toml --out d1.identity")
        .refused(1);
    assert!(report.contains("log.bin: "), "{report}");
    fs::write(site.path("log.bin"), log_with_event(b"kernel 1")).unwrap();
    for arguments in ["identity --out d1.identity", "measure"] {
        let report = site
            .run(&format!("linewarden-agent {arguments} --config a.toml"))
            .refused(2);
        assert!(
            report.contains("a.toml:11:1: attest.tpm: opening the TPM")
                && report.contains("\"swtpm:host=127.0.0.1,port=1\" cannot be opened")
                && report.contains("check that the TPM exists and that this user has access"),
            "{arguments}: {report}"
        );
    }
    site.write("d1.offer", "{}");
    let command = "linewarden-agent answer --config a.toml --offer d1.offer --out d1.answer";
    let report = site.run(command).refused(2);
    assert!(
        report.contains("d1.offer: expected an operator's offer: message damaged or of another type"),
        "{report}"
    );
    for file in ["d1.identity", "d1.answer", "attest.key"] {
        assert!(!site.path(file).exists(), "{file}");
    }
    write_config_with_key(&site, "");
    let report = site.run(command).refused(2);
    assert!(report.contains("attest.tpm: is missing"), "{report}");
}

#[cfg(feature = "tpm")]
#[test]
fn check_looks_at_the_tpms_device_file_and_at_the_event_log() {
    let site = Site::empty();
    let check_with = |tpm: &str, log: &[u8]| {
        fs::write(site.path("log.bin"), log).unwrap();
        write_config_with_key(&site, &format!("tpm = \"{tpm}\"\nevent_log = \"log.bin\"\n"));
        site.run("linewarden-agent check --machine a.toml").refused(2)
    };
    let log = log_with_event(b"kernel 1");
    let valid_report = check_with("device:/dev/null", &log);
    assert!(
        !valid_report.contains("attest.tpm") && !valid_report.contains("attest.event_log"),
        "{valid_report}"
    );
    let key = "attest.key: file not found; create it with `linewarden-agent identity`";
    assert!(valid_report.contains(key), "{valid_report}");
    for (tpm, cause) in [("none", "No such file"), ("log.bin", "not a device")] {
        let path = site.path(tpm);
        let report = check_with(&format!("device:{}", path.display()), &log);
        let expected_error = format!("a.toml:11:1: attest.tpm: {}: {cause}", path.display());
        assert!(
            report.contains(&expected_error)
                && report.contains("check that there is a TPM, and that this user may open it"),
            "{report}"
        );
    }
    let assert_log_rejected = |log: &[u8], cause: &str| {
        let report = check_with("device:/dev/null", log);
        assert!(
            report.contains("a.toml:12:1: attest.event_log: ") && report.contains(cause),
            "{report}"
        );
    };
    let report = check_with("device:/dev/null", b"");
    assert!(!report.contains("attest.event_log"), "{report}");
    let truncated = log.split_last().unwrap().1;
    assert_log_rejected(truncated, "the file is truncated, copy it again from the kernel");
}

#[test]
fn a_measurement_of_nothing_is_no_reference_value() {
    let site = Site::empty();
    write_config(&site, "");
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    let (without_files, _) = text.split_once("files = ").unwrap();
    site.write("a.toml", without_files);
    let report = site
        .run("linewarden-agent measure --config a.toml --out v1")
        .refused(2);
    assert!(
        report.contains("attest.files: nothing is measured: name files") && report.contains("`tpm`"),
        "{report}"
    );
    assert!(!site.path("v1").exists());

    let site = Site::attesting(0);
    let empty = Configuration::new(PcrValues::new(HashAlgorithm::Sha256), BTreeMap::new()).unwrap();
    site.write_configuration("v1", &empty);
    let group_before = site.group("pumps");
    for arguments in [
        "group set pumps --reference v1",
        "rollout create pumps --reference v1 --for 60",
    ] {
        let report = site.on_registry(&format!("attest {arguments}")).refused(2);
        assert!(
            report.contains("v1: empty configuration: set `files`, or `tpm`"),
            "{arguments}: {report}"
        );
    }
    assert_eq!(site.group("pumps"), group_before);
}

#[test]
fn the_error_of_a_missing_software_key_names_the_operators_command() {
    let site = Site::empty();
    write_config_with_key(&site, "");
    let report = site.run("linewarden-agent check --machine a.toml").refused(2);
    assert!(
        report.contains(
            "attest.key: file not found; the operator creates it with `linewarden attest enroll --software`"
        ),
        "{report}"
    );
}
