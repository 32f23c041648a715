//! The packet tests of the P4 programs (p4/tests), generated from this crate: a program that passes agrees with the
//! crate byte for byte.
//!
//! `LINEWARDEN_WRITE=1 cargo test -p linewarden-protocol --test all p4_packets` regenerates the files. The packet tests
//! also run here on the software switch, with frames that each seed alters differently. `LINEWARDEN_SEEDS` sets the number of
//! seeds (default 10), and `LINEWARDEN_SEED` sets the first seed (default 1).

mod attest;
mod cipher;
mod classic;
mod lap;
mod lap_gates;
mod lap_handshakes;
mod lap_limits;
mod lap_lists;
mod packet_tester;
mod router;
mod stf;

use std::path::Path;

use linewarden_switch::stf::Test;
use linewarden_switch::stf::run::run;
use stf::Stf;

fn assert_current(tests: impl IntoIterator<Item = Stf>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/tests");
    for test in tests {
        let file = folder.join(test.file_name());
        if std::env::var_os("LINEWARDEN_WRITE").is_some() {
            std::fs::write(&file, test.text()).unwrap();
        }
        let stored = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            stored == test.text(),
            "p4/tests/{} differs from the protocol crate's output; run `LINEWARDEN_WRITE=1 cargo test -p linewarden-protocol \
             --test all p4_packets`, review the changes, and commit them",
            test.file_name()
        );
    }
}

#[test]
fn packet_tests_of_the_router_are_current() {
    assert_current(router::tests());
}

#[test]
fn packet_tests_of_the_ciphers_are_current() {
    assert_current(cipher::tests());
}

#[test]
fn packet_tests_of_the_attesting_programs_are_current() {
    assert_current(attest::tests());
}

#[test]
fn packet_tests_of_the_classic_profiles_are_current() {
    assert_current(classic::tests());
}

#[test]
fn packet_tests_of_the_gateway_are_current() {
    assert_current(lap::tests());
}

fn environment_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn the_programs_agree_on_newly_altered_frames() {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/compiled");
    let first = environment_number("LINEWARDEN_SEED", 1);
    for seed in first..first + environment_number("LINEWARDEN_SEEDS", 10) {
        packet_tester::vary(seed);
        let tests = attest::tests().into_iter().chain(classic::tests());
        for test in tests.chain(lap::tests()) {
            let json = std::fs::read(compiled.join(format!("{}.json", test.program()))).unwrap();
            let parsed = Test::parse(&test.file_name(), test.text()).unwrap();
            if let Err(error) = run(&json, &parsed) {
                let name = test.file_name();
                panic!("{name}: replay with LINEWARDEN_SEED={seed} LINEWARDEN_SEEDS=1: {error}");
            }
        }
    }
}
