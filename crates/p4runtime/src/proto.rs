//! The messages of P4Runtime and of evidence, generated from `proto/`, where they are explained.
//!
//! `cargo run -p linewarden-p4runtime --example generate_p4runtime_messages` writes them anew; the test `generated` compares.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    rustdoc::all,
    reason = "generated: the .proto files document it"
)]

/// P4Runtime's own packages, named as in the protocol buffers, because the generated code refers to itself
/// so.
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

/// `google.rpc`: the status whose details carry one error for each update.
pub mod google {
    pub mod rpc {
        include!("proto/google.rpc.rs");
    }
}

/// Linewarden's own.
pub mod linewarden {
    pub mod evidence {
        pub mod v1 {
            include!("proto/linewarden.evidence.v1.rs");
        }
    }
}

pub use p4::config::v1 as config;
pub use p4::v1;

/// The serialized `google.protobuf.FileDescriptorSet` of all of these and what they import.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");
