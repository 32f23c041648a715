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
//! A program of its own: the faults need all CPUs, and timeouts of other tests would expire.
//!
//! `LINEWARDEN_CHAOS_SEED` repeats a schedule of faults; the order of packets still differs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

mod chaos;
mod devices;
mod events;
mod ledger;
mod network;
mod site;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the program `all` uses all items")]
mod support;

use linewarden_harness::skip;
use rand::seq::SliceRandom as _;

use self::chaos::{Chaos, Fault};

#[test]
fn rows_are_used_once_and_devices_authenticate_during_crashes_and_partitions() {
    let seed: u64 = std::env::var("LINEWARDEN_CHAOS_SEED").map_or_else(
        |_| getrandom::u64().unwrap(),
        |text| text.parse().expect("LINEWARDEN_CHAOS_SEED is a number"),
    );
    println!("LINEWARDEN_CHAOS_SEED={seed}");
    let mut chaos = match Chaos::new(seed) {
        Ok(chaos) => chaos,
        Err(missing) => skip!("{missing}"),
    };
    let mut faults = Fault::all();
    faults.shuffle(&mut chaos.fleet.rng);
    for fault in faults {
        chaos.inject(fault);
    }
    chaos.finish();
}

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
