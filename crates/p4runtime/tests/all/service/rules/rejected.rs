//! Updates that contradict the test program, with the status code and a part of the error message.

use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::proto::v1::update::Type::{self, Delete, Insert, Modify};

/// Rejected update: type, entity, status code, part of the message.
pub type Rejected = (Type, &'static str, Code, &'static str);

/// Rejected updates of any table, as complete entities.
pub const TABLES: &[Rejected] = &[
    (
        Type::Unspecified,
        "table_entry { table_id: @In.mac@ }",
        Code::InvalidArgument,
        "unknown update type 0",
    ),
    (Insert, "", Code::InvalidArgument, "entity is missing"),
    (
        Insert,
        "extern_entry { extern_type_id: 0x81 }",
        Code::Unimplemented,
        "extern entries are not supported",
    ),
    (
        Insert,
        "table_entry {}",
        Code::InvalidArgument,
        "unknown table: the program has none with id 0",
    ),
    (
        Insert,
        "table_entry { table_id: @In.drop@ }",
        Code::InvalidArgument,
        "unknown table: the program has none with id",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ }",
        Code::InvalidArgument,
        "\"hdr.ethernet.dst\": exact match field is missing",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 3 exact { value: '1' } } }",
        Code::InvalidArgument,
        "unknown match field: the program has none with id 3",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '1' } } match { field_id: 1 exact { value: '1' } } }",
        Code::InvalidArgument,
        "duplicate match field 1",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 lpm { value: '1' prefix_len: 3 } } match { field_id: 2 exact { value: '1' } } }",
        Code::InvalidArgument,
        "\"hdr.ethernet.dst\": match kind differs: expected exact",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 } match { field_id: 2 exact { value: '1' } } }",
        Code::InvalidArgument,
        "value is missing",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '' } } match { field_id: 2 exact { value: '1' } } }",
        Code::OutOfRange,
        "byte string is empty",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '1' } } match { field_id: 2 exact { value: '\\x02\\x00' } } }",
        Code::OutOfRange,
        "\"std.ingress_port\": value does not fit: it needs 10 bits, the type has 9",
    ),
    (
        Insert,
        "table_entry { table_id: @In.everywhere@ action { action { action_id: @In.drop@ } } }",
        Code::InvalidArgument,
        "table has no key and no entries",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ is_const: true }",
        Code::InvalidArgument,
        "is_const is only allowed in read responses",
    ),
];

/// Rejected entries of table `mac`, without the valid key that the test adds.
pub const MAC: &[Rejected] = &[
    (Insert, "", Code::InvalidArgument, "new entry requires an action"),
    (Insert, "action {}", Code::InvalidArgument, "action is empty"),
    (
        Insert,
        "priority: 3",
        Code::InvalidArgument,
        "priority 3 is not allowed",
    ),
    (
        Insert,
        "action { action { action_id: 5 } }",
        Code::InvalidArgument,
        "unknown action: the program has none with id 5",
    ),
    (
        Insert,
        "action { action { action_id: @NoAction@ } }",
        Code::InvalidArgument,
        "\"NoAction\" does not belong to the table",
    ),
    (
        Insert,
        "action { action { action_id: @In.learn@ } }",
        Code::PermissionDenied,
        "\"In.learn\" is not allowed in entries",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ } }",
        Code::InvalidArgument,
        "parameter \"port\": value is missing",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ params { param_id: 1 value: '1' } params { param_id: 1 value: '1' } } }",
        Code::InvalidArgument,
        "value is given twice",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ params { param_id: 2 value: '1' } } }",
        Code::InvalidArgument,
        "unknown parameter: the program has none with id 2",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ params { param_id: 1 value: '\\xff\\xff' } } }",
        Code::OutOfRange,
        "\"port\": value does not fit: it needs 16 bits, the type has 9",
    ),
    (
        Insert,
        "action { action_profile_member_id: 1 }",
        Code::InvalidArgument,
        "entries of a direct table require an action",
    ),
    (
        Insert,
        "DROP counter_data {}",
        Code::InvalidArgument,
        "no direct counter",
    ),
    (
        Insert,
        "DROP meter_config {}",
        Code::InvalidArgument,
        "no direct meter",
    ),
    (
        Insert,
        "DROP meter_counter_data {}",
        Code::InvalidArgument,
        "no direct meter",
    ),
    (
        Insert,
        "DROP idle_timeout_ns: -1",
        Code::InvalidArgument,
        "idle_timeout_ns is -1",
    ),
    (
        Insert,
        "DROP time_since_last_hit {}",
        Code::InvalidArgument,
        "time_since_last_hit is read-only",
    ),
];

