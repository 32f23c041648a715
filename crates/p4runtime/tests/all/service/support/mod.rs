//! In-memory switch without a data plane, and helpers for server tests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, as tests do; no test uses all of them"
)]

// Other crates use this file, too.
#[path = "../../../service/support/authority.rs"]
pub mod authority;
pub mod memory;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use linewarden_p4runtime::arbitration::{ArbitrationStatus, Limits};
use linewarden_p4runtime::client::{Client, ClientIdentity, Events};
use linewarden_p4runtime::p4info::P4Info;
use linewarden_p4runtime::proto::{DESCRIPTORS, v1};
use linewarden_p4runtime::server::Routes;
use linewarden_p4runtime::server::{Options, Service};
use linewarden_p4runtime::target::Pipeline;
use linewarden_tls::ServerTls;
use memory::Memory;
use prost_reflect::{DescriptorPool, DynamicMessage};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use v1::p4_runtime_client::P4RuntimeClient;
use v1::update::Type;

pub const DEVICE: u64 = 1;

pub fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn info() -> Arc<P4Info> {
    static INFO: LazyLock<Arc<P4Info>> =
        LazyLock::new(|| Arc::new(P4Info::from_text(&data("everything.p4info.txtpb")).unwrap()));
    INFO.clone()
}

pub fn pipeline() -> Pipeline {
    Pipeline {
        info: info(),
        device_config: Arc::from(&b"a program"[..]),
        cookie: Some(7),
    }
}

/// Parses a message of type `name` in text format. `@ELEMENT@` is replaced by the id of that P4Info element.
pub fn text<M: prost::Message + Default>(name: &str, text: &str) -> M {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let descriptor = pool
        .get_message_by_name(name)
        .unwrap_or_else(|| panic!("no message {name}"));
    let mut text_with_ids = String::new();
    for (index, part) in text.split('@').enumerate() {
        match index % 2 {
            0 => text_with_ids.push_str(part),
            _ => text_with_ids.push_str(&id(part).to_string()),
        }
    }
    let message = DynamicMessage::parse_text_format(descriptor, &text_with_ids);
    message
        .unwrap_or_else(|error| panic!("{error} in {text_with_ids}"))
        .transcode_to()
        .unwrap()
}

pub fn entity(entity_text: &str) -> v1::Entity {
    text("p4.v1.Entity", entity_text)
}

pub fn update(kind: v1::update::Type, entity_text: &str) -> v1::Update {
    v1::Update {
        r#type: kind.into(),
        entity: Some(entity(entity_text)),
    }
}

/// Id of the P4Info element with this name or alias.
pub fn id(name: &str) -> u32 {
    let info = info();
    let ids = [
        info.tables().by_name_or_alias(name).map(|element| element.id.0),
        info.actions().by_name_or_alias(name).map(|element| element.id.0),
        info.profiles().by_name_or_alias(name).map(|element| element.id.0),
        info.counters().by_name_or_alias(name).map(|element| element.id.0),
        info.meters().by_name_or_alias(name).map(|element| element.id.0),
        info.registers()
            .by_name_or_alias(name)
            .map(|element| element.id.0),
        info.digests().by_name_or_alias(name).map(|element| element.id.0),
        info.value_sets()
            .by_name_or_alias(name)
            .map(|element| element.id.0),
    ];
    ids.into_iter()
        .flatten()
        .next()
        .unwrap_or_else(|| panic!("no element has the name {name}"))
}

/// Generated gRPC client.
pub type Raw = v1::p4_runtime_client::P4RuntimeClient<tonic::transport::Channel>;

pub fn write_request(updates: Vec<v1::Update>, atomicity: v1::write_request::Atomicity) -> v1::WriteRequest {
    v1::WriteRequest {
        device_id: DEVICE,
        election_id: Some(v1::Uint128 { high: 0, low: 10 }),
        updates,
        atomicity: atomicity.into(),
        ..Default::default()
    }
}

