//! Encodings: one to one, strict, and robust for arbitrary bytes.

use linewarden_evidence::encoding::{
    Action, ActionRef, Bits, DecodeProblem, DefaultAction, Entry, KeyField, Match, MatchError, TableEntry,
};
use proptest::prelude::*;

use crate::common::{config, entry};

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn encoding_and_decoding_are_inverse(entry in entry()) {
        let encoded = entry.encode();
        prop_assert_eq!(Entry::decode(&encoded), Ok(entry.clone()));
        prop_assert_eq!(entry.encode_parts().to_bytes(), encoded);
        // The text is one line, whatever the names contain.
        let output = format!("{} {} {}", entry.object(), entry.entry_name(), entry.content_text());
        prop_assert!(!output.chars().any(char::is_control), "{}", output);
    }

    #[test]
    fn different_entries_are_written_differently(a in entry(), b in entry()) {
        prop_assert_eq!(a == b, a.encode() == b.encode());
        let (a, b) = (a.encode_parts(), b.encode_parts());
        // Different parts have different concatenations.
        prop_assert_eq!(a == b, a.to_bytes() == b.to_bytes());
    }

    #[test]
    fn edited_bytes_are_refused_or_encode_another_entry(
        entry in entry(),
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let encoded = entry.encode();
        let mut edited = encoded.clone();
        edited[at.index(encoded.len())] = byte;
        if let Ok(read) = Entry::decode(&edited) {
            prop_assert_eq!(read.encode(), edited);
        }
        prop_assert!(Entry::decode(&encoded[..cut.index(encoded.len())]).is_err());
        let longer = [&encoded[..], &[byte]].concat();
        prop_assert_eq!(Entry::decode(&longer).unwrap_err().problem, DecodeProblem::TrailingBytes);
    }

    #[test]
    fn invented_bytes_are_refused_or_are_canonical(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..18) {
        let random_entry = [&[1, kind][..], &bytes].concat();
        if let Ok(read) = Entry::decode(&random_entry) {
            prop_assert_eq!(read.encode(), random_entry);
        }
    }
}

fn lpm(value: u64, prefix: u32) -> Match {
    Match::lpm(Bits::from_u64(32, value).unwrap(), prefix).unwrap()
}

fn route(matches: Match) -> Entry {
    let action = Action {
        name: "forward".to_owned(),
        data: vec![Bits::from_u64(9, 3).unwrap()],
    };
    TableEntry {
        table: "ingress.ipv4".to_owned(),
        key: vec![KeyField {
            name: "hdr.ipv4.dst".to_owned(),
            matches,
        }],
        priority: 0,
        action: ActionRef::Action(action),
        idle_timeout_ns: 0,
    }
    .into()
}

#[test]
fn entry_encoding_follows_the_specification() {
    let expected = [
        &b"\x01\x02"[..],
        b"\0\0\0\x0cingress.ipv4",
        b"\0\0\0\0",
        b"\0\0\0\x01\0\0\0\x0chdr.ipv4.dst\x02\0\0\0\x20\x0a\0\0\0\0\0\0\x08",
        b"\x01\0\0\0\x07forward\0\0\0\x01\0\0\0\x09\0\x03",
        b"\0\0\0\0\0\0\0\0",
    ]
    .concat();
    let entry = route(lpm(0x0a00_0000, 8));
    assert_eq!(entry.encode(), expected);
    assert_eq!(entry.object().to_string(), "table ingress.ipv4");
    assert_eq!(entry.entry_name(), "entry hdr.ipv4.dst=0xa000000/8");
    assert_eq!(entry.content_text(), "forward(0x3)");
}

#[test]
fn insignificant_bits_are_written_as_zeros() {
    assert_eq!(
        route(lpm(0x0a00_0000, 8)).encode(),
        route(lpm(0x0aff_ffff, 8)).encode()
    );
    assert_ne!(
        route(lpm(0x0a00_0000, 8)).encode(),
        route(lpm(0x0a00_0000, 9)).encode()
    );
    let mut other = route(lpm(0x0a00_0000, 8)).encode();
    let at = other.windows(4).position(|bytes| bytes == [10, 0, 0, 0]).unwrap();
    other[at + 3] = 1;
    assert_eq!(
        Entry::decode(&other).unwrap_err().problem,
        DecodeProblem::NotCanonical
    );
    let bits = |width, value| Bits::from_u64(width, value).unwrap();
    assert_eq!(
        Match::ternary(bits(8, 0xff), bits(8, 0x0f)),
        Match::ternary(bits(8, 0x3f), bits(8, 0x0f))
    );
    assert_eq!(
        Match::ternary(bits(8, 1), bits(9, 1)),
        Err(MatchError::WidthMismatch(8, 9))
    );
    assert_eq!(Match::range(bits(8, 2), bits(8, 1)), Err(MatchError::EmptyRange));
    assert_eq!(
        Match::lpm(bits(8, 2), 9),
        Err(MatchError::PrefixTooLong {
            prefix_bits: 9,
            width: 8
        })
    );
}

/// Encodings contain types, widths, counts and lengths. Otherwise different values would have the same encoding.
#[test]
fn similar_entries_have_different_encodings() {
    let bits = |width, value| Bits::from_u64(width, value).unwrap();
    let default_action_with = |data: Vec<Bits>| {
        let action = Action {
            name: "a".to_owned(),
            data,
        };
        Entry::from(DefaultAction {
            table: "t".to_owned(),
            is_const: false,
            action: Some(ActionRef::Action(action)),
        })
        .encode()
    };
    assert_ne!(
        default_action_with(vec![bits(16, 0x0102), bits(8, 3)]),
        default_action_with(vec![bits(8, 1), bits(16, 0x0203)])
    );
    assert_ne!(
        default_action_with(vec![bits(8, 1)]),
        default_action_with(vec![bits(16, 1)])
    );
    let exact = route(Match::exact(bits(32, 5))).encode();
    for other in [
        lpm(5, 32),
        Match::ternary(bits(32, 5), bits(32, u64::from(u32::MAX))).unwrap(),
        Match::range(bits(32, 5), bits(32, 5)).unwrap(),
        Match::optional(Some(bits(32, 5))),
    ] {
        assert_ne!(route(other).encode(), exact);
    }
}
