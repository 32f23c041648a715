//! The parts of a sealed gate that outlive its process. The tests drop the data plane, as at the end of its process, and
//! then run the program that stays on the interface. Needs root.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Program, XdpFlags};
use linewarden_dataplane::xdp::{self, Xdp};
use linewarden_dataplane::{Admission as _, DataPlaneError, Devices as _};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::verdict::Verdict::{self, *};
use zerocopy::IntoBytes as _;

use crate::support::device::{A, DeviceSession, GATEWAY, Response, gateway_end, sealed_frame, service_end};
use crate::support::fixture::attest::{proof, round};
use crate::support::fixture::{load_xdp, real_now};
use crate::support::netns::{index_of, ip, leave_namespace};
use crate::support::test_config::TestConfig;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const FRESH: [u8; 8] = [7; 8];

/// A BPF filesystem that only the test uses.
struct BpfFilesystem(tempfile::TempDir);

impl BpfFilesystem {
    fn mount(mode: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount
            .args(["-t", "bpf", "-o", mode, "bpf"])
            .arg(directory.path())
            .status();
        assert!(mounted.unwrap().success());
        Self(directory)
    }
}

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// Starts a data plane with a sealed gate whose programs and memory are pinned in the directory `pins`.
fn start(pins: &Path, interfaces: &[u32]) -> Result<Xdp, DataPlaneError> {
    let test_config = TestConfig {
        provers: 16,
        ..TestConfig::SEALED
    };
    let mut data_plane = Xdp::load_pinned(&test_config.config(), pins)?;
    // Interface 1 is the ingress interface of test runs.
    assert!(data_plane.store().set_port(1, &[gateway_end(false).mac]));
    for interface in interfaces {
        data_plane.attach_pinned(*interface, pins)?;
    }
    Ok(data_plane)
}

/// Creates two interfaces, whose peers are not used; returns their numbers.
fn interfaces() -> [u32; 2] {
    for pair in [
        "lw-a address 02:00:00:00:ff:fe type veth peer name lw-x",
        "lw-b address 02:00:00:00:ff:fe type veth peer name lw-y",
    ] {
        ip(&format!("link add {pair}"));
    }
    ["lw-a", "lw-b"].map(index_of)
}

/// Installs A with four CRP rows, and sets a fresh value that was drawn at `now_ns`.
fn install_a(data_plane: &mut Xdp, now_ns: u64) {
    let row = |idx| Row {
        challenge: A.challenge(Mode::Pool, RowIndex(idx)),
        auth_key: A.auth_key(Mode::Pool, RowIndex(idx)),
    };
    let rows: Vec<Row> = (0..4).map(row).collect();
    data_plane
        .install(A.id(), Mode::Pool, RowIndex(0), &rows, None)
        .unwrap();
    data_plane.set_fresh(FRESH, now_ns);
}

fn request() -> Vec<u8> {
    A.frame(false).udp(A.request([1; 16]).as_bytes())
}

/// The fields of A's RESPONSE for its first row.
fn response_fields() -> Response {
    Response {
        mode: Mode::Pool,
        idx: 0,
        gateway: GATEWAY,
        fresh: FRESH,
        bound: None,
        nonce: [1; 16],
    }
}

/// A sealed datagram of the session that A's RESPONSE opens.
fn data(seq: u32) -> Vec<u8> {
    let session = DeviceSession::of(A, Mode::Pool, &A.response(&response_fields()));
    let to = service_end(false);
    sealed_frame(A, &to).udp(&session.seal(seq, &to, b"reading"))
}

#[test]
fn a_sealed_gate_still_replies_without_its_process_but_checks_no_proofs() {
    enter_namespace();
    let filesystem = BpfFilesystem::mount("mode=0700");
    let pins = filesystem.0.path().join("gates");
    let interfaces = interfaces();
    let now_ns = real_now().monotonic_ms * 1_000_000;
    let mut data_plane = start(&pins, &interfaces).unwrap();
    install_a(&mut data_plane, now_ns);
    let program = AttachedProgram::of(interfaces[0]);
    assert_eq!(program.run(&request()), (XDP_TX, Some(ReplyChallenge)));
    let proof_frame = A.frame(false).udp(&proof(A, &round(4, 1), 1));
    assert_eq!(program.run(&proof_frame), (XDP_DROP, Some(DropRound)));

    drop(data_plane);
    replies_without_its_process(&program, &proof_frame, &interfaces);
    next_process_replaces_the_programs(&program, &pins, &interfaces);
    expired_fresh_value_stops_replies(&pins, &interfaces, now_ns);

    for interface in interfaces {
        assert!(xdp::remove_gate(&pins, interface).unwrap());
    }
    assert!(xdp::remove_memory(&pins, GATEWAY.0).unwrap());
    assert_eq!(names(&pins), BTreeSet::new());
}

