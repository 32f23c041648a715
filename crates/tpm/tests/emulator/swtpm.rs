//! Test TPMs: the emulator swtpm with a state of its own and a manufacturer's CA.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linewarden_tpm::device::{Retries, Tpm};
use linewarden_tpm::endorsement::EndorsementTrust;
use tempfile::TempDir;

/// Longer than any step takes on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A script that closes the inherited files and then executes its arguments. Child processes inherit the C library's
/// sockets; an emulator with an inherited connection to another emulator would keep the other emulator busy forever.
const CLOSE_INHERITED_FILES: &str = r#"for fd in /proc/$$/fd/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || eval "exec $fd>&-"
done
exec "$@""#;

/// The error if the emulator or one of its tools is not installed.
pub fn missing_tool() -> Option<String> {
    for (tool, package) in [
        ("swtpm", "swtpm"),
        ("swtpm_setup", "swtpm-tools"),
        ("swtpm_localca", "swtpm-tools"),
        ("tpm2_nvdefine", "tpm2-tools"),
    ] {
        let status = Command::new("sh")
            .args(["-c", "PATH=$PATH:/usr/sbin:/sbin command -v \"$0\"", tool])
            .stdout(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return Some(format!("{tool} is not installed (Debian: {package})"));
        }
    }
    None
}

/// A TPM manufacturer: a root and an issuing CA, made by swtpm_localca.
#[derive(Debug)]
pub struct TpmManufacturer(TempDir);

impl TpmManufacturer {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let ca = dir.path().display();
        let files = [
            (
                "localca.conf",
                format!(
                    "statedir = {ca}\nsigningkey = {ca}/signkey.pem\nissuercert = {ca}/issuercert.pem\ncertserial = {ca}/serial\n"
                ),
            ),
            (
                "localca.options",
                "--platform-manufacturer Linewarden\n--platform-version 1\n--platform-model test\n"
                    .to_owned(),
            ),
            (
                "setup.conf",
                format!(
                    "create_certs_tool=swtpm_localca\ncreate_certs_tool_config={ca}/localca.conf\ncreate_certs_tool_options={ca}/localca.options\n"
                ),
            ),
        ];
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Self(dir)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the trust of an operator who trusts this manufacturer.
    pub fn trust(&self) -> EndorsementTrust {
        let mut trust = EndorsementTrust::new();
        let root = fs::read(self.file("swtpm-localca-rootca-cert.pem")).unwrap();
        trust.add_roots("the manufacturer's root", &root).unwrap();
        let issuer = fs::read(self.file("issuercert.pem")).unwrap();
        trust.add_intermediates("the manufacturer's CA", &issuer).unwrap();
        trust
    }

    /// A certificate for a P-256 endorsement key, which swtpm_setup does not create.
    pub fn certify_p256(&self, x: &[u8], y: &[u8]) -> Vec<u8> {
        run(Command::new("swtpm_localca")
            .args(["--type", "ek", "--vmid", "ecc", "--tpm2"])
            .args([
                "--tpm-spec-family",
                "2.0",
                "--tpm-spec-level",
                "0",
                "--tpm-spec-revision",
                "164",
            ])
            .args([
                "--tpm-manufacturer",
                "id:00001014",
                "--tpm-model",
                "swtpm",
                "--tpm-version",
                "id:1",
            ])
            .arg("--ek")
            .arg(format!("x={},y={},id=secp256r1", hex::encode(x), hex::encode(y)))
            .arg("--dir")
            .arg(self.0.path())
            .arg("--configfile")
            .arg(self.file("localca.conf"))
            .arg("--optsfile")
            .arg(self.file("localca.options")));
        fs::read(self.file("ek.cert")).unwrap()
    }
}

/// A TPM, which is killed and deleted on drop.
#[derive(Debug)]
pub struct Emulator {
    state: TempDir,
    process: Option<Child>,
    port: u16,
}

impl Emulator {
    /// A new, running TPM with the manufacturer's certificate for its RSA 2048 endorsement key.
    pub fn made_by(manufacturer: &TpmManufacturer) -> Self {
        let state = TempDir::new().unwrap();
        run(Command::new("swtpm_setup")
            .args([
                "--tpm2",
                "--create-ek-cert",
                "--overwrite",
                "--pcr-banks",
                "sha1,sha256,sha384",
            ])
            .arg("--tpmstate")
            .arg(state.path())
            .arg("--config")
            .arg(manufacturer.file("setup.conf")));
        let mut emulator = Self {
            state,
            process: None,
            port: 0,
        };
        emulator.start();
        emulator
    }

