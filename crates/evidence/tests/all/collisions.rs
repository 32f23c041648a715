//! Collisions and blind spots of the published attesting switch; none of them exists in this crate.

use linewarden_evidence::encoding::*;
use linewarden_evidence::state::{Digests, DirtyCells, MeasuredState, PutOutcome, Stability, program_digest};
use linewarden_evidence::{BootCount, SwitchId};

fn measured_state() -> MeasuredState {
    MeasuredState::new(SwitchId(1), BootCount(1), program_digest(b"program"))
}

fn action(name: &str, data: &[(u32, u64)]) -> Action {
    let bits = |&(width, value): &(u32, u64)| Bits::from_u64(width, value).unwrap();
    Action {
        name: name.to_owned(),
        data: data.iter().map(bits).collect(),
    }
}

fn route(address: u64, port: u64) -> Entry {
    let matches = Match::lpm(Bits::from_u64(32, address).unwrap(), 24).unwrap();
    TableEntry {
        table: "ipv4".to_owned(),
        key: vec![KeyField {
            name: "dst".to_owned(),
            matches,
        }],
        priority: 0,
        action: ActionRef::Action(action("forward", &[(9, port)])),
        idle_timeout_ns: 0,
    }
    .into()
}

/// The digests with these arrays: names, cell widths in bits, and cells.
fn digests_of_arrays(arrays: &[(&str, u32, &[u64])]) -> Digests {
    let mut state = measured_state();
    for (name, width, cells) in arrays {
        let size = u32::try_from(cells.len()).unwrap();
        let id = state
            .declare_array(name, *width, size, Stability::Static)
            .unwrap();
        let mut dirty = DirtyCells::new(*width, size);
        (0..size).for_each(|index| dirty.mark_u64(index, 0));
        let read = |index: u32, out: &mut [u8]| {
            let bytes = cells[index as usize].to_be_bytes();
            out.copy_from_slice(&bytes[8 - out.len()..]);
        };
        state.fold(id, &mut dirty, read).unwrap();
    }
    state.snapshot().digests
}

fn digests_of_entries(entries: &[Entry]) -> Digests {
    let mut state = measured_state();
    for entry in entries {
        state.put(entry).unwrap();
    }
    state.snapshot().digests
}

#[test]
fn two_arrays_with_their_contents_swapped_differ() {
    let (first, second): (&[u64], &[u64]) = (&[1, 2], &[3, 4]);
    assert_ne!(
        digests_of_arrays(&[("a", 16, first), ("b", 16, second)]),
        digests_of_arrays(&[("a", 16, second), ("b", 16, first)])
    );
    // The order of declarations has no effect.
    assert_eq!(
        digests_of_arrays(&[("a", 16, first), ("b", 16, second)]),
        digests_of_arrays(&[("b", 16, second), ("a", 16, first)])
    );
}

#[test]
fn cells_with_other_boundaries_differ() {
    assert_ne!(
        digests_of_arrays(&[("a", 16, &[0x0102, 0x03])]),
        digests_of_arrays(&[("a", 16, &[0x01, 0x0203])])
    );
    assert_ne!(
        digests_of_arrays(&[("a", 8, &[1])]),
        digests_of_arrays(&[("a", 16, &[1])])
    );
    assert_ne!(
        digests_of_arrays(&[("a", 8, &[1, 0])]),
        digests_of_arrays(&[("a", 8, &[0, 1])])
    );
    // Names are separated from other names and from numbers.
    assert_ne!(
        digests_of_arrays(&[("a", 8, &[1])]),
        digests_of_arrays(&[("a\0\0\0\0", 8, &[1])])
    );
}

#[test]
fn the_order_of_insertion_does_not_change_the_digest() {
    let routes: Vec<Entry> = (0u64..50).map(|n| route(n << 8, n % 8)).collect();
    let mut reversed = routes.clone();
    reversed.reverse();
    assert_eq!(digests_of_entries(&routes), digests_of_entries(&reversed));
    let mut missing = routes.clone();
    missing.pop();
    assert_ne!(digests_of_entries(&routes), digests_of_entries(&missing));
}

#[test]
fn keys_and_action_names_change_the_digest() {
    let base = digests_of_entries(&[route(0x100, 1)]);
    assert_ne!(base, digests_of_entries(&[route(0x200, 1)]));
    assert_ne!(base, digests_of_entries(&[route(0x100, 2)]));
    let Entry::TableEntry(mut renamed) = route(0x100, 1) else {
        unreachable!()
    };
    renamed.action = ActionRef::Action(action("mirror", &[(9, 1)]));
    assert_ne!(base, digests_of_entries(&[renamed.clone().into()]));
    renamed.action = ActionRef::Action(action("forward", &[(9, 1)]));
    renamed.priority = 1;
    assert_ne!(base, digests_of_entries(&[renamed.clone().into()]));
    renamed.priority = 0;
    renamed.table = "ipv6".to_owned();
    assert_ne!(base, digests_of_entries(&[renamed.into()]));
}

#[test]
fn a_register_written_by_a_packet_changes_the_digest() {
    let mut state = measured_state();
    let id = state
        .declare_array("state", 8, 65_536, Stability::Static)
        .unwrap();
    let before = state.snapshot();
    let mut dirty = DirtyCells::new(8, 65_536);
    dirty.mark(65_535, &[0]);
    state.fold(id, &mut dirty, |_, out| out.fill(1)).unwrap();
    let after = state.snapshot();
    assert_ne!(before.digests.registers, after.digests.registers);
    assert_eq!(before.digests.tables, after.digests.tables);
    assert!(after.sequence > before.sequence);
}

