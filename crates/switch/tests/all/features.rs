//! Checks of the programs in p4/features: together they use every construct that the switch supports, and the
//! checked-in BMv2 outputs belong to the current inputs. `programs` runs these programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Required constructs, named as in [`constructs_of`].
const REQUIRED: &[(&str, &[&str])] = &[
    (
        "parsers",
        &[
            "op extract",
            "op extract_VL",
            "op set",
            "op verify",
            "op advance",
            "op primitive",
            "type lookahead",
            "type stack_field",
            "type hexstr",
            "type default",
            "type parse_vset",
            "parser mask",
            "parser loop",
            "new error",
        ],
    ),
    (
        "headers",
        &[
            "varbit",
            "header stack",
            "header union",
            "union stack",
            "op push",
            "op pop",
            "op add_header",
            "op remove_header",
            "op assign_header",
            "op assign_header_stack",
            "op assign_VL",
            "op dereference_header_stack",
            "op last_stack_index",
            "op valid_union",
        ],
    ),
    (
        "arithmetic",
        &[
            "op +",
            "op -",
            "op *",
            "op <<",
            "op >>",
            "op &",
            "op |",
            "op ^",
            "op ~",
            "op ==",
            "op !=",
            "op <",
            "op <=",
            "op >",
            "op >=",
            "op and",
            "op or",
            "op not",
            "op ?",
            "op b2d",
            "op d2b",
            "op two_comp_mod",
            "op sat_cast",
            "op usat_cast",
            "field of at most 64 bits",
            "field of at most 128 bits",
            "field of more bits",
            "signed field",
        ],
    ),
    (
        "hashes and checksums",
        &[
            "op modify_field_with_hash_based_offset",
            "algo crc16",
            "algo crc32",
            "algo crc16_custom",
            "algo crc32_custom",
            "algo csum16",
            "algo xor16",
            "algo identity",
            "type payload",
            "checksum verified",
            "checksum updated",
            "checksum on condition",
        ],
    ),
    (
        "registers, counters, meters",
        &[
            "op register_read",
            "op register_write",
            "register of at most 64 bits",
            "register of at most 128 bits",
            "register of more bits",
            "op count",
            "direct counter",
            "op execute_meter",
            "meter of packets",
            "meter of bytes",
            "meter of two rates",
            "direct meter",
        ],
    ),
    (
        "tables",
        &[
            "match exact",
            "match lpm",
            "match ternary",
            "match range",
            "key with a mask",
            "no key",
            "constant entries",
            "constant default",
            "action profile",
            "action selector",
            "idle timeout",
            "op _jump",
            "op _jump_if_zero",
            "hit and miss",
            "next by action",
        ],
    ),
    (
        "traffic",
        &[
            "op clone_ingress_pkt_to_egress",
            "op clone_egress_pkt_to_egress",
            "op resubmit",
            "op recirculate",
            "op generate_digest",
            "op truncate",
            "op mark_to_drop",
            "field list",
            "mcast_grp",
            "egress_rid",
        ],
    ),
    (
        "other",
        &[
            "op exit",
            "op assert",
            "op assume",
            "op log_msg",
            "op modify_field_rng_uniform",
            "value set",
        ],
    ),
];

fn p4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4")
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

fn is_true(value: &Value, name: &str) -> bool {
    value.get(name) == Some(&Value::Bool(true))
}

/// Constructs of a compiled program.
fn constructs_of(program: &Value) -> BTreeSet<String> {
    let mut constructs = BTreeSet::new();
    collect_constructs(program, &mut constructs);
    for (kind, name) in [
        ("header_stacks", "header stack"),
        ("header_unions", "header union"),
        ("header_union_stacks", "union stack"),
        ("field_lists", "field list"),
        ("parse_vsets", "value set"),
    ] {
        if list(program, kind).next().is_some() {
            constructs.insert(name.into());
        }
    }
    // core.p4 declares seven errors.
    if list(program, "errors").count() > 7 {
        constructs.insert("new error".into());
    }
    for field in list(program, "header_types").flat_map(|kind| list(kind, "fields")) {
        let signed = field.get(2) == Some(&Value::Bool(true));
        match field.get(1).and_then(Value::as_u64) {
            None => constructs.insert("varbit".into()),
            Some(bits) => constructs.insert(format!("field of {}", width(bits))),
        };
        if signed {
            constructs.insert("signed field".into());
        }
    }
    for array in list(program, "register_arrays") {
        let bits = array.get("bitwidth").and_then(Value::as_u64).unwrap();
        constructs.insert(format!("register of {}", width(bits)));
    }
    for array in list(program, "meter_arrays") {
        constructs.insert(format!("meter of {}", text(array, "type").unwrap()));
        if array.get("rate_count") == Some(&2.into()) {
            constructs.insert("meter of two rates".into());
        }
    }
    for sum in list(program, "checksums") {
        for (word, name) in [("verify", "checksum verified"), ("update", "checksum updated")] {
            if is_true(sum, word) {
                constructs.insert(name.into());
            }
        }
        if sum.get("if_cond").is_some_and(Value::is_object) {
            constructs.insert("checksum on condition".into());
        }
    }
    list(program, "parsers").for_each(|parser| parser_constructs(parser, &mut constructs));
    for pipeline in list(program, "pipelines") {
        list(pipeline, "tables").for_each(|table| table_constructs(table, &mut constructs));
    }
    constructs
}

