//! Service over gRPC with an in-memory switch: writes and reads, batches, pipelines.

use crate::service::support::{
    DEVICE, Server, counter, entity, id, info, pipeline, read, update, write, write_request,
};
use linewarden_p4runtime::client::ClientError;
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::error::{Code, EntityError};
use linewarden_p4runtime::ids::{MemberId, ParamId, ProfileId, TableId};
use linewarden_p4runtime::proto::{google, v1};
use linewarden_p4runtime::target::Atomicity;
use linewarden_p4runtime::translate::{EntryFilter, Read, Translator};
use prost::Message;
use tonic::Status;
use v1::update::Type::{self, Delete, Insert, Modify};

/// Codes of the errors in the details of a status.
fn codes(status: &Status) -> Vec<Code> {
    let details = google::rpc::Status::decode(status.details()).unwrap();
    assert_eq!(
        (details.code, details.message.as_str()),
        (status.code() as i32, status.message())
    );
    let code = |any: &prost_types::Any| {
        assert_eq!(any.type_url, "type.googleapis.com/p4.v1.Error");
        Code::from_i32(v1::Error::decode(&*any.value).unwrap().canonical_code)
    };
    details.details.iter().map(code).collect()
}

/// Update type, written entity, read request, and the entity in the response if it differs from the written entity.
const ROUND_TRIPS: &[(Type, &str, &str, Option<&str>)] = &[
    (
        Insert,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '\\x01' } } match { field_id: 2 exact { value: '\\x05' } } \
         action { action { action_id: @In.forward@ params { param_id: 1 value: '\\x07' } } } idle_timeout_ns: 9 metadata: 'm' }",
        "table_entry { table_id: @In.mac@ }",
        None,
    ),
    (
        Modify,
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '\\x01' } } match { field_id: 2 exact { value: '\\x05' } } idle_timeout_ns: 8 }",
        "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '\\x00\\x01' } } match { field_id: 2 exact { value: '\\x05' } } time_since_last_hit {} }",
        Some(
            "table_entry { table_id: @In.mac@ match { field_id: 1 exact { value: '\\x01' } } match { field_id: 2 exact { value: '\\x05' } } \
             action { action { action_id: @In.forward@ params { param_id: 1 value: '\\x07' } } } idle_timeout_ns: 8 time_since_last_hit { elapsed_ns: 5 } }",
        ),
    ),
    (
        Insert,
        "table_entry { table_id: @In.acl@ match { field_id: 1 ternary { value: '\\x10' mask: '\\xf0' } } match { field_id: 4 exact { value: '\\x01' } } priority: 5 \
         action { action { action_id: @In.deny@ } } counter_data { byte_count: 3 } meter_config { cir: 1 pir: 2 } }",
        "table_entry { table_id: @In.acl@ counter_data {} meter_config {} }",
        None,
    ),
    (
        Modify,
        "direct_counter_entry { table_entry { table_id: @In.acl@ match { field_id: 1 ternary { value: '\\x10' mask: '\\xf0' } } match { field_id: 4 exact { value: '\\x01' } } priority: 5 } \
         data { byte_count: 30 packet_count: 2 } }",
        "direct_counter_entry { table_entry { table_id: @In.acl@ } }",
        None,
    ),
    (
        Modify,
        "direct_meter_entry { table_entry { table_id: @In.acl@ match { field_id: 1 ternary { value: '\\x10' mask: '\\xf0' } } match { field_id: 4 exact { value: '\\x01' } } priority: 5 } \
         config { cir: 4 pir: 5 } }",
        "direct_meter_entry { table_entry {} }",
        None,
    ),
    (
        Modify,
        "table_entry { table_id: @In.everywhere@ is_default_action: true metadata: 'x' action { action { action_id: @In.forward@ params { param_id: 1 value: '\\x01\\x00' } } } }",
        "table_entry { table_id: @In.everywhere@ is_default_action: true }",
        None,
    ),
    (
        Modify,
        "table_entry { table_id: @In.everywhere@ is_default_action: true }",
        "table_entry { table_id: @In.everywhere@ is_default_action: true }",
        None,
    ),
    (
        Insert,
        "action_profile_member { action_profile_id: @In.next_hops@ member_id: 1 action { action_id: @In.drop@ } }",
        "action_profile_member {}",
        None,
    ),
    (
        Insert,
        "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 max_size: 9 members { member_id: 1 weight: 2 watch_port: '\\x01' } }",
        "action_profile_group { action_profile_id: @In.next_hops@ }",
        None,
    ),
    (
        Insert,
        "table_entry { table_id: @In.routes@ match { field_id: 1 exact { value: '\\x01' } } match { field_id: 2 lpm { value: '\\x0a\\x00\\x00\\x00' prefix_len: 8 } } action { action_profile_group_id: 1 } }",
        "table_entry { table_id: @In.routes@ }",
        None,
    ),
    (
        Modify,
        "counter_entry { counter_id: @In.seen_by_port@ index { index: 2 } data { byte_count: 1 packet_count: 2 } }",
        "counter_entry { counter_id: @In.seen_by_port@ index { index: 2 } }",
        None,
    ),
    (
        Modify,
        "meter_entry { meter_id: @In.rate_by_port@ index {} config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }",
        "meter_entry { meter_id: @In.rate_by_port@ index {} }",
        None,
    ),
    (
        Modify,
        "register_entry { register_id: @In.last_seen@ index { index: 15 } data { bitstring: '\\xff\\x00\\x00\\x00\\x00\\x00' } }",
        "register_entry { register_id: @In.last_seen@ index { index: 15 } }",
        None,
    ),
    (
        Insert,
        "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 metadata: 'm' replicas { port: '\\x01' instance: 1 backup_replicas { port: '\\x02' instance: 1 } } replicas { egress_port: 1 } } }",
        "packet_replication_engine_entry { multicast_group_entry {} }",
        None,
    ),
    (
        Insert,
        "packet_replication_engine_entry { clone_session_entry { session_id: 100 replicas { port: '\\xff\\xff\\xff\\xfd' instance: 1 } class_of_service: 2 packet_length_bytes: 4096 } }",
        "packet_replication_engine_entry { clone_session_entry { session_id: 100 } }",
        None,
    ),
    (
        Modify,
        "value_set_entry { value_set_id: @Parse.tunnel_types@ members { match { field_id: 1 exact { value: '\\x22\\xf3' } } } }",
        "value_set_entry {}",
        None,
    ),
    (
        Insert,
        "digest_entry { digest_id: @learned_t@ config { max_timeout_ns: 1 max_list_size: 2 ack_timeout_ns: 3 } }",
        "digest_entry {}",
        None,
    ),
];