pub async fn write(raw: &mut Raw, kind: Type, entity_text: &str) -> Result<(), Status> {
    let request = write_request(
        vec![update(kind, entity_text)],
        v1::write_request::Atomicity::ContinueOnError,
    );
    raw.write(request).await.map(|_| ())
}

pub async fn read(raw: &mut Raw, requests: &[&str]) -> (Vec<v1::Entity>, Result<(), Status>) {
    let entities = requests.iter().map(|request| entity(request)).collect();
    let request = v1::ReadRequest {
        device_id: DEVICE,
        entities,
        ..Default::default()
    };
    let mut responses = raw.read(request).await.unwrap().into_inner();
    let mut received = Vec::new();
    loop {
        match responses.message().await {
            Ok(Some(response)) => received.extend(response.entities),
            Ok(None) => return (received, Ok(())),
            Err(status) => return (received, Err(status)),
        }
    }
}

/// Update that sets the packet count of one cell of `In.seen_by_port`.
pub fn counter(index: u64, packets: u64) -> v1::Update {
    let entity_text = format!(
        "counter_entry {{ counter_id: @In.seen_by_port@ index {{ index: {index} }} data {{ packet_count: {packets} }} }}"
    );
    update(Type::Modify, &entity_text)
}

/// Server with an in-memory switch.
pub struct Server {
    pub endpoint: Endpoint,
    pub switch: Arc<Memory>,
    shutdown: Option<oneshot::Sender<()>>,
    pub task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Starts on a free local port, with or without a program.
    pub async fn start(pipeline: Option<Pipeline>) -> Self {
        Self::start_with(pipeline, Routes::default(), None).await
    }

    /// Starts with further services and TLS; the endpoint has no TLS configuration.
    pub async fn start_with(
        pipeline: Option<Pipeline>,
        other_services: Routes,
        tls: Option<ServerTls>,
    ) -> Self {
        let (switch, events) = Memory::new(&data("everything.entries.txtpb"));
        if let Some(pipeline) = &pipeline {
            switch.run(pipeline);
        }
        let limits = Limits {
            streams_per_role: 10,
            roles: 4,
        };
        let service = Service::new(
            switch.clone(),
            events,
            Options {
                device_id: DEVICE,
                limits,
                pipeline,
            },
        );
        let listener = Service::<Memory>::listen("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let (shutdown, shutdown_receiver) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let until_shutdown = async {
                let _ = shutdown_receiver.await;
            };
            let result = service
                .serve(other_services, listener, tls.as_ref(), until_shutdown)
                .await;
            result.unwrap();
        });
        Self {
            endpoint,
            switch,
            shutdown: Some(shutdown),
            task,
        }
    }

    /// Stops the server, as a signal would.
    pub fn stop(&mut self) {
        drop(self.shutdown.take());
    }

    /// Connects a generated client with the smallest HTTP/2 window, so that unread messages stay in the server.
    pub async fn raw(&self) -> P4RuntimeClient<Channel> {
        let endpoint = self.endpoint.clone().http2_max_header_list_size(1 << 20);
        P4RuntimeClient::new(
            endpoint
                .initial_stream_window_size(65_535)
                .connect()
                .await
                .unwrap(),
        )
    }

    pub async fn client(&self, election_id: u128) -> (Client, Events, ArbitrationStatus) {
        let identity = ClientIdentity {
            device_id: DEVICE,
            role: String::new(),
            election_id,
        };
        Client::connect(self.endpoint.clone(), identity).await.unwrap()
    }

    /// Starts a server and connects a primary client, which sets the test program.
    pub async fn controlled() -> (Self, Client, Events) {
        let server = Self::start(None).await;
        let (mut client, events, status) = server.client(10).await;
        assert_eq!(status, ArbitrationStatus::Primary);
        client.set_pipeline(&pipeline()).await.unwrap();
        (server, client, events)
    }
}
