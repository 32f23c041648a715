//! Programs, private processes and private network namespaces of a test, and requirements of tests.

#[path = "../../../../crates/p4runtime/tests/service/support/authority.rs"]
mod authority;
pub mod capture;
pub mod device;

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use linewarden_harness::skip;
use linewarden_lab::address::Mac;
use linewarden_lab::capability::{self, Capability};
use linewarden_lab::netns::NetNs;
use linewarden_lab::topology::Interface;
use linewarden_lab::xdp_pass::XdpPass;
use linewarden_testbed::{Postgres, PostgresOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use self::authority::TestAuthority;

/// The names of all programs.
pub const PROGRAMS: [&str; 6] = [
    "linewarden",
    "linewarden-agent",
    "linewarden-controller",
    "linewarden-gateway",
    "linewarden-lab",
    "linewarden-switch",
];
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A datagram without an echo after this time is lost. The kernel drops a datagram that waits for neighbor resolution after three
/// solicitations, one per second.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

/// The path of a program's executable, which is in the same directory as the executable of `linewarden`.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_linewarden")).with_file_name(name);
    assert!(
        path.is_file(),
        "{name} is not built: run `cargo build --workspace --bins`"
    );
    path
}

/// A command in this directory. `command_line` is the program and its arguments, separated by spaces. A program whose name does
/// not begin with `linewarden` is a program of the machine.
#[track_caller]
pub fn command(directory: &Path, command_line: &str) -> Command {
    let mut words = command_line.split_whitespace();
    let name = words.next().unwrap();
    let mut command = match name.starts_with("linewarden") {
        true => Command::new(program(name)),
        false => Command::new(name),
    };
    command.args(words).current_dir(directory);
    command
}

/// Skips the test if this process does not have the capabilities.
pub fn require(capabilities: &[Capability]) {
    if let Err(missing) = capability::require(capabilities) {
        skip!("{missing}");
    }
}

/// Skips the test if this process is not a process of root.
pub fn require_root() {
    if !nix::unistd::geteuid().is_root() {
        skip!("needs root");
    }
}

/// Starts a PostgreSQL server. Skips the test if PostgreSQL is not installed.
pub fn require_postgres() -> Postgres {
    match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => skip!("needs PostgreSQL: {missing}"),
    }
}

/// A child process that is killed when dropped.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace, which a process keeps open. Interfaces can be moved into the namespace of this process.
pub struct Namespace {
    holder: KilledOnDrop,
    inside: NetNs,
}

impl Namespace {
    /// Skips the test if this process lacks the privilege, or if a program is not installed.
    pub fn require() -> Self {
        match Self::new() {
            Some(namespace) => namespace,
            None => skip!("needs root, and the programs unshare and ip"),
        }
    }

    /// Returns `None` if this process lacks the privilege, or if a program is not installed.
    pub fn new() -> Option<Self> {
        let script = "ip link set lo up && echo up && exec sleep 600";
        let child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut holder = KilledOnDrop(child);
        let mut line = String::new();
        BufReader::new(holder.0.stdout.take()?)
            .read_line(&mut line)
            .ok()?;
        let file = File::open(format!("/proc/{}/ns/net", holder.0.id())).ok()?;
        let inside = NetNs::from_fd(file.into());
        (line == "up\n").then_some(Self { holder, inside })
    }

    pub fn pid(&self) -> u32 {
        self.holder.0.id()
    }

    /// The namespace, for threads of the test.
    pub fn inside(&self) -> &NetNs {
        &self.inside
    }

    /// Runs a [`command`] to its end; returns its output.
    #[track_caller]
    pub fn run(&self, directory: &Path, command_line: &str) -> String {
        let command = command(directory, command_line);
        self.inside.run(|| run(command)).unwrap()
    }

    /// Starts a [`command`] that writes lines of JSON to its standard output.
    #[track_caller]
    pub fn start(&self, directory: &Path, command_line: &str) -> Process {
        self.start_command(command(directory, command_line))
    }

    /// Starts the controller of the gateways in this directory, and waits until it serves them.
    pub fn start_controller(&self, directory: &Path) -> Process {
        self.inside.run(|| start_controller(directory)).unwrap()
    }

