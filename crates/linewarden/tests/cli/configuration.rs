//! Configurations with mistakes: every one is told with file, line and field, by `check` and by what would use it.

use super::*;

#[test]
fn broken_configurations_are_told_with_file_line_and_field() {
    let site = Site::new();
    let registry = "[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n";
    let host = "dataplane = \"host\"\naddresses = [\"127.0.0.1\"]\n";
    let lo = "dataplane = \"host\"\ninterfaces = [\"lo\"]\n";
    let raw = "[p4dra_classic]\nprovers_file = \"provers\"\n";
    for (text, expected) in [
        (
            format!("[gateway]\nid = 1\n{host}lease_s = 0\n{registry}"),
            "error: g.toml:5:1: gateway.lease_s: 0: a session must last at least a second\n",
        ),
        (
            format!("[gateway]\nid = 1\n{host}leases = 5\n{registry}"),
            "error: g.toml:5:1: gateway.leases: unknown field `leases`; did you mean `lease_s`?\n",
        ),
        (
            format!("[gateway]\nid = 1\n{host}zzz = 5\n{registry}"),
            "error: g.toml:5:1: gateway.zzz: unknown field `zzz`, expected one of `id`, `dataplane`, `interfaces`, \
             `addresses`, `device_prefixes`, `port`, `desk_port`, `gate`, `always_pass`, `dhcp_servers`, `forward_to`, `when_gone`, `pin_directory`, `lease_s`, `slots`, `ring`, `low_rows`, `mark_block`, `link_lease_s`, `nak_per_s`, \
             `alarm_per_s`, `miss_per_s`, `feed_poll_ms`, `threads`\n",
        ),
        (
            format!("[gateway]\nid = \"one\"\n{host}{registry}"),
            "error: g.toml:2:6: gateway.id: \"one\": a whole number from 0 to 4294967295\n",
        ),
        (
            format!("[gateway]\n{host}{registry}"),
            "error: g.toml:1:1: gateway: missing field `id`\n",
        ),
        (
            format!("[gateway]\nid = 1\n{host}gate = \"open\"\n{registry}"),
            "error: g.toml:5:1: gateway.gate: the host data plane sees only what is sent to it and has no gate; use \
             dataplane = \"xdp\" or \"p4\"\n",
        ),
        (
            format!("[gateway]\nid = 1\ninterfaces = [\"lw-none0\"]\n{registry}"),
            "error: g.toml:3:1: gateway.interfaces: there is no interface lw-none0; `ip link` lists them\n",
        ),
        ("[gateway\nid = 1\n".to_owned(), "error: g.toml:1:9: "),
        (
            format!(
                "[gateway]\nid = 1\n{host}[classic]\nprofile = \"iot\"\nresponse_bits = 64\ncrps_file = \"crps\"\n{registry}"
            ),
            "error: g.toml:8:1: classic.crps_file: ",
        ),
        (
            format!("[gateway]\nid = 1\n{host}{raw}{registry}"),
            "error: g.toml:1:2: gateway: interfaces is missing: [p4dra_classic] comes in raw frames; ",
        ),
        (
            format!("[gateway]\nid = 1\n{lo}{raw}controller = \"here\"\n{registry}"),
            "error: g.toml:7:14: p4dra_classic.controller: \"here\": a MAC address, such as \"08:00:00:00:01:01\"\n",
        ),
        (
            format!("[gateway]\nid = 1\n{lo}{raw}controller = \"09:00:00:00:01:01\"\n{registry}"),
            "error: g.toml:7:1: p4dra_classic.controller: ",
        ),
        (
            format!("[gateway]\nid = 1\n{lo}{raw}ether_type = 0x0800\n{registry}"),
            "error: g.toml:7:1: p4dra_classic.ether_type: 0x0800: a type of its own, 0x0600 or above\n",
        ),
        (
            format!("[gateway]\nid = 1\n{lo}{raw}round_s = 0\n{registry}"),
            "error: g.toml:7:1: p4dra_classic.round_s: 0: allowed is 1 to 86400\n",
        ),
        (
            format!("[gateway]\nid = 1\n{lo}[p4dra_classic]\nprovers_file = \"twice\"\n{registry}"),
            "error: g.toml:6:1: p4dra_classic.provers_file: ",
        ),
    ] {
        site.write("g.toml", &text);
        site.write("crps", "1 00000001 0011\n");
        let prover = format!(
            "{}\n",
            ["00".repeat(16), "11".repeat(32), "22".repeat(32)].join(" ")
        );
        for (name, text) in [("provers", prover.clone()), ("twice", prover.repeat(2))] {
            site.write(name, &text);
            fs::set_permissions(site.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        // One code for both: they say the same.
        for words in ["check --machine g.toml", "serve --config g.toml"] {
            let error = site.run(words).refused(2);
            assert!(error.starts_with(expected), "expected {expected}\ngot {error}");
        }
    }
}

#[test]
fn check_tells_all_mistakes_at_once() {
    let site = Site::new();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = 70000\nleases = 5\nlow_rows = 15\n\
         mark_block = 2\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\nmaster_key = \"k\"\n\
         [log]\nlevel = \"a=b=c\"\n",
    );
    let expected = [
        "g.toml:5:8: gateway.port: 70000: a whole number from 0 to 65535",
        "g.toml:6:1: gateway.leases: unknown field `leases`; did you mean `lease_s`?",
        "g.toml:12:1: registry.master_key: unknown field `master_key`; did you mean `master_key_env`?",
        "g.toml:7:1: gateway.low_rows: 15: less than `ring`, or every RESPONSE reports low rows",
        "g.toml:8:1: gateway.mark_block: 2: allowed is 3 to 14",
        "g.toml:14:1: log.level: \"a=b=c\": ",
    ];
    for words in ["check g.toml", "serve --config g.toml"] {
        let told = site.run(words).refused(2);
        assert_eq!(told.lines().count(), expected.len(), "{told}");
        for line in expected {
            assert!(told.contains(&format!("error: {line}")), "{line}\n{told}");
        }
    }
    let said = site.run("check --json g.toml");
    assert_eq!(said.code, 2);
    let problems: Vec<serde_json::Value> = said.out.lines().map(json).collect();
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
        json(&said.err)["errors"].as_array().unwrap().len(),
        expected.len()
    );
}

