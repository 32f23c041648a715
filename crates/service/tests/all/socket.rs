//! Gateways on the controller's machine, over the controller's Unix socket.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream as BlockingStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request};
use linewarden_harness::{skip, skip_part};
use linewarden_link::{Client, ClientOptions, Controllers, socket_authority};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex};
use linewarden_registry::{EventFilter, Location, Registry, Role};
use linewarden_service::{Service, ServiceError, ServiceOptions, SocketOptions};
use linewarden_types::{LinkError, ReportStatus, StatusReport};
use serde_json::json;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::controller::{TestController, master_key, minimal_options};
use crate::gateways::{enroll, start_gateway};
use crate::site::{TIMEOUT, TestDevice as Device, pool, record};

const REGISTER: &str = "/linewarden.link.v1.Link/Register";
/// The gRPC status of a request above a limit.
const RESOURCE_EXHAUSTED: &str = "8";
/// The maximum number of concurrent requests of one gateway.
const REQUESTS_MAX: usize = 32;

/// A registry, and a path for the socket.
pub struct Machine {
    directory: tempfile::TempDir,
    pub runtime: Runtime,
    pub registry: Registry,
}

impl Machine {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(directory.path().join("fleet.registry"));
        let runtime = Runtime::new().unwrap();
        let registry = runtime
            .block_on(Registry::create(&location, &master_key()))
            .unwrap();
        Self {
            directory,
            runtime,
            registry,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("controller.sock")
    }

    /// Starts a service that serves only the socket at `path`.
    pub fn try_start(&self, path: &Path) -> Result<Service, ServiceError> {
        self.try_start_for_group(path, None)
    }

    /// Starts a service that serves only the socket at `path`, also to the members of a group.
    fn try_start_for_group(&self, path: &Path, group_id: Option<u32>) -> Result<Service, ServiceError> {
        let options = ServiceOptions {
            socket: Some(SocketOptions {
                group_id,
                ..owner_socket(path)
            }),
            ..minimal_options(&self.registry)
        };
        self.runtime.block_on(Service::start(options))
    }

    /// Asserts that no service starts at `path`; returns the error.
    #[track_caller]
    fn refused_start(&self, path: &Path) -> String {
        match self.try_start(path) {
            Ok(_) => panic!("a service has started at {}", path.display()),
            Err(error) => error.to_string(),
        }
    }

    pub fn stop(&self, service: Service) {
        self.runtime.block_on(service.stop());
    }

    fn register(&self, gateway: u32) -> Result<u64, LinkError> {
        self.runtime.block_on(link(&self.path(), gateway).register())
    }
}

/// A socket for this user and root only.
fn owner_socket(path: &Path) -> SocketOptions {
    SocketOptions {
        path: path.to_owned(),
        group_id: None,
    }
}

/// A gateway's link to the controller at the socket.
fn link(path: &Path, gateway: u32) -> Client {
    Client::new(ClientOptions {
        controllers: Controllers::Socket {
            path: path.to_owned(),
            gateway: GatewayId(gateway),
        },
        connect_timeout: Duration::from_secs(2),
        response_timeout: Duration::from_secs(5),
        version: "test".to_owned(),
    })
}

/// An HTTP/2 connection to the socket.
#[derive(Clone)]
struct Http2(h2::client::SendRequest<Bytes>);

/// A response without its body; the second value keeps the request body open.
type PendingResponse = (h2::client::ResponseFuture, h2::SendStream<Bytes>);

