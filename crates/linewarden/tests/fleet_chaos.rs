//! Three gateways, two controllers, PostgreSQL and nats-server as processes in network namespaces, under the load of devices
//! that roam between gateways. The test kills and restarts each process, one after another, and partitions and reconnects the
//! network.
//!
//! The test checks these invariants in the messages of devices, in the gateway audit logs and in the registry:
//! * No row is accepted twice.
//! * No row is leased to two gateways.
//! * A permitted device authenticates at every gateway that reaches a controller. At a gateway without a controller, the device
//!   authenticates while unused rows below the mark remain.
//! * A revoked device gets no session from a gateway that knows of the revocation, and no session from a disconnected gateway
//!   after the gateway's offline limit.
//! * Every event is published once, in order.
//!
//! `LINEWARDEN_CHAOS_SEED` repeats a schedule of faults; the order of packets still differs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

#[path = "fleet_chaos/chaos.rs"]
mod chaos;
#[path = "fleet_chaos/devices.rs"]
mod devices;
#[path = "fleet_chaos/events.rs"]
mod events;
#[path = "fleet_chaos/ledger.rs"]
mod ledger;
#[path = "fleet_chaos/network.rs"]
mod network;
#[path = "fleet_chaos/site.rs"]
mod site;

use rand::seq::SliceRandom as _;

use chaos::{Chaos, Fault};

#[test]
fn rows_are_used_once_and_devices_authenticate_during_crashes_and_partitions() {
    let seed: u64 = std::env::var("LINEWARDEN_CHAOS_SEED").map_or_else(
        |_| getrandom::u64().unwrap(),
        |text| text.parse().expect("LINEWARDEN_CHAOS_SEED is a number"),
    );
    println!("LINEWARDEN_CHAOS_SEED={seed}");
    let mut chaos = match Chaos::new(seed) {
        Ok(chaos) => chaos,
        Err(missing) => {
            println!("SKIPPED: {missing}");
            return;
        }
    };
    let mut faults = Fault::all();
    faults.shuffle(&mut chaos.fleet.rng);
    for fault in faults {
        chaos.inject(fault);
    }
    chaos.finish();
}
