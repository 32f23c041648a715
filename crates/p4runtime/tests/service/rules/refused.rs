//! Updates that contradict the test program, with the code and the words of their refusal.

use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::proto::v1::update::Type::{self, Delete, Insert, Modify};

/// An update and why it is refused.
pub type Refused = (Type, &'static str, Code, &'static str);

pub const TABLES: &[Refused] = &[
    (
        Type::Unspecified,
        "table_entry { table_id: @In.mac@ }",
        Code::InvalidArgument,
        "update type 0",
    ),
    (Insert, "", Code::InvalidArgument, "no entity is given"),
    (
        Insert,
        "extern_entry { extern_type_id: 0x81 }",
        Code::Unimplemented,
        "no extern",
    ),
    (
        Insert,
        "table_entry {}",
        Code::InvalidArgument,
        "no table with id 0",
    ),
    (
        Insert,
        "table_entry { table_id: @In.drop@ }",
        Code::InvalidArgument,
        "no table with id",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ }",
        Code::InvalidArgument,
        "\"hdr.ethernet.dst\": it is exact, so it cannot be left out",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 3 exact { value: '1' } } }",
        Code::InvalidArgument,
        "no match field here with id 3",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '1' } } match { field_id: 1 exact { value: '1' } } }",
        Code::InvalidArgument,
        "match field 1 is given twice",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 lpm { value: '1' prefix_len: 3 } } match { field_id: 2 exact { value: '1' } } }",
        Code::InvalidArgument,
        "\"hdr.ethernet.dst\": it is exact, not what is given",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 } match { field_id: 2 exact { value: '1' } } }",
        Code::InvalidArgument,
        "it has no value",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '' } } match { field_id: 2 exact { value: '1' } } }",
        Code::OutOfRange,
        "an empty byte string",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '1' } } match { field_id: 2 exact { value: '\\x02\\x00' } } }",
        Code::OutOfRange,
        "\"std.ingress_port\": the value needs 10 bits, the type has 9",
    ),
    (
        Insert,
        "table_entry { table_id: @In.everywhere@ action { action { action_id: @In.drop@ } } }",
        Code::InvalidArgument,
        "it has no key, so no entries",
    ),
    (
        Insert,
        "table_entry { table_id: @In.mac@ is_const: true }",
        Code::InvalidArgument,
        "is_const is what a server says",
    ),
];

/// The same of table `mac` with a key that is right, then of `acl`, then of defaults; `KEY` stands for the key.
pub const MAC: &[Refused] = &[
    (Insert, "", Code::InvalidArgument, "a new entry needs an action"),
    (Insert, "action {}", Code::InvalidArgument, "the action is empty"),
    (
        Insert,
        "priority: 3",
        Code::InvalidArgument,
        "priority 3: only keys with",
    ),
    (
        Insert,
        "action { action { action_id: 5 } }",
        Code::InvalidArgument,
        "no action with id 5",
    ),
    (
        Insert,
        "action { action { action_id: @NoAction@ } }",
        Code::InvalidArgument,
        "\"NoAction\" is none of this table's",
    ),
    (
        Insert,
        "action { action { action_id: @In.learn@ } }",
        Code::PermissionDenied,
        "\"In.learn\" may not be used here in entries",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ } }",
        Code::InvalidArgument,
        "parameter \"port\": it is not given",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ params { param_id: 1 value: '1' } params { param_id: 1 value: '1' } } }",
        Code::InvalidArgument,
        "it is given twice",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ params { param_id: 2 value: '1' } } }",
        Code::InvalidArgument,
        "no parameter here with id 2",
    ),
    (
        Insert,
        "action { action { action_id: @In.forward@ params { param_id: 1 value: '\\xff\\xff' } } }",
        Code::OutOfRange,
        "\"port\": the value needs 16 bits, the type has 9",
    ),
    (
        Insert,
        "action { action_profile_member_id: 1 }",
        Code::InvalidArgument,
        "the table is direct",
    ),
    (
        Insert,
        "DROP counter_data {}",
        Code::InvalidArgument,
        "no counter",
    ),
    (Insert, "DROP meter_config {}", Code::InvalidArgument, "no meter"),
    (
        Insert,
        "DROP meter_counter_data {}",
        Code::InvalidArgument,
        "no meter",
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
        "time_since_last_hit is only read",
    ),
];

