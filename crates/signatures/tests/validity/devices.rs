//! The GPUs of this machine, where there are any.

use std::sync::Arc;

use linewarden_signatures::gpu::{DeviceInfo, Gpu, Options};
use linewarden_signatures::lane::{Graphics, Places};

fn each<T>(open: impl Fn(&DeviceInfo) -> T) -> Vec<T> {
    match Gpu::discover() {
        Ok(devices) => devices.iter().map(open).collect(),
        Err(missing) => {
            println!("SKIPPED: {missing}");
            Vec::new()
        }
    }
}

pub fn all() -> Vec<Gpu> {
    each(|device| Gpu::open(device, &Options::default()).expect("a device that can be used"))
}

pub fn lanes(places: &Arc<Places>) -> Vec<Graphics> {
    each(|device| {
        let lane = Graphics::open(device, &Options::default(), Arc::clone(places));
        lane.expect("a device that can be used")
    })
}
