//! Evidence over gRPC: a client asks, whatever a switch answers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::SocketAddr;
use std::sync::Arc;

use linewarden_p4runtime::evidence::{
    AskError, Attested, Client, Digests, Listing, NoEvidence, Source, service,
};
use tokio_stream::wrappers::TcpListenerStream;

/// Says what it was asked; without a key it signs nothing.
struct Switch {
    has_key: bool,
}

/// More than one message holds.
const INVENTORY_BYTES: usize = 5 << 20;

fn inventory() -> Vec<u8> {
    (0..INVENTORY_BYTES).map(|at| (at % 251) as u8).collect()
}

impl Source for Switch {
    fn digests(&self) -> Result<Digests, NoEvidence> {
        Ok(Digests {
            switch_id: 7,
            registers: vec![1; 32],
            ..Digests::default()
        })
    }

    fn attest(&self, nonce: [u8; 32], listing: Listing) -> Result<Attested, NoEvidence> {
        if !self.has_key {
            return Err(NoEvidence("this switch has no key to sign with".to_owned()));
        }
        Ok(Attested {
            statement: nonce.to_vec(),
            inventory: match listing {
                Listing::Nothing => None,
                Listing::AllBut(without) if without.is_empty() => Some(inventory()),
                Listing::AllBut(without) => Some(without.concat().into_bytes()),
            },
        })
    }
}

async fn served(has_key: bool) -> Client {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(service(Arc::new(Switch { has_key })));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Client::connect(address, None).await.unwrap()
}

#[tokio::test]
async fn a_statement_comes_with_its_inventory_however_long() {
    let mut client = served(true).await;
    let attested = client.attest([9; 32], Listing::ALL).await.unwrap();
    assert_eq!(attested.statement, [9; 32]);
    assert_eq!(attested.inventory.unwrap(), inventory());
    let without = client.attest([8; 32], Listing::Nothing).await.unwrap();
    assert_eq!((without.statement, without.inventory), (vec![8; 32], None));
    let named = ["table:a", "register:b"].map(str::to_owned);
    let listing = Listing::AllBut(named.to_vec());
    let without = client.attest([7; 32], listing).await.unwrap();
    assert_eq!(without.inventory.unwrap(), b"table:aregister:b");
}

#[tokio::test]
async fn digests_need_no_key() {
    let mut client = served(false).await;
    let digests = client.digests().await.unwrap();
    assert_eq!((digests.switch_id, digests.registers), (7, vec![1; 32]));
}

#[tokio::test]
async fn a_switch_says_why_it_gives_none() {
    let refused = served(false)
        .await
        .attest([9; 32], Listing::Nothing)
        .await
        .unwrap_err();
    let AskError::Refused(status) = refused else {
        unreachable!("{refused}");
    };
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert_eq!(status.message(), "this switch has no key to sign with");
}

#[tokio::test]
async fn many_who_ask_at_once_all_get_their_own() {
    let client = served(true).await;
    let asking: Vec<_> = (0..32u8)
        .map(|nonce| {
            let mut client = client.clone();
            tokio::spawn(async move { (nonce, client.attest([nonce; 32], Listing::Nothing).await) })
        })
        .collect();
    for asked in asking {
        let (nonce, attested) = asked.await.unwrap();
        assert_eq!(attested.unwrap().statement, [nonce; 32]);
    }
}
