//! What revocations, refills and first authentications take, and what floods do to honest devices: the `xdp` data plane on the lab's link, the node and its
//! threads, a controller over a registry in a file, with the product's settings.

mod first;
mod flood;
mod refill;
mod revoke;
mod site;

use hdrhistogram::Histogram;

use super::{Progress, Size};
use crate::bench::{BenchError, Row};

/// All rows of this part.
///
/// # Errors
/// Those of the lab, the data plane and the registry; a device that was not served.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    progress("first authentications", None);
    first::rows(size, rows)?;
    progress("authentications while rows are leased, and while none are", None);
    refill::rows(size, rows)?;
    revoke::rows(size, progress, rows)?;
    flood::rows(size, progress, rows)
}

fn ms(latency_ns: &Histogram<u64>, quantile: f64) -> f64 {
    latency_ns.value_at_quantile(quantile) as f64 / 1e6
}
