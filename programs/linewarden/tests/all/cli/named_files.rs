//! A command or a configuration names a file that is not a regular file. The command must fail immediately, with an error that
//! names the file and its kind. If a command waits for a FIFO, the test fails after a timeout.

use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::mpsc::channel;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::support::{
    Process, TEST_TIMEOUT, command, free_udp_port, start_controller, write_controller_config,
};

const GATEWAY: &str =
    "[gateway]\nid = 1\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\ngate = \"off\"\n";
const SOCKET: &str = "[controller]\nsocket = \"controller.sock\"\n";
const REGISTRY: &str = "[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n";
const AGENT: &str = "[device]\nid = \"00000000000000d1\"\nhelper = \"devices/00000000000000d1.helper\"\n\
                     [gateway]\naddress = \"127.0.0.1\"\n";
const PUF: &str = "[puf.simulated]\nmodel = \"arbiter\"\nseed_file = \"devices/fleet.seed\"\n";
const CONTROLLER: &str = "[service]\nlisten = \"127.0.0.1:20560\"\n";

/// Kinds of files that the tests put in place of a regular file of usual size.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FileKind {
    Fifo,
    Socket,
    Directory,
    /// A symbolic link to /dev/zero.
    Device,
    /// A symbolic link to itself.
    Loop,
    /// A regular file of 1 TiB.
    Long,
}

impl FileKind {
    const ALL: [Self; 6] = [
        Self::Fifo,
        Self::Socket,
        Self::Directory,
        Self::Device,
        Self::Loop,
        Self::Long,
    ];

    /// Creates a file of this kind. A socket exists as long as the returned value.
    fn create(self, path: &Path) -> Option<UnixListener> {
        let link_to = |to: &str| std::os::unix::fs::symlink(to, path).unwrap();
        match self {
            Self::Fifo => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            Self::Socket => return Some(UnixListener::bind(path).unwrap()),
            Self::Directory => fs::create_dir(path).unwrap(),
            Self::Device => link_to("/dev/zero"),
            Self::Loop => link_to(path.file_name().unwrap().to_str().unwrap()),
            Self::Long => {
                fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        None
    }

    fn remove(self, path: &Path) {
        let removed = match self {
            Self::Directory => fs::remove_dir(path),
            _ => fs::remove_file(path),
        };
        removed.unwrap();
    }

    fn expected_errors(self) -> &'static [&'static str] {
        match self {
            Self::Fifo => &["it is a FIFO, not a regular file"],
            Self::Socket => &["it is a socket, not a regular file"],
            Self::Directory => &["it is a directory, not a regular file"],
            Self::Device => &["it is a character device, not a regular file"],
            Self::Loop => &["Too many levels of symbolic links"],
            Self::Long => &["longer than", "too long", "not a SQLite database", "truncated"],
        }
    }
}

/// A command, and the content of `config.toml`, which the command can name. The command or the configuration names the file
/// `odd`, which is not a regular file of usual size.
struct TestCase {
    command_line: String,
    config: String,
    /// Kinds that are not tested, because a directory is valid here, or because reading up to the size limit takes too long.
    skipped_kinds: &'static [FileKind],
}

impl TestCase {
    fn command(command_line: &str) -> Self {
        Self {
            command_line: command_line.to_owned(),
            config: String::new(),
            skipped_kinds: &[],
        }
    }

    /// A test case for a field of a program's configuration, which `check --machine` reads. `parts` is the configuration.
    fn field(program: &str, parts: &[&str]) -> Self {
        Self {
            config: parts.concat(),
            ..Self::command(&format!("{program} check --machine config.toml"))
        }
    }

