//! Loading of deeply nested, large or damaged programs: `load` reports the error, or the program runs.

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
    let first_expression = statements
        .filter(|statement| statement["op"] == "assign")
        .map(|statement| &mut statement["parameters"][1])
        .find(|value| value["type"] == "expression");
    *first_expression.unwrap() = json!("the sum");
    let one = json!({ "type": "hexstr", "value": "0x1" });
    let left = format!(r#"{{"type":"expression","value":{{"op":"+","right":{one},"left":"#);
    let innermost = json!({ "type": "field", "value": ["in_", "a"] });
    let sum = format!("{}{innermost}{}", left.repeat(depth), "}}".repeat(depth));
    program.to_string().replace(r#""the sum""#, &sum)
}

/// Standard metadata fields that the switch sets for program `router` after this change.
fn fields_set_after(change: impl FnOnce(&mut Value)) -> Vec<&'static str> {
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
    let fields_set = fields.into_iter().filter(|(_, location)| location.is_some());
    fields_set.map(|(name, _)| name).collect()
}

/// Appends a statement to the first action.
fn statement(json: &mut Value, op: &str, parameter: &Value) {
    let statement = json!({ "op": op, "parameters": [parameter] });
    json["actions"][0]["primitives"]
        .as_array_mut()
        .unwrap()
        .push(statement);
}

/// Declares `name` as an alias of a field.
fn alias(json: &mut Value, name: &str, field: [&str; 2]) {
    let aliases = json["field_aliases"].as_array_mut().unwrap();
    aliases.retain(|alias| alias[0] != name);
    aliases.push(json!([name, field]));
}

#[test]
fn standard_metadata_is_set_if_used() {
    // `mark_to_drop` names the header but uses only the egress port.
    assert_eq!(fields_set_after(|_| ()), ["egress_port", "checksum_error"]);
    let all_fields = [
        "egress_port",
        "checksum_error",
        "ingress_port",
        "packet_length",
        "mcast_grp",
        "priority",
    ];
    let header = json!({ "type": "header", "value": "standard_metadata" });
    assert_eq!(
        fields_set_after(|json| statement(json, "remove_header", &header)),
        all_fields
    );
    let add_stack_of_header = |json: &mut Value| {
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
        fields_set_after(add_stack_of_header),
        all_fields,
        "a stack contains the standard metadata header"
    );
    let add_ipv4_checksum = |json: &mut Value| {
        let checksum = &mut json["checksums"].as_array_mut().unwrap()[0];
        checksum["type"] = json!("ipv4");
        checksum["target"] = json!(["standard_metadata", "egress_spec"]);
    };
    assert_eq!(
        fields_set_after(add_ipv4_checksum),
        all_fields,
        "a checksum includes the standard metadata header"
    );
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
        fields_set_after(group),
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
        fields_set_after(priority),
        ["egress_port", "checksum_error", "packet_length", "priority"]
    );
    let spec = |json: &mut Value| {
        alias(
            json,
            "standard_metadata.packet_length",
            ["standard_metadata", "egress_spec"],
        )
    };
    assert_eq!(
        fields_set_after(spec),
        ["egress_port", "checksum_error", "packet_length"]
    );
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
    for opening in ["[", r#"{"a":"#, r#"{"a":["#] {
        let text = format!("{{\n \"]\\\"\": {}", opening.repeat(100_000));
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
    // Each array needs half a GiB, and the limit for all arrays is 1 GiB.
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

/// Sink that discards all frames.
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

/// Appends the path of every value in a document to `paths`.
fn collect_paths(value: &Value, path: &str, paths: &mut Vec<String>) {
    paths.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect_paths(inner, &format!("{path}/{name}"), paths);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                collect_paths(inner, &format!("{path}/{index}"), paths);
            }
        }
        _ => {}
    }
}

/// Replaces the value at a random path, mostly by another value with the same key.
fn damage(program: &mut Value, paths: &[String], rng: &mut ChaCha8Rng) {
    let mut pick = || &paths[rng.random_range(0..paths.len())];
    let target = pick().clone();
    let key = |path: &str| path.rsplit_once('/').map(|(_, key)| key.to_owned());
    let path_with_same_key = (0..500)
        .map(|_| pick().clone())
        .find(|path| key(path) == key(&target));
    let any_path = pick().clone();
    let value_at = |path: &str| program.pointer(path).cloned().unwrap_or(Value::Null);
    let (value_of_same_key, any_value) = (
        path_with_same_key.map(|path| value_at(&path)),
        value_at(&any_path),
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
        9 => any_value,
        10..16 => match value {
            Value::Bool(flag) => json!(!*flag),
            Value::Number(number) => json!(number.as_u64().unwrap_or(0) ^ (1 << (random >> 5 & 15))),
            _ => value.clone(),
        },
        _ => value_of_same_key.unwrap_or(Value::Null),
    };
}

/// Loads `LINEWARDEN_SEEDS` programs, starting with seed `LINEWARDEN_SEED`. Each program has one to three damaged values.
/// Accepted programs process packets.
#[test]
fn damaged_programs_are_rejected_or_run() {
    let number = |name: &str, default: u64| {
        let variable = std::env::var(name);
        variable.map_or(default, |number| number.parse().unwrap())
    };
    let (first, count) = (number("LINEWARDEN_SEED", 0), number("LINEWARDEN_SEEDS", 1500));
    let mut names: Vec<String> = fs::read_dir(compiled())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
        .filter(|name| name.starts_with("feature-") || name == "router")
        .collect();
    names.sort();
    let intact_programs: Vec<(Value, Vec<String>)> = names
        .iter()
        .map(|name| {
            let program = program(name);
            let mut paths = Vec::new();
            collect_paths(&program, "", &mut paths);
            // Never replace the whole program.
            (program, paths.split_off(1))
        })
        .collect();
    let (mut rejected_count, mut run_count) = (0, 0);
    for seed in first..first + count {
        let name = &names[seed as usize % names.len()];
        println!("{name}: LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1 repeats this test");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut program, paths) = intact_programs[seed as usize % intact_programs.len()].clone();
        for _ in 0..rng.random_range(1..4) {
            damage(&mut program, &paths, &mut rng);
        }
        match load(program.to_string().as_bytes()) {
            Err(error) => {
                rejected_count += 1;
                assert!(
                    !error.location.is_empty() && !error.problem.is_empty(),
                    "{error:?}"
                );
            }
            Ok(_) => run_count += u64::from(runs(&program, &mut rng)),
        }
    }
    println!("{rejected_count} programs rejected, {run_count} programs run");
    assert!(count < 1000 || (rejected_count > count / 10 && run_count > count / 10));
}

/// Whether a loaded program can be installed. An installed program then processes packets.
fn runs(program: &Value, rng: &mut ChaCha8Rng) -> bool {
    // Arrays up to a GiB are valid, but too large for this test.
    let has_large_array = |kind: &str| {
        let arrays = program[kind].as_array().into_iter().flatten();
        arrays
            .filter_map(|array| array["size"].as_u64())
            .any(|size| size > 1 << 16)
    };
    if ["register_arrays", "counter_arrays", "meter_arrays"]
        .into_iter()
        .any(has_large_array)
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
        worker.batch(now_us, |batch| {
            batch.packet(1, &packet, &mut NullSink, &mut NullSink)
        });
    }
    true
}
