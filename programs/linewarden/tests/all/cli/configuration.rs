//! Configurations with errors. The commands `check` and `run` of a program report each error with file, line and field.

use super::*;

#[test]
fn broken_configurations_are_reported_with_file_line_and_field() {
    let site = Site::new();
    let controller = "[controller]\nsocket = \"controller.sock\"\n";
    let host = "dataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n";
    for (text, expected) in [
        (
            format!("[gateway]\nid = 1\n{host}session_lifetime_s = 0\n{controller}"),
            "error: g.toml:5:1: gateway.session_lifetime_s: 0: a session must last at least a second\n",
        ),
        (
            format!("[gateway]\nid = 1\n{host}session_lifetimes = 5\n{controller}"),
            "error: g.toml:5:1: gateway.session_lifetimes: unknown field `session_lifetimes`; did you mean `session_lifetime_s`?\n",
        ),
        (
            format!("[gateway]\nid = 1\n{host}zzz = 5\n{controller}"),
            "error: g.toml:5:1: gateway.zzz: unknown field `zzz`, expected one of `id`, `dataplane`, `interfaces`, \
             `addresses`, `device_prefixes`, `port`, `ticket_port`, `gate`, `always_pass`, `dhcp_servers`, `forward_to`, `gate_on_exit`, `pin_directory`, `session_lifetime_s`, `slots`, `ring`, `low_rows`, `mark_block`, `offline_limit_s`, `nak_per_s`, \
             `alarm_per_s`, `miss_per_s`, `feed_poll_ms`, `threads`\n",
        ),
        (
            format!("[gateway]\nid = \"one\"\n{host}{controller}"),
            "error: g.toml:2:6: gateway.id: \"one\": expected a whole number from 0 to 4294967295\n",
        ),
        (
            format!("[gateway]\n{host}{controller}"),
            "error: g.toml:1:1: gateway: missing field `id`; add the field, such as `id = 1`\n",
        ),
        (
            format!("[gateway]\nid = 1\n{host}gate = \"bound\"\n{controller}"),
            "error: g.toml:5:1: gateway.gate: the host data plane receives only messages for itself and has no gate; use \
             dataplane = \"xdp\" or \"p4\"\n",
        ),
        (
            format!("[gateway]\nid = 1\ninterfaces = [\"lw-none0\"]\n{controller}"),
            "error: g.toml:3:1: gateway.interfaces: interface lw-none0 does not exist; `ip link` lists all interfaces\n",
        ),
        ("[gateway\nid = 1\n".to_owned(), "error: g.toml:1:9: "),
        (
            format!("[gateway]\nid = 1\n{host}[classic]\nprofile = \"iot\"\n{controller}"),
            "error: g.toml:5:2: classic: unknown field `classic`",
        ),
        (
            format!("[gateway]\nid = 1\n{host}[p4dra_classic]\nround_s = 60\n{controller}"),
            "error: g.toml:5:2: p4dra_classic: unknown field `p4dra_classic`",
        ),
    ] {
        site.write("g.toml", &text);
        // Both commands run the same code and report the same error.
        for command_line in [
            "linewarden-gateway check --machine g.toml",
            "linewarden-gateway run --config g.toml",
        ] {
            let error = site.run(command_line).refused(2);
            assert!(error.starts_with(expected), "expected {expected}\ngot {error}");
        }
    }
}

