use std::process::{Command, Output};

/// Environment variable of the child process.
pub(super) const CHILD: &str = "LINEWARDEN_HARNESS_CHILD";

fn run(arguments: &[&str]) -> (Output, String) {
    assert!(
        std::env::var_os(CHILD).is_none(),
        "a child process runs only the examples"
    );
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        std::str::from_utf8(&output.stdout).unwrap(),
        std::str::from_utf8(&output.stderr).unwrap()
    );
    (output, text)
}

fn line_of<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines()
        .find(|line| line.starts_with(start))
        .unwrap_or_else(|| panic!("no {start:?} in {text}"))
}

#[test]
fn tests_have_the_names_of_their_modules() {
    let (_, text) = run(&["--list"]);
    let examples: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("examples::"))
        .collect();
    assert_eq!(examples.len(), 14, "{text}");
    assert!(examples.is_sorted());
    assert!(examples.contains(&"examples::with_random_values: test"));
    assert!(text.contains("\nreport::tests_have_the_names_of_their_modules: test\n"));
}

#[test]
fn a_missing_requirement_is_reported_with_the_reason() {
    let (output, text) = run(&["examples::without_its"]);
    assert!(output.status.success());
    assert!(
        line_of(&text, "test result: ")
            .starts_with("test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; ")
    );
    assert!(text.ends_with(
        "\nignored:\n    \
         examples::without_its_requirement: needs root\n    \
         examples::without_its_requirement_before_a_panic: needs a GPU\n\n"
    ));
    // Nothing on standard error: no message of a panic.
    assert!(output.stderr.is_empty());
}

#[test]
fn a_test_that_skips_parts_is_reported_as_ignored_if_it_passes() {
    let (_, text) = run(&["examples::without_two_requirements"]);
    assert!(line_of(&text, "test result: ").starts_with("test result: ok. 0 passed; 0 failed; 1 ignored; "));
    assert!(text.contains("\n    examples::without_two_requirements: in part: no ::1; no fd66::1\n"));
    let (_, text) = run(&["examples::fails_in_a_child_without_a_requirement"]);
    assert!(
        line_of(&text, "test result: ").starts_with("test result: FAILED. 0 passed; 1 failed; 0 ignored; ")
    );
}

#[test]
fn tests_on_request_are_reported_as_ignored_and_run_on_request() {
    let (_, text) = run(&["examples::on_request"]);
    assert!(line_of(&text, "test result: ").starts_with("test result: ok. 0 passed; 0 failed; 1 ignored; "));
    assert!(text.contains("\n    examples::on_request: example for other tests\n"));
    for arguments in [
        ["--ignored", "examples::on_request"],
        ["--include-ignored", "examples::on_request"],
    ] {
        let (_, text) = run(&arguments);
        assert!(
            line_of(&text, "test result: ").starts_with("test result: ok. 1 passed; 0 failed; 0 ignored; ")
        );
    }
}

#[test]
fn a_panic_names_the_test() {
    let (output, text) = run(&["--exact", "examples::fails_in_a_child", "--nocapture"]);
    assert_eq!(output.status.code(), Some(101));
    assert!(
        line_of(&text, "test result: ").starts_with("test result: FAILED. 0 passed; 1 failed; 0 ignored; ")
    );
    assert!(line_of(&text, "thread 'examples::fails_in_a_child'").contains("panicked at"));
}

#[test]
fn errors_and_missing_panics_are_failures() {
    for (name, message) in [
        ("examples::error_in_a_child", "Error: \"no such file\""),
        (
            "examples::panics_otherwise_in_a_child",
            "the message of the panic does not contain \"the first part\"",
        ),
        (
            "examples::returns_in_a_child",
            "the test did not panic as expected",
        ),
    ] {
        let (output, text) = run(&["--exact", name, "--test-threads=1"]);
        assert_eq!(output.status.code(), Some(101), "{text}");
        line_of(&text, message);
    }
}

#[test]
fn tests_are_selected_by_filters() {
    let (_, text) = run(&["examples::in_a_runtime", "--skip", "threads"]);
    line_of(&text, "test result: ok. 1 passed; 0 failed; 0 ignored; ");
    let (_, text) = run(&["examples::", "--skip=child", "--skip=requirement"]);
    line_of(&text, "test result: ok. 5 passed; 0 failed; 1 ignored; ");
}
