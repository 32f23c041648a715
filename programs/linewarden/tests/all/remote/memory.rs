//! Memory of a controller while the database hangs and all users send as many requests as permitted.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::controller::TestController;
use crate::support::{TEST_TIMEOUT, require_postgres};

/// Number of users; each user sends the permitted number of imports.
const USERS: usize = 4;
const IMPORTS_PER_USER: usize = 4;
/// Length of the body of each import, in bytes: more than a controller accepts before it has stored the first part.
const BODY_BYTES: usize = 96 << 20;
/// An import that has sent this number of bytes is in progress, because a connection buffers fewer bytes.
const IN_PROGRESS_BYTES: u64 = 4 << 20;
/// Number of requests for a list of devices.
const LIST_REQUESTS: usize = 200;
/// Memory limit, KiB: three parts of 8 MiB for each of 16 imports, and half of this sum for everything else.
const MEMORY_KIB_MAX: u64 = 576 << 10;

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn connect(controller: &TestController) -> Stream {
    let ca = std::fs::read(controller.path("pki/ca.pem")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", controller.port)).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // Completes the handshake before the next connection, because the controller permits few concurrent handshakes.
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    StreamOwned::new(connection, stream)
}

fn request_head(method_and_path: &str, token: &str, length: usize) -> String {
    format!(
        "{method_and_path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nX-Reason: test\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Lines of an import with 500 devices and unique ids.
fn import_lines(import: usize, first: usize) -> String {
    let mut text = String::new();
    for number in first..first + 500 {
        let id = (import as u64 + 1) << 32 | number as u64;
        writeln!(
            text,
            "{{\"id\":\"{id:016x}\",\"name\":\"flood\",\"puf_profile\":\"test\",\"credentials\":{{\"key\":\"{id:032x}\"}}}}"
        )
        .unwrap();
    }
    text
}

/// Sends devices until the controller accepts no more; counts the accepted bytes.
fn flood(mut stream: Stream, token: &str, import: usize, accepted_bytes: &AtomicU64) {
    stream
        .write_all(request_head("POST /api/v1/devices/import", token, BODY_BYTES).as_bytes())
        .unwrap();
    let timeout = Some(Duration::from_secs(3));
    stream.sock.set_write_timeout(timeout).unwrap();
    stream.sock.set_read_timeout(timeout).unwrap();
    let mut sent = 0;
    while sent < BODY_BYTES {
        let lines = import_lines(import, sent);
        let bytes = &lines.as_bytes()[..lines.len().min(BODY_BYTES - sent)];
        if stream.write_all(bytes).is_err() {
            return;
        }
        sent += bytes.len();
        accepted_bytes.fetch_add(bytes.len() as u64, Relaxed);
    }
}

/// Requests the largest permitted list of devices, and reads the response.
fn list_devices(mut stream: Stream, token: &str) {
    let head = request_head("GET /api/v1/devices?limit=1000", token, 0);
    stream.write_all(head.as_bytes()).unwrap();
    let mut response = [0; 1024];
    assert!(stream.read(&mut response).unwrap() > 0);
}

#[test]
fn a_controller_with_a_hanging_database_has_bounded_memory() {
    let database = require_postgres();
    let controller = TestController::with_registry(&database.new_schema("fleet").unwrap());
    let tokens: Vec<String> = (0..USERS)
        .map(|user| {
            let arguments =
                format!("linewarden user create flood-{user} --role operator --config controller.toml");
            controller.run(&arguments).ok().trim().to_owned()
        })
        .collect();
    let usual_kib = controller.memory_kib();

    let accepted_bytes: Arc<[AtomicU64]> = std::iter::repeat_with(AtomicU64::default)
        .take(USERS * IMPORTS_PER_USER)
        .collect();
    let import_threads = (0..accepted_bytes.len()).map(|import| {
        let (stream, token) = (connect(&controller), tokens[import % USERS].clone());
        let accepted_bytes = Arc::clone(&accepted_bytes);
        thread::spawn(move || flood(stream, &token, import, &accepted_bytes[import]))
    });
    let import_threads: Vec<JoinHandle<()>> = import_threads.collect();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while accepted_bytes
        .iter()
        .any(|accepted_bytes| accepted_bytes.load(Relaxed) < IN_PROGRESS_BYTES)
    {
        assert!(Instant::now() < deadline, "{accepted_bytes:?}");
        thread::sleep(Duration::from_millis(5));
    }
    let paused = database.pause().unwrap();
    let list_threads = (0..LIST_REQUESTS).map(|number| {
        let (stream, token) = (connect(&controller), tokens[number % USERS].clone());
        thread::spawn(move || list_devices(stream, &token))
    });
    let list_threads: Vec<JoinHandle<()>> = list_threads.collect();
    for thread in import_threads.into_iter().chain(list_threads) {
        thread.join().unwrap();
    }
    let accepted_bytes: u64 = accepted_bytes
        .iter()
        .map(|accepted_bytes| accepted_bytes.load(Relaxed))
        .sum();
    let peak_kib = controller.memory_kib();
    println!(
        "{usual_kib} KiB before, {peak_kib} KiB at most; {} KiB of imports were accepted",
        accepted_bytes >> 10
    );
    assert!(
        peak_kib < MEMORY_KIB_MAX,
        "{usual_kib} KiB before, {peak_kib} KiB; {accepted_bytes} bytes of imports were accepted"
    );

    drop(paused);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while controller
        .run(&format!(
            "linewarden device list --limit 1 {} --token-file vic.token",
            controller.server_options()
        ))
        .code
        != 0
    {
        assert!(Instant::now() < deadline, "the controller does not recover");
    }
}
