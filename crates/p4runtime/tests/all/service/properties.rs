//! Random values survive encoding and decoding; digests match a simple model.

use std::collections::{BTreeMap, BTreeSet};

use crate::service::support::info;
use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::digest::Digests;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::ids::DigestId;
use linewarden_p4runtime::p4info::{Format, HeaderType, MatchKind, Type};
use linewarden_p4runtime::proto::v1;
use linewarden_p4runtime::translate::Translator;
use proptest::prelude::*;
use std::sync::Arc;
use v1::field_match::FieldMatchType;

fn bits(width: u32) -> BoxedStrategy<Bits> {
    let bytes = prop::collection::vec(any::<u8>(), width.div_ceil(8) as usize);
    let small = (0..3_u128).prop_map(move |value| Bits::from_u128(width, value).unwrap_or(Bits::zero(width)));
    let random = bytes.prop_map(move |mut bytes| {
        if !width.is_multiple_of(8) {
            bytes[0] &= 0xff >> (8 - width % 8);
        }
        Bits::parse(width, &bytes).unwrap()
    });
    prop_oneof![1 => small, 3 => random].boxed()
}

fn masked(value: &Bits, mask: &Bits) -> Bits {
    let bytes: Vec<u8> = value
        .as_bytes()
        .iter()
        .zip(mask.as_bytes())
        .map(|(value, mask)| value & mask)
        .collect();
    Bits::parse(value.width(), &bytes).unwrap()
}

fn field(kind: MatchKind, width: u32) -> BoxedStrategy<FieldMatch> {
    match kind {
        MatchKind::Exact => bits(width).prop_map(FieldMatch::Exact).boxed(),
        MatchKind::Lpm => (bits(width), 0..=width)
            .prop_map(move |(value, prefix_bits)| FieldMatch::Lpm {
                value: masked(&value, &Bits::prefix(width, prefix_bits)),
                prefix_bits,
            })
            .boxed(),
        MatchKind::Ternary => (bits(width), bits(width))
            .prop_map(|(value, mask)| FieldMatch::Ternary {
                value: masked(&value, &mask),
                mask,
            })
            .boxed(),
        MatchKind::Range => (bits(width), bits(width))
            .prop_map(|(a, b)| FieldMatch::Range {
                low: a.clone().min(b.clone()),
                high: a.max(b),
            })
            .boxed(),
        MatchKind::Optional => prop::option::of(bits(width))
            .prop_map(FieldMatch::Optional)
            .boxed(),
        MatchKind::Other => unreachable!("the test program has none"),
    }
}

/// Key of an entry in a writable table of the test program.
fn key() -> impl Strategy<Value = EntryKey> {
    let info = info();
    let tables: Vec<_> = info
        .tables()
        .iter()
        .filter(|table| !table.fields.is_empty() && !table.is_const)
        .cloned()
        .collect();
    prop::sample::select(tables).prop_flat_map(|table| {
        let fields: Vec<_> = table
            .fields
            .iter()
            .map(|match_field| match match_field.format {
                Format::Bits(width) => field(match_field.kind, width),
                Format::Unwritable => unreachable!("the test program has none"),
            })
            .collect();
        let priority = if table.needs_priority() { 1..i32::MAX } else { 0..1 };
        (fields, priority).prop_map(move |(fields, priority)| EntryKey {
            table: table.id,
            fields,
            priority,
        })
    })
}

/// All byte strings in the matches of a message.
fn strings(entry: &mut v1::TableEntry) -> Vec<&mut Vec<u8>> {
    entry
        .r#match
        .iter_mut()
        .flat_map(
            |field_match| match field_match.field_match_type.as_mut().unwrap() {
                FieldMatchType::Exact(exact) => vec![&mut exact.value],
                FieldMatchType::Lpm(lpm) => vec![&mut lpm.value],
                FieldMatchType::Ternary(ternary) => vec![&mut ternary.value, &mut ternary.mask],
                FieldMatchType::Range(range) => vec![&mut range.low, &mut range.high],
                FieldMatchType::Optional(optional) => vec![&mut optional.value],
                FieldMatchType::Other(_) => Vec::new(),
            },
        )
        .collect()
}

