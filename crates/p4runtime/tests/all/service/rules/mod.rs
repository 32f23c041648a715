//! Checks that need only the P4Info: the rules of chapter 9 of the specification.

mod rejected;

use crate::service::support::{entity, info, update};
use linewarden_p4runtime::proto::v1;
use linewarden_p4runtime::translate::Translator;
use rejected::{ACL, DEFAULTS, MAC, OTHER_ENTITIES, ROUTES, Rejected, TABLES};
use v1::update::Type::{self, Delete, Insert, Modify};

fn check(cases: &[Rejected], complete_entity: impl Fn(&str) -> String) {
    let info = info();
    for (kind, entity_text, code, expected) in cases {
        let update = update(*kind, &complete_entity(entity_text));
        let error = Translator::new(&info)
            .decode_update(&update)
            .expect_err(entity_text);
        assert!(
            error.code == *code && error.message.contains(expected),
            "{entity_text}: {:?}: {}",
            error.code,
            error.message
        );
    }
}

/// Entry of table `mac` with a valid key and the given fields. `DROP` is replaced by an action.
fn mac(fields: &str) -> String {
    let fields = fields.replace("DROP", "action { action { action_id: @In.drop@ } }");
    let key = "match { field_id: 1 exact { value: '1' } } match { field_id: 2 exact { value: '1' } }";
    format!("table_entry {{ table_id: @In.mac@ {key} {fields} }}")
}

/// Entry of table `acl` with a valid exact match and the given fields. `PERMIT` is replaced by an action.
fn acl(fields: &str) -> String {
    let fields = fields.replace("PERMIT", "action { action { action_id: @In.permit@ } }");
    format!("table_entry {{ table_id: @In.acl@ match {{ field_id: 4 exact {{ value: '1' }} }} {fields} }}")
}

/// Entry of table `routes` with a valid exact match and the given fields.
fn routes(fields: &str) -> String {
    format!("table_entry {{ table_id: @In.routes@ match {{ field_id: 1 exact {{ value: '1' }} }} {fields} }}")
}

#[test]
fn entries_that_contradict_their_table_are_rejected() {
    check(TABLES, str::to_owned);
    check(MAC, mac);
    check(ACL, acl);
    check(ROUTES, routes);
    check(DEFAULTS, str::to_owned);
}

#[test]
fn entities_that_contradict_the_program_are_rejected() {
    check(OTHER_ENTITIES, str::to_owned);
}

