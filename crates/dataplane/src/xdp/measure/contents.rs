//! The content of maps that are configuration.
//!
//! Content that packets, devices or time change is excluded ([`EXCLUSIONS`]).

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;

use libbpf_rs::{Map, MapCore as _, MapFlags};
use linewarden_evidence::encoding::BpfMapEntry;
use linewarden_protocol::frame::Mac;
use linewarden_protocol::sources::DeviceSources;

use crate::error::DataPlaneError;
use crate::ethtool;
use crate::layout::{Control, LiveCells, PORTS, Port, ProgramConfig, SourceBank};
use crate::store::admission;

/// State and processing that the entries do not cover.
pub(super) const EXCLUSIONS: [&str; 7] = [
    "packets in process",
    "lines, sessions, rows and windows of devices, which the packet path writes; enrolled devices; keys and rounds of provers",
    "counter values, and waiting events and messages",
    "the fresh values, the hash seed of this start, and when the session lifetime was changed",
    "the state in in-band evidence, its tag inputs, and the packet counts",
    "IP and MAC addresses of this machine, and the subnets of its interfaces if device_prefixes is not set",
    "processing of a frame by the kernel outside eBPF programs and traffic control filters: routes, other filters, drivers",
];

/// Size of a piece of the program's constants.
const PIECE_BYTES: usize = 64;

/// The entries of a map that is configuration; empty for a map that is state. `programs` maps program ids to names.
pub(super) fn entries_of(
    map: &Map<'_>,
    name: &str,
    programs: &mut dyn FnMut(u32) -> Result<String, DataPlaneError>,
) -> Result<Vec<BpfMapEntry>, DataPlaneError> {
    let entry = |key: &[u8], value: Vec<u8>| entry(name, key, value);
    let first = || first(map, name);
    Ok(match name {
        // In pieces, so that a difference shows its location.
        ".rodata" => {
            let (_, mut value) = first()?;
            let seed = offset_of!(ProgramConfig, hash_seed);
            zero(&mut value, seed..seed + size_of::<[u64; 2]>());
            let offsets = (0u32..).step_by(PIECE_BYTES);
            let pieces = offsets.zip(value.chunks(PIECE_BYTES));
            pieces
                .map(|(offset, piece)| entry(&offset.to_be_bytes(), piece.to_vec()))
                .collect()
        }
        ".bss" => {
            let (key, value) = first()?;
            vec![entry(&key, value)]
        }
        "programs" | "kept_programs" => {
            let mut entries = Vec::new();
            for slot in 0..map.max_entries() {
                if let Some(value) = read(map, name, &slot.to_ne_bytes())? {
                    let id = value.first_chunk().map_or(0, |id| u32::from_ne_bytes(*id));
                    entries.push(entry(&slot.to_be_bytes(), programs(id)?.into_bytes()));
                }
            }
            entries
        }
        "forward" => {
            let mut entries = Vec::new();
            for key in map.keys() {
                let ifindex = key.first_chunk().map_or(0, |index| u32::from_ne_bytes(*index));
                let value = read(map, name, &key)?.unwrap_or_default();
                // By interface name, because the index changes across reboots.
                let value = value.first_chunk().map_or_else(Vec::new, |target| {
                    interface_name(u32::from_ne_bytes(*target)).into_bytes()
                });
                entries.push(entry(interface_name(ifindex).as_bytes(), value));
            }
            entries
        }
        _ => Vec::new(),
    })
}

