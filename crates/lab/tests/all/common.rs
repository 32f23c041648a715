//! Helpers of several tests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use linewarden_lab::bench::Report;
use linewarden_lab::capability::{self, Capability};

/// Skips the test if this process does not have the capabilities.
pub fn require(capabilities: &[Capability]) {
    if let Err(missing) = capability::require(capabilities) {
        linewarden_harness::skip!("{missing}");
    }
}

/// Polls `condition` until it holds; panics after a minute.
pub fn wait_until(condition_name: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "timeout after 60 s: {condition_name}"
        );
        std::thread::yield_now();
    }
}

/// Asserts that the report contains these rows with positive values.
pub fn assert_positive(report: &Report, rows: &[&str]) {
    for name in rows {
        let value = report.value(name).unwrap_or_else(|| panic!("no row {name}"));
        assert!(value.is_finite() && value > 0.0, "{name} = {value}");
    }
}

/// Asserts that there are `count` files, each with a complete SVG image.
pub fn assert_svgs(paths: &[PathBuf], count: usize) {
    assert_eq!(paths.len(), count, "{paths:?}");
    for path in paths {
        let svg = std::fs::read_to_string(path).unwrap();
        let is_complete = svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>");
        assert!(is_complete, "{}", path.display());
    }
}
