//! Runs the test cases of arithmetic, hashing and P-256 with PTX that NVRTC compiles and an interpreter executes. Carries
//! in the condition code, shuffles, votes and divergent branches behave as on a device; code for the CPU has loops and
//! 64-bit sums instead. Only the translation from PTX to machine code is not tested without a device.
mod machine;
mod program;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

use linewarden_harness::skip;
use linewarden_signatures::gpu::kernels::{self, BLOCK_THREADS, KernelInfo};
use linewarden_signatures::gpu::{Emulation, Gpu, GpuUnavailable, Nvrtc, Unit};
use program::Program;

type Programs = HashMap<String, Program>;

/// The programs, compiled once for all tests. Other units add only C++ code that is the same on the host.
static PROGRAMS: LazyLock<Result<Arc<Programs>, GpuUnavailable>> = LazyLock::new(|| {
    let nvrtc = Nvrtc::find()?;
    let ptx = [Unit::Fdh, Unit::P256, Unit::Probe].map(|unit| nvrtc.compile_ptx(unit, "compute_80"));
    let ptx = ptx.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(ptx.iter().flat_map(|ptx| program::read(ptx)).collect()))
});

fn interpreted(test: impl FnOnce(&mut Gpu)) {
    let programs = match &*PROGRAMS {
        Ok(programs) => Arc::clone(programs),
        Err(missing) => skip!("{missing}"),
    };
    let launch = move |kernel: &'static KernelInfo, items: usize, arguments: *const c_void| {
        if kernel.name == kernels::P256_TABLES.info.name {
            // Executed as C++, since interpreting a million multiplications one thread after the other takes too long.
            // SAFETY: the emulation made the arguments for this kernel.
            return unsafe { kernel.run_on_host(arguments) };
        }
        let threads = items * kernel.threads_per_item as usize;
        let program = &programs[kernel.name];
        // SAFETY: the emulation made the arguments for this kernel.
        unsafe { machine::run(program, threads, BLOCK_THREADS as usize, arguments.cast()) };
    };
    test(&mut Gpu::emulated_by(Emulation::default(), Box::new(launch)).unwrap());
}

crate::gpu::support::all_cases! { interpreted:
    multipliers = arithmetic::multipliers, 1;
    field_of_p256 = arithmetic::p256_field, 2;
    full_domain_hashes = rsa::full_domain_hashes, 3;
    p256_signatures_of_another_signer = p256::signatures, 11;
    p256_points_that_meet = p256::meeting_points, 12;
}