#[test]
fn check_reports_all_mistakes_at_once() {
    let site = Site::new();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = 70000\nsession_lifetimes = 5\nlow_rows = 15\n\
         mark_block = 2\n[controller]\nsocket = \"controller.sock\"\nserver_nam = \"k\"\n\
         [log]\nlevel = \"a=b=c\"\n",
    );
    let expected = [
        "g.toml:5:8: gateway.port: 70000: expected a whole number from 0 to 65535",
        "g.toml:6:1: gateway.session_lifetimes: unknown field `session_lifetimes`; did you mean `session_lifetime_s`?",
        "g.toml:11:1: controller.server_nam: unknown field `server_nam`; did you mean `server_name`?",
        "g.toml:7:1: gateway.low_rows: 15: less than `ring`, otherwise every RESPONSE reports low rows",
        "g.toml:8:14: gateway.mark_block: 2: expected a whole number from 3 to 14",
        "g.toml:13:1: log.level: \"a=b=c\": ",
    ];
    for command_line in [
        "linewarden-gateway check g.toml",
        "linewarden-gateway run --config g.toml",
    ] {
        let report = site.run(command_line).refused(2);
        assert_eq!(report.lines().count(), expected.len(), "{report}");
        for line in expected {
            assert!(report.contains(&format!("error: {line}")), "{line}\n{report}");
        }
    }
    let output = site.run("linewarden-gateway check --output json g.toml");
    assert_eq!(output.code, 2);
    let problems: Vec<serde_json::Value> = output.out.lines().map(json).collect();
    assert_eq!(problems.len(), expected.len());
    assert_eq!(
        (
            problems[0]["line"].as_u64(),
            problems[0]["field"].as_str(),
            problems[0]["level"].as_str()
        ),
        (Some(5), Some("gateway.port"), Some("error"))
    );
    assert_eq!(
        json(&output.err)["errors"].as_array().unwrap().len(),
        expected.len()
    );
}

/// A missing field does not hide other errors.
#[test]
fn missing_fields_hide_no_mistakes() {
    let site = Site::new();
    let text = "[gateway]\nsession_lifetime_s = 0\nport = \"x\"\ninterfaces = [\"a\", \"a\"]\naddresses = [\"here\"]\n[controller]\n\
                addresses = [\"ctl:1\"]\n[audit]\nper_s = 0\n";
    site.write("g.toml", text);
    let report = site.run("linewarden-gateway check g.toml").refused(2);
    let expected = [
        "g.toml:1:1: gateway: missing field `id`",
        "g.toml:2:1: gateway.session_lifetime_s: 0: ",
        "g.toml:3:8: gateway.port: \"x\": expected a whole number from 0 to 65535",
        "g.toml:4:1: gateway.interfaces: a occurs twice; remove one of the two entries",
        "g.toml:5:14: gateway.addresses: \"here\": expected an address, such as",
        "g.toml:6:2: controller: ca is missing: the path of a PEM file",
        "g.toml:6:2: controller: cert is missing: the path of a PEM file",
        "g.toml:6:2: controller: key is missing: the path of a PEM file",
        "g.toml:8:1: audit: missing field `path`",
        "g.toml:9:9: audit.per_s: 0: expected a whole number of 1 or more",
    ];
    for line in expected {
        assert!(report.contains(&format!("error: {line}")), "{line}\n{report}");
    }
    assert_eq!(report.lines().count(), expected.len(), "{report}");
    // A missing table hides no other errors either. The placeholder that replaces the table causes no errors.
    site.write("g.toml", "[log]\nlevel = \"loud\"\n");
    let report = site.run("linewarden-gateway check g.toml").refused(2);
    let fields = [
        "missing field `gateway`; add the table [gateway]\n",
        "missing field `controller`; add the table [controller]\n",
        "log.level: \"loud\"",
    ];
    assert!(fields.iter().all(|field| report.contains(field)), "{report}");
    assert_eq!(report.lines().count(), fields.len(), "{report}");
}

#[test]
fn values_that_would_fail_later_are_errors() {
    let site = Site::new();
    let text = "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\", \"::1\", \"127.0.0.1\"]\n\
                pin_directory = \"\"\n[controller]\nsocket = \"\"\n[log]\nlevel = \"loud\"\n\
                [audit]\npath = \"\"\n";
    site.write("g.toml", text);
    let report = site.run("linewarden-gateway check g.toml").refused(2);
    let expected = [
        "g.toml:4:1: gateway.addresses: 127.0.0.1 occurs twice; remove one of the two entries",
        "g.toml:5:1: gateway.pin_directory: \"\": set a path",
        "g.toml:7:1: controller.socket: \"\": set a path",
        "g.toml:9:1: log.level: \"loud\" is invalid; use error, warn",
        "g.toml:11:1: audit.path: \"\": set a path",
    ];
    assert_eq!(report.lines().count(), expected.len(), "{report}");
    for line in expected {
        assert!(report.contains(&format!("error: {line}")), "{line}\n{report}");
    }
}

