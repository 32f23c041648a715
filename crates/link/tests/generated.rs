//! `src/proto` matches the output of the generator for `proto`.

#[path = "../examples/generate_link_messages.rs"]
mod generate;

#[test]
fn committed_messages_match_the_vendored_protocol_buffers() {
    let stale = generate::MESSAGES.stale().unwrap();
    assert!(
        stale.is_empty(),
        "{stale:?}: run cargo run -p linewarden-link --example generate_link_messages, and commit the files"
    );
}
