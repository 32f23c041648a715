//! The contract of each trait of a data plane. Each data plane passes the same tests: `host`, `xdp`, and `p4` with a switch in
//! memory.

mod admission;
mod attestation;
mod devices;
mod evidence;
mod telemetry;

use linewarden_dataplane::DataPlane;
use linewarden_dataplane::host::Host;

use crate::support::fixture::load_xdp_if_permitted;
use crate::support::fixture::switch::SwitchSide;
use crate::support::test_config::TestConfig;

/// Runs a test with each data plane. Without the privilege to load eBPF programs, `xdp` is skipped, and the test counts as
/// ignored.
fn with_each(test_config: TestConfig, test: impl Fn(&mut dyn DataPlane)) {
    let config = test_config.config();
    test(&mut Host::new(&config).unwrap());
    test(&mut SwitchSide::start(&config).data_plane);
    if let Some(mut xdp) = load_xdp_if_permitted(&config) {
        test(&mut xdp);
    }
}