fn width(bits: u64) -> &'static str {
    match bits {
        0..=64 => "at most 64 bits",
        65..=128 => "at most 128 bits",
        _ => "more bits",
    }
}

/// Operations and types at any depth.
fn collect_constructs(value: &Value, constructs: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, name) in [
                ("op", "op"),
                ("type", "type"),
                ("match_type", "match"),
                ("algo", "algo"),
            ] {
                if let Some(word) = text(value, key) {
                    constructs.insert(format!("{name} {word}"));
                }
            }
            fields
                .values()
                .for_each(|inner| collect_constructs(inner, constructs));
        }
        Value::Array(items) => items
            .iter()
            .for_each(|inner| collect_constructs(inner, constructs)),
        Value::String(word) if word == "mcast_grp" || word == "egress_rid" => {
            constructs.insert(word.clone());
        }
        _ => {}
    }
}

fn parser_constructs(parser: &Value, constructs: &mut BTreeSet<String>) {
    let mut earlier_states = BTreeSet::new();
    for state in list(parser, "parse_states") {
        earlier_states.insert(text(state, "name").unwrap());
        for transition in list(state, "transitions") {
            if transition.get("mask").is_some_and(Value::is_string) {
                constructs.insert("parser mask".into());
            }
            if text(transition, "next_state").is_some_and(|next| earlier_states.contains(next)) {
                constructs.insert("parser loop".into());
            }
        }
    }
}

fn table_constructs(table: &Value, constructs: &mut BTreeSet<String>) {
    let next = table.get("next_tables").and_then(Value::as_object).unwrap();
    let default = table.get("default_entry");
    let kind = text(table, "type");
    for (is_present, name) in [
        (list(table, "key").next().is_none(), "no key"),
        (
            list(table, "key").any(|key| !key["mask"].is_null()),
            "key with a mask",
        ),
        (list(table, "entries").next().is_some(), "constant entries"),
        (
            default.is_some_and(|entry| is_true(entry, "action_const")),
            "constant default",
        ),
        (kind == Some("indirect"), "action profile"),
        (kind == Some("indirect_ws"), "action selector"),
        (is_true(table, "support_timeout"), "idle timeout"),
        (is_true(table, "with_counters"), "direct counter"),
        (table["direct_meters"].is_string(), "direct meter"),
        (next.contains_key("__HIT__"), "hit and miss"),
        (next.len() > 1 && !next.contains_key("__HIT__"), "next by action"),
    ] {
        if is_present {
            constructs.insert(name.into());
        }
    }
}

/// Constructs of each compiled program for whose name `is_selected` returns true.
fn programs(folder: &Path, is_selected: impl Fn(&str) -> bool) -> BTreeMap<String, BTreeSet<String>> {
    let mut programs = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_some_and(|extension| extension == "json") && is_selected(&name) {
            let program = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            programs.insert(name, constructs_of(&program));
        }
    }
    programs
}

fn features() -> BTreeMap<String, BTreeSet<String>> {
    programs(&p4().join("compiled"), |name| name.starts_with("feature-"))
}

#[test]
fn every_construct_occurs_in_a_feature_program() {
    let features = features();
    let mut missing = Vec::new();
    for (subject, constructs) in REQUIRED {
        for construct in *constructs {
            let program_names: Vec<_> = features
                .iter()
                .filter(|(_, used)| used.contains(*construct))
                .map(|(name, _)| name.as_str())
                .collect();
            println!("{subject}: {construct}: {}", program_names.join(" "));
            if program_names.is_empty() {
                missing.push(format!("{subject}: {construct}"));
            }
        }
    }
    assert!(missing.is_empty(), "in no program of p4/features: {missing:#?}");
}

/// Programs of this project, and of p4c's test suite if `LINEWARDEN_P4C_COMPILED` is set (module `p4c`).
#[test]
fn feature_programs_cover_all_other_programs() {
    let covered: BTreeSet<String> = features().into_values().flatten().collect();
    let mut others = programs(&p4().join("compiled"), |name| !name.starts_with("feature-"));
    if let Some(folder) = std::env::var_os("LINEWARDEN_P4C_COMPILED") {
        others.append(&mut programs(Path::new(&folder), |_| true));
    }
    for (name, constructs) in others {
        let uncovered: Vec<_> = constructs.difference(&covered).collect();
        assert!(
            uncovered.is_empty(),
            "{name} has constructs that no feature program has: {uncovered:?}; add them to a program in p4/features"
        );
    }
}

#[test]
fn bmv2_outputs_match_current_inputs() {
    const HOW_TO_FIX: &str = "run `make bmv2` where BMv2 is installed, and commit the files that it writes";
    for name in features().keys() {
        let feature = name.strip_prefix("feature-").unwrap();
        let inputs = p4().join(format!("features/{feature}.inputs"));
        // A program without inputs for BMv2 has its own tests; the module `p4_artifacts` checks that these exist.
        let Ok(inputs) = fs::read(inputs) else { continue };
        let test = p4().join(format!("tests/{name}-bmv2.stf"));
        let test = fs::read_to_string(test).unwrap_or_else(|error| panic!("{name}: {error}; {HOW_TO_FIX}"));
        let sum = hex::encode(Sha256::digest(inputs));
        assert!(
            test.contains(&format!("# SHA-256 of the inputs: {sum}\n")),
            "{name}: the BMv2 outputs are older than the inputs; {HOW_TO_FIX}"
        );
    }
}
