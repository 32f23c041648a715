//! The STF parser and the check of expectations, with p4c's tests, small tests, and invalid input.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use linewarden_harness::skip;
use linewarden_switch::stf::{
    ActionCall, Command, Comparison, CountedUnit, CounterCell, CounterCheck, Expectations, KeyValue,
    NumberError, StfError, Target, Test, names,
};
use proptest::prelude::*;

fn parse(text: &str) -> Test {
    Test::parse("own.stf", text).unwrap_or_else(|error| panic!("{error}"))
}

fn single_command(text: &str) -> Command {
    let mut statements = parse(text).statements;
    assert_eq!(statements.len(), 1, "{text}");
    statements.remove(0).command
}

fn files_under(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "stf") {
            files.push(path);
        }
    }
}

/// p4c's parser rejects this file too: a comma is missing between two arguments.
const MALFORMED: &str = "p4tc_samples_stf/routing_default.stf";

#[test]
fn every_p4c_test_is_parsed() {
    let Some(p4c) = std::env::var_os("LINEWARDEN_P4C") else {
        skip!("LINEWARDEN_P4C does not name a directory with p4c's sources");
    };
    let mut files = Vec::new();
    files_under(&Path::new(&p4c).join("testdata"), &mut files);
    let mut errors = Vec::new();
    let mut statements = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        match Test::parse(&file.display().to_string(), &text) {
            Ok(test) => statements += test.statements.len(),
            Err(error) if file.ends_with(MALFORMED) => assert_eq!((error.line, error.column), (1, 64)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    assert!(files.len() > 300, "{} files", files.len());
    println!("{} files, {statements} statements", files.len());
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn entry_has_keys_action_and_name() {
    let line = r#"ADD "my table" 200 data$0.f1:0x**01 hdr.s[1].f:0b1*  x.$valid$:1 c.act( a:1, b:0xFF ) = A"#;
    let Command::Add(entry) = single_command(line) else {
        panic!("no entry")
    };
    assert_eq!(
        (entry.table.as_str(), entry.priority, entry.bmv2_priority()),
        ("my table", Some(200), Some(9_800))
    );
    let keys: Vec<_> = entry
        .keys
        .iter()
        .map(|key| format!("{} {}", key.name, key.value))
        .collect();
    assert_eq!(keys, ["data$0.f1 0x**01", "hdr.s[1].f 0b1*", "x.$valid$ 1"]);
    let Target::Action(ActionCall { name, arguments }) = entry.target else {
        panic!("no action")
    };
    let arguments: Vec<_> = arguments
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_u64()))
        .collect();
    assert_eq!(
        (name.as_str(), arguments),
        ("c.act", vec![("a", Some(1)), ("b", Some(255))])
    );
    assert_eq!(entry.entry_name.as_deref(), Some("A"));
}

#[test]
fn comments_and_blank_lines_are_skipped() {
    let test = parse("# one\n\n  \twait # two\r\nsetdefault t \"a#b\"()\npacket 0 00 # three\n");
    let lines: Vec<_> = test.statements.iter().map(|statement| statement.line).collect();
    assert_eq!(lines, [3, 4, 5]);
    let action = ActionCall {
        name: "a#b".into(),
        arguments: Vec::new(),
    };
    let commands: Vec<_> = test
        .statements
        .into_iter()
        .map(|statement| statement.command)
        .collect();
    assert_eq!(
        commands,
        [
            Command::Wait,
            Command::SetDefault {
                table: "t".into(),
                action
            },
            Command::Packet {
                port: 0,
                bytes: vec![0]
            }
        ]
    );
}

#[test]
fn state_commands_are_parsed() {
    assert_eq!(
        single_command("mc_node_create 257 6 8"),
        Command::NodeCreate {
            rid: 257,
            ports: vec![6, 8]
        }
    );
    assert_eq!(
        single_command("mirroring_add_mc 5 0x10"),
        Command::MirroringAddGroup {
            session: 5,
            group: 16
        }
    );
    assert_eq!(
        single_command("counter_write c.cnt 1 2 3"),
        Command::CounterWrite {
            counter: "c.cnt".into(),
            index: 1,
            packets: 2,
            bytes: 3
        }
    );
    let check = CounterCheck {
        unit: CountedUnit::Bytes,
        comparison: Comparison::LessOrEqual,
        expected: 39,
    };
    assert_eq!(
        single_command("check_counter cnt($A) bytes <= 39"),
        Command::CheckCounter {
            counter: "cnt".into(),
            cell: CounterCell::Entry("A".into()),
            check: Some(check)
        }
    );
    assert_eq!(
        single_command("check_counter cnt(7)"),
        Command::CheckCounter {
            counter: "cnt".into(),
            cell: CounterCell::Index(7),
            check: None
        }
    );
    let Command::MeterSetRates { meter, index, rates } =
        single_command("meter_set_rates c.m 2 0.000005:4 0.00002:5")
    else {
        panic!("no rates");
    };
    let rates: Vec<_> = rates.iter().map(|rate| (rate.units_per_us, rate.burst)).collect();
    assert_eq!(
        (meter.as_str(), index, rates),
        ("c.m", 2, vec![(0.000_005, 4), (0.000_02, 5)])
    );
    let Command::RegisterWrite { value, .. } = single_command("register_write r 5 0x112233445566778899")
    else {
        panic!("no register");
    };
    assert_eq!(
        value.value(),
        [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99]
    );
}

#[test]
fn comparison_operators_are_applied() {
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    for (comparison, expected) in [
        (Equal, [false, true, false]),
        (NotEqual, [true, false, true]),
        (Less, [true, false, false]),
        (LessOrEqual, [true, true, false]),
        (Greater, [false, false, true]),
        (GreaterOrEqual, [false, true, true]),
    ] {
        assert_eq!(
            [1, 2, 3].map(|counted| comparison.holds(counted, 2)),
            expected,
            "{comparison:?}"
        );
    }
}

#[test]
fn additional_commands_are_parsed() {
    let Command::Add(entry) = single_command("add_group t 10 a:1->9 b:1&&&3 5 = E") else {
        panic!("no entry")
    };
    let values: Vec<_> = entry.keys.iter().map(|key| key.value.to_string()).collect();
    assert_eq!(
        (values, entry.target),
        (vec!["1->9".to_owned(), "1&&&3".to_owned()], Target::Group(5))
    );
    let Command::Add(entry) = single_command("add_member t a:0x1 2") else {
        panic!("no entry")
    };
    assert_eq!(
        (entry.priority, entry.target, entry.entry_name),
        (None, Target::Member(2), None)
    );
    let action = ActionCall {
        name: "a".into(),
        arguments: Vec::new(),
    };
    assert_eq!(
        single_command("member_add p.ap 1 a()"),
        Command::MemberAdd {
            profile: "p.ap".into(),
            member: 1,
            action
        }
    );
    assert_eq!(
        single_command("group_add ap 7"),
        Command::GroupAdd {
            profile: "ap".into(),
            group: 7
        }
    );
    assert_eq!(
        single_command("group_add_member ap 7 1"),
        Command::GroupAddMember {
            profile: "ap".into(),
            group: 7,
            member: 1
        }
    );
    assert_eq!(
        single_command("timeout E 1000"),
        Command::IdleTimeout {
            entry: "E".into(),
            timeout_us: 1000
        }
    );
    assert_eq!(
        single_command("expect_idle E"),
        Command::ExpectIdle { entry: "E".into() }
    );
    assert_eq!(
        single_command("expect_used E"),
        Command::ExpectUsed { entry: "E".into() }
    );
    assert_eq!(single_command("no_digest"), Command::NoDigest);
    let Command::EntryRates { entry, rates } = single_command("entry_rates E 0.5:1 2:30") else {
        panic!("no rates of an entry");
    };
    let bursts: Vec<_> = rates.iter().map(|rate| rate.burst).collect();
    assert_eq!((entry.as_str(), bursts), ("E", vec![1, 30]));
    let Command::ExpectRegister {
        register,
        index,
        value,
    } = single_command("expect_register p.r 3 0xff")
    else {
        panic!("no register");
    };
    assert_eq!((register.as_str(), index, value.to_u64()), ("p.r", 3, Some(255)));
    assert_eq!(single_command("advance_us 5"), Command::AdvanceClock { by_us: 5 });
    let Command::ExpectDigest { digest, values } = single_command("expect_digest d_t 0x1 2 0b11") else {
        panic!("no digest");
    };
    let values: Vec<_> = values.iter().map(|value| value.to_u64()).collect();
    assert_eq!(
        (digest.as_str(), values),
        ("d_t", vec![Some(1), Some(2), Some(3)])
    );
    let Command::ValueSetAdd { value_set, value } = single_command("vset_add pvs 0x800") else {
        panic!("no value set");
    };
    assert_eq!((value_set.as_str(), value.exact(16)), ("pvs", Ok(vec![8, 0])));
}

#[test]
fn errors_have_line_and_reason() {
    let half_byte = "a hexadecimal digit to complete the last byte";
    for (text, position, found, expected) in [
        (
            "\n  frobnicate 1",
            "2:3",
            "`frobnicate`",
            "a command such as `add`, `packet` or `expect`",
        ),
        ("packet 0 00 0g", "1:14", "`g`", "a hexadecimal digit"),
        ("packet 0 000", "1:13", "the end of the line", half_byte),
        ("packet 0", "1:9", "the end of the line", half_byte),
        ("packet x 00", "1:8", "`x`", "a port in decimal digits"),
        ("packet", "1:7", "the end of the line", "a port in decimal digits"),
        ("expect 0 00$ 00", "1:14", "`00`", "the end of the line"),
        ("expect 0 0x0", "1:11", "`x0`", "a hexadecimal digit, `*` or `$`"),
        (
            "add t act(a:1)",
            "1:7",
            "`act(a:1)`",
            "a key such as `hdr.field:0x1`",
        ),
        ("add t é:1 a()", "1:7", "`é:1`", "a key"),
        (
            "add \"é\" k:0xZ a()",
            "1:11",
            "`0xZ`",
            "a number, decimal, `0x` or `0b`",
        ),
        ("add t k:1 a(b:0x*)", "1:15", "`0x*)`", "a number without `*`"),
        ("add t k:1 a(b:1 c:2)", "1:17", "`c:2)`", "`,` or `)`"),
        ("add t 4294967296 k:1 a()", "1:7", "`4294967296`", "a priority"),
        ("remove some", "1:8", "`some`", "`all`"),
        (
            "check_counter c(1) packets = 2",
            "1:28",
            "`=`",
            "`==`, `!=`, `<`, `<=`, `>` or `>=`",
        ),
        (
            "meter_array_set_rates m 1.1.1:2",
            "1:25",
            "`1.1.1:2`",
            "a rate in units per microsecond",
        ),
        ("wait 3", "1:6", "`3`", "the end of the line"),
    ] {
        let error: StfError = Test::parse("own.stf", text).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("own.stf:{position}: expected {expected}, found {found}"),
            "{text}"
        );
    }
}

