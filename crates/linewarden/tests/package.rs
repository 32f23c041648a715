//! The Debian package: built, inspected, installed on a private machine under its own systemd, upgraded, removed and purged; and
//! the capabilities of a started gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "package/machine.rs"]
mod machine;
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use linewarden_lab::capability::{self, FOR_LOAD_GENERATOR};
use nix::sys::signal::Signal;

use self::machine::Machine;
use self::support::{Namespace, PROGRAM, Process, linewarden, run, write_controller_config};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Capability bounding set of the gateway's unit: CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF.
const GATEWAY_CAPABILITIES: u64 = (1 << 12) | (1 << 13) | (1 << 38) | (1 << 39);

/// Builds a package that contains the tested program; returns the package's path.
fn build(version: &str, out: &Path) -> PathBuf {
    let mut command = Command::new(format!("{ROOT}/scripts/deb"));
    command.args(["--quick", "--program", PROGRAM, "--version", version, "--out"]);
    command.arg(out);
    PathBuf::from(run(command).trim())
}

fn run_on_package(program: &str, arguments: &[&str], package: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).arg(package);
    run(command)
}

/// Performs the relevant checks of lintian.
fn inspect(package: &Path, directory_path: &Path) {
    let control = run_on_package("dpkg-deb", &["--field"], package);
    for field in ["Package: linewarden\n", "Version: 0.1.0-1\n", "Section: net\n"] {
        assert!(control.contains(field), "{control}");
    }
    let depends = control
        .lines()
        .find(|line| line.starts_with("Depends: "))
        .unwrap();
    for library in ["libc6 (>= ", "libelf1", "zlib1g", "libtss2-esys", "adduser"] {
        assert!(depends.contains(library), "{depends}");
    }
    let contents = run_on_package("dpkg-deb", &["--contents"], package);
    for line in contents.lines() {
        assert!(line[10..].starts_with(" root/root "), "{line}");
        let mode = &line[1..10];
        assert!(["rwxr-xr-x", "rw-r--r--"].contains(&mode), "{line}");
        let name = line.rsplit(' ').next().unwrap();
        assert!(
            name.starts_with("./usr/")
                || name.starts_with("./etc/")
                || ["./", "./usr/", "./etc/"].contains(&name)
        );
    }
    for file in [
        "/usr/bin/linewarden",
        "/usr/lib/systemd/system/linewarden-gateway.service",
        "/usr/share/doc/linewarden/copyright",
        "/usr/share/doc/linewarden/changelog.Debian.gz",
        "/usr/share/doc/linewarden/operations/README.md",
        "/usr/share/doc/linewarden/examples/linewarden.rules.yml",
        "/usr/share/man/man1/linewarden.1.gz",
        "/usr/share/man/man1/linewarden-registry-create.1.gz",
        "/usr/share/man/man5/linewarden-gateway.toml.5.gz",
        "/usr/share/bash-completion/completions/linewarden",
    ] {
        assert!(contents.contains(&format!(".{file}\n")), "no {file}:\n{contents}");
    }
    let tree = directory_path.join("tree");
    run({
        let mut command = Command::new("dpkg-deb");
        command.arg("--raw-extract").arg(package).arg(&tree);
        command
    });
    run({
        let mut command = Command::new("md5sum");
        command
            .args(["--check", "--quiet", "DEBIAN/md5sums"])
            .current_dir(&tree);
        command
    });
    let conffiles = std::fs::read_to_string(tree.join("DEBIAN/conffiles")).unwrap();
    assert_eq!(conffiles, "/etc/logrotate.d/linewarden\n");
    for script in ["postinst", "prerm", "postrm"] {
        run({
            let mut command = Command::new("sh");
            command.arg("-n").arg(tree.join("DEBIAN").join(script));
            command
        });
    }
}

#[test]
fn the_examples_are_valid_configurations() {
    let directory = format!("{ROOT}/deploy/examples");
    let mut example_count = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let mut command = Command::new(PROGRAM);
        command.arg("check").arg(&path);
        assert!(run(command).contains(": valid"), "{}", path.display());
        example_count += 1;
    }
    assert_eq!(example_count, 5);
}

/// Maximum exposure level of each unit by `systemd-analyze security`, from 0 (best) to 10.
const EXPOSURE_MAX: [(&str, f64); 3] = [("controller", 1.5), ("gateway", 2.5), ("agent", 2.0)];