    /// Starts a command that writes lines of JSON to its standard output.
    pub fn start_command(&self, command: Command) -> Process {
        self.inside.run(|| Process::start(command)).unwrap()
    }

    /// Command prefix that runs a command in the namespace.
    pub fn wrapper(&self) -> Vec<String> {
        ["nsenter", "--net", "--target", &self.pid().to_string()]
            .map(str::to_owned)
            .to_vec()
    }

    /// Attaches an XDP program to this interface of a veth pair, so that the interface accepts frames that the gateway sends by
    /// XDP from the peer interface. Dropping the returned value removes the program.
    pub fn accept_xdp(&self, directory: &Path, name: &str) -> XdpPass {
        XdpPass::attach(&self.inside, &self.interface(directory, name)).unwrap()
    }

    fn interface(&self, directory: &Path, name: &str) -> Interface {
        let text = self.run(directory, &format!("ip -o link show dev {name}"));
        let (index, _) = text.split_once(':').unwrap();
        Interface {
            name: name.to_owned(),
            index: index.parse().unwrap(),
            mac: Mac([0; 6]),
        }
    }

    pub fn socket(&self, address: SocketAddr) -> UdpSocket {
        let socket = self.inside.run(|| UdpSocket::bind(address).unwrap()).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        socket
    }

    /// Starts an echo service at this address, which runs until the end of the test program.
    pub fn echo(&self, address: SocketAddr) {
        let socket = self.socket(address);
        socket.set_read_timeout(None).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..bytes], from);
            }
        });
    }
}

/// Writes `controller.toml`: a controller with the registry `fleet.registry` and its `master.key`, for gateways in this directory
/// whose section [controller] has `socket = "controller.sock"`.
pub fn write_controller_config(directory: &Path) {
    let text = "[service]\nsocket = \"controller.sock\"\n\
                [registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n";
    std::fs::write(directory.join("controller.toml"), text).unwrap();
}

/// Starts the controller of `controller.toml`, and waits until it serves gateways.
pub fn start_controller(directory: &Path) -> Process {
    let controller = Process::start(command(
        directory,
        "linewarden-controller run --config controller.toml --output json",
    ));
    controller.event("started");
    controller
}

/// A process that writes lines of JSON to its standard output. Dropping this value kills the process.
pub struct Process {
    pub child: KilledOnDrop,
    lines: Receiver<Value>,
    printed: RefCell<Vec<Value>>,
}

impl Process {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A killed process can leave an incomplete line.
                let Ok(line) = serde_json::from_str(&line) else {
                    return;
                };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child: KilledOnDrop(child),
            lines,
            printed: RefCell::default(),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns the next line, or an error if no line arrives within this time or the output has ended.
    pub fn next(&self, timeout: Duration) -> Result<Value, RecvTimeoutError> {
        let line = self.lines.recv_timeout(timeout)?;
        self.printed.borrow_mut().push(line.clone());
        Ok(line)
    }