/// What is missing hides nothing of what is there.
#[test]
fn missing_fields_hide_no_mistakes() {
    let site = Site::new();
    let text = "[gateway]\nlease_s = 0\nport = \"x\"\ninterfaces = [\"a\", \"a\"]\naddresses = [\"here\"]\n[registry]\n\
                master_key_env = \"K\"\n[classic]\nresponse_bits = 65\n[audit]\nper_s = 0\n";
    site.write("g.toml", text);
    let told = site.run("check g.toml").refused(2);
    let expected = [
        "g.toml:1:1: gateway: missing field `id`",
        "g.toml:2:1: gateway.lease_s: 0: ",
        "g.toml:3:8: gateway.port: \"x\": a whole number from 0 to 65535",
        "g.toml:4:1: gateway.interfaces: a is named twice",
        "g.toml:5:14: gateway.addresses: \"here\": an address, such as",
        "g.toml:6:1: registry: missing field `path`",
        "g.toml:8:1: classic: missing field `profile`",
        "g.toml:8:1: classic: missing field `crps_file`",
        "g.toml:9:1: classic.response_bits: 65 is not 64, 128 or 256",
        "g.toml:10:1: audit: missing field `path`",
        "g.toml:11:1: audit.per_s: 0: ",
    ];
    for line in expected {
        assert!(told.contains(&format!("error: {line}")), "{line}\n{told}");
    }
    assert_eq!(told.lines().count(), expected.len(), "{told}");
    // Nor do whole tables; and nothing is told of what stands for them.
    site.write("g.toml", "[log]\nlevel = \"loud\"\n");
    let told = site.run("check g.toml").refused(2);
    let fields = [
        "missing field `gateway`",
        "registry: is missing: where the devices come from",
        "log.level: \"loud\"",
    ];
    assert!(fields.iter().all(|field| told.contains(field)), "{told}");
    assert_eq!(told.lines().count(), fields.len(), "{told}");
}

