//! Source texts of the kernels, as compiled for the device.

/// A file that is compiled separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// RSA-PSS verification.
    Pss,
    /// Full-domain hashes.
    Fdh,
    /// Rapid Authentication.
    Ra,
    /// The private operation of RSA.
    Crt,
    /// ECDSA verification on P-256.
    P256,
    /// The benchmark of the multiplier.
    MultiplierBench,
    /// Single operations, for tests.
    Probe,
}

impl Unit {
    /// Units loaded when a device is opened; only tests load the probe.
    pub const PRODUCT: [Self; 6] = [
        Self::Pss,
        Self::Fdh,
        Self::Ra,
        Self::Crt,
        Self::P256,
        Self::MultiplierBench,
    ];

    /// File name and source text.
    #[must_use]
    pub fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::Pss => ("pss.cu", include_str!("../../cuda/pss.cu")),
            Self::Fdh => ("fdh.cu", include_str!("../../cuda/fdh.cu")),
            Self::Ra => ("ra.cu", include_str!("../../cuda/ra.cu")),
            Self::Crt => ("crt.cu", include_str!("../../cuda/crt.cu")),
            Self::P256 => ("p256.cu", include_str!("../../cuda/p256.cu")),
            Self::MultiplierBench => ("limit.cu", include_str!("../../cuda/limit.cu")),
            Self::Probe => ("probe.cu", include_str!("../../cuda/probe.cu")),
        }
    }
}

macro_rules! headers {
    ($($name:literal)*) => {
        /// Names and texts of the header files.
        pub const HEADERS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../cuda/", $name))),)*];
    };
}

headers! {
    "carry.cuh" "fdh.cuh" "group.cuh" "kernel.cuh" "layouts.cuh" "mont.cuh" "p256_field.cuh" "p256_point.cuh" "platform.cuh" "public.cuh"
    "sha256.cuh"
}
