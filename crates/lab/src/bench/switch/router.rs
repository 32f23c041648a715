//! The router in memory on one core, with the lower bounds of its work.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_switch::switch::Switch;
use linewarden_switch::tables::TableId;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::programs::Programs;
use super::{Size, memory};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Routes of each IP version.
const ROUTES: usize = 1_000;
/// Destinations, each on a random route.
const DESTINATIONS: usize = 1_024;
/// The output port of all routes.
pub const OUTPUT: u16 = 1;
/// Payload of an IPv4 frame of 64 bytes without frame check sequence.
const PAYLOAD_BYTES: usize = 22;

/// A set of routes as commands of a packet test, with addresses on these routes.
pub struct Routes {
    /// Entries for all of the router's tables.
    pub commands: String,
    /// Destinations on the IPv4 routes.
    pub v4: Vec<Ipv4Addr>,
    /// Destinations on the IPv6 routes.
    pub v6: Vec<Ipv6Addr>,
}

impl Routes {
    /// 1,000 deterministic routes of each IP version, with prefixes of 16 to 28 and of 32 to 64 bits.
    #[must_use]
    pub fn new() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut commands =
            format!("add ports standard.egress_port:{OUTPUT} set_source(mac:0x02000000aa01)\n");
        let v4 = prefixes(&mut rng, 32, 16..=28);
        let v6 = prefixes(&mut rng, 128, 32..=64);
        for (version, prefixes) in [(4, &v4), (6, &v6)] {
            for (value, bits) in prefixes {
                // Writing to a String cannot fail.
                let _ = writeln!(
                    commands,
                    "add routes{version} hdr.ipv{version}.dst:{value:#x}/{bits} forward{version}(port:{OUTPUT}, next_hop:0x02000000bb01)"
                );
            }
        }
        let v4 = addresses_on(&mut rng, 32, &v4);
        let v6 = addresses_on(&mut rng, 128, &v6);
        Self {
            commands,
            v4: v4
                .into_iter()
                .map(|address| Ipv4Addr::from(address as u32))
                .collect(),
            v6: v6.into_iter().map(Ipv6Addr::from).collect(),
        }
    }

    /// Datagrams to the IPv4 destinations, in random order, 64 bytes each.
    #[must_use]
    pub fn frames_v4(&self) -> Vec<Vec<u8>> {
        let from = Ipv4Addr::new(192, 0, 2, 1);
        let frame = |to: &Ipv4Addr| datagram(from.into(), (*to).into(), PAYLOAD_BYTES);
        self.v4.iter().map(frame).collect()
    }

    /// Datagrams to the IPv6 destinations, in random order, 84 bytes each.
    #[must_use]
    pub fn frames_v6(&self) -> Vec<Vec<u8>> {
        let frame = |to: &Ipv6Addr| datagram(SOURCE_V6.into(), (*to).into(), PAYLOAD_BYTES);
        self.v6.iter().map(frame).collect()
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self::new()
    }
}

/// Sender of the IPv6 datagrams.
pub const SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

type Prefixes = BTreeSet<(u128, u32)>;

fn prefixes(rng: &mut ChaCha8Rng, width: u32, lengths: std::ops::RangeInclusive<u32>) -> Prefixes {
    let mut prefixes = Prefixes::new();
    while prefixes.len() < ROUTES {
        let bits = rng.random_range(lengths.clone());
        // Unicast, for both IP versions.
        let first = 1u128 << (width - 3);
        let value = (rng.random::<u128>() >> (128 - width) >> 3) | first;
        let host = width - bits;
        prefixes.insert((value >> host << host, bits));
    }
    prefixes
}

/// Addresses on random routes.
fn addresses_on(rng: &mut ChaCha8Rng, width: u32, prefixes: &Prefixes) -> Vec<u128> {
    let routes: Vec<_> = prefixes.iter().copied().collect();
    let address = |_| {
        let (value, bits) = *routes.get(rng.random_range(0..routes.len()))?;
        Some(value | (rng.random::<u128>() & ((1u128 << (width - bits)) - 1)))
    };
    (0..DESTINATIONS).filter_map(address).collect()
}