/// Valid updates: type, entity, and the same entity in canonical encoding.
const CANONICAL: &[(Type, &str, &str)] = &[
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 2 exact { value: '\\x00\\x00\\x05' } } match { field_id: 1 exact { value: '\\x00' } } \
         action { action { action_id: @In.forward@ params { param_id: 1 value: '\\x00\\x07' } } } idle_timeout_ns: 9 metadata: 'm' controller_metadata: 4 }",
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '\\x00' } } match { field_id: 2 exact { value: '\\x05' } } \
         action { action { action_id: @In.forward@ params { param_id: 1 value: '\\x07' } } } idle_timeout_ns: 9 metadata: 'm' controller_metadata: 4 }",
    ),
    (
        Delete,
        "table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '\\x01' } } priority: 5 action { action { action_id: 77 } } idle_timeout_ns: -9 }",
        "table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '\\x01' } } priority: 5 }",
    ),
    (
        Modify,
        "table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '\\x01' } } match { field_id: 1 ternary { value: '\\x00\\x10' mask: '\\x00\\xf0' } } \
         match { field_id: 3 range { low: '\\x00' high: '\\x00\\xff' } } match { field_id: 2 optional { value: '\\x06' } } priority: 5 counter_data { byte_count: 3 } meter_config { cir: 1 pir: 2 } meter_counter_data {} }",
        "table_entry { table_id: @In.acl@ match { field_id: 1 ternary { value: '\\x10' mask: '\\xf0' } } match { field_id: 2 optional { value: '\\x06' } } \
         match { field_id: 3 range { low: '\\x00' high: '\\xff' } } match { field_id: 4 exact { value: '\\x01' } } priority: 5 counter_data { byte_count: 3 } \
         meter_config { cir: 1 pir: 2 } meter_counter_data { green {} yellow {} red {} } }",
    ),
    (
        Insert,
        "table_entry { table_id: @In.routes@ match { field_id: 1 exact { value: '\\x0a' } } action { action_profile_action_set { \
         action_profile_actions { action { action_id: @In.drop@ } weight: 1 watch_port: '\\x00\\x01' } action_profile_actions { action { action_id: @In.drop@ } weight: 2 watch: 4 } action_selection_mode: RANDOM size_semantics: SUM_OF_MEMBERS } } }",
        "table_entry { table_id: @In.routes@ match { field_id: 1 exact { value: '\\x0a' } } action { action_profile_action_set { \
         action_profile_actions { action { action_id: @In.drop@ } weight: 1 watch_port: '\\x01' } action_profile_actions { action { action_id: @In.drop@ } weight: 2 watch: 4 } action_selection_mode: RANDOM size_semantics: SUM_OF_MEMBERS } } }",
    ),
    (
        Modify,
        "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '\\x01' } } }",
        "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '\\x01' } } }",
    ),
    (
        Modify,
        "table_entry { table_id: @In.everywhere@ is_default_action: true metadata: 'x' action { action { action_id: @In.drop@ } } }",
        "table_entry { table_id: @In.everywhere@ is_default_action: true metadata: 'x' action { action { action_id: @In.drop@ } } }",
    ),
    (
        Delete,
        "action_profile_member { action_profile_id: @In.ports@ member_id: 3 action { action_id: 6 } }",
        "action_profile_member { action_profile_id: @In.ports@ member_id: 3 }",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 3 max_size: 9 members { member_id: 1 weight: 2 watch_port: '\\x00\\x00\\x00\\x00\\xff' } members { member_id: 2 weight: 1 watch: 3 } }",
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 3 max_size: 9 members { member_id: 1 weight: 2 watch_port: '\\xff' } members { member_id: 2 weight: 1 watch: 3 } }",
    ),
    (
        Delete,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 3 max_size: -1 }",
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 3 }",
    ),
    (
        Modify,
        "counter_entry { counter_id: @In.seen_by_port@ data { byte_count: 1 packet_count: 2 } }",
        "counter_entry { counter_id: @In.seen_by_port@ data { byte_count: 1 packet_count: 2 } }",
    ),
    (
        Modify,
        "meter_entry { meter_id: @In.rate_by_port@ index {} counter_data {} }",
        "meter_entry { meter_id: @In.rate_by_port@ index {} counter_data { green {} yellow {} red {} } }",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ index { index: 3 } data { bitstring: '\\x00\\x00\\x09' } }",
        "register_entry { register_id: @In.last_seen@ index { index: 3 } data { bitstring: '\\x09' } }",
    ),
    (
        Modify,
        "direct_counter_entry { table_entry { table_id: @In.acl@ is_default_action: true } data { byte_count: 1 } }",
        "direct_counter_entry { table_entry { table_id: @In.acl@ is_default_action: true } data { byte_count: 1 } }",
    ),
    (
        Modify,
        "direct_meter_entry { table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '\\x00\\x01' } } priority: 1 action {} } config { cir: 3 pir: 4 } }",
        "direct_meter_entry { table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '\\x01' } } priority: 1 } config { cir: 3 pir: 4 } }",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 metadata: 'm' replicas { port: '\\x00\\x01' instance: 1 backup_replicas { port: '\\x00\\x02' instance: 1 } backup_replicas { port: '\\x03' } } replicas { egress_port: 1 } } }",
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 metadata: 'm' replicas { port: '\\x01' instance: 1 backup_replicas { port: '\\x02' instance: 1 } backup_replicas { port: '\\x03' } } replicas { egress_port: 1 } } }",
    ),
    (
        Insert,
        "packet_replication_engine_entry { clone_session_entry { session_id: 100 replicas { port: '\\xff\\xff\\xff\\xfd' instance: 1 } class_of_service: 2 packet_length_bytes: 4096 } }",
        "packet_replication_engine_entry { clone_session_entry { session_id: 100 replicas { port: '\\xff\\xff\\xff\\xfd' instance: 1 } class_of_service: 2 packet_length_bytes: 4096 } }",
    ),
    (
        Modify,
        "value_set_entry { value_set_id: @Parse.tunnel_types@ members { match { field_id: 1 exact { value: '\\x00\\x22\\xf3' } } } members { match { field_id: 1 exact { value: '\\x89;' } } } }",
        "value_set_entry { value_set_id: @Parse.tunnel_types@ members { match { field_id: 1 exact { value: '\\x22\\xf3' } } } members { match { field_id: 1 exact { value: '\\x89;' } } } }",
    ),
    (
        Insert,
        "digest_entry { digest_id: @learned_t@ config { max_timeout_ns: 1 max_list_size: 2 ack_timeout_ns: 3 } }",
        "digest_entry { digest_id: @learned_t@ config { max_timeout_ns: 1 max_list_size: 2 ack_timeout_ns: 3 } }",
    ),
    (
        Delete,
        "digest_entry { digest_id: @learned_t@ config { max_list_size: 2 } }",
        "digest_entry { digest_id: @learned_t@ }",
    ),
];