/// Without its process, the gate still serves handshakes and DATA, but drops PROOFs.
fn replies_without_its_process(program: &AttachedProgram, proof_frame: &[u8], interfaces: &[u32; 2]) {
    // A kernel thread empties the tables of programs that are not pinned, some time after the data plane was dropped.
    let deadline = Instant::now() + Duration::from_secs(60);
    while program.run(proof_frame).1 != Some(DropStopped) {
        assert!(Instant::now() < deadline, "PROOFs are still checked");
    }
    // On both interfaces, the pinned tables of programs are not empty: the whole handshake and DATA still work.
    for interface in interfaces {
        assert_eq!(
            AttachedProgram::of(*interface).run(&request()),
            (XDP_TX, Some(ReplyChallenge))
        );
    }
    let response = A.frame(false).udp(&response_fields().bytes(A));
    assert_eq!(program.run(&response), (XDP_TX, Some(ReplyAck)));
    assert_eq!(program.run(&response), (XDP_TX, Some(ReplyAckRepeated)));
    assert_eq!(program.run(&data(1)), (XDP_PASS, Some(PassData)));
}

/// The programs of the next process replace the kept programs. Each interface then has exactly one table of programs.
fn next_process_replaces_the_programs(kept_program: &AttachedProgram, pins: &Path, interfaces: &[u32; 2]) {
    let data_plane = start(pins, interfaces).unwrap();
    let new_program = AttachedProgram::of(interfaces[0]);
    assert_ne!(kept_program.id, new_program.id);
    assert_eq!(new_program.run(&request()), (XDP_TX, Some(ReplyChallenge)));
    assert_eq!(new_program.run(&data(2)), (XDP_PASS, Some(PassData)));
    for interface in interfaces {
        let names = names(&interface_pins(pins, *interface));
        let tables = names.iter().filter(|name| name.starts_with("programs-"));
        assert_eq!((names.len(), tables.count()), (3, 1), "{names:?}");
    }
    drop(data_plane);
    let program_on_second = AttachedProgram::of(interfaces[1]);
    assert_eq!(program_on_second.run(&request()), (XDP_TX, Some(ReplyChallenge)));
}

/// When the fresh value is older than 16 s, the gate stops replying, but still opens DATA.
fn expired_fresh_value_stops_replies(pins: &Path, interfaces: &[u32; 2], now_ns: u64) {
    let data_plane = start(pins, &[]).unwrap();
    data_plane
        .store()
        .set_fresh(FRESH, now_ns.saturating_sub(17_000_000_000));
    drop(data_plane);
    for (seq, interface) in (3..).zip(interfaces) {
        let attached = AttachedProgram::of(*interface);
        assert_eq!(attached.run(&request()), (XDP_DROP, Some(DropStopped)));
        assert_eq!(attached.run(&data(seq)), (XDP_PASS, Some(PassData)));
    }
}

/// A start fails if another program is on the interface. It then leaves no new pin, and the previous gate is unchanged.
#[test]
fn a_failed_start_leaves_the_previous_gate_unchanged() {
    enter_namespace();
    let filesystem = BpfFilesystem::mount("mode=0700");
    let pins = filesystem.0.path().join("gates");
    ip("link add lw-a type veth peer name lw-x");
    let interface = index_of("lw-a");
    let other_directory = filesystem.0.path().join("elsewhere");
    drop(start(&other_directory, &[interface]).unwrap());
    let error = start(&pins, &[interface]).err().unwrap().to_string();
    assert!(error.contains("has an XDP program"), "{error}");
    assert_eq!(names(&interface_pins(&pins, interface)), BTreeSet::new());
    let names = names(&interface_pins(&other_directory, interface));
    assert!(
        names.contains("link") && names.contains("programs-0"),
        "{names:?}"
    );
    assert!(xdp::remove_gate(&other_directory, interface).unwrap());
}

