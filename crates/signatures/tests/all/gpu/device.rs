//! The same tests on real devices, if a device and a compiler are available. All devices are tested one after the
//! other.
use std::sync::Mutex;

use linewarden_harness::skip;
use linewarden_signatures::gpu::{Gpu, GpuUnavailable, Options};

/// The devices, opened once. Only one test at a time uses them, since a device parallelizes by itself.
static DEVICES: Mutex<Option<Result<Vec<Gpu>, GpuUnavailable>>> = Mutex::new(None);

fn open() -> Result<Vec<Gpu>, GpuUnavailable> {
    Gpu::discover()?
        .iter()
        .map(|device| Gpu::open(device, &Options::default()))
        .collect()
}

fn on_each_device(mut test: impl FnMut(&mut Gpu)) {
    // A failed test has already reported its error; the other tests continue.
    let mut devices = DEVICES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match devices.get_or_insert_with(open) {
        Ok(devices) => devices.iter_mut().for_each(|gpu| {
            println!("{:?}", gpu.info());
            test(gpu);
        }),
        Err(missing) => skip!("{missing}"),
    }
}

crate::gpu::support::all_cases!(on_each_device);

/// Each device computes at least eight products in a clock cycle, the number of the slowest supported device.
#[test]
fn the_multiplier_is_measured() {
    on_each_device(|gpu| {
        let multiplier = gpu.multiplier(500).unwrap();
        println!("{multiplier:?}");
        assert!(
            (8.0..=128.0).contains(&multiplier.products_per_clock),
            "{multiplier:?}"
        );
    });
}
