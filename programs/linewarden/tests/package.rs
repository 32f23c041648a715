//! The Debian packages: built, inspected, installed on a private machine under its own systemd, upgraded, removed and purged; and
//! the capabilities of a started gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[macro_use(test)]
extern crate linewarden_harness;

#[path = "package/contents.rs"]
mod contents;
#[path = "package/machine.rs"]
mod machine;
#[allow(dead_code, reason = "the other test programs use the other parts")]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use linewarden_lab::capability::FOR_LOAD_GENERATOR;
use nix::sys::signal::Signal;

use self::machine::Machine;
use self::support::{Namespace, PROGRAMS, Process, command, program, require, run, write_controller_config};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Capability bounding set of the gateway's unit: CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF.
const GATEWAY_CAPABILITIES: u64 = (1 << 12) | (1 << 13) | (1 << 38) | (1 << 39);

/// The roles with a service.
const ROLES: [&str; 3] = ["controller", "gateway", "agent"];

fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}

/// Builds the packages that contain the tested programs; returns the paths of the packages.
fn build(version: &str, out: &Path) -> Vec<PathBuf> {
    let mut command = Command::new(format!("{ROOT}/scripts/deb"));
    let programs = PROGRAMS.map(program);
    command.args(["--quick", "--version", version, "--programs"]);
    command.arg(programs[0].parent().unwrap()).arg("--out").arg(out);
    let packages: Vec<PathBuf> = run(command).lines().map(PathBuf::from).collect();
    assert_eq!(packages.len(), PROGRAMS.len());
    packages
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

/// Installs an example as the configuration of the service with this role.
fn install_example(machine: &Machine, role: &str, example: &str) {
    machine.run(&format!(
        "install -m 640 -g linewarden-{role} /usr/share/doc/linewarden-{role}/examples/{example} /etc/linewarden/{role}.toml"
    ));
}

/// Carries out the steps of `docs/operations/first-fleet.md`, with controller, gateway and CA on one machine.
fn first_fleet(machine: &Machine) {
    install_example(machine, "controller", "controller.toml");
    install_example(machine, "gateway", "gateway-of-controllers.toml");
    machine.run(r"printf '[attest]\nprovers = 100\n' >>/etc/linewarden/gateway.toml");
    machine.run("sed -i '1i 127.0.0.1 ctl-a.example' /etc/hosts");
    for certificate in [
        "ca --out pki",
        "controller --ca pki --name ctl-a.example --out ctl-a",
        "gateway --ca pki --id 7 --out gateway-7",
    ] {
        machine.run(&format!("cd /mnt; linewarden certificate {certificate}"));
    }
    for (role, name) in [("controller", "ctl-a"), ("gateway", "gateway-7")] {
        for file in [&format!("{name}.pem"), &format!("{name}.key"), "pki/ca.pem"] {
            machine.give(role, &format!("/mnt/{file}"));
        }
    }
    machine.run_as(
        "controller",
        "linewarden registry create --registry fleet.registry --key-file master.key",
    );
    let token = machine.run_as(
        "controller",
        "linewarden user create alice --role admin --config /etc/linewarden/controller.toml",
    );
    assert!(token.starts_with("lw_"), "{token}");
    machine.systemctl("start linewarden-controller");
    assert!(health(machine).starts_with("HTTP/1.1 200"));
    machine.run_as(
        "controller",
        "linewarden device enroll simulated --device d1 --rows 200 --out devices --gateway 10.7.0.1 --interface eth0 \
         --registry fleet.registry --key-file master.key",
    );
    machine.run_as(
        "controller",
        "linewarden-controller check --machine /etc/linewarden/controller.toml",
    );
    machine.systemctl("start linewarden-gateway");
}

/// Asserts that no service can read the secrets and the configurations of the other services on the machine.
fn assert_separated(machine: &Machine) {
    machine.run("touch /var/lib/linewarden-agent/secret");
    let secrets = [
        ("controller", "/var/lib/linewarden-controller/master.key"),
        ("controller", "/var/lib/linewarden-controller/fleet.registry"),
        ("controller", "/etc/linewarden/controller.toml"),
        ("gateway", "/var/lib/linewarden-gateway/gateway-7.key"),
        ("gateway", "/var/log/linewarden-gateway/gateway.jsonl"),
        ("gateway", "/etc/linewarden/gateway.toml"),
        ("agent", "/var/lib/linewarden-agent/secret"),
    ];
    machine.run("chown linewarden-agent: /var/lib/linewarden-agent/secret");
    for role in ROLES {
        for (owner, file) in secrets {
            let is_readable = machine.succeeds_as(role, &format!("cat {file}"));
            assert_eq!(is_readable, role == owner, "{role} reads {file}");
        }
        for owner in ROLES {
            let is_listed = machine.succeeds_as(role, &format!("ls /var/lib/linewarden-{owner}"));
            assert_eq!(is_listed, role == owner, "{role} lists the directory of {owner}");
        }
    }
    machine.run("rm /var/lib/linewarden-agent/secret");
}

/// The status files in `/proc` of all threads of a service.
fn thread_status(machine: &Machine, unit: &str) -> String {
    let pid = machine.main_pid(unit);
    machine.run(&format!("cat /proc/{pid}/task/*/status"))
}

/// Asserts that the threads of a service have no capabilities, this bounding set, the user of this service, and a system call filter.
fn assert_confined(machine: &Machine, unit: &str, bounds: u64) {
    let status = thread_status(machine, unit);
    // The agent has one thread in addition to its main thread.
    let threads_min = if unit == "linewarden-agent" { 2 } else { 4 };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_all_sets(&status, set, 0, threads_min);
    }
    assert_all_sets(&status, "CapBnd:", bounds, threads_min);
    let user = machine.run(&format!("id -u {unit}"));
    for (line, value) in [("NoNewPrivs:", "1"), ("Seccomp:", "2"), ("Uid:", user.trim())] {
        let mut lines = status.lines().filter_map(|shown| shown.strip_prefix(line));
        assert!(
            lines.all(|shown| shown.split_whitespace().next() == Some(value)),
            "{line} {status}"
        );
    }
}

