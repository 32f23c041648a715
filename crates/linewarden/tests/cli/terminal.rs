//! What only somebody at a terminal sees: bars that show how far a long operation has come.

use super::*;

/// Runs a command at a terminal, which script(1) makes; what stood on it.
pub fn at_terminal(site: &Site, words: &str) -> Option<Said> {
    let command = format!("stty cols 100; {} {words}", env!("CARGO_BIN_EXE_linewarden"));
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(site.directory.path())
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(std::process::Stdio::null())
        .output()
        .ok()?;
    Some(output.into())
}

#[test]
fn a_terminal_shows_how_far_an_enrolment_has_come_and_others_see_nothing_of_it() {
    let site = Site::new();
    let words = |out: &str| {
        format!(
            "device enroll simulated --count 300 --rows 2 --out {out} --registry fleet.registry --key-file master.key"
        )
    };
    let Some(shown) = at_terminal(&site, &words("seen")) else {
        println!("SKIPPED: there is no script(1)");
        return;
    };
    let shown = shown.ok();
    // A bar that moves: it is drawn more than once, and no further than to its end.
    let drawn: Vec<u64> = shown
        .split("/300")
        .filter_map(|before| {
            let digits: String = before.chars().rev().take_while(char::is_ascii_digit).collect();
            digits.chars().rev().collect::<String>().parse().ok()
        })
        .collect();
    assert!(drawn.len() >= 2, "{shown:?}");
    assert!(
        drawn.iter().all(|done| *done <= 300) && drawn.is_sorted() && drawn.iter().any(|done| *done > 0),
        "{drawn:?}"
    );
    assert!(!shown.contains("panicked"), "{shown}");
    let said = site.run(&words("unseen"));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(
        !said.err.contains("/300") && !said.out.contains("/300"),
        "{}",
        said.err
    );
    let listed = site.on_registry("device list --json").ok();
    assert_eq!(listed.lines().count(), 600);
}
