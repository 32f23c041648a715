//! Reads and writes eBPF maps with `u32` keys.

use libbpf_rs::{Error, MapCore, MapFlags, MapHandle, Result};

/// Elements written by one system call.
const BATCH: u32 = 4096;

/// A handle that outlives the skeleton.
pub(crate) fn handle(map: &impl MapCore) -> Result<MapHandle> {
    MapHandle::from_map_id(map.info()?.info.id)
}

/// Sets elements `0..count` of an array.
pub(crate) fn fill<const N: usize>(
    map: &impl MapCore,
    count: u32,
    value: impl Fn(u32) -> [u8; N],
) -> Result<()> {
    let mut first = 0;
    while first < count {
        let end = count.min(first.saturating_add(BATCH));
        let keys: Vec<u8> = (first..end).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = (first..end).flat_map(&value).collect();
        map.update_batch(&keys, &values, end - first, MapFlags::ANY, MapFlags::ANY)?;
        first = end;
    }
    Ok(())
}

pub(crate) fn write(map: &impl MapCore, key: u32, value: &[u8]) -> Result<()> {
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY)
}

pub(super) fn read(map: &impl MapCore, key: u32) -> Result<Vec<u8>> {
    map.lookup(&key.to_ne_bytes(), MapFlags::ANY)?
        .ok_or_else(|| Error::from(std::io::Error::from(std::io::ErrorKind::NotFound)))
}

/// Element 0 of a per-CPU array of `N` counters, summed over the CPUs.
pub(super) fn sum_per_cpu<const N: usize>(map: &impl MapCore) -> Result<[u64; N]> {
    let mut sums = [0u64; N];
    let per_cpu = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    for values in per_cpu.into_iter().flatten() {
        for (sum, bytes) in sums.iter_mut().zip(values.as_chunks::<8>().0) {
            *sum += u64::from_ne_bytes(*bytes);
        }
    }
    Ok(sums)
}
