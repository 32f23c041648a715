//! The first authentication of a device that is not in the gateway.

use linewarden_dataplane::Gate;

use super::ms;
use super::setup::{GatewaySetup, authenticate};
use crate::bench::scale::Size;
use crate::bench::{BenchError, Row};
use crate::fleet::FleetSpec;

/// Authenticates one device after another. Measures from REQUEST to ACK without PUF time: two lookups and a durable
/// lease.
///
/// # Errors
/// A device was not served.
pub(super) fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let spec = FleetSpec {
        mac_bound: false,
        ..FleetSpec::new(size.first_devices, 11)
    };
    let (setup, [members]) = GatewaySetup::start([&spec], Gate::Off)?;
    let mut fleet = setup.fleet(members, 0)?;
    let report = authenticate(&mut fleet, 1)?;
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        rows.push(Row::lower(
            format!("slowpath.first_auth_ms.{name}"),
            ms(&report.network_ns, quantile),
            "ms",
            None,
        ));
    }
    Ok(())
}