fn key(value: &str) -> KeyValue {
    let Command::Add(mut entry) = single_command(&format!("add t k:{value} a()")) else {
        panic!("no entry")
    };
    entry.keys.remove(0).value
}

#[test]
fn keys_are_interpreted_like_p4c() {
    assert_eq!(key("0x1ff").exact(9), Ok(vec![1, 0xff]));
    assert_eq!(key("300").exact(9), Ok(vec![1, 0x2c]));
    assert!(matches!(
        key("0x200").exact(9),
        Err(NumberError::TooWide { width_bits: 9, .. })
    ));
    assert!(matches!(key("0x1*").exact(9), Err(NumberError::Wildcards { .. })));
    assert!(matches!(
        key("1/2").exact(9),
        Err(NumberError::WrongMatchKind { .. })
    ));

    // Only written digits are compared.
    assert_eq!(key("0x25").ternary(16), Ok((vec![0, 0x25], vec![0, 0xff])));
    assert_eq!(key("0x**2*").ternary(16), Ok((vec![0, 0x20], vec![0, 0xf0])));
    assert_eq!(key("0x0101").ternary(9), Ok((vec![1, 1], vec![1, 0xff])));
    assert_eq!(key("0b1*").ternary(4), Ok((vec![2], vec![2])));
    assert_eq!(key("0xff&&&0x0f").ternary(8), Ok((vec![0x0f], vec![0x0f])));
    assert_eq!(key("0xfff/3").ternary(12), Ok((vec![0x0e, 0], vec![0x0e, 0])));
    assert!(matches!(key("7").ternary(8), Err(NumberError::Decimal { .. })));
    assert!(matches!(
        key("1->2").ternary(8),
        Err(NumberError::WrongMatchKind { .. })
    ));

    assert_eq!(key("0xc0a8****").lpm(32), Ok((vec![0xc0, 0xa8, 0, 0], 16)));
    assert_eq!(
        key("0x0a").lpm(32),
        Ok((vec![0; 4], 8)),
        "a prefix begins at the most significant bit of the key"
    );
    assert_eq!(key("0x0a0001ff/24").lpm(32), Ok((vec![0x0a, 0, 1, 0], 24)));
    assert_eq!(key("10/12").lpm(12), Ok((vec![0, 10], 12)));
    assert!(matches!(
        key("0x1*2").lpm(32),
        Err(NumberError::NotAPrefix { .. })
    ));
    assert!(matches!(key("10").lpm(32), Err(NumberError::Decimal { .. })));
    assert_eq!(
        key("0x1/33").lpm(32),
        Err(NumberError::PrefixTooLong {
            length_bits: 33,
            width_bits: 32
        })
    );

    assert_eq!(key("1->0x1ff").range(9), Ok((vec![0, 1], vec![1, 0xff])));
    assert_eq!(key("5").range(9), Ok((vec![0, 5], vec![0, 5])));
    assert!(matches!(
        key("2->1").range(9),
        Err(NumberError::EmptyRange { .. })
    ));
}

