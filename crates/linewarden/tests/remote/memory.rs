//! Memory of a controller while the database hangs and all users send as many requests as permitted.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linewarden_testbed::{Postgres, PostgresOptions};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::controller::TestController;
use crate::support::TEST_TIMEOUT;

/// Users, each with the permitted number of imports.
const USERS: usize = 4;
const IMPORTS_OF_USER: usize = 4;
/// Bytes of each body; more than a controller accepts before the first part is stored.
const BODY_BYTES: usize = 96 << 20;
/// A connection buffers less than this: an import that has sent more is in progress.
const BEGUN_BYTES: u64 = 4 << 20;
const QUESTIONS: usize = 200;
/// Memory limit, KiB: three parts of 8 MiB of each of 16 imports, and half as much for the rest.
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
    // One after the other: few handshakes may be in progress.
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    StreamOwned::new(connection, stream)
}

fn head(what: &str, token: &str, length: usize) -> String {
    format!(
        "{what} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nX-Reason: test\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Devices of an import, with unique ids.
fn piece(import: usize, first: usize) -> String {
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
fn flood(mut stream: Stream, token: &str, import: usize, accepted: &AtomicU64) {
    stream
        .write_all(head("POST /api/v1/devices/import", token, BODY_BYTES).as_bytes())
        .unwrap();
    let timeout = Some(Duration::from_secs(3));
    stream.sock.set_write_timeout(timeout).unwrap();
    stream.sock.set_read_timeout(timeout).unwrap();
    let mut sent = 0;
    while sent < BODY_BYTES {
        let piece = piece(import, sent);
        let piece = &piece.as_bytes()[..piece.len().min(BODY_BYTES - sent)];
        if stream.write_all(piece).is_err() {
            return;
        }
        sent += piece.len();
        accepted.fetch_add(piece.len() as u64, Relaxed);
    }
}

/// Requests the largest permitted list of devices, and reads the response.
fn list_devices(mut stream: Stream, token: &str) {
    let head = head("GET /api/v1/devices?limit=1000", token, 0);
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 1024];
    assert!(stream.read(&mut answer).unwrap() > 0);
}

#[test]
fn a_controller_with_a_hanging_database_has_bounded_memory() {
    let database = match Postgres::start(PostgresOptions::default()) {
        Ok(database) => database,
        Err(missing) => return println!("SKIPPED: needs PostgreSQL: {missing}"),
    };
    let controller = TestController::over(&database.new_schema("fleet").unwrap());
    let tokens: Vec<String> = (0..USERS)
        .map(|user| {
            let arguments = format!("user create flood-{user} --role operator --config controller.toml");
            controller.run(&arguments).ok().trim().to_owned()
        })
        .collect();
    let usual_kib = controller.memory_kib();

    let accepted: Arc<[AtomicU64]> = std::iter::repeat_with(AtomicU64::default)
        .take(USERS * IMPORTS_OF_USER)
        .collect();
    let floods = (0..accepted.len()).map(|import| {
        let (stream, token) = (connect(&controller), tokens[import % USERS].clone());
        let accepted = Arc::clone(&accepted);
        thread::spawn(move || flood(stream, &token, import, &accepted[import]))
    });
    let floods: Vec<JoinHandle<()>> = floods.collect();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while accepted
        .iter()
        .any(|accepted| accepted.load(Relaxed) < BEGUN_BYTES)
    {
        assert!(Instant::now() < deadline, "{accepted:?}");
        thread::sleep(Duration::from_millis(5));
    }
    let paused = database.pause().unwrap();
    let questions = (0..QUESTIONS).map(|number| {
        let (stream, token) = (connect(&controller), tokens[number % USERS].clone());
        thread::spawn(move || list_devices(stream, &token))
    });
    let questions: Vec<JoinHandle<()>> = questions.collect();
    for thread in floods.into_iter().chain(questions) {
        thread.join().unwrap();
    }
    let accepted: u64 = accepted.iter().map(|accepted| accepted.load(Relaxed)).sum();
    let peak_kib = controller.memory_kib();
    println!(
        "{usual_kib} KiB before, {peak_kib} KiB at most; {} KiB of imports were taken",
        accepted >> 10
    );
    assert!(
        peak_kib < MEMORY_KIB_MAX,
        "{usual_kib} KiB before, {peak_kib} KiB; {accepted} bytes of imports were taken"
    );

    drop(paused);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while controller
        .run(&format!(
            "device list --limit 1 {} --token-file vic.token",
            controller.server()
        ))
        .code
        != 0
    {
        assert!(Instant::now() < deadline, "the controller does not recover");
    }
}
