//! Latency of revocations, refills and first authentications, and the effect of floods on legitimate devices: the `xdp` data
//! plane on the lab's link, the gateway process with its threads, and a controller with a registry in a file, with the default
//! settings.

mod first;
mod flood;
mod refill;
mod revoke;
mod setup;

use hdrhistogram::Histogram;

use super::{Progress, Size};
use crate::bench::{BenchError, Row};

/// Adds the rows of this part.
///
/// # Errors
/// An error of the lab, the data plane or the registry, or a device that was not served.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    progress("first authentications", None);
    first::rows(size, rows)?;
    progress("authentications with and without concurrent row leases", None);
    refill::rows(size, rows)?;
    revoke::rows(size, progress, rows)?;
    flood::rows(size, progress, rows)
}

fn ms(latency_ns: &Histogram<u64>, quantile: f64) -> f64 {
    latency_ns.value_at_quantile(quantile) as f64 / 1e6
}
