//! A private machine of a test, with its own systemd.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use linewarden_harness::skip;
use linewarden_lab::netns::NetNs;

use crate::support::{KilledOnDrop, TEST_TIMEOUT, run};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/package/machine.sh");

/// A machine. Dropping this value removes the machine and all of its processes.
pub struct Machine {
    _unshare: KilledOnDrop,
    /// Process id of the machine's systemd, in the PID namespace of the test.
    pid: u32,
    directory: PathBuf,
    /// Dropped last, because a control group can be removed only after the end of its processes.
    _cgroup: Cgroup,
}

/// The control group of the machine's processes.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find(|fields| fields.get(2) == Some(&"cgroup2"))?;
        // The tests of this program run concurrently.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(root[1]).join(format!("linewarden-package-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Removes the innermost directories first, and repeats this while processes are still ending.
        let deadline = std::time::Instant::now() + TEST_TIMEOUT;
        while self.0.exists() && std::time::Instant::now() < deadline {
            let _ = Command::new("find")
                .arg(&self.0)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Machine {
    /// Starts a machine with `directory` as its `/mnt`. Skips the test if no machine can start here.
    pub fn require(directory: &Path) -> Self {
        match Self::start(directory) {
            Ok(machine) => machine,
            Err(reason) => skip!("{reason}"),
        }
    }

    fn start(directory: &Path) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        let programs = [
            "/usr/bin/dpkg-deb",
            "/usr/bin/dpkg-shlibdeps",
            "/lib/systemd/systemd",
            "/usr/sbin/adduser",
        ];
        if let Some(missing) = programs.iter().find(|program| !Path::new(program).exists()) {
            return Err(format!("no {missing}"));
        }
        let cgroup = Cgroup::new().ok_or("no cgroup2 to write to")?;
        nix::unistd::mkfifo(&directory.join("ready"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut unshare = KilledOnDrop(boot(directory, &cgroup));
        // With read and write access, the FIFO opens immediately, even if the machine never opens the FIFO.
        let mut ready = File::options()
            .read(true)
            .write(true)
            .open(directory.join("ready"))
            .unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = [0; 6];
            let result = std::io::Read::read_exact(&mut ready, &mut line);
            let _ = sender.send(result.is_ok() && line == *b"ready\n");
        });
        if receiver.recv_timeout(TEST_TIMEOUT) != Ok(true) {
            let _ = unshare.0.kill();
            let text = std::fs::read_to_string(directory.join("boot")).unwrap_or_default();
            return Err(format!("no private machine could be started: {text}"));
        }
        let children = format!("/proc/{0}/task/{0}/children", unshare.0.id());
        let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Ok(Self {
            _unshare: unshare,
            pid,
            directory: directory.to_owned(),
            _cgroup: cgroup,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn network(&self) -> NetNs {
        NetNs::from_fd(File::open(format!("/proc/{}/ns/net", self.pid)).unwrap().into())
    }

    /// Binds the network namespace of a process outside the machine to a file in the machine.
    #[track_caller]
    pub fn bind_network_namespace(&self, pid: u32, file: &str) {
        let enter = format!(
            "exec 3</proc/{pid}/ns/net; exec nsenter --target {0} --mount --pid --root=/proc/{0}/root --wd=/ \
             /bin/sh -ec 'touch {file}; exec mount --no-canonicalize --bind /proc/self/fd/3 {file}'",
            self.pid
        );
        let mut command = Command::new("sh");
        command.args(["-ec", &enter]);
        run(command);
    }

    /// Waits until the output of the package's units contains a line that matches `pattern`, a basic regular expression.
    #[track_caller]
    pub fn wait_for_output(&self, pattern: &str) {
        self.run(&format!(
            "exec bash -c 'exec 3< <(exec tail -n +1 -F /mnt/output); timeout 60 grep -q -m 1 \"{pattern}\" <&3; s=$?; kill $!; exit $s'"
        ));
    }

    fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid.to_string()])
            .args(["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"])
            .arg(format!("--root=/proc/{}/root", self.pid))
            .args(["--wd=/", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
            .args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"])
            .args(arguments);
        command
    }

    /// Runs a shell command, which must succeed; returns its output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        run(self.command(["sh", "-ec", line]))
    }

    /// Runs a command as the user of the service with this role, in the directory of the service. The command must succeed;
    /// returns its output.
    #[track_caller]
    pub fn run_as(&self, role: &str, command: &str) -> String {
        self.run(&as_user(role, command))
    }

    /// Whether a command succeeds as the user of the service with this role, in the directory of the service.
    pub fn succeeds_as(&self, role: &str, command: &str) -> bool {
        self.try_run(&as_user(role, command)).status.success()
    }

    /// Gives a file to the service with this role: copies the file into the directory of the service, with mode 0600.
    #[track_caller]
    pub fn give(&self, role: &str, file: &str) {
        let user = format!("linewarden-{role}");
        self.run(&format!(
            "install -m 600 -o {user} -g {user} {file} /var/lib/{user}/"
        ));
    }

    pub fn try_run(&self, line: &str) -> Output {
        self.command(["sh", "-ec", line]).output().unwrap()
    }

    /// Runs `systemctl`, which must succeed. Otherwise panics with the output of the package's units.
    #[track_caller]
    pub fn systemctl(&self, arguments: &str) {
        let output = self.try_run(&format!("systemctl {arguments}"));
        let text = std::fs::read_to_string(self.directory.join("output")).unwrap_or_default();
        assert!(
            output.status.success(),
            "systemctl {arguments}: {}{text}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    #[track_caller]
    pub fn main_pid(&self, unit: &str) -> u32 {
        let text = self.run(&format!("systemctl show --property MainPID --value {unit}"));
        text.trim().parse().unwrap()
    }
}

fn as_user(role: &str, command: &str) -> String {
    format!("cd /var/lib/linewarden-{role} && runuser -u linewarden-{role} -- {command}")
}

fn boot(directory: &Path, cgroup: &Cgroup) -> Child {
    let enter = format!(
        "echo $$ >{}/cgroup.procs; exec unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child {SCRIPT} {}",
        cgroup.0.display(),
        directory.display()
    );
    let log_file = || {
        File::options()
            .append(true)
            .create(true)
            .open(directory.join("boot"))
            .unwrap()
    };
    Command::new("sh")
        .args(["-ec", &enter])
        .stdin(Stdio::null())
        .stdout(log_file())
        .stderr(log_file())
        .spawn()
        .unwrap()
}
