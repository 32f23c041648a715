//! The generated files in `src/proto` match the protocol buffers in `proto`.

#[path = "../examples/generate_p4runtime_messages.rs"]
mod generate;

#[test]
fn committed_messages_match_the_vendored_protocol_buffers() {
    let stale = generate::MESSAGES.stale().unwrap();
    assert!(
        stale.is_empty(),
        "generated messages are stale: {stale:?}; run `cargo run -p linewarden-p4runtime --example generate_p4runtime_messages` and commit"
    );
}
