//! A gateway with a P4 switch as its data plane. A device behind the switch's port 0 reaches a service behind port 1 after the
//! device has authenticated. The controller grants rows only while the switch proves its reference configuration. The switch and
//! the gateway, the device, and the service are in separate network namespaces.

use std::net::UdpSocket;
use std::path::Path;

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::client::{Client, ClientIdentity};
use linewarden_p4runtime::entity::{Action, Change, EntryAction, EntryKey, FieldMatch, TableEntry, Update};
use linewarden_p4runtime::p4info::P4Info;
use linewarden_p4runtime::target::Atomicity;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Namespace, Process, assert_echoed, authority, write_controller_config};
use tonic::transport::Endpoint;

/// IP address of the service. The switch receives LAP messages at the same address.
const SERVICE: &str = "10.9.1.1";
const SERVICE_MAC: &str = "02:00:00:00:00:51";
const SWITCH: &str =
    "linewarden-switch run --no-p4 --cpu-port 510 --grpc-server-addr 127.0.0.1:9559 -i 0@p0 -i 1@p1";
const CONFIGURATION: &str = "\
[gateway]
id = 5
dataplane = \"p4\"
addresses = [\"10.9.1.1\"]
device_prefixes = [\"10.9.0.0/16\"]
dhcp_servers = [\"10.9.1.1\"]
gate = \"bound\"
[controller]
socket = \"controller.sock\"
[p4]
address = \"127.0.0.1:9559\"
devices_port = 0
[[p4.bridge]]
mac = \"02:00:00:00:00:51\"
port = 1
";
/// The controller's requirements of the gateway.
const TRUST: &str = "\
[trust.5]
reference = \"switch.reference\"
key = \"switch.pub\"
every_s = 1
response_timeout_s = 20
";

struct Site {
    switch: Namespace,
    device: Namespace,
    service: Namespace,
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self {
            switch: Namespace::require(),
            device: Namespace::require(),
            service: Namespace::require(),
            directory: tempfile::tempdir().unwrap(),
        };
        let directory_path = site.directory_path();
        for (port, interface, namespace, host) in
            [("p0", "far0", &site.device, 2), ("p1", "far1", &site.service, 1)]
        {
            let pid = namespace.pid();
            site.switch.run(
                directory_path,
                &format!("ip link add {port} type veth peer name {interface} netns {pid}"),
            );
            site.switch.run(directory_path, &format!("ip link set {port} up"));
            if host == 1 {
                namespace.run(
                    directory_path,
                    &format!("ip link set {interface} address {SERVICE_MAC}"),
                );
            }
            namespace.run(
                directory_path,
                &format!("ip addr add 10.9.1.{host}/24 dev {interface}"),
            );
            namespace.run(directory_path, &format!("ip link set {interface} up"));
        }
        std::fs::write(directory_path.join("gateway.toml"), CONFIGURATION).unwrap();
        write_controller_config(directory_path);
        site.run("linewarden registry create --registry fleet.registry --key-file master.key");
        site.run(
            "linewarden device enroll simulated --device d1 --rows 60 --out devices --config controller.toml",
        );
        site
    }

    fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    #[track_caller]
    fn run(&self, command_line: &str) -> String {
        self.switch.run(self.directory_path(), command_line)
    }

    fn start_switch(&self, options: &str) -> Process {
        let switch = self.switch.start(
            self.directory_path(),
            &format!("{SWITCH} --output json {options}"),
        );
        switch.wait_for("the server", |line| line["p4runtime"].is_string());
        switch
    }

    fn start_controller(&self) -> Process {
        self.switch.start_controller(self.directory_path())
    }

    fn serve(&self) -> Process {
        self.switch.start(
            self.directory_path(),
            "linewarden-gateway run --config gateway.toml --output json --status-interval 1",
        )
    }

    /// Whether device d1 gets a session within this number of seconds.
    fn authenticates(&self, seconds: u32) -> bool {
        self.device_authenticates("d1", seconds)
    }

    fn device_authenticates(&self, device: &str, seconds: u32) -> bool {
        let arguments = format!(
            "linewarden-agent run --config devices/00000000000000{device}.toml --gateway {SERVICE} --interface far0 --once --timeout {seconds} --output json"
        );
        let (code, lines) = self
            .device
            .start(self.directory_path(), &arguments)
            .wait_for_exit();
        assert!(code == 0 || code == 5, "{lines:#?}");
        code == 0
    }

    /// Starts the echo service and returns a socket of the device.
    fn start_echo(&self) -> UdpSocket {
        self.service.echo(format!("{SERVICE}:9000").parse().unwrap());
        self.device.socket("10.9.1.2:9001".parse().unwrap())
    }

    /// Makes the switch's present state the reference value.
    fn make_reference(&self) {
        self.run("linewarden-switch evidence export --out s.cose --inventory s.inventory --gateway");
        self.run(
            "linewarden appraise s.cose --key switch.pub --inventory s.inventory --gateway --make-reference switch.reference",
        );
    }

    /// Adds a station to the bridge, or removes it, as any client of the switch's P4Runtime server can.
    fn change_bridge(&self, change: impl FnOnce(TableEntry) -> Change<TableEntry, EntryKey> + Send) {
        let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/compiled");
        let info = std::fs::read_to_string(compiled.join("lap.p4info.txtpb")).unwrap();
        let info = P4Info::from_text(&info).unwrap();
        let key = EntryKey {
            table: info.tables().by_name_or_alias("bridge").unwrap().id,
            fields: vec![FieldMatch::Exact(Bits::from_u128(48, 0x0266).unwrap())],
            priority: 0,
        };
        let action = EntryAction::Action(Action {
            id: info.actions().by_name_or_alias("to_port").unwrap().id,
            params: [(9, 1), (1, 0)]
                .map(|(width, value)| Bits::from_u128(width, value).unwrap())
                .to_vec(),
        });
        let update = Update::TableEntry(Box::new(change(TableEntry::new(key, action))));
        let identity = ClientIdentity {
            device_id: 0,
            role: "test".to_owned(),
            election_id: 1,
        };
        let work = async {
            let endpoint = Endpoint::from_static("http://127.0.0.1:9559");
            let (mut client, _events, _) = Client::connect(endpoint, identity).await.unwrap();
            assert!(client.pipeline().await.unwrap().is_some());
            client.write(&[update], Atomicity::ContinueOnError).await.unwrap();
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let run = || runtime().unwrap().block_on(work);
        self.switch.inside().run(run).unwrap();
    }
}

fn has_trust(state: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["trust"]["state"] == state
}

/// Only an authenticated device receives an echo through the gate. Gateway and switch authenticate each other with certificates.
#[test]
fn a_device_reaches_the_service_through_the_switch_after_its_authentication() {
    let site = Site::new();
    authority(
        site.directory_path(),
        "ca",
        &[("switch", "switch.example"), ("gateway", "gateway")],
    );
    let mut switch = site.start_switch(
        "--grpc-server-cert switch.crt --grpc-server-key switch.key --grpc-server-cacert ca.crt",
    );
    let tls =
        "[p4]\nca = \"ca.crt\"\ncert = \"gateway.crt\"\nkey = \"gateway.key\"\ndomain = \"switch.example\"";
    std::fs::write(
        site.directory_path().join("gateway.toml"),
        CONFIGURATION.replace("[p4]", tls),
    )
    .unwrap();
    site.run("linewarden-gateway check --machine gateway.toml");
    let _controller = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    let socket = site.start_echo();
    let service = format!("{SERVICE}:9000").parse().unwrap();
    socket.send_to(b"no session", service).unwrap();
    gateway_process.wait_for_count("drop_gate", 1);
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    assert_echoed(&socket, service);
    gateway_process.wait_for("the session", |line| line["sessions_opened"] == 1);
    site.run("linewarden device revoke d1 --config controller.toml");
    gateway_process.wait_for("the revocation", |line| line["revoked"] == 1);
    assert!(!site.authenticates(2));
    gateway_process.wait_for_count("drop_revoked", 1);

    // Without its switch the gateway ends, so that a service manager restarts it.
    switch.end_with_signal(Signal::SIGKILL);
    let (code, lines) = gateway_process.wait_for_exit();
    assert_eq!(code, 1, "{lines:#?}");
}

#[test]
fn a_gateway_gets_no_rows_while_its_switch_differs_from_the_reference_value() {
    let site = Site::new();
    let public = site.run("linewarden-switch evidence key --out switch.evidence-key");
    std::fs::write(site.directory_path().join("switch.pub"), public).unwrap();
    let evidence = "--switch-id 9 --boot-count boots --evidence-key switch.evidence-key";
    let _switch = site.start_switch(evidence);
    let controller_without_policy = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    site.make_reference();
    gateway_process.terminate();
    controller_without_policy.terminate();

    let path = site.directory_path().join("controller.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text + TRUST).unwrap();
    site.run("linewarden-controller check --machine controller.toml");
    site.run("linewarden-gateway check --machine gateway.toml");
    let _controller = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("trust", has_trust("trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    let socket = site.start_echo();
    let service = format!("{SERVICE}:9000").parse().unwrap();
    assert_echoed(&socket, service);

    site.change_bridge(Change::Insert);
    let line = gateway_process.wait_for("distrust", has_trust("untrusted"));
    let reason = line["trust"]["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.contains("table LapIngress.bridge: differs") && reason.contains("added"),
        "{reason}"
    );
    gateway_process.wait_for("the loss of all rows", |line| line["devices"] == 0);
    let dropped = gateway_process.count("drop_gate");
    socket.send_to(b"of an open session", service).unwrap();
    gateway_process.wait_for_count("drop_gate", dropped + 1);
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 32]).is_err());
    assert!(!site.authenticates(2), "an untrusted gateway has no rows");

    site.change_bridge(|entry| Change::Delete(entry.key));
    gateway_process.wait_for("trust again", has_trust("trusted"));
    assert!(site.authenticates(60), "{:#?}", gateway_process.printed_lines());
    gateway_process.terminate();
}

/// The switch continues when its gateway ends, and must not pass traffic of a session that cannot be revoked.
#[test]
fn key_mode_sessions_also_end_with_the_gateway() {
    let site = Site::new();
    site.run(
        "linewarden device enroll simulated --model sram --device d2 --out devices --config controller.toml",
    );
    let switch = site.start_switch("");
    let _controller = site.start_controller();
    let gateway_process = site.serve();
    gateway_process.wait_for("loaded fleet", |line| line["loaded"] == true);
    assert!(
        site.device_authenticates("d2", 60),
        "{:#?}",
        gateway_process.printed_lines()
    );
    let socket = site.start_echo();
    assert_echoed(&socket, format!("{SERVICE}:9000").parse().unwrap());
    gateway_process.terminate();

    let [data, dhcp] = [9002, 67].map(|port| (SERVICE, port));
    let [data_socket, dhcp_server] = [data, dhcp].map(|(ip, port)| {
        let address = format!("{ip}:{port}").parse().unwrap();
        site.service.socket(address)
    });
    socket.send_to(b"of an open session", data).unwrap();
    // DHCP passes without a session, on the same path. If the gate had passed the datagram of the session, this datagram would
    // have arrived before the DHCP request.
    let client = site.device.socket("10.9.1.2:68".parse().unwrap());
    client.send_to(b"request", dhcp).unwrap();
    assert_eq!(dhcp_server.recv(&mut [0; 32]).unwrap(), 7);
    data_socket.set_nonblocking(true).unwrap();
    assert!(data_socket.recv(&mut [0; 32]).is_err());
    switch.terminate();
}