#[test]
async fn read_returns_the_written_entities() {
    let (server, _client, _events) = Server::controlled().await;
    let mut raw = server.raw().await;
    for (kind, written_entity, request, expected) in ROUND_TRIPS {
        write(&mut raw, *kind, written_entity)
            .await
            .unwrap_or_else(|status| panic!("{written_entity}: {status:?}"));
        let (entities, status) = read(&mut raw, &[request]).await;
        status.unwrap_or_else(|status| panic!("{request}: {status}"));
        assert_eq!(
            entities,
            [entity(expected.unwrap_or(written_entity))],
            "{request}"
        );
    }
}

#[test]
async fn target_rejects_updates_that_only_the_target_can_check() {
    let (server, _client, _events) = Server::controlled().await;
    let mut raw = server.raw().await;
    let mac = |address: u32| {
        format!(
            "table_entry {{ table_id: @In.mac@ match {{ field_id: 1 exact {{ value: '\\x{address:02x}' }} }} match {{ field_id: 2 exact {{ value: '1' }} }} \
             action {{ action {{ action_id: @In.drop@ }} }} }}"
        )
    };
    let vrf = "table_entry { table_id: @In.vrf_of_port@ match { field_id: 1 exact { value: '\\x01' } } }";
    let group = "action_profile_group { action_profile_id: @In.next_hops@ group_id: 1 members { member_id: 5 weight: 1 } }";
    let member = "action_profile_member { action_profile_id: @In.next_hops@ member_id: 1 action { action_id: @In.drop@ } }";
    let route = "table_entry { table_id: @In.routes@ match { field_id: 1 exact { value: '\\x01' } } action { action_profile_member_id: 1 } }";
    let cases: Vec<(Type, String, Option<Code>)> = vec![
        (Modify, mac(0), Some(Code::NotFound)),
        (Delete, mac(0), Some(Code::NotFound)),
        (Insert, mac(0), None),
        (Insert, mac(0), Some(Code::AlreadyExists)),
        (Insert, mac(1), None),
        (Insert, mac(2), None),
        (Insert, mac(3), None),
        (Insert, mac(4), Some(Code::ResourceExhausted)),
        (Delete, mac(3), None),
        (Insert, mac(4), None),
        (Modify, vrf.into(), None),
        (Delete, vrf.into(), Some(Code::PermissionDenied)),
        (Insert, group.into(), Some(Code::NotFound)),
        (Insert, route.into(), Some(Code::NotFound)),
        (Insert, member.into(), None),
        (Insert, route.into(), None),
        (Delete, member.into(), Some(Code::FailedPrecondition)),
        (
            Modify,
            "meter_entry { meter_id: @In.rate_by_port@ counter_data {} }".into(),
            Some(Code::Unimplemented),
        ),
    ];
    for (kind, entity_text, code) in cases {
        let result = write(&mut raw, kind, &entity_text).await;
        assert_eq!(
            result.as_ref().err().map(codes),
            code.map(|code| vec![code]),
            "{kind:?} {entity_text}: {result:?}"
        );
    }
    let (entities, _) = read(&mut raw, &["table_entry { table_id: @In.vrf_of_port@ }"]).await;
    let initial = |port, vrf| {
        entity(&format!(
            "table_entry {{ table_id: @In.vrf_of_port@ match {{ field_id: 1 exact {{ value: '{port}' }} }} is_const: true \
             action {{ action {{ action_id: @In.set_vrf@ params {{ param_id: 1 value: '{vrf}' }} }} }} }}"
        ))
    };
    assert_eq!(
        entities,
        [initial("\\x01", "\\x0a"), initial("\\x02", "\\x14")],
        "reads return the initial entries of the program"
    );
}

