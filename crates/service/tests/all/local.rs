//! The API over a local registry, with the client of remote administration.

use linewarden_api::{AuditQuery, DeviceQuery, EventHistoryQuery, NewGateway, PageQuery, ResultQuery};
use linewarden_client::{Client, ClientError, DeviceAction};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Credentials, Registry};
use linewarden_service::LocalApi;

use crate::controller::master_key;
use crate::site::{record, row_key};

async fn local_client() -> (Registry, Client) {
    let registry = Registry::in_memory(&master_key()).await.unwrap();
    let api = LocalApi::new(registry.clone(), None).await.unwrap();
    (registry, Client::in_process(api).unwrap())
}

fn new_gateway(id: u32, reason: &str) -> NewGateway {
    NewGateway {
        id,
        name: "hall 3".to_owned(),
        reason: reason.to_owned(),
    }
}

#[test]
async fn local_changes_are_audited_with_the_user_of_the_operating_system() {
    let (registry, client) = local_client().await;
    let device = DeviceId(0xd1);
    registry
        .enroll(record(device, Credentials::Key(row_key(device, 0))))
        .await
        .unwrap();
    // A local change needs no reason. A refused change is recorded as well.
    assert_eq!(client.create_gateway(&new_gateway(7, "")).await.unwrap().id, 7);
    let revoked = client
        .change_device_state("d1", DeviceAction::Revoke, "stolen")
        .await
        .unwrap();
    assert_eq!(revoked.status, "revoked");
    let refused = client
        .change_device_state("d1", DeviceAction::Release, "found")
        .await;
    assert_eq!(refused.unwrap_err().code(), Some("conflict"));
    let audit = client.audit_records(&AuditQuery::default()).await.unwrap();
    let records: Vec<(&str, &str, &str)> = audit
        .items
        .iter()
        .map(|record| (&*record.action, &*record.reason, &*record.outcome))
        .collect();
    assert_eq!(
        records,
        [
            ("released", "found", "refused"),
            ("revoked", "stolen", "ok"),
            ("gateway_created", "", "ok")
        ]
    );
    for record in &audit.items {
        assert!(record.actor.starts_with("uid "), "{record:?}");
        assert_eq!((&*record.origin, &*record.role), ("command line", "admin"));
    }
    let user = client.current_user().await.unwrap();
    assert_eq!(user.name, audit.items[0].actor);
}

#[test]
async fn requests_of_local_clients_are_validated() {
    let (_registry, client) = local_client().await;
    let query = DeviceQuery {
        status: Some("odd".to_owned()),
        ..DeviceQuery::default()
    };
    let error = client.devices(&query).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused { status: 422, detail, .. } if detail.field.as_deref() == Some("status")),
        "{error:?}"
    );
    assert_eq!(
        client.device("ff").await.unwrap_err().code(),
        Some("unknown_device")
    );
    let error = client
        .signed_results(&ResultQuery::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("no key signs attestation results"), "{error}");
}

/// A controller only logs the cause of an internal error.
#[test]
async fn local_errors_contain_their_cause() {
    let (registry, client) = local_client().await;
    client.users(&PageQuery::default()).await.unwrap();
    registry.close().await;
    let error = client.users(&PageQuery::default()).await.unwrap_err().to_string();
    assert!(!error.contains("controller log"), "{error}");
    assert!(error.contains("closed"), "{error}");
}

#[test]
async fn a_local_event_stream_continues_after_an_event_and_contains_new_events() {
    let (_registry, client) = local_client().await;
    for id in [1, 2] {
        client.create_gateway(&new_gateway(id, "new")).await.unwrap();
    }
    let mut events = client.events(Some(1)).await.unwrap();
    assert_eq!(events.next().await.unwrap().gateway, Some(2));
    let next = tokio::spawn(async move { events.next().await.unwrap() });
    client.create_gateway(&new_gateway(3, "new")).await.unwrap();
    assert_eq!(next.await.unwrap().gateway, Some(3));
    let history = client.history(&EventHistoryQuery::default()).await.unwrap();
    assert_eq!(history.items.len(), 3);
}