/// Without `--machine`, the result of `check` does not depend on the machine. With `--machine`, `check` also checks all
/// requirements of a start.
#[test]
fn check_inspects_the_machine_only_with_the_option_machine() {
    let site = Site::empty();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ninterfaces = [\"lw-none0\", \"lw-none1\"]\ngate = \"bound\"\npin_directory = \"pins\"\n\
         [controller]\nsocket = \"controller.sock\"\n[audit]\npath = \"none/audit.jsonl\"\n",
    );
    assert_eq!(
        site.run("linewarden-gateway check g.toml").ok(),
        "g.toml: valid\n"
    );
    let report = site.run("linewarden-gateway check --machine g.toml").refused(2);
    for line in [
        "g.toml:3:1: gateway.interfaces: interface lw-none0 does not exist; `ip link` lists all interfaces",
        "g.toml:3:1: gateway.interfaces: interface lw-none1 does not exist; `ip link` lists all interfaces",
        "g.toml:5:1: gateway.pin_directory: not on a BPF filesystem",
        "g.toml:9:1: audit.path: reading the directory of the file failed: ",
    ] {
        assert!(report.contains(line), "{line}\n{report}");
    }

    let site = Site::new();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ndataplane = \"host\"\ninterfaces = [\"lo\"]\n\
         [controller]\nsocket = \"controller.sock\"\n",
    );
    site.run("linewarden-gateway check --machine g.toml").ok();
    let text = fs::read_to_string(site.path("g.toml")).unwrap();
    site.write("g.toml", &(text + "[audit]\npath = \"audit.jsonl\"\n"));
    site.write("audit.jsonl", "");
    for (mode, expects_warning) in [(0o644, true), (0o640, false), (0o600, false)] {
        fs::set_permissions(site.path("audit.jsonl"), fs::Permissions::from_mode(mode)).unwrap();
        let output = site.run("linewarden-gateway check --machine g.toml");
        let has_warning = output
            .err
            .contains("warning: g.toml:8:1: audit.path: other users can read");
        assert_eq!((output.code, has_warning), (0, expects_warning), "{}", output.err);
    }
}

/// `check --machine` and `run` report the same problem of the registry or its key.
#[test]
fn check_machine_opens_the_registry_of_a_controller() {
    let site = Site::new();
    site.write(
        "c.toml",
        "[service]\nsocket = \"controller.sock\"\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n",
    );
    site.run("linewarden-controller check --machine c.toml").ok();
    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let report = site
        .run("linewarden-controller check --machine c.toml")
        .refused(4);
    assert!(
        report.contains("c.toml:5:1: registry.master_key_file: ") && report.contains("chmod 600"),
        "{report}"
    );
    let error = site.run("linewarden-controller run --config c.toml").refused(4);
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(site.path("fleet.registry"), site.path("moved")).unwrap();
    let report = site
        .run("linewarden-controller check --machine c.toml")
        .refused(2);
    assert!(
        report.contains("c.toml:4:1: registry.path: no registry at"),
        "{report}"
    );
    site.write("c.toml", "[service]\n[registry]\npath = \"\"\n");
    let report = site.run("linewarden-controller check c.toml").refused(2);
    for line in [
        "c.toml:1:2: service.socket: is missing: set a socket",
        "c.toml:2:2: registry.master_key_file: is missing: ",
    ] {
        assert!(report.contains(line), "{line}\n{report}");
    }
}

/// `check --machine` and `run` report mistakes in the file of NATS credentials; `check` reports a missing CA without files.
#[test]
fn credentials_and_certificates_of_nats_are_checked() {
    let site = Site::new();
    let write = |nats: &str| {
        site.write(
            "c.toml",
            &format!(
                "[service]\nsocket = \"controller.sock\"\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n\
                 [nats]\nservers = [\"nats://127.0.0.1:4222\"]\n{nats}\n"
            ),
        );
    };
    write("credentials_file = \"nats.creds\"");
    site.write("nats.creds", "not credentials");
    fs::set_permissions(site.path("nats.creds"), fs::Permissions::from_mode(0o600)).unwrap();
    for command_line in [
        "linewarden-controller check --machine c.toml",
        "linewarden-controller run --config c.toml",
    ] {
        let report = site.run(command_line).refused(2);
        assert!(report.contains("c.toml:8:1: nats.credentials_file: "), "{report}");
    }
    write("cert = \"nats.pem\"\nkey = \"nats.key\"");
    let report = site.run("linewarden-controller check c.toml").refused(2);
    assert!(
        report.contains("c.toml:8:1: nats.cert: TLS needs `ca`"),
        "{report}"
    );
}