/// Rejected entries of table `acl`, without the valid exact match that the test adds.
pub const ACL: &[Rejected] = &[
    (Insert, "", Code::InvalidArgument, "priority 0 is invalid"),
    (Insert, "priority: -4", Code::InvalidArgument, "priority -4"),
    (
        Insert,
        "priority: 1 match { field_id: 1 ternary { value: '\\x01' mask: '\\x00' } }",
        Code::InvalidArgument,
        "mask 0 matches any value: omit the field",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 1 ternary { value: '\\x03' mask: '\\x01' } }",
        Code::InvalidArgument,
        "value 0x03 has bits set outside its mask 0x01",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 3 range { low: '\\x03' high: '\\x01' } }",
        Code::InvalidArgument,
        "low bound 0x03 exceeds high bound 0x01",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 3 range { low: '\\x00' high: '\\xff\\xff' } }",
        Code::InvalidArgument,
        "the range matches any value: omit the field",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 2 optional {} }",
        Code::OutOfRange,
        "byte string is empty",
    ),
    (
        Insert,
        "priority: 1 PERMIT idle_timeout_ns: 5",
        Code::InvalidArgument,
        "entries of the table have no idle timeout",
    ),
    (
        Insert,
        "priority: 1 PERMIT counter_data { byte_count: -1 }",
        Code::InvalidArgument,
        "byte_count is -1",
    ),
    (
        Insert,
        "priority: 1 PERMIT meter_config { cir: -1 }",
        Code::InvalidArgument,
        "cir is -1",
    ),
    (
        Insert,
        "priority: 1 PERMIT meter_config { eburst: 1 }",
        Code::InvalidArgument,
        "eburst requires a single-rate",
    ),
    (
        Insert,
        "priority: 1 PERMIT meter_counter_data { red { byte_count: 1 } }",
        Code::InvalidArgument,
        "meter_counter_data can only be reset",
    ),
];

/// Rejected updates of default and constant entries, as complete entities.
pub const DEFAULTS: &[Rejected] = &[
    (
        Insert,
        "table_entry { table_id: @In.mac@ is_default_action: true }",
        Code::InvalidArgument,
        "default entry always exists",
    ),
    (
        Delete,
        "table_entry { table_id: @In.mac@ is_default_action: true }",
        Code::InvalidArgument,
        "default entry always exists",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true priority: 1 }",
        Code::InvalidArgument,
        "default entry has no match and no priority",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true match { field_id: 1 exact { value: '1' } } }",
        Code::InvalidArgument,
        "default entry has no match and no priority",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true idle_timeout_ns: 1 }",
        Code::InvalidArgument,
        "default entry has no idle timeout",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true action { action_profile_group_id: 1 } }",
        Code::InvalidArgument,
        "default entry requires an action",
    ),
    (
        Modify,
        "table_entry { table_id: @In.acl@ is_default_action: true action { action { action_id: @In.deny@ } } }",
        Code::PermissionDenied,
        "\"In.deny\" is not allowed as the default",
    ),
    (
        Modify,
        "table_entry { table_id: @In.vrf_of_port@ is_default_action: true }",
        Code::PermissionDenied,
        "default action is constant",
    ),
    (
        Modify,
        "table_entry { table_id: @In.routes@ is_default_action: true }",
        Code::PermissionDenied,
        "cannot be changed: it is NoAction",
    ),
    (
        Insert,
        "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '1' } } }",
        Code::PermissionDenied,
        "table is constant",
    ),
    (
        Modify,
        "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '1' } } action { action { action_id: @In.set_vrf@ } } }",
        Code::PermissionDenied,
        "table is constant",
    ),
];

