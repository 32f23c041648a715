//! Fuzzing of files: CRPs and provers are parsed or rejected, and never cause a panic.

use linewarden_gateway::classic::parse_crps;
use linewarden_gateway::p4dra::parse_provers;
use proptest::collection::vec;
use proptest::prelude::*;

const CRPS: &str =
    "1 00000001 1111111111111111\n1 00000002 2222222222222222\n2 00000003 3333333333333333 # last\n";

#[test]
fn the_unedited_file_is_valid() {
    assert_eq!(parse_crps(CRPS, 8).unwrap().len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn responses_in_altered_crps_have_equal_lengths(edits in vec((0..CRPS.len(), any::<u8>()), 0..6), bytes in 0..64usize) {
        let mut text = CRPS.as_bytes().to_vec();
        for (at, value) in edits {
            text[at] = value;
        }
        let text = String::from_utf8_lossy(&text);
        if let Ok(crps) = parse_crps(&text, bytes) {
            let mut responses = crps.iter().flatten();
            prop_assert!(responses.all(|(_, response)| response.len() == bytes));
        }
    }

    /// Whatever the file contains, the parser returns at most one prover per line and no id twice.
    #[test]
    fn altered_p4dra_provers_have_distinct_ids(
        lines in vec(("0{28}([01]{4}|[01]{2,5})", "[0-9a-f]{64}|[0-9a-f]{63,65}", "[0-9a-f]{64}", " {0,2}|#"), 0..6),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let lines = lines.iter().map(|(id, key, h, end)| format!("{id} {key} {h}{end}\n"));
        let mut text = lines.collect::<String>().into_bytes();
        if !text.is_empty() {
            for (at, value) in edits {
                let at = at.index(text.len());
                text[at] = value;
            }
        }
        if let Ok(provers) = parse_provers(&text) {
            let lines = text.split(|byte| *byte == b'\n').count();
            prop_assert!(!provers.is_empty() && provers.len() <= lines);
            let ids: std::collections::HashSet<_> = provers.iter().map(|prover| prover.id).collect();
            prop_assert_eq!(ids.len(), provers.len());
        }
    }
}