#[test]
fn the_exposure_levels_of_the_units_are_low() {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        println!("SKIPPED: no systemd-analyze");
        return;
    }
    for (service, exposure_max) in EXPOSURE_MAX {
        let unit = format!("{ROOT}/deploy/systemd/linewarden-{service}.service");
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", &unit]);
        let text = run(command);
        let overall = text
            .lines()
            .find(|line| line.contains("Overall exposure level"))
            .unwrap();
        println!("{overall}");
        let exposure: f64 = overall
            .rsplit(": ")
            .next()
            .and_then(|exposure| exposure.split(' ').next())
            .unwrap()
            .parse()
            .unwrap();
        assert!(exposure <= exposure_max, "{text}");
    }
}

/// The capability set `name` of each thread, from the threads' status files in `/proc`.
fn capability_sets(status: &str, name: &str) -> Vec<u64> {
    let sets = status.lines().filter_map(|line| line.strip_prefix(name));
    sets.map(|set| u64::from_str_radix(set.trim(), 16).unwrap())
        .collect()
}

/// Asserts that `status` contains at least `threads_min` threads, and that their capability set `name` is `expected`.
#[track_caller]
fn assert_all_sets(status: &str, name: &str, expected: u64, threads_min: usize) {
    let sets = capability_sets(status, name);
    assert!(sets.len() >= threads_min, "{status}");
    assert!(
        sets.iter().all(|set| *set == expected),
        "{name}{sets:x?}, not {expected:x}"
    );
}