impl Http2 {
    async fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// Starts a request of gRPC's form, without the end of its body.
    async fn start(&self, authority: &str, path: &str, token: Option<&str>) -> PendingResponse {
        let mut sender = self.0.clone().ready().await.unwrap();
        let mut request = Request::post(format!("http://{authority}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        sender.send_request(request.body(()).unwrap(), false).unwrap()
    }

    /// Sends a request with an empty message; returns the status and the headers of the response.
    async fn request(&self, authority: &str, path: &str, token: Option<&str>) -> (u16, HeaderMap) {
        let (response, mut body) = self.start(authority, path, token).await;
        // The server may have refused the request before its body.
        let _ = body.send_data(Bytes::from_static(&[0; 5]), true);
        let response = response.await.unwrap();
        (response.status().as_u16(), response.headers().clone())
    }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

/// Waits until the condition holds.
#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timeout");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn devices_authenticate_at_a_gateway_whose_controller_serves_only_a_socket() {
    let machine = Machine::new();
    let run = &machine.runtime;
    let options = ServiceOptions {
        socket: Some(owner_socket(&machine.path())),
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        ..minimal_options(&machine.registry)
    };
    let service = run.block_on(Service::start(options)).unwrap();
    assert_eq!(service.address(), None, "the API is disabled");
    let device_id = DeviceId(0xd1);
    run.block_on(machine.registry.enroll(record(device_id, pool(device_id, 40))))
        .unwrap();

    let (gateway, address) = start_gateway(link(&machine.path(), 3), GatewayId(3));
    let mut device = Device::new(device_id, Mode::Pool, address);
    // These are more rows than one lease has.
    for expected in 0..20 {
        assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(expected)));
    }
    linewarden_tls::install_provider();
    let metrics = service.metrics_address().unwrap();
    let page = |path: &str| {
        let address = format!("http://{metrics}{path}");
        run.block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() })
    };
    assert_eq!(page("/readyz"), "ok\n");
    wait_until(|| {
        page("/metrics").contains("linewarden_gateway_frames_total{gateway=\"3\",verdict=\"reply_ack\"}")
    });
    // A regular shutdown loses no rows.
    assert!(gateway.stop().unwrap().unused_rows_reported);
    let (gateway, address) = start_gateway(link(&machine.path(), 3), GatewayId(3));
    let mut device = Device::new(device_id, Mode::Pool, address);
    device.nonce = 100;
    assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(20)));
    run.block_on(machine.registry.revoke(device_id, "stolen", 1))
        .unwrap();
    assert!(gateway.wait_until(TIMEOUT, |status| status.revoked == 1));
    assert_eq!(device.authenticate(Duration::from_millis(300)), None);
    drop(gateway);
    machine.stop(service);
}

#[test]
fn gateways_at_the_socket_and_over_tls_share_their_state() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("controller.sock");
    let controller = TestController::new_with_socket(&path);
    let ada = controller.caller("ada", Role::Admin);
    let device_id = DeviceId(0xd1);
    enroll(&controller, device_id, 40);
    let run = &controller.runtime;
    let (first, address) = start_gateway(link(&path, 3), GatewayId(3));
    let mut device = Device::new(device_id, Mode::Pool, address);
    assert_eq!(device.authenticate(TIMEOUT), Some(RowIndex(0)));
    assert_eq!(ada.get("/api/v1/gateways/3").ok()["state"], "connected");

    // A newer process over TLS replaces the process at the socket, and the reverse.
    let (second, _) = start_gateway(controller.link(GatewayId(3), &[]), GatewayId(3));
    assert!(first.wait_until(TIMEOUT, |status| status.replaced));
    let third = link(&path, 3);
    let token = run.block_on(third.register()).unwrap();
    assert_eq!(token, 3, "the registrations have one sequence of fencing tokens");
    assert!(second.wait_until(TIMEOUT, |status| status.replaced));
    run.block_on(third.call(token, &ReportStatus(StatusReport::default())))
        .unwrap();
    assert_eq!(
        run.block_on(link(&path, 4).register()),
        Ok(1),
        "another gateway has its own sequence"
    );

    let revoke = json!({"reason": "sold"});
    ada.post("/api/v1/gateways/3/revoke", &revoke).ok();
    let error = run
        .block_on(third.call(token, &ReportStatus(StatusReport::default())))
        .unwrap_err();
    assert!(matches!(error, LinkError::Replaced(_)), "{error:?}");
    let error = run.block_on(link(&path, 3).register()).unwrap_err();
    assert!(
        matches!(&error, LinkError::Replaced(reason) if reason.contains("never used again")),
        "{error:?}"
    );
}

#[test]
fn requests_whose_host_names_no_gateway_are_refused() {
    let machine = Machine::new();
    let service = machine.try_start(&machine.path()).unwrap();
    let path = machine.path();
    machine.runtime.block_on(async {
        let connection = Http2::connect(&path).await;
        for authority in [
            "localhost",
            "3",
            "gateway",
            "gateway-",
            "gateway-03",
            "gateway-4294967296",
            "gateway-3:80",
            "gateway-3.example",
            "gateway-4@gateway-3",
        ] {
            let (status, _) = connection.request(authority, REGISTER, None).await;
            assert_eq!(status, 400, "{authority}");
        }
        // A request that names a gateway reaches the method, which refuses the message without a connection id.
        let (status, headers) = connection
            .request(&socket_authority(GatewayId(3)), REGISTER, None)
            .await;
        assert_eq!((status, &headers["grpc-status"]), (200, &"3".parse().unwrap()));
    });
    // In HTTP/1.1, the header Host is not a part of the URI.
    let mut stream = BlockingStream::connect(&path).unwrap();
    write!(
        stream,
        "POST {REGISTER} HTTP/1.1\r\nHost: gateway-3\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
    let filter = EventFilter::default();
    let log = machine
        .runtime
        .block_on(machine.registry.events(&filter, None, 10))
        .unwrap();
    assert!(
        log.entries.is_empty(),
        "a refused request has registered a gateway"
    );
    machine.stop(service);
}

#[test]
fn the_api_is_not_served_at_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("controller.sock");
    let controller = TestController::new_with_socket(&path);
    let ada = controller.caller("ada", Role::Admin);
    ada.get("/api/v1/me").ok();
    controller.runtime.block_on(async {
        let connection = Http2::connect(&path).await;
        for route in [
            "/",
            "/api/v1/me",
            "/api/v1/login",
            "/api/v1/devices",
            "/api/v1/gateways/3/revoke",
            "/openapi.json",
            "/healthz",
            "/metrics",
        ] {
            let gateway = socket_authority(GatewayId(3));
            let (status, _) = connection.request(&gateway, route, ada.token.as_deref()).await;
            assert_eq!(status, 404, "{route}");
            let (status, _) = connection
                .request("ctl.example", route, ada.token.as_deref())
                .await;
            assert_eq!(status, 400, "{route}");
        }
    });
}