fn member(number: u32) -> String {
    format!(
        "action_profile_member {{ action_profile_id: @In.ports@ member_id: {number} action {{ action_id: @NoAction@ }} }}"
    )
}

#[test]
async fn batches_are_atomic_if_requested() {
    use v1::write_request::Atomicity::{ContinueOnError, DataplaneAtomic, RollbackOnError};
    let (server, _client, _events) = Server::controlled().await;
    let mut raw = server.raw().await;
    // The server rejects the update of the missing cell 99; the switch rejects the deletion of the missing member 9.
    for invalid in [counter(99, 1), update(Delete, &member(9))] {
        let code = if invalid.r#type() == Modify {
            Code::OutOfRange
        } else {
            Code::NotFound
        };
        for atomicity in [ContinueOnError, RollbackOnError, DataplaneAtomic] {
            let updates = vec![counter(0, 7), invalid.clone(), update(Insert, &member(1))];
            let status = raw.write(write_request(updates, atomicity)).await.unwrap_err();
            assert_eq!(status.code(), Code::Unknown);
            let (entities, _) = read(
                &mut raw,
                &[
                    "counter_entry { counter_id: @In.seen_by_port@ index {} }",
                    &member(1),
                ],
            )
            .await;
            if atomicity == ContinueOnError {
                assert_eq!(codes(&status), [Code::Ok, code, Code::Ok]);
                assert_eq!(entities.len(), 2);
                let undo = vec![counter(0, 0), update(Delete, &member(1))];
                raw.write(write_request(undo, atomicity)).await.unwrap();
            } else {
                assert_eq!(codes(&status), [Code::Aborted, code, Code::Aborted]);
                assert_eq!(
                    entities,
                    [entity(
                        "counter_entry { counter_id: @In.seen_by_port@ index {} data {} }"
                    )]
                );
            }
        }
    }
    let unknown_atomicity = v1::WriteRequest {
        atomicity: 17,
        ..write_request(vec![counter(0, 1)], ContinueOnError)
    };
    assert_eq!(
        raw.write(unknown_atomicity).await.unwrap_err().code(),
        Code::Unimplemented
    );
    raw.write(write_request(Vec::new(), DataplaneAtomic))
        .await
        .unwrap();
}