#[test]
fn values_that_would_do_harm_later_are_mistakes() {
    let site = Site::new();
    let text = "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\", \"::1\", \"127.0.0.1\"]\n\
                pin_directory = \"\"\n[registry]\npath = \"\"\nmaster_key_file = \"\"\n[log]\nlevel = \"loud\"\n\
                [audit]\npath = \"\"\n";
    site.write("g.toml", text);
    let told = site.run("check g.toml").refused(2);
    let expected = [
        "g.toml:4:1: gateway.addresses: 127.0.0.1 is named twice",
        "g.toml:5:1: gateway.pin_directory: \"\": name a path",
        "g.toml:7:1: registry.path: \"\": name a path",
        "g.toml:8:1: registry.master_key_file: \"\": name a path",
        "g.toml:10:1: log.level: \"loud\" is no level: error, warn",
        "g.toml:12:1: audit.path: \"\": name a path",
    ];
    assert_eq!(told.lines().count(), expected.len(), "{told}");
    for line in expected {
        assert!(told.contains(&format!("error: {line}")), "{line}\n{told}");
    }
}

/// Without --machine a configuration is checked wherever it is written; with it, everything that a start would meet.
#[test]
fn check_looks_at_the_machine_only_when_asked() {
    let site = Site::empty();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ninterfaces = [\"lw-none0\", \"lw-none1\"]\ngate = \"open\"\npin_directory = \"pins\"\n\
         [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n[audit]\npath = \"none/audit.jsonl\"\n",
    );
    assert_eq!(site.run("check g.toml").ok(), "g.toml: in order\n");
    let told = site.run("check --machine g.toml").refused(2);
    for line in [
        "g.toml:3:1: gateway.interfaces: there is no interface lw-none0; `ip link` lists them",
        "g.toml:3:1: gateway.interfaces: there is no interface lw-none1; `ip link` lists them",
        "g.toml:5:1: gateway.pin_directory: it is not on the BPF filesystem",
        "g.toml:8:1: registry.master_key_file: cannot read the key file",
        "g.toml:10:1: audit.path: its directory: ",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }

    let site = Site::new();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ndataplane = \"host\"\ninterfaces = [\"lo\"]\n\
         [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n",
    );
    site.run("check --machine g.toml").ok();
    let text = fs::read_to_string(site.path("g.toml")).unwrap();
    site.write("g.toml", &(text + "[audit]\npath = \"audit.jsonl\"\n"));
    site.write("audit.jsonl", "");
    for (mode, warned) in [(0o644, true), (0o640, false), (0o600, false)] {
        fs::set_permissions(site.path("audit.jsonl"), fs::Permissions::from_mode(mode)).unwrap();
        let said = site.run("check --machine g.toml");
        let warns = said
            .err
            .contains("warning: g.toml:9:1: audit.path: everybody on this machine can read");
        assert_eq!((said.code, warns), (0, warned), "{}", said.err);
    }
    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o644)).unwrap();
    for words in ["check --machine g.toml", "serve --config g.toml"] {
        let told = site.run(words).refused(4);
        assert!(
            told.contains("g.toml:7:1: registry.master_key_file: ") && told.contains("chmod 600"),
            "{told}"
        );
    }
    fs::set_permissions(site.path("master.key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(site.path("fleet.registry"), site.path("moved")).unwrap();
    let told = site.run("check --machine g.toml").refused(2);
    assert!(
        told.contains("g.toml:6:1: registry.path: there is no registry at"),
        "{told}"
    );
}

#[test]
fn check_knows_an_agents_configuration() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 1 --out . --gateway 127.0.0.1")
        .ok();
    let config = "00000000000000d1.toml";
    assert_eq!(
        site.run(&format!("check {config}")).ok(),
        format!("{config}: in order\n")
    );
    let text = fs::read_to_string(site.path(config)).unwrap();
    site.write(config, &text.replace("helper = ", "helpr = "));
    let told = site.run(&format!("check {config}")).refused(2);
    assert!(
        told.contains("device.helpr: unknown field `helpr`; did you mean `helper`?"),
        "{told}"
    );
}

