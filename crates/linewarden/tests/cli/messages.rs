//! What is told, and what is advised, where something else was meant or there is one of a thing only.

use super::*;

#[test]
fn one_thing_is_told_as_one() {
    let site = Site::new();
    let enrol =
        |words: &str| site.on_registry(&format!("device enroll simulated --rows 2 --out devices {words}"));
    enrol("--device d1").ok();
    assert!(site.on_registry("device list").ok().ends_with("\n1 device\n"));
    enrol("--device d1 --replace").ok();
    let shown = site.on_registry("device show d1").ok();
    assert!(shown.contains("credentials replaced  1 time\n"), "{shown}");
    let exported = site
        .on_registry("device export one.jsonl --export-key export.key")
        .ok();
    assert!(exported.contains("exported 1 device to one.jsonl"), "{exported}");
    site.run("registry create --registry other.registry --key-file other.key")
        .ok();
    let imported = site
        .run("device import one.jsonl --export-key export.key --registry other.registry --key-file other.key")
        .ok();
    assert_eq!(imported, "imported 1 device\n");
    assert!(enrol("--count 2").ok().contains("enrolled 2 devices"));
}

/// The first revocation stays: the second says when it was, with its reason, and is no failure.
#[test]
fn a_device_that_is_revoked_again_was_revoked_already() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.on_registry("device revoke d1 --reason stolen").ok();
    let again = site.on_registry("device revoke d1 --reason found").ok();
    assert!(
        again.starts_with("00000000000000d1 was revoked already, on 20")
            && again.ends_with(" UTC, and its reason stays: stolen\n"),
        "{again}"
    );
    let again = json(&site.on_registry("device revoke d1 --reason found --json").ok());
    assert_eq!(
        (
            again["status"].as_str(),
            again["already"].as_bool(),
            again["revoked_reason"].as_str()
        ),
        (Some("revoked"), Some(true), Some("stolen"))
    );
    // Neither is there a way to replace it, so none is advised.
    for replace in ["", "--replace"] {
        let error = site
            .on_registry(&format!(
                "device enroll simulated --device d1 --rows 2 --out others {replace}"
            ))
            .refused(1);
        assert!(
            error.contains("00000000000000d1 is revoked, and stays so") && error.contains("under another id"),
            "{error}"
        );
    }
}

#[test]
fn an_existing_file_is_no_registry_to_open() {
    let site = Site::new();
    site.write("there", "");
    for words in [
        "registry backup there",
        "device export there --public",
        "device export there --export-key export.key",
    ] {
        let error = site.on_registry(words).refused(1);
        assert!(
            error.contains("there exists already and is not overwritten; name another file"),
            "{words}: {error}"
        );
    }
    let error = site
        .run("registry create --registry there --key-file master.key")
        .refused(1);
    assert!(error.contains("open it, or choose another path"), "{error}");
}

#[test]
fn the_other_roles_configuration_is_told_as_such() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.write(
        "gateway.toml",
        "[gateway]\nid = 1\ninterfaces = [\"lo\"]\n[registry]\npath = \"fleet.registry\"\n\
         master_key_file = \"master.key\"\n",
    );
    for words in [
        "serve --config devices/00000000000000d1.toml",
        "device list --config devices/00000000000000d1.toml",
    ] {
        let error = site.run(words).refused(2);
        assert_eq!(
            error,
            "error: devices/00000000000000d1.toml: is an agent's configuration, for `linewarden agent`; a gateway's is \
             wanted here\n"
        );
    }
    let error = site.run("agent --config gateway.toml").refused(2);
    assert!(
        error.contains("gateway.toml: is a gateway's configuration, for `linewarden serve`"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// `debug` is for who looks for a fault; statements of the database would hide it.
#[test]
fn debug_shows_no_statements() {
    let site = Site::new();
    assert_eq!(site.on_registry("device list --log debug").err, "");
    let traced = site.on_registry("device list --log trace").err;
    assert!(traced.contains("SELECT"), "{traced}");
}