/// `remove_gate` does not check who owns a directory, so that it can also remove directories that an attacker has
/// planted. It must not remove the gate of another interface because of a planted pin.
#[test]
fn removing_a_gate_affects_only_its_own_interface() {
    enter_namespace();
    let filesystem = BpfFilesystem::mount("mode=0700");
    let pins = filesystem.0.path().join("gates");
    let [own, other] = interfaces();
    let has_program = |interface: u32| {
        let null = std::fs::File::open("/dev/null").unwrap();
        let hook = libbpf_rs::Xdp::new(null.as_fd());
        hook.query_id(interface.cast_signed(), XdpFlags::NONE)
            .is_ok_and(|id| id != 0)
    };
    drop(start(&pins, &[own, other]).unwrap());
    let (pin, others_pin) = (
        interface_pins(&pins, own).join("link"),
        interface_pins(&pins, other).join("link"),
    );
    let moved_pin = filesystem.0.path().join("moved");
    for plant in [
        |from: &Path, to: &Path| std::os::unix::fs::symlink(from, to).unwrap(),
        |from: &Path, to: &Path| std::fs::hard_link(from, to).unwrap(),
    ] {
        std::fs::rename(&pin, &moved_pin).unwrap();
        plant(&others_pin, &pin);
        let _ = xdp::remove_gate(&pins, own);
        assert!(has_program(own) && has_program(other) && others_pin.exists());
        // `remove_gate` has removed the planted pin and its directory. This restores the original pin.
        std::fs::create_dir_all(pin.parent().unwrap()).unwrap();
        std::fs::rename(&moved_pin, &pin).unwrap();
    }
    for interface in [own, other] {
        assert!(xdp::remove_gate(&pins, interface).unwrap() && !has_program(interface));
    }
    assert!(xdp::remove_memory(&pins, GATEWAY.0).unwrap());
}

/// Missing directories of a relative path are created in the current directory, so that directory must be secure.
#[test]
fn a_relative_pin_directory_requires_a_secure_current_directory() {
    enter_namespace();
    for (mode, is_secure) in [("mode=0700", true), ("mode=1777", false)] {
        let filesystem = BpfFilesystem::mount(mode);
        let thread = std::thread::spawn(move || {
            // SAFETY: unshare takes no pointer. Afterwards, this thread has its own current directory.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
            std::env::set_current_dir(filesystem.0.path()).unwrap();
            let problem = xdp::pin_directory_problem(Path::new("gates/of-here"));
            assert_eq!(problem.is_none(), is_secure, "{mode}: {problem:?}");
            std::env::set_current_dir("/").unwrap();
        });
        thread.join().unwrap();
    }
}

/// Enters a new network namespace. Skips the test if privileges are missing.
fn enter_namespace() {
    load_xdp(&TestConfig::SEALED.config());
    leave_namespace();
}

/// The names of the files in a directory.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The directory of an interface's pins.
fn interface_pins(pins: &Path, interface: u32) -> PathBuf {
    let name = names(pins)
        .into_iter()
        .find(|name| name.ends_with(&format!("-if-{interface}")));
    pins.join(name.unwrap())
}

/// The program on an interface, and the map with its counters.
struct AttachedProgram {
    id: u32,
    program: OwnedFd,
    percpu: MapHandle,
}

impl AttachedProgram {
    fn of(interface: u32) -> Self {
        let null = std::fs::File::open("/dev/null").unwrap();
        let hook = libbpf_rs::Xdp::new(null.as_fd());
        let id = hook.query_id(interface.cast_signed(), XdpFlags::NONE).unwrap();
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let mut programs = ProgInfoIter::with_query_opts(options);
        let program = programs.find(|program| program.id == id).unwrap();
        let maps = program.map_ids.iter();
        let mut maps = maps.map(|id| MapHandle::from_map_id(*id).unwrap());
        Self {
            id,
            program: Program::fd_from_id(id).unwrap(),
            percpu: maps.find(|map| map.name() == "percpu").unwrap(),
        }
    }

    /// The counters, added over all CPUs.
    fn counts(&self) -> Vec<u64> {
        let zero = 0u32.to_ne_bytes();
        let values = self.percpu.lookup_percpu(&zero, MapFlags::ANY).unwrap().unwrap();
        let words = |value: &Vec<u8>| -> Vec<u64> {
            let words = value.chunks_exact(8);
            words
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                .collect()
        };
        values.iter().map(words).fold(vec![0; 256], |sum, value| {
            sum.iter().zip(value).map(|(sum, word)| sum + word).collect()
        })
    }

    /// Runs the program on a frame; returns the action and the counted verdict.
    fn run(&self, frame: &[u8]) -> (u32, Option<Verdict>) {
        let before = self.counts();
        let mut out = vec![0u8; frame.len() + 256];
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            ..Default::default()
        };
        // SAFETY: the buffers are valid until the call returns, and have the given lengths.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        let after = self.counts();
        let counted = |verdict: &Verdict| {
            let index = usize::from(verdict.number());
            after[index] != before[index]
        };
        (options.retval, Verdict::ALL.iter().copied().find(counted))
    }
}
