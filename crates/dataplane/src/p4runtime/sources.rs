//! Source addresses of devices (LAP/1 1.4.13), in the format of the table `device_sources`: prefixes. The longest
//! matching prefix decides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::frame::ip_bytes;
use linewarden_protocol::sources::DeviceSources;

use super::{P4Runtime, SwitchError};

const SOURCES: &str = "device_sources";
/// Tables with the IPv6 prefixes only, and their actions: for the device's end and for the other end of neighbor
/// discovery.
const NEIGHBOR_DISCOVERY_TABLES: [(&str, &str); 2] = [
    ("device_end_prefixes", "device_end_inside"),
    ("end_prefixes", "end_inside"),
];
/// Bits before an IPv4 address, which is mapped to ::ffff:a.b.c.d.
const MAPPED_BITS: u32 = 96;
const ADDRESS_BITS: u32 = 128;
/// Prefix length of 127.0.0.0/8.
const LOOPBACK_BITS: u32 = 8;

/// Value and length of each prefix, and whether a source inside it is admitted.
type Entries = BTreeMap<(u128, u32), bool>;

/// An address in the format of the program: IPv4 as ::ffff:a.b.c.d.
pub(super) fn number(address: IpAddr) -> u128 {
    u128::from_be_bytes(ip_bytes(address))
}

/// The entries for these sources. The program drops sources that are not host addresses before it applies this table,
/// so the table needs no entries for them.
fn entries(sources: &DeviceSources) -> Entries {
    // No IPv6 prefix admits IPv4 addresses.
    let mut entries = Entries::from([((number(Ipv4Addr::UNSPECIFIED.into()), MAPPED_BITS), false)]);
    for prefix in sources.prefixes() {
        let (has_hosts, leading_bits) = match prefix.network() {
            IpAddr::V4(network) => (sources.admits_loopback() || !network.is_loopback(), MAPPED_BITS),
            // In ::/64 only the loopback address names a host.
            IpAddr::V6(network) => (network.to_bits() >> 64 != 0 || prefix.bits() < 64, 0),
        };
        if has_hosts && !sources.overflows(prefix.network().is_ipv4()) {
            entries.insert(
                (number(prefix.network()), leading_bits + u32::from(prefix.bits())),
                true,
            );
        }
    }
    let loopback = Ipv6Addr::LOCALHOST.into();
    entries.insert((number(loopback), ADDRESS_BITS), sources.admits(loopback));
    if !sources.admits_loopback() {
        let network = number(Ipv4Addr::new(127, 0, 0, 0).into());
        entries.insert((network, MAPPED_BITS + LOOPBACK_BITS), false);
    }
    let refused = sources
        .excluded()
        .iter()
        .filter(|ip| !sources.overflows(ip.is_ipv4()));
    entries.extend(refused.map(|address| ((number(*address), ADDRESS_BITS), false)));
    entries
}

/// The IPv6 prefixes.
fn ipv6_entries(sources: &DeviceSources) -> Entries {
    let ipv6_prefixes = sources
        .prefixes()
        .iter()
        .filter(|prefix| prefix.network().is_ipv6());
    ipv6_prefixes
        .map(|prefix| ((number(prefix.network()), u32::from(prefix.bits())), true))
        .collect()
}

/// A prefix, and whether its entry admits sources before and after a change. `None`: no entry.
type Step = ((u128, u32), [Option<bool>; 2]);

/// Four writes that change a table from the old entries to the new ones. P4Runtime permits the switch to apply the
/// updates of one write in any order (`WriteRequest.updates` in p4runtime.proto). Refusing entries are added first and removed
/// last, so that the table never admits a source that neither set admits.
fn steps(old: &Entries, new: &Entries) -> [Vec<Step>; 4] {
    let mut steps: [Vec<Step>; 4] = Default::default();
    let [refuse, admit, no_longer_admit, no_longer_refuse] = &mut steps;
    for prefix in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let change = [old, new].map(|entries| entries.get(prefix).copied());
        let write = match change {
            [before, after] if before == after => continue,
            [_, Some(false)] => &mut *refuse,
            [_, Some(true)] => &mut *admit,
            [Some(true), None] => &mut *no_longer_admit,
            [_, None] => &mut *no_longer_refuse,
        };
        write.push((*prefix, change));
    }
    steps
}

