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
use self::support::{Namespace, PROGRAM, Process, linewarden, run};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF.
const OF_THE_GATEWAY: u64 = (1 << 12) | (1 << 13) | (1 << 38) | (1 << 39);

/// Builds the package from the program that is tested.
fn build(version: &str, out: &Path) -> PathBuf {
    let mut command = Command::new(format!("{ROOT}/scripts/deb"));
    command.args(["--quick", "--program", PROGRAM, "--version", version, "--out"]);
    command.arg(out);
    PathBuf::from(run(command).trim())
}

fn output_of(program: &str, arguments: &[&str], package: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).arg(package);
    run(command)
}

/// Relevant checks of lintian.
fn inspect(package: &Path, at: &Path) {
    let control = output_of("dpkg-deb", &["--field"], package);
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
    let contents = output_of("dpkg-deb", &["--contents"], package);
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
    let tree = at.join("tree");
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
fn the_examples_are_configurations() {
    let directory = format!("{ROOT}/deploy/examples");
    let mut units = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let mut command = Command::new(PROGRAM);
        command.arg("check").arg(&path);
        assert!(run(command).contains(": valid"), "{}", path.display());
        units += 1;
    }
    assert_eq!(units, 4);
}

/// The highest exposure that a unit may have by the measure of systemd-analyze, 0 to 10.
const EXPOSURE_MAX: [(&str, f64); 3] = [("controller", 1.5), ("gateway", 2.5), ("agent", 2.0)];

#[test]
fn the_units_are_in_order_and_hardened() {
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

/// A set of capabilities of every thread of a process, as `/proc` shows it.
fn sets(status: &str, name: &str) -> Vec<u64> {
    let sets = status.lines().filter_map(|line| line.strip_prefix(name));
    sets.map(|set| u64::from_str_radix(set.trim(), 16).unwrap())
        .collect()
}

#[track_caller]
fn all_are(status: &str, name: &str, expected: u64, threads_min: usize) {
    let sets = sets(status, name);
    assert!(sets.len() >= threads_min, "{status}");
    assert!(
        sets.iter().all(|set| *set == expected),
        "{name}{sets:x?}, not {expected:x}"
    );
}

/// The controller's unencrypted health page.
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

/// The steps of `docs/operations/first-fleet.md`.
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

/// The kernel's status of a service's process and all of its threads.
fn status(machine: &Machine, unit: &str) -> String {
    let pid = machine.main_pid(unit);
    machine.run(&format!("cat /proc/{pid}/task/*/status"))
}

fn is_confined(machine: &Machine, unit: &str, bounds: u64) {
    let status = status(machine, unit);
    // The agent has one thread besides its first.
    let threads_min = if unit == "linewarden-agent" { 2 } else { 4 };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        all_are(&status, set, 0, threads_min);
    }
    all_are(&status, "CapBnd:", bounds, threads_min);
    let user = machine.run("id -u linewarden");
    for (line, value) in [("NoNewPrivs:", "1"), ("Seccomp:", "2"), ("Uid:", user.trim())] {
        let mut lines = status.lines().filter_map(|shown| shown.strip_prefix(line));
        assert!(
            lines.all(|shown| shown.split_whitespace().next() == Some(value)),
            "{line} {status}"
        );
    }
}

/// Runs wherever the package can be built, also without a private machine to install it.
#[test]
fn a_package_contains_the_expected_files() {
    let directory = tempfile::tempdir().unwrap();
    let package = build("0.1.0-1", directory.path());
    inspect(&package, directory.path());
}

