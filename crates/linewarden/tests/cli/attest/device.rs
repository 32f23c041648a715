//! The device's commands of `attest`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use linewarden_measurement::configuration::Configuration;

use super::tpm::log_of;
use super::*;

/// An agent's configuration that measures a file of the site's, with these fields besides.
fn configured(site: &Site, fields: &str) {
    configured_with(site, &format!("key = \"attest.key\"\n{fields}"));
}

/// With all fields of the section but `files`.
fn configured_with(site: &Site, fields: &str) {
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
fn measure_prints_what_it_writes_as_a_reference_and_needs_no_key() {
    let site = Site::empty();
    configured_with(&site, "");
    let told = site.run("check a.toml").refused(2);
    assert!(told.contains("attest.key: it is missing"), "{told}");
    let said = site.run("attest measure --config a.toml --out v1");
    assert!(
        said.err.contains("nothing is there") && said.err.contains("sensord-2"),
        "{}",
        said.err
    );
    let told = said.ok();
    let v1 = Configuration::decode(&fs::read(site.path("v1")).unwrap()).unwrap();
    assert!(told.contains(&format!("h {}", v1.hash())), "{told}");
    assert!(told.contains("sensord: file "), "{told}");
    let json = site.run("attest measure --config a.toml --json").ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["hash"], v1.hash().to_string());
    assert_eq!(json["files"].as_object().unwrap().len(), 2);
    site.write("sensord", "second");
    let error = site.run("attest measure --config a.toml --out v1").refused(2);
    assert!(error.contains("v1 exists already"), "{error}");
    assert_eq!(fs::read(site.path("v1")).unwrap(), v1.encode());
    let kept = site.run("attest measure --config a.toml --out v1 --force").ok();
    assert!(!kept.contains(&v1.hash().to_string()), "{kept}");
    site.run("attest measure --config a.toml --out v2").ok();
    let v2 = Configuration::decode(&fs::read(site.path("v2")).unwrap()).unwrap();
    assert_ne!(v1, v2);
    let gone = site
        .run("attest measure --config a.toml --out none/v2")
        .refused(2);
    assert!(gone.contains("none/v2"), "{gone}");
}

#[test]
fn mistakes_of_the_section_are_told_with_their_place() {
    let site = Site::empty();
    configured(&site, "pcrs = [0]\n");
    let told = site.run("attest measure --config a.toml").refused(2);
    assert!(
        told.contains("a.toml:11:1: attest.pcrs: only with `tpm`"),
        "{told}"
    );
    assert_eq!(site.run("check a.toml").refused(2), told);
    configured(&site, "port = 20550\n");
    let told = site.run("check a.toml").refused(2);
    assert!(told.contains("a.toml:11:1: attest.port: 20550"), "{told}");
    configured(&site, "quote = 1\n");
    let told = site.run("check a.toml").refused(2);
    assert!(told.contains("did you mean `quote_every`?"), "{told}");
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    let (without, _) = text.split_once("[attest]").unwrap();
    site.write("a.toml", without);
    let told = site.run("attest measure --config a.toml").refused(2);
    assert!(told.contains("attest: it is missing"), "{told}");
}

/// `check`, `agent` and the commands for operators end alike where others can read a key.
#[test]
fn a_key_that_others_can_read_ends_with_the_code_for_it() {
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
    for words in [
        "check --machine devices/00000000000000d1.toml",
        "agent --config devices/00000000000000d1.toml",
    ] {
        let error = site.run(words).refused(4);
        assert!(
            error.contains("attest.key: ") && error.contains("0644"),
            "{words}: {error}"
        );
    }
}

