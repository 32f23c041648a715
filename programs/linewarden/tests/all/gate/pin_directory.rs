//! The directory in which the gateway pins its gate.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use nix::sys::signal::Signal;

use super::site;
use crate::support::{BpfFilesystem, require};

#[test]
fn the_error_without_a_bpf_filesystem_names_the_remedy() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let site = site(
        directory.path(),
        &format!("pin_directory = \"{}\"", directory.path().join("no").display()),
    );
    let error = site.refused("linewarden-gateway run --config gateway.toml");
    assert!(
        error.contains("mount -t bpf -o mode=0700") && error.contains("gate_on_exit"),
        "{error}"
    );
    assert!(site.passes(), "no gate remains on the interface");
}

/// A user with write access to the pin directory could plant a gate that the next start would use.
#[test]
fn a_pin_directory_that_others_own_or_may_write_is_refused() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount();
    let gates = filesystem.path().join("gates");
    let site = site(
        directory.path(),
        &format!("pin_directory = \"{}\"", gates.display()),
    );
    let set_owner_and_mode = |path: &Path, uid: u32, mode: u32| {
        std::os::unix::fs::chown(path, Some(uid), None).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let assert_refused = |cause: &str, chmod: &str| {
        for command_line in [
            "linewarden-gateway check --machine gateway.toml",
            "linewarden-gateway run --config gateway.toml",
        ] {
            let error = site.refused(command_line);
            assert!(
                error.contains(cause) && error.contains(chmod),
                "{command_line}: {error}"
            );
        }
        assert!(site.passes(), "no program is attached");
    };
    // `mount -t bpf bpf` sets this mode: all users can add names, despite the sticky bit.
    set_owner_and_mode(filesystem.path(), 0, 0o1777);
    assert_refused("with mode 1777", "mode=0700");
    set_owner_and_mode(filesystem.path(), 0, 0o700);
    std::fs::create_dir(&gates).unwrap();
    set_owner_and_mode(&gates, 1234, 0o700);
    assert_refused("user 1234 owns it", "chown root");
    for mode in [0o770, 0o702] {
        set_owner_and_mode(&gates, 0, mode);
        assert_refused(&format!("with mode {mode:04o}"), "chmod go-w");
    }
    // One user other than root owns both directories, as after an installation of the package.
    set_owner_and_mode(filesystem.path(), 1234, 0o700);
    set_owner_and_mode(&gates, 1234, 0o700);
    site.ok("linewarden-gateway check --machine gateway.toml");
    site.serve().end(Signal::SIGKILL);
    assert!(!site.passes(), "the gate stays closed");
    // A removal neither runs nor trusts the removed objects, so the removal works even if other users can write to the directory.
    set_owner_and_mode(filesystem.path(), 1234, 0o1777);
    let error = site.refused("linewarden-gateway run --config gateway.toml");
    assert!(error.contains("with mode 1777"), "{error}");
    let removed = site.run("linewarden-gateway remove-gate --config gateway.toml");
    assert!(removed.status.success() && site.passes(), "{removed:?}");
}
