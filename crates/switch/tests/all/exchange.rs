//! Program replacement under traffic.

use std::sync::atomic::{AtomicBool, Ordering};

use linewarden_switch::engine::Sink;
use linewarden_switch::exec::{Fault, RandomSource};
use linewarden_switch::switch::{Settings, Slot, Switch};
use linewarden_switch::tables::HashSeed;
use serde_json::json;

/// Minimal program that sends every packet to one port.
fn program(port: u32) -> Vec<u8> {
    let field = |name: &str| json!({"type": "field", "value": ["standard_metadata", name]});
    let empty = json!([]);
    let pipeline = |name: &str, init: serde_json::Value, tables: serde_json::Value| json!({"name": name, "init_table": init, "tables": tables, "conditionals": []});
    let table = json!([{
        "name": "all", "id": 0, "type": "simple", "match_type": "exact", "key": [], "max_size": 1,
        "action_ids": [0], "next_tables": {"send": null},
        "default_entry": {"action_id": 0, "action_data": [], "action_const": true, "action_entry_const": true}
    }]);
    let standard = json!([
        ["ingress_port", 9],
        ["egress_spec", 9],
        ["egress_port", 9],
        ["instance_type", 32],
        ["packet_length", 32],
        ["pad", 5]
    ]);
    let document = json!({
        "header_types": [{"name": "standard_metadata", "id": 0, "fields": standard}],
        "headers": [{"name": "standard_metadata", "id": 0, "header_type": "standard_metadata", "metadata": true}],
        "parsers": [{"name": "parser", "init_state": "start", "parse_states": [
            {"name": "start", "parser_ops": [], "transition_key": [], "transitions": []}
        ]}],
        "deparsers": [{"name": "deparser", "order": empty}],
        "actions": [{"name": "send", "id": 0, "runtime_data": [], "primitives": [
            {"op": "assign", "parameters": [field("egress_spec"), {"type": "hexstr", "value": format!("{port:#x}")}]}
        ]}],
        "pipelines": [pipeline("ingress", json!("all"), table), pipeline("egress", json!(null), json!([]))],
    });
    document.to_string().into_bytes()
}

struct NoRandom;

impl RandomSource for NoRandom {
    fn between(&mut self, low: u64, _high: u64) -> u64 {
        low
    }
}

#[derive(Default)]
struct CountingSink {
    sent: Vec<u32>,
    dropped: u32,
}

impl Sink for CountingSink {
    fn send(&mut self, port: u32, _headers: &[u8], _payload: &[u8]) {
        self.sent.push(port);
    }

    fn digest(&mut self, _number: u32, _values: Vec<Vec<u8>>) {}

    fn fault(&mut self, _fault: Fault) {}

    fn dropped(&mut self) {
        self.dropped += 1;
    }
}

#[test]
fn packets_are_dropped_without_a_program() {
    let mut ports = CountingSink::default();
    Slot::default()
        .worker()
        .batch(0, |batch| batch.packet(0, b"packet", &mut NoRandom, &mut ports));
    assert_eq!((ports.sent, ports.dropped), (vec![], 1));
}

#[test]
fn every_batch_runs_in_a_single_program() {
    let switch = |port| Switch::new(&program(port), Settings::default(), &HashSeed::random()).unwrap();
    let (first_switch, second_switch) = (switch(1), switch(2));
    let slot = Slot::default();
    slot.run(&first_switch);
    let mut worker = slot.worker();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                slot.run(&second_switch);
                slot.run(&first_switch);
            }
        });
        let mut has_sent = [false; 3];
        while !(has_sent[1] && has_sent[2]) {
            let mut ports = CountingSink::default();
            worker.batch(0, |batch| {
                for _ in 0..16 {
                    batch.packet(0, b"packet", &mut NoRandom, &mut ports);
                }
            });
            let sent_port = ports.sent[0];
            assert_eq!(ports.sent, vec![sent_port; 16]);
            has_sent[sent_port as usize] = true;
        }
        stop.store(true, Ordering::Relaxed);
    });
}