#[test]
async fn reads_return_found_entities_and_report_failed_requests() {
    let (server, mut client, _events) = Server::controlled().await;
    let mut raw = server.raw().await;
    let requests = [
        "register_entry { register_id: @In.last_seen@ index {} }",
        "register_entry { register_id: 5 }",
        "direct_counter_entry { table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '1' } } priority: 1 } }",
        "table_entry { table_id: @In.acl@ match { field_id: 4 exact { value: '1' } } priority: 1 }",
        "meter_entry { counter_data {} }",
        "counter_entry { counter_id: @In.seen_by_port@ }",
    ];
    let (entities, status) = read(&mut raw, &requests).await;
    assert_eq!(entities.len(), 1 + 8);
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(
        codes(&status),
        [
            Code::Ok,
            Code::InvalidArgument,
            Code::NotFound,
            Code::Ok,
            Code::Unimplemented,
            Code::Ok
        ]
    );
    let error = client
        .read(&[Read::Meters {
            id: None,
            index: None,
            counters: true,
        }])
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "1 of 1 failed; update 0: Unimplemented: meter counters are not supported"
    );
}

#[test]
async fn large_responses_are_split_and_filters_apply() {
    let (server, mut client, _events) = Server::controlled().await;
    let info = info();
    let table = info.tables().by_name_or_alias("indirect").unwrap().id;
    let profile = info.tables().get(table).unwrap().profile.unwrap();
    let forward = info.actions().by_name_or_alias("forward").unwrap();
    assert_eq!(forward.params[0].id, ParamId(1));
    let bits = |width, value| linewarden_p4runtime::bytes::Bits::from_u128(width, value).unwrap();
    let action = Action {
        id: forward.id,
        params: vec![bits(9, 3)],
    };
    let mut updates = vec![Update::Member(Change::Insert(Member {
        profile,
        id: MemberId(1),
        action,
    }))];
    for index in 0..16 {
        let key = EntryKey {
            table,
            fields: vec![FieldMatch::Exact(bits(48, index))],
            priority: 0,
        };
        let metadata = vec![u8::try_from(index % 2).unwrap(); 100_000];
        let entry = TableEntry {
            metadata,
            ..TableEntry::new(key, EntryAction::Member(MemberId(1)))
        };
        updates.push(Update::TableEntry(Box::new(Change::Insert(entry))));
    }
    client.write(&updates, Atomicity::DataplaneAtomic).await.unwrap();
    let mut raw = server.raw().await;
    let request = v1::ReadRequest {
        device_id: DEVICE,
        entities: vec![entity("table_entry {}")],
        ..Default::default()
    };
    let mut responses = raw.read(request).await.unwrap().into_inner();
    let (mut messages, mut entries) = (0, 0);
    while let Some(response) = responses.message().await.unwrap() {
        assert!(response.encoded_len() < 1 << 20, "far below gRPC's usual 4 MiB");
        messages += 1;
        entries += response.entities.len();
    }
    assert_eq!(entries, 16 + 2);
    assert!(messages >= 4);
    let odd_index_filter = EntryFilter {
        metadata: vec![1; 100_000],
        ..EntryFilter::default()
    };
    let options = ReadOptions::default();
    let request = Read::TableEntries {
        table: Some(table),
        key: None,
        filter: odd_index_filter,
        options,
    };
    assert_eq!(client.read(&[request]).await.unwrap().len(), 8);
    let vrf = info.tables().by_name_or_alias("vrf_of_port").unwrap();
    for (action, count) in [("set_vrf", 2), ("drop", 0)] {
        let filter = EntryFilter {
            action: Some(info.actions().by_name_or_alias(action).unwrap().id),
            ..EntryFilter::default()
        };
        let request = Read::TableEntries {
            table: Some(vrf.id),
            key: None,
            filter,
            options,
        };
        match client.read(&[request]).await {
            Ok(entities) => assert_eq!(entities.len(), count),
            Err(error) => assert!(
                count == 0 && error.to_string().contains("has no action"),
                "{error}"
            ),
        }
    }
}

