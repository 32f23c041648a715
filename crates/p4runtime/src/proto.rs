//! Messages of P4Runtime and of the evidence service, generated from `proto/`, which documents them.
//!
//! `cargo run -p linewarden-p4runtime --example generate_p4runtime_messages` regenerates them; the test
//! `generated` checks that the generated files are current.
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
        include!("proto/p4.v1.rs");
    }
    pub mod config {
        pub mod v1 {
            include!("proto/p4.config.v1.rs");
        }
    }
}

/// `google.rpc`: status whose details carry one error for each update.
pub mod google {
    pub mod rpc {
        include!("proto/google.rpc.rs");
    }
}

/// Packages of Linewarden.
pub mod linewarden {
    pub mod evidence {
        pub mod v1 {
            include!("proto/linewarden.evidence.v1.rs");
        }
    }
}

pub use p4::config::v1 as config;
pub use p4::v1;

/// Serialized `google.protobuf.FileDescriptorSet` of these messages and their imports.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");