/// Rejected entries of table `routes`, without the valid exact match that the test adds.
pub const ROUTES: &[Rejected] = &[
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x0a\\x00\\x00\\x01' prefix_len: 24 } }",
        Code::InvalidArgument,
        "value 0x0a000001 has bits set after its prefix of 24 bits",
    ),
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x00' } }",
        Code::InvalidArgument,
        "prefix length 0 matches any value: omit the field",
    ),
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x01' prefix_len: 33 } }",
        Code::InvalidArgument,
        "prefix length 33 is out of range: the field has 32 bits",
    ),
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x01' prefix_len: -1 } }",
        Code::InvalidArgument,
        "prefix length -1 is out of range",
    ),
    (
        Insert,
        "action { action { action_id: @In.drop@ } }",
        Code::InvalidArgument,
        "require a member, a group or an action set",
    ),
    (
        Insert,
        "action { action_profile_member_id: 0 }",
        Code::InvalidArgument,
        "member id must not be 0",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { weight: 1 } } }",
        Code::InvalidArgument,
        "action 0 of the set: action is missing",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { action { action_id: @In.drop@ } } } }",
        Code::InvalidArgument,
        "weight 0 is too small: the minimum is 1",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { action { action_id: @In.forward@ params { param_id: 1 value: '1' } } weight: 1 } } }",
        Code::InvalidArgument,
        "\"In.forward\" does not belong to the table",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { action { action_id: @In.drop@ } weight: 1 watch_port: '\\x01\\x00\\x00\\x00\\x00' } } }",
        Code::OutOfRange,
        "watch_port: value does not fit: it needs 33 bits",
    ),
    (
        Insert,
        "action { action_profile_action_set { group_action { action_id: @In.drop@ } } }",
        Code::PermissionDenied,
        "\"In.drop\" is not allowed as a group action",
    ),
];

