//! Generates `src/proto/` from `proto/`: the messages as Rust, and the descriptors that the text format
//! requires.

#[path = "support/messages.rs"]
mod messages;

use self::messages::Messages;

/// Messages of this crate.
pub const MESSAGES: Messages = Messages {
    crate_directory: env!("CARGO_MANIFEST_DIR"),
    sources: &[
        "p4/v1/p4runtime.proto",
        "p4/v1/p4data.proto",
        "p4/config/v1/p4info.proto",
        "google/rpc/status.proto",
        "linewarden/evidence/v1.proto",
    ],
    descriptors: true,
};

/// Writes the generated files.
#[allow(dead_code, reason = "the test `generated` uses only `MESSAGES`")]
pub fn main() -> std::io::Result<()> {
    MESSAGES.write()
}