/// A datagram to a router MAC address that no station of the lab has, so that only a switch accepts it.
#[must_use]
pub fn datagram(from: std::net::IpAddr, to: std::net::IpAddr, payload_bytes: usize) -> Vec<u8> {
    let from = Endpoint {
        mac: [2, 0, 0, 0, 0, 1],
        ip: from,
        port: 4_000,
    };
    let to = Endpoint {
        mac: [2, 0, 0, 0, 0xff, 1],
        ip: to,
        port: 4_000,
    };
    FrameBuilder::new(from, to).udp(&vec![0x5a; payload_bytes])
}

/// Measures the row `router.ns_per_packet` and its lower bounds, alternately.
///
/// # Errors
/// An error of the program, or a packet that is not forwarded.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("router in memory", None);
    let routes = Routes::new();
    let switch = programs.switch("router", &routes.commands)?;
    let mut worker = switch.worker();
    let (v4, v6) = (routes.frames_v4(), routes.frames_v6());
    let lookups = Lookups::new(&switch, &routes)?;
    let [mut v4_ns, mut v6_ns, mut copy_ns, mut lookups_ns] = [f64::MAX; 4];
    for _ in 0..size.runs {
        v4_ns = v4_ns.min(memory::ns_per_packet(&mut worker, &v4, size.packets)?);
        v6_ns = v6_ns.min(memory::ns_per_packet(&mut worker, &v6, size.packets)?);
        copy_ns = copy_ns.min(memory::copy_ns(&v4, size.packets));
        lookups_ns = lookups_ns.min(lookups.ns(&switch, size.packets)?);
    }
    rows.extend([
        Row::lower("router.ns_per_packet", v4_ns, "ns", Some(300.0)),
        Row::lower("router.ipv6.ns_per_packet", v6_ns, "ns", None),
        Row::fact("router.copy_ns", copy_ns, "ns"),
        Row::fact("router.lookups_ns", lookups_ns, "ns"),
    ]);
    Ok(())
}

/// Only the table lookups of an IPv4 packet: route and port.
struct Lookups {
    routes: TableId,
    ports: TableId,
    destinations: Vec<[u8; 4]>,
}

impl Lookups {
    fn new(switch: &Switch, routes: &Routes) -> Result<Self, BenchError> {
        let tables = &switch.executable().program.tables;
        let table = |name: &str| {
            let entry = (0..)
                .map(TableId)
                .zip(tables)
                .find(|(_, table)| table.name == name);
            entry
                .map(|(id, _)| id)
                .ok_or_else(|| BenchError::InvalidMeasurement(format!("the router has no table {name}")))
        };
        Ok(Self {
            routes: table("RouterIngress.routes4")?,
            ports: table("RouterEgress.ports")?,
            destinations: routes.v4.iter().map(Ipv4Addr::octets).collect(),
        })
    }

    fn ns(&self, switch: &Switch, packets: u32) -> Result<f64, BenchError> {
        let forwarding = switch.forwarding();
        let tables = forwarding.tables();
        let (Some(routes), Some(ports)) = (tables.table(self.routes), tables.table(self.ports)) else {
            return Err(BenchError::InvalidMeasurement(
                "a table of the router is missing".to_owned(),
            ));
        };
        let port = OUTPUT.to_be_bytes();
        let mut hits = 0;
        let start = Instant::now();
        for destination in self.destinations.iter().cycle().take(packets as usize) {
            let route = routes.lookup(black_box(destination));
            let port = ports.lookup(black_box(&port));
            hits += u32::from(route.is_some() && port.is_some());
        }
        let elapsed = start.elapsed();
        if hits != packets {
            let text = format!("{hits} of {packets} destinations have a route");
            return Err(BenchError::InvalidMeasurement(text));
        }
        Ok(elapsed.as_nanos() as f64 / f64::from(packets))
    }
}
