//! Requests that a gateway abandons, and that a controller processes late.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use linewarden_link::{Client, ClientOptions, Controllers, MessageCall as _, proto, socket_authority};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_protocol::nonce::RowStatement;
use linewarden_registry::{FencingToken, LeaseRequest};
use linewarden_types::{LinkError, ReportUnusedRows, UnusedRows};
use tokio::net::UnixStream;

use crate::site::{TIMEOUT, pool, record};
use crate::socket::Machine;

const GATEWAY: GatewayId = GatewayId(3);
const DEVICE: DeviceId = DeviceId(0xd1);

fn unused_from(row: u32) -> ReportUnusedRows {
    ReportUnusedRows(vec![UnusedRows {
        device: DEVICE,
        epoch: 0,
        unused_from: RowIndex(row),
        keep_leased: false,
    }])
}

/// Sends a report of unused rows with number 0, like a report that a controller has held until now. Returns the reason of
/// the rejection.
async fn send_late(path: &Path, fencing_token: u64, report: ReportUnusedRows) -> String {
    let endpoint = linewarden_tls::endpoint(&socket_authority(GATEWAY), None).unwrap();
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let registration = proto::Registration {
        fencing_token,
        connection_id: vec![7; 16],
        abandoned_requests: 0,
    };
    let request = report.encode(Some(registration), 0);
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let status = grpc
        .unary(
            tonic::Request::new(request),
            "/linewarden.link.v1.Link/ReportUnusedRows".parse().unwrap(),
            tonic_prost::ProstCodec::<_, proto::ReportUnusedRowsResponse>::default(),
        )
        .await
        .unwrap_err();
    let reason = status.metadata().get(linewarden_link::DENIAL);
    reason.unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_late_request_changes_nothing() {
    let machine = Machine::new();
    let (run, path) = (&machine.runtime, machine.path());
    run.block_on(machine.registry.enroll(record(DEVICE, pool(DEVICE, 40))))
        .unwrap();
    let client = Client::new(ClientOptions {
        controllers: Controllers::Socket {
            path: path.clone(),
            gateway: GATEWAY,
        },
        connect_timeout: TIMEOUT,
        response_timeout: Duration::from_millis(300),
        version: "test".to_owned(),
    });
    let deadline = Instant::now() + TIMEOUT;
    // On a busy machine, a request may time out.
    macro_rules! until_response {
        ($request:expr) => {
            loop {
                match run.block_on($request) {
                    Ok(response) => break response,
                    Err(error) => assert!(Instant::now() < deadline, "{error}"),
                }
            }
        };
    }
    let service = machine.try_start(&path).unwrap();
    let token = until_response!(client.register());
    assert_eq!(
        until_response!(client.register()),
        token,
        "a process that registers again keeps its fencing token"
    );
    let lease = |abandoned_requests: u64| {
        let token = FencingToken::presented(GATEWAY, token, abandoned_requests);
        let request = LeaseRequest {
            device: DEVICE,
            epoch: 0,
            from: RowIndex(0),
            received: RowIndex(0),
            hold_rows: 9,
            spendable_rows: 4,
            statement: RowStatement::default(),
        };
        let granted = run.block_on(machine.registry.lease(&token, &[request]));
        granted.is_ok_and(|mut granted| granted.remove(0).is_ok())
    };
    assert!(lease(0));
    machine.stop(service);

    // A controller that does not respond.
    let silent_controller = UnixListener::bind(&path).unwrap();
    // The client may first notice that its connection to the stopped service is closed.
    loop {
        let result = run.block_on(client.call(token, &unused_from(2)));
        let error = result.unwrap_err().to_string();
        if error.contains("response timed out") {
            break;
        }
        assert!(Instant::now() < deadline, "{error}");
    }
    drop(silent_controller);
    std::fs::remove_file(&path).unwrap();

    let service = machine.try_start(&path).unwrap();
    until_response!(client.call(token, &unused_from(2)));
    // The device returns to the gateway.
    assert!(!lease(0), "the number of abandoned requests is recorded");
    assert!(
        (1..100).any(lease),
        "the gateway has abandoned at least one request"
    );
    let leases = run.block_on(machine.registry.leases_of(DEVICE)).unwrap();
    assert_eq!(leases[0].rows, 2..11);
    let reason = run.block_on(send_late(&path, token, unused_from(2)));
    assert_eq!(reason, "outdated");
    assert_eq!(run.block_on(machine.registry.leases_of(DEVICE)).unwrap(), leases);

    // Another process sends requests under the registration of this process.
    let token = FencingToken::presented(GATEWAY, token, 1_000);
    run.block_on(machine.registry.record_abandoned_requests(&token))
        .unwrap();
    let replaced = loop {
        let result = run.block_on(client.call(token.number(), &unused_from(2)));
        match result.unwrap_err() {
            LinkError::Replaced(reason) => break reason,
            other => assert!(Instant::now() < deadline, "{other}"),
        }
    };
    assert!(
        replaced.contains("another process uses the registration"),
        "{replaced}"
    );
    machine.stop(service);
}
