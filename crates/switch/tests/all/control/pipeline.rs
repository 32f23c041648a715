//! Pipelines: verify, save, commit under traffic, and reconcile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::p4info::P4Info;
use linewarden_p4runtime::target::{Pipeline, Target};

use crate::control::support::*;

/// The same program with different bytes.
fn reformatted(pipeline: &Pipeline) -> Pipeline {
    let json: serde_json::Value = serde_json::from_slice(&pipeline.device_config).unwrap();
    let spaced = serde_json::to_vec_pretty(&json).unwrap();
    assert_ne!(*pipeline.device_config, *spaced);
    Pipeline {
        device_config: spaced.into(),
        ..pipeline.clone()
    }
}

#[test]
fn mismatched_p4info_is_rejected_with_the_element_name() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../p4runtime/tests/data/everything.p4info.txtpb"
    ));
    let text = text.unwrap();
    let fixture = SwitchFixture::start();
    for (from, to, element) in [
        ("name: \"In.mac\"", "name: \"In.macs\"", "table \"In.macs\""),
        ("name: \"In.route\"", "name: \"In.way\"", "action \"In.way\""),
        (
            "name: \"hdr.ipv4.dst\"",
            "name: \"hdr.ipv4.to\"",
            "\"hdr.ipv4.dst\"",
        ),
        (
            "name: \"next\"\n    bitwidth: 48",
            "name: \"next\"\n    bitwidth: 47",
            "\"In.route\"",
        ),
        (
            "name: \"meta.vrf\"\n    bitwidth: 12",
            "name: \"meta.vrf\"\n    bitwidth: 13",
            "\"meta.vrf\"",
        ),
        ("match_type: LPM", "match_type: EXACT", "\"hdr.ipv4.dst\""),
        ("name: \"In.next_hops\"", "name: \"In.hops\"", "In.routes"),
        (
            "with_selector: true",
            "with_selector: false",
            "action profile \"In.next_hops\"",
        ),
        (
            "name: \"In.seen_by_port\"",
            "name: \"In.seen\"",
            "counter \"In.seen\"",
        ),
        (
            "name: \"In.rate_by_port\"",
            "name: \"In.rate\"",
            "meter \"In.rate\"",
        ),
        (
            "name: \"In.last_seen\"",
            "name: \"In.seen_last\"",
            "register \"In.seen_last\"",
        ),
        (
            "bit {\n        bitwidth: 48\n      }\n    }\n  }\n  size: 16",
            "bit {\n        bitwidth: 49\n      }\n    }\n  }\n  size: 16",
            "register \"In.last_seen\"",
        ),
        (
            "name: \"Parse.tunnel_types\"",
            "name: \"Parse.types\"",
            "value set \"Parse.types\"",
        ),
        (
            "name: \"learned_t\"\n    alias",
            "name: \"taught_t\"\n    alias",
            "digest \"taught_t\"",
        ),
        (
            "id: 2\n    name: \"reason\"\n    bitwidth: 7",
            "id: 2\n    name: \"reason\"\n    bitwidth: 8",
            "packet_in",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let info = P4Info::from_text(&text.replace(from, to)).unwrap_or_else(|error| panic!("{to}: {error}"));
        let pipeline = Pipeline {
            info: Arc::new(info),
            ..everything()
        };
        let error = fixture.control.verify(&pipeline).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{to}: {error}");
        assert!(error.message.contains(element), "{to}: {error}");
    }
    fixture.control.verify(&everything()).unwrap();
}

#[test]
fn every_compiled_program_can_be_controlled() {
    let fixture = SwitchFixture::start();
    let directory = "../../p4/compiled";
    let mut programs = 0;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../p4/compiled")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".json") {
            let result = fixture.control.verify(&pipeline_of(directory, name));
            result.unwrap_or_else(|error| panic!("{name}: {error}"));
            programs += 1;
        }
    }
    assert!(programs > 10);
}