    /// Starts the process. Like a power-on, this resets the PCRs.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the emulator is already running");
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let port = two_ports();
            let mut process = Command::new("bash")
                .args(["-c", CLOSE_INHERITED_FILES, "swtpm", "swtpm", "socket"])
                .args(["--tpm2", "--flags", "not-need-init,startup-clear"])
                .arg("--tpmstate")
                .arg(format!("dir={}", self.state.path().display()))
                .arg("--server")
                .arg(format!("type=tcp,port={port}"))
                .arg("--ctrl")
                .arg(format!("type=tcp,port={}", port + 1))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            if listens(&mut process, port, deadline) {
                self.process = Some(process);
                self.port = port;
                return;
            }
            process.kill().ok();
            process.wait().unwrap();
            assert!(Instant::now() < deadline, "the emulator does not start");
        }
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn tcti(&self) -> String {
        tcti(self.port)
    }

    pub fn open(&self) -> Tpm {
        Tpm::open(&self.tcti(), Retries::none()).unwrap()
    }

    /// Runs a command of tpm2-tools in `dir` with this TPM and returns its output.
    pub fn tool(&self, dir: &Path, command: &[&str]) -> String {
        let (tool, arguments) = command.split_first().unwrap();
        run(Command::new(tool)
            .args(arguments)
            .current_dir(dir)
            .env("TPM2TOOLS_TCTI", self.tcti()))
    }

    /// Runs a command of tpm2-tools that must fail, and returns its error output.
    pub fn tool_fails(&self, dir: &Path, command: &str) -> String {
        let mut arguments = command.split(' ');
        let output = Command::new(arguments.next().unwrap())
            .args(arguments)
            .current_dir(dir)
            .env("TPM2TOOLS_TCTI", self.tcti())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{command} did not fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Extends PCR 16 by a digest; any process may extend this PCR.
    pub fn extend_pcr_16(&self) {
        self.tool(
            self.state.path(),
            &["tpm2_pcrextend", &format!("16:sha256={}", "11".repeat(32))],
        );
    }

    /// Stores a certificate in the manufacturer's index of the P-256 endorsement key.
    pub fn store_p256_certificate(&self, certificate: &[u8]) {
        let index = "0x1c0000a";
        fs::write(self.state.path().join("ecc.cert"), certificate).unwrap();
        let size = certificate.len().to_string();
        let attributes = "ownerread|ownerwrite|authread|authwrite|no_da";
        let define = ["tpm2_nvdefine", index, "-C", "o", "-s", &size, "-a", attributes];
        self.tool(self.state.path(), &define);
        self.tool(
            self.state.path(),
            &["tpm2_nvwrite", index, "-C", "o", "-i", "ecc.cert"],
        );
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn tcti(port: u16) -> String {
    format!("swtpm:host=127.0.0.1,port={port}")
}

/// Listeners on two consecutive free ports; the emulator uses the second one for its control channel.
pub fn two_listeners() -> (TcpListener, TcpListener) {
    loop {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = port
            .checked_add(1)
            .and_then(|next| TcpListener::bind((Ipv4Addr::LOCALHOST, next)).ok());
        if let Some(second) = second {
            return (first, second);
        }
    }
}

fn two_ports() -> u16 {
    two_listeners().0.local_addr().unwrap().port()
}

/// Waits until the process listens at both ports. Returns `false` if the process ends or the deadline passes first. A
/// connection test is not sufficient: another emulator may use the ports, and would accept the connection, too.
fn listens(process: &mut Child, port: u16, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        if owns_listener(process.id(), port) && owns_listener(process.id(), port + 1) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Whether a process owns the socket that listens at a TCP port of 127.0.0.1. The source is procfs, see proc(5).
fn owns_listener(process: u32, port: u16) -> bool {
    // The kernel prints the address as a word in the byte order of the machine.
    let loopback = u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets());
    let local_address = format!("{loopback:08X}:{port:04X}");
    // These are the sockets of this thread, which may be in another network namespace than the process.
    let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let inode = sockets.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // 0A: TCP_LISTEN.
        (columns.get(1) == Some(&local_address.as_str()) && columns.get(3) == Some(&"0A"))
            .then(|| format!("socket:[{}]", columns[9]))
    });
    let (Some(inode), Ok(files)) = (inode, fs::read_dir(format!("/proc/{process}/fd"))) else {
        return false;
    };
    files
        .flatten()
        .any(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == inode.as_str()))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