/// A type with at most `depth` levels of structs and tuples, and a value of this type.
fn value(depth: u32) -> BoxedStrategy<(Type, Data)> {
    let leaf = prop_oneof![
        (1_u32..100)
            .prop_flat_map(|width| bits(width).prop_map(move |bits| (Type::Bits(width), Data::Bits(bits)))),
        (1_u32..100).prop_flat_map(
            |width| bits(width).prop_map(move |bits| (Type::Signed(width), Data::Signed(bits)))
        ),
        (1_u32..100).prop_flat_map(
            |width| bits(width).prop_map(move |bits| (Type::Varbit(width + 9), Data::Varbit(bits)))
        ),
        (1_u32..40)
            .prop_flat_map(|width| bits(width)
                .prop_map(move |bits| (Type::SerializableEnum(width), Data::EnumValue(bits)))),
        any::<bool>().prop_map(|value| (Type::Bool, Data::Bool(value))),
        (0..2_usize).prop_map(|index| {
            let names = vec!["a".to_owned(), "b".to_owned()];
            (Type::Enum(names.clone()), Data::Enum(names[index].clone()))
        }),
        (1_u32..70, 1_u32..70, any::<bool>()).prop_flat_map(|(first, second, valid)| {
            (bits(first), bits(second)).prop_map(move |(a, b)| {
                let fields = vec![
                    ("x".to_owned(), Type::Bits(first)),
                    ("y".to_owned(), Type::Signed(second)),
                ];
                let header = Arc::new(HeaderType { fields });
                let data = valid.then(|| vec![Data::Bits(a), Data::Signed(b)]);
                (Type::Stack(header, 2), Data::Stack(vec![data, None]))
            })
        }),
        (1_u32..70, prop::option::of(0..2_usize)).prop_flat_map(|(width, valid)| {
            bits(width).prop_map(move |a| {
                let header = Arc::new(HeaderType {
                    fields: vec![("x".to_owned(), Type::Bits(width))],
                });
                let union = Arc::new(vec![
                    ("one".to_owned(), header.clone()),
                    ("two".to_owned(), header),
                ]);
                (
                    Type::Union(union),
                    Data::Union(valid.map(|index| (index, vec![Data::Bits(a)]))),
                )
            })
        }),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let members = prop::collection::vec(value(depth - 1), 0..4);
    let nested = (members, any::<bool>()).prop_map(|(members, is_struct)| {
        let (types, data): (Vec<_>, Vec<_>) =
            members.into_iter().map(|(ty, data)| (Arc::new(ty), data)).unzip();
        match is_struct {
            true => (
                Type::Struct(types.into_iter().map(|ty| ("m".to_owned(), ty)).collect()),
                Data::Struct(data),
            ),
            false => (Type::Tuple(types), Data::Tuple(data)),
        }
    });
    prop_oneof![2 => leaf, 1 => nested].boxed()
}

/// Event of the digests of one switch; time advances with each event.
#[derive(Clone, Debug)]
enum Event {
    Message {
        digest: u32,
        message: u8,
    },
    Acknowledge(usize),
    Configure {
        digest: u32,
        config: Option<DigestConfig>,
    },
    Wait,
}

fn event() -> impl Strategy<Value = Event> {
    let config =
        (0..40_u64, 0..4_u32, 0..60_u64).prop_map(|(max_timeout_ns, max_list_size, ack_timeout_ns)| {
            DigestConfig {
                max_timeout_ns,
                max_list_size,
                ack_timeout_ns,
            }
        });
    prop_oneof![
        6 => (0..2_u32, 0..6_u8).prop_map(|(digest, message)| Event::Message { digest, message }),
        2 => (0..4_usize).prop_map(Event::Acknowledge),
        1 => (0..2_u32, prop::option::weighted(0.8, config)).prop_map(|(digest, config)| Event::Configure { digest, config }),
        2 => Just(Event::Wait),
    ]
}

/// Buffered and unacknowledged messages of one digest, as in the specification's pseudocode.
#[derive(Default)]
struct Model {
    config: Option<DigestConfig>,
    buffer: Vec<u8>,
    /// Time of the first message in `buffer`.
    first_ns: u64,
    /// Unacknowledged lists: list id, acknowledgment deadline in nanoseconds, messages.
    cache: Vec<(u64, u64, Vec<u8>)>,
}

impl Model {
    fn contains(&self, message: u8) -> bool {
        self.buffer.contains(&message)
            || self
                .cache
                .iter()
                .any(|(_, _, messages)| messages.contains(&message))
    }
}

fn message(number: u8) -> Data {
    Data::Bits(Bits::from_u128(8, number.into()).unwrap())
}

proptest! {
    #[test]
    fn keys_with_leading_zeros_survive_encoding_and_decoding(key in key(), zeros in 0..20_usize) {
        let info = info();
        let translator = Translator::new(&info);
        let update = Update::TableEntry(Box::new(Change::Delete(key.clone())));
        let mut message = translator.encode_update(&update);
        prop_assert_eq!(translator.decode_update(&message), Ok(update.clone()));
        let Some(v1::entity::Entity::TableEntry(entry)) = message.entity.as_mut().unwrap().entity.as_mut() else { panic!() };
        for string in strings(entry) {
            prop_assert!(string.len() == 1 || string[0] != 0, "not the shortest: {:02x?}", string);
            let padded = [vec![0; zeros], std::mem::take(string)].concat();
            *string = padded;
        }
        entry.r#match.reverse();
        prop_assert_eq!(translator.decode_update(&message), Ok(update));
    }

    #[test]
    fn values_of_any_type_survive_encoding_and_decoding((ty, data) in value(3)) {
        let message = data.encode(&ty);
        prop_assert_eq!(Data::decode(&ty, &message), Ok(data));
    }

    #[test]
    fn values_of_another_type_are_rejected_or_decoded_as_the_requested_type((requested, _) in value(2), (encoded_type, data) in value(2)) {
        if let Ok(decoded) = Data::decode(&requested, &data.encode(&encoded_type)) {
            prop_assert_eq!(Data::decode(&requested, &decoded.encode(&requested)), Ok(decoded));
        }
    }

    #[test]
    fn packet_headers_survive_encoding_and_decoding(egress in bits(9), submit in bits(1), unused in bits(6), payload: Vec<u8>) {
        let info = info();
        let header = info.packet_out().unwrap();
        let values = vec![egress.clone(), submit.clone(), unused.clone()];
        let mut frame = header.pack(&values).unwrap();
        let number = egress.to_u64().unwrap() << 7 | submit.to_u64().unwrap() << 6 | unused.to_u64().unwrap();
        prop_assert_eq!(&frame, &number.to_be_bytes()[6..]);
        frame.extend_from_slice(&payload);
        prop_assert_eq!(header.unpack(&frame), Ok((values, &payload[..])));
        prop_assert!(header.unpack(&frame[..1]).is_err());
    }

    #[test]
    fn digests_agree_with_the_model(events in prop::collection::vec((event(), 0..20_u64), 1..80)) {
        let mut digests = Digests::new();
        let mut models: BTreeMap<u32, Model> = BTreeMap::from([(0, Model::default()), (1, Model::default())]);
        let (mut now_ns, mut list_ids) = (0, Vec::new());
        for (event, pause_ns) in events {
            now_ns += pause_ns;
            let mut sent_lists = digests.take_due_lists(now_ns);
            prop_assert!(digests.next_due_ns().is_none_or(|due| due > now_ns));
            let mut expected = Vec::new();
            for (id, model) in &mut models {
                let Some(config) = model.config else { continue };
                if !model.buffer.is_empty() && model.first_ns + config.max_timeout_ns <= now_ns {
                    expected.push((*id, std::mem::take(&mut model.buffer), config.ack_timeout_ns));
                }
            }
            match event {
                Event::Message { digest, message: number } => {
                    let model = models.get_mut(&digest).unwrap();
                    sent_lists.extend(digests.push(now_ns, DigestId(digest), message(number)));
                    if let Some(config) = model.config {
                        model.cache.retain(|(_, deadline_ns, _)| *deadline_ns > now_ns);
                        let is_in_due_list = expected.iter().any(|(id, list, _)| *id == digest && list.contains(&number));
                        if !model.contains(number) && (!is_in_due_list || config.ack_timeout_ns == 0) {
                            if model.buffer.is_empty() {
                                model.first_ns = now_ns;
                            }
                            model.buffer.push(number);
                            let full = config.max_list_size > 0 && model.buffer.len() >= config.max_list_size as usize;
                            if full || config.max_timeout_ns == 0 {
                                expected.push((digest, std::mem::take(&mut model.buffer), config.ack_timeout_ns));
                            }
                        }
                    }
                }
                Event::Acknowledge(index) => {
                    if let Some((digest, list_id)) = list_ids.iter().rev().nth(index).copied() {
                        digests.acknowledge(DigestId(digest), list_id);
                        models.get_mut(&digest).unwrap().cache.retain(|(id, _, _)| *id != list_id);
                    }
                }
                Event::Configure { digest, config } => {
                    digests.configure(DigestId(digest), config);
                    let model = models.get_mut(&digest).unwrap();
                    match config {
                        None => *model = Model::default(),
                        config => model.config = config,
                    }
                }
                Event::Wait => {}
            }
            let received: Vec<_> = sent_lists.iter().map(|list| (list.id.0, list.data.clone())).collect();
            let expected_data: Vec<_> = expected
                .iter()
                .map(|(id, numbers, _)| (*id, numbers.iter().map(|number| message(*number)).collect::<Vec<_>>()))
                .collect();
            prop_assert_eq!(received, expected_data);
            for (list, (id, numbers, ack_timeout_ns)) in sent_lists.iter().zip(expected) {
                list_ids.push((id, list.list_id));
                let model = models.get_mut(&id).unwrap();
                if model.config.is_some() && ack_timeout_ns > 0 {
                    model.cache.push((list.list_id, now_ns + ack_timeout_ns, numbers));
                }
            }
            let unique_ids: BTreeSet<_> = list_ids.iter().map(|(_, list_id)| list_id).collect();
            prop_assert_eq!(unique_ids.len(), list_ids.len());
        }
    }
}