#[test]
async fn write_requires_a_primary_and_a_program() {
    let server = Server::start(None).await;
    let (mut client, _events, _) = server.client(10).await;
    let mut raw = server.raw().await;
    let request = write_request(vec![counter(0, 1)], v1::write_request::Atomicity::ContinueOnError);
    let modified = |change: fn(&mut v1::WriteRequest)| {
        let mut request = request.clone();
        change(&mut request);
        request
    };
    #[allow(deprecated)]
    let cases = [
        (modified(|request| request.device_id = 2), Code::NotFound),
        (modified(|request| request.role = "other".into()), Code::NotFound),
        (modified(|request| request.role_id = 4), Code::InvalidArgument),
        (
            modified(|request| request.election_id = None),
            Code::PermissionDenied,
        ),
        (
            modified(|request| request.election_id = Some(v1::Uint128 { high: 10, low: 10 })),
            Code::PermissionDenied,
        ),
        (request.clone(), Code::FailedPrecondition),
    ];
    for (request, code) in cases {
        let status = raw.write(request.clone()).await.unwrap_err();
        assert_eq!((status.code(), status.details()), (code, &[][..]), "{request:?}");
    }
    let read_request = v1::ReadRequest {
        device_id: DEVICE,
        ..Default::default()
    };
    assert_eq!(
        raw.read(read_request.clone()).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(
        raw.read(v1::ReadRequest {
            device_id: 2,
            ..read_request
        })
        .await
        .unwrap_err()
        .code(),
        Code::NotFound
    );
    assert!(matches!(
        client.write(&[], Atomicity::ContinueOnError).await,
        Err(ClientError::NoProgram)
    ));
    client.set_pipeline(&pipeline()).await.unwrap();
    raw.write(request).await.unwrap();
}

#[test]
async fn client_returns_the_result_of_each_update() {
    let (_server, mut client, _events) = Server::controlled().await;
    let id = ProfileId(id("In.ports"));
    let delete = Update::Member(Change::Delete((id, MemberId(4))));
    let info = info();
    let valid = Translator::new(&info).decode_update(&counter(1, 1)).unwrap();
    let error = client
        .write(&[valid, delete], Atomicity::ContinueOnError)
        .await
        .unwrap_err();
    let ClientError::BatchFailed(results) = &error else {
        panic!("{error}")
    };
    assert_eq!(
        *results,
        [Ok(()), Err(EntityError::not_found("entity does not exist"))]
    );
    assert_eq!(
        error.to_string(),
        "1 of 2 failed; update 1: NotFound: entity does not exist"
    );
    // The errors of this batch exceed gRPC's default limit of 8 KiB for headers.
    let deletes: Vec<_> = (1..2000)
        .map(|number| Update::Member(Change::Delete((id, MemberId(number)))))
        .collect();
    match client.write(&deletes, Atomicity::ContinueOnError).await {
        Err(ClientError::BatchFailed(results)) => assert_eq!(results.len(), deletes.len()),
        other => panic!("{other:?}"),
    }
    let unknown_table = Read::DefaultEntries {
        table: Some(TableId(4)),
        options: ReadOptions::default(),
    };
    assert!(matches!(
        client.read(&[unknown_table]).await,
        Err(ClientError::BatchFailed(_))
    ));
}
