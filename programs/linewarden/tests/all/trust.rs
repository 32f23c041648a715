//! Evidence of gateways: a gateway is trusted, another process changes one of its maps, and restores the map. The gateway reaches
//! one controller through a socket, or two controllers over TLS. Gateway and device are in private network namespaces.

use std::mem::offset_of;
use std::path::Path;
use std::time::{Duration, Instant};

use linewarden_dataplane::layout::{Control, SourceBank, SourcePrefix, Sources};
use linewarden_lab::xdp_pass::XdpPass;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::control_map;
use crate::support::{self, Namespace, Process, TEST_TIMEOUT, command, write_controller_config};

const CONFIGURATION: &str = "\
[gateway]
id = 5
interfaces = [\"v\"]
addresses = [\"10.9.1.1\"]
slots = 16
[controller]
socket = \"controller.sock\"
[audit]
path = \"audit.jsonl\"
[evidence]
key = \"gateway.evidence-key\"
boot_count = \"boot-count\"
socket = \"evidence.sock\"
";
/// A controller's requirements of the gateway.
const TRUST: &str = "\
[trust.5]
reference = \"gateway.reference\"
reference_key = \"operator.pub\"
key = \"gateway.pub\"
every_s = 1
response_timeout_s = 20
";

/// The configuration of a gateway with remote controllers, which decide whether the gateway is trusted.
const REMOTE_CONTROLLERS_CONFIGURATION: &str = "\
[gateway]
id = 5
interfaces = [\"v\"]
addresses = [\"10.9.1.1\"]
slots = 16
[controller]
addresses = [\"127.0.0.1:20560\", \"127.0.0.1:20570\"]
ca = \"pki/ca.pem\"
cert = \"gateway-5.pem\"
key = \"gateway-5.key\"
[evidence]
key = \"gateway.evidence-key\"
boot_count = \"boot-count\"
socket = \"evidence.sock\"
";

/// Offset, in `Control`, of the number of the active bank. The two banks with the source prefixes of devices follow this number.
const SOURCE_BANK_OFFSET: usize = offset_of!(Control, source_bank);
const SOURCE_BANK_BYTES: usize = size_of::<SourceBank>();

struct Site {
    gateway: Namespace,
    device: Namespace,
    _program: XdpPass,
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let (gateway, device) = (Namespace::require(), Namespace::require());
        let directory = tempfile::tempdir().unwrap();
        let directory_path = directory.path();
        let peer = device.pid();
        gateway.run(
            directory_path,
            &format!("ip link add v type veth peer name h0 netns {peer}"),
        );
        for (namespace, name, host) in [(&gateway, "v", 1), (&device, "h0", 2)] {
            namespace.run(
                directory_path,
                &format!("ip addr add 10.9.1.{host}/24 dev {name}"),
            );
            namespace.run(directory_path, &format!("ip link set {name} up"));
        }
        device.run(directory_path, "ethtool -K h0 tx off");
        let program = device.accept_xdp(directory_path, "h0");
        std::fs::write(directory_path.join("gateway.toml"), CONFIGURATION).unwrap();
        write_controller_config(directory_path);
        Self {
            gateway,
            device,
            _program: program,
            directory,
        }
    }

    fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    #[track_caller]
    fn run(&self, command_line: &str) -> String {
        self.gateway.run(self.directory_path(), command_line)
    }

    fn start_controller(&self) -> Process {
        self.gateway.start_controller(self.directory_path())
    }

    /// Adds the gateway's reference values to the controller's configuration.
    fn require_trust(&self) {
        let path = self.directory_path().join("controller.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text + TRUST).unwrap();
        self.run("linewarden-controller check --machine controller.toml");
    }

    fn serve(&self) -> Process {
        self.gateway.start(
            self.directory_path(),
            "linewarden-gateway run --config gateway.toml --output json --status-interval 1",
        )
    }

    /// Creates the keys of the gateway and of the operator: NAME.evidence-key, and its public key NAME.pub.
    fn create_keys(&self) {
        for (program, name) in [("linewarden-gateway", "gateway"), ("linewarden", "operator")] {
            let public = self.run(&format!("{program} evidence key --out {name}.evidence-key"));
            std::fs::write(self.directory_path().join(format!("{name}.pub")), public).unwrap();
        }
    }

    /// Creates a signed reference value, gateway.reference, from the gateway's current state.
    fn make_reference(&self) {
        self.run(
            "linewarden-gateway evidence export --socket evidence.sock --out s.cose --inventory s.inventory",
        );
        self.run(
            "linewarden appraise s.cose --key gateway.pub --inventory s.inventory --make-reference gateway.reference --signing-key \
             operator.evidence-key",
        );
    }

    /// Appraises new evidence of the gateway with the command `linewarden appraise`. Returns the exit code and standard output.
    fn appraise(&self) -> (i32, String) {
        let nonce = "5a".repeat(32);
        self.run(&format!(
            "linewarden-gateway evidence export --socket evidence.sock --out s.cose --inventory s.inventory --force --nonce {nonce}"
        ));
        let arguments = format!(
            "linewarden appraise s.cose --key gateway.pub --inventory s.inventory --nonce {nonce} --reference gateway.reference \
             --reference-key operator.pub"
        );
        let output = command(self.directory_path(), &arguments).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
        )
    }

    /// Whether the device d1 gets a session within this number of seconds.
    fn authenticates(&self, seconds: u32) -> bool {
        let arguments = format!(
            "linewarden-agent run --config devices/00000000000000d1.toml --gateway 10.9.1.1 --interface h0 --once --timeout {seconds} --output json"
        );
        let (code, lines) = self
            .device
            .start(self.directory_path(), &arguments)
            .wait_for_exit();
        assert!(code == 0 || code == 5, "{lines:#?}");
        code == 0
    }
}

fn has_trust(state: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["trust"]["state"] == state
}

#[test]
fn a_gateway_changed_by_another_process_has_no_leases_until_it_is_restored() {
    let site = Site::new();
    site.run("linewarden registry create --registry fleet.registry --key-file master.key");
    site.run(
        "linewarden device enroll simulated --device d1 --rows 40 --out devices --config controller.toml",
    );
    site.create_keys();
    let controller_without_policy = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    gateway_process.terminate();
    controller_without_policy.terminate();

    site.require_trust();
    site.run("linewarden-gateway check --machine gateway.toml");
    let controller = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("trust", has_trust("trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    gateway_process.wait_for("the device", |line| line["devices"] == 1);
    let (code, text) = site.appraise();
    assert_eq!((code, text.contains("no differences")), (0, true), "{text}");
    assert!(text.contains("boot 2"), "{text}");

    control_map::change_settings(&gateway_process);
    let line = gateway_process.wait_for("distrust", has_trust("untrusted"));
    let reason = line["trust"]["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.contains("map control: differs") && reason.contains("entry 00000000"),
        "{reason}"
    );
    gateway_process.wait_for("the loss of all devices", |line| line["devices"] == 0);
    assert!(!site.authenticates(2), "an untrusted gateway has no rows");
    let (code, text) = site.appraise();
    assert_eq!((code, text.contains("map control: differs")), (1, true), "{text}");

    control_map::change_settings(&gateway_process);
    gateway_process.wait_for("trust again", has_trust("trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    gateway_process.terminate();
    let audit = std::fs::read_to_string(site.directory_path().join("audit.jsonl")).unwrap();
    let count_of = |event: &str| audit.matches(&format!("\"event\":\"{event}\"")).count();
    assert_eq!((count_of("trusted"), count_of("untrusted")), (2, 1), "{audit}");
    controller.terminate();
}

/// The machine gets and loses IP addresses. The gateway writes these changes to its map `control`, and its evidence does not
/// change. A write of another process to the same map changes the evidence.
#[test]
fn a_gateway_follows_changes_of_ip_addresses_and_its_evidence_does_not_change() {
    let site = Site::new();
    site.run("linewarden registry create --registry fleet.registry --key-file master.key");
    site.run(
        "linewarden device enroll simulated --device d1 --rows 40 --out devices --config controller.toml",
    );
    site.create_keys();
    let controller_without_policy = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    gateway_process.terminate();
    controller_without_policy.terminate();
    site.require_trust();
    let controller = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("trust", has_trust("trusted"));

    for arguments in [
        "ip addr flush dev h0 scope global",
        "ip addr add 10.9.2.2/24 dev h0",
        "ip route replace 10.9.1.1 dev h0",
    ] {
        site.device.run(site.directory_path(), arguments);
    }
    assert!(
        !site.authenticates(1),
        "the device's new subnet is not a subnet of the gateway"
    );
    gateway_process.wait_for_count("drop_source_not_device", 1);
    site.gateway.run(
        site.directory_path(),
        "ip link add link v name over0 type macvlan",
    );
    site.gateway
        .run(site.directory_path(), "ip addr add 10.9.2.1/24 dev over0");
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    let (code, text) = site.appraise();
    assert_eq!((code, text.contains("no differences")), (0, true), "{text}");

    site.gateway
        .run(site.directory_path(), "ip addr add 10.9.2.2/32 dev lo");
    let dropped_before = gateway_process.count("drop_source_not_device");
    let deadline = Instant::now() + TEST_TIMEOUT;
    while site.authenticates(1) {
        assert!(
            Instant::now() < deadline,
            "the gateway's own address was accepted as the address of a device"
        );
    }
    gateway_process.wait_for_count("drop_source_not_device", dropped_before + 1);
    let (code, text) = site.appraise();
    assert_eq!((code, text.contains("no differences")), (0, true), "{text}");

    // Changes the first IPv4 prefix in the active bank to 0.0.0.0/0: then every address is in a device prefix. The gateway writes
    // its sources a second time after a change of addresses, which can undo the change of this test.
    let deadline = Instant::now() + TEST_TIMEOUT;
    let line = 'distrusted: loop {
        control_map::change(&gateway_process, |value| {
            let bank = usize::from(value[SOURCE_BANK_OFFSET] & 1) * SOURCE_BANK_BYTES;
            let prefix = SOURCE_BANK_OFFSET + size_of::<u64>() + bank + offset_of!(Sources, prefix);
            value[prefix..prefix + size_of::<SourcePrefix>()].fill(0);
        });
        let next_change = Instant::now() + Duration::from_secs(5);
        while let Ok(line) = gateway_process.next(next_change.saturating_duration_since(Instant::now())) {
            if has_trust("untrusted")(&line) {
                break 'distrusted line;
            }
        }
        assert!(
            Instant::now() < deadline,
            "no distrust: {:#?}",
            gateway_process.printed_lines()
        );
    };
    let reason = line["trust"]["reason"].as_str().unwrap();
    assert!(reason.contains("map control: differs"), "{reason}");
    gateway_process.terminate();
    let audit = std::fs::read_to_string(site.directory_path().join("audit.jsonl")).unwrap();
    assert_eq!(audit.matches("\"event\":\"untrusted\"").count(), 1, "{audit}");
    controller.terminate();
}

#[test]
fn a_gateway_with_another_configuration_gets_no_rows_and_a_damaged_boot_count_prevents_the_start() {
    let site = Site::new();
    site.run("linewarden registry create --registry fleet.registry --key-file master.key");
    site.run(
        "linewarden device enroll simulated --device d1 --rows 40 --out devices --config controller.toml",
    );
    site.create_keys();
    let controller_without_policy = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    gateway_process.terminate();
    controller_without_policy.terminate();

    let other = CONFIGURATION.replace("slots = 16", "slots = 32");
    std::fs::write(site.directory_path().join("gateway.toml"), other).unwrap();
    site.require_trust();
    let _controller = site.start_controller();
    let gateway_process = site.serve();
    let line = gateway_process.wait_for("distrust", has_trust("untrusted"));
    let reason = line["trust"]["reason"].as_str().unwrap();
    assert!(reason.contains("map lines: differs"), "{reason}");
    assert!(!site.authenticates(2), "an untrusted gateway has no rows");
    gateway_process.terminate();

    std::fs::write(
        site.directory_path().join("boot-count"),
        "linewarden count 1: 1 0\n",
    )
    .unwrap();
    let output = command(
        site.directory_path(),
        "linewarden-gateway run --config gateway.toml",
    )
    .output()
    .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_ne!(output.status.code(), Some(0));
    assert!(
        errors.contains("boot_count") || errors.contains("interface"),
        "{errors}"
    );
}

/// Controllers on the gateway's machine, with one database.
struct Controllers<'s> {
    site: &'s Site,
    registry: String,
}

impl Controllers<'_> {
    const PORTS: [(&'static str, u16); 2] = [("a", 20_560), ("b", 20_570)];

    fn create_files(&self) {
        let site = self.site;
        site.run("linewarden certificate ca --out pki");
        site.run("linewarden certificate gateway --ca pki --id 5 --out gateway-5");
        for (name, _) in Self::PORTS {
            site.run(&format!(
                "linewarden certificate controller --ca pki --name 127.0.0.1 --out ctl-{name}"
            ));
            self.configure(name, "");
        }
        std::fs::write(
            site.directory_path().join("gateway.toml"),
            REMOTE_CONTROLLERS_CONFIGURATION,
        )
        .unwrap();
        site.run(&format!(
            "linewarden registry create --registry {} --key-file master.key",
            self.registry
        ));
        site.run(
            "linewarden device enroll simulated --device d1 --rows 60 --out devices --config ctl-a.toml",
        );
        let token = site.run("linewarden user create vic --role viewer --config ctl-a.toml");
        support::key_file(site.directory_path(), "vic", &token, 0o600);
        site.create_keys();
    }

    fn configure(&self, name: &str, trust: &str) {
        let (_, port) = Self::PORTS
            .into_iter()
            .find(|(controller, _)| *controller == name)
            .unwrap();
        let text = format!(
            "[service]\nname = \"ctl-{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             [tls]\ncert = \"ctl-{name}.pem\"\nkey = \"ctl-{name}.key\"\nca = \"pki/ca.pem\"\n\
             [registry]\npath = \"{}\"\nmaster_key_file = \"master.key\"\n{trust}",
            self.registry
        );
        std::fs::write(self.site.directory_path().join(format!("ctl-{name}.toml")), text).unwrap();
    }

    fn start(&self, name: &str) -> Process {
        let arguments = format!("linewarden-controller run --config ctl-{name}.toml --output json");
        let controller = self.site.gateway.start(self.site.directory_path(), &arguments);
        controller.event("started");
        controller
    }

    /// Runs a command of `linewarden` through this controller.
    fn run_remote(&self, name: &str, arguments: &str) -> String {
        let (_, port) = Self::PORTS
            .into_iter()
            .find(|(controller, _)| *controller == name)
            .unwrap();
        self.site.run(&format!(
            "linewarden {arguments} --output json --server https://127.0.0.1:{port} --server-ca pki/ca.pem --token-file vic.key"
        ))
    }

    /// Waits until a controller's report about gateway 5 satisfies the condition. Returns this report.
    fn wait_for_gateway(&self, name: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            // Before a controller has registered the gateway, no controller lists the gateway.
            let is_listed = self.run_remote(name, "gateway list").contains("\"id\":5");
            let gateway: Value = match is_listed {
                true => serde_json::from_str(self.run_remote(name, "gateway show 5").lines().next().unwrap())
                    .unwrap(),
                false => Value::Null,
            };
            if condition(&gateway) {
                return gateway;
            }
            assert!(Instant::now() < deadline, "{gateway}");
        }
    }
}

/// A condition for [`Controllers::wait_for_gateway`]: the gateway is connected to this controller and has this trust state.
fn has_trust_at(controller: &'static str, trust: &'static str) -> impl Fn(&Value) -> bool {
    move |gateway| gateway["controller"] == controller && gateway["trust"] == trust
}

#[test]
fn a_gateway_of_remote_controllers_sends_evidence_to_each_of_them() {
    let site = Site::new();
    let database = support::require_postgres();
    let controllers = Controllers {
        site: &site,
        registry: database.new_schema("fleet").unwrap(),
    };
    controllers.create_files();
    let controller_without_policy = controllers.start("a");
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    let gateway = controllers.wait_for_gateway("a", |gateway| gateway["state"] == "connected");
    assert_eq!(
        gateway["trust"],
        Value::Null,
        "no controller requires evidence of this gateway"
    );
    gateway_process.terminate();
    controller_without_policy.terminate();

    for name in ["a", "b"] {
        controllers.configure(name, TRUST);
        site.run(&format!("linewarden-controller check --machine ctl-{name}.toml"));
    }
    site.run("linewarden-gateway check --machine gateway.toml");
    let (mut first, second) = (controllers.start("a"), controllers.start("b"));
    let gateway_process = site.serve();
    gateway_process.wait_for("trust", has_trust("trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    let gateway = controllers.wait_for_gateway("b", has_trust_at("ctl-a", "trusted"));
    assert_eq!(gateway["evidence"]["verdict"], "affirming", "{gateway}");
    assert_eq!(gateway["evidence"]["boot_count"], 2, "{gateway}");

    first.end_with_signal(Signal::SIGKILL);
    controllers.wait_for_gateway("b", has_trust_at("ctl-b", "trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());

    control_map::change_settings(&gateway_process);
    gateway_process.wait_for("distrust", has_trust("untrusted"));
    let gateway = controllers.wait_for_gateway("b", has_trust_at("ctl-b", "untrusted"));
    let reason = gateway["trust_reason"].as_str().unwrap();
    assert!(reason.contains("map control: differs"), "{reason}");
    gateway_process.wait_for("the loss of all devices", |line| line["devices"] == 0);
    assert!(!site.authenticates(2), "an untrusted gateway has no rows");

    // An untrusted gateway connects to another controller, which then appraises the restored state.
    let first_controller = controllers.start("a");
    second.terminate();
    control_map::change_settings(&gateway_process);
    gateway_process.wait_for("trust again", has_trust("trusted"));
    controllers.wait_for_gateway("a", has_trust_at("ctl-a", "trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    let events = controllers.run_remote("a", "event list");
    let count_of = |kind: &str| events.matches(&format!("\"{kind}\"")).count();
    assert_eq!(
        (count_of("gateway_trusted"), count_of("gateway_untrusted")),
        (2, 1),
        "{events}"
    );
    gateway_process.terminate();
    first_controller.terminate();
}