#[test]
fn check_knows_an_agents_configuration() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 1 --out . --gateway 127.0.0.1")
        .ok();
    let config = "00000000000000d1.toml";
    assert_eq!(
        site.run(&format!("linewarden-agent check {config}")).ok(),
        format!("{config}: valid\n")
    );
    let text = fs::read_to_string(site.path(config)).unwrap();
    site.write(config, &text.replace("helper = ", "helpr = "));
    let report = site.run(&format!("linewarden-agent check {config}")).refused(2);
    assert!(
        report.contains("device.helpr: unknown field `helpr`; did you mean `helper`?"),
        "{report}"
    );
}

/// One report contains all errors that would end the agent.
#[test]
fn check_machine_checks_a_devices_machine() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 1 --out . --gateway 127.0.0.1")
        .ok();
    let config = "00000000000000d1.toml";
    site.run(&format!("linewarden-agent check --machine {config}"))
        .ok();
    let text = fs::read_to_string(site.path(config)).unwrap();
    let broken = text
        .replace("# interface = \"eth0\"", "interface = \"lw-none0\"")
        .replace(".helper\"", ".helpers\"")
        .replace("fleet.seed", "nothing.seed");
    site.write(config, &broken);
    site.run(&format!("linewarden-agent check {config}")).ok();
    let report = site
        .run(&format!("linewarden-agent check --machine {config}"))
        .refused(2);
    for field in [
        "device.helper: ",
        "gateway.interface: ",
        "puf.simulated.seed_file: ",
    ] {
        assert!(report.contains(field), "{field}\n{report}");
    }
    assert_eq!(report.lines().count(), 3, "{report}");
    let puf = text.find("[puf.simulated]").unwrap();
    let command = text[..puf].to_owned() + "[puf.command]\nprogram = ";
    for (program, exists) in [("sh", true), ("./no-program", false), ("lw-no-program", false)] {
        site.write(config, &format!("{command}\"{program}\"\n"));
        let output = site.run(&format!("linewarden-agent check --machine {config}"));
        assert_eq!(output.code == 0, exists, "{}", output.err);
        assert_eq!(
            output.err.contains("puf.command.program: "),
            !exists,
            "{}",
            output.err
        );
    }
}

#[test]
fn check_and_agent_report_all_mistakes_of_an_agents_configuration() {
    let site = Site::new();
    site.write(
        "a.toml",
        "[device]\nid = \"d1\"\nhelper = \"h\"\npeer_port = 20550\n[gateway]\naddress = \"127.0.0.1\"\nids = \
         \"all\"\nticket_port = 0\n[puf]\n[renewal]\nbelow_rows = 1\nrows = 0\n[[tunnel]]\nlisten = \
         \"127.0.0.1:1\"\nservice = \"192.0.2.1:1\"\n[[tunnel]]\nlisten = \"127.0.0.1:1\"\nservice = \"[::1]:1\"\n\
         [[peer]]\ndevice = \"d2\"\nlisten = \"127.0.0.1:2\"\n[[peer]]\ndevice = \"d1\"\nlisten = \"127.0.0.1\"\n\
         [[peer]]\ndevice = \"d2\"\nlisten = \"127.0.0.1:3\"\nadress = \"192.0.2.1:1\"\n",
    );
    let all_lines = [
        "a.toml:4:1: device.peer_port: 20550: use a port other than 0 and LAP's",
        "a.toml:7:7: gateway.ids: \"all\": expected a list",
        "a.toml:8:1: gateway.ticket_port: invalid port",
        "a.toml:9:2: puf: set exactly one of",
        "a.toml:12:8: renewal.rows: 0: expected a whole number from 1 to 4096",
        "a.toml:17:1: tunnel.2.listen: 127.0.0.1:1 is already in use by another table",
        "a.toml:18:1: tunnel.2.service: [::1]:1 has another address family",
        "a.toml:23:1: peer.2.device: ",
        "a.toml:24:10: peer.2.listen: ",
        "a.toml:26:1: peer.3.device: ",
        "a.toml:28:1: peer.3.adress: unknown field `adress`; did you mean `address`?",
    ];
    let report = site.run("linewarden-agent check a.toml").refused(2);
    for line in all_lines {
        assert!(report.contains(&format!("error: {line}")), "{line}\n{report}");
    }
    assert_eq!(report.lines().count(), all_lines.len(), "{report}");
    assert_eq!(
        site.run("linewarden-agent run --config a.toml").refused(2),
        report
    );
}

