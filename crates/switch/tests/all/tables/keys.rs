//! Valid and invalid match fields, and their errors.

use super::model::{action, call, table_spec};
use linewarden_switch::tables::{
    ActionId, DefaultPolicy, EntryState, FIELD_MAX_BITS, FieldMatch, HashSeed, KeyError, KeyField, KeySpec,
    MatchKind, MatchType, NewEntry, Priority, Replicated as _, SpecError, Table, TableError, TableOp,
    TableSpec, Target, TargetKind, WILD_KEY_MAX_BYTES,
};
use std::sync::Arc;

fn field(name: &str, kind: MatchKind, bits: u32) -> KeyField {
    KeyField::new(name, kind, bits)
}

fn lpm(value: &[u8], prefix_bits: u32) -> FieldMatch {
    FieldMatch::Lpm {
        value: value.to_vec(),
        prefix_bits,
    }
}

fn ternary(value: &[u8], mask: &[u8]) -> FieldMatch {
    FieldMatch::Ternary {
        value: value.to_vec(),
        mask: mask.to_vec(),
    }
}

fn range(low: &[u8], high: &[u8]) -> FieldMatch {
    FieldMatch::Range {
        low: low.to_vec(),
        high: high.to_vec(),
    }
}

/// Error of an invalid match on one field.
fn match_error(kind: MatchKind, bits: u32, field_match: FieldMatch) -> KeyError {
    let spec = KeySpec::new(vec![field("hdr.f", kind, bits)]).expect("a key");
    spec.key(&[field_match], Priority(1)).expect_err("does not fit")
}

fn table(fields: Vec<KeyField>) -> Table {
    Table::new(
        table_spec(KeySpec::new(fields).expect("a key"), 4),
        &HashSeed::new([1, 2, 3, 4]),
    )
}

fn insert(table: &mut Table, matches: &[FieldMatch], priority: i32, number: u32) -> Result<(), TableError> {
    let key = table.spec().key.key(matches, Priority(priority)).expect("fits");
    table
        .insert(NewEntry {
            key,
            target: action(number),
            state: None,
            constant: false,
        })
        .map(|_| ())
}

fn lookup(table: &Table, key: &[u8]) -> Option<Target> {
    table.lookup(key).map(|entry| entry.target().clone())
}

#[test]
fn fields_select_search_structure() {
    use MatchKind::{Exact, Lpm, Optional, Range, Ternary, Valid};
    for (kinds, expected) in [
        (vec![Exact, Valid], MatchType::Exact),
        (vec![], MatchType::Exact),
        (vec![Exact, Lpm], MatchType::Lpm),
        (vec![Exact, Lpm, Ternary], MatchType::Ternary),
        (vec![Optional], MatchType::Ternary),
        (vec![Ternary, Lpm, Range], MatchType::Range),
    ] {
        let spec = KeySpec::new(kinds.iter().map(|kind| field("f", *kind, 9)).collect()).expect("a key");
        assert_eq!(spec.match_type(), expected, "{kinds:?}");
        assert_eq!(
            spec.has_priority(),
            matches!(expected, MatchType::Ternary | MatchType::Range)
        );
    }
}

#[test]
fn invalid_key_fields_are_rejected() {
    use MatchKind::{Exact, Lpm, Range, Ternary};
    let two_lpm_fields = vec![field("a", Lpm, 8), field("b", Lpm, 8)];
    assert_eq!(
        KeySpec::new(two_lpm_fields),
        Err(SpecError::TwoPrefixes {
            first: "a".into(),
            second: "b".into()
        })
    );
    for bits in [0, FIELD_MAX_BITS + 1, u32::MAX] {
        let result = KeySpec::new(vec![field("a", Exact, bits)]);
        assert_eq!(
            result,
            Err(SpecError::FieldWidth {
                field: "a".into(),
                bits
            })
        );
    }
    assert!(KeySpec::new(vec![field("a", Exact, FIELD_MAX_BITS)]).is_ok());
    for (kind, declared) in [
        (Ternary, MatchType::Exact),
        (Lpm, MatchType::Exact),
        (Exact, MatchType::Lpm),
        (Range, MatchType::Ternary),
    ] {
        let result = KeySpec::with_type(vec![field("a", kind, 8)], declared);
        assert!(
            matches!(result, Err(SpecError::WrongType { .. })),
            "{kind:?} in {declared:?}"
        );
    }
    let widest = WILD_KEY_MAX_BYTES as u32 * 8;
    assert!(KeySpec::new(vec![field("a", Ternary, widest)]).is_ok());
    assert_eq!(
        KeySpec::new(vec![field("a", Ternary, widest), field("b", Exact, 1)]),
        Err(SpecError::KeyTooWide {
            bytes: WILD_KEY_MAX_BYTES + 1
        })
    );
    assert!(
        KeySpec::new(vec![field("a", Exact, 8 * widest)]).is_ok(),
        "exact keys have no maximum width"
    );
    let masked = KeyField {
        static_mask: Some(Box::new([0xff])),
        ..field("a", Exact, 9)
    };
    assert_eq!(
        KeySpec::new(vec![masked]),
        Err(SpecError::StaticMask {
            field: "a".into(),
            expected: 2,
            actual: 1
        })
    );
}

