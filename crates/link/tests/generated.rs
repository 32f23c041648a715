//! What lies in `src/proto` is what `proto` gives.

#[path = "../examples/generate_link_messages.rs"]
mod generate;

use std::collections::BTreeSet;

#[test]
fn the_committed_messages_are_those_of_the_vendored_protocol_buffers() {
    let files = generate::generated().unwrap();
    for (name, content) in &files {
        let committed = std::fs::read(generate::target_dir().join(name)).unwrap_or_default();
        assert!(
            committed == *content,
            "{name} differs: run cargo run -p linewarden-link --example generate_link_messages, and commit"
        );
    }
    let there: BTreeSet<String> = std::fs::read_dir(generate::target_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(
        there,
        files.into_keys().collect(),
        "a file in src/proto that nothing generates"
    );
}