/// What `agent` would end with, all of it at once.
#[test]
fn check_looks_at_a_devices_machine_when_asked() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 1 --out . --gateway 127.0.0.1")
        .ok();
    let config = "00000000000000d1.toml";
    site.run(&format!("check --machine {config}")).ok();
    let text = fs::read_to_string(site.path(config)).unwrap();
    let broken = text
        .replace("# interface = \"eth0\"", "interface = \"lw-none0\"")
        .replace(".helper\"", ".helpers\"")
        .replace("fleet.seed", "nothing.seed");
    site.write(config, &broken);
    site.run(&format!("check {config}")).ok();
    let told = site.run(&format!("check --machine {config}")).refused(2);
    for field in [
        "device.helper: ",
        "gateway.interface: ",
        "puf.simulated.seed_file: ",
    ] {
        assert!(told.contains(field), "{field}\n{told}");
    }
    assert_eq!(told.lines().count(), 3, "{told}");
    let puf = text.find("[puf.simulated]").unwrap();
    let command = text[..puf].to_owned() + "[puf.command]\nprogram = ";
    for (program, found) in [("sh", true), ("./no-program", false), ("lw-no-program", false)] {
        site.write(config, &format!("{command}\"{program}\"\n"));
        let said = site.run(&format!("check --machine {config}"));
        assert_eq!(said.code == 0, found, "{}", said.err);
        assert_eq!(said.err.contains("puf.command.program: "), !found, "{}", said.err);
    }
}

#[test]
fn check_and_agent_tell_all_mistakes_of_an_agents_configuration() {
    let site = Site::new();
    site.write(
        "a.toml",
        "[device]\nid = \"d1\"\nhelper = \"h\"\npeer_port = 20550\n[gateway]\naddress = \"127.0.0.1\"\nids = \
         \"all\"\ndesk_port = 0\n[puf]\n[renewal]\nbelow_rows = 1\nrows = 0\n[[tunnel]]\nlisten = \
         \"127.0.0.1:1\"\nservice = \"192.0.2.1:1\"\n[[tunnel]]\nlisten = \"127.0.0.1:1\"\nservice = \"[::1]:1\"\n\
         [[peer]]\ndevice = \"d2\"\nlisten = \"127.0.0.1:2\"\n[[peer]]\ndevice = \"d1\"\nlisten = \"127.0.0.1\"\n\
         [[peer]]\ndevice = \"d2\"\nlisten = \"127.0.0.1:3\"\nadress = \"192.0.2.1:1\"\n",
    );
    let all = [
        "a.toml:4:1: device.peer_port: 20550: a port other than 0 and LAP's",
        "a.toml:7:7: gateway.ids: \"all\": a list",
        "a.toml:8:1: gateway.desk_port: name the port of the gateway's desk",
        "a.toml:9:2: puf: name exactly one of",
        "a.toml:12:1: renewal.rows: 0: 1 to 4096 rows at a time",
        "a.toml:17:1: tunnel.2.listen: 127.0.0.1:1 is listened on already",
        "a.toml:18:1: tunnel.2.service: [::1]:1 is of another family",
        "a.toml:24:10: peer.2.listen: ",
        "a.toml:28:1: peer.3.adress: unknown field `adress`; did you mean `address`?",
    ];
    let told = site.run("check a.toml").refused(2);
    // A [[peer]] without a place to listen at is none: what follows is not looked at.
    for line in [all[1], all[7]] {
        assert!(told.contains(&format!("error: {line}")), "{line}\n{told}");
    }
    let text = fs::read_to_string(site.path("a.toml")).unwrap();
    site.write(
        "a.toml",
        &text.replace("\"127.0.0.1\"\n[[peer]]", "\"127.0.0.1:4\"\n[[peer]]"),
    );
    let told = site.run("check a.toml").refused(2);
    let mut places = Vec::new();
    for line in all.iter().filter(|line| !line.contains("peer.2.listen")) {
        assert!(told.contains(&format!("error: {line}")), "{line}\n{told}");
        places.push(line);
    }
    for more in ["a.toml:23:1: peer.2.device: ", "a.toml:26:1: peer.3.device: "] {
        assert!(told.contains(&format!("error: {more}")), "{more}\n{told}");
    }
    assert_eq!(told.lines().count(), places.len() + 2, "{told}");
    // The agent tells what it can tell as well.
    let clean = fs::read_to_string(site.path("a.toml")).unwrap();
    let clean = clean.replace("ids = \"all\"\n", "").replace("adress", "address");
    site.write("a.toml", &clean);
    let checked = site.run("check a.toml").refused(2);
    assert_eq!(site.run("agent --config a.toml").refused(2), checked);
}

