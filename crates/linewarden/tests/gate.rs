//! A bound or sealed gate after its gateway was killed, terminated or restarted, and the removal of the gate. The interface to
//! the devices is the loopback interface of a network namespace that the test creates.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use linewarden_lab::capability::{self, FOR_LOAD_GENERATOR};
use linewarden_lab::netns::NetNs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::PROGRAM;

/// A BPF filesystem that the test mounts.
struct BpfFilesystem(PathBuf);

impl BpfFilesystem {
    fn mount(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap();
        let status = Command::new("mount")
            .args(["-t", "bpf", "-o", "mode=0700", "bpf"])
            .arg(&path)
            .status();
        assert!(status.unwrap().success());
        Self(path)
    }
}

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

struct Site {
    namespace: NetNs,
    directory: PathBuf,
    service: UdpSocket,
    _controller: support::Process,
}

impl Site {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments.split_whitespace())
            .current_dir(&self.directory);
        command
    }

    /// Runs a command in the namespace: a child process is in the namespace of the thread that starts it.
    fn run(&self, arguments: &str) -> Output {
        let mut command = self.command(arguments);
        self.namespace.run(|| command.output().unwrap()).unwrap()
    }

    #[track_caller]
    fn ip(&self, arguments: &'static str) {
        let run = move || Command::new("ip").args(arguments.split_whitespace()).status();
        assert!(self.namespace.run(run).unwrap().unwrap().success(), "{arguments}");
    }

    /// Runs a command that must fail, and returns its standard error.
    #[track_caller]
    fn refused(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn serve(&self) -> Gateway {
        self.serve_to(Stdio::inherit())
    }

    fn serve_to(&self, log: Stdio) -> Gateway {
        let mut command = self.command("serve --config gateway.toml --json --status-interval 1");
        let command = command.stdout(Stdio::piped()).stderr(log);
        let mut child = self.namespace.run(|| command.spawn().unwrap()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("\"loaded\":true")));
        Gateway(child)
    }

    /// Whether an egress filter of linewarden is attached.
    fn is_filtered(&self) -> bool {
        let arguments = ["filter", "show", "dev", "lo", "egress"];
        let list_filters = || Command::new("tc").args(arguments).output().unwrap();
        let filters = self.namespace.run(list_filters).unwrap();
        String::from_utf8(filters.stdout).unwrap().contains("linewarden")
    }

    /// Whether a datagram from a sender without a session arrives at the service.
    fn passes(&self) -> bool {
        let service_address = self.service.local_addr().unwrap();
        let sender = self
            .namespace
            .run(|| UdpSocket::bind("127.0.0.1:0").unwrap())
            .unwrap();
        sender.send_to(b"probe", service_address).unwrap();
        self.service.recv(&mut [0; 16]).is_ok()
    }
}

struct Gateway(Child);

