//! The GPUs of this machine.

use std::sync::Arc;

use linewarden_harness::skip_part;
use linewarden_signatures::gpu::{DeviceInfo, Gpu, Options};
use linewarden_signatures::lane::{GpuLane, KeyPlacement};

fn open_each<T>(open: impl Fn(&DeviceInfo) -> T) -> Vec<T> {
    match Gpu::discover() {
        Ok(devices) => devices.iter().map(open).collect(),
        Err(missing) => {
            skip_part!("{missing}");
            Vec::new()
        }
    }
}

pub fn open_all() -> Vec<Gpu> {
    open_each(|device| Gpu::open(device, &Options::default()).expect("a usable device"))
}

pub fn lanes(placement: &Arc<KeyPlacement>) -> Vec<GpuLane> {
    open_each(|device| {
        let lane = GpuLane::open(device, &Options::default(), Arc::clone(placement));
        lane.expect("a usable device")
    })
}
