//! p4runtime-shell, the most common client, with the service and an in-memory switch.
//!
//! The test uses the Python in `LINEWARDEN_P4RUNTIME_PYTHON`, or in `.venv` of the source tree, if p4runtime-shell
//! 0.0.6 is installed there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::service::support::Server;
use crate::service::support::authority::TestAuthority;
use linewarden_harness::skip;
use linewarden_p4runtime::server::Routes;
use linewarden_tls::{Identity, ServerTls};

/// The Python with p4runtime-shell. Skips the test if p4runtime-shell is not installed.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("LINEWARDEN_P4RUNTIME_PYTHON")
        .map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    let import = Command::new(&python)
        .args(["-c", "import p4runtime_sh.shell"])
        .stderr(Stdio::null())
        .status();
    if !import.is_ok_and(|status| status.success()) {
        skip!("p4runtime-shell is not installed for Python (see tests/all/service/shell.rs)");
    }
    python
}

/// Runs all operations of `shell.py` and checks that they succeed. `certificates` are the files of a client with TLS: CA,
/// certificate and key.
async fn check_shell(python: PathBuf, server: &Server, certificates: &[PathBuf]) {
    let authority = server.endpoint.uri().authority();
    let address = authority.map(ToString::to_string).unwrap_or_default();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut shell = Command::new(python);
    shell
        .arg(tests.join("shell.py"))
        .arg(address)
        .arg(tests.join("data"))
        .args(certificates);
    let output = tokio::task::spawn_blocking(move || shell.output().unwrap());
    let output = output.await.unwrap();
    let stdout = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && stdout.contains("all operations succeeded"),
        "{stdout}"
    );
}

#[test(flavor = "multi_thread")]
async fn p4runtime_shell_reads_the_written_entries() {
    let python = python();
    let server = Server::start(None).await;
    check_shell(python, &server, &[]).await;
}

#[test(flavor = "multi_thread")]
async fn p4runtime_shell_authenticates_mutually_with_tls() {
    let python = python();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let authority = TestAuthority::new("fleet");
    let server_certificate = authority.issue("127.0.0.1");
    let identity = Identity::from_pem(
        server_certificate.cert.as_bytes(),
        server_certificate.key.as_bytes(),
    )
    .unwrap();
    let tls = ServerTls::new(identity, Some(authority.pem.as_bytes())).unwrap();
    let server = Server::start_with(None, Routes::default(), Some(tls)).await;
    std::fs::write(path("ca.crt"), &authority.pem).unwrap();
    let client_certificate = authority.issue("controller");
    std::fs::write(path("controller.crt"), &client_certificate.cert).unwrap();
    std::fs::write(path("controller.key"), &client_certificate.key).unwrap();
    let certificates = ["ca.crt", "controller.crt", "controller.key"].map(path);
    check_shell(python, &server, &certificates).await;
}
