//! Generates `src/proto/` from `proto/`.

#[path = "../../p4runtime/examples/support/messages.rs"]
mod messages;

use self::messages::Messages;

/// The messages of this crate.
pub const MESSAGES: Messages = Messages {
    crate_directory: env!("CARGO_MANIFEST_DIR"),
    sources: &["linewarden/link/v1.proto"],
    descriptors: false,
};

/// Writes the generated files.
#[allow(dead_code, reason = "the test compares the files and writes none")]
pub fn main() -> std::io::Result<()> {
    MESSAGES.write()
}