#[test]
fn a_default_action_changes_the_digest_of_an_empty_table() {
    let default = |name: &str, is_const| -> Entry {
        DefaultAction {
            table: "acl".to_owned(),
            is_const,
            action: Some(ActionRef::Action(action(name, &[]))),
        }
        .into()
    };
    let base = digests_of_entries(&[default("drop", false)]);
    assert_ne!(base, digests_of_entries(&[default("pass", false)]));
    assert_ne!(base, digests_of_entries(&[default("drop", true)]));
    assert_ne!(base, digests_of_entries(&[]));
    // A second default action replaces the first.
    assert_eq!(
        base,
        digests_of_entries(&[default("pass", false), default("drop", false)])
    );
}

#[test]
fn elements_that_the_published_switch_misses_change_the_digest() {
    let name = || "n".to_owned();
    let replicas = |port| Replicas::from([(Replica { port, instance: 0 }, 1)]);
    let bits = |value| Bits::from_u64(16, value).unwrap();
    let pairs: [[Entry; 2]; 10] = [
        [1, 2].map(|port| {
            ProfileMember {
                profile: name(),
                member: 1,
                action: action("forward", &[(9, port)]),
            }
            .into()
        }),
        [1, 2].map(|weight| {
            let member = GroupMember {
                weight,
                watch_port: Vec::new(),
            };
            ProfileGroup {
                profile: name(),
                group: 1,
                size_max: 0,
                members: [(1, member)].into(),
            }
            .into()
        }),
        [1, 2].map(|port| {
            MulticastGroup {
                group: 1,
                replicas: replicas(port),
            }
            .into()
        }),
        [1, 2].map(|port| {
            CloneSession {
                session: 1,
                port: Some(port),
                multicast_group: None,
                replicas: Replicas::new(),
                class_of_service: 0,
                truncate_bytes: 0,
            }
            .into()
        }),
        [1, 2].map(|value| {
            let matches = Match::exact(bits(value));
            ValueSetMember {
                set: name(),
                key: vec![KeyField {
                    name: name(),
                    matches,
                }],
            }
            .into()
        }),
        [1, 2].map(|rate_per_s| {
            MeterConfig {
                meter: name(),
                cell: MeterCell::Index(0),
                unit: Unit::Packets,
                rates: vec![MeterRate { rate_per_s, burst: 1 }],
            }
            .into()
        }),
        [Unit::Bytes, Unit::Packets].map(|unit| {
            CounterConfig {
                counter: name(),
                unit,
                size: 1,
            }
            .into()
        }),
        [0x1021, 0x8005].map(|polynomial| {
            Calculation {
                name: name(),
                algorithm: "crc16_custom".to_owned(),
                parameters: [("polynomial".to_owned(), bits(polynomial))].into(),
            }
            .into()
        }),
        [64, 128].map(|value| {
            PortSetting {
                port: 1,
                queue: Some(0),
                name: "depth_packets".to_owned(),
                value,
            }
            .into()
        }),
        [1, 2].map(|value| {
            BpfMapEntry {
                map: name(),
                key: vec![0; 4],
                value: vec![value],
            }
            .into()
        }),
    ];
    let mut digests = vec![digests_of_entries(&[]).tables];
    for pair in pairs {
        for entry in pair {
            digests.push(digests_of_entries(&[entry]).tables);
        }
    }
    let count = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), count);
}

#[test]
fn an_entry_inserted_many_times_counts_once() {
    let mut state = measured_state();
    let entry = route(0x100, 1);
    assert_eq!(state.put(&entry).unwrap(), PutOutcome::Added);
    let inserted_once = state.snapshot();
    for _ in 1..65_536 {
        assert_eq!(state.put(&entry).unwrap(), PutOutcome::Unchanged);
    }
    assert_eq!(state.snapshot(), inserted_once);
    assert_ne!(inserted_once.digests, digests_of_entries(&[]));
    assert!(state.remove(&entry).unwrap());
    assert_eq!(state.snapshot().digests, digests_of_entries(&[]));
    assert!(!state.remove(&entry).unwrap());
}

#[test]
fn tables_of_a_replaced_program_are_removed() {
    let mut state = measured_state();
    state.put(&route(0x100, 1)).unwrap();
    state = state.successor(program_digest(b"program"));
    assert_eq!(state.snapshot().digests, digests_of_entries(&[]));
}

#[test]
fn unmeasured_entries_in_memory_are_reported_by_entry() {
    let mut state = measured_state();
    for n in 0..4 {
        state.put(&route(n << 8, 1)).unwrap();
    }
    let object = route(0, 1).object();
    let measured_entries: Vec<Entry> = (0..4).map(|n| route(n << 8, 1)).collect();
    assert!(state.rescan_object(&object, measured_entries.clone()).is_empty());
    let memory_entries = [
        route(0, 1),
        route(0x100, 2),
        route(0x200, 1),
        route(0x200, 1),
        route(0x900, 5),
    ];
    let reported: Vec<String> = state
        .rescan_object(&object, memory_entries)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        reported,
        [
            "table ipv4, entry dst=0x100/24: measured as forward(0x1), in memory forward(0x2)",
            "table ipv4, entry dst=0x200/24: in memory forward(0x1), not measured",
            "table ipv4, entry dst=0x900/24: in memory forward(0x5), not measured",
            "table ipv4, entry dst=0x300/24: measured as forward(0x1), not in memory",
        ]
    );
}