impl Gateway {
    fn end(mut self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn site(directory: &Path, settings: &str) -> Site {
    site_with_gate("bound", directory, settings)
}

fn site_with_gate(gate: &str, directory: &Path, settings: &str) -> Site {
    let namespace = NetNs::new().unwrap();
    let service = namespace
        .run(|| {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            assert!(up.unwrap().success());
            UdpSocket::bind("127.0.0.1:0").unwrap()
        })
        .unwrap();
    service
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    support::write_controller_config(directory);
    std::fs::write(
        directory.join("gateway.toml"),
        format!(
            "[gateway]\nid = 5\ninterfaces = [\"lo\"]\naddresses = [\"127.0.0.1\"]\ngate = \"{gate}\"\nslots = 16\ndevice_prefixes = [\"127.0.0.0/8\"]\n{settings}\n\
             [controller]\nsocket = \"controller.sock\"\n"
        ),
    )
    .unwrap();
    support::run(support::linewarden(
        directory,
        "registry create --registry fleet.registry --key-file master.key",
    ));
    Site {
        namespace,
        directory: directory.to_owned(),
        service,
        _controller: support::start_controller(directory),
    }
}

fn skipped() -> bool {
    match capability::require(FOR_LOAD_GENERATOR) {
        Ok(()) => false,
        Err(missing) => {
            println!("SKIPPED: {missing}");
            true
        }
    }
}

#[test]
fn a_gate_stays_closed_without_its_gateway_until_it_is_removed() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let site = site(
        directory.path(),
        &format!("pin_directory = \"{}/gates\"", filesystem.0.display()),
    );
    assert!(site.passes(), "no gate before the start");

    let gateway = site.serve();
    assert!(!site.passes());
    for arguments in [
        "serve --config gateway.toml",
        "serve --config gateway.toml --remove-gate",
    ] {
        let error = site.refused(arguments);
        assert!(error.contains("another gateway"), "{error}");
    }
    gateway.end(Signal::SIGKILL);
    assert!(!site.passes(), "after SIGKILL");

    let gateway = site.serve();
    assert!(!site.passes(), "the next process has replaced the gate");
    gateway.end(Signal::SIGTERM);
    assert!(!site.passes(), "after SIGTERM");

    let removed = site.run("serve --config gateway.toml --remove-gate");
    assert!(removed.status.success());
    assert!(String::from_utf8(removed.stdout).unwrap().contains("1 interface"));
    assert!(site.passes());
    let output = site.run("serve --config gateway.toml --remove-gate");
    assert!(String::from_utf8(output.stdout).unwrap().contains("no gate"));
}

#[test]
fn a_gate_opens_at_the_end_of_its_gateway_if_configured() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    let gateway = site.serve();
    assert!(!site.passes());
    gateway.end(Signal::SIGKILL);
    assert!(site.passes());
}

/// A sealed gate also has an egress filter. The filter remains after the end of the gateway, and is removed with the gate.
#[test]
fn a_sealed_gate_stays_closed_in_both_directions_until_it_is_removed() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.0.display());
    let site = site_with_gate("sealed", directory.path(), &pins);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let gateway = site.serve();
        assert!(!site.passes() && site.is_filtered());
        gateway.end(signal);
        assert!(!site.passes() && site.is_filtered(), "{signal}");
    }
    // A bound gate that replaces the sealed gate removes the egress filter.
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("sealed", "bound")).unwrap();
    site.serve().end(Signal::SIGTERM);
    assert!(!site.passes() && !site.is_filtered());
    std::fs::write(&path, text).unwrap();
    site.serve().end(Signal::SIGKILL);
    assert!(
        site.run("serve --config gateway.toml --remove-gate")
            .status
            .success()
    );
    assert!(site.passes() && !site.is_filtered());
}

#[test]
fn a_sealed_gate_opens_at_the_end_of_its_gateway_if_configured() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site_with_gate("sealed", directory.path(), "gate_on_exit = \"remove\"");
    let gateway = site.serve();
    assert!(!site.passes());
    gateway.end(Signal::SIGTERM);
    assert!(site.passes() && !site.is_filtered());
    let gateway = site.serve();
    gateway.end(Signal::SIGKILL);
    assert!(site.is_filtered(), "no process has removed the filter");
    // The filter passes traffic when the freshness value is older than 16 s.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !site.passes() {
        assert!(Instant::now() < deadline);
    }
    let gateway = site.serve();
    assert!(!site.passes(), "the next process replaces the gate");
    gateway.end(Signal::SIGTERM);
    assert!(site.passes() && !site.is_filtered());
}

