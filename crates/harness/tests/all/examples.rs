//! Tests for the module `report`, which runs them in a child process.

use proptest::proptest;

fn is_child() -> bool {
    std::env::var_os(super::report::CHILD).is_some()
}

/// Skips the test in the child process only, so that the report of the program lists no missing requirement.
fn deep(levels: u32) {
    match levels {
        0 if is_child() => linewarden_harness::skip!("needs {}", "root"),
        0 => {}
        levels => deep(levels - 1),
    }
}

#[test]
fn without_its_requirement() {
    deep(10);
}

#[test]
fn without_two_requirements() {
    for address in ["::1", "fd66::1", "::1"].into_iter().filter(|_| is_child()) {
        linewarden_harness::skip_part!("no {address}");
    }
}

#[test]
fn fails_in_a_child_without_a_requirement() {
    if is_child() {
        linewarden_harness::skip_part!("no IPv6");
        panic!("as requested");
    }
}

#[test]
fn fails_in_a_child() {
    assert!(!is_child(), "as requested");
}

#[test]
fn error_in_a_child() -> Result<(), String> {
    if is_child() {
        Err("no such file".to_owned())
    } else {
        Ok(())
    }
}

#[test]
#[should_panic]
fn panics() {
    panic!("any message");
}

#[should_panic(expected = "the first part")]
#[test]
fn panics_with_a_message() {
    panic!("the first part and the second part");
}

#[test]
#[should_panic = "the first part"]
fn panics_otherwise_in_a_child() {
    panic!("the {} part", if is_child() { "second" } else { "first" });
}

#[test]
#[should_panic]
fn returns_in_a_child() {
    assert!(is_child());
}

#[test]
#[should_panic]
fn without_its_requirement_before_a_panic() {
    if is_child() {
        linewarden_harness::skip!("needs a GPU");
    }
    panic!("as expected");
}

#[test]
#[ignore = "example for other tests"]
fn on_request() {}

#[test]
async fn in_a_runtime() {
    tokio::task::yield_now().await;
}

#[test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_runtime_of_two_threads() -> Result<(), std::num::ParseIntError> {
    tokio::spawn(async { "7".parse::<u8>() })
        .await
        .unwrap()
        .map(|_| ())
}

#[test]
#[cfg(not(target_os = "linux"))]
fn not_on_linux() {}

proptest! {
    #[test]
    fn with_random_values(number in 0..10u8) {
        assert!(number < 10);
    }
}