#[test]
fn each_package_is_installed_and_purged_alone() {
    let directory = tempfile::tempdir().unwrap();
    let machine = Machine::require(directory.path());
    build("0.1.0-1", directory.path());
    for name in PROGRAMS {
        let role = name.trim_start_matches("linewarden").trim_start_matches('-');
        let has_service = ROLES.contains(&role);
        // A configuration that exists before the first installation gets the group of the service.
        let config = format!("/etc/linewarden/{role}.toml");
        if has_service {
            machine.run(&format!("mkdir -p /etc/linewarden; touch {config}"));
        }
        machine.run(&format!("dpkg --install /mnt/{name}_0.1.0-1_*.deb"));
        assert!(machine.run(&format!("{name} --version")).starts_with(name));
        if has_service {
            let status = machine.run(&format!(
                "stat -c '%U %G %a' /etc/linewarden {config} /var/lib/{name}"
            ));
            assert_eq!(
                status,
                format!("root root 755\nroot {name} 640\n{name} {name} 700\n")
            );
            // An upgrade does not change the choice of the administrator.
            machine.run(&format!("chmod 644 {config}; chgrp root {config}"));
            machine.run(&format!("dpkg --install /mnt/{name}_0.1.0-1_*.deb"));
            assert_eq!(machine.run(&format!("stat -c '%G %a' {config}")), "root 644\n");
        }
        machine.run(&format!("dpkg --purge {name}"));
        assert_nothing_remains(&machine);
    }
    run_a_controller_without_a_gateway(&machine);
}

