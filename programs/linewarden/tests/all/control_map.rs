//! Changes of the map `control` of a running gateway by another process.

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::support::Process;

/// Changes the gateway's map `control`, as any privileged process can.
pub fn change(gateway: &Process, change: impl FnOnce(&mut Vec<u8>)) {
    let directory = std::fs::read_dir(format!("/proc/{}/fdinfo", gateway.id())).unwrap();
    let map_id = |text: String| {
        let line = text.lines().find(|line| line.starts_with("map_id:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let maps = directory
        .filter_map(|entry| map_id(std::fs::read_to_string(entry.unwrap().path()).ok()?))
        .map(|id| MapHandle::from_map_id(id).unwrap());
    let control = maps.into_iter().find(|map| map.name() == "control").unwrap();
    let key = 0u32.to_ne_bytes();
    let mut value = control.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    change(&mut value);
    control.update(&key, &value, MapFlags::ANY).unwrap();
}

/// Changes one bit in the highest byte of the NAK limit: `nak_per_s`, the sixth field of `struct lw_live`, which is at offset 64 of
/// `struct lw_control`. A second call restores the limit.
pub fn change_settings(gateway: &Process) {
    change(gateway, |value| value[64 + 5 * 4 + 3] ^= 1);
}
