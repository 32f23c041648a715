//! Output files: a command rejects an unwritable path before its work, and creates no directory that the user has not
//! requested.

use super::*;
use crate::support::{program, require_root};

#[test]
fn unwritable_output_paths_are_refused_before_the_work_of_a_command() {
    let site = Site::empty();
    site.write("file", "");
    fs::create_dir(site.path("directory")).unwrap();
    for (command_line, cause) in [
        (
            "linewarden-lab bench scale --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "linewarden-lab bench auth --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "linewarden-lab bench auth --quick --json directory",
            "directory: cannot be written: it is a directory",
        ),
        (
            "linewarden-lab bench scale --quick --figures no/figures",
            "no/figures: cannot be created",
        ),
        (
            "linewarden-lab bench auth --quick --figures file",
            "file: cannot be created",
        ),
        (
            "linewarden-lab bench attest --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "linewarden-lab bench switch --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "linewarden-lab bench switch --quick --only router --p4 no",
            "no/compiled/router.json could not be read",
        ),
        (
            "linewarden puf report readouts --svg no/x.svg",
            "no/x.svg: cannot be written",
        ),
    ] {
        let error = site.run(command_line).refused(2);
        assert!(error.contains(cause), "{command_line}: {error}");
    }
    let mut files: Vec<_> = fs::read_dir(site.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["directory", "file"]);
}

/// The missing privilege is reported without the advice to use another data plane, and no file remains.
#[test]
fn the_error_of_a_bench_without_privileges_names_what_is_missing() {
    require_root();
    let site = Site::empty();
    let run_without_capabilities = |arguments: &str| -> CommandOutput {
        let lab = program("linewarden-lab");
        let command_line = format!(
            "setpriv --bounding-set=-all --inh-caps=-all {} {arguments}",
            lab.display()
        );
        site.run(&command_line)
    };
    for arguments in [
        "bench auth --quick --figures figures --json figures/x.json",
        "bench scale --quick --only memory",
        "bench scale --quick --only latency",
        "bench attest --quick --only cipher",
        "bench switch --quick --only rate",
    ] {
        let error = run_without_capabilities(arguments).refused(3);
        assert!(
            error.contains(": run as root") && !error.contains("dataplane"),
            "{arguments}: {error}"
        );
    }
    assert_eq!(fs::read_dir(site.directory.path()).unwrap().count(), 0);
}