/// If a new configuration does not replace a closed gate, `check` and `serve` report the gate's gateway and the remedy. The
/// removal works with the new configuration.
#[test]
fn a_closed_gate_is_reported_if_the_configuration_does_not_replace_the_gate() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.0.display());
    let site = site_with_gate("bound", directory.path(), &pins);
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    for (field, line) in [
        ("gate", "gate = \"off\""),
        ("dataplane", "gate = \"off\"\ndataplane = \"host\""),
        ("gate_on_exit", "gate = \"bound\"\ngate_on_exit = \"remove\""),
    ] {
        let changed_text = text.replace("gate = \"bound\"", line);
        std::fs::write(&path, &text).unwrap();
        let gateway = site.serve();
        std::fs::write(&path, &changed_text).unwrap();
        let output = site.run("check --machine gateway.toml");
        assert!(output.status.success(), "while the gateway runs: {output:?}");
        gateway.end(Signal::SIGKILL);
        for arguments in ["check --machine gateway.toml", "serve --config gateway.toml"] {
            let error = site.refused(arguments);
            let expected = format!("gateway.{field}: the gate that gateway 5 left is still on lo");
            assert!(
                error.contains(&expected) && error.contains("serve --config gateway.toml --remove-gate"),
                "{error}"
            );
        }
        assert!(!site.passes());
        let removed = site.run("serve --config gateway.toml --remove-gate");
        assert!(removed.status.success());
        assert_eq!(
            String::from_utf8(removed.stderr).unwrap(),
            "",
            "no message of libbpf"
        );
        assert!(site.passes());
        assert!(site.run("check --machine gateway.toml").status.success());
        let gate_count = std::fs::read_dir(filesystem.0.join("gates")).unwrap().count();
        assert_eq!(gate_count, 0, "the removal leaves nothing");
    }
}

#[test]
fn a_replaced_gate_of_another_gateway_is_reported() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.0.display());
    let site = site_with_gate("bound", directory.path(), &pins);
    site.serve().end(Signal::SIGKILL);
    let check_warnings = || {
        let checked = site.run("check --machine gateway.toml");
        assert!(checked.status.success());
        String::from_utf8(checked.stderr).unwrap()
    };
    assert_eq!(check_warnings(), "", "no warning about the own gate of gateway 5");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("id = 5", "id = 6")).unwrap();
    let warnings = check_warnings();
    assert!(
        warnings.contains("the gate that gateway 5 left is still on lo")
            && warnings.contains("gateway 6 replaces the gate"),
        "{warnings}"
    );
    // The pinned memory of gateway 5 can be removed, although gateway 6 now uses the interface of gateway 5.
    let memories = || {
        let entries = std::fs::read_dir(filesystem.0.join("gates")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.contains("-gateway-")).collect();
        names.sort();
        names
    };
    let memories_before = memories();
    assert_eq!(memories_before.len(), 1, "the memory of gateway 5");
    let gateway = site.serve();
    assert_eq!(memories().len(), 2);
    std::fs::write(&path, &text).unwrap();
    let error = site.refused("serve --config gateway.toml --remove-gate");
    assert!(error.contains("another gateway uses this directory"), "{error}");
    assert_eq!(memories().len(), 1);
    assert_ne!(memories(), memories_before, "the memory of gateway 6 remains");
    std::fs::write(&path, text.replace("id = 5", "id = 6")).unwrap();
    gateway.end(Signal::SIGKILL);
    assert_eq!(check_warnings(), "", "the gate now belongs to gateway 6");
}

/// A gateway without an interface does not start beside a closed gate either.
#[test]
fn a_gate_on_an_interface_outside_the_configuration_is_reported() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.0.display());
    let site = site_with_gate("bound", directory.path(), &pins);
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    site.serve().end(Signal::SIGKILL);
    let host_configuration = text
        .replace("interfaces = [\"lo\"]\n", "")
        .replace("gate = \"bound\"", "gate = \"off\"\ndataplane = \"host\"");
    std::fs::write(&path, host_configuration).unwrap();
    for arguments in ["check --machine gateway.toml", "serve --config gateway.toml"] {
        let error = site.refused(arguments);
        assert!(
            error.contains("gateway.dataplane: the gate that gateway 5 left is still on interface 1")
                && error.contains("where FILE names the interface in `interfaces`"),
            "{error}"
        );
    }
    std::fs::write(&path, text).unwrap();
    assert!(
        site.run("serve --config gateway.toml --remove-gate")
            .status
            .success()
    );
    assert!(site.passes());
}

