//! The same tests on a device, where there is one with a compiler for it. All devices that are found are tested one
//! after the other.
use std::sync::Mutex;

use linewarden_signatures::gpu::{Gpu, NoGpu, Options};

/// Opened once for all tests, which wait for each other: a device has its own parallelism.
static DEVICES: Mutex<Option<Result<Vec<Gpu>, NoGpu>>> = Mutex::new(None);

fn open() -> Result<Vec<Gpu>, NoGpu> {
    Gpu::discover()?
        .iter()
        .map(|device| Gpu::open(device, &Options::default()))
        .collect()
}

fn on_each_device(mut test: impl FnMut(&mut Gpu)) {
    // A test that failed has told so; the others go on.
    let mut devices = DEVICES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match devices.get_or_insert_with(open) {
        Ok(devices) => devices.iter_mut().for_each(|gpu| {
            println!("{:?}", gpu.info());
            test(gpu);
        }),
        Err(missing) => println!("SKIPPED: {missing}"),
    }
}

crate::support::all_cases!(on_each_device);

/// The multipliers are measured, and make at least the eight products in a clock cycle that the weakest device can.
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