/// Writes change the saved program, while packets still use the running program.
#[test]
fn program_is_prepared_while_another_one_runs() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let running_flow = controller.flow(1, "In.to_port", &[1]);
    controller.write(&[insert(running_flow.clone())]);
    fixture.control.save(&reformatted(&packets())).unwrap();
    assert_eq!(controller.entries("In.flows"), []);
    let prepared_flow = controller.flow(1, "In.to_port", &[2]);
    controller.write(&[insert(prepared_flow.clone())]);
    let sent = frame(1, 0x1234, b"before");
    fixture.send(0, &sent);
    assert_eq!(fixture.receive(1), sent);
    fixture.control.commit().unwrap();
    fixture.send(0, &sent);
    assert_eq!(fixture.receive(2), sent);
    assert_eq!(fixture.control.commit().unwrap_err().code, Code::NotFound);
}

/// Writes state of every kind that a reconciliation must keep.
fn fill(controller: &mut Controller) {
    let info = controller.info();
    let mut flow = controller.flow(1, "In.to_port", &[1]);
    (flow.metadata, flow.idle_timeout_ns) = (b"kept".to_vec(), 3_600_000_000_000);
    flow.resources.counter = Some(CounterData {
        bytes: 900,
        packets: 10,
    });
    let replica = Replica {
        port: port(1),
        instance: 1,
        backups: Vec::new(),
    };
    let updates = [
        insert(flow),
        insert(controller.flow(2, "In.copy", &[2, 9])),
        Update::DefaultEntry(Box::new(DefaultEntry {
            table: controller.table("In.flows"),
            action: Some(controller.action("In.to_port", &[3])),
            controller_metadata: 5,
            metadata: Vec::new(),
            resources: DirectResources::default(),
            is_const: false,
        })),
        Update::Register {
            id: info.registers().by_name_or_alias("In.words").unwrap().id,
            index: Some(7),
            data: Data::Bits(bits(96, 1 << 95)),
        },
        Update::Meter {
            id: info.meters().by_name_or_alias("In.rates").unwrap().id,
            index: Some(3),
            config: Some(MeterConfig {
                committed_rate: 1,
                committed_burst: 2,
                peak_rate: 3,
                peak_burst: 4,
                excess_burst: 0,
            }),
            reset_counters: false,
        },
        Update::CloneSession(Change::Insert(CloneSession {
            id: 9.into(),
            replicas: vec![replica.clone()],
            class_of_service: 0,
            packet_length_bytes: 0,
        })),
        Update::MulticastGroup(Change::Insert(MulticastGroup {
            id: 4.into(),
            replicas: vec![replica],
            metadata: Vec::new(),
        })),
    ];
    controller.write(&updates);
}

#[test]
fn reconcile_keeps_written_state_or_makes_no_change() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    fill(&mut controller);
    let before = controller.read_all();
    controller.reconcile(&reformatted(&packets())).unwrap();
    assert_eq!(controller.read_all(), before);
    // The same program keeps running.
    controller.reconcile(&reformatted(&packets())).unwrap();
    assert_eq!(controller.read_all(), before);
    let sent = frame(2, 0x1234, b"copied");
    fixture.send(0, &sent);
    for port in [1, 2] {
        assert_eq!(fixture.receive(port), sent);
    }
    let before = controller.read_all();
    let result = controller.reconcile(&everything());
    let Err(ClientError::Rejected(status)) = result else {
        panic!("{result:?}");
    };
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(controller.read_all(), before);
    fixture.send(0, &sent);
    assert_eq!(fixture.receive(1), sent);
}

#[test]
fn no_packet_is_lost_during_program_changes() {
    const PACKETS: u32 = 20_000;
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let flow = controller.flow(1, "In.to_port", &[1]);
    controller.write(&[insert(flow)]);
    let (original, reformatted_pipeline) = (packets(), reformatted(&packets()));
    let done = AtomicBool::new(false);
    let change_count = std::thread::scope(|scope| {
        let controller_thread = scope.spawn(|| {
            let mut change_count = 0;
            while !done.load(Ordering::Relaxed) || change_count == 0 {
                for pipeline in [&reformatted_pipeline, &original] {
                    controller.reconcile(pipeline).unwrap();
                    change_count += 1;
                }
            }
            change_count
        });
        for number in 0..PACKETS {
            fixture.send(0, &frame(1, 0x1234, &number.to_be_bytes()));
            assert_eq!(fixture.receive(1)[14..], number.to_be_bytes());
        }
        done.store(true, Ordering::Relaxed);
        controller_thread.join().unwrap()
    });
    assert!(change_count > 1, "{change_count}");
    assert!(fixture.is_silent());
}
