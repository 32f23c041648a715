//! Counters, meters and registers, with packets.

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;

use crate::control::support::*;

fn counter(controller: &mut Controller, index: u64) -> CounterData {
    let id = controller
        .info()
        .counters()
        .by_name_or_alias("In.received")
        .unwrap()
        .id;
    let read = controller.read(Read::Counters {
        id: Some(id),
        index: Some(index),
    });
    match read[..] {
        [Entity::Counter { data, .. }] => data,
        _ => panic!("{read:?}"),
    }
}

#[test]
fn counters_count_from_the_written_value() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let id = controller
        .info()
        .counters()
        .by_name_or_alias("In.received")
        .unwrap()
        .id;
    let flow = controller.flow(1, "In.to_port", &[2]);
    let data = Some(CounterData {
        bytes: 1000,
        packets: 10,
    });
    let index = Some(1);
    controller.write(&[insert(flow.clone()), Update::Counter { id, index, data }]);
    let sent = frame(1, 0x1234, &[7; 50]);
    fixture.send(1, &sent);
    assert_eq!(fixture.receive(2), sent);
    let expected = CounterData {
        bytes: 1064,
        packets: 11,
    };
    assert_eq!(counter(&mut controller, 1), expected);
    assert_eq!(counter(&mut controller, 0), CounterData::default());
    let read = controller.entries("In.flows");
    let one_packet = CounterData {
        bytes: 64,
        packets: 1,
    };
    assert_eq!(read[0].resources.counter, Some(one_packet));
    let entry = EntryRef::Entry(flow.key.clone());
    controller.write(&[Update::DirectCounter {
        entry: entry.clone(),
        data,
    }]);
    fixture.send(1, &sent);
    fixture.receive(2);
    let table = Some(flow.key.table);
    let read = controller.read(Read::DirectCounters {
        table,
        entry: Some(entry.clone()),
    });
    let data = CounterData {
        bytes: 1064,
        packets: 11,
    };
    assert_eq!(read, [Entity::DirectCounter { entry, data }]);
    let default = Update::DirectCounter {
        entry: EntryRef::Default(flow.key.table),
        data: Some(data),
    };
    assert_eq!(controller.expect_write_error(default).code, Code::Unimplemented);
}

#[test]
fn registers_wider_than_a_machine_word_are_written_and_read() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let id = controller
        .info()
        .registers()
        .by_name_or_alias("In.words")
        .unwrap()
        .id;
    let word = 0x0123_4567_89ab_cdef_ffff_ffff_u128;
    let write = Update::Register {
        id,
        index: Some(5),
        data: Data::Bits(bits(96, word)),
    };
    let flow = controller.flow(1, "In.add_word", &[1, 5]);
    controller.write(&[write, insert(flow)]);
    fixture.send(3, &frame(1, 0x1234, b"add"));
    fixture.receive(3);
    let read = controller.read(Read::Registers {
        id: Some(id),
        index: None,
    });
    assert_eq!(read.len(), 8);
    for (index, cell) in read.into_iter().enumerate() {
        let value = if index == 5 { word + 1 } else { 0 };
        let expected = Entity::Register {
            id,
            index: index as u64,
            data: Data::Bits(bits(96, value)),
        };
        assert_eq!(cell, expected);
    }
    let all_cells = Update::Register {
        id,
        index: None,
        data: Data::Bits(bits(96, 9)),
    };
    controller.write(&[all_cells]);
    let read = controller.read(Read::Registers {
        id: Some(id),
        index: None,
    });
    let nine = Data::Bits(bits(96, 9));
    assert!(
        read.iter()
            .all(|cell| matches!(cell, Entity::Register { data, .. } if *data == nine))
    );
    let out_of_range = Update::Register {
        id,
        index: Some(8),
        data: Data::Bits(bits(96, 0)),
    };
    assert_eq!(controller.expect_write_error(out_of_range).code, Code::OutOfRange);
}

