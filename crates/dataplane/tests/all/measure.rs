//! The measurement of the programs that the kernel runs. It is the same when it is repeated, and differs after changes
//! of the configuration and after changes by other processes. Needs root.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_insn};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Program, TC_EGRESS, TcHook, XdpFlags};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{
    Admission as _, Config, DataPlane, DataPlaneError, Evidence as _, Measurement, Stamp,
};
use linewarden_evidence::encoding::Entry;
use linewarden_evidence::inband::{MasterKey, Template};
use linewarden_evidence::state::{Digests, Snapshot};
use linewarden_evidence::{BootCount, Digest, Sequence, SwitchId};
use linewarden_harness::skip;

use crate::support::netns::{index_of, ip, leave_namespace};
use crate::support::test_config::{TestConfig, device_prefixes};
use linewarden_protocol::sources::{DeviceSources, OwnAddress, Prefix};

/// Loads the programs. Skips the test if this process is not allowed to load them.
fn load(config: &Config) -> Xdp {
    match Xdp::load(config) {
        Ok(data_plane) => data_plane,
        Err(DataPlaneError::Privilege { capability, .. }) => skip!("requires {capability}"),
        Err(error) => panic!("{error}"),
    }
}

fn config(seed: u64) -> Config {
    let mut config = TestConfig::OFF.config();
    config.geometry.hash_seed = [seed, !seed];
    config
}

/// The contents of all entries of a measurement, by name.
fn contents(measurement: &Measurement) -> BTreeMap<String, String> {
    let line = |entry: &Entry| {
        (
            format!("{} {}", entry.object(), entry.entry_name()),
            entry.content_text(),
        )
    };
    measurement.entries.iter().map(line).collect()
}

/// The names of the entries that differ or exist in only one of the measurements.
fn changed(before: &Measurement, after: &Measurement) -> Vec<String> {
    let (before, after) = (contents(before), contents(after));
    let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let differs = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    differs.cloned().collect()
}

#[test]
fn an_object_that_is_loaded_twice_has_the_same_measurement() {
    let first = load(&config(1));
    let second = load(&config(2));
    let (first, second) = (first.measure().unwrap(), second.measure().unwrap());
    assert_eq!(first, second, "{:?}", changed(&first, &second));
    assert!(
        first
            .programs
            .iter()
            .any(|program| program.name == "linewarden_gateway")
    );
    let mut changed_config = config(1);
    changed_config.session_lifetime_s += 1;
    let other = load(&changed_config).measure().unwrap();
    assert_eq!(changed(&first, &other), ["eBPF map control entry 00000000"]);
}

#[test]
fn packets_and_operations_of_the_gateway_do_not_change_the_measurement() {
    let mut data_plane = load(&config(1));
    let before = data_plane.measure().unwrap();
    data_plane.set_fresh([7; 8], 1);
    data_plane.set_stopping(true);
    data_plane.set_enrollment_filter(true);
    data_plane.enroll(linewarden_protocol::ids::DeviceId(7));
    data_plane.set_owner(9);
    data_plane.test_run(&[0xff; 64]).unwrap();
    let after = data_plane.measure().unwrap();
    assert_eq!(before, after, "{:?}", changed(&before, &after));
}

