//! Forwarding pipelines over gRPC: verify, save, commit, reconcile and read.

use crate::service::support::{DEVICE, Raw, Server, counter, entity, info, pipeline, read, write_request};
use linewarden_p4runtime::error::Code;
use linewarden_p4runtime::proto::v1;
use linewarden_p4runtime::target::Pipeline;
use linewarden_p4runtime::translate::Read;
use tonic::Request;
use v1::set_forwarding_pipeline_config_request::Action;

fn set_request(action: Action, program: Option<&[u8]>) -> v1::SetForwardingPipelineConfigRequest {
    v1::SetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        election_id: Some(v1::Uint128 { high: 0, low: 10 }),
        action: action.into(),
        config: program.map(|program| v1::ForwardingPipelineConfig {
            p4info: Some(info().message().clone()),
            p4_device_config: program.to_vec(),
            cookie: None,
        }),
        ..Default::default()
    }
}

async fn first_counter(raw: &mut Raw) -> v1::Entity {
    read(raw, &["counter_entry { counter_id: @In.seen_by_port@ index {} }"])
        .await
        .0
        .remove(0)
}

#[test]
async fn programs_are_verified_saved_committed_and_reconciled() {
    let server = Server::start(None).await;
    let (_client, _events, _) = server.client(10).await;
    let mut raw = server.raw().await;
    let set = async |raw: &mut Raw, action, program: Option<&[u8]>| {
        let result = raw
            .set_forwarding_pipeline_config(set_request(action, program))
            .await;
        result.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    let get = async |raw: &mut Raw, response_type| {
        let request = v1::GetForwardingPipelineConfigRequest {
            device_id: DEVICE,
            response_type,
        };
        raw.get_forwarding_pipeline_config(request)
            .await
            .unwrap()
            .into_inner()
            .config
    };
    assert_eq!(
        set(&mut raw, Action::Unspecified, Some(b"a")).await,
        Code::InvalidArgument
    );
    for action in [
        Action::Verify,
        Action::VerifyAndSave,
        Action::VerifyAndCommit,
        Action::ReconcileAndCommit,
    ] {
        assert_eq!(
            set(&mut raw, action, None).await,
            Code::InvalidArgument,
            "{action:?}"
        );
        assert_eq!(
            set(&mut raw, action, Some(b"not a program")).await,
            Code::InvalidArgument,
            "{action:?}"
        );
    }
    assert_eq!(set(&mut raw, Action::Verify, Some(b"a")).await, Code::Ok);
    assert_eq!(get(&mut raw, 0).await, None, "verification sets no program");
    assert_eq!(set(&mut raw, Action::Commit, None).await, Code::NotFound);
    assert_eq!(
        set(&mut raw, Action::VerifyAndCommit, Some(b"first")).await,
        Code::Ok
    );
    raw.write(write_request(vec![counter(0, 5)], Default::default()))
        .await
        .unwrap();
    // After the save, requests refer to the saved program, but the old program runs until the commit. The commit keeps
    // the state that was written after the save.
    assert_eq!(
        set(&mut raw, Action::VerifyAndSave, Some(b"second")).await,
        Code::Ok
    );
    assert_eq!(
        first_counter(&mut raw).await,
        entity("counter_entry { counter_id: @In.seen_by_port@ index {} data {} }")
    );
    raw.write(write_request(vec![counter(0, 6)], Default::default()))
        .await
        .unwrap();
    assert_eq!(
        set(&mut raw, Action::Commit, Some(b"third")).await,
        Code::InvalidArgument
    );
    assert_eq!(set(&mut raw, Action::Commit, None).await, Code::Ok);
    let written_counter =
        entity("counter_entry { counter_id: @In.seen_by_port@ index {} data { packet_count: 6 } }");
    assert_eq!(first_counter(&mut raw).await, written_counter);
    assert_eq!(
        set(&mut raw, Action::ReconcileAndCommit, Some(b"fourth")).await,
        Code::Ok
    );
    assert_eq!(
        first_counter(&mut raw).await,
        written_counter,
        "reconciliation keeps the written state"
    );
    assert_eq!(
        set(&mut raw, Action::VerifyAndCommit, Some(b"not this")).await,
        Code::InvalidArgument
    );
    assert_eq!(
        get(&mut raw, 3).await.unwrap().p4_device_config,
        b"fourth",
        "a failed request changes nothing"
    );
    assert_eq!(
        set(&mut raw, Action::VerifyAndCommit, Some(b"fifth")).await,
        Code::Ok
    );
    assert_ne!(
        first_counter(&mut raw).await,
        written_counter,
        "verify and commit starts with empty state"
    );
    let mut broken = set_request(Action::VerifyAndCommit, Some(b"a"));
    broken.config.as_mut().unwrap().p4info.as_mut().unwrap().tables[0].size = -1;
    let status = raw.set_forwarding_pipeline_config(broken).await.unwrap_err();
    assert_eq!(
        status.message(),
        "P4Info: table \"In.mac\" (id 47062153): size -1 is negative"
    );
    let mut backup = set_request(Action::Verify, Some(b"a"));
    backup.election_id = None;
    assert_eq!(
        raw.set_forwarding_pipeline_config(backup)
            .await
            .unwrap_err()
            .code(),
        Code::PermissionDenied
    );
}

#[test]
async fn pipeline_is_read_as_it_was_set() {
    let (server, mut client, _events) = Server::controlled().await;
    let config = client.pipeline().await.unwrap().unwrap();
    assert_eq!(
        (config.cookie, &*config.device_config),
        (Some(7), &b"a program"[..])
    );
    assert_eq!(config.info.message(), info().message());
    let mut raw = server.raw().await;
    for (response_type, with_info, with_program) in [
        (0, true, true),
        (1, false, false),
        (2, true, false),
        (3, false, true),
    ] {
        let request = v1::GetForwardingPipelineConfigRequest {
            device_id: DEVICE,
            response_type,
        };
        let config = raw
            .get_forwarding_pipeline_config(request)
            .await
            .unwrap()
            .into_inner()
            .config
            .unwrap();
        assert_eq!(config.p4info.is_some(), with_info);
        assert_eq!(!config.p4_device_config.is_empty(), with_program);
        assert_eq!(config.cookie.unwrap().cookie, 7);
    }
    let request = v1::GetForwardingPipelineConfigRequest {
        device_id: 2,
        response_type: 0,
    };
    assert_eq!(
        raw.get_forwarding_pipeline_config(request)
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    assert_eq!(client.api_version().await.unwrap(), "1.5.0");
    let other_device = v1::CapabilitiesRequest { device_id: 2 };
    assert_eq!(
        raw.capabilities(other_device).await.unwrap_err().code(),
        Code::NotFound
    );
    raw.capabilities(Request::new(v1::CapabilitiesRequest::default()))
        .await
        .unwrap();
}

#[test]
async fn running_switch_returns_its_pipeline() {
    let server = Server::start(Some(Pipeline {
        cookie: None,
        ..pipeline()
    }))
    .await;
    let (mut client, _events, _) = server.client(1).await;
    assert!(client.pipeline().await.unwrap().is_some());
    assert_eq!(
        client
            .read(&[Read::Registers {
                id: None,
                index: None
            }])
            .await
            .unwrap()
            .len(),
        16
    );
}
