//! Random entries of every type.

use std::collections::BTreeMap;

use linewarden_evidence::encoding::*;
use proptest::prelude::*;

/// A configuration with this number of cases; no files are written to the source tree.
pub fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Names; most of them are from a short list, so that some names collide.
pub fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("a".to_owned()),
        Just("ingress.t".to_owned()),
        "\\PC{0,6}",
    ]
}

pub fn bits_of(width: u32) -> impl Strategy<Value = Bits> {
    any::<[u8; 12]>().prop_map(move |bytes| {
        let length = width.div_ceil(8) as usize;
        let mut bytes = bytes[..length].to_vec();
        if let Some(first) = bytes.first_mut() {
            *first &= 0xff >> (width.wrapping_neg() & 7);
        }
        Bits::new(width, &bytes).unwrap()
    })
}

pub fn bits() -> impl Strategy<Value = Bits> {
    (0u32..=90).prop_flat_map(bits_of)
}

fn matches() -> impl Strategy<Value = Match> {
    (0u32..=40).prop_flat_map(|width| {
        prop_oneof![
            bits_of(width).prop_map(Match::exact),
            (bits_of(width), 0..=width).prop_map(|(value, prefix)| Match::lpm(value, prefix).unwrap()),
            (bits_of(width), bits_of(width)).prop_map(|(value, mask)| Match::ternary(value, mask).unwrap()),
            (bits_of(width), bits_of(width)).prop_map(|(a, b)| {
                let (low, high) = if a <= b { (a, b) } else { (b, a) };
                Match::range(low, high).unwrap()
            }),
            prop::option::of(bits_of(width)).prop_map(Match::optional),
        ]
    })
}

fn key() -> impl Strategy<Value = Vec<KeyField>> {
    prop::collection::vec(
        (name(), matches()).prop_map(|(name, matches)| KeyField { name, matches }),
        0..3,
    )
}

fn action() -> impl Strategy<Value = Action> {
    (name(), prop::collection::vec(bits(), 0..3)).prop_map(|(name, data)| Action { name, data })
}

fn action_ref() -> impl Strategy<Value = ActionRef> {
    prop_oneof![
        action().prop_map(ActionRef::Action),
        (0u32..3).prop_map(ActionRef::Member),
        (0u32..3).prop_map(ActionRef::Group),
    ]
}

fn replicas() -> impl Strategy<Value = Replicas> {
    let replica = (0u32..4, 0u32..3).prop_map(|(port, instance)| Replica { port, instance });
    prop::collection::btree_map(replica, 1u32..3, 0..4)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..5)
}

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![Just(Unit::Packets), Just(Unit::Bytes), Just(Unit::Both)]
}

/// Numbers; half of them are below 4, so that some numbers collide.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, any::<u32>()]
}

/// Any entry.
pub fn entry() -> BoxedStrategy<Entry> {
    prop_oneof![
        (
            name(),
            number(),
            bits().prop_filter("zero is not written", |bits| !bits.is_zero())
        )
            .prop_map(|(array, index, value)| RegisterCell { array, index, value }.into()),
        (name(), key(), number(), action_ref(), 0u64..2).prop_map(
            |(table, key, priority, action, idle_timeout_ns)| {
                TableEntry {
                    table,
                    key,
                    priority,
                    action,
                    idle_timeout_ns,
                }
                .into()
            }
        ),
        (name(), any::<bool>(), prop::option::of(action_ref())).prop_map(|(table, is_const, action)| {
            DefaultAction {
                table,
                is_const,
                action,
            }
            .into()
        }),
        (name(), number(), action()).prop_map(|(profile, member, action)| ProfileMember {
            profile,
            member,
            action
        }
        .into()),
        (
            name(),
            number(),
            number(),
            prop::collection::btree_map(0u32..4, (0u32..3, bytes()), 0..3)
        )
            .prop_map(|(profile, group, size_max, members)| {
                let members: BTreeMap<_, _> = members
                    .into_iter()
                    .map(|(member, (weight, watch_port))| (member, GroupMember { weight, watch_port }))
                    .collect();
                ProfileGroup {
                    profile,
                    group,
                    size_max,
                    members,
                }
                .into()
            }),
        (number(), replicas()).prop_map(|(group, replicas)| MulticastGroup { group, replicas }.into()),
        (
            number(),
            prop::option::of(0u32..3),
            prop::option::of(0u32..3),
            replicas(),
            number(),
            number()
        )
            .prop_map(
                |(session, port, multicast_group, replicas, class_of_service, truncate_bytes)| {
                    CloneSession {
                        session,
                        port,
                        multicast_group,
                        replicas,
                        class_of_service,
                        truncate_bytes,
                    }
                    .into()
                }
            ),
        (name(), key()).prop_map(|(set, key)| ValueSetMember { set, key }.into()),
        (
            name(),
            prop_oneof![
                any::<u64>().prop_map(MeterCell::Index),
                (key(), number()).prop_map(|(key, priority)| MeterCell::Entry { key, priority }),
            ],
            unit(),
            prop::collection::vec((any::<u64>(), any::<u64>()), 0..3),
        )
            .prop_map(|(meter, cell, unit, rates)| {
                let rates = rates
                    .into_iter()
                    .map(|(rate_per_s, burst)| MeterRate { rate_per_s, burst });
                MeterConfig {
                    meter,
                    cell,
                    unit,
                    rates: rates.collect(),
                }
                .into()
            }),
        (name(), unit(), any::<u64>()).prop_map(|(counter, unit, size)| CounterConfig {
            counter,
            unit,
            size
        }
        .into()),
        (name(), name(), prop::collection::btree_map(name(), bits(), 0..3)).prop_map(
            |(name, algorithm, parameters)| Calculation {
                name,
                algorithm,
                parameters
            }
            .into()
        ),
        (number(), prop::option::of(0u32..3), name(), any::<u64>()).prop_map(|(port, queue, name, value)| {
            PortSetting {
                port,
                queue,
                name,
                value,
            }
            .into()
        }),
        (name(), any::<[u8; 32]>()).prop_map(|(name, instructions)| BpfProgram { name, instructions }.into()),
        (name(), number(), number(), number(), number(), number()).prop_map(
            |(name, map_type, key_bytes, value_bytes, entries_max, flags)| {
                BpfMap {
                    name,
                    map_type,
                    key_bytes,
                    value_bytes,
                    entries_max,
                    flags,
                }
                .into()
            }
        ),
        (name(), bytes(), bytes()).prop_map(|(map, key, value)| BpfMapEntry { map, key, value }.into()),
        (name(), name(), name()).prop_map(|(interface, hook, program)| BpfAttachment {
            interface,
            hook,
            program
        }
        .into()),
    ]
    .boxed()
}
