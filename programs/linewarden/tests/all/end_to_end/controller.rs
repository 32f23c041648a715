//! A controller, a gateway that reaches the controller over the network, and a device.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use nix::sys::signal::Signal;

use super::Environment;
use crate::support::{free_udp_port, run};

const GATEWAY: &str = "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nsession_lifetime_s = 2\nslots = 100\nthreads = 1\n";

/// Creates certificates, a registry and the configuration of the controller.
fn create_files(environment: &Environment<'_>) {
    let directory = environment.directory;
    environment.run("linewarden certificate ca --out pki");
    environment.run("linewarden certificate controller --ca pki --name localhost --name 127.0.0.1 --out ctl");
    environment.run("linewarden certificate gateway --ca pki --id 5 --out gateway-5");
    environment.run("linewarden certificate gateway --ca pki --id 6 --out gateway-6");
    environment.run("linewarden registry create --registry fleet.registry --key-file master.key");
    std::fs::write(
        directory.join("controller.toml"),
        "[service]\nname = \"ctl-a\"\nlisten = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n\
         [tls]\ncert = \"ctl.pem\"\nkey = \"ctl.key\"\nca = \"pki/ca.pem\"\n\
         [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n",
    )
    .unwrap();
}

/// Writes two configurations of gateway 5 for this controller, one of them with the certificate of gateway 6.
fn write_gateway_configurations(directory: &Path, api: SocketAddr, port: u16) {
    let section = |certificate: &str| {
        format!(
            "{GATEWAY}port = {port}\n[controller]\naddresses = [\"{api}\"]\nca = \"pki/ca.pem\"\n\
             cert = \"{certificate}.pem\"\nkey = \"{certificate}.key\"\n"
        )
    };
    std::fs::write(directory.join("gateway.toml"), section("gateway-5")).unwrap();
    std::fs::write(directory.join("other.toml"), section("gateway-6")).unwrap();
}

/// Sends an unencrypted GET request and returns the whole response.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_gateway_and_its_devices_work_with_a_remote_controller() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment {
        directory: directory.path(),
        wrapper: Vec::new(),
    };
    create_files(&environment);
    for key in ["pki/ca.key", "ctl.key", "gateway-5.key"] {
        assert_eq!(mode(&directory.path().join(key)), 0o600, "{key}");
    }
    environment.run("linewarden-controller check controller.toml");
    environment.run("linewarden device enroll simulated --device d1 --rows 40 --out devices --registry fleet.registry --key-file master.key");
    let token =
        run(environment.command("linewarden user create alice --role operator --config controller.toml"));
    assert!(token.starts_with("lw_"), "{token}");
    let controller = environment.start("linewarden-controller run --config controller.toml --output json");
    let start_event = controller.event("started");
    let address = |field: &str| start_event[field].as_str().unwrap().parse().unwrap();
    let (api, metrics, port) = (address("address"), address("metrics"), free_udp_port());
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(metrics, "/readyz").starts_with("HTTP/1.1 200"));

    write_gateway_configurations(directory.path(), api, port);
    environment.run("linewarden-gateway check --machine gateway.toml");
    // A gateway with another gateway's certificate does not start.
    let mut command = environment.command("linewarden-gateway run --config other.toml");
    let refusal = command.output().unwrap();
    assert_eq!(refusal.status.code(), Some(2));
    let error = String::from_utf8(refusal.stderr).unwrap();
    assert!(error.contains("is of gateway 6, but `id` is 5"), "{error}");
    let gateway =
        environment.start("linewarden-gateway run --config gateway.toml --output json --status-interval 1");
    gateway.wait_for("loaded fleet", |line| {
        line["event"] == "status" && line["loaded"] == true
    });
    let arguments = format!(
        "linewarden-agent run --config devices/00000000000000d1.toml --gateway 127.0.0.1:{port} --output json"
    );
    let agent = environment.start(&arguments);
    for _ in 0..3 {
        agent.event("authenticated");
    }
    // The controller's certificate is replaced at run time. All connections continue.
    std::fs::remove_file(directory.path().join("ctl.pem")).unwrap();
    std::fs::remove_file(directory.path().join("ctl.key")).unwrap();
    environment.run("linewarden certificate controller --ca pki --name 127.0.0.1 --out ctl");
    controller.signal(Signal::SIGHUP);
    controller.event("reloaded");
    agent.event("authenticated");
    environment
        .run("linewarden device revoke d1 --reason lost --registry fleet.registry --key-file master.key");
    gateway.wait_for("revocation", |line| line["revoked"] == 1);
    agent.event("session_expired");

    environment.run("linewarden user delete alice --config controller.toml");
    agent.terminate();
    let lines = gateway.terminate();
    assert_eq!(
        lines.last().unwrap()["unused_rows_reported"],
        true,
        "{:?}",
        lines.last()
    );
    assert_eq!(controller.terminate().last().unwrap()["event"], "stopped");
}