/// Without the package of the gateway, the unit of the controller has its own user namespace, and the group of the gateway does not
/// exist.
fn run_a_controller_without_a_gateway(machine: &Machine) {
    machine.run("dpkg --install /mnt/linewarden_0.1.0-1_*.deb /mnt/linewarden-controller_0.1.0-1_*.deb");
    install_example(machine, "controller", "controller-local.toml");
    machine.run_as(
        "controller",
        "linewarden registry create --registry fleet.registry --key-file master.key",
    );
    let start = machine.try_run("systemctl start linewarden-controller");
    assert!(!start.status.success());
    machine
        .wait_for_output("controller.toml:.*service.socket_group: group .linewarden-gateway. does not exist");
    let property = "systemctl show --value --property";
    assert_eq!(
        machine.run(&format!("{property} ExecMainStatus linewarden-controller")),
        "2\n"
    );
    machine.run("sed -i '/^socket_group/d' /etc/linewarden/controller.toml");
    machine.systemctl("start linewarden-controller");
    assert_eq!(
        machine.run(&format!("{property} PrivateUsers linewarden-controller")),
        "yes\n"
    );
    assert_eq!(
        machine
            .run("stat -c '%U %G %a' /run/linewarden-controller /run/linewarden-controller/controller.sock"),
        "linewarden-controller linewarden-controller 700\nlinewarden-controller linewarden-controller 600\n"
    );
    machine.run("dpkg --purge linewarden-controller linewarden");
    assert_nothing_remains(machine);
}

#[test]
fn the_packages_are_installed_run_are_upgraded_and_are_purged_completely() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let (machine, device) = (Machine::require(directory_path), Namespace::require());
    build("0.0.9-1", directory_path);
    build("0.1.0-1", directory_path);

    machine.run("dpkg --install /mnt/*_0.0.9-1_*.deb");
    for name in PROGRAMS {
        machine.run(&format!("{name} --version"));
    }
    // Without a configuration, no unit starts, not even by `systemctl start`.
    for role in ROLES {
        machine.systemctl(&format!("start linewarden-{role}"));
        let state = machine.try_run(&format!("systemctl is-active linewarden-{role}"));
        assert_eq!(state.stdout, b"inactive\n", "{role}");
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
    assert_separated(&machine);
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
        r#"exec bash -c 'exec 3< <(exec tail -n +1 -F /var/log/linewarden-gateway/gateway.jsonl); timeout 60 grep -q -m 1 \"reloaded\" <&3; s=$?; kill $!; exit $s'"#,
    );
    machine.run("cp -r /var/lib/linewarden-controller/devices /mnt/devices; chown -R root: /mnt/devices");
    let agent = device.start(
        &directory_path.join("devices"),
        "linewarden-agent run --config 00000000000000d1.toml --output json",
    );
    for _ in 0..3 {
        agent.event("authenticated");
    }

    upgrade(&machine, &agent);
    drop(agent);
    attest(&machine, &device);
    show_evidence(&machine);
    serve_without_a_network(&machine);
    for role in ROLES {
        let restarts = machine.run(&format!(
            "systemctl show --property NRestarts --value linewarden-{role}"
        ));
        assert_eq!(restarts, "0\n", "{role} has ended by itself");
    }
    remove(&machine);
}

