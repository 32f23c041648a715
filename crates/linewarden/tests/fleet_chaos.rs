//! Three gateways, two controllers, PostgreSQL and nats-server as processes in network namespaces, under the load of devices that go
//! from gateway to gateway: each process is killed in turn and started again, and the network is parted and healed.
//!
//! What must hold, by what devices receive and by what gateways and registry have written down: no row is accepted twice, whoever
//! accepts it; no row is at two gateways; whoever may authenticates at every gateway that reaches a controller, and at one that
//! reaches none with rows below its marks; who is revoked gets nothing from a gateway once that knows, and from one that is cut
//! off not after its lease; every event is published once, in order.
//!
//! `LINEWARDEN_CHAOS_SEED` replays a schedule; the order of packets is the machine's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

#[path = "fleet_chaos/chaos.rs"]
mod chaos;
#[path = "fleet_chaos/events.rs"]
mod events;
#[path = "fleet_chaos/field.rs"]
mod field;
#[path = "fleet_chaos/ledger.rs"]
mod ledger;
#[path = "fleet_chaos/network.rs"]
mod network;
#[path = "fleet_chaos/site.rs"]
mod site;

use rand::seq::SliceRandom as _;

use chaos::{Chaos, Fault};

#[test]
fn whatever_is_killed_or_cut_off_rows_are_spent_once_and_nobody_is_turned_away() {
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
    faults.shuffle(&mut chaos.field.rng);
    for fault in faults {
        chaos.suffer(fault);
    }
    chaos.finish();
}
