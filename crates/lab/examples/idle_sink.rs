//! Prints the load generator's own rate: complete handshakes per second against a reflector that verifies nothing.
//!
//! `cargo run --release -p linewarden-lab --example idle_sink` (root). Both ends have their receive work on kernel
//! threads pinned to one and the same processor, as [`linewarden_lab::loadgen`] advises.

use std::error::Error;
use std::time::{Duration, Instant};

use linewarden_lab::loadgen::{Generator, Plan, Reflector, Transmit};
use linewarden_lab::napi::NapiThreads;
use linewarden_lab::topology::{Lab, Topology};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::AuthKey;

fn main() -> Result<(), Box<dyn Error>> {
    println!("window  transmit  handshakes/s  generator ns/handshake  reflector ns/handshake");
    for (window, transmit) in [
        (16, Transmit::Tx),
        (64, Transmit::Tx),
        (128, Transmit::Tx),
        (192, Transmit::Tx),
        (192, Transmit::Redirect),
    ] {
        let lab = Lab::build(&Topology {
            ipv6: false,
            device_host: false,
            devices_end_accepts_xdp: false,
            ..Topology::default()
        })?;
        let plan = Plan {
            devices: 10_000,
            window,
            rows: 1,
            first_idx: RowIndex(0),
            gateway: GatewayId(1),
            fresh: [1; 8],
            suite: Suite::SipHash128,
            bound: true,
            source_port: 40_000,
            transmit,
        };
        let _reflector = Reflector::attach(&lab, &plan)?;
        let mut generator = Generator::attach(
            &lab,
            &plan,
            |index| DeviceId(u64::from(index) + 1),
            |_, _| AuthKey::from_bytes([1; 16]),
        )?;
        let near = NapiThreads::enable(&lab.devices, &lab.devices_end.name)?;
        let far = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
        near.pin(&[0])?;
        far.pin(&[0])?;
        generator.start()?;

        let (start, before) = (Instant::now(), generator.counters()?.completed);
        let (near_before, far_before) = (near.cpu_time()?, far.cpu_time()?);
        std::thread::sleep(Duration::from_secs(2));
        let completed = generator.counters()?.completed - before;
        let elapsed = start.elapsed();
        let per_handshake = |used: Duration| used.as_nanos() / u128::from(completed.max(1));
        println!(
            "{window:>6}  {transmit:>8?}  {:>12.0}  {:>22}  {:>22}",
            completed as f64 / elapsed.as_secs_f64(),
            per_handshake(near.cpu_time()? - near_before),
            per_handshake(far.cpu_time()? - far_before),
        );
        generator.finish(Duration::from_secs(10))?;
    }
    Ok(())
}