fn upgrade(machine: &Machine, agent: &Process) {
    machine.run("echo '# ours' >>/etc/logrotate.d/linewarden-gateway");
    let checksum_command = "sha256sum /etc/linewarden/* /etc/logrotate.d/linewarden-gateway \
                            /var/lib/linewarden-controller/master.key; stat -c '%U %G %a' /etc/linewarden/*";
    let before = (
        machine.run(checksum_command),
        machine.main_pid("linewarden-gateway"),
    );
    machine.run("dpkg --install /mnt/*_0.1.0-1_*.deb");
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
    "/bin/linewarden-agent",
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
    let devices = "/var/lib/linewarden-controller/devices";
    machine.run(&format!(
        "install -m 640 -g linewarden-agent {devices}/00000000000000d1.toml /etc/linewarden/agent.toml"
    ));
    for file in ["00000000000000d1.helper", "fleet.seed"] {
        machine.give("agent", &format!("{devices}/{file}"));
    }
    machine.run(
        r#"sed -i -E 's#^((helper|seed_file) = ")#\1/var/lib/linewarden-agent/#' /etc/linewarden/agent.toml"#,
    );
    let files = MEASURED_PATHS.map(|path| format!("\"{path}\"")).join(", ");
    machine.run(&format!(
        "printf '%s\n' '[attest]' 'key = \"/var/lib/linewarden-agent/d1.attest-key\"' 'files = [{files}]' >>/etc/linewarden/agent.toml"
    ));
    let measured = machine.run_as(
        "agent",
        "linewarden-agent measure --config /etc/linewarden/agent.toml --out d1.reference",
    );
    for line in [
        &format!("{HOME}/bin/sensord: file 0755"),
        "/usr/lib/modules/test/sensor.ko: file 0644",
        "/srv/absent: absent",
    ] {
        assert!(measured.contains(line), "{measured}");
    }
    machine.give("controller", "/var/lib/linewarden-agent/d1.reference");
    let administer =
        |arguments: &str| machine.run_as("controller", &format!("linewarden attest {arguments} {registry}"));
    administer("group set pumps --reference d1.reference --every 1");
    administer("enroll d1 --group pumps --software --key-out d1.attest-key");
    machine.give("agent", "/var/lib/linewarden-controller/d1.attest-key");
    machine.bind_network_namespace(device.pid(), "/run/device.net");
    machine.run("mkdir -p /etc/systemd/system/linewarden-agent.service.d");
    machine.run(r"printf '[Service]\nNetworkNamespacePath=/run/device.net\n' >/etc/systemd/system/linewarden-agent.service.d/network.conf");
    machine.run("cp -r /etc/systemd/system/linewarden-agent.service.d /etc/systemd/system/probe.service.d");
    let check = "/usr/bin/linewarden-agent check --machine /etc/linewarden/agent.toml";
    assert!(succeeds_in_unit(machine, "linewarden-agent", check));
    machine.systemctl("start linewarden-agent");
    assert_confined(machine, "linewarden-agent", 0);
    let h = measured.lines().find_map(|line| line.strip_prefix("h ")).unwrap();
    machine.wait_for_output(&format!(
        "attested to gateway 7 in period [0-9]*: configuration {h}"
    ));
    administer("round run pumps --wait 60");
    let status = administer("list d1");
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
    machine.run_as(
        "gateway",
        "linewarden-gateway evidence key --out gateway.evidence-key",
    );
    machine.run(&format!(
        r"mkdir -p {drop_in}; printf '[Service]\nAmbientCapabilities=CAP_SYS_ADMIN\nCapabilityBoundingSet=CAP_SYS_ADMIN\n' \
         >{drop_in}/evidence.conf"
    ));
    machine.run(
        r#"printf '[evidence]\nkey = "/var/lib/linewarden-gateway/gateway.evidence-key"\nboot_count = "/var/lib/linewarden-gateway/boot-count"\nsocket = "/run/linewarden-gateway/evidence.sock"\n' >>/etc/linewarden/gateway.toml"#,
    );
    machine.systemctl("daemon-reload");
    machine.systemctl("restart linewarden-gateway");
    machine.run_as(
        "gateway",
        "linewarden-gateway evidence export --socket /run/linewarden-gateway/evidence.sock --out s.cose --inventory s.inventory",
    );
    machine.run(&format!("rm -r {drop_in}; systemctl daemon-reload"));
}