/// The entries of the map `control`: the settings, the sources of devices, and the interfaces on the devices' side.
/// A value that depends on the machine's addresses is omitted if it equals the value that this process wrote most
/// recently: `sources`, and `macs` by interface.
pub(super) fn control_entries(
    map: &Map<'_>,
    sources: &DeviceSources,
    macs: &BTreeMap<u32, Vec<Mac>>,
) -> Result<Vec<BpfMapEntry>, DataPlaneError> {
    let name = "control";
    let (key, value) = first(map, name)?;
    let expected = admission::source_bytes(sources)
        .map_err(|error| DataPlaneError::kernel(format!("reading map {name}"), error))?;
    let actual = sources_in(&value);
    let content = if actual == expected {
        prefixes(sources).into_bytes()
    } else {
        actual
    };
    let mut entries = vec![
        entry(name, &key, settings(&value)),
        entry(name, b"device sources", content),
    ];
    entries.extend(port_macs(&value).into_iter().map(|(ifindex, actual)| {
        let expected = macs.get(&ifindex).map(|macs| admission::mac_words(macs));
        let expected = expected.map(|words| words.map(u64::to_ne_bytes).concat());
        let content = if expected.as_ref() == Some(&actual) {
            Vec::new()
        } else {
            actual
        };
        entry(name, interface_name(ifindex).as_bytes(), content)
    }));
    Ok(entries)
}

fn entry(map: &str, key: &[u8], value: Vec<u8>) -> BpfMapEntry {
    BpfMapEntry {
        map: map.to_owned(),
        key: key.to_vec(),
        value,
    }
}

/// Key and value of the first entry of an array.
fn first(map: &Map<'_>, name: &str) -> Result<(Vec<u8>, Vec<u8>), DataPlaneError> {
    let key = vec![0; map.key_size() as usize];
    let value = read(map, name, &key)?.unwrap_or_default();
    Ok((key, value))
}

/// The name of an interface, which is the same after a reboot.
pub(super) fn interface_name(ifindex: u32) -> String {
    ethtool::name_of(ifindex).unwrap_or_else(|| format!("interface {ifindex}"))
}

fn read(map: &Map<'_>, name: &str, key: &[u8]) -> Result<Option<Vec<u8>>, DataPlaneError> {
    map.lookup(key, MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel(format!("reading map {name}"), error))
}

fn zero(bytes: &mut [u8], range: Range<usize>) {
    if let Some(bytes) = bytes.get_mut(range) {
        bytes.fill(0);
    }
}

/// The settings in `struct lw_control`, without the time of the last change of the session lifetime.
fn settings(control: &[u8]) -> Vec<u8> {
    let live_offset = offset_of!(Control, live);
    let settings = control.get(live_offset..live_offset + size_of::<LiveCells>());
    let mut settings = settings.unwrap_or_default().to_vec();
    let offset = offset_of!(LiveCells, session_lifetime_from_s);
    zero(&mut settings, offset..offset + size_of::<u32>());
    settings
}

/// The configured sources of devices, as text.
fn prefixes(sources: &DeviceSources) -> String {
    if sources.follows_interfaces() {
        return "subnets of the interfaces".to_owned();
    }
    let mut prefixes: Vec<String> = sources.prefixes().iter().map(ToString::to_string).collect();
    prefixes.sort_unstable();
    prefixes.join(" ")
}

/// The bytes of the active sources of devices in `struct lw_control`, in the format of [`admission::source_bytes`].
fn sources_in(control: &[u8]) -> Vec<u8> {
    let offset = offset_of!(Control, source_bank);
    let bank = control.get(offset).map_or(0, |byte| usize::from(byte & 1));
    let offset = offset_of!(Control, sources) + bank * size_of::<SourceBank>();
    let bank = control.get(offset..offset + size_of::<SourceBank>());
    let offset = offset_of!(Control, ip4_prefix);
    let inline_ip4 = control.get(offset..offset + size_of::<[u64; 2]>());
    [bank, inline_ip4].map(Option::unwrap_or_default).concat()
}

/// The indices of the interfaces on the devices' side, and their MAC addresses.
fn port_macs(control: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let offset = offset_of!(Control, port);
    let ports = control
        .get(offset..offset + size_of::<[Port; PORTS]>())
        .unwrap_or_default();
    let macs_by_port = ports.chunks_exact(size_of::<Port>()).filter_map(|port| {
        let (number, macs) = port.split_first_chunk()?;
        let ifindex = u32::try_from(u64::from_ne_bytes(*number)).ok()?;
        (ifindex != 0).then(|| (ifindex, macs.to_vec()))
    });
    macs_by_port.collect()
}
