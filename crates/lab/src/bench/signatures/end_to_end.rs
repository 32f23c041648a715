//! Time of a message from signer to receiver on one core of this machine: signing and verification, as in the thesis' Table 1.
//!
//! The thesis takes the average over 8,192 messages. For half of the messages a mask already exists, so half of a mask's
//! time is included (`half_masks`). `new_masks` includes the time of a mask. `masks_ready` does not, because the mask
//! was created in idle time.

use super::Size;
use crate::bench::{BenchError, Report, Row};

/// Milliseconds per message in the thesis.
pub const THESIS_MS: [(&str, f64); 6] = [
    ("RSA-2048, CPU", 4.0),
    ("ECDSA P-256, CPU", 1.18),
    ("RA-2048, CPU", 0.69),
    ("RA-2048, CPU of the SoC", 7.1),
    ("HAA-2048, K40c", 0.21),
    ("HAA-2048, GPU of the SoC", 2.6),
];

/// Adds the rows of this part, computed from the rates of one core.
///
/// # Errors
/// A rate is missing.
pub fn rows(size: &Size, report: &mut Report) -> Result<(), BenchError> {
    let microseconds = |name: &str| {
        let rate = report.value(&format!("{name}_per_s"));
        rate.map(|rate| 1e6 / rate)
            .ok_or_else(|| BenchError::InvalidMeasurement(format!("{name} was not measured")))
    };
    let fastest = |a: &str, b: &str| match (microseconds(a), microseconds(b)) {
        (Ok(a), Ok(b)) => Ok(f64::min(a, b)),
        (first, second) => first.or(second),
    };
    let mut rows = Vec::new();
    let mut row =
        |name: String, us: f64| rows.push(Row::lower(format!("end_to_end.{name}_us"), us, "us", None));
    for name in ["rsa2048", "rsa3072", "p256", "ed25519"] {
        let sign = microseconds(&format!("{name}.sign.awslc"))?;
        row(
            format!("{name}.awslc"),
            sign + microseconds(&format!("{name}.verify.awslc"))?,
        );
        let verify = fastest(&format!("{name}.verify.awslc"), &format!("{name}.verify.eight"))?;
        row(name.to_owned(), sign + verify);
    }
    let rapid = size.components.iter().map(|components| format!("ra{components}"));
    let over_rsa3072 = size
        .over_rsa3072
        .map(|components| format!("ra{components}_rsa3072"));
    for name in rapid.chain(over_rsa3072) {
        let [mask, sign, verify] = ["offline", "online", "verify"]
            .map(|stage| fastest(&format!("{name}.{stage}.one"), &format!("{name}.{stage}.eight")));
        let (mask, sign, verify) = (mask?, sign?, verify?);
        row(format!("{name}.new_masks"), mask + sign + verify);
        row(format!("{name}.half_masks"), mask / 2.0 + sign + verify);
        row(format!("{name}.masks_ready"), sign + verify);
    }
    report.rows.extend(rows);
    Ok(())
}
