//! The GPU's rates, host to host with copies. Without a GPU they are pending.

use crate::bench::{Better, Pending, Report};

/// What must be reached on an H200, per second.
const BARS: [(&str, f64); 5] = [
    ("gpu.rsa2048_verify_per_s", 25e6),
    ("gpu.ra32_online_per_s", 12e6),
    ("gpu.ra32_verify_per_s", 8e6),
    ("gpu.rsa2048_sign_per_s", 0.8e6),
    ("gpu.p256_verify_per_s", 10e6),
];

/// Adds the rows.
pub fn rows(report: &mut Report) {
    for (name, bar) in BARS {
        let why = "no GPU lane";
        report
            .pending
            .push(Pending::new(name, "/s", Better::Higher, Some(bar), why));
    }
}