/// If the peer of a veth has no XDP program, frames that XDP_TX sends into the veth are lost. `check` warns and names the remedy.
#[test]
fn check_warns_of_veth_interfaces() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.0.display());
    let site = site_with_gate("sealed", directory.path(), &pins);
    let link = || {
        let arguments = "link add inner0 type veth peer name inner1";
        Command::new("ip").args(arguments.split_whitespace()).status()
    };
    assert!(site.namespace.run(link).unwrap().unwrap().success());
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let interface_fields = "[\"lo\", \"inner0\"]\nforward_to = [\"inner1\"]";
    std::fs::write(&path, text.replace("[\"lo\"]", interface_fields)).unwrap();
    let output = site.run("check --machine gateway.toml");
    assert!(output.status.success());
    let warnings = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = warnings.lines().collect();
    assert_eq!(lines.len(), 2, "{warnings}");
    for (line, problem, requirement) in [
        (
            lines[0],
            "gateway.interfaces: inner0 is a veth",
            "GRO is not sufficient",
        ),
        (lines[1], "gateway.forward_to: inner1 is a veth", "or GRO;"),
    ] {
        assert!(
            line.contains(problem) && line.contains(requirement) && line.contains("xdpdrv obj pass.o"),
            "{line}"
        );
    }
}

#[test]
fn the_error_without_a_bpf_filesystem_names_the_remedy() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site(
        directory.path(),
        &format!("pin_directory = \"{}\"", directory.path().join("no").display()),
    );
    let error = site.refused("serve --config gateway.toml");
    assert!(
        error.contains("mount -t bpf -o mode=0700") && error.contains("gate_on_exit"),
        "{error}"
    );
    assert!(site.passes(), "no gate remains on the interface");
}

/// A user with write access to the pin directory could plant a gate that the next start would use.
#[test]
fn a_pin_directory_that_others_own_or_may_write_is_refused() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let gates = filesystem.0.join("gates");
    let site = site(
        directory.path(),
        &format!("pin_directory = \"{}\"", gates.display()),
    );
    let set_owner_and_mode = |path: &Path, uid: u32, mode: u32| {
        std::os::unix::fs::chown(path, Some(uid), None).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let assert_refused = |cause: &str, chmod: &str| {
        for arguments in ["check --machine gateway.toml", "serve --config gateway.toml"] {
            let error = site.refused(arguments);
            assert!(
                error.contains(cause) && error.contains(chmod),
                "{arguments}: {error}"
            );
        }
        assert!(site.passes(), "no program is attached");
    };
    // `mount -t bpf bpf` sets this mode: all users can add names, despite the sticky bit.
    set_owner_and_mode(&filesystem.0, 0, 0o1777);
    assert_refused("with mode 1777", "mode=0700");
    set_owner_and_mode(&filesystem.0, 0, 0o700);
    std::fs::create_dir(&gates).unwrap();
    set_owner_and_mode(&gates, 1234, 0o700);
    assert_refused("user 1234 owns it", "chown root");
    for mode in [0o770, 0o702] {
        set_owner_and_mode(&gates, 0, mode);
        assert_refused(&format!("with mode {mode:04o}"), "chmod go-w");
    }
    // One user other than root owns both directories, as after an installation of the package.
    set_owner_and_mode(&filesystem.0, 1234, 0o700);
    set_owner_and_mode(&gates, 1234, 0o700);
    assert!(site.run("check --machine gateway.toml").status.success());
    site.serve().end(Signal::SIGKILL);
    assert!(!site.passes(), "the gate stays closed");
    // A removal neither runs nor trusts the removed objects, so the removal works even if other users can write to the directory.
    set_owner_and_mode(&filesystem.0, 1234, 0o1777);
    let error = site.refused("serve --config gateway.toml");
    assert!(error.contains("with mode 1777"), "{error}");
    let removed = site.run("serve --config gateway.toml --remove-gate");
    assert!(removed.status.success() && site.passes(), "{removed:?}");
}