/// The measurement contains the configured prefixes. It contains the machine's addresses only if the memory differs from
/// what the gateway has written.
#[test]
fn addresses_are_excluded_until_another_process_writes_them() {
    let mut data_plane = load(&config(1));
    let prefixes =
        |texts: &[&str]| -> Vec<Prefix> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let own = |hosts: u8| -> Vec<OwnAddress> {
        let address = |host: u8| IpAddr::from([10, 66, 0, host]);
        (1..=hosts).map(|host| OwnAddress::host(address(host))).collect()
    };
    let configured = device_prefixes();
    let mut measure_with = |sources: &DeviceSources| {
        data_plane.set_sources(sources);
        data_plane.measure().unwrap()
    };
    let before = measure_with(&DeviceSources::new(&configured, &[], &own(1)));
    assert_eq!(
        measure_with(&DeviceSources::new(&configured, &[], &own(9))),
        before
    );
    let too_many = DeviceSources::new(&configured, &[], &own(70));
    assert!(too_many.overflows(true));
    assert_eq!(measure_with(&too_many), before);
    let names = ["eBPF map control entry 64657669636520736f7572636573"];
    let wider = measure_with(&DeviceSources::new(&prefixes(&["0.0.0.0/0"]), &[], &own(9)));
    assert_eq!(changed(&before, &wider), names);
    let followed_sources = |texts| DeviceSources::new(&prefixes(texts), &[], &own(2)).following_interfaces();
    let followed = measure_with(&followed_sources(&["10.66.0.0/16"]));
    assert_eq!(changed(&before, &followed), names);
    assert_eq!(
        measure_with(&followed_sources(&["10.66.0.0/16", "10.9.0.0/16"])),
        followed
    );

    // Another process that has opened the memory writes other prefixes; later it removes one address.
    data_plane
        .store()
        .set_sources(&followed_sources(&["10.66.0.0/16", "10.8.0.0/15"]));
    assert_eq!(changed(&followed, &data_plane.measure().unwrap()), names);
    data_plane.set_sources(&followed_sources(&["10.66.0.0/16"]));
    assert_eq!(data_plane.measure().unwrap(), followed);
    let fewer = DeviceSources::new(&prefixes(&["10.66.0.0/16"]), &[], &own(1));
    data_plane.store().set_sources(&fewer.following_interfaces());
    assert_eq!(changed(&followed, &data_plane.measure().unwrap()), names);
}

/// The measurement does not contain the evidence that is written into packets, but the program that writes it.
#[test]
fn evidence_in_packets_is_not_measured_but_its_program_is() {
    let test_config = |inband_evidence| TestConfig {
        inband_evidence,
        ..TestConfig::BOUND
    };
    let data_plane = load(&test_config(true).config());
    let before = data_plane.measure().unwrap();
    let snapshot = Snapshot {
        switch: SwitchId(1),
        boot_count: BootCount(2),
        sequence: Sequence(3),
        digests: Digests {
            program: Digest([1; 32]),
            tables: Digest([2; 32]),
            registers: Digest([3; 32]),
        },
    };
    let key = MasterKey::new([4; 16]).key(snapshot.switch, snapshot.boot_count);
    data_plane.set_stamp(Some(&Stamp {
        template: Template::new(&key, &snapshot),
        until_ns: u64::MAX,
    }));
    data_plane.test_run(&[0xff; 64]).unwrap();
    let after = data_plane.measure().unwrap();
    assert_eq!(before, after, "{:?}", changed(&before, &after));

    let contains_program = |measurement: &Measurement, name: &str| {
        let mut programs = measurement.programs.iter();
        programs.any(|program| program.name == name)
    };
    let without_evidence = load(&test_config(false).config()).measure().unwrap();
    for (name, is_with_evidence, is_without_evidence) in [
        ("linewarden_stamp", true, false),
        ("linewarden_gateway_stamping", true, false),
        ("linewarden_gateway", false, true),
    ] {
        assert_eq!(
            (
                contains_program(&before, name),
                contains_program(&without_evidence, name)
            ),
            (is_with_evidence, is_without_evidence),
            "{name}"
        );
    }
    let names = changed(&without_evidence, &before);
    assert!(
        names.contains(&"eBPF map programs entry 00000001".to_owned()),
        "{names:?}"
    );
}