#[test]
fn valid_updates_are_accepted_and_encoded_canonically() {
    let info = info();
    let translator = Translator::new(&info);
    for (kind, input, canonical) in CANONICAL {
        let decoded = translator
            .decode_update(&update(*kind, input))
            .unwrap_or_else(|error| panic!("{input}: {error}"));
        let encoded = translator.encode_update(&decoded);
        assert_eq!(encoded, update(*kind, canonical));
        assert_eq!(translator.decode_update(&encoded), Ok(decoded));
    }
}

#[test]
fn contradictory_read_requests_are_rejected() {
    let info = info();
    for (request, expected) in [
        ("", "entity is missing"),
        ("extern_entry {}", "extern entries are not supported"),
        ("table_entry { table_id: 3 }", "none with id 3"),
        ("table_entry { priority: 3 }", "table_id 0 selects all entries"),
        ("table_entry { metadata: 'm' }", "table_id 0 selects all entries"),
        (
            "table_entry { match { field_id: 1 exact { value: '1' } } }",
            "table_id 0 selects all entries",
        ),
        (
            "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '1' } } }",
            "\"std.ingress_port\": exact match field is missing",
        ),
        (
            "table_entry { table_id: @In.acl@ time_since_last_hit {} }",
            "requires a table with idle timeout",
        ),
        (
            "table_entry { table_id: @In.mac@ is_default_action: true time_since_last_hit {} }",
            "read of default entries allows no key",
        ),
        (
            "table_entry { table_id: @In.mac@ action { action { action_id: @NoAction@ } } }",
            "has no action",
        ),
        (
            "table_entry { table_id: @In.routes@ action { action_profile_member_id: 2 } }",
            "requires a direct table",
        ),
        (
            "action_profile_member { member_id: 1 }",
            "member_id is set without the id of its parent",
        ),
        (
            "action_profile_group { action_profile_id: @In.ports@ }",
            "is not a selector",
        ),
        (
            "counter_entry { index {} }",
            "index is set without the id of its parent",
        ),
        (
            "register_entry { register_id: @In.last_seen@ index { index: 16 } }",
            "index 16",
        ),
        ("direct_counter_entry {}", "table_entry is missing"),
        (
            "direct_meter_entry { table_entry { table_id: @In.mac@ } }",
            "has no such direct resource",
        ),
        (
            "packet_replication_engine_entry {}",
            "must be a multicast group or a clone session",
        ),
    ] {
        let error = Translator::new(&info)
            .decode_read(&entity(request))
            .expect_err(request);
        assert!(error.message.contains(expected), "{request}: {error}");
    }
}

#[test]
fn read_requests_survive_encoding_and_decoding() {
    let info = info();
    let translator = Translator::new(&info);
    for request in [
        "table_entry {}",
        "table_entry { is_default_action: true }",
        "table_entry { table_id: @In.acl@ priority: 3 metadata: 'm' controller_metadata: 4 counter_data {} meter_config {} meter_counter_data {} }",
        "table_entry { table_id: @In.mac@ action { action { action_id: @In.drop@ } } time_since_last_hit {} }",
        "table_entry { table_id: @In.acl@ priority: 3 match { field_id: 4 exact { value: '\\x01' } } }",
        "action_profile_member { action_profile_id: @In.ports@ member_id: 3 }",
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 3 }",
        "counter_entry { counter_id: @In.seen_by_port@ index {} }",
        "meter_entry { counter_data {} }",
        "register_entry { register_id: @In.last_seen@ index { index: 2 } }",
        "direct_counter_entry { table_entry {} }",
        "direct_counter_entry { table_entry { table_id: @In.acl@ } }",
        "direct_meter_entry { table_entry { table_id: @In.acl@ is_default_action: true } counter_data {} }",
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 4 } }",
        "packet_replication_engine_entry { clone_session_entry {} }",
        "value_set_entry { value_set_id: @Parse.tunnel_types@ }",
        "digest_entry { digest_id: @learned_t@ }",
    ] {
        let decoded = translator
            .decode_read(&entity(request))
            .unwrap_or_else(|error| panic!("{request}: {error}"));
        assert_eq!(translator.encode_read(&decoded), entity(request));
    }
}
