//! Evidence over gRPC: requests of a client to a simulated switch.

use std::net::SocketAddr;
use std::sync::Arc;

use linewarden_p4runtime::evidence::{
    Client, Digests, EvidenceClientError, EvidenceSource, EvidenceUnavailable, InventoryScope,
    SignedEvidence, service,
};
use tokio_stream::wrappers::TcpListenerStream;

/// Simulated switch: its statement is the nonce of the request. A switch without a key returns an error.
struct Switch {
    has_key: bool,
}

/// Size of the inventory in bytes: more than one gRPC message can contain.
const INVENTORY_BYTES: usize = 5 << 20;

fn inventory() -> Vec<u8> {
    (0..INVENTORY_BYTES).map(|index| (index % 251) as u8).collect()
}

impl EvidenceSource for Switch {
    fn digests(&self) -> Result<Digests, EvidenceUnavailable> {
        Ok(Digests {
            switch_id: 7,
            registers: vec![1; 32],
            ..Digests::default()
        })
    }

    fn attest(
        &self,
        nonce: [u8; 32],
        inventory_scope: InventoryScope,
    ) -> Result<SignedEvidence, EvidenceUnavailable> {
        if !self.has_key {
            return Err(EvidenceUnavailable(
                "this switch has no key to sign with".to_owned(),
            ));
        }
        Ok(SignedEvidence {
            statement: nonce.to_vec(),
            inventory: match inventory_scope {
                InventoryScope::None => None,
                InventoryScope::AllExcept(excluded_objects) if excluded_objects.is_empty() => {
                    Some(inventory())
                }
                InventoryScope::AllExcept(excluded_objects) => Some(excluded_objects.concat().into_bytes()),
            },
        })
    }
}

async fn connect_client(has_key: bool) -> Client {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(service(Arc::new(Switch { has_key })));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Client::connect(address, None).await.unwrap()
}

#[test]
async fn statement_is_followed_by_an_inventory_of_any_length() {
    let mut client = connect_client(true).await;
    let evidence = client.attest([9; 32], InventoryScope::ALL).await.unwrap();
    assert_eq!(evidence.statement, [9; 32]);
    assert_eq!(evidence.inventory.unwrap(), inventory());
    let evidence = client.attest([8; 32], InventoryScope::None).await.unwrap();
    assert_eq!((evidence.statement, evidence.inventory), (vec![8; 32], None));
    let excluded_objects = ["table:a", "register:b"].map(str::to_owned);
    let inventory_scope = InventoryScope::AllExcept(excluded_objects.to_vec());
    let evidence = client.attest([7; 32], inventory_scope).await.unwrap();
    assert_eq!(evidence.inventory.unwrap(), b"table:aregister:b");
}

#[test]
async fn digests_need_no_key() {
    let mut client = connect_client(false).await;
    let digests = client.digests().await.unwrap();
    assert_eq!((digests.switch_id, digests.registers), (7, vec![1; 32]));
}

#[test]
async fn unavailable_evidence_is_reported_with_the_reason() {
    let error = connect_client(false)
        .await
        .attest([9; 32], InventoryScope::None)
        .await
        .unwrap_err();
    let EvidenceClientError::Rejected(status) = error else {
        unreachable!("{error}");
    };
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert_eq!(status.message(), "this switch has no key to sign with");
}

#[test]
async fn concurrent_requests_receive_their_own_statements() {
    let client = connect_client(true).await;
    let tasks: Vec<_> = (0..32u8)
        .map(|nonce| {
            let mut client = client.clone();
            tokio::spawn(async move { (nonce, client.attest([nonce; 32], InventoryScope::None).await) })
        })
        .collect();
    for task in tasks {
        let (nonce, evidence) = task.await.unwrap();
        assert_eq!(evidence.unwrap().statement, [nonce; 32]);
    }
}