#[test]
fn the_socket_is_accessible_only_to_its_owner_and_is_removed_at_stop() {
    let machine = Machine::new();
    let service = machine.try_start(&machine.path()).unwrap();
    assert_eq!(mode(&machine.path()), 0o600);
    assert_eq!(machine.register(3), Ok(1));
    machine.stop(service);
    assert!(machine.path().symlink_metadata().is_err());
    let error = machine.register(3).unwrap_err();
    assert!(
        matches!(&error, LinkError::Failed(reason) if reason.contains("controller.sock")),
        "{error:?}"
    );
    let service = machine.try_start(&machine.path()).unwrap();
    assert_eq!(machine.register(3), Ok(2));
    machine.stop(service);
}

/// A group to which the test's user need not belong.
const GROUP: u32 = 54_321;

/// Whether a process of this user and group, without other groups, may connect to the socket: Linux requires permission to write.
fn may_connect(path: &Path, user: u32, group: u32) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", "test -w \"$1\"", "sh"]).arg(path);
    command.uid(user).gid(group).status().unwrap().success()
}

#[test]
fn the_socket_is_accessible_to_its_owner_and_to_the_members_of_its_group() {
    let machine = Machine::new();
    let own_group = machine.directory.path().metadata().unwrap().gid();
    let service = machine
        .try_start_for_group(&machine.path(), Some(own_group))
        .unwrap();
    let status = machine.path().symlink_metadata().unwrap();
    assert_eq!((mode(&machine.path()), status.gid()), (0o660, own_group));
    assert_eq!(machine.register(3), Ok(1));
    machine.stop(service);
    assert!(machine.path().symlink_metadata().is_err());

    if status.uid() != 0 {
        skip_part!("a socket of another group needs root");
        return;
    }
    let directory_mode = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(machine.directory.path(), directory_mode).unwrap();
    for (group_id, is_member) in [(Some(GROUP), true), (None, false)] {
        let service = machine.try_start_for_group(&machine.path(), group_id).unwrap();
        assert_eq!(may_connect(&machine.path(), 65_534, GROUP), is_member);
        assert!(!may_connect(&machine.path(), 65_534, GROUP + 1));
        machine.stop(service);
    }
}

/// A process without privileges cannot give a file to a group of which it is not a member.
#[test]
fn a_socket_for_a_group_without_permission_is_refused_and_removed() {
    let machine = Machine::new();
    if machine.directory.path().metadata().unwrap().uid() == 0 {
        skip!("root may give a file to any group");
    }
    let started = machine.try_start_for_group(&machine.path(), Some(GROUP));
    let error = started.err().unwrap().to_string();
    let expected = format!("controller.sock: changing the group of the socket to {GROUP} failed");
    assert!(error.contains(&expected), "{error}");
    assert!(machine.path().symlink_metadata().is_err());
}

#[test]
fn the_socket_of_a_killed_controller_is_replaced() {
    let machine = Machine::new();
    // The standard library does not remove the file, and neither does the kernel if a process is killed.
    drop(UnixListener::bind(machine.path()).unwrap());
    assert!(machine.path().exists());
    let service = machine.try_start(&machine.path()).unwrap();
    assert_eq!(mode(&machine.path()), 0o600);
    assert_eq!(machine.register(3), Ok(1));
    machine.stop(service);
}

#[test]
fn the_socket_of_a_running_controller_is_not_taken_over() {
    let machine = Machine::new();
    let service = machine.try_start(&machine.path()).unwrap();
    for _ in 0..2 {
        let error = machine.refused_start(&machine.path());
        assert!(
            error.contains("controller.sock: another process uses the socket"),
            "{error}"
        );
    }
    // A failed start removes no file of another process.
    assert_eq!(machine.register(3), Ok(1));
    machine.stop(service);
}