/// A changed configuration, or a configuration of another version, must not prevent the removal of a gate.
#[test]
fn a_gate_is_removed_by_a_configuration_that_cannot_start() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}\"", filesystem.0.join("gates").display());
    let site = site(directory.path(), &pins);
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let five_addresses = (1..=5)
        .map(|host| format!("\"127.0.0.{host}\""))
        .collect::<Vec<_>>();
    let invalid = text
        .replace("[\"127.0.0.0/8\"]", "[]\nunknown = true")
        .replace("slots = 16", "slots = 0")
        .replace("[\"127.0.0.1\"]", &format!("[{}]", five_addresses.join(", ")))
        .replace("[controller]", "[log]\nlevel = \"loud\"\n[unknown]")
        .replace("gate = \"bound\"", "gate = 7");
    site.serve().end(Signal::SIGKILL);
    assert!(!site.passes(), "the gate stays closed");
    std::fs::write(&path, &invalid).unwrap();
    site.refused("serve --config gateway.toml");
    let removed = site.run("serve --config gateway.toml --remove-gate");
    assert!(removed.status.success() && site.passes(), "{removed:?}");
    // The removal does not guess a missing setting.
    for (required, replacement) in [("id = 5\n", ""), ("interfaces = [\"lo\"]", "interfaces = 1")] {
        std::fs::write(&path, invalid.replace(required, replacement)).unwrap();
        site.refused("serve --config gateway.toml --remove-gate");
    }
}

/// A default that admits every address would disable the source check.
#[test]
fn an_interface_without_a_subnet_requires_device_prefixes() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    for arguments in [
        "link add port0 type veth peer name port1",
        "link add bridge0 type bridge",
        "link set port0 master bridge0",
    ] {
        site.ip(arguments);
    }
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path)
        .unwrap()
        .replace("[\"lo\"]", "[\"port0\"]");
    std::fs::write(&path, &text).unwrap();
    assert!(site.run("check --machine gateway.toml").status.success());
    let text = text.replace("device_prefixes = [\"127.0.0.0/8\"]\n", "");
    std::fs::write(&path, &text).unwrap();
    let assert_missing_prefixes = |arguments: &str| {
        let error = site.refused(arguments);
        let is_reported = error.contains("device_prefixes is missing: interface port0");
        assert!(
            is_reported && error.contains("device_prefixes = [\"192.0.2.0/24\""),
            "{error}"
        );
    };
    assert_missing_prefixes("check --machine gateway.toml");
    // Subnets of 32 bits have no room for other hosts.
    site.ip("address add 10.9.0.1/32 dev bridge0");
    site.ip("address add 10.9.0.2/32 dev port0");
    assert_missing_prefixes("check --machine gateway.toml");
    std::fs::write(&path, text.replace("addresses = [\"127.0.0.1\"]\n", "")).unwrap();
    assert_missing_prefixes("serve --config gateway.toml");
    std::fs::write(&path, &text).unwrap();
    site.ip("address add fd66::1/128 dev port0");
    site.ip("address add 10.9.0.3/24 dev bridge0");
    assert_missing_prefixes("check --machine gateway.toml");
    site.ip("address add fd66::2/64 dev bridge0");
    // Now `check` only warns, because services can be on another port of the bridge.
    let output = site.run("check --machine gateway.toml");
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{warnings}");
    for part in [
        "10.9.0.0/24 of bridge0",
        "device_prefixes = [\"10.9.0.0/24\", \"fd66::/64\"]",
    ] {
        assert!(warnings.contains(part), "{warnings}");
    }
    site.ip("link add port2 type veth peer name port3");
    site.ip("link set port2 master bridge0");
    let sealed = "gate = \"sealed\"\nforward_to = [\"port2\"]";
    std::fs::write(&path, text.replace("gate = \"bound\"", sealed)).unwrap();
    assert_missing_prefixes("check --machine gateway.toml");
}