pub const ACL: &[Refused] = &[
    (
        Insert,
        "",
        Code::InvalidArgument,
        "priority 0: a key with ternary",
    ),
    (Insert, "priority: -4", Code::InvalidArgument, "priority -4"),
    (
        Insert,
        "priority: 1 match { field_id: 1 ternary { value: '\\x01' mask: '\\x00' } }",
        Code::InvalidArgument,
        "a mask of 0 takes any value: leave the field out",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 1 ternary { value: '\\x03' mask: '\\x01' } }",
        Code::InvalidArgument,
        "0x03 has bits set that its mask 0x01 leaves out",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 3 range { low: '\\x03' high: '\\x01' } }",
        Code::InvalidArgument,
        "its low end 0x03 is above its high end 0x01",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 3 range { low: '\\x00' high: '\\xff\\xff' } }",
        Code::InvalidArgument,
        "the range takes any value: leave the field out",
    ),
    (
        Insert,
        "priority: 1 match { field_id: 2 optional {} }",
        Code::OutOfRange,
        "an empty byte string",
    ),
    (
        Insert,
        "priority: 1 PERMIT idle_timeout_ns: 5",
        Code::InvalidArgument,
        "its entries have no idle timeout",
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
        "eburst: only a single-rate",
    ),
    (
        Insert,
        "priority: 1 PERMIT meter_counter_data { red { byte_count: 1 } }",
        Code::InvalidArgument,
        "meter_counter_data can only be reset",
    ),
];

pub const DEFAULTS: &[Refused] = &[
    (
        Insert,
        "table_entry { table_id: @In.mac@ is_default_action: true }",
        Code::InvalidArgument,
        "always a default entry",
    ),
    (
        Delete,
        "table_entry { table_id: @In.mac@ is_default_action: true }",
        Code::InvalidArgument,
        "always a default entry",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true priority: 1 }",
        Code::InvalidArgument,
        "neither match nor priority",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true match { field_id: 1 exact { value: '1' } } }",
        Code::InvalidArgument,
        "neither match nor priority",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true idle_timeout_ns: 1 }",
        Code::InvalidArgument,
        "does not time out",
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ is_default_action: true action { action_profile_group_id: 1 } }",
        Code::InvalidArgument,
        "a default entry leads to an action",
    ),
    (
        Modify,
        "table_entry { table_id: @In.acl@ is_default_action: true action { action { action_id: @In.deny@ } } }",
        Code::PermissionDenied,
        "\"In.deny\" may not be used here as the default",
    ),
    (
        Modify,
        "table_entry { table_id: @In.vrf_of_port@ is_default_action: true }",
        Code::PermissionDenied,
        "its default action is constant",
    ),
    (
        Modify,
        "table_entry { table_id: @In.routes@ is_default_action: true }",
        Code::PermissionDenied,
        "NoAction for ever",
    ),
    (
        Insert,
        "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '1' } } }",
        Code::PermissionDenied,
        "its entries are the program's",
    ),
    (
        Modify,
        "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '1' } } action { action { action_id: @In.set_vrf@ } } }",
        Code::PermissionDenied,
        "its entries are the program's",
    ),
];

pub const ROUTES: &[Refused] = &[
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x0a\\x00\\x00\\x01' prefix_len: 24 } }",
        Code::InvalidArgument,
        "0x0a000001 has bits set behind its prefix of 24",
    ),
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x00' } }",
        Code::InvalidArgument,
        "a prefix of 0 bits takes any value: leave the field out",
    ),
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x01' prefix_len: 33 } }",
        Code::InvalidArgument,
        "a prefix of 33 bits in a field of 32",
    ),
    (
        Insert,
        "match { field_id: 2 lpm { value: '\\x01' prefix_len: -1 } }",
        Code::InvalidArgument,
        "a prefix of -1 bits",
    ),
    (
        Insert,
        "action { action { action_id: @In.drop@ } }",
        Code::InvalidArgument,
        "its entries lead to its members, groups or action sets",
    ),
    (
        Insert,
        "action { action_profile_member_id: 0 }",
        Code::InvalidArgument,
        "a member's id cannot be 0",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { weight: 1 } } }",
        Code::InvalidArgument,
        "action 0 of the set: no action is given",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { action { action_id: @In.drop@ } } } }",
        Code::InvalidArgument,
        "weight 0; the least is 1",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { action { action_id: @In.forward@ params { param_id: 1 value: '1' } } weight: 1 } } }",
        Code::InvalidArgument,
        "\"In.forward\" is none of this table's",
    ),
    (
        Insert,
        "action { action_profile_action_set { action_profile_actions { action { action_id: @In.drop@ } weight: 1 watch_port: '\\x01\\x00\\x00\\x00\\x00' } } }",
        Code::OutOfRange,
        "watch_port: the value needs 33 bits",
    ),
    (
        Insert,
        "action { action_profile_action_set { group_action { action_id: @In.drop@ } } }",
        Code::PermissionDenied,
        "\"In.drop\" may not be used here for a group",
    ),
];