#[test]
fn names_are_resolved_like_p4c() {
    let tables = ["ingress.t", "ingress.tab", "egress.tab"];
    assert_eq!(names::resolve_name("egress.tab", tables), Ok("egress.tab"));
    assert_eq!(names::resolve_name("t", tables), Ok("ingress.t"));
    assert_eq!(
        names::resolve_name("b", ["ab", "c"]),
        Ok("ab"),
        "a short name need not begin after a dot"
    );
    let ambiguous = names::resolve_name("tab", tables).unwrap_err().to_string();
    assert!(ambiguous.contains("ingress.tab and egress.tab"), "{ambiguous}");
    assert!(names::resolve_name("u", tables).is_err());

    let keys = [
        "hdr.data.f1",
        "hdr.extra[0].h",
        "hdr.data.$valid$",
        "meta.flag$",
        "h2.$valid$",
    ];
    for (name, key) in [
        ("hdr.data.f1", "hdr.data.f1"),
        ("f1", "hdr.data.f1"),
        ("extra$0.h", "hdr.extra[0].h"),
        ("meta.flag", "meta.flag$"),
        ("flag", "meta.flag$"),
        ("hdr.data", "hdr.data.$valid$"),
        ("h2.valid", "h2.$valid$"),
        ("data.$valid$", "hdr.data.$valid$"),
        ("valid", "hdr.data.$valid$"),
    ] {
        assert_eq!(names::resolve_key(name, keys), Ok(key), "{name}");
    }
    assert_eq!(names::resolve_key("valid", ["$valid$"]), Ok("$valid$"));
    assert!(names::resolve_key("1", keys).is_err());
}