/// With rates of zero and buckets of two packets, the third packet is red and is dropped.
#[test]
fn meters_mark_by_the_written_rates() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let id = controller
        .info()
        .meters()
        .by_name_or_alias("In.rates")
        .unwrap()
        .id;
    let flow = controller.flow(1, "In.police", &[2]);
    let config = MeterConfig {
        committed_rate: 0,
        committed_burst: 2,
        peak_rate: 0,
        peak_burst: 2,
        excess_burst: 0,
    };
    let meter = |config| Update::Meter {
        id,
        index: Some(1),
        config,
        reset_counters: false,
    };
    controller.write(&[insert(flow), meter(Some(config))]);
    let read = controller.read(Read::Meters {
        id: Some(id),
        index: Some(1),
        counters: false,
    });
    let cell = |config| Entity::Meter {
        id,
        index: 1,
        config,
        counters: None,
    };
    assert_eq!(read, [cell(Some(config))]);
    for number in 0..4u8 {
        fixture.send(1, &frame(1, 0x1234, &[number]));
    }
    for number in 0..2u8 {
        assert_eq!(fixture.receive(2)[14], number);
    }
    // The counter shows that all four packets have been processed.
    let start = std::time::Instant::now();
    while counter(&mut controller, 1).packets < 4 {
        assert!(start.elapsed() < LONG);
    }
    controller.write(&[meter(None)]);
    fixture.send(1, &frame(1, 0x1234, &[10]));
    assert_eq!(fixture.receive(2)[14], 10);
    for invalid_config in [
        MeterConfig {
            committed_rate: 5,
            peak_rate: 4,
            ..config
        },
        MeterConfig {
            committed_rate: u64::MAX >> 1,
            committed_burst: 1,
            peak_rate: 1,
            ..config
        },
    ] {
        assert_eq!(
            controller.expect_write_error(meter(Some(invalid_config))).code,
            Code::InvalidArgument
        );
    }
}

#[test]
fn direct_meter_belongs_to_its_entry() {
    let (_fixture, mut controller) = SwitchFixture::with(&everything());
    let config = MeterConfig {
        committed_rate: 1,
        committed_burst: 2,
        peak_rate: 3,
        peak_burst: 4,
        excess_burst: 0,
    };
    let fields = vec![
        FieldMatch::Ternary {
            value: bits(32, 0),
            mask: bits(32, 0),
        },
        FieldMatch::Optional(None),
        FieldMatch::Range {
            low: bits(16, 0),
            high: bits(16, 0xffff),
        },
        exact(9, 0),
    ];
    let action = EntryAction::Action(controller.action("In.permit", &[]));
    let mut entry = controller.entry("In.acl", fields, action);
    entry.key.priority = 1;
    entry.resources = DirectResources {
        counter: Some(CounterData::default()),
        meter: Some(config),
        meter_counters: None,
    };
    controller.write(&[insert(entry.clone())]);
    assert_eq!(controller.entries("In.acl"), [entry.clone()]);
    // A modification without a configuration removes the configuration.
    let without_config = |entry: &TableEntry| TableEntry {
        resources: DirectResources {
            meter: None,
            ..entry.resources
        },
        ..entry.clone()
    };
    controller.write(&[modify(without_config(&entry))]);
    assert_eq!(controller.entries("In.acl"), [without_config(&entry)]);
    let set_config = Update::DirectMeter {
        entry: EntryRef::Entry(entry.key.clone()),
        config: Some(config),
        reset_counters: false,
    };
    controller.write(&[set_config]);
    assert_eq!(controller.entries("In.acl"), [entry.clone()]);
    let reset_counters_update = Update::DirectMeter {
        entry: EntryRef::Entry(entry.key),
        config: Some(config),
        reset_counters: true,
    };
    assert_eq!(
        controller.expect_write_error(reset_counters_update).code,
        Code::Unimplemented
    );
}