    fn skip(self, skipped_kinds: &'static [FileKind]) -> Self {
        Self {
            skipped_kinds,
            ..self
        }
    }
}

fn test_cases() -> Vec<TestCase> {
    [
        gateway_cases(),
        controller_cases(),
        agent_cases(),
        command_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn gateway_cases() -> Vec<TestCase> {
    let field = |parts: &[&str]| TestCase::field("linewarden-gateway", parts);
    let host = |parts: &[&str]| field(&[&[GATEWAY], parts].concat());
    let xdp = |parts: &[&str]| {
        let gateway = GATEWAY.replace(
            "dataplane = \"host\"",
            "dataplane = \"xdp\"\ninterfaces = [\"lo\"]",
        );
        field(&[&[gateway.as_str(), SOCKET], parts].concat())
    };
    let p4 = |parts: &[&str]| {
        let gateway = GATEWAY.replace("\"host\"", "\"p4\"");
        let section = "[p4]\naddress = \"127.0.0.1:9559\"\ndevices_port = 0\n";
        field(&[&[gateway.as_str(), SOCKET, section], parts].concat())
    };
    const REMOTE_CONTROLLER: &str = "[controller]\naddresses = [\"a.example:20560\"]\n";
    const EVIDENCE: &str = "[evidence]\nboot_count = \"boots\"\n";
    vec![
        host(&[SOCKET, "[audit]\npath = \"odd\"\n"]).skip(&[FileKind::Long]),
        host(&[
            REMOTE_CONTROLLER,
            "ca = \"odd\"\ncert = \"pki/ca.pem\"\nkey = \"pki/ca.key\"\n",
        ]),
        host(&[
            REMOTE_CONTROLLER,
            "ca = \"pki/ca.pem\"\ncert = \"odd\"\nkey = \"pki/ca.key\"\n",
        ]),
        host(&[
            REMOTE_CONTROLLER,
            "ca = \"pki/ca.pem\"\ncert = \"pki/ca.pem\"\nkey = \"odd\"\n",
        ]),
        xdp(&[EVIDENCE, "key = \"odd\"\n"]),
        p4(&["ca = \"odd\"\n"]),
        p4(&["ca = \"pki/ca.pem\"\ncert = \"pki/ca.pem\"\nkey = \"odd\"\n"]),
    ]
}

fn controller_cases() -> Vec<TestCase> {
    let field = |parts: &[&str]| TestCase::field("linewarden-controller", parts);
    let controller = |cert: &str, key: &str, ca: &str, more_sections: &str| {
        let tls = format!("[tls]\ncert = \"{cert}\"\nkey = \"{key}\"\nca = \"{ca}\"\n");
        field(&[CONTROLLER, &tls, REGISTRY, more_sections])
    };
    let with_service =
        |more_sections: &str| controller("pki/ca.pem", "pki/ca.key", "pki/ca.pem", more_sections);
    const LOCAL: &str = "[service]\nsocket = \"controller.sock\"\n";
    vec![
        field(&[
            LOCAL,
            "[registry]\npath = \"odd\"\nmaster_key_file = \"master.key\"\n",
        ]),
        field(&[
            LOCAL,
            "[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"odd\"\n",
        ]),
        field(&[LOCAL, REGISTRY, "[attest]\nsigning_key = \"odd\"\n"]),
        controller("odd", "pki/ca.key", "pki/ca.pem", ""),
        controller("pki/ca.pem", "odd", "pki/ca.pem", ""),
        controller("pki/ca.pem", "pki/ca.key", "odd", ""),
        with_service("[nats]\nservers = [\"nats://127.0.0.1:4222\"]\ncredentials_file = \"odd\"\n"),
        with_service("[telemetry]\notlp = \"https://127.0.0.1:4317\"\nca = \"odd\"\n"),
        with_service("[trust.7]\nreference = \"odd\"\nkey = \"evidence.pub\"\n").skip(&[FileKind::Long]),
        with_service("[trust.7]\nreference = \"evidence.pub\"\nkey = \"odd\"\n"),
    ]
}

fn agent_cases() -> Vec<TestCase> {
    let field = |parts: &[&str]| TestCase::field("linewarden-agent", parts);
    vec![
        field(&[&AGENT.replace("devices/00000000000000d1.helper", "odd"), PUF]).skip(&[FileKind::Long]),
        field(&[
            AGENT,
            "[puf.simulated]\nmodel = \"arbiter\"\nseed_file = \"odd\"\n",
        ]),
        field(&[AGENT, "[puf.readouts]\npath = \"odd\"\n"]).skip(&[FileKind::Directory, FileKind::Long]),
        field(&[
            AGENT,
            PUF,
            "[attest]\nkey = \"odd\"\nfiles = [\"/etc/hostname\"]\n",
        ]),
        field(&[
            AGENT,
            PUF,
            "[attest]\nkey = \"master.key\"\ntpm = \"device:/dev/null\"\npcrs = [0]\nevent_log = \"odd\"\n",
        ])
        .skip(&[FileKind::Long]),
    ]
}

fn command_cases() -> Vec<TestCase> {
    const REGISTRY_OPTIONS: &str = "--registry fleet.registry --key-file master.key";
    let command = |arguments: &str| TestCase::command(arguments);
    let on_registry =
        |arguments: &str| TestCase::command(&format!("linewarden {arguments} {REGISTRY_OPTIONS}"));
    vec![
        command("linewarden-agent check odd"),
        command("linewarden-controller check odd"),
        command("linewarden-gateway check odd"),
        command("linewarden-gateway run --config odd"),
        command("linewarden-agent run --config odd"),
        command("linewarden-controller run --config odd"),
        command("linewarden device list --registry odd --key-file master.key"),
        command("linewarden device list --registry fleet.registry --key-file odd"),
        command("linewarden device list --registry postgres://u@127.0.0.1/d?sslrootcert=odd --key-file master.key")
            .skip(&[FileKind::Long]),
        command("linewarden device list --server https://127.0.0.1:1 --server-ca pki/ca.pem --token-file odd"),
        command("linewarden device list --server https://127.0.0.1:1 --server-ca odd --token-file master.key"),
        on_registry("device import odd --export-key export.key"),
        on_registry("device import fleet.jsonl --export-key odd"),
        on_registry("attest group set pumps --reference odd"),
        on_registry("attest enroll d1 --group pumps --answer odd --pending odd"),
        command("linewarden appraise odd --key evidence.pub --reference evidence.pub"),
        command("linewarden appraise evidence.pub --key odd --reference evidence.pub"),
        command("linewarden signed receive --listen 127.0.0.1:0 --signers odd").skip(&[FileKind::Directory]),
        command("linewarden signed receive --listen 127.0.0.1:0 --signers signer/signer.json --revoked odd")
            .skip(&[FileKind::Long]),
        command("linewarden signed send signer --to 127.0.0.1:9 --input odd").skip(&[FileKind::Long]),
        command("linewarden signed send signer --to 127.0.0.1:9 --seal-key odd"),
        command("linewarden signed keygen --scheme ra-rsa2048 --layout odd --out new"),
        command("linewarden-switch run odd -i 0@lo"),
        command("linewarden-lab stf --program odd test.stf"),
        command("linewarden-lab stf odd").skip(&[FileKind::Directory]),
    ]
}

/// Runs a command. Panics if the command does not end within the test's timeout.
fn run_with_timeout(site: &Site, command_line: &str) -> CommandOutput {
    let child = command(site.directory.path(), command_line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let (sender, output) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match output.recv_timeout(TEST_TIMEOUT) {
        Ok(output) => output.unwrap().into(),
        Err(_) => {
            kill(Pid::from_raw(id.cast_signed()), Signal::SIGKILL).unwrap();
            panic!("{command_line}: does not end within the timeout");
        }
    }
}

#[test]
fn only_regular_files_are_read() {
    let site = Site::new();
    for command_line in [
        "linewarden device enroll simulated --device d1 --rows 2 --out devices --registry fleet.registry --key-file master.key",
        "linewarden device export fleet.jsonl --export-key export.key --registry fleet.registry --key-file master.key",
        "linewarden certificate ca --out pki",
        "linewarden signed keygen --scheme ed25519 --out signer",
        "linewarden evidence key --out evidence.key",
    ] {
        let text = site.run(command_line).ok();
        if command_line.contains("evidence key") {
            site.write("evidence.pub", &text);
        }
    }
    site.write("test.stf", "");
    let odd = site.path("odd");
    let mut failures = Vec::new();
    for test_case in test_cases() {
        site.write("config.toml", &test_case.config);
        for kind in FileKind::ALL {
            if test_case.skipped_kinds.contains(&kind) {
                continue;
            }
            let socket = kind.create(&odd);
            let output = run_with_timeout(&site, &test_case.command_line);
            drop(socket);
            kind.remove(&odd);
            let (code, text) = (output.code, output.err + &output.out);
            let is_reported = text.contains("odd")
                && kind
                    .expected_errors()
                    .iter()
                    .any(|expected| text.contains(expected));
            if code == 0 || !is_reported {
                failures.push(format!(
                    "{}: {kind:?}: {code}\n{}{text}",
                    test_case.command_line, test_case.config
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// A reload that finds another kind of file is rejected, and later signals are processed.
#[test]
fn a_process_handles_signals_with_any_kind_of_file_as_its_configuration() {
    let site = Site::new();
    let path = site.path("gateway.toml");
    let port = format!("port = {}\n", free_udp_port());
    site.write("gateway.toml", &[GATEWAY, &port, SOCKET].concat());
    write_controller_config(site.directory.path());
    let _controller = start_controller(site.directory.path());
    let gateway = Process::start(command(
        site.directory.path(),
        "linewarden-gateway run --config gateway.toml --output json --status-interval 1",
    ));
    gateway.wait_for("loaded fleet", |line| line["loaded"] == true);
    let original = site.path("kept.toml");
    fs::rename(&path, &original).unwrap();
    for kind in FileKind::ALL {
        let socket = kind.create(&path);
        gateway.signal(Signal::SIGHUP);
        let errors = gateway.event("reload_refused")["errors"].to_string();
        assert!(errors.contains("gateway.toml"), "{errors}");
        assert!(
            kind.expected_errors()
                .iter()
                .any(|expected| errors.contains(expected)),
            "{errors}"
        );
        drop(socket);
        kind.remove(&path);
    }
    fs::rename(&original, &path).unwrap();
    gateway.signal(Signal::SIGHUP);
    gateway.event("reloaded");
    gateway.terminate();
}