#[test]
fn a_package_is_installed_works_is_upgraded_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (machine, device) = match (Machine::start(at), Namespace::new()) {
        (Ok(machine), Some(device)) => (machine, device),
        (Err(reason), _) => return println!("SKIPPED: {reason}"),
        (_, None) => return println!("SKIPPED: no network namespaces"),
    };
    if let Err(missing) = capability::require(FOR_LOAD_GENERATOR) {
        return println!("SKIPPED: {missing}");
    }
    build("0.0.9-1", at);
    build("0.1.0-1", at);

    machine.run("dpkg --install /mnt/linewarden_0.0.9-1_*.deb");
    machine.run("linewarden --version");
    assert_eq!(
        machine.run("stat -c '%U %G %a' /etc/linewarden /var/lib/linewarden"),
        "root linewarden 750\nlinewarden linewarden 700\n"
    );
    // Without a configuration no unit starts, also by command.
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
    device.run(at, "ip address add 10.7.0.2/24 dev eth0");
    device.run(at, "ip link set eth0 up");
    let _pass = device.accept_xdp(at, "eth0");
    first_fleet(&machine);
    is_confined(&machine, "linewarden-controller", 0);
    is_confined(&machine, "linewarden-gateway", OF_THE_GATEWAY);
    // Packet threads of the data plane `host` have a CPU each; a controller has none.
    let pinned = "/usr/bin/taskset -c 0 /bin/true";
    assert!(ends_well_as(&machine, "linewarden-gateway", pinned));
    assert!(!ends_well_as(&machine, "linewarden-controller", pinned));

    // Without its start capabilities, a reload applies, new devices authenticate, and sessions continue.
    machine.run("sed -i 's/^gate = .*/&\\nsession_lifetime_s = 2/' /etc/linewarden/gateway.toml");
    machine.systemctl("reload linewarden-gateway");
    machine.run(
        r#"exec bash -c 'exec 3< <(exec tail -n +1 -F /var/log/linewarden/gateway.jsonl); timeout 60 grep -q -m 1 \"reloaded\" <&3; s=$?; kill $!; exit $s'"#,
    );
    machine.run("cp -r /var/lib/linewarden/devices /mnt/devices; chown -R root: /mnt/devices");
    let agent = device.start(&at.join("devices"), "agent --config 00000000000000d1.toml --json");
    for _ in 0..3 {
        agent.event("authenticated");
    }

    upgrade(&machine, &agent);
    drop(agent);
    attest(&machine, &device);
    show_evidence(&machine);
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
    is_confined(machine, "linewarden-gateway", OF_THE_GATEWAY);
    for _ in 0..2 {
        agent.event("authenticated");
    }
    let state = machine.try_run("systemctl is-active linewarden-agent");
    assert_eq!(state.stdout, b"inactive\n");
}