    /// Waits for the next line that satisfies the condition.
    #[track_caller]
    pub fn wait_for(&self, description: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if condition(&line) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "no {description} after {TEST_TIMEOUT:?}: {:#?}",
                        self.printed_lines()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("ended before {description}: {:#?}", self.printed_lines())
                }
            }
        }
    }

    /// Waits for the next line with this event.
    #[track_caller]
    pub fn event(&self, name: &str) -> Value {
        self.wait_for(name, |line| line["event"] == name)
    }

    /// All lines that were read so far.
    pub fn printed_lines(&self) -> Vec<Value> {
        self.printed.borrow().clone()
    }

    /// All lines with this event that were read so far.
    pub fn events(&self, name: &str) -> Vec<Value> {
        self.printed_lines()
            .into_iter()
            .filter(|line| line["event"] == name)
            .collect()
    }

    /// The count of a verdict in the gateway's latest report.
    pub fn count(&self, verdict: &str) -> u64 {
        let printed = self.printed.borrow();
        let counters = printed.iter().rev().find(|line| line["counters"].is_object());
        counters.map_or(0, |line| line["counters"][verdict].as_u64().unwrap_or(0))
    }

    /// Waits until the gateway reports at least this count of a verdict.
    #[track_caller]
    pub fn wait_for_count(&self, verdict: &str, count: u64) {
        if self.count(verdict) < count {
            self.wait_for(verdict, |_| self.count(verdict) >= count);
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id() as i32), signal).unwrap();
    }

    /// Ends the process by a signal, with any exit code.
    pub fn end_with_signal(&mut self, signal: Signal) {
        self.signal(signal);
        self.child.0.wait().unwrap();
    }

    /// Waits until the process ends by itself; returns its exit code and all its lines.
    #[track_caller]
    pub fn wait_for_exit(mut self) -> (i32, Vec<Value>) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "still running after {TEST_TIMEOUT:?}: {:#?}",
                        self.printed_lines()
                    )
                }
            }
        }
        let code = self.child.0.wait().unwrap().code();
        (code.expect("a signal ended the process"), self.printed_lines())
    }

    /// Waits until the process ends by itself with exit code 0; returns all its lines.
    #[track_caller]
    pub fn wait_for_success(self) -> Vec<Value> {
        let (code, lines) = self.wait_for_exit();
        assert_eq!(code, 0, "{lines:#?}");
        lines
    }

    /// Ends the process as a service manager does; its exit code must be 0; returns all its lines.
    #[track_caller]
    pub fn terminate(self) -> Vec<Value> {
        self.signal(Signal::SIGTERM);
        self.wait_for_success()
    }
}

/// Runs a command that must succeed; returns its standard output.
#[track_caller]
pub fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// An unused UDP port of the loopback interface.
pub fn free_udp_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

/// Asserts that a datagram is echoed. After a change of addresses, a datagram can be lost before the gate, so this function
/// sends the datagram repeatedly. Echoes of earlier datagrams do not count.
#[track_caller]
pub fn assert_echoed(from: &UdpSocket, destination: SocketAddr) {
    assert_echoed_with_size(from, destination, 8);
}

/// Same as [`assert_echoed`], with a payload of `bytes` bytes. With fewer than 8 bytes, the echo can be of another datagram.
#[track_caller]
pub fn assert_echoed_with_size(from: &UdpSocket, destination: SocketAddr, bytes: usize) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut payload = NUMBER.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec();
    payload.resize(bytes, bytes as u8);
    let deadline = Instant::now() + TEST_TIMEOUT;
    from.set_read_timeout(Some(ECHO_TIMEOUT)).unwrap();
    loop {
        from.send_to(&payload, destination).unwrap();
        let mut buffer = [0; 2048];
        while let Ok(bytes) = from.recv(&mut buffer) {
            if buffer[..bytes] == payload {
                return from.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            }
        }
        assert!(Instant::now() < deadline, "no echo from {destination}");
    }
}

/// Writes the files of a CA: `NAME.crt`, and `FILE.crt` and `FILE.key` for each subject. `subjects` has pairs of FILE and
/// subject.
pub fn authority(directory: &Path, name: &str, subjects: &[(&str, &str)]) {
    let ca = TestAuthority::new(name);
    std::fs::write(directory.join(format!("{name}.crt")), &ca.pem).unwrap();
    for (file, subject) in subjects {
        let issued = ca.issue(subject);
        std::fs::write(directory.join(format!("{file}.crt")), issued.cert).unwrap();
        key_file(directory, file, &issued.key, 0o600);
    }
}

/// Writes a key file `NAME.key` with this mode.
pub fn key_file(directory: &Path, name: &str, text: &str, mode: u32) {
    let mut options = std::fs::OpenOptions::new();
    let path = directory.join(format!("{name}.key"));
    let file = options.write(true).create_new(true).mode(mode).open(path);
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
}

/// A BPF filesystem that the test mounts.
pub struct BpfFilesystem(tempfile::TempDir);

impl BpfFilesystem {
    pub fn mount() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "bpf", "-o", "mode=0700", "bpf"])
            .arg(directory.path())
            .status();
        assert!(status.unwrap().success());
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