impl P4Runtime {
    /// Changes the switch from the sources `before` to the current ones. `None`: the switch has no sources yet.
    pub(super) fn write_sources(&self, before: Option<&DeviceSources>) -> Result<(), SwitchError> {
        let old_and_new = [before, Some(&self.live.sources)];
        let [sources, prefixes] = [entries, ipv6_entries]
            .map(|to_entries| old_and_new.map(|sources| sources.map(to_entries).unwrap_or_default()));
        let [device_end, end] = NEIGHBOR_DISCOVERY_TABLES.map(|(table, action)| (table, action, &prefixes));
        let mut writes: [Vec<Update>; 4] = Default::default();
        for (table, admit, [old, new]) in [(SOURCES, "admit", &sources), device_end, end] {
            for (write, steps) in writes.iter_mut().zip(steps(old, new)) {
                for (prefix, change) in steps {
                    let actions =
                        change.map(|admits| admits.map(|admits| if admits { admit } else { "NoAction" }));
                    write.extend(self.connection.program.change_prefix(table, prefix, actions)?);
                }
            }
        }
        let mut writes = writes.iter().filter(|write| !write.is_empty());
        writes.try_for_each(|write| self.connection.write(write))
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::frame::is_host_address;
    use linewarden_protocol::sources::{OwnAddress, Prefix};
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Whether the table admits a source.
    fn table_admits(entries: &Entries, source: IpAddr) -> bool {
        let source = number(source);
        let is_inside = |(value, bits): &(u128, u32)| {
            let host_bits = ADDRESS_BITS - bits;
            source.checked_shr(host_bits).unwrap_or(0) == value.checked_shr(host_bits).unwrap_or(0)
        };
        let matching = entries.iter().filter(|(prefix, _)| is_inside(prefix));
        matching
            .max_by_key(|((_, bits), _)| *bits)
            .is_some_and(|(_, admits)| *admits)
    }

    fn sources(prefixes: &[&str], local: &[&str]) -> DeviceSources {
        let prefixes: Vec<Prefix> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        let local: Vec<IpAddr> = local.iter().map(|text| text.parse().unwrap()).collect();
        let other_addresses = ["10.66.0.9", "10.66.1.0", "fd66::9", "192.0.2.1"];
        let other_addresses = other_addresses.map(|text| OwnAddress::host(text.parse().unwrap()));
        DeviceSources::new(&prefixes, &local, &other_addresses)
    }

    /// The gateway gets its first address in a further subnet and loses another subnet; subnets become wider and
    /// narrower.
    #[test]
    fn no_write_admits_sources_outside_both_sets() {
        const SEED: u64 = 10;
        println!("seed {SEED}");
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let sets = [
            sources(&["10.67.0.0/24"], &["10.67.0.254"]),
            sources(
                &["10.66.0.0/16", "10.67.0.0/24", "fd66::/64"],
                &["10.66.0.254", "fd66::fe"],
            ),
            sources(&["10.64.0.0/13", "10.66.0.0/24"], &["10.66.1.1"]),
            sources(&["0.0.0.0/0", "::/0"], &["10.66.0.10", "127.0.0.1"]),
            sources(&["127.0.0.0/8", "::1/128"], &["127.0.0.1", "::1"]),
        ];
        let probes = [
            "10.66.0.9",
            "10.66.0.10",
            "10.66.0.254",
            "10.66.1.0",
            "10.66.1.1",
            "10.67.0.254",
            "10.67.0.1",
            "10.68.0.1",
            "127.0.0.1",
            "127.0.0.2",
            "fd66::9",
            "fd66::fe",
            "fd66::1",
            "::1",
            "8.8.8.8",
            "192.0.2.1",
        ];
        let probes = probes.map(|text| text.parse::<IpAddr>().unwrap());
        let tables = sets
            .iter()
            .map(entries)
            .chain([Entries::new()])
            .collect::<Vec<_>>();
        for (old, new) in tables
            .iter()
            .flat_map(|old| tables.iter().map(move |new| (old, new)))
        {
            let mut table = old.clone();
            for mut write in steps(old, new) {
                while !write.is_empty() {
                    let (prefix, [before, after]) = write.swap_remove(rng.random_range(..write.len()));
                    assert_eq!(table.get(&prefix).copied(), before);
                    match after {
                        Some(admits) => table.insert(prefix, admits),
                        None => table.remove(&prefix),
                    };
                    for source in probes.into_iter().filter(|source| table_admits(&table, *source)) {
                        assert!(table_admits(old, source) || table_admits(new, source), "{source}");
                    }
                }
            }
            assert_eq!(table, *new);
        }
    }

    #[test]
    fn the_longest_prefix_decides_as_the_protocol_does() {
        const SEED: u64 = 36;
        println!("seed {SEED}");
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let link = ["10.66.0.254", "fd66::fe"];
        let sets = [
            sources(&["10.66.0.0/16", "fd66::/64"], &link),
            sources(&["0.0.0.0/0", "::/0"], &link),
            sources(&["::/0"], &link),
            sources(&["126.0.0.0/7", "127.1.0.0/16", "::/64", "::/16"], &link),
            sources(&["127.0.0.0/8", "::1/128", "::/80"], &["127.0.0.1", "::1"]),
            sources(&["0.0.0.0/0", "::/0"], &["0.0.0.0", "::"]),
            sources(
                &["10.66.0.0/16", "10.66.0.0/24", "10.66.0.9/32", "10.66.1.0/24"],
                &link,
            ),
            sources(
                &["::ffff:10.0.0.0/104", "fe80::/10", "ff00::/8", "224.0.0.0/3"],
                &link,
            ),
        ];
        let many: Vec<IpAddr> = (0..65).map(|n| [10, 66, 2, n].into()).collect();
        let prefixes = ["10.66.0.0/16", "fd66::/64"].map(|text| text.parse().unwrap());
        let crowded = DeviceSources::new(&prefixes, &many, &[]);
        let edges = [
            "10.66.0.9",
            "10.66.0.10",
            "10.66.0.255",
            "10.66.1.0",
            "10.66.255.255",
            "10.66.0.254",
            "fd66::9",
            "127.0.0.1",
            "127.1.0.9",
            "126.9.9.9",
            "::1",
            "::2",
            "fe80::1",
            "ff02::1",
            "255.255.255.255",
            "192.0.2.1",
            "8.8.8.8",
            "1::",
        ];
        let edges = edges.map(|text| text.parse::<IpAddr>().unwrap());
        for sources in sets.iter().chain([&crowded]) {
            let entries = entries(sources);
            let random: Vec<IpAddr> = (0..500)
                .flat_map(|_| {
                    let bits: u128 = rng.random();
                    [
                        IpAddr::V4((bits as u32).into()),
                        IpAddr::V6((bits >> (bits % 128)).into()),
                    ]
                })
                .collect();
            for source in edges
                .iter()
                .chain(&random)
                .filter(|source| is_host_address(**source))
            {
                let admits = sources.admits(*source);
                assert_eq!(
                    table_admits(&entries, *source),
                    admits,
                    "{source}, {:?}",
                    sources.prefixes()
                );
            }
        }
    }
}