const PORTS: &str = "packet 0 aabb\nexpect 1 aab* $\nexpect 2\nexpect 1 c\n";

fn received<const N: usize>(packets: [(u32, &[&[u8]]); N]) -> BTreeMap<u32, Vec<Vec<u8>>> {
    packets
        .map(|(port, packets)| (port, packets.iter().map(|packet| packet.to_vec()).collect()))
        .into()
}

#[test]
fn ports_send_expected_packets_in_order() {
    let expectations = Expectations::from_test(&parse(PORTS));
    assert_eq!(expectations.ports().collect::<Vec<_>>(), [0, 1, 2]);
    let valid_packets = received([(1, &[&[0xaa, 0xbf], &[0xc1, 2, 3]]), (2, &[&[]]), (9, &[&[1]])]);
    assert_eq!(
        expectations.check(&valid_packets),
        Ok(()),
        "the test does not name port 9"
    );
    let no_packets = Expectations::from_test(&parse(&format!("{PORTS}no_packet")));
    assert!(no_packets.check(&valid_packets).is_err());
}

#[test]
fn differences_are_readable() {
    let expectations = Expectations::from_test(&parse(PORTS));
    let report = |packets| {
        let mismatches = expectations.check(&packets).unwrap_err();
        mismatches.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let wrong_packets = received([(0, &[&[1]]), (1, &[&[0xaa, 0xc1], &[0xd0]]), (2, &[&[1], &[2]])]);
    assert_eq!(
        report(wrong_packets),
        [
            "port 0: 1 packets, expected 0\n  received 01",
            "port 1: packet 1 (line 2) differs in byte 1\n  expected AAB*$\n  received AAC1\n             ^",
            "port 1: packet 2 (line 4) differs in byte 0\n  expected C\n  received D0\n           ^",
            "port 2: 2 packets, expected 1\n  expected any packet (line 3)\n  received 01\n  received 02",
        ]
    );
    let wrong_lengths = received([(1, &[&[0xaa, 0xb1, 0], &[]]), (2, &[&[1]])]);
    assert_eq!(
        report(wrong_lengths),
        [
            "port 1: packet 1 (line 2) is too long\n  expected AAB*$\n  received AAB100\n               ^",
            "port 1: packet 2 (line 4) is too short\n  expected C\n  received \n           ^",
        ]
    );
}

/// `compare_pkt` of p4c's `testutils.py`, which compares hexadecimal digits.
fn compare_pkt(expected: &str, received: &[u8]) -> bool {
    let (expected, strict) = expected
        .strip_suffix('$')
        .map_or((expected, false), |expected| (expected, true));
    let (expected, received) = (expected.to_uppercase(), hex::encode_upper(received));
    if (strict && received.len() > expected.len()) || received.len() < expected.len() {
        return false;
    }
    expected
        .chars()
        .zip(received.chars())
        .all(|(expected, received)| expected == '*' || expected == received)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packets_are_compared_like_p4c(expected in "[01*]{1,6}[$]?", received in "([01]{2}){0,4}") {
        let received = hex::decode(received).unwrap();
        let Command::Expect { packet: Some(packet), .. } = single_command(&format!("expect 1 {expected}")) else {
            panic!("no packet");
        };
        prop_assert_eq!(packet.difference(&received).is_none(), compare_pkt(&expected, &received));
        prop_assert_eq!(packet.to_string(), expected);
    }

    #[test]
    fn numbers_are_equal_in_every_base(value: u128, shift in 0..128_u32, width_bits in 1..200_u32) {
        let value = value >> shift;
        let fits = 128 - value.leading_zeros() <= width_bits;
        for text in [format!("{value}"), format!("{value:#x}"), format!("{value:#b}")] {
            match key(&text).exact(width_bits) {
                Ok(bytes) => {
                    prop_assert!(fits);
                    prop_assert_eq!(bytes.len(), width_bits.div_ceil(8) as usize);
                    let number = bytes.iter().fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
                    prop_assert_eq!(number, value);
                }
                Err(error) => prop_assert!(!fits, "{}", error),
            }
        }
    }

    #[test]
    fn parser_never_panics_on_any_text(text in "(\\PC|\n){0,200}") {
        let lines = text.lines().count();
        match Test::parse("random", &text) {
            Ok(test) => prop_assert!(test.statements.len() <= lines),
            Err(error) => prop_assert!((1..=lines).contains(&(error.line as usize))),
        }
    }

    #[test]
    fn parser_never_panics_on_command_like_lines(
        keyword in "(add|add_member|setdefault|packet|expect|check_counter|mc_node_create|meter_set_rates|vset_add)",
        arguments in "([ a-f01x*$:.,()=/&>\"é-]|\\[0\\]| k:0x| a\\(){0,30}",
    ) {
        let text = format!("{keyword} {arguments}");
        match Test::parse("random", &text) {
            Ok(test) => {
                prop_assert_eq!(test.statements.len(), 1);
                let no_output = Expectations::from_test(&test).check(&BTreeMap::new());
                prop_assert_eq!(no_output.is_err(), keyword == "expect");
            }
            Err(error) => prop_assert!(error.column as usize <= text.chars().count() + 1),
        }
    }

    #[test]
    fn keys_never_leave_their_width(value in "0x[0-9*]{1,6}|0b[01*]{1,12}|[0-9]{1,4}", width_bits in 1..40_u32) {
        let key = key(&value);
        let unused = 0xfe_u8 << ((width_bits - 1) % 8);
        let fits = |bytes: &[u8]| {
            bytes.len() == width_bits.div_ceil(8) as usize && bytes.first().is_none_or(|top| top & unused == 0)
        };
        if let Ok((bytes, mask)) = key.ternary(width_bits) {
            prop_assert!(fits(&bytes) && fits(&mask));
            prop_assert!(bytes.iter().zip(&mask).all(|(byte, mask)| byte & !mask == 0));
        }
        if let Ok((bytes, length_bits)) = key.lpm(width_bits) {
            prop_assert!(fits(&bytes) && length_bits <= width_bits);
        }
    }
}
