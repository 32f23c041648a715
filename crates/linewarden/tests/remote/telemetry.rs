//! Where traces go: what of it is refused, and a collector that hangs.

use std::fs;
use std::net::TcpListener;

use crate::office::Office;

#[test]
fn a_section_that_cannot_be_used_is_told_with_its_place() {
    let office = Office::new();
    let text = fs::read_to_string(office.path("controller.toml")).unwrap();
    let check = |section: &str| {
        let changed = format!("{text}[telemetry]\n{section}\n");
        fs::write(office.path("changed.toml"), changed).unwrap();
        office.run("check --machine changed.toml")
    };
    check("otlp = \"http://127.0.0.1:4317\"\nsample = 1").ok();
    check("otlp = \"https://otel.example:4317\"\nca = \"pki/ca.pem\"\nsample = 0.1").ok();
    check("otlp = \"http://192.0.2.1:4317\"\nplaintext = true").ok();
    for (section, field, why) in [
        ("otlp = \"http://192.0.2.1:4317\"", "otlp", "plaintext = true"),
        ("otlp = \"127.0.0.1:4317\"", "otlp", "no address of a collector"),
        ("otlp = \"https://127.0.0.1:4317\"", "ca", "needs the CA"),
        (
            "otlp = \"https://127.0.0.1:4317\"\nca = \"none.pem\"",
            "ca",
            "none.pem",
        ),
        (
            "otlp = \"https://127.0.0.1:4317\"\nca = \"master.key\"",
            "ca",
            "holds no certificate",
        ),
        (
            "otlp = \"http://127.0.0.1:4317\"\nsample = 1.5",
            "sample",
            "from 0 to 1",
        ),
        (
            "otlp = \"http://127.0.0.1:4317\"\nrate = 1",
            "rate",
            "unknown field",
        ),
    ] {
        let said = check(section).refused(2);
        let field = format!("telemetry.{field}");
        assert!(said.contains(&field) && said.contains(why), "{section}: {said}");
    }
    // The start says the same, and starts nothing.
    let said = office.run("controller --config changed.toml").refused(2);
    assert!(said.contains("telemetry.rate"), "{said}");
}

#[test]
fn a_collector_that_takes_the_connection_and_is_silent_keeps_nobody() {
    let mut office = Office::new();
    office.kill();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = fs::read_to_string(office.path("controller.toml")).unwrap();
    let section = format!(
        "[telemetry]\notlp = \"http://{}\"\n",
        silent.local_addr().unwrap()
    );
    fs::write(office.path("controller.toml"), text + &section).unwrap();
    office.start();
    office.as_user("vic", "device list").ok();
    // It is told something by now, and says nothing.
    let held = silent.accept().unwrap();
    office.as_user("vic", "device list").ok();
    office.terminate();
    drop(held);
}