#[test]
fn broken_agent_configurations_are_told_with_file_line_and_field() {
    let site = Site::new();
    site.on_registry("device enroll simulated --device d1 --rows 1 --out .")
        .ok();
    let good = fs::read_to_string(site.path("00000000000000d1.toml")).unwrap();
    for (from, to, expected) in [
        (
            "id = \"00000000000000d1\"",
            "id = \"xyz\"",
            "a.toml:4:1: device.id: \"xyz\" is not a device id",
        ),
        ("fleet.seed", "nothing.seed", "puf.simulated.seed_file: "),
        (".helper\"", ".helpers\"", "a.toml:5:1: device.helper: "),
        ("model", "models", "puf.simulated.models: unknown field"),
        (
            "# interface = \"eth0\"",
            "interface = \"lw-none0\"",
            "gateway.interface: interface lw-none0: there is no such",
        ),
    ] {
        site.write("a.toml", &good.replacen(from, to, 1));
        let error = site.run("agent --config a.toml --gateway 127.0.0.1").refused(2);
        assert!(error.contains(expected), "expected {expected}\ngot {error}");
    }
    let error = site.run("agent --config 00000000000000d1.toml").refused(2);
    assert!(error.contains("gateway.address: it is missing"), "{error}");
    fs::write(site.path("00000000000000d1.helper"), b"LWHPxx").unwrap();
    let error = site
        .run("agent --config 00000000000000d1.toml --gateway 127.0.0.1")
        .refused(2);
    assert!(
        error.contains("00000000000000d1.helper") && error.contains("at byte"),
        "{error}"
    );
}

/// They hold keys.
#[test]
fn provers_that_others_can_read_are_refused() {
    let site = Site::new();
    site.write(
        "g.toml",
        "[gateway]\nid = 1\ndataplane = \"host\"\ninterfaces = [\"lo\"]\n[p4dra_classic]\nprovers_file = \"provers\"\n\
         [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n",
    );
    site.write("provers", "00 11 22\n");
    fs::set_permissions(site.path("provers"), fs::Permissions::from_mode(0o640)).unwrap();
    for words in ["check g.toml", "serve --config g.toml"] {
        let told = site.run(words).refused(4);
        let expected = "error: g.toml:6:1: p4dra_classic.provers_file: ";
        assert!(told.starts_with(expected) && told.contains("chmod 600"), "{told}");
    }
    fs::set_permissions(site.path("provers"), fs::Permissions::from_mode(0o600)).unwrap();
    let told = site.run("check g.toml").refused(2);
    assert!(
        told.contains("provers, line 1: d is not 32 hexadecimal digits"),
        "{told}"
    );
}

#[test]
fn mistakes_in_what_gateways_of_a_controller_must_show_have_their_places() {
    let site = Site::empty();
    let controller = "[service]\n[tls]\ncert = \"c.pem\"\nkey = \"c.key\"\nca = \"ca.pem\"\n\
                      [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n";
    let write = |trust: &str| site.write("c.toml", &format!("{controller}{trust}"));
    write(
        "[trust.7]\nreference = \"\"\nkey = \"g.pub\"\nevery_s = 0\n[trust.8]\nreference = \"r\"\nanswer_s = 601\n",
    );
    let told = site.run("check c.toml").refused(2);
    for line in [
        "c.toml:10:1: trust.7.reference: \"\": name a path",
        "c.toml:12:1: trust.7.every_s: 0: allowed is 1 to 86400",
        "c.toml:13:1: trust.8: missing field `key`",
        "c.toml:15:1: trust.8.answer_s: 601: allowed is 1 to 600",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    for name in ["seven", "07", "4294967296"] {
        write(&format!("[trust.{name}]\nreference = \"r\"\nkey = \"g.pub\"\n"));
        let told = site.run("check c.toml").refused(2);
        let said = format!("trust.{name}: \"{name}\" is no gateway's number, such as 7 in [trust.7]");
        assert!(told.contains(&said), "{said}\n{told}");
    }
    write("[trust.7]\nreference = \"r\"\nkey = \"g.pub\"\n");
    site.run("check c.toml").ok();
    let told = site.run("check --machine c.toml").refused(2);
    assert!(
        told.contains("c.toml:11:1: trust.7.key: ") && told.contains("g.pub"),
        "{told}"
    );
    site.write("g.pub", "none\n");
    let told = site.run("check --machine c.toml").refused(2);
    assert!(
        told.contains("c.toml:11:1: trust.7.key: ") && told.contains("g.pub"),
        "{told}"
    );
}
