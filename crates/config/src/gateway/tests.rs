//! Resolution of configuration files, and the errors of each field.

use linewarden_dataplane as dataplane;
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::ids::GatewayId;

use super::*;
use crate::problem::FieldError;

pub(super) fn parse(text: &str) -> GatewayConfig {
    toml::from_str(text).unwrap()
}

pub(super) fn resolve(config: &GatewayConfig) -> Result<ResolvedGateway, Vec<FieldError>> {
    config.validate()?.resolve(&config.gateway, [1, 2])
}

/// Returns the path and the problem of the first invalid field.
pub(super) fn refused(text: &str) -> (String, String) {
    let mut errors = resolve(&parse(text)).unwrap_err();
    let error = errors.remove(0);
    (error.path.join("."), error.problem)
}

pub(super) const CONTROLLER: &str = "[controller]\nsocket = \"s\"\n";

#[test]
fn the_smallest_configuration_has_the_documented_defaults() {
    let config = parse(&format!(
        "[gateway]\nid = 7\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n{CONTROLLER}"
    ));
    let resolved = resolve(&config).unwrap();
    assert_eq!(resolved.config.gateway_id, GatewayId(7));
    assert_eq!(resolved.config.lap_port, 20_550);
    assert_eq!(resolved.config.session_lifetime_s, 300);
    assert_eq!(resolved.config.gate, dataplane::Gate::Off);
    assert_eq!(resolved.settings.mark_block, 4);
    assert_eq!(resolved.interfaces, Vec::<u32>::new());
}

#[test]
fn addresses_come_from_the_interfaces() {
    let config = parse(&format!("[gateway]\nid = 7\ninterfaces = [\"lo\"]\n{CONTROLLER}"));
    let resolved = resolve(&config).unwrap();
    assert!(resolved.config.local.contains(&"127.0.0.1".parse().unwrap()));
    assert_eq!(resolved.interfaces, [1]);
}

#[test]
fn only_a_sealed_gate_forwards_and_never_towards_devices() {
    let first_error_with = |gate: &str| {
        let text =
            format!("[gateway]\nid = 1\ninterfaces = [\"lo\"]\nforward_to = [\"lo\"]\n{gate}{CONTROLLER}");
        refused(&text)
    };
    for (gate, problem) in [("", "only a sealed"), ("gate = \"sealed\"\n", "in `interfaces`")] {
        let (path, message) = first_error_with(gate);
        assert_eq!(path, "gateway.forward_to");
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn exempt_protocols_are_known_by_name_and_need_a_gate() {
    let config_with = |lists: &str, gate: &str| {
        format!("[gateway]\nid = 1\ninterfaces = [\"lo\"]\n{gate}{lists}{CONTROLLER}")
    };
    let bound = "gate = \"bound\"\n";
    let lists = "always_pass = [\"lldp\", \"ptp\"]\ndhcp_servers = [\"10.0.0.1\", \"ff05::1:3\"]\n";
    let resolved = resolve(&parse(&config_with(lists, bound))).unwrap();
    assert_eq!(
        resolved.config.always_pass,
        [ControlProtocol::Lldp, ControlProtocol::Ptp]
    );
    assert_eq!(resolved.config.dhcp_servers.len(), 2);
    for (lists, gate, field, problem) in [
        (
            "always_pass = [\"ptp\"]\n",
            "",
            "gateway.always_pass",
            "without a gate",
        ),
        (
            "dhcp_servers = [\"10.0.0.1\"]\n",
            "",
            "gateway.dhcp_servers",
            "without a gate",
        ),
        (
            "always_pass = [\"ptp\", \"ptp\"]\n",
            bound,
            "gateway.always_pass",
            "occurs twice",
        ),
        (
            "dhcp_servers = [\"255.255.255.255\"]\n",
            bound,
            "gateway.dhcp_servers",
            "one server",
        ),
        (
            "dhcp_servers = [\"ff02::1:2\"]\n",
            bound,
            "gateway.dhcp_servers",
            "one server",
        ),
        (
            "dhcp_servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\", \"10.0.0.4\", \"10.0.0.5\"]\n",
            bound,
            "gateway.dhcp_servers",
            "at most 4",
        ),
    ] {
        let (path, message) = refused(&config_with(lists, gate));
        assert_eq!(path, field, "{lists}");
        assert!(message.contains(problem), "{message}");
    }
    let unknown = config_with("always_pass = [\"goose\"]\n", bound);
    let error = toml::from_str::<GatewayConfig>(&unknown).unwrap_err().to_string();
    assert!(
        error.contains("goose") && error.contains("profinet-dcp"),
        "{error}"
    );
}

#[test]
fn each_mistake_names_its_field() {
    let host = "id = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n";
    let cases: [(String, &str, &str); 11] = [
        (
            format!("id = 1\n{CONTROLLER}"),
            "gateway",
            "interfaces is missing",
        ),
        (
            format!("id = 1\ninterfaces = [\"lw-none0\"]\n{CONTROLLER}"),
            "gateway.interfaces",
            "interface lw-none0 does not exist",
        ),
        (
            format!("id = 1\ndataplane = \"host\"\n{CONTROLLER}"),
            "gateway",
            "addresses is missing",
        ),
        (
            format!("{host}gate = \"bound\"\n{CONTROLLER}"),
            "gateway.gate",
            "no gate",
        ),
        (
            format!("{host}session_lifetime_s = 0\n{CONTROLLER}"),
            "gateway.session_lifetime_s",
            "at least a second",
        ),
        (format!("{host}port = 0\n{CONTROLLER}"), "gateway.port", "20550"),
        (
            format!("{host}mark_block = 2\n{CONTROLLER}"),
            "gateway.mark_block",
            "3 to 14",
        ),
        (
            format!("{host}low_rows = 15\n{CONTROLLER}"),
            "gateway.low_rows",
            "less than `ring`",
        ),
        (
            format!("{host}[controller]\naddresses = [\"ctl:1\"]\nca = \"a\"\ncert = \"b\"\n"),
            "controller",
            "key is missing",
        ),
        (
            format!("{host}[controller]\n"),
            "controller",
            "addresses is missing",
        ),
        (
            format!("{host}{CONTROLLER}ca = \"a\"\n"),
            "controller.ca",
            "remove socket",
        ),
    ];
    for (text, path, problem) in cases {
        let (field, message) = refused(&format!("[gateway]\n{text}"));
        assert_eq!(field, path, "{text}");
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = format!(
        "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = []\ngate = \"bound\"\nsession_lifetime_s = 0\nmark_block = 15\n\
         low_rows = 20\nfeed_poll_ms = 0\noffline_limit_s = 0\nforward_to = [\"a\", \"a\"]\n{CONTROLLER}"
    );
    let errors = parse(&text).validate().unwrap_err();
    let mut fields: Vec<String> = errors.iter().map(|error| error.path.join(".")).collect();
    fields.sort();
    assert_eq!(
        fields,
        [
            "gateway.addresses",
            "gateway.feed_poll_ms",
            "gateway.forward_to",
            "gateway.forward_to",
            "gateway.gate",
            "gateway.low_rows",
            "gateway.mark_block",
            "gateway.offline_limit_s",
            "gateway.session_lifetime_s",
        ]
    );
}

#[test]
fn unknown_fields_are_errors() {
    for text in [
        "[gateway]\nid = 1\nlease = 5\n",
        "[gateway]\nid = 1\n[gate]\nx = 1\n",
    ] {
        assert!(
            toml::from_str::<GatewayConfig>(&format!("{text}{CONTROLLER}")).is_err(),
            "{text}"
        );
    }
}
