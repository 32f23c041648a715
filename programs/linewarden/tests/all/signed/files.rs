//! Files of signers that a command rejects or reports.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use linewarden_harness::skip;

use super::{byte_signer, require_machine_id};
use crate::support::{command, program, run};

#[test]
fn files_that_others_could_have_read_or_copied_are_refused() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    byte_signer(directory_path, "truck", 64);
    let assert_refused = |code: i32, cause: &str| {
        let arguments = "linewarden signed send truck --to 127.0.0.1:9 --input truck/signer.json";
        let output = command(directory_path, arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(cause), "{errors}");
    };
    for name in ["key", "table", "masks", "seal.key"] {
        let file = directory_path.join("truck").join(name);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_refused(4, name);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let masks = directory_path.join("truck/masks");
    std::fs::copy(&masks, directory_path.join("copy")).unwrap();
    std::fs::remove_file(&masks).unwrap();
    std::fs::copy(directory_path.join("copy"), &masks).unwrap();
    assert_refused(4, "is a copy");
    std::fs::remove_file(&masks).unwrap();
    run(command(
        directory_path,
        "linewarden signed masks truck --count 128",
    ));
    let backup = directory_path.join("backup");
    std::fs::copy(&masks, &backup).unwrap();
    std::fs::write(directory_path.join("line"), "a\n").unwrap();
    for _ in 0..2 {
        let arguments = "linewarden signed send truck --to 127.0.0.1:9 --input line --idle-masks 0";
        run(command(directory_path, arguments));
    }
    std::fs::write(&masks, std::fs::read(&backup).unwrap()).unwrap();
    assert_refused(4, "was rolled back");
    std::fs::write(&masks, b"nonsense").unwrap();
    assert_refused(2, "masks");
    std::fs::write(directory_path.join("truck/table"), b"nonsense").unwrap();
    assert_refused(2, "table");
    let output = command(
        directory_path,
        "linewarden signed keygen --scheme ed25519 --out truck",
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Runs a script in a private mount namespace. Returns whether the script succeeded, and its output of both streams. Skips the
/// test without the privilege.
fn in_private_mounts(directory_path: &Path, script: &str) -> (bool, String) {
    let script = format!("set -e; exec 2>&1; mount -t tmpfs none /mnt && umount /mnt || exit 77; {script}");
    let run = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env("LINEWARDEN", program("linewarden"))
        .current_dir(directory_path)
        .output();
    let output = match run {
        Ok(output) if output.status.code() != Some(77) => output,
        _ => skip!("file systems cannot be mounted here; needs root"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

/// ramfs has no user extended attributes. The mask file is created without attributes, and the command prints a notice.
#[test]
fn a_file_system_without_attributes_is_reported() {
    require_machine_id();
    let directory = tempfile::tempdir().unwrap();
    let script = "mkdir ram; mount -t ramfs none ram; cd ram
        $LINEWARDEN signed keygen --scheme ra-rsa2048 --layout bytes:1 --masks 128 --out truck
        echo a > line; $LINEWARDEN signed send truck --to 127.0.0.1:9 --input line --idle-masks 0";
    let (succeeded, text) = in_private_mounts(directory.path(), script);
    assert!(succeeded, "{text}");
    assert!(
        text.contains("truck/masks: the file system has no user extended attributes"),
        "{text}"
    );
    assert!(text.contains("64 masks left in the file"), "{text}");
}

/// The clone has the same inode numbers, creation times and attributes as the original file system, but another UUID. To mount
/// both file systems, XFS and btrfs require different UUIDs, and ext4 recommends them.
#[test]
fn masks_on_a_cloned_file_system_are_refused() {
    require_machine_id();
    for tool in ["mkfs.ext4", "tune2fs"] {
        if Command::new(tool).arg("-V").output().is_err() {
            skip!("{tool} is not installed");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "truncate -s 16M one; mkfs.ext4 -q -F one; mkdir at; mount -o loop one at || exit 77
        (cd at; $LINEWARDEN signed keygen --scheme ra-rsa2048 --layout bytes:1 --masks 64 --out truck)
        umount at; cp one two
        # After a mount, tune2fs requires a check of the file system.
        e2fsck -f -y two > /dev/null || test $? = 1; tune2fs -U random two > /dev/null
        echo a > line; send='$LINEWARDEN signed send at/truck --to 127.0.0.1:9 --input line --idle-masks 0'
        mount -o loop two at; code=0; eval $send || code=$?; echo code $code; umount at
        mount -o loop one at; eval $send; umount at";
    let (succeeded, text) = in_private_mounts(directory.path(), script);
    assert!(succeeded, "{text}");
    assert!(text.contains("code 4") && text.contains("is a copy"), "{text}");
    // After a remount, the original file is valid.
    assert!(text.contains("1 with masks, 0 without"), "{text}");
}
