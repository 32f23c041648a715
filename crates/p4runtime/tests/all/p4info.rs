//! Compares the P4Info that p4c generates with the BMv2 JSON of the same program, and checks a malformed P4Info for
//! each error.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use linewarden_harness::skip;
use linewarden_p4runtime::ids::FieldId;
use linewarden_p4runtime::p4info::{ActionScope, Format, Index, MatchKind, P4Info, Type};
use linewarden_p4runtime::proto::config;
use prost::Message;
use serde_json::Value;

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn everything() -> P4Info {
    P4Info::from_text(&data("everything.p4info.txtpb")).unwrap()
}

#[test]
fn all_elements_are_found_by_name_and_alias() {
    let info = everything();
    let acl = info.tables().by_name_or_alias("In.acl").unwrap();
    assert_eq!(info.tables().by_name_or_alias("acl").unwrap().id, acl.id);
    let kinds: Vec<_> = acl
        .fields
        .iter()
        .map(|field| (field.name.as_str(), field.format, field.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("hdr.ipv4.src", Format::Bits(32), MatchKind::Ternary),
            ("hdr.ipv4.protocol", Format::Bits(8), MatchKind::Optional),
            ("hdr.ipv4.total_len", Format::Bits(16), MatchKind::Range),
            ("std.ingress_port", Format::Bits(9), MatchKind::Exact),
        ]
    );
    assert_eq!(acl.fields[3].id, FieldId(4));
    assert!(acl.needs_priority());
    assert_eq!(acl.counter.as_ref().unwrap().name, "In.acl_hits");
    assert_eq!(acl.meter.as_ref().unwrap().name, "In.acl_rate");
    let deny = info.actions().by_name_or_alias("deny").unwrap().id;
    assert_eq!(acl.scope(deny), Some(ActionScope::TableOnly));
    let mac = info.tables().by_name_or_alias("mac").unwrap();
    assert!(mac.idle_timeout && !mac.needs_priority());
    assert_eq!(mac.size, 4);
    assert_eq!(
        mac.scope(info.actions().by_name_or_alias("learn").unwrap().id),
        Some(ActionScope::DefaultOnly)
    );
    let vrf = info.tables().by_name_or_alias("vrf_of_port").unwrap();
    assert!(vrf.is_const && vrf.has_initial_entries && vrf.const_default.is_some());
    assert!(
        info.tables()
            .by_name_or_alias("everywhere")
            .unwrap()
            .fields
            .is_empty()
    );
    let selector = info.profiles().by_name_or_alias("next_hops").unwrap();
    assert!(selector.with_selector && !info.profiles().by_name_or_alias("ports").unwrap().with_selector);
    assert_eq!(
        info.tables().by_name_or_alias("routes").unwrap().profile,
        Some(selector.id)
    );
    assert_eq!(
        info.value_sets().by_name_or_alias("tunnel_types").unwrap().size,
        4
    );
    assert_eq!(
        *info.registers().by_name_or_alias("last_seen").unwrap().data,
        Type::Bits(48)
    );
    let Type::Struct(members) = &*info.digests().by_name_or_alias("learned_t").unwrap().data else {
        panic!()
    };
    assert_eq!(
        members.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["src", "port", "moved"]
    );
    assert_eq!(*members[2].1, Type::Bool);
    assert_eq!(info.packet_in().unwrap().fields.len(), 2);
    assert_eq!(info.packet_out().unwrap().fields[0].name, "egress_port");
}

#[test]
fn binary_and_text_formats_give_the_same_message() {
    let info = everything();
    let from_binary = P4Info::from_binary(&info.message().encode_to_vec()).unwrap();
    assert_eq!(from_binary.message(), info.message());
}

/// The names of the objects in an array. `path` is `ARRAY`, or `OUTER/ARRAY` for the arrays of all objects in `OUTER`.
fn json_names(json: &Value, path: &str) -> BTreeSet<String> {
    let names = |array: &Value| -> Vec<String> {
        array
            .as_array()
            .unwrap()
            .iter()
            .map(|object| object["name"].as_str().unwrap().to_owned())
            .collect()
    };
    match path.split_once('/') {
        None => names(&json[path]).into_iter().collect(),
        Some((outer, inner)) => json[outer]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|object| names(&object[inner]))
            .collect(),
    }
}

