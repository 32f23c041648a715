//! Compiles all kernels for every supported architecture, without a GPU, if NVRTC is available, and compares their
//! resource usage with their budgets.
use std::process::Command;
use std::sync::Mutex;

use linewarden_harness::skip;
use linewarden_signatures::gpu::kernels::{self, KernelInfo};
use linewarden_signatures::gpu::{Cubin, Nvrtc, Unit};

const ARCHITECTURES: [&str; 5] = ["sm_75", "sm_80", "sm_87", "sm_89", "sm_90"];

/// Compiles one unit, and returns the resource usage of each kernel, or an error if a kernel exceeds its budget.
fn compile(nvrtc: &Nvrtc, unit: Unit, architecture: &str) -> Result<Vec<String>, String> {
    let code = nvrtc
        .compile(unit, architecture)
        .map_err(|error| error.to_string())?;
    let cubin = Cubin::parse(&code).ok_or("NVRTC returned machine code that is not an ELF file")?;
    let all_kernels = kernels::ALL.iter().copied();
    let kernels: Vec<&KernelInfo> = all_kernels.filter(|kernel| kernel.unit == unit).collect();
    assert!(!kernels.is_empty(), "{unit:?} has no kernels");
    kernels
        .iter()
        .map(|kernel| {
            let cost = cubin
                .resources(kernel.name)
                .ok_or_else(|| format!("kernel {} is missing", kernel.name))?;
            let description = format!("{architecture} {}: {cost:?}", kernel.name);
            let budget = kernel.budget;
            let is_within_budget = cost.registers <= budget.registers
                && cost.local_bytes <= budget.local_bytes
                && cost.shared_bytes <= budget.shared_bytes;
            match is_within_budget {
                true => Ok(description),
                false => Err(format!("{description} exceeds {budget:?}")),
            }
        })
        .collect()
}

/// The environment variable that passes the architecture to a child process.
const ARCHITECTURE_VARIABLE: &str = "LINEWARDEN_TEST_ARCHITECTURE";

/// NVRTC compiles only one unit at a time in a process. Therefore the test runs two processes at a time, each for one
/// architecture.
#[test]
fn all_kernels_compile_within_their_budgets() {
    match Nvrtc::find() {
        Ok(nvrtc) => println!("NVRTC {:?}", nvrtc.version()),
        Err(missing) => skip!("{missing}"),
    }
    let remaining = Mutex::new(ARCHITECTURES.to_vec());
    let failures = Mutex::new(Vec::new());
    let worker = || {
        while let Some(architecture) = { remaining.lock().unwrap().pop() } {
            let output = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "--nocapture",
                    "gpu::nvrtc::kernels_of_one_architecture",
                ])
                .env(ARCHITECTURE_VARIABLE, architecture)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            println!("{text}");
            if !output.status.success() || !text.contains(architecture) {
                failures.lock().unwrap().push(text);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(worker);
        worker();
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The test that a child process runs; it does nothing without the environment variable.
#[test]
fn kernels_of_one_architecture() {
    let Ok(architecture) = std::env::var(ARCHITECTURE_VARIABLE) else {
        return;
    };
    let nvrtc = Nvrtc::find().unwrap();
    for unit in Unit::PRODUCT {
        match compile(&nvrtc, unit, &architecture) {
            Ok(lines) => println!("{}", lines.join("\n")),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// A missing compiler does not end the process, and the message names the remedy.
#[test]
fn a_directory_without_the_compiler_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let message = Nvrtc::load(Some(directory.path())).err().unwrap().to_string();
    assert!(message.contains("LINEWARDEN_NVRTC"), "{message}");
}