#[test]
fn broken_agent_configurations_are_reported_with_file_line_and_field() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 1 --out .")
        .ok();
    let valid = fs::read_to_string(site.path("00000000000000d1.toml")).unwrap();
    for (from, to, expected) in [
        (
            "id = \"00000000000000d1\"",
            "id = \"xyz\"",
            "a.toml:4:1: device.id: \"xyz\": a device ID is 1 to 16 hexadecimal digits",
        ),
        ("fleet.seed", "nothing.seed", "puf.simulated.seed_file: "),
        (".helper\"", ".helpers\"", "a.toml:5:1: device.helper: "),
        ("model", "models", "puf.simulated.models: unknown field"),
        (
            "# interface = \"eth0\"",
            "interface = \"lw-none0\"",
            "gateway.interface: interface lw-none0: interface not found",
        ),
    ] {
        site.write("a.toml", &valid.replacen(from, to, 1));
        let error = site
            .run("linewarden-agent run --config a.toml --gateway 127.0.0.1")
            .refused(2);
        assert!(error.contains(expected), "expected {expected}\ngot {error}");
    }
    let error = site
        .run("linewarden-agent run --config 00000000000000d1.toml")
        .refused(2);
    assert!(error.contains("gateway.address: is missing"), "{error}");
    fs::write(site.path("00000000000000d1.helper"), b"LWHPxx").unwrap();
    let error = site
        .run("linewarden-agent run --config 00000000000000d1.toml --gateway 127.0.0.1")
        .refused(2);
    assert!(
        error.contains("00000000000000d1.helper") && error.contains("at byte"),
        "{error}"
    );
}

#[test]
fn mistakes_in_trust_tables_of_a_controller_have_their_positions() {
    let site = Site::empty();
    let controller = "[service]\n[tls]\ncert = \"c.pem\"\nkey = \"c.key\"\nca = \"ca.pem\"\n\
                      [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n";
    let write = |trust: &str| site.write("c.toml", &format!("{controller}{trust}"));
    write(
        "[trust.7]\nreference = \"\"\nkey = \"g.pub\"\nevery_s = 0\n[trust.8]\nreference = \"r\"\nresponse_timeout_s = 601\n",
    );
    let report = site.run("linewarden-controller check c.toml").refused(2);
    for line in [
        "c.toml:10:1: trust.7.reference: \"\": set a path",
        "c.toml:12:11: trust.7.every_s: 0: expected a whole number from 1 to 86400",
        "c.toml:13:1: trust.8: missing field `key`",
        "c.toml:15:22: trust.8.response_timeout_s: 601: expected a whole number from 1 to 600",
    ] {
        assert!(report.contains(line), "{line}\n{report}");
    }
    for name in ["seven", "07", "4294967296"] {
        write(&format!("[trust.{name}]\nreference = \"r\"\nkey = \"g.pub\"\n"));
        let report = site.run("linewarden-controller check c.toml").refused(2);
        let expected =
            format!("trust.{name}: \"{name}\" is not a gateway ID; use a number, such as 7 in [trust.7]");
        assert!(report.contains(&expected), "{expected}\n{report}");
    }
    write("[trust.7]\nreference = \"r\"\nkey = \"g.pub\"\n");
    site.run("linewarden-controller check c.toml").ok();
    let report = site
        .run("linewarden-controller check --machine c.toml")
        .refused(2);
    assert!(
        report.contains("c.toml:11:1: trust.7.key: ") && report.contains("g.pub"),
        "{report}"
    );
    site.write("g.pub", "none\n");
    let report = site
        .run("linewarden-controller check --machine c.toml")
        .refused(2);
    assert!(
        report.contains("c.toml:11:1: trust.7.key: ") && report.contains("g.pub"),
        "{report}"
    );
}
