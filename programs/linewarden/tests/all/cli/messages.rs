//! Messages and their advice: singular forms, repeated commands, and files of another kind.

use super::*;

#[test]
fn a_count_of_one_is_singular() {
    let site = Site::new();
    let enroll = |arguments: &str| {
        site.on_registry(&format!(
            "device enroll simulated --rows 2 --out devices {arguments}"
        ))
    };
    enroll("--device d1").ok();
    assert!(site.on_registry("device list").ok().ends_with("\n1 device\n"));
    enroll("--device d1 --replace").ok();
    let text = site.on_registry("device show d1").ok();
    assert!(text.contains("credentials replaced  1 time\n"), "{text}");
    let exported = site
        .on_registry("device export one.jsonl --export-key export.key")
        .ok();
    assert!(exported.contains("exported 1 device to one.jsonl"), "{exported}");
    site.run("linewarden registry create --registry other.registry --key-file other.key")
        .ok();
    let import_output = site
        .run("linewarden device import one.jsonl --export-key export.key --registry other.registry --key-file other.key")
        .ok();
    assert_eq!(import_output, "imported 1 device\n");
    assert!(enroll("--count 2").ok().contains("enrolled 2 devices"));
}

/// A second revocation succeeds, changes nothing, and reports the time and the reason of the first revocation.
#[test]
fn a_second_revocation_reports_the_first_revocation() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.on_registry("device revoke d1 --reason stolen").ok();
    let second_revocation = site.on_registry("device revoke d1 --reason found").ok();
    assert!(
        second_revocation.starts_with("device 00000000000000d1 was already revoked on 20")
            && second_revocation.ends_with(" UTC, with the reason: stolen; not changed\n"),
        "{second_revocation}"
    );
    let second_revocation = json(
        &site
            .on_registry("device revoke d1 --reason found --output json")
            .ok(),
    );
    assert_eq!(
        (
            second_revocation["status"].as_str(),
            second_revocation["already"].as_bool(),
            second_revocation["revoked_reason"].as_str()
        ),
        (Some("revoked"), Some(true), Some("stolen"))
    );
    // The device cannot be replaced, so the message does not advise a replacement.
    for replace in ["", "--replace"] {
        let error = site
            .on_registry(&format!(
                "device enroll simulated --device d1 --rows 2 --out others {replace}"
            ))
            .refused(1);
        assert!(
            error.contains("00000000000000d1 is revoked permanently") && error.contains("under another id"),
            "{error}"
        );
    }
}

#[test]
fn existing_files_are_not_overwritten() {
    let site = Site::new();
    site.write("there", "");
    for arguments in [
        "registry backup there",
        "device export there --public",
        "device export there --export-key export.key",
    ] {
        let error = site.on_registry(arguments).refused(1);
        assert!(
            error.contains("there already exists and is not overwritten"),
            "{arguments}: {error}"
        );
    }
    let error = site
        .run("linewarden registry create --registry there --key-file master.key")
        .refused(1);
    assert!(error.contains("open it, or choose another path"), "{error}");
}

#[test]
fn a_configuration_of_another_role_is_recognized() {
    const AGENT: &str = "devices/00000000000000d1.toml";
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.write(
        "gateway.toml",
        "[gateway]\nid = 1\ninterfaces = [\"lo\"]\n[controller]\nsocket = \"controller.sock\"\n",
    );
    for (command_line, file, found, expected) in [
        ("linewarden-gateway run --config", AGENT, "agent", "gateway"),
        ("linewarden-gateway check", AGENT, "agent", "gateway"),
        ("linewarden-controller run --config", AGENT, "agent", "controller"),
        (
            "linewarden-controller check",
            "gateway.toml",
            "gateway",
            "controller",
        ),
        (
            "linewarden-agent run --config",
            "gateway.toml",
            "gateway",
            "agent",
        ),
        (
            "linewarden-agent measure --config",
            "gateway.toml",
            "gateway",
            "agent",
        ),
        ("linewarden-agent check", "gateway.toml", "gateway", "agent"),
        ("linewarden device list --config", AGENT, "agent", "controller"),
    ] {
        let error = site.run(&format!("{command_line} {file}")).refused(2);
        assert_eq!(
            error,
            format!(
                "error: {file}: file is the configuration of linewarden-{found}; expected a configuration of \
                 linewarden-{expected}\n"
            )
        );
    }
}

/// Log level `debug` is for diagnosis. SQL statements would hide the relevant lines.
#[test]
fn log_level_debug_shows_no_sql_statements() {
    let site = Site::new();
    assert_eq!(site.on_registry("device list --log debug").err, "");
    let traced = site.on_registry("device list --log trace").err;
    assert!(traced.contains("SELECT"), "{traced}");
}