/// Runs controller and gateway with the examples for one machine: in the sandboxes of their units, the gateway reaches the
/// controller's socket, which other users cannot open.
fn serve_without_a_network(machine: &Machine) {
    machine.systemctl("stop linewarden-gateway linewarden-controller");
    machine.run("linewarden-gateway remove-gate --config /etc/linewarden/gateway.toml");
    install_example(machine, "controller", "controller-local.toml");
    install_example(machine, "gateway", "gateway.toml");
    machine.run_as(
        "controller",
        "linewarden-controller check --machine /etc/linewarden/controller.toml",
    );
    machine.systemctl("start linewarden-controller linewarden-gateway");
    machine.run(
        "timeout 60 sh -c 'until runuser -u linewarden-controller -- linewarden gateway show 1 \
         --config /etc/linewarden/controller.toml | grep -qw connected; do sleep 0.2; done'",
    );
    let directory = "/run/linewarden-controller";
    assert_eq!(
        machine.run(&format!(
            "stat -c '%U %G %a %F' {directory} {directory}/controller.sock"
        )),
        "linewarden-controller linewarden-controller 711 directory\n\
         linewarden-controller linewarden-gateway 660 socket\n"
    );
    // A connection needs permission to write.
    for (role, may_connect) in [("controller", true), ("gateway", true), ("agent", false)] {
        let permission = machine.succeeds_as(role, &format!("test -w {directory}/controller.sock"));
        assert_eq!(permission, may_connect, "{role}");
    }
    assert!(!machine.succeeds_as("gateway", &format!("ls {directory}")));
    let listening = machine.run("ss --listening --tcp --numeric --no-header --processes");
    assert!(!listening.contains("linewarden"), "{listening}");
    assert_confined(machine, "linewarden-controller", 0);
    assert_confined(machine, "linewarden-gateway", GATEWAY_CAPABILITIES);
    assert_separated(machine);
}

fn remove(machine: &Machine) {
    assert!(machine.run("ip link show eth1").contains("xdp"));
    let controller = machine.main_pid("linewarden-controller");
    let output = machine.try_run("dpkg --remove linewarden-gateway");
    assert!(output.status.success());
    // The administrator learns that the controller lacks the group of its socket from now on.
    let messages = String::from_utf8(output.stderr).unwrap();
    assert!(messages.contains("remove socket_group"), "{messages}");
    // No gate is closed, and the other services continue.
    assert!(!machine.run("ip link show eth1").contains("xdp"));
    assert_eq!(machine.main_pid("linewarden-controller"), controller);
    let rest = PROGRAMS.into_iter().filter(|name| *name != "linewarden-gateway");
    let rest = rest.collect::<Vec<_>>().join(" ");
    machine.run("dpkg --purge linewarden-gateway");
    machine.run("test ! -e /etc/linewarden/gateway.toml && test ! -e /var/log/linewarden-gateway");
    let names = machine.run("getent passwd; getent group");
    assert!(!names.contains("linewarden-gateway"), "{names}");
    machine.run(&format!("dpkg --remove {rest}"));
    // No process runs, and the administrator's files remain.
    let running =
        machine.try_run("systemctl list-units --no-legend --state active 'linewarden-*' 'run-linewarden*'");
    assert_eq!(String::from_utf8(running.stdout).unwrap(), "");
    machine.run("test ! -e /usr/bin/linewarden && test -e /etc/linewarden/controller.toml");
    machine.run("test -e /etc/linewarden/agent.toml && test -e /var/lib/linewarden-controller/master.key");
    machine.run(&format!("dpkg --purge {rest}"));
    assert_nothing_remains(machine);
}

/// Asserts that no file, no user and no group of the packages exists.
#[track_caller]
fn assert_nothing_remains(machine: &Machine) {
    // The directory that `-prune` skips belongs to the test.
    let remaining = machine.run(
        "find /etc /usr /var /run -path /etc/systemd/system/linewarden-.service.d -prune -o -cnewer /mnt/ready -name '*linewarden*' -print",
    );
    assert_eq!(remaining, "");
    let names = machine.run("getent passwd; getent group");
    assert!(!names.contains("linewarden"), "{names}");
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
        "linewarden-gateway run --config gateway.toml --output json --status-interval 1",
    );
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    gateway
}

/// Capability to use files of any owner.
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_NET_ADMIN: u64 = 1 << 12;

#[test]
fn a_gateway_drops_the_capabilities_of_its_start() {
    require(FOR_LOAD_GENERATOR);
    let directory = tempfile::tempdir().unwrap();
    let directory_path = directory.path();
    let namespace = Namespace::require();
    run(command(
        directory_path,
        "linewarden registry create --registry fleet.registry --key-file master.key",
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