fn names<I: Copy + Ord, T>(index: &Index<I, T>) -> BTreeSet<String> {
    index.names().map(str::to_owned).collect()
}

#[test]
fn names_match_the_bmv2_json() {
    let info = everything();
    let json: Value = serde_json::from_str(&data("everything.json")).unwrap();
    let is_declared = |name: &String| !name.starts_with("tbl_") && !name.starts_with("everything");
    let tables: BTreeSet<_> = json_names(&json, "pipelines/tables")
        .into_iter()
        .filter(is_declared)
        .collect();
    assert_eq!(tables, names(info.tables()));
    let actions = json_names(&json, "actions");
    assert!(names(info.actions()).is_subset(&actions), "{actions:?}");
    assert_eq!(
        json_names(&json, "pipelines/action_profiles"),
        names(info.profiles())
    );
    assert_eq!(json_names(&json, "register_arrays"), names(info.registers()));
    assert_eq!(json_names(&json, "learn_lists"), names(info.digests()));
    assert_eq!(json_names(&json, "parse_vsets"), names(info.value_sets()));
    let counters = json_names(&json, "counter_arrays");
    let meters = json_names(&json, "meter_arrays");
    assert!(names(info.counters()).is_subset(&counters) && names(info.meters()).is_subset(&meters));
    for table in info.tables().iter() {
        let pipelines = json["pipelines"].as_array().unwrap();
        let json_table = pipelines
            .iter()
            .flat_map(|pipeline| pipeline["tables"].as_array().unwrap())
            .find(|candidate| candidate["name"] == table.name.as_str())
            .unwrap();
        let keys: Vec<_> = json_table["key"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| key["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            keys,
            table
                .fields
                .iter()
                .map(|field| field.name.as_str())
                .collect::<Vec<_>>()
        );
        for name in table.counter.iter().map(|counter| &counter.name) {
            assert!(counters.contains(name));
        }
        for name in table.meter.iter().map(|meter| &meter.name) {
            assert!(meters.contains(name));
        }
    }
}

/// Modification that makes a P4Info invalid, and a part of the error message.
type Damage = (fn(&mut config::P4Info), &'static str);

const DAMAGES: &[Damage] = &[
    (
        |p| p.tables[0].preamble = None,
        "table \"\" (id 0): preamble is missing",
    ),
    (
        |p| p.tables[0].preamble.as_mut().unwrap().id = 0,
        "id 0 is reserved",
    ),
    (
        |p| p.tables[0].preamble.as_mut().unwrap().name.clear(),
        "name is missing",
    ),
    (
        |p| p.tables[0].preamble = p.actions[0].preamble.clone(),
        "id is in use by another element",
    ),
    (
        |p| p.tables[1].preamble.as_mut().unwrap().name = p.tables[0].preamble.as_ref().unwrap().name.clone(),
        "name is in use by another table",
    ),
    (
        |p| {
            p.actions[1].preamble.as_mut().unwrap().alias =
                p.actions[0].preamble.as_ref().unwrap().alias.clone()
        },
        "is in use by another",
    ),
    (
        |p| p.tables[0].match_fields[1].id = 1,
        "match field \"std.ingress_port\": id 1 is zero or not unique",
    ),
    (|p| p.tables[0].match_fields[1].bitwidth = -1, "width of -1 bits"),
    (
        |p| p.tables[0].match_fields[1].bitwidth = i32::MAX,
        "width of 2147483647 bits",
    ),
    (
        |p| p.tables[0].match_fields[1].r#match = None,
        "match type is missing",
    ),
    (
        |p| p.tables[0].match_fields[1].r#match = Some(config::match_field::Match::MatchType(77)),
        "match type 77 is not defined",
    ),
    (
        |p| p.tables[0].action_refs[0].id = 5,
        "reference to unknown action 5",
    ),
    (|p| p.tables[0].action_refs[0].scope = 9, "action scope 9"),
    (
        |p| p.tables[0].const_default_action_id = 5,
        "constant default action 5",
    ),
    (
        |p| p.tables[0].implementation_id = 5,
        "reference to unknown action profile 5",
    ),
    (
        |p| p.tables[0].implementation_id = p.action_profiles[0].preamble.as_ref().unwrap().id,
        "are not mutual",
    ),
    (
        |p| {
            p.action_profiles[0]
                .table_ids
                .push(p.tables[0].preamble.as_ref().unwrap().id)
        },
        "are not mutual",
    ),
    (
        |p| p.tables[0].direct_resource_ids.push(5),
        "reference to unknown",
    ),
    (|p| p.direct_counters[0].direct_table_id = 5, "are not mutual"),
    (|p| p.direct_meters[0].direct_table_id = 5, "are not mutual"),
    (|p| p.tables[0].size = -1, "size -1 is negative"),
    (|p| p.actions[2].params[0].id = 0, "parameter \"port\": id 0"),
    (
        |p| p.actions[2].params[0].bitwidth = -8,
        "parameter \"port\": width of -8 bits",
    ),
    (|p| p.counters[0].spec = None, "counter unit 0"),
    (|p| p.meters[0].spec.as_mut().unwrap().unit = 0, "meter unit 0"),
    (|p| p.meters[0].spec.as_mut().unwrap().r#type = 8, "meter type 8"),
    (
        |p| p.registers[0].type_spec = None,
        "register \"In.last_seen\" (id 374516543): type is missing",
    ),
    (|p| p.registers[0].size = -4, "size -4 is negative"),
    (|p| p.type_info = None, "type \"learned_t\" is not in type_info"),
    (
        |p| {
            let spec = p.digests[0].type_spec.clone();
            let info = p.type_info.as_mut().unwrap();
            info.structs.get_mut("learned_t").unwrap().members[0].type_spec = spec;
        },
        "type \"learned_t\" contains itself",
    ),
    (
        |p| p.controller_packet_metadata[0].metadata[0].bitwidth = -3,
        "metadata \"ingress_port\": width of -3",
    ),
    (
        |p| p.controller_packet_metadata[0].preamble.as_mut().unwrap().name = "packet".into(),
        "must be packet_in or packet_out",
    ),
    (
        |p| p.controller_packet_metadata[0].preamble.as_mut().unwrap().name = "packet_out".into(),
        "name is in use by another controller header",
    ),
    (
        |p| p.value_sets[0].r#match[0].bitwidth = -1,
        "value set \"Parse.tunnel_types\"",
    ),
];

#[test]
fn every_problem_is_reported_with_its_element() {
    for (index, (damage, expected)) in DAMAGES.iter().enumerate() {
        let mut message = everything().message().clone();
        damage(&mut message);
        let error = P4Info::new(message).expect_err(expected).to_string();
        assert!(
            error.contains(expected),
            "{index}: {error:?} does not contain {expected:?}"
        );
    }
}

#[test]
fn malformed_p4info_is_rejected_with_the_location() {
    let text = data("everything.p4info.txtpb");
    let error = P4Info::from_text(&text.replace("bitwidth", "bitwith"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("bitwith"), "{error}");
    assert!(P4Info::from_text(&text[..text.len() - 3]).is_err());
    assert!(P4Info::from_binary(text.as_bytes()).is_err());
    let binary = everything().message().encode_to_vec();
    // A P4Info that is truncated after an element may be valid: the loop only checks that parsing does not panic.
    for length in 0..binary.len() {
        let _ = P4Info::from_binary(&binary[..length]);
    }
}

#[test]
fn all_p4info_files_of_the_p4c_repository_are_read() {
    let Some(root) = std::env::var_os("LINEWARDEN_P4C") else {
        skip!("LINEWARDEN_P4C does not name a checkout of p4c with P4Info files");
    };
    let directory = PathBuf::from(root).join("testdata/p4_16_samples_outputs");
    let (mut accepted, mut rejected) = (0, Vec::new());
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_string_lossy().ends_with(".p4info.txtpb") {
            continue;
        }
        match P4Info::from_text(&std::fs::read_to_string(&path).unwrap()) {
            Ok(info) => {
                accepted += 1;
                let binary = info.message().encode_to_vec();
                assert_eq!(P4Info::from_binary(&binary).unwrap().message(), info.message());
            }
            Err(error) => rejected.push(format!(
                "{}: {error}",
                path.file_name().unwrap().to_string_lossy()
            )),
        }
    }
    assert!(
        accepted > 600,
        "only {accepted} files read in {}",
        directory.display()
    );
    assert!(
        rejected.is_empty(),
        "{} files rejected:\n{}",
        rejected.len(),
        rejected.join("\n")
    );
}