pub const OTHERS: &[Refused] = &[
    (
        Insert,
        "table_entry { table_id: @In.indirect@ match { field_id: 1 exact { value: '1' } } action { action_profile_group_id: 1 } }",
        Code::InvalidArgument,
        "its entries lead to its members",
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: 4 member_id: 1 }",
        Code::InvalidArgument,
        "no action profile with id 4",
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: @In.ports@ }",
        Code::InvalidArgument,
        "a member's id cannot be 0",
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: @In.ports@ member_id: 1 }",
        Code::InvalidArgument,
        "a member needs an action",
    ),
    (
        Modify,
        "action_profile_member { action_profile_id: @In.ports@ member_id: 1 action { action_id: @In.drop@ } }",
        Code::InvalidArgument,
        "is none that its tables' entries may have",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.ports@ group_id: 1 }",
        Code::InvalidArgument,
        "is no selector",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ }",
        Code::InvalidArgument,
        "a group's id cannot be 0",
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
        "member 2 is there twice: give it a weight",
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 max_size: 3 members { member_id: 2 weight: 2 } members { member_id: 3 weight: 2 } }",
        Code::ResourceExhausted,
        "a group of size 4, counted by its members' weights; 3 is allowed",
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
        "no counter with id 0",
    ),
    (
        Modify,
        "counter_entry { counter_id: @In.seen_by_port@ index { index: -1 } }",
        Code::InvalidArgument,
        "the index is -1",
    ),
    (
        Modify,
        "counter_entry { counter_id: @In.seen_by_port@ index { index: 8 } }",
        Code::OutOfRange,
        "index 8; there are 8 cells",
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
        "no data is given",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ data { bool: true } }",
        Code::InvalidArgument,
        "a value of bit<48> is needed, not a bool",
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ data { bitstring: '\\x01\\x00\\x00\\x00\\x00\\x00\\x00' } }",
        Code::OutOfRange,
        "the value needs 49 bits",
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
        "table \"In.everywhere\": its entries have no counter",
    ),
    (
        Modify,
        "direct_meter_entry { table_entry { table_id: @In.everywhere@ is_default_action: true } }",
        Code::InvalidArgument,
        "its entries have no meter",
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
        "multicast_group_id cannot be 0",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { instance: 1 } } }",
        Code::InvalidArgument,
        "replica 0: no port is given",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { port: '\\x01' } replicas { egress_port: 1 } } }",
        Code::InvalidArgument,
        "port 1 with instance 0 is there twice",
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { port: '\\x01' backup_replicas { port: '\\x01' instance: 3 } } } }",
        Code::InvalidArgument,
        "port 1 is its own backup",
    ),
    (
        Delete,
        "packet_replication_engine_entry { clone_session_entry {} }",
        Code::InvalidArgument,
        "session_id cannot be 0",
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
        "5 members; there is room for 4",
    ),
    (
        Modify,
        "value_set_entry { value_set_id: @Parse.tunnel_types@ members { match { field_id: 1 exact { value: '1' } } } members { match { field_id: 1 exact { value: '\\x001' } } } }",
        Code::AlreadyExists,
        "member 1 is there before",
    ),
    (
        Insert,
        "digest_entry { digest_id: @learned_t@ }",
        Code::InvalidArgument,
        "no config is given",
    ),
    (
        Insert,
        "digest_entry { digest_id: 8 config {} }",
        Code::InvalidArgument,
        "no digest with id 8",
    ),
    (
        Modify,
        "digest_entry { digest_id: @learned_t@ config { max_list_size: -1 } }",
        Code::InvalidArgument,
        "max_list_size is -1",
    ),
];
