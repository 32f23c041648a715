//! Messages of P4Runtime and of the evidence service. `build.rs` generates them from `proto/`, which documents them.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "generated code: the .proto files have the documentation"
)]

/// Packages of P4Runtime. The module names follow the protobuf packages because the generated code refers to
/// them.
pub mod p4 {
    pub mod v1 {
        tonic::include_proto!("p4.v1");
    }
    pub mod config {
        pub mod v1 {
            tonic::include_proto!("p4.config.v1");
        }
    }
}

/// `google.rpc`: status whose details carry one error for each update.
pub mod google {
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// Packages of Linewarden.
pub mod linewarden {
    pub mod evidence {
        pub mod v1 {
            tonic::include_proto!("linewarden.evidence.v1");
        }
    }
}

pub use p4::config::v1 as config;
pub use p4::v1;

/// Serialized `google.protobuf.FileDescriptorSet` of these messages and their imports.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
