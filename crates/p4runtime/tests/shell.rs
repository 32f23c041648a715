//! p4runtime-shell, the client that most people use, against the service with a switch in memory.
//!
//! It runs with the Python that `LINEWARDEN_P4RUNTIME_PYTHON` names, or the one in `.venv` of this tree, if
//! p4runtime-shell 0.0.6 is installed there.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::Server;

fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = std::env::var_os("LINEWARDEN_P4RUNTIME_PYTHON")
        .map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    let import = Command::new(&python)
        .args(["-c", "import p4runtime_sh.shell"])
        .stderr(Stdio::null())
        .status();
    import.is_ok_and(|status| status.success()).then_some(python)
}

#[tokio::test(flavor = "multi_thread")]
async fn p4runtime_shell_finds_everything_as_it_left_it() {
    let Some(python) = python() else {
        println!("SKIPPED: p4runtime-shell is not installed for Python (see tests/shell.rs)");
        return;
    };
    let server = Server::start(None).await;
    let address = server
        .endpoint
        .uri()
        .authority()
        .map(ToString::to_string)
        .unwrap_or_default();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let output = tokio::task::spawn_blocking(move || {
        Command::new(python)
            .arg(tests.join("shell.py"))
            .arg(address)
            .arg(tests.join("data"))
            .output()
            .unwrap()
    });
    let output = output.await.unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && said.contains("all of it is as it was left"),
        "{said}"
    );
}