/// The controller's response to an unencrypted health check.
fn health(machine: &Machine) -> String {
    let request_health = || {
        let mut stream = TcpStream::connect("127.0.0.1:20561").unwrap();
        write!(
            stream,
            "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    machine.network().run(request_health).unwrap()
}

/// Carries out the steps of `docs/operations/first-fleet.md`.
fn first_fleet(machine: &Machine) {
    machine.run("cp /usr/share/doc/linewarden/examples/controller.toml /etc/linewarden/controller.toml");
    machine.run(
        "cp /usr/share/doc/linewarden/examples/gateway-of-controllers.toml /etc/linewarden/gateway.toml",
    );
    machine.run(r"printf '[attest]\nprovers = 100\n' >>/etc/linewarden/gateway.toml");
    machine.run("sed -i '1i 127.0.0.1 ctl-a.example' /etc/hosts");
    machine.linewarden("certificate ca --out pki");
    machine.linewarden("certificate controller --ca pki --name ctl-a.example --out ctl-a");
    machine.linewarden("certificate gateway --ca pki --id 7 --out gateway-7");
    machine.linewarden("registry create --registry fleet.registry --key-file master.key");
    machine.run("cp -p /var/lib/linewarden/pki/ca.pem /var/lib/linewarden/ca.pem");
    let token = machine.linewarden("user create alice --role admin --config /etc/linewarden/controller.toml");
    assert!(token.starts_with("lw_"), "{token}");
    machine.systemctl("start linewarden-controller");
    assert!(health(machine).starts_with("HTTP/1.1 200"));
    machine.linewarden(
        "device enroll simulated --device d1 --rows 200 --out devices --gateway 10.7.0.1 --interface eth0 \
         --registry fleet.registry --key-file master.key",
    );
    machine.linewarden("check --machine /etc/linewarden/controller.toml");
    machine.systemctl("start linewarden-gateway");
}

/// The status files in `/proc` of all threads of a service.
fn thread_status(machine: &Machine, unit: &str) -> String {
    let pid = machine.main_pid(unit);
    machine.run(&format!("cat /proc/{pid}/task/*/status"))
}

/// Asserts that the threads of a service have no capabilities, this bounding set, the service's user, and a system call filter.
fn assert_confined(machine: &Machine, unit: &str, bounds: u64) {
    let status = thread_status(machine, unit);
    // The agent has one thread in addition to its main thread.
    let threads_min = if unit == "linewarden-agent" { 2 } else { 4 };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_all_sets(&status, set, 0, threads_min);
    }
    assert_all_sets(&status, "CapBnd:", bounds, threads_min);
    let user = machine.run("id -u linewarden");
    for (line, value) in [("NoNewPrivs:", "1"), ("Seccomp:", "2"), ("Uid:", user.trim())] {
        let mut lines = status.lines().filter_map(|shown| shown.strip_prefix(line));
        assert!(
            lines.all(|shown| shown.split_whitespace().next() == Some(value)),
            "{line} {status}"
        );
    }
}

/// This test needs no private machine, because it does not install the package.
#[test]
fn a_package_contains_the_expected_files() {
    let directory = tempfile::tempdir().unwrap();
    let package = build("0.1.0-1", directory.path());
    inspect(&package, directory.path());
}

#[test]
fn a_package_is_installed_runs_is_upgraded_and_is_purged_completely() {
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let (machine, device) = match (Machine::start(directory_path), Namespace::new()) {
        (Ok(machine), Some(device)) => (machine, device),
        (Err(reason), _) => return println!("SKIPPED: {reason}"),
        (_, None) => return println!("SKIPPED: no network namespaces"),
    };
    if let Err(missing) = capability::require(FOR_LOAD_GENERATOR) {
        return println!("SKIPPED: {missing}");
    }
    build("0.0.9-1", directory_path);
    build("0.1.0-1", directory_path);

    machine.run("dpkg --install /mnt/linewarden_0.0.9-1_*.deb");
    machine.run("linewarden --version");
    assert_eq!(
        machine.run("stat -c '%U %G %a' /etc/linewarden /var/lib/linewarden"),
        "root linewarden 750\nlinewarden linewarden 700\n"
    );
    // Without a configuration, no unit starts, not even by `systemctl start`.
    for unit in ["controller", "gateway", "agent"] {
        machine.systemctl(&format!("start linewarden-{unit}"));
        let state = machine.try_run(&format!("systemctl is-active linewarden-{unit}"));
        assert_eq!(state.stdout, b"inactive\n", "{unit}");
    }

    let (machine_pid, device_pid) = (machine.pid().to_string(), device.pid().to_string());
    run({
        let mut command = Command::new("nsenter");
        command.args([
            "--net",
            "--target",
            &machine_pid,
            "ip",
            "link",
            "add",
            "eth1",
            "type",
            "veth",
        ]);
        command.args(["peer", "name", "eth0", "netns", &device_pid]);
        command
    });
    machine.run("ip address add 10.7.0.1/24 dev eth1; ip link set eth1 up");
    device.run(directory_path, "ip address add 10.7.0.2/24 dev eth0");
    device.run(directory_path, "ip link set eth0 up");
    let _pass = device.accept_xdp(directory_path, "eth0");
    first_fleet(&machine);
    assert_confined(&machine, "linewarden-controller", 0);
    assert_confined(&machine, "linewarden-gateway", GATEWAY_CAPABILITIES);
    // The gateway's unit permits `taskset`, because the data plane `host` pins each packet thread to a CPU. The controller's unit
    // does not permit `taskset`.
    let taskset_command = "/usr/bin/taskset -c 0 /bin/true";
    assert!(succeeds_in_unit(&machine, "linewarden-gateway", taskset_command));
    assert!(!succeeds_in_unit(
        &machine,
        "linewarden-controller",
        taskset_command
    ));

    // The gateway has dropped the capabilities of its start. A reload still takes effect, new devices authenticate, and sessions
    // continue.
    machine.run("sed -i 's/^gate = .*/&\\nsession_lifetime_s = 2/' /etc/linewarden/gateway.toml");
    machine.systemctl("reload linewarden-gateway");
    machine.run(
        r#"exec bash -c 'exec 3< <(exec tail -n +1 -F /var/log/linewarden/gateway.jsonl); timeout 60 grep -q -m 1 \"reloaded\" <&3; s=$?; kill $!; exit $s'"#,
    );
    machine.run("cp -r /var/lib/linewarden/devices /mnt/devices; chown -R root: /mnt/devices");
    let agent = device.start(
        &directory_path.join("devices"),
        "agent --config 00000000000000d1.toml --json",
    );
    for _ in 0..3 {
        agent.event("authenticated");
    }

    upgrade(&machine, &agent);
    drop(agent);
    attest(&machine, &device);
    show_evidence(&machine);
    serve_without_a_network(&machine);
    for unit in ["controller", "gateway", "agent"] {
        let restarts = machine.run(&format!(
            "systemctl show --property NRestarts --value linewarden-{unit}"
        ));
        assert_eq!(restarts, "0\n", "{unit} has ended by itself");
    }
    remove(&machine);
}

fn upgrade(machine: &Machine, agent: &Process) {
    machine.run("echo '# ours' >>/etc/logrotate.d/linewarden");
    let checksum_command =
        "sha256sum /etc/linewarden/* /etc/logrotate.d/linewarden /var/lib/linewarden/master.key";
    let before = (
        machine.run(checksum_command),
        machine.main_pid("linewarden-gateway"),
    );
    machine.run("dpkg --install /mnt/linewarden_0.1.0-1_*.deb");
    assert_eq!(machine.run(checksum_command), before.0);
    for unit in ["linewarden-controller", "linewarden-gateway"] {
        machine.systemctl(&format!("is-active {unit}"));
    }
    assert_ne!(machine.main_pid("linewarden-gateway"), before.1);
    assert_confined(machine, "linewarden-gateway", GATEWAY_CAPABILITIES);
    for _ in 0..2 {
        agent.event("authenticated");
    }
    let state = machine.try_run("systemctl is-active linewarden-agent");
    assert_eq!(state.stdout, b"inactive\n");
}

/// Whether a command succeeds with all settings of a unit of the package, except the settings of the unit's start.
fn succeeds_in_unit(machine: &Machine, unit: &str, command: &str) -> bool {
    let start =
        "-e 's/^Type=.*/Type=oneshot/' -e '/^ExecStartPre=/d' -e '/^Restart/d' -e '/^RuntimeDirectory/d'";
    machine.run(&format!(
        "sed {start} -e 's#^ExecStart=.*#ExecStart={command}#' /usr/lib/systemd/system/{unit}.service \
         >/etc/systemd/system/probe.service"
    ));
    machine.run("systemctl daemon-reload; systemctl reset-failed probe.service 2>/dev/null || true");
    machine.try_run("systemctl start probe.service").status.success()
}

/// A user's directory on the test's machine.
const HOME: &str = concat!("/home", "/sensor");
/// Paths that the agent measures: a path through a link, a home directory, a directory of kernel modules, a link, and a missing
/// file.
const MEASURED_PATHS: [&str; 5] = [
    "/bin/linewarden",
    HOME,
    "/usr/lib/modules/test",
    "/etc/sensor.d/link",
    "/srv/absent",
];

/// Runs the agent with all settings of the package's unit, but in the device's network. In this sandbox, the agent measures the
/// same configuration as outside, and proves the configuration to the gateway.
fn attest(machine: &Machine, device: &Namespace) {
    let registry = "--registry fleet.registry --key-file master.key";
    machine.run(&format!("install -D -m 755 /bin/true {HOME}/bin/sensord"));
    machine.run("install -D -m 644 /etc/hosts /usr/lib/modules/test/sensor.ko");
    machine.run("mkdir -p /etc/sensor.d; ln -s /proc/self/mounts /etc/sensor.d/link");
    machine.run("cp /var/lib/linewarden/devices/00000000000000d1.toml /etc/linewarden/agent.toml");
    machine.run(r#"sed -i -E 's#^((helper|seed_file) = ")#\1/var/lib/linewarden/devices/#' /etc/linewarden/agent.toml"#);
    let files = MEASURED_PATHS.map(|path| format!("\"{path}\"")).join(", ");
    machine.run(&format!(
        "printf '%s\n' '[attest]' 'key = \"/var/lib/linewarden/d1.attest-key\"' 'files = [{files}]' >>/etc/linewarden/agent.toml"
    ));
    let measured =
        machine.linewarden("attest measure --config /etc/linewarden/agent.toml --out d1.reference");
    for line in [
        &format!("{HOME}/bin/sensord: file 0755"),
        "/usr/lib/modules/test/sensor.ko: file 0644",
        "/srv/absent: absent",
    ] {
        assert!(measured.contains(line), "{measured}");
    }
    machine.linewarden(&format!(
        "attest group set pumps --reference d1.reference --every 1 {registry}"
    ));
    machine.linewarden(&format!(
        "attest enroll d1 --group pumps --software --key-out d1.attest-key {registry}"
    ));
    machine.bind_network_namespace(device.pid(), "/run/device.net");
    machine.run("mkdir -p /etc/systemd/system/linewarden-agent.service.d");
    machine.run(r"printf '[Service]\nNetworkNamespacePath=/run/device.net\n' >/etc/systemd/system/linewarden-agent.service.d/network.conf");
    machine.run("cp -r /etc/systemd/system/linewarden-agent.service.d /etc/systemd/system/probe.service.d");
    let check = "/usr/bin/linewarden check --machine /etc/linewarden/agent.toml";
    assert!(succeeds_in_unit(machine, "linewarden-agent", check));
    machine.systemctl("start linewarden-agent");
    assert_confined(machine, "linewarden-agent", 0);
    let h = measured.lines().find_map(|line| line.strip_prefix("h ")).unwrap();
    machine.wait_for_output(&format!(
        "attested to gateway 7 in period [0-9]*: configuration {h}"
    ));
    machine.linewarden(&format!("attest round pumps --wait 60 {registry}"));
    let status = machine.linewarden(&format!("attest status d1 {registry}"));
    assert!(status.contains(" ok"), "{status}");
    let status = machine.run("systemctl show --property StatusText --value linewarden-agent");
    assert!(status.starts_with("attested to gateway 7"), "{status}");

    // A path that cannot be measured is an error that the service manager and the log show.
    machine.run(&format!(
        "chmod 700 {HOME}/bin; systemctl restart linewarden-agent"
    ));
    machine.wait_for_output(&format!(
        "ERROR.*measurement failed.*{HOME}/bin cannot be read: Permission denied"
    ));
    machine.wait_for_output(&format!(
        "attestation failed: {HOME}/bin cannot be read: Permission denied"
    ));
    let status = machine.run("systemctl show --property StatusText --value linewarden-agent");
    let denied = format!("attestation failed: {HOME}/bin cannot be read: Permission denied");
    assert!(status.starts_with(&denied), "{status}");
    assert!(!succeeds_in_unit(machine, "linewarden-agent", check));
    machine.run("rm -r /etc/systemd/system/probe.service*");
    machine.systemctl("stop linewarden-agent");
    machine.run(&format!(
        "umount /run/device.net; rm -r {HOME} /usr/lib/modules/test /etc/sensor.d"
    ));
}

/// Runs the gateway with all settings of the package's unit, and with the additional capability that `[evidence]` needs. In this
/// sandbox, the gateway measures its data plane, and serves evidence at the socket in the unit's directory.
fn show_evidence(machine: &Machine) {
    let drop_in = "/etc/systemd/system/linewarden-gateway.service.d";
    machine.linewarden("evidence key --out gateway.evidence-key");
    machine.run(&format!(
        r"mkdir -p {drop_in}; printf '[Service]\nAmbientCapabilities=CAP_SYS_ADMIN\nCapabilityBoundingSet=CAP_SYS_ADMIN\n' \
         >{drop_in}/evidence.conf"
    ));
    machine.run(
        r#"printf '[evidence]\nkey = "/var/lib/linewarden/gateway.evidence-key"\nboot_count = "/var/lib/linewarden/boot-count"\nsocket = "/run/linewarden/evidence.sock"\n' >>/etc/linewarden/gateway.toml"#,
    );
    machine.systemctl("daemon-reload");
    machine.systemctl("restart linewarden-gateway");
    machine.linewarden(
        "evidence export --socket /run/linewarden/evidence.sock --out s.cose --inventory s.inventory",
    );
    machine.run(&format!("rm -r {drop_in}; systemctl daemon-reload"));
}

/// Runs controller and gateway with the examples for one machine: in the sandboxes of their units, the gateway reaches the
/// controller's socket.
fn serve_without_a_network(machine: &Machine) {
    machine.systemctl("stop linewarden-gateway linewarden-controller");
    machine.run("linewarden serve --config /etc/linewarden/gateway.toml --remove-gate");
    for (example, name) in [
        ("controller-local.toml", "controller.toml"),
        ("gateway.toml", "gateway.toml"),
    ] {
        machine.run(&format!(
            "cp /usr/share/doc/linewarden/examples/{example} /etc/linewarden/{name}"
        ));
    }
    machine.linewarden("check --machine /etc/linewarden/controller.toml");
    machine.systemctl("start linewarden-controller linewarden-gateway");
    machine.run(
        "timeout 60 sh -c 'until runuser -u linewarden -- linewarden gateway show 1 --config /etc/linewarden/controller.toml | grep -qw connected; \
         do sleep 0.2; done'",
    );
    let socket = machine.run("stat -c '%U %a %F' /run/linewarden-controller/controller.sock");
    assert_eq!(socket, "linewarden 600 socket\n");
    let listening = machine.run("ss --listening --tcp --numeric --no-header --processes");
    assert!(!listening.contains("linewarden"), "{listening}");
    assert_confined(machine, "linewarden-controller", 0);
    assert_confined(machine, "linewarden-gateway", GATEWAY_CAPABILITIES);
}

fn remove(machine: &Machine) {
    assert!(machine.run("ip link show eth1").contains("xdp"));
    machine.run("dpkg --remove linewarden");
    // No process runs, no gate is closed, and the administrator's files remain.
    assert!(!machine.run("ip link show eth1").contains("xdp"));
    let running =
        machine.try_run("systemctl list-units --no-legend --state active 'linewarden-*' 'run-linewarden*'");
    assert_eq!(String::from_utf8(running.stdout).unwrap(), "");
    machine.run("test ! -e /usr/bin/linewarden && test -e /etc/linewarden/gateway.toml && test -e /var/lib/linewarden/master.key");
    machine.run("dpkg --purge linewarden");
    // The directory that `-prune` skips belongs to the test.
    let remaining = machine.run(
        "find /etc /usr /var /run -path /etc/systemd/system/linewarden-.service.d -prune -o -cnewer /mnt/ready -name '*linewarden*' -print",
    );
    assert_eq!(remaining, "");
    assert!(
        !machine
            .try_run("getent passwd linewarden || getent group linewarden")
            .status
            .success()
    );
}

/// Starts a gateway as root without a unit. The loopback interface of the namespace is the interface to the devices.
fn start_as_root(namespace: &Namespace, directory_path: &Path, section: &str) -> Process {
    let text = format!(
        "[gateway]\nid = 3\naddresses = [\"127.0.0.1\"]\nslots = 100\nsession_lifetime_s = 2\n{section}\n\
         [controller]\nsocket = \"controller.sock\"\n[audit]\npath = \"audit.jsonl\"\n"
    );
    std::fs::write(directory_path.join("gateway.toml"), text).unwrap();
    let gateway = namespace.start(
        directory_path,
        "serve --config gateway.toml --json --status-interval 1",
    );
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    gateway
}

/// Capability to use files of any owner.
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_NET_ADMIN: u64 = 1 << 12;

#[test]
fn a_gateway_drops_the_capabilities_of_its_start() {
    if let Err(missing) = capability::require(FOR_LOAD_GENERATOR) {
        return println!("SKIPPED: {missing}");
    }
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let namespace = Namespace::new().unwrap();
    run(linewarden(
        directory_path,
        "registry create --registry fleet.registry --key-file master.key",
    ));
    write_controller_config(directory_path);
    let _controller = namespace.start_controller(directory_path);
    let xdp = "dataplane = \"xdp\"\ninterfaces = [\"lo\"]";
    let bound_gate = "gate = \"bound\"\ngate_on_exit = \"remove\"";
    let sealed_gate = "gate = \"sealed\"\ngate_on_exit = \"remove\"";
    for (section, kept_capabilities) in [
        ("dataplane = \"host\"", CAP_DAC_OVERRIDE),
        (xdp, CAP_DAC_OVERRIDE),
        (&format!("{xdp}\n{bound_gate}"), CAP_DAC_OVERRIDE),
        // The gateway keeps CAP_NET_ADMIN to remove its egress filter at the end.
        (&format!("{xdp}\n{sealed_gate}"), CAP_DAC_OVERRIDE | CAP_NET_ADMIN),
    ] {
        let gateway = start_as_root(&namespace, directory_path, section);
        let mut status = String::new();
        for thread in std::fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap() {
            let thread = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            // Packet threads of the host data plane have no capabilities.
            let is_packet_thread = thread.starts_with("Name:\tlw-host");
            let expected = if is_packet_thread { 0 } else { kept_capabilities };
            for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
                assert_eq!(
                    capability_sets(&thread, set),
                    [expected],
                    "{section}: {set} {thread}"
                );
            }
            status.push_str(&thread);
        }
        assert_all_sets(&status, "CapInh:", 0, 4);
        gateway.signal(Signal::SIGHUP);
        gateway.event("reloaded");
        let lines = gateway.terminate();
        assert_eq!(lines.last().unwrap()["unused_rows_reported"], true, "{section}");
        let remaining = namespace.run(directory_path, "ip link show lo")
            + &namespace.run(directory_path, "tc filter show dev lo egress");
        assert!(
            !remaining.contains("xdp") && !remaining.contains("linewarden"),
            "{section}: {remaining}"
        );
    }
}