/// A missing address, for example because of a slow DHCP server, must not end the gateway with exit code 2: the service manager
/// does not restart a gateway after this exit code.
#[test]
fn a_gateway_starts_before_its_interface_has_an_address_and_follows_address_changes() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    site.ip("link add port0 type veth peer name port1");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text
        .replace("[\"lo\"]", "[\"port0\"]")
        .replace("[\"127.0.0.1\"]", "[\"10.9.0.1\"]")
        .replace("device_prefixes = [\"127.0.0.0/8\"]\n", "");
    std::fs::write(&path, text).unwrap();
    let mut gateway = site.serve_to(Stdio::piped());
    let mut log = BufReader::new(gateway.0.stderr.take().unwrap()).lines();
    let mut read_log_until = |text: &str| -> Vec<String> {
        let mut log_lines = Vec::new();
        while log_lines.last().is_none_or(|line: &String| !line.contains(text)) {
            log_lines.push(log.next().expect(text).unwrap());
        }
        log_lines
    };
    read_log_until("interface port0, its bridge or bond, VLANs and macvlans have no address with a subnet");
    site.ip("address add 10.9.0.1/24 dev port0");
    let log_lines = read_log_until("device_prefixes=\"10.9.0.0/24\" excluded_addresses=2");
    assert!(
        !log_lines.iter().any(|line| line.contains("no subnet")),
        "the message is logged once: {log_lines:?}"
    );
    // The subnet of a macvlan on the interface, and a subnet within the first subnet.
    site.ip("link add link port0 name over0 type macvlan");
    site.ip("address add 10.9.7.1/24 dev over0");
    read_log_until("device_prefixes=\"10.9.0.0/24 10.9.7.0/24\" excluded_addresses=4");
    site.ip("address add 10.9.0.77/25 dev port0");
    read_log_until("device_prefixes=\"10.9.0.0/24 10.9.7.0/24\" excluded_addresses=6");
    site.ip("address flush dev port0");
    read_log_until("device_prefixes=\"10.9.7.0/24\" excluded_addresses=2");
    gateway.end(Signal::SIGTERM);
}

/// The kernel splits frames of 9,000 bytes into several buffers. A bound gate accepts these frames. A sealed gate needs
/// whole packets, and its error names the MTU.
#[test]
fn an_interface_with_jumbo_frames_is_served_by_a_bound_gate() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    site.ip("link add port0 mtu 9000 type veth peer name port1 mtu 9000");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("[\"lo\"]", "[\"port0\"]");
    std::fs::write(&path, &text).unwrap();
    site.serve().end(Signal::SIGTERM);
    std::fs::write(&path, text.replace("gate = \"bound\"", "gate = \"sealed\"")).unwrap();
    let error = site.refused("serve --config gateway.toml");
    assert!(error.contains("9000"), "{error}");
}

/// If the data plane ends by itself, the gateway ends too, so that a service manager can restart the gateway.
#[test]
fn an_interface_that_goes_away_ends_the_gateway() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let site = site(directory.path(), "gate_on_exit = \"remove\"");
    site.ip("link add gone0 type veth peer name gone1");
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[\"lo\"]", "[\"lo\", \"gone0\"]")).unwrap();
    let mut gateway = site.serve();
    site.ip("link delete gone0");
    assert_eq!(gateway.0.wait().unwrap().code(), Some(1));
}

/// An interface that was removed from the configuration keeps the program of the gate: the start reports the interface.
#[test]
fn an_interface_removed_from_the_configuration_is_reported() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let filesystem = BpfFilesystem::mount(directory.path().join("bpf"));
    let pins = format!("pin_directory = \"{}/gates\"", filesystem.0.display());
    let site = site(directory.path(), &pins);
    let link = || {
        let arguments = "link add stray0 type veth peer name stray1";
        Command::new("ip").args(arguments.split_whitespace()).status()
    };
    assert!(site.namespace.run(link).unwrap().unwrap().success());
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("[\"lo\"]", "[\"lo\", \"stray0\"]")).unwrap();
    site.serve().end(Signal::SIGKILL);
    std::fs::write(&path, text).unwrap();
    let mut command = site.command("serve --config gateway.toml --json");
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = site.namespace.run(|| command.spawn().unwrap()).unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let gateway = Gateway(child);
    assert!(
        lines
            .map(Result::unwrap)
            .any(|line| line.contains("an interface that the configuration does not name"))
    );
    drop(gateway);
}