#[test]
fn each_match_error_is_reported() {
    use MatchKind::{Exact, Lpm, Optional, Range, Ternary, Valid};
    let name = || "hdr.f".to_owned();
    let too_wide = |bits, width| KeyError::TooWide {
        field: name(),
        bits,
        width,
    };
    assert_eq!(
        match_error(Exact, 9, FieldMatch::Exact(vec![2, 0])),
        too_wide(9, 10)
    );
    assert_eq!(
        match_error(Exact, 9, FieldMatch::Exact(vec![1, 0, 0])),
        too_wide(9, 17)
    );
    assert_eq!(match_error(Ternary, 4, ternary(&[0], &[0x10])), too_wide(4, 5));
    assert_eq!(match_error(Range, 4, range(&[0], &[0x10])), too_wide(4, 5));
    assert_eq!(
        match_error(Ternary, 8, ternary(&[3], &[1])),
        KeyError::OutsideMask { field: name() }
    );
    assert_eq!(
        match_error(Lpm, 8, lpm(&[0x81], 7)),
        KeyError::OutsideMask { field: name() }
    );
    assert_eq!(
        match_error(Lpm, 8, lpm(&[0], 9)),
        KeyError::PrefixTooLong {
            field: name(),
            bits: 8,
            prefix: 9
        }
    );
    assert_eq!(
        match_error(Range, 16, range(&[1, 0], &[0xff])),
        KeyError::EmptyRange { field: name() }
    );
    assert_eq!(
        match_error(Optional, 8, ternary(&[1], &[1])),
        KeyError::PartialOptional { field: name() }
    );
    for (kind, field_match) in [
        (Exact, lpm(&[1], 8)),
        (Lpm, ternary(&[1], &[1])),
        (Ternary, FieldMatch::Exact(vec![1])),
        (Range, FieldMatch::Exact(vec![1])),
        (Valid, FieldMatch::Exact(vec![1])),
        (Exact, FieldMatch::Valid(true)),
    ] {
        assert_eq!(
            match_error(kind, 8, field_match),
            KeyError::WrongKind {
                field: name(),
                expected: kind
            }
        );
    }
    let spec = KeySpec::new(vec![field("a", Exact, 8)]).expect("a key");
    assert_eq!(
        spec.key(&[], Priority(1)),
        Err(KeyError::FieldCount {
            expected: 1,
            actual: 0
        })
    );
}

#[test]
fn values_can_omit_leading_zeros() {
    let spec = KeySpec::new(vec![field("a", MatchKind::Ternary, 20)]).expect("a key");
    let key = |value: &[u8], mask: &[u8]| spec.key(&[ternary(value, mask)], Priority(1)).expect("fits");
    assert_eq!(key(&[5], &[0x0f]), key(&[0, 0, 0, 0, 5], &[0, 0x0f]));
    assert_eq!(key(&[], &[]), key(&[0, 0, 0], &[0, 0, 0]));
    assert_eq!(key(&[5], &[0x0f]).value(), [0, 0, 5]);
}

#[test]
fn a_ternary_field_can_be_matched_as_an_optional_field() {
    let spec = KeySpec::new(vec![field("a", MatchKind::Ternary, 9)]).expect("a key");
    let key = |field_match| spec.key(&[field_match], Priority(1));
    assert_eq!(key(FieldMatch::Optional(None)), key(ternary(&[], &[])));
    assert_eq!(
        key(FieldMatch::Optional(Some(vec![7]))),
        key(ternary(&[7], &[1, 0xff]))
    );
}

#[test]
fn dont_care_bits_can_be_cleared() {
    let lpm_field = field("a", MatchKind::Lpm, 12);
    assert_eq!(lpm(&[0x0f, 0xff], 4).canonical(&lpm_field), lpm(&[0x0f, 0x00], 4));
    let ternary_field = field("a", MatchKind::Ternary, 16);
    assert_eq!(
        ternary(&[0xff], &[1, 1]).canonical(&ternary_field),
        ternary(&[0, 1], &[1, 1])
    );
    let too_wide = ternary(&[1, 0, 0], &[1]);
    assert_eq!(
        too_wide.clone().canonical(&ternary_field),
        too_wide,
        "a value that is too wide is unchanged and rejected later"
    );
}