/// Whether a command succeeds under all settings of a unit of the package except those of its start.
fn ends_well_as(machine: &Machine, unit: &str, command: &str) -> bool {
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
/// Paths that the agent measures: through a link, in a home, among the kernel's modules, a link, and a missing file.
const MEASURED: [&str; 5] = [
    "/bin/linewarden",
    HOME,
    "/usr/lib/modules/test",
    "/etc/sensor.d/link",
    "/srv/absent",
];

/// The agent as the package's unit runs it, with all of the unit's settings: it measures the same in that sandbox as outside, and
/// proves it to the gateway. Only the network differs: the device's.
fn attest(machine: &Machine, device: &Namespace) {
    let registry = "--registry fleet.registry --key-file master.key";
    machine.run(&format!("install -D -m 755 /bin/true {HOME}/bin/sensord"));
    machine.run("install -D -m 644 /etc/hosts /usr/lib/modules/test/sensor.ko");
    machine.run("mkdir -p /etc/sensor.d; ln -s /proc/self/mounts /etc/sensor.d/link");
    machine.run("cp /var/lib/linewarden/devices/00000000000000d1.toml /etc/linewarden/agent.toml");
    machine.run(r#"sed -i -E 's#^((helper|seed_file) = ")#\1/var/lib/linewarden/devices/#' /etc/linewarden/agent.toml"#);
    let files = MEASURED.map(|path| format!("\"{path}\"")).join(", ");
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
    machine.bind_network_of(device.pid(), "/run/device.net");
    machine.run("mkdir -p /etc/systemd/system/linewarden-agent.service.d");
    machine.run(r"printf '[Service]\nNetworkNamespacePath=/run/device.net\n' >/etc/systemd/system/linewarden-agent.service.d/network.conf");
    machine.run("cp -r /etc/systemd/system/linewarden-agent.service.d /etc/systemd/system/probe.service.d");
    let check = "/usr/bin/linewarden check --machine /etc/linewarden/agent.toml";
    assert!(ends_well_as(machine, "linewarden-agent", check));
    machine.systemctl("start linewarden-agent");
    is_confined(machine, "linewarden-agent", 0);
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
    assert!(!ends_well_as(machine, "linewarden-agent", check));
    machine.run("rm -r /etc/systemd/system/probe.service*");
    machine.systemctl("stop linewarden-agent");
    machine.run(&format!(
        "umount /run/device.net; rm -r {HOME} /usr/lib/modules/test /etc/sensor.d"
    ));
}

/// The gateway as the package's unit runs it, with the additional capability that `[evidence]` needs: it measures its data plane in
/// that sandbox, and serves evidence at the socket in the unit's directory.
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
    // Files of the test (its drop-in) and of dpkg.
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

/// A gateway started by root without a unit, in a namespace with the devices on its loopback interface.
fn started_by_root(namespace: &Namespace, at: &Path, section: &str) -> Process {
    let text = format!(
        "[gateway]\nid = 3\naddresses = [\"127.0.0.1\"]\nslots = 100\nsession_lifetime_s = 2\n{section}\n\
         [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n[audit]\npath = \"audit.jsonl\"\n"
    );
    std::fs::write(at.join("gateway.toml"), text).unwrap();
    let gateway = namespace.start(at, "serve --config gateway.toml --json --status-interval 1");
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    gateway
}

/// Root can use files of any owner.
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_NET_ADMIN: u64 = 1 << 12;

#[test]
fn a_gateway_drops_the_capabilities_of_its_start() {
    if let Err(missing) = capability::require(FOR_LOAD_GENERATOR) {
        return println!("SKIPPED: {missing}");
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let namespace = Namespace::new().unwrap();
    run(linewarden(
        at,
        "registry create --registry fleet.registry --key-file master.key",
    ));
    let xdp = "dataplane = \"xdp\"\ninterfaces = [\"lo\"]";
    let open = "gate = \"bound\"\ngate_on_exit = \"remove\"";
    let sealed = "gate = \"sealed\"\ngate_on_exit = \"remove\"";
    for (section, kept) in [
        ("dataplane = \"host\"", CAP_DAC_OVERRIDE),
        (xdp, CAP_DAC_OVERRIDE),
        (&format!("{xdp}\n{open}"), CAP_DAC_OVERRIDE),
        // The gateway keeps the capability to remove its filter.
        (&format!("{xdp}\n{sealed}"), CAP_DAC_OVERRIDE | CAP_NET_ADMIN),
    ] {
        let gateway = started_by_root(&namespace, at, section);
        let mut status = String::new();
        for thread in std::fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap() {
            let thread = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            // Packet threads of the host data plane have no capabilities.
            let is_packets = thread.starts_with("Name:\tlw-host");
            let expected = if is_packets { 0 } else { kept };
            for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
                assert_eq!(sets(&thread, set), [expected], "{section}: {set} {thread}");
            }
            status.push_str(&thread);
        }
        all_are(&status, "CapInh:", 0, 4);
        gateway.signal(Signal::SIGHUP);
        gateway.event("reloaded");
        let lines = gateway.terminate();
        assert_eq!(lines.last().unwrap()["marks_committed"], true, "{section}");
        let remaining =
            namespace.run(at, "ip link show lo") + &namespace.run(at, "tc filter show dev lo egress");
        assert!(
            !remaining.contains("xdp") && !remaining.contains("linewarden"),
            "{section}: {remaining}"
        );
    }
}
