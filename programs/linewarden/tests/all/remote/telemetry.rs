//! Export of traces: invalid settings, and a collector that hangs.

use std::fs;
use std::net::TcpListener;

use super::controller::TestController;

#[test]
fn an_invalid_section_is_reported_with_its_position() {
    let controller = TestController::new();
    let text = fs::read_to_string(controller.path("controller.toml")).unwrap();
    let check = |section: &str| {
        let changed = format!("{text}[telemetry]\n{section}\n");
        fs::write(controller.path("changed.toml"), changed).unwrap();
        controller.run("linewarden-controller check --machine changed.toml")
    };
    check("otlp = \"http://127.0.0.1:4317\"\nsample = 1").ok();
    check("otlp = \"https://otel.example:4317\"\nca = \"pki/ca.pem\"\nsample = 0.1").ok();
    check("otlp = \"http://192.0.2.1:4317\"\nplaintext = true").ok();
    for (section, field, cause) in [
        ("otlp = \"http://192.0.2.1:4317\"", "otlp", "plaintext = true"),
        ("otlp = \"127.0.0.1:4317\"", "otlp", "invalid collector address"),
        ("otlp = \"https://127.0.0.1:4317\"", "ca", "requires the CA"),
        (
            "otlp = \"https://127.0.0.1:4317\"\nca = \"none.pem\"",
            "ca",
            "none.pem",
        ),
        (
            "otlp = \"https://127.0.0.1:4317\"\nca = \"master.key\"",
            "ca",
            "no certificate in PEM",
        ),
        (
            "otlp = \"http://127.0.0.1:4317\"\nsample = 1.5",
            "sample",
            "1.5: expected a number from 0.0 to 1.0",
        ),
        (
            "otlp = \"http://127.0.0.1:4317\"\nrate = 1",
            "rate",
            "unknown field",
        ),
    ] {
        let error = check(section).refused(2);
        let field = format!("telemetry.{field}");
        assert!(
            error.contains(&field) && error.contains(cause),
            "{section}: {error}"
        );
    }
    // `run` reports the same error, and no controller starts.
    let error = controller
        .run("linewarden-controller run --config changed.toml")
        .refused(2);
    assert!(error.contains("telemetry.rate"), "{error}");
}

#[test]
fn a_collector_that_accepts_connections_without_a_response_delays_no_request() {
    let mut controller = TestController::new();
    controller.kill();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = fs::read_to_string(controller.path("controller.toml")).unwrap();
    let section = format!(
        "[telemetry]\notlp = \"http://{}\"\n",
        collector.local_addr().unwrap()
    );
    fs::write(controller.path("controller.toml"), text + &section).unwrap();
    controller.start();
    controller.as_user("vic", "device list").ok();
    // The controller has connected to the collector, which never responds.
    let connection = collector.accept().unwrap();
    controller.as_user("vic", "device list").ok();
    controller.terminate();
    drop(connection);
}
