//! Locations of registries: copies, restored backups, and moves between files and PostgreSQL.

use super::*;
use crate::support::require_postgres;

#[test]
fn a_registry_moves_to_postgresql_and_back() {
    let server = require_postgres();
    let database = server.new_schema("fleet").unwrap();
    let site = Site::new();
    site.on_registry("device enroll simulated --count 5 --rows 2 --out devices")
        .ok();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.on_registry("device revoke d1 --reason stolen").ok();

    let move_output = site
        .run(&format!(
            "linewarden registry migrate --from sqlite:fleet.registry --to {database} --key-file master.key"
        ))
        .ok();
    assert!(
        move_output.contains("identical in both (SHA-256 "),
        "{move_output}"
    );
    let error = site.on_registry("device list").refused(1);
    assert!(error.contains("was moved to postgres://"), "{error}");

    let in_database = |command: &str| {
        site.run(&format!(
            "linewarden {command} --registry {database} --key-file master.key"
        ))
    };
    in_database("registry check").ok();
    let text = in_database("device show d1").ok();
    assert!(text.contains("stolen"), "{text}");
    in_database("device enroll simulated --device d2 --rows 2 --out devices").ok();
    in_database("registry backup copy.registry").ok();
    assert_eq!(
        fs::metadata(site.path("copy.registry"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    let repeated_error = in_database("registry backup copy.registry").refused(1);
    assert!(repeated_error.contains("already exists"), "{repeated_error}");

    site.run("linewarden registry restore copy.registry --to restored.registry --key-file master.key")
        .ok();
    let listed = site
        .run("linewarden device list --output json --registry restored.registry --key-file master.key")
        .ok();
    assert_eq!(listed.lines().count(), 7, "{listed}");

    let creation_error = in_database("registry create").refused(1);
    assert!(creation_error.contains("already exists"), "{creation_error}");
}

/// A password in an address is not printed.
#[test]
fn no_password_is_printed() {
    let site = Site::new();
    let arguments =
        "linewarden device list --registry postgres://u:secret@127.0.0.1:9/fleet --key-file master.key";
    let text = site.run(arguments).refused(1);
    assert!(
        text.contains("u:...@127.0.0.1:9") && !text.contains("secret"),
        "{text}"
    );
    let output =
        site.run("linewarden device list --registry postgres://u:secret@h:port/d --key-file master.key");
    assert!(
        output.code == 2 && !output.err.contains("secret"),
        "{}",
        output.err
    );
}

/// After each command, the registry is a single file, which can be copied.
#[test]
fn no_write_ahead_log_remains_after_a_failed_command() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 2 --out devices")
        .ok();
    site.on_registry("device revoke d1 --reason stolen").ok();
    for command in [
        "device show d2",
        "device quarantine d2 --reason odd",
        "device revoke d2 --reason lost",
        "device enroll simulated --device d1 --rows 2 --replace --out devices",
        "gateway show 7",
        "device pair create d1 d2",
        "attest group show pumps",
        "device release d1",
        "attest list --group pumps",
        "registry backup devices",
    ] {
        let output = site.on_registry(command);
        assert_ne!(output.code, 0, "{command}");
        for log in ["fleet.registry-wal", "fleet.registry-shm"] {
            assert!(!site.path(log).exists(), "{command}: {log}");
        }
    }
}