#[test]
fn a_prefix_is_counted_from_the_first_bit_of_the_field() {
    let mut table = table(vec![field("a", MatchKind::Lpm, 20)]);
    insert(&mut table, &[lpm(&[0x0a, 0xbc, 0x00], 12)], 0, 1).expect("free");
    assert_eq!(lookup(&table, &[0x0a, 0xbc, 0xff]), Some(action(1)));
    assert_eq!(lookup(&table, &[0x0a, 0xbd, 0xff]), None);
}

#[test]
fn a_prefix_in_a_ternary_table_is_a_mask() {
    let mut table = table(vec![
        field("a", MatchKind::Lpm, 32),
        field("b", MatchKind::Ternary, 8),
    ]);
    insert(&mut table, &[lpm(&[10, 0, 0, 0], 8), ternary(&[], &[])], 1, 1).expect("free");
    insert(&mut table, &[lpm(&[10, 1, 0, 0], 16), ternary(&[], &[])], 2, 2).expect("free");
    assert_eq!(
        lookup(&table, &[10, 1, 1, 1, 9]),
        Some(action(1)),
        "the entry with the lower priority number wins, not the entry with the longer prefix"
    );
}

#[test]
fn static_mask_applies_to_entries() {
    let masked = KeyField {
        static_mask: Some(Box::new([0xf0])),
        ..field("a", MatchKind::Exact, 8)
    };
    let mut table = table(vec![masked]);
    insert(&mut table, &[FieldMatch::Exact(vec![0xab])], 0, 1).expect("free");
    assert_eq!(lookup(&table, &[0xa0]), Some(action(1)));
    let duplicate = insert(&mut table, &[FieldMatch::Exact(vec![0xac])], 0, 2);
    assert!(matches!(duplicate, Err(TableError::AlreadyExists { .. })));
}

#[test]
fn priorities_are_inverted_for_p4runtime() {
    assert!(
        Priority::from_p4runtime(10) < Priority::from_p4runtime(9),
        "the higher number wins in P4Runtime, the lower number in the switch"
    );
    for number in [1, 10, i32::MAX] {
        assert_eq!(Priority::from_p4runtime(number).to_p4runtime(), number);
    }
}

#[test]
fn lower_index_wins_among_equal_priorities() {
    let mut table = table(vec![field("a", MatchKind::Ternary, 8)]);
    for (mask, number) in [(0x80, 1), (0xc0, 2), (0xe0, 3)] {
        insert(&mut table, &[ternary(&[mask], &[mask])], 7, number).expect("free");
    }
    assert_eq!(lookup(&table, &[0xff]), Some(action(1)));
    let first = table.iter().next().expect("three entries").handle();
    table.delete(first).expect("is there");
    assert_eq!(lookup(&table, &[0xff]), Some(action(2)));
    insert(&mut table, &[ternary(&[0xf0], &[0xf0])], 7, 4).expect("free");
    assert_eq!(
        lookup(&table, &[0xff]),
        Some(action(4)),
        "the new entry has reused the lowest index"
    );
    insert(&mut table, &[ternary(&[0xff], &[0xff])], -1, 5).expect("free");
    assert_eq!(lookup(&table, &[0xff]), Some(action(5)));
}

#[test]
fn a_key_of_another_length_matches_no_entry() {
    let mut table = table(vec![field("a", MatchKind::Lpm, 32)]);
    insert(&mut table, &[lpm(&[], 0)], 0, 1).expect("free");
    assert_eq!(lookup(&table, &[1, 2, 3, 4]), Some(action(1)));
    assert_eq!(lookup(&table, &[1, 2, 3]), None);
    assert_eq!(lookup(&table, &[1, 2, 3, 4, 5]), None);
}

#[test]
fn const_entries_and_actions_cannot_change() {
    let mut table = table(vec![field("a", MatchKind::Exact, 8)]);
    let key = |value: u8| {
        table
            .spec()
            .key
            .key(&[FieldMatch::Exact(vec![value])], Priority(0))
            .expect("fits")
    };
    let (first_key, second_key, third_key) = (key(1), key(2), key(3));
    let new_entry = |key, constant| NewEntry {
        key,
        target: action(1),
        state: None,
        constant,
    };
    let constant = table.insert(new_entry(first_key, true)).expect("free").handle();
    let variable = table.insert(new_entry(second_key, false)).expect("free").handle();
    assert!(matches!(
        table.delete(constant),
        Err(TableError::Immutable { .. })
    ));
    assert!(matches!(
        table.modify(constant, action(2)),
        Err(TableError::Immutable { .. })
    ));
    table.apply(TableOp::Seal).expect("any table can be sealed");
    assert!(matches!(
        table.delete(variable),
        Err(TableError::Immutable { .. })
    ));
    assert!(matches!(
        table.insert(new_entry(third_key, false)),
        Err(TableError::Immutable { .. })
    ));
    assert_eq!(table.len(), 2);
}