/// Rejected updates of indirect tables and of entities other than table entries, as complete entities.
pub const OTHER_ENTITIES: &[Rejected] = &[
    (
        Insert,
        "table_entry { table_id: @In.indirect@ match { field_id: 1 exact { value: '1' } } action { action_profile_group_id: 1 } }",
        Code::InvalidArgument,
        "require a member",
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: 4 member_id: 1 }",
        Code::InvalidArgument,
        "unknown action profile: the program has none with id 4",
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: @In.ports@ }",
        Code::InvalidArgument,
        "member id must not be 0",
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: @In.ports@ member_id: 1 }",
        Code::InvalidArgument,
        "member requires an action",
    ),
    (
        Modify,
        "action_profile_member { action_profile_id: @In.ports@ member_id: 1 action { action_id: @In.drop@ } }",
        Code::InvalidArgument,
        "is not allowed in entries of its tables",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.ports@ group_id: 1 }",
        Code::InvalidArgument,
        "is not a selector",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ }",
        Code::InvalidArgument,
        "group id must not be 0",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 max_size: -1 }",
        Code::InvalidArgument,
        "max_size is -1",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 members { member_id: 2 weight: -1 } }",
        Code::InvalidArgument,
        "member 2: weight -1",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 members { member_id: 2 weight: 1 } members { member_id: 2 weight: 1 } }",
        Code::InvalidArgument,
        "duplicate member 2: use a weight instead",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 max_size: 3 members { member_id: 2 weight: 2 } members { member_id: 3 weight: 2 } }",
        Code::ResourceExhausted,
        "group size 4 (sum of weights) exceeds the maximum of 3",
    ),
    (
        Insert,
        "counter_entry { counter_id: @In.seen_by_port@ }",
        Code::InvalidArgument,
        "can only be modified",
    ),
    (
        Modify,
        "counter_entry { counter_id: 0 }",
        Code::InvalidArgument,
        "unknown counter: the program has none with id 0",
    ),
    (
        Modify,
        "counter_entry { counter_id: @In.seen_by_port@ index { index: -1 } }",
        Code::InvalidArgument,
        "index is -1",
    ),
    (
        Modify,
        "counter_entry { counter_id: @In.seen_by_port@ index { index: 8 } }",
        Code::OutOfRange,
        "index 8 is out of range: the array has 8 cells",
    ),
    (
        Delete,
        "meter_entry { meter_id: @In.rate_by_port@ }",
        Code::InvalidArgument,
        "can only be modified",
    ),
    (
        Modify,
        "meter_entry { meter_id: @In.rate_by_port@ index { index: 9 } }",
        Code::OutOfRange,
        "index 9",
    ),
    (
        Modify,
        "meter_entry { meter_id: @In.rate_by_port@ counter_data { green { packet_count: 1 } } }",
        Code::InvalidArgument,
        "counter_data can only be reset",
    ),
    (
        Delete,
        "register_entry { register_id: @In.last_seen@ }",
        Code::InvalidArgument,
        "can only be modified",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ }",
        Code::InvalidArgument,
        "data is missing",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ data { bool: true } }",
        Code::InvalidArgument,
        "value has the wrong type: expected bit<48>, found a bool",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ data { bitstring: '\\x01\\x00\\x00\\x00\\x00\\x00\\x00' } }",
        Code::OutOfRange,
        "value does not fit: it needs 49 bits",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ index { index: 16 } data { bitstring: '1' } }",
        Code::OutOfRange,
        "index 16",
    ),
    (
        Insert,
        "direct_counter_entry { table_entry { table_id: @In.acl@ } }",
        Code::InvalidArgument,
        "can only be modified",
    ),
    (
        Modify,
        "direct_counter_entry {}",
        Code::InvalidArgument,
        "table_entry is missing",
    ),
    (
        Modify,
        "direct_counter_entry { table_entry { table_id: @In.everywhere@ is_default_action: true } }",
        Code::InvalidArgument,
        "table \"In.everywhere\" has no direct counter",
    ),
    (
        Modify,
        "direct_meter_entry { table_entry { table_id: @In.everywhere@ is_default_action: true } }",
        Code::InvalidArgument,
        "\"In.everywhere\" has no direct meter",
    ),
    (
        Insert,
        "packet_replication_engine_entry {}",
        Code::InvalidArgument,
        "neither a multicast group nor a clone session",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry {} }",
        Code::InvalidArgument,
        "multicast_group_id must not be 0",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { instance: 1 } } }",
        Code::InvalidArgument,
        "replica 0: port is missing",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { port: '\\x01' } replicas { egress_port: 1 } } }",
        Code::InvalidArgument,
        "duplicate replica with port 1 and instance 0",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { port: '\\x01' backup_replicas { port: '\\x01' instance: 3 } } } }",
        Code::InvalidArgument,
        "port 1 is listed as its own backup",
    ),
    (
        Delete,
        "packet_replication_engine_entry { clone_session_entry {} }",
        Code::InvalidArgument,
        "session_id must not be 0",
    ),
    (
        Insert,
        "packet_replication_engine_entry { clone_session_entry { session_id: 1 packet_length_bytes: -3 } }",
        Code::InvalidArgument,
        "packet_length_bytes is -3",
    ),
    (
        Insert,
        "value_set_entry { value_set_id: @Parse.tunnel_types@ }",
        Code::InvalidArgument,
        "can only be modified",
    ),
    (
        Modify,
        "value_set_entry { value_set_id: @Parse.tunnel_types@ members {} members {} members {} members {} members {} }",
        Code::ResourceExhausted,
        "too many members: 5 given, capacity is 4",
    ),
    (
        Modify,
        "value_set_entry { value_set_id: @Parse.tunnel_types@ members { match { field_id: 1 exact { value: '1' } } } members { match { field_id: 1 exact { value: '\\x001' } } } }",
        Code::AlreadyExists,
        "member 1 is a duplicate",
    ),
    (
        Insert,
        "digest_entry { digest_id: @learned_t@ }",
        Code::InvalidArgument,
        "config is missing",
    ),
    (
        Insert,
        "digest_entry { digest_id: 8 config {} }",
        Code::InvalidArgument,
        "unknown digest: the program has none with id 8",
    ),
    (
        Modify,
        "digest_entry { digest_id: @learned_t@ config { max_list_size: -1 } }",
        Code::InvalidArgument,
        "max_list_size is -1",
    ),
];
