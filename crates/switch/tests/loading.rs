//! Loading of deeply nested, large or damaged programs: `load` reports the error, or the program runs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation
)]

use std::fs;
use std::path::{Path, PathBuf};

use linewarden_switch::engine::Sink;
use linewarden_switch::exec::{Fault, RandomSource};
use linewarden_switch::load::load;
use linewarden_switch::switch::{Settings, Switch};
use linewarden_switch::tables::HashSeed;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

fn compiled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/compiled")
}

fn program(name: &str) -> Value {
    let text = fs::read(compiled().join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Program with an expression of this depth: `((a + 1) + 1) + ..`.
fn sum(depth: usize) -> String {
    let mut program = program("feature-arithmetic");
    let actions = program["actions"].as_array_mut().unwrap();
    let statements = actions.iter_mut().flat_map(|action| {
        let primitives = action["primitives"].as_array_mut();
        primitives.unwrap().iter_mut()
    });
    let assigned = statements
        .filter(|statement| statement["op"] == "assign")
        .map(|statement| &mut statement["parameters"][1])
        .find(|value| value["type"] == "expression");
    *assigned.unwrap() = json!("the sum");
    let one = json!({ "type": "hexstr", "value": "0x1" });
    let left = format!(r#"{{"type":"expression","value":{{"op":"+","right":{one},"left":"#);
    let innermost = json!({ "type": "field", "value": ["in_", "a"] });
    let sum = format!("{}{innermost}{}", left.repeat(depth), "}}".repeat(depth));
    program.to_string().replace(r#""the sum""#, &sum)
}

/// Standard metadata fields that are set for `router` after this change.
fn set_for(change: impl FnOnce(&mut Value)) -> Vec<&'static str> {
    let mut json = program("router");
    change(&mut json);
    let switch = Switch::new(json.to_string().as_bytes(), Settings::default(), &seed()).unwrap();
    let standard = &switch.executable().standard_metadata;
    let fields = [
        ("egress_port", standard.egress_port),
        ("checksum_error", standard.checksum_error),
        ("ingress_port", standard.ingress_port),
        ("packet_length", standard.packet_length),
        ("mcast_grp", standard.mcast_grp),
        ("priority", standard.priority),
    ];
    let set = fields.into_iter().filter(|(_, place)| place.is_some());
    set.map(|(name, _)| name).collect()
}

/// Appends a statement to the first action.
fn statement(json: &mut Value, op: &str, parameter: &Value) {
    let statement = json!({ "op": op, "parameters": [parameter] });
    json["actions"][0]["primitives"]
        .as_array_mut()
        .unwrap()
        .push(statement);
}

/// Makes `NAME.FIELD` an alias of another field.
fn alias(json: &mut Value, name: &str, field: [&str; 2]) {
    let aliases = json["field_aliases"].as_array_mut().unwrap();
    aliases.retain(|alias| alias[0] != name);
    aliases.push(json!([name, field]));
}

#[test]
fn standard_metadata_is_set_if_used() {
    // `mark_to_drop` names the header but uses only the egress port.
    assert_eq!(set_for(|_| ()), ["egress_port", "checksum_error"]);
    let all = [
        "egress_port",
        "checksum_error",
        "ingress_port",
        "packet_length",
        "mcast_grp",
        "priority",
    ];
    let header = json!({ "type": "header", "value": "standard_metadata" });
    assert_eq!(set_for(|json| statement(json, "remove_header", &header)), all);
    let by_number = |json: &mut Value| {
        let headers = json["headers"].as_array().unwrap();
        let standard = headers
            .iter()
            .find(|header| header["name"] == "standard_metadata");
        let (id, kind) = (
            standard.unwrap()["id"].clone(),
            standard.unwrap()["header_type"].clone(),
        );
        json["header_stacks"] =
            json!([{ "name": "s", "id": 0, "header_type": kind, "size": 1, "header_ids": [id] }]);
    };
    assert_eq!(
        set_for(by_number),
        all,
        "its fields are reached through the stack"
    );
    let ipv4 = |json: &mut Value| {
        let checksum = &mut json["checksums"].as_array_mut().unwrap()[0];
        checksum["type"] = json!("ipv4");
        checksum["target"] = json!(["standard_metadata", "egress_spec"]);
    };
    assert_eq!(set_for(ipv4), all, "a checksum over it");
}

/// The switch reads egress port, multicast group and priority through the fields that the aliases name.
#[test]
fn aliased_standard_metadata_is_set() {
    let group = |json: &mut Value| {
        alias(
            json,
            "intrinsic_metadata.mcast_grp",
            ["standard_metadata", "ingress_port"],
        )
    };
    assert_eq!(
        set_for(group),
        ["egress_port", "checksum_error", "ingress_port", "mcast_grp"]
    );
    let priority = |json: &mut Value| {
        alias(
            json,
            "intrinsic_metadata.priority",
            ["standard_metadata", "packet_length"],
        )
    };
    assert_eq!(
        set_for(priority),
        ["egress_port", "checksum_error", "packet_length", "priority"]
    );
    let spec = |json: &mut Value| {
        alias(
            json,
            "standard_metadata.packet_length",
            ["standard_metadata", "egress_spec"],
        )
    };
    assert_eq!(set_for(spec), ["egress_port", "checksum_error", "packet_length"]);
}

#[test]
fn long_sums_are_loaded() {
    Switch::new(sum(390).as_bytes(), Settings::default(), &seed()).unwrap();
}

#[test]
fn too_deep_nesting_is_rejected_anywhere() {
    let error = load(sum(450).as_bytes()).unwrap_err();
    assert!(
        error
            .problem
            .contains("nesting exceeds the maximum of 400 levels")
            && error.location.starts_with("actions["),
        "{error}"
    );
    for open in ["[", r#"{"a":"#, r#"{"a":["#] {
        let text = format!("{{\n \"]\\\"\": {}", open.repeat(100_000));
        let error = load(text.as_bytes()).unwrap_err();
        assert_eq!(error.problem, "nesting exceeds the maximum of 1024 levels");
        assert!(error.location.starts_with("line 2, column "), "{error}");
    }
    let error = load(sum(100_000).as_bytes()).unwrap_err();
    assert_eq!(error.problem, "nesting exceeds the maximum of 1024 levels");
}

#[test]
fn brackets_in_strings_add_no_depth() {
    let mut program = program("router");
    program["note"] = json!(r#"\"[{"#.repeat(2000));
    load(program.to_string().as_bytes()).unwrap();
}

#[test]
fn total_array_size_is_limited() {
    let mut program = program("router");
    let array = |name: &str, size: u32| json!({ "name": name, "id": 0, "size": size, "bitwidth": 64 });
    // Twice half a GiB is the limit.
    program["register_arrays"] = json!([array("a", 1 << 26), array("b", 1 << 26)]);
    load(program.to_string().as_bytes()).unwrap();
    program["counter_arrays"] = json!([{ "name": "c", "id": 0, "is_direct": false, "size": 1 }]);
    let error = load(program.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.location, "register_arrays[1] (b)");
    assert!(
        error
            .problem
            .starts_with("array needs 536870912 bytes: the limit for all arrays is 1073741824, "),
        "{error}"
    );
    program["register_arrays"] = json!([array("a", (1 << 26) + 1)]);
    let error = load(program.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.problem, "array has 67108865 cells: the maximum is 67108864");
}

fn seed() -> HashSeed {
    HashSeed::new([1, 2, 3, 4])
}

/// Egress that discards all frames.
struct NullSink;

impl Sink for NullSink {
    fn send(&mut self, _port: u32, _headers: &[u8], _payload: &[u8]) {}
    fn digest(&mut self, _number: u32, _values: Vec<Vec<u8>>) {}
    fn fault(&mut self, _fault: Fault) {}
    fn dropped(&mut self) {}
}

impl RandomSource for NullSink {
    fn between(&mut self, low: u64, _high: u64) -> u64 {
        low
    }
}

/// Path of every value in a document.
fn places(value: &Value, here: &str, found: &mut Vec<String>) {
    found.push(here.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                places(inner, &format!("{here}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (at, inner) in items.iter().enumerate() {
                places(inner, &format!("{here}/{at}"), found);
            }
        }
        _ => {}
    }
}

/// Replaces the value at a path: mostly by a value of the same key elsewhere, else by an invalid value.
fn damage(program: &mut Value, places: &[String], rng: &mut ChaCha8Rng) {
    let mut pick = || &places[rng.random_range(0..places.len())];
    let target = pick().clone();
    let name = |place: &str| place.rsplit_once('/').map(|(_, name)| name.to_owned());
    let same_key_values = (0..500)
        .map(|_| pick().clone())
        .find(|place| name(place) == name(&target));
    let other_value = pick().clone();
    let value_at = |place: &str| program.pointer(place).cloned().unwrap_or(Value::Null);
    let (same_key_values, other_value) = (
        same_key_values.map(|place| value_at(&place)),
        value_at(&other_value),
    );
    let Some(value) = program.pointer_mut(&target) else {
        return;
    };
    let random = rng.next_u32();
    *value = match random % 32 {
        0 => Value::Null,
        1 => json!(random >> 5),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(0),
        5 => json!(""),
        6 => json!("0xffffffffffffffffffffffffffffffff"),
        7 => json!([]),
        8 => json!({}),
        9 => other_value,
        10..16 => match value {
            Value::Bool(flag) => json!(!*flag),
            Value::Number(number) => json!(number.as_u64().unwrap_or(0) ^ (1 << (random >> 5 & 15))),
            _ => value.clone(),
        },
        _ => same_key_values.unwrap_or(Value::Null),
    };
}

/// Loads `LINEWARDEN_SEEDS` programs, from seed `LINEWARDEN_SEED` on, each damaged in one to three places. Accepted programs
/// process packets.
#[test]
fn damaged_programs_are_rejected_or_run() {
    let number = |name: &str, otherwise: u64| {
        let given = std::env::var(name);
        given.map_or(otherwise, |number| number.parse().unwrap())
    };
    let (first, count) = (number("LINEWARDEN_SEED", 0), number("LINEWARDEN_SEEDS", 1500));
    let mut names: Vec<String> = fs::read_dir(compiled())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
        .filter(|name| name.starts_with("feature-") || name == "router")
        .collect();
    names.sort();
    let sound: Vec<(Value, Vec<String>)> = names
        .iter()
        .map(|name| {
            let program = program(name);
            let mut found = Vec::new();
            places(&program, "", &mut found);
            // Never replace the whole program.
            (program, found.split_off(1))
        })
        .collect();
    let (mut refused, mut ran) = (0, 0);
    for seed in first..first + count {
        let name = &names[seed as usize % names.len()];
        println!("{name}: LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats it");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut program, places) = sound[seed as usize % sound.len()].clone();
        for _ in 0..rng.random_range(1..4) {
            damage(&mut program, &places, &mut rng);
        }
        match load(program.to_string().as_bytes()) {
            Err(error) => {
                refused += 1;
                assert!(
                    !error.location.is_empty() && !error.problem.is_empty(),
                    "{error:?}"
                );
            }
            Ok(_) => ran += u64::from(runs(&program, &mut rng)),
        }
    }
    println!("{refused} refused, {ran} ran");
    assert!(count < 1000 || (refused > count / 10 && ran > count / 10));
}

/// Whether a loaded program can be installed. An installed program then processes packets.
fn runs(program: &Value, rng: &mut ChaCha8Rng) -> bool {
    // Arrays up to a GiB are valid, but too large for this test.
    let big = |kind: &str| {
        let arrays = program[kind].as_array().into_iter().flatten();
        arrays
            .filter_map(|array| array["size"].as_u64())
            .any(|size| size > 1 << 16)
    };
    if ["register_arrays", "counter_arrays", "meter_arrays"]
        .into_iter()
        .any(big)
    {
        return false;
    }
    let text = program.to_string();
    let Ok(switch) = Switch::new(text.as_bytes(), Settings::default(), &seed()) else {
        return false;
    };
    let mut worker = switch.worker();
    for now_us in 0..4 {
        let mut packet = vec![0; rng.random_range(0..120)];
        rng.fill_bytes(&mut packet[..]);
        worker.batch(now_us, |taking| {
            taking.packet(1, &packet, &mut NullSink, &mut NullSink)
        });
    }
    true
}