#[test]
fn default_actions_follow_program_restrictions() {
    let key = || KeySpec::new(vec![field("a", MatchKind::Exact, 8)]).expect("a key");
    let table = |default_policy| {
        let spec = TableSpec {
            initial_default: Some(action(1)),
            default_policy,
            ..(*table_spec(key(), 4)).clone()
        };
        Table::new(Arc::new(spec), &HashSeed::random())
    };
    let mut free = table(DefaultPolicy::Free);
    assert_eq!(free.default_target(), Some(&action(1)));
    assert_eq!(
        free.set_default(Some(action(2))),
        Ok((Some(action(1)), Some(action(2))))
    );
    assert_eq!(free.set_default(None), Ok((Some(action(2)), Some(action(1)))));
    assert!(matches!(
        free.set_default(Some(Target::Member(MEMBER))),
        Err(TableError::WrongTarget { .. })
    ));

    let mut constant_action = table(DefaultPolicy::ConstantAction(ActionId(1)));
    let mut call_with_arguments = call(1);
    call_with_arguments.data.push(9);
    assert!(
        constant_action
            .set_default(Some(Target::Action(call_with_arguments)))
            .is_ok()
    );
    assert!(matches!(
        constant_action.set_default(Some(action(2))),
        Err(TableError::Immutable { .. })
    ));

    let mut constant = table(DefaultPolicy::Constant);
    assert!(matches!(
        constant.set_default(Some(action(1))),
        Err(TableError::Immutable { .. })
    ));
    assert_eq!(constant.default_target(), Some(&action(1)));
}

const MEMBER: linewarden_switch::tables::MemberHandle = linewarden_switch::tables::MemberHandle(0);

#[test]
fn tables_reject_unsupported_data() {
    let mut keyless = table(vec![]);
    assert_eq!(
        insert(&mut keyless, &[], 0, 1),
        Err(TableError::NoKey {
            table: "ingress.t".into()
        })
    );
    assert_eq!(lookup(&keyless, &[]), None);
    let mut full = table(vec![field("a", MatchKind::Exact, 8)]);
    for value in 0..4 {
        insert(&mut full, &[FieldMatch::Exact(vec![value])], 0, 1).expect("free");
    }
    assert_eq!(
        insert(&mut full, &[FieldMatch::Exact(vec![9])], 0, 1),
        Err(TableError::Full {
            table: "ingress.t".into(),
            size: 4
        })
    );
    let key = full
        .spec()
        .key
        .key(&[FieldMatch::Exact(vec![9])], Priority(0))
        .expect("fits");
    let indirect = NewEntry {
        key,
        target: Target::Member(MEMBER),
        state: None,
        constant: false,
    };
    assert_eq!(
        full.insert(indirect).map(|_| ()),
        Err(TableError::WrongTarget {
            table: "ingress.t".into(),
            expected: TargetKind::Action
        })
    );
}

#[test]
fn modified_entry_keeps_its_state() {
    let mut table = table(vec![field("a", MatchKind::Exact, 8)]);
    let key = table
        .spec()
        .key
        .key(&[FieldMatch::Exact(vec![7])], Priority(0))
        .expect("fits");
    let state = Some(Arc::new(EntryState::new(1_000, 500)));
    let handle = table
        .insert(NewEntry {
            key,
            target: action(1),
            state,
            constant: false,
        })
        .expect("free")
        .handle();
    let state = |table: &Table| {
        table
            .lookup(&[7])
            .and_then(|entry| entry.shared_state().cloned())
            .expect("stateful")
    };
    state(&table).count(64);
    table.modify(handle, action(2)).expect("is there");
    state(&table).count(1_500);
    assert_eq!(state(&table).counts(), (2, 1_564));
    let state = state(&table);
    assert!(!state.is_idle(1_499));
    assert!(state.is_idle(1_500));
    state.record_hit(1_400);
    state.record_hit(1_300);
    assert_eq!(
        state.last_hit_ms(),
        1_400,
        "several cores can record hits in any order"
    );
    assert!(!state.is_idle(1_899));
    state.set_timeout(2_000, 0);
    assert!(!state.is_idle(u64::MAX), "no timeout");
    state.set_timeout(3_000, 10);
    assert!(!state.is_idle(3_009), "the timeout starts when it is set");
}

#[test]
fn handles_are_printed_like_bmv2() {
    let mut table = table(vec![field("a", MatchKind::Exact, 8)]);
    for generation in 0..300 {
        insert(&mut table, &[FieldMatch::Exact(vec![1])], 0, 1).expect("free");
        let handle = table.iter().next().expect("one entry").handle();
        assert_eq!((handle.index(), handle.generation()), (0, generation));
        assert_eq!(handle.to_bmv2(), (generation % 256) << 24);
        table.delete(handle).expect("is there");
    }
}
