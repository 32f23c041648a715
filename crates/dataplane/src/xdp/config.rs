//! The program's constants, the sizes of its maps, and their memory, from a [`Config`].

use std::net::IpAddr;
use std::os::fd::AsFd as _;

use libbpf_rs::{MapCore as _, Object, OpenObject};
use zerocopy::IntoBytes as _;

use crate::config::{Config, Gate};
use crate::error::DataPlaneError;
use crate::layout::{ALWAYS_MAX, EXPECTED_RESPONSES, HOME_WAYS, ProgramConfig, Shared};
use crate::store::provers::ProverRegions;
use crate::store::{Region, Regions, wire_word};
use linewarden_protocol::gateway::ControlAddress;
use linewarden_protocol::verdict::VERDICT_SLOTS;

/// Word index of `handled` in `struct lw_percpu`: after the counters and 17 words.
pub(super) const PERCPU_HANDLED_WORD: usize = VERDICT_SLOTS + 17;

impl ProgramConfig {
    /// The constants for a checked configuration.
    pub(crate) fn of(config: &Config, count_work: bool) -> Self {
        let mut constants = Self {
            hash_seed: config.geometry.hash_seed,
            local6: [[0; 2]; 4],
            dhcp6: [[0; 2]; 4],
            always: [0; ALWAYS_MAX],
            local4: [0; 4],
            dhcp4: [0; 4],
            local4_count: 0,
            local6_count: 0,
            dhcp4_count: 0,
            dhcp6_count: 0,
            always_count: 0,
            gateway_id: config.gateway_id.0,
            slots: config.geometry.slots,
            ring: config.geometry.ring,
            home_mask: config.geometry.homes() - 1,
            index_mask: config.geometry.index_mask(),
            bucket_mask: config.geometry.bucket_mask(),
            filter_mask: config.geometry.filter_mask(),
            provers: config.provers,
            prover_places: config.prover_geometry().places(),
            prover_all: config.prover_geometry().all_places(),
            prover_index_mask: config.prover_geometry().index_buckets() - 1,
            lap_port: config.lap_port.to_be(),
            gate: match config.gate {
                Gate::Off => 0,
                Gate::Bound => 1,
                Gate::Sealed => 2,
            },
            strong_order: u8::from(cfg!(target_arch = "x86_64")),
            count_work: u8::from(count_work),
            stamp: u8::from(config.inband_evidence),
            frags: u8::from(config.fragments),
            pad: [0; 1],
        };
        let local4 = (&mut constants.local4, &mut constants.local4_count);
        push_addresses(
            &config.local,
            local4,
            (&mut constants.local6, &mut constants.local6_count),
        );
        let servers = (&mut constants.dhcp4, &mut constants.dhcp4_count);
        push_addresses(
            &config.dhcp_servers,
            servers,
            (&mut constants.dhcp6, &mut constants.dhcp6_count),
        );
        let addresses = config
            .always_pass
            .iter()
            .flat_map(|protocol| protocol.addresses());
        for address in addresses {
            push(
                &mut constants.always,
                &mut constants.always_count,
                control_key(*address),
            );
        }
        constants
    }
}

/// A list of addresses, and the number of its used entries.
type Addresses<'a, T> = (&'a mut [T; 4], &'a mut u32);

fn push_addresses(addresses: &[IpAddr], v4: Addresses<'_, u32>, v6: Addresses<'_, [u64; 2]>) {
    for ip in addresses {
        match ip {
            IpAddr::V4(ip) => push(v4.0, v4.1, u32::from_ne_bytes(ip.octets())),
            IpAddr::V6(ip) => {
                let halves = linewarden_protocol::keys::halves(&ip.octets()).map(wire_word);
                push(v6.0, v6.1, halves);
            }
        }
    }
}

/// The key in the format of `lw_control_key()`.
fn control_key((mac, ether_type): ControlAddress) -> u64 {
    let [a, b, c, d, e, f] = mac;
    let [high, low] = ether_type.to_be_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, high, low])
}

