//! A gateway that shows its controller what it runs: trusted, changed behind its back, and put right again. Gateway and device are in
//! network namespaces of their own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::path::Path;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use linewarden_lab::xdp_pass::XdpPass;
use serde_json::Value;
use support::{Namespace, PROGRAM, Process};

const CONFIGURATION: &str = "\
[gateway]
id = 5
interfaces = [\"v\"]
addresses = [\"10.9.1.1\"]
slots = 16
[registry]
path = \"fleet.registry\"
master_key_file = \"master.key\"
[audit]
path = \"audit.jsonl\"
[evidence]
key = \"gateway.evidence-key\"
boot_count = \"boot-count\"
socket = \"evidence.sock\"
";
const TRUST: &str = "\
[trust]
reference = \"gateway.reference\"
reference_key = \"operator.pub\"
key = \"gateway.pub\"
every_s = 1
answer_s = 20
";

struct Site {
    gateway: Namespace,
    device: Namespace,
    _program: XdpPass,
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Option<Self> {
        let (gateway, device) = (Namespace::new()?, Namespace::new()?);
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let peer = device.pid();
        gateway.run(at, &format!("ip link add v type veth peer name h0 netns {peer}"));
        for (namespace, name, host) in [(&gateway, "v", 1), (&device, "h0", 2)] {
            namespace.run(at, &format!("ip addr add 10.9.1.{host}/24 dev {name}"));
            namespace.run(at, &format!("ip link set {name} up"));
        }
        device.run(at, "ethtool -K h0 tx off");
        let program = device.accept_xdp(at, "h0");
        std::fs::write(at.join("gateway.toml"), CONFIGURATION).unwrap();
        Some(Self {
            gateway,
            device,
            _program: program,
            directory,
        })
    }

    fn at(&self) -> &Path {
        self.directory.path()
    }

    #[track_caller]
    fn run(&self, words: &str) -> String {
        self.gateway.run(self.at(), &format!("{PROGRAM} {words}"))
    }

    fn serve(&self) -> Process {
        self.gateway
            .start(self.at(), "serve --config gateway.toml --json --every 1")
    }

    fn key(&self, name: &str) {
        let public = self.run(&format!("evidence key --out {name}.evidence-key"));
        std::fs::write(self.at().join(format!("{name}.pub")), public).unwrap();
    }

    /// The gateway as it is now is as it is to be.
    fn make_reference(&self) {
        self.run("evidence ask --socket evidence.sock --out s.cose --inventory s.inventory");
        self.run(
            "appraise s.cose --key gateway.pub --inventory s.inventory --make-reference gateway.reference --signing-key \
             operator.evidence-key",
        );
    }

    /// Appraises it as an operator would; exit code and what was said.
    fn appraise(&self) -> (i32, String) {
        let nonce = "5a".repeat(32);
        self.run(&format!(
            "evidence ask --socket evidence.sock --out s.cose --inventory s.inventory --force --nonce {nonce}"
        ));
        let words = format!(
            "appraise s.cose --key gateway.pub --inventory s.inventory --nonce {nonce} --reference gateway.reference \
             --reference-key operator.pub"
        );
        let output = support::linewarden(self.at(), &words).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
        )
    }

    /// Whether a device gets a session within that many seconds.
    fn authenticates(&self, seconds: u32) -> bool {
        let words = format!(
            "agent --config devices/00000000000000d1.toml --gateway 10.9.1.1 --interface h0 --once --timeout {seconds} --json"
        );
        let (code, lines) = self.device.start(self.at(), &words).ended();
        assert!(code == 0 || code == 5, "{lines:#?}");
        code == 0
    }
}

/// Changes a setting of a gateway by its map, as anybody with the privilege can.
fn change_settings(serving: &Process) {
    let directory = std::fs::read_dir(format!("/proc/{}/fdinfo", serving.id())).unwrap();
    let map_id = |text: String| {
        let line = text.lines().find(|line| line.starts_with("map_id:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let maps = directory
        .filter_map(|entry| map_id(std::fs::read_to_string(entry.unwrap().path()).ok()?))
        .map(|id| MapHandle::from_map_id(id).unwrap());
    let control = maps.into_iter().find(|map| map.name() == "control").unwrap();
    let key = 0u32.to_ne_bytes();
    let mut value = control.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    // The highest byte of the limit of NAKs, behind the lease and two numbers more.
    value[64 + 5 * 4 + 3] ^= 1;
    control.update(&key, &value, MapFlags::ANY).unwrap();
}

fn stands(state: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["trust"]["state"] == state
}

#[test]
fn a_gateway_that_is_changed_behind_its_back_loses_its_leases_until_it_is_put_right() {
    let Some(site) = Site::new() else {
        println!("SKIPPED: no root, or no unshare, ip and ethtool");
        return;
    };
    site.run("registry create --registry fleet.registry --key-file master.key");
    site.run("device enroll simulated --device d1 --rows 40 --out devices --config gateway.toml");
    site.key("gateway");
    site.key("operator");
    let serving = site.serve();
    serving.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    serving.terminate();

    std::fs::write(site.at().join("gateway.toml"), format!("{CONFIGURATION}{TRUST}")).unwrap();
    site.run("check --machine gateway.toml");
    let serving = site.serve();
    serving.wait_for("trust", stands("trusted"));
    assert!(site.authenticates(60), "{:#?}", serving.seen());
    serving.wait_for("the device", |line| line["devices"] == 1);
    let (code, said) = site.appraise();
    assert_eq!((code, said.contains("nothing differs")), (0, true), "{said}");
    assert!(said.contains("start 2"), "{said}");

    change_settings(&serving);
    let line = serving.wait_for("distrust", stands("distrusted"));
    let why = line["trust"]["why"].as_str().unwrap().to_owned();
    assert!(
        why.contains("map control: differs") && why.contains("entry 00000000"),
        "{why}"
    );
    serving.wait_for("the loss", |line| line["devices"] == 0);
    assert!(!site.authenticates(2), "it has no rows");
    let (code, said) = site.appraise();
    assert_eq!((code, said.contains("map control: differs")), (1, true), "{said}");

    change_settings(&serving);
    serving.wait_for("trust again", stands("trusted"));
    assert!(site.authenticates(60), "{:#?}", serving.seen());
    serving.terminate();
    let audit = std::fs::read_to_string(site.at().join("audit.jsonl")).unwrap();
    let told = |event: &str| audit.matches(&format!("\"event\":\"{event}\"")).count();
    assert_eq!((told("trusted"), told("distrusted")), (2, 1), "{audit}");
}

#[test]
fn a_gateway_of_another_configuration_gets_nothing_and_a_spoilt_count_stops_the_start() {
    let Some(site) = Site::new() else {
        println!("SKIPPED: no root, or no unshare, ip and ethtool");
        return;
    };
    site.run("registry create --registry fleet.registry --key-file master.key");
    site.run("device enroll simulated --device d1 --rows 40 --out devices --config gateway.toml");
    site.key("gateway");
    site.key("operator");
    let serving = site.serve();
    serving.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    serving.terminate();

    let other = CONFIGURATION.replace("slots = 16", "slots = 32");
    std::fs::write(site.at().join("gateway.toml"), format!("{other}{TRUST}")).unwrap();
    let serving = site.serve();
    let line = serving.wait_for("distrust", stands("distrusted"));
    let why = line["trust"]["why"].as_str().unwrap();
    assert!(why.contains("map lines: differs"), "{why}");
    assert!(!site.authenticates(2), "it has no rows");
    serving.terminate();

    std::fs::write(site.at().join("boot-count"), "linewarden count 1: 1 0\n").unwrap();
    let output = support::linewarden(site.at(), "serve --config gateway.toml")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_ne!(output.status.code(), Some(0));
    assert!(
        said.contains("boot_count") || said.contains("interface"),
        "{said}"
    );
}
