//! Requests that a gateway has abandoned are refused after later requests, and repeated registrations change nothing.

use linewarden_protocol::ids::{GatewayId, RowIndex};
use linewarden_registry::{FencingError, FencingToken, RegistryError};
use linewarden_types::ProcessId;

use crate::leases::{DEVICE, NOW_S, Site, lease, lease_request, report_unused_rows};
use crate::support::in_memory;

/// The token of a request that a gateway sends after it has abandoned this number of requests.
pub(crate) fn after_abandoning(requests: u64, fencing_token: &FencingToken) -> FencingToken {
    FencingToken::presented(fencing_token.gateway(), fencing_token.number(), requests)
}

#[test]
async fn an_abandoned_request_changes_nothing_after_a_later_request() {
    let site = Site::with_pool(40).await;
    let (registry, abandoned) = (&site.registry, &site.gateway_1);
    let _ = lease(registry, abandoned, lease_request(0, 8, 4)).await.unwrap();
    // The gateway abandons a report of unused rows and repeats the report. The device returns, and its rows are used.
    let later = after_abandoning(1, abandoned);
    registry.record_abandoned_requests(&later).await.unwrap();
    assert_eq!(report_unused_rows(registry, &later, 2, false).await.unwrap(), 6);
    let _ = lease(registry, &later, lease_request(0, 8, 8)).await.unwrap();
    let leases = registry.leases_of(DEVICE).await.unwrap();
    assert_eq!((leases[0].rows.clone(), leases[0].mark), (2..10, RowIndex(10)));
    for error in [
        report_unused_rows(registry, abandoned, 2, false)
            .await
            .unwrap_err(),
        lease(registry, abandoned, lease_request(20, 8, 8))
            .await
            .unwrap_err(),
        registry.verify_fencing_token(abandoned).await.unwrap_err(),
        registry.record_abandoned_requests(abandoned).await.unwrap_err(),
        registry.issue_fencing_token(abandoned, NOW_S).await.unwrap_err(),
        registry
            .stream_leased(*abandoned, 10)
            .next_chunk()
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(
                error,
                RegistryError::Fencing(FencingError::OutdatedRequest {
                    gateway: GatewayId(1)
                })
            ),
            "{error}"
        );
    }
    assert_eq!(registry.leases_of(DEVICE).await.unwrap(), leases);
    // Other gateways, later requests and the next process are served.
    let _ = lease(registry, &site.gateway_2, lease_request(0, 4, 4))
        .await
        .unwrap();
    for requests in [1, 7, 7] {
        let token = after_abandoning(requests, abandoned);
        registry.record_abandoned_requests(&token).await.unwrap();
        let _ = lease(registry, &token, lease_request(2, 8, 8)).await.unwrap();
    }
    let restarted = registry.register_gateway(GatewayId(1), NOW_S).await.unwrap();
    let _ = lease(registry, &restarted, lease_request(0, 4, 4)).await.unwrap();
}

#[test]
async fn a_process_that_registers_again_keeps_its_fencing_token() {
    let registry = in_memory().await;
    let [process, next_process] = [1, 2].map(|byte| ProcessId([byte; 16]));
    let register = async |process| {
        registry
            .register_process(GatewayId(1), process, NOW_S)
            .await
            .unwrap()
    };
    let (token, is_new) = register(process).await;
    assert_eq!((token.number(), is_new), (1, true));
    assert_eq!(register(process).await, (token, false));
    // A process keeps the token that replaced its token, and its count of abandoned requests.
    let issued = registry
        .issue_fencing_token(&after_abandoning(3, &token), NOW_S)
        .await
        .unwrap();
    assert_eq!((issued.number(), issued.abandoned_requests()), (2, 3));
    assert_eq!(register(process).await, (issued, false));
    let (next, is_new) = register(next_process).await;
    assert_eq!((next.number(), next.abandoned_requests(), is_new), (3, 0, true));
    assert_eq!(registry.check().await.unwrap().len(), 0);
}
