//! Reports the backends that this CPU does not support.

use linewarden_arithmetic::Backend;
use linewarden_harness::skip_part;

#[test]
fn every_supported_backend_is_tested() {
    let tested: Vec<&str> = Backend::available().map(Backend::name).collect();
    println!("{tested:?}");
    #[cfg(target_arch = "x86_64")]
    for (name, is_supported) in [
        (
            "AVX2",
            std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma"),
        ),
        ("AVX-512 with IFMA", std::is_x86_feature_detected!("avx512ifma")),
    ] {
        if !is_supported {
            skip_part!(
                "arithmetic with {name}: not supported by this CPU (make avx512 runs it in an emulator)"
            );
        }
    }
}
