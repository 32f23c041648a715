//! Fuzzing of files: configurations and CRPs are parsed or rejected, and never cause a panic.

use linewarden_gateway::classic::parse_crps;
use linewarden_gateway::config::GatewayConfig;
use linewarden_gateway::p4dra::parse_provers;
use proptest::collection::vec;
use proptest::prelude::*;

const CONFIG: &str = r#"
[gateway]
id = 1
dataplane = "host"
addresses = ["127.0.0.1", "::1"]
port = 20550
gate = "off"
session_lifetime_s = 300
slots = 1000
ring = 8
low_rows = 2
mark_block = 4
nak_per_s = 10
threads = 2
[controller]
socket = "controller.sock"
[classic]
profile = "iot"
response_bits = 64
crps_file = "crps"
[log]
level = "info"
"#;

const VALUES: [&str; 12] = [
    "0",
    "-1",
    "4294967296",
    "18446744073709551615",
    "1e300",
    "\"\"",
    "[]",
    "true",
    "{}",
    "nan",
    "\"\\u0000\"",
    "",
];

const CRPS: &str =
    "1 00000001 1111111111111111\n1 00000002 2222222222222222\n2 00000003 3333333333333333 # last\n";

#[test]
fn the_unedited_files_are_valid() {
    toml::from_str::<GatewayConfig>(CONFIG).unwrap();
    assert_eq!(parse_crps(CRPS, 8).unwrap().len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_configurations_cause_no_panic(line in 0..CONFIG.lines().count(), value in 0..VALUES.len(), seed in any::<u64>()) {
        let text: Vec<String> = CONFIG
            .lines()
            .enumerate()
            .map(|(number, text)| match text.split_once(" = ") {
                Some((key, _)) if number == line => format!("{key} = {}", VALUES[value]),
                _ => text.to_owned(),
            })
            .collect();
        if let Ok(config) = toml::from_str::<GatewayConfig>(&text.join("\n")) {
            let _ = config.resolve([seed, 1], seed);
        }
    }

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
