//! Fuzzing of configurations: they are accepted or refused, and never cause a panic.

use proptest::prelude::*;

use super::GatewayConfig;
use super::tests::parse;
use crate::file::Configuration as _;

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

#[test]
fn the_unedited_file_is_parsed() {
    parse(CONFIG);
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
            let _ = config
                .validate()
                .and_then(|valid| valid.resolve(&config.gateway, [seed, 1]));
        }
    }
}
