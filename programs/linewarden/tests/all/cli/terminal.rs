//! Output that appears only at a terminal: progress bars of long operations.

use linewarden_harness::skip;

use super::*;
use crate::support::program;

/// Runs a command at a terminal of script(1) and returns the command's output; `None` if script(1) is not installed.
pub fn at_terminal(site: &Site, command_line: &str) -> Option<CommandOutput> {
    let (name, arguments) = command_line.split_once(' ').unwrap();
    let command = format!("stty cols 100; {} {arguments}", program(name).display());
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
fn the_progress_of_an_enrollment_is_shown_at_terminals_only() {
    let site = Site::new();
    let enroll_command = |out: &str| {
        format!(
            "linewarden device enroll simulated --count 300 --rows 2 --out {out} --registry fleet.registry --key-file master.key"
        )
    };
    let Some(output) = at_terminal(&site, &enroll_command("seen")) else {
        skip!("script(1) is not installed");
    };
    let text = output.ok();
    // The progress bar is drawn more than once, its value never decreases, and never exceeds the maximum.
    let progress_values: Vec<u64> = text
        .split("/300")
        .filter_map(|before| {
            let digits: String = before.chars().rev().take_while(char::is_ascii_digit).collect();
            digits.chars().rev().collect::<String>().parse().ok()
        })
        .collect();
    assert!(progress_values.len() >= 2, "{text:?}");
    assert!(
        progress_values.iter().all(|done| *done <= 300)
            && progress_values.is_sorted()
            && progress_values.iter().any(|done| *done > 0),
        "{progress_values:?}"
    );
    assert!(!text.contains("panicked"), "{text}");
    let output = site.run(&enroll_command("unseen"));
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(
        !output.err.contains("/300") && !output.out.contains("/300"),
        "{}",
        output.err
    );
    let listed = site.on_registry("device list --output json").ok();
    assert_eq!(listed.lines().count(), 600);
}