#[test]
fn other_files_at_the_path_of_the_socket_are_kept() {
    let machine = Machine::new();
    let at = |name: &str| machine.directory.path().join(name);
    std::fs::write(at("file"), "content").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    drop(UnixListener::bind(at("stale")).unwrap());
    symlink(at("stale"), at("link")).unwrap();
    symlink(at("missing"), at("dangling")).unwrap();
    let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
    for name in ["file", "directory", "link", "dangling", "datagrams"] {
        let error = machine.refused_start(&at(name));
        assert!(error.contains(name), "{error}");
        assert!(at(name).symlink_metadata().is_ok(), "{name} was deleted");
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"content");
    assert!(at("stale").exists() && !at("missing").exists());
}

/// A service that cannot bind another address leaves no socket.
#[test]
fn a_failed_start_leaves_no_socket() {
    let machine = Machine::new();
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ServiceOptions {
        socket: Some(owner_socket(&machine.path())),
        metrics: Some(occupied.local_addr().unwrap()),
        ..minimal_options(&machine.registry)
    };
    let started = machine.runtime.block_on(Service::start(options));
    assert!(matches!(started, Err(ServiceError::Listen { .. })));
    assert!(machine.path().symlink_metadata().is_err());
}

/// While a service waits for its last responses, the next service can start at the same path. Its file is kept.
#[test]
fn a_stopping_service_does_not_remove_the_socket_of_its_successor() {
    let machine = Machine::new();
    let first = machine.try_start(&machine.path()).unwrap();
    // The response is in progress as long as the request body has no end.
    let _pending = machine.runtime.block_on(async {
        let connection = Http2::connect(&machine.path()).await;
        let pending = connection
            .start(&socket_authority(GatewayId(4)), REGISTER, None)
            .await;
        // The service receives requests in order: when this request has a response, the pending request was received.
        connection
            .request(&socket_authority(GatewayId(4)), REGISTER, None)
            .await;
        pending
    });
    let stopping = machine.runtime.spawn(first.stop());
    wait_until(|| machine.path().symlink_metadata().is_err());
    let second = machine.try_start(&machine.path()).unwrap();
    assert!(
        !stopping.is_finished(),
        "the first service has a response in progress"
    );
    machine.runtime.block_on(stopping).unwrap();
    assert_eq!(machine.register(3), Ok(1));
    machine.stop(second);
}

#[test]
fn registrations_at_the_socket_are_limited_per_gateway() {
    const ATTEMPTS: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("controller.sock");
    let controller = TestController::new_with_socket(&path);
    let flood = link(&path, 3);
    let register = |link: &Client| controller.runtime.block_on(link.register());
    let success_count = (0..ATTEMPTS).filter(|_| register(&flood).is_ok()).count();
    assert!((1..ATTEMPTS / 2).contains(&success_count), "{success_count}");
    // The limit applies to the gateway, not to the socket or to the connection.
    for link in [link(&path, 3), controller.link(GatewayId(3), &[])] {
        let results: Vec<_> = (0..ATTEMPTS / 10).map(|_| register(&link)).collect();
        assert!(
            results.iter().any(
                |result| matches!(result, Err(LinkError::Failed(reason)) if reason.contains("registrations"))
            ),
            "{results:?}"
        );
    }
    assert_eq!(register(&link(&path, 4)), Ok(1), "another gateway can register");
}

#[test]
fn concurrent_requests_at_the_socket_are_limited_per_gateway() {
    let machine = Machine::new();
    let service = machine.try_start(&machine.path()).unwrap();
    machine.runtime.block_on(async {
        let connections = [
            Http2::connect(&machine.path()).await,
            Http2::connect(&machine.path()).await,
        ];
        let gateway = socket_authority(GatewayId(3));
        let mut responses = JoinSet::new();
        let mut open_bodies = Vec::new();
        // Registrations have another limit.
        let method = "/linewarden.link.v1.Link/ListChanges";
        for connection in connections.iter().cycle().take(REQUESTS_MAX + 1) {
            let (response, body) = connection.start(&gateway, method, None).await;
            open_bodies.push(body);
            responses.spawn(response);
        }
        let refused = responses.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(refused.headers()["grpc-status"], RESOURCE_EXHAUSTED);
        let (_, headers) = connections[0]
            .request(&socket_authority(GatewayId(4)), method, None)
            .await;
        assert_ne!(headers["grpc-status"], RESOURCE_EXHAUSTED);
        // The end of a request allows another request.
        drop(open_bodies);
        responses.shutdown().await;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let (_, headers) = connections[1].request(&gateway, method, None).await;
            if headers["grpc-status"] != RESOURCE_EXHAUSTED {
                break;
            }
            assert!(Instant::now() < deadline, "the requests are still counted");
        }
    });
    machine.stop(service);
}