#[test]
fn foreign_programs_and_settings_are_reported() {
    let mut data_plane = load(&config(1));
    leave_namespace();
    ip("link add lw-a type veth peer name lw-b");
    ip("link set lw-a up");
    let index = index_of("lw-a");
    data_plane.attach(index).unwrap();
    let before = data_plane.measure().unwrap();
    let attached = contents(&before);
    let mut hooks = attached.iter().filter(|(name, _)| name.contains("of interface"));
    let (hook_name, program) = hooks.next().unwrap();
    assert!(
        hook_name.contains("xdp-") && hook_name.contains("lw-a"),
        "{hook_name}"
    );
    assert!(
        program.contains("linewarden_gateway") && !program.contains("foreign"),
        "{program}"
    );

    // Another program attaches a filter.
    let filter = load_foreign(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, c"let_all_out");
    let mut hook = TcHook::new(filter.as_fd());
    hook.ifindex(index.cast_signed())
        .attach_point(TC_EGRESS)
        .handle(1)
        .priority(7);
    hook.create().unwrap();
    hook.attach().unwrap();
    let names = changed(&before, &data_plane.measure().unwrap());
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names[0].contains("program foreign let_all_out, tag "),
        "{names:?}"
    );
    assert!(names[1].contains("tc-egress 7:1"), "{names:?}");
    hook.detach().unwrap();
    assert_eq!(data_plane.measure().unwrap(), before);

    // Another process that has opened the link replaces the program at the hook.
    let program = load_foreign(libbpf_sys::BPF_PROG_TYPE_XDP, c"linewarden_gateway");
    let own_measurement = Xdp::measure(&data_plane).unwrap();
    let previous = exchange(index, &program);
    let after = data_plane.measure().unwrap();
    let content = &contents(&after)[hook_name];
    assert!(content.contains("foreign linewarden_gate, tag "), "{content}");
    assert_ne!(after.programs, own_measurement.programs);
    exchange(index, &previous);
    assert_eq!(data_plane.measure().unwrap(), before);

    // The gateway itself sets other MAC addresses; then another process writes a MAC address to the map.
    let entry = format!("eBPF map control entry {}", hex(b"lw-a"));
    data_plane.set_own_macs(index, &[[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]]);
    assert_eq!(data_plane.measure().unwrap(), before);
    data_plane.store().set_port(index, &[[2, 0, 0, 0, 0, 3]]);
    assert_eq!(changed(&before, &data_plane.measure().unwrap()), [entry]);
    data_plane.refresh_links();
    assert_eq!(data_plane.measure().unwrap(), before);

    // Another process that has opened the map changes the settings.
    let control = map_of(index, "control");
    let key = 0u32.to_ne_bytes();
    let mut value = control.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    value[64] ^= 1; // session_lifetime_s
    control.update(&key, &value, MapFlags::ANY).unwrap();
    let after = data_plane.measure().unwrap();
    assert_eq!(changed(&before, &after), ["eBPF map control entry 00000000"]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Loads a program that passes all frames, like a program of another process.
fn load_foreign(kind: libbpf_sys::bpf_prog_type, name: &CStr) -> OwnedFd {
    let mut instructions = [bpf_insn::default(); 2];
    // r0 = 2 (XDP_PASS); exit.
    (instructions[0].code, instructions[0].imm) = (0xb7, 2);
    instructions[1].code = 0x95;
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if kind == libbpf_sys::BPF_PROG_TYPE_XDP {
        // libbpf loads the gateway's programs with this type, and a link accepts only programs with the same type.
        options.expected_attach_type = libbpf_sys::BPF_XDP;
    }
    // SAFETY: the strings end with a zero byte, and `instructions` has the given length.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            2,
            &raw mut options,
        )
    };
    assert!(fd > 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Replaces the program in the link at an interface; returns the previous one.
fn exchange(index: u32, program: &OwnedFd) -> OwnedFd {
    // The link is found by its program. Its interface number is not unique, because tests that run at the same time have
    // their own namespaces.
    let program_id = program_on(index);
    let link = LinkInfoIter::default()
        .find(|link| link.prog_id == program_id && matches!(link.info, LinkTypeInfo::Xdp(_)))
        .unwrap();
    let before = Program::fd_from_id(link.prog_id).unwrap();
    // SAFETY: both calls take only numbers and a null pointer.
    let result = unsafe {
        let fd = libbpf_sys::bpf_link_get_fd_by_id(link.id);
        assert!(fd > 0, "{}", std::io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd);
        libbpf_sys::bpf_link_update(fd.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
    };
    assert_eq!(result, 0);
    before
}

/// The number of the program on an interface of this namespace.
fn program_on(index: u32) -> u32 {
    let null = std::fs::File::open("/dev/null").unwrap();
    let hook = libbpf_rs::Xdp::new(null.as_fd());
    hook.query_id(index.cast_signed(), XdpFlags::NONE).unwrap()
}

/// A map of the program on an interface. Any process with the privilege can find the map in this way.
fn map_of(index: u32, name: &str) -> MapHandle {
    let id = program_on(index);
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let program = ProgInfoIter::with_query_opts(options)
        .find(|program| program.id == id)
        .unwrap();
    let maps = program
        .map_ids
        .iter()
        .map(|id| MapHandle::from_map_id(*id).unwrap());
    maps.into_iter().find(|map| map.name() == name).unwrap()
}