#[test]
fn what_the_machine_lacks_is_told_with_the_field() {
    let site = Site::empty();
    configured(&site, "");
    let told = site.run("check --machine a.toml").refused(2);
    assert!(told.contains("attest.key: "), "{told}");
    site.write("attest.key", &"ab".repeat(32));
    let key = site.path("attest.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let told = site.run("check --machine a.toml").refused(2);
    assert!(told.contains("mode 0640"), "{told}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let told = site.run("check --machine a.toml").refused(2);
    // The test's own directory may lie where the service has one of its own.
    let errors = told.lines().filter(|line| !line.starts_with("warning: "));
    assert_eq!(
        errors.filter(|line| line.contains("attest.")).count(),
        0,
        "{told}"
    );
    // A path that cannot be measured is found here, and not only by the silence of the device. Reading a process's memory from its
    // beginning fails for root too.
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    site.write(
        "a.toml",
        &text.replace("files = [", "files = [\"/proc/self/mem\", \"/var/tmp/none\", "),
    );
    let told = site.run("check --machine a.toml").refused(2);
    assert!(
        told.contains("attest.files: /proc/self/mem: Input/output error")
            && told.contains("must be able to read all that it measures"),
        "{told}"
    );
    assert!(
        told.contains("warning: ")
            && told.contains("/var/tmp/none: linewarden-agent.service has /var/tmp of its own"),
        "{told}"
    );
}

#[cfg(feature = "tpm")]
#[test]
fn a_tpm_that_is_not_there_is_named_and_nothing_is_written() {
    let site = Site::empty();
    configured(
        &site,
        "tpm = \"swtpm:host=127.0.0.1,port=1\"\nevent_log = \"log.bin\"\n",
    );
    let told = site
        .run("attest identity --config a.toml --out d1.identity")
        .refused(1);
    assert!(told.contains("log.bin"), "{told}");
    // What the operator would refuse.
    site.write("log.bin", "no log");
    let told = site
        .run("attest identity --config a.toml --out d1.identity")
        .refused(1);
    assert!(told.contains("log.bin: "), "{told}");
    fs::write(site.path("log.bin"), log_of(b"kernel 1")).unwrap();
    for words in ["identity --out d1.identity", "measure"] {
        let told = site.run(&format!("attest {words} --config a.toml")).refused(2);
        assert!(
            told.contains("a.toml:11:1: attest.tpm: opening the TPM")
                && told.contains("\"swtpm:host=127.0.0.1,port=1\" cannot be opened")
                && told.contains("is there a TPM, and may this user open it?"),
            "{words}: {told}"
        );
    }
    site.write("d1.offer", "{}");
    let answer = "attest answer --config a.toml --offer d1.offer --out d1.answer";
    let told = site.run(answer).refused(2);
    assert!(
        told.contains("d1.offer: an operator's offer is wanted: it was damaged, or is something else"),
        "{told}"
    );
    for none in ["d1.identity", "d1.answer", "attest.key"] {
        assert!(!site.path(none).exists(), "{none}");
    }
    configured(&site, "");
    let told = site.run(answer).refused(2);
    assert!(told.contains("attest.tpm: it is missing"), "{told}");
}

#[cfg(feature = "tpm")]
#[test]
fn check_looks_at_the_tpms_device_file_and_at_the_event_log() {
    let site = Site::empty();
    let told = |tpm: &str, log: &[u8]| {
        fs::write(site.path("log.bin"), log).unwrap();
        configured(&site, &format!("tpm = \"{tpm}\"\nevent_log = \"log.bin\"\n"));
        site.run("check --machine a.toml").refused(2)
    };
    let log = log_of(b"kernel 1");
    let good = told("device:/dev/null", &log);
    assert!(
        !good.contains("attest.tpm") && !good.contains("attest.event_log"),
        "{good}"
    );
    let key = "attest.key: it is not there; `linewarden attest identity` makes it";
    assert!(good.contains(key), "{good}");
    for (tpm, why) in [("none", "No such file"), ("log.bin", "no device")] {
        let path = site.path(tpm);
        let told = told(&format!("device:{}", path.display()), &log);
        let place = format!("a.toml:11:1: attest.tpm: {}: {why}", path.display());
        assert!(
            told.contains(&place) && told.contains("is there a TPM, and may this user open it?"),
            "{told}"
        );
    }
    let told_of_log = |log: &[u8], why: &str| {
        let told = told("device:/dev/null", log);
        assert!(
            told.contains("a.toml:12:1: attest.event_log: ") && told.contains(why),
            "{told}"
        );
    };
    let empty = told("device:/dev/null", b"");
    assert!(!empty.contains("attest.event_log"), "{empty}");
    let cut = log.split_last().unwrap().1;
    told_of_log(cut, "the file is cut off; copy it again from the kernel");
}

#[test]
fn a_measurement_of_nothing_is_no_reference_value() {
    let site = Site::empty();
    configured_with(&site, "");
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    let (without, _) = text.split_once("files = ").unwrap();
    site.write("a.toml", without);
    let told = site.run("attest measure --config a.toml --out v1").refused(2);
    assert!(
        told.contains("attest.files: nothing is measured: name files") && told.contains("`tpm`"),
        "{told}"
    );
    assert!(!site.path("v1").exists());

    let site = Site::attesting(0);
    let nothing = Configuration::new(PcrValues::new(HashAlgorithm::Sha256), BTreeMap::new()).unwrap();
    site.write_configuration("v1", &nothing);
    let before = site.group("pumps");
    for words in [
        "group set pumps --reference v1",
        "group roll-out pumps --reference v1 --for 60",
    ] {
        let told = site.on_registry(&format!("attest {words}")).refused(2);
        assert!(
            told.contains("v1: nothing was measured in it; set `files`, or `tpm`"),
            "{words}: {told}"
        );
    }
    assert_eq!(site.group("pumps"), before);
}

#[test]
fn a_software_key_that_is_not_there_is_said_to_be_the_operators_to_make() {
    let site = Site::empty();
    configured(&site, "");
    let told = site.run("check --machine a.toml").refused(2);
    assert!(
        told.contains(
            "attest.key: it is not there; `linewarden attest enroll --software` at the operator makes it"
        ),
        "{told}"
    );
}
