//! Files that results go to: what cannot be written is refused before the work, and no directory is made that nobody asked
//! for.

use super::*;

#[test]
fn results_that_cannot_be_written_are_refused_before_the_work() {
    let site = Site::empty();
    site.write("file", "");
    fs::create_dir(site.path("directory")).unwrap();
    for (words, told) in [
        (
            "bench scale --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "bench auth --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "bench auth --quick --json directory",
            "directory: cannot be written: it is a directory",
        ),
        (
            "bench scale --quick --figures no/figures",
            "no/figures: cannot be made",
        ),
        ("bench auth --quick --figures file", "file: cannot be made"),
        (
            "bench attest --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "bench switch --quick --json no/x.json",
            "no/x.json: cannot be written",
        ),
        (
            "bench switch --quick --only router --p4 no",
            "no/compiled/router.json: ",
        ),
        ("demo --out no/out", "no/out: cannot be made"),
        ("demo --out out --json no/x.json", "no/x.json: cannot be written"),
        (
            "puf report readouts --svg no/x.svg",
            "no/x.svg: cannot be written",
        ),
    ] {
        let error = site.run(words).refused(2);
        assert!(error.contains(told), "{words}: {error}");
    }
    let mut left: Vec<_> = fs::read_dir(site.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["directory", "file"]);
}

/// What is missing is said without advice that the command cannot take, and nothing is left.
#[test]
fn without_rights_a_bench_says_what_is_missing() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: no root, so there is no privilege to drop");
        return;
    }
    let site = Site::empty();
    let bare = |words: &str| -> Said {
        Command::new("setpriv")
            .args([
                "--bounding-set=-all",
                "--inh-caps=-all",
                env!("CARGO_BIN_EXE_linewarden"),
            ])
            .args(words.split_whitespace())
            .current_dir(site.directory.path())
            .output()
            .unwrap()
            .into()
    };
    for words in [
        "bench auth --quick --figures figures --json figures/x.json",
        "bench scale --quick --only memory",
        "bench scale --quick --only latency",
        "bench attest --quick --only cipher",
        "bench switch --quick --only rate",
    ] {
        let error = bare(words).refused(3);
        assert!(
            error.contains("missing: run as root") && !error.contains("dataplane"),
            "{words}: {error}"
        );
    }
    let error = bare("demo").refused(3);
    assert!(error.contains("`--dataplane host`"), "{error}");
    assert_eq!(fs::read_dir(site.directory.path()).unwrap().count(), 0);
}
