//! Limits of the parameters of chains.

use crate::puf::PufError;

/// The most stages a chain may have.
pub(super) const STAGES_MAX: usize = 4096;

pub(super) fn check_chain(stages: usize, chains: usize, noisiness: f64) -> Result<(), PufError> {
    let bad = |name, value: String, allowed| Err(PufError::BadParameter { name, value, allowed });
    if !(8..=STAGES_MAX).contains(&stages) {
        return bad("stages", stages.to_string(), "8 to 4096");
    }
    if !(1..=32).contains(&chains) {
        return bad("chains", chains.to_string(), "1 to 32");
    }
    if !(noisiness.is_finite() && noisiness >= 0.0) {
        return bad("noisiness", noisiness.to_string(), "0 or more");
    }
    Ok(())
}