fn push<T: Copy>(list: &mut [T], count: &mut u32, value: T) {
    // All later entries repeat the value, because the program compares with all entries.
    list.iter_mut()
        .skip(*count as usize)
        .for_each(|entry| *entry = value);
    *count += 1;
}

/// Writes the constants and sets the sizes of all maps of the object.
pub(crate) fn configure(
    object: &mut OpenObject,
    config: &Config,
    count_work: bool,
) -> Result<(), DataPlaneError> {
    let constants = ProgramConfig::of(config, count_work);
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let error = |error| DataPlaneError::kernel(format!("sizing map {name}"), error);
        if name.ends_with(".rodata") {
            map.set_initial_value(constants.as_bytes()).map_err(error)?;
            continue;
        }
        let entries = match name.as_str() {
            "lines" => config.geometry.all_homes(),
            "sessions" | "notes" => config.geometry.slots,
            "down" if config.gate == Gate::Sealed => config.geometry.slots,
            "rows" => config.geometry.row_count().unwrap_or(u32::MAX),
            "device_index" => config.geometry.index_buckets(),
            "enrolled" => config.geometry.filter_blocks(),
            "by_address" | "by_mac" => config.geometry.buckets(),
            "provers" => config.prover_geometry().lines(),
            "waiting" => possible_cpus()?,
            "alternate_keys" => config.prover_geometry().slots * 2,
            "prover_index" => config.prover_geometry().index_buckets(),
            _ => continue,
        };
        map.set_max_entries(entries).map_err(error)?;
    }
    Ok(())
}

/// Maps the arrays of a loaded object.
pub(crate) fn regions(object: &Object, config: &Config) -> Result<Regions, DataPlaneError> {
    let geometry = &config.geometry;
    let rows = geometry.row_count().unwrap_or(u32::MAX);
    Ok(Regions {
        lines: region(object, "lines", geometry.all_homes() * HOME_WAYS as u32)?,
        sessions: region(object, "sessions", geometry.slots)?,
        rows: region(object, "rows", rows)?,
        device_index: region(object, "device_index", geometry.index_buckets())?,
        by_address: region(object, "by_address", geometry.buckets())?,
        by_mac: region(object, "by_mac", geometry.buckets())?,
        enrolled: region(object, "enrolled", geometry.filter_blocks())?,
        expected: region(object, "expected", EXPECTED_RESPONSES)?,
        notes: region(object, "notes", geometry.slots)?,
        control: region(object, "control", 1)?,
    })
}

/// Maps the arrays of the provers.
pub(crate) fn prover_regions(object: &Object, config: &Config) -> Result<ProverRegions, DataPlaneError> {
    let geometry = config.prover_geometry();
    Ok(ProverRegions {
        lines: region(object, "provers", geometry.lines())?,
        alternates: region(object, "alternate_keys", geometry.slots * 2)?,
        index: region(object, "prover_index", geometry.index_buckets())?,
        rounds: region(object, "open_rounds", 1)?,
    })
}

/// Maps one array by name.
pub(crate) fn region<T: Shared>(object: &Object, name: &str, len: u32) -> Result<Region<T>, DataPlaneError> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| DataPlaneError::kernel(format!("map {name}"), "not in the object"))?;
    // An element of the map is one element of the array, or a home with several elements.
    let expected = size_of::<T>();
    if !(map.value_size() as usize).is_multiple_of(expected) {
        let problem = format!("its elements have {} B, expected {expected}", map.value_size());
        return Err(DataPlaneError::kernel(format!("map {name}"), problem));
    }
    Region::of_bpf_array(map.as_fd(), len as usize)
        .map_err(|error| DataPlaneError::kernel(format!("mapping {name} ({len} elements)"), error))
}

/// Number of possible CPUs.
pub(crate) fn possible_cpus() -> Result<u32, DataPlaneError> {
    let cpus = libbpf_rs::num_possible_cpus();
    let cpus = cpus.map_err(|error| DataPlaneError::kernel("counting the CPUs", error))?;
    Ok(u32::try_from(cpus).unwrap_or(u32::MAX))
}
