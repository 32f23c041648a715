//! The packet tests of the P4 programs (p4/tests), made from this crate: whatever answers them agrees with it byte for byte.
//!
//! `LINEWARDEN_WRITE=1 cargo test -p linewarden-protocol --test p4_packets` writes them anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod p4_packets {
    pub mod attest;
    pub mod bench;
    pub mod cipher;
    pub mod classic;
    pub mod lap;
    pub mod lap_gates;
    pub mod lap_handshakes;
    pub mod lap_limits;
    pub mod router;
    pub mod stf;
}

use std::path::Path;

use p4_packets::stf::Stf;
use p4_packets::{attest, cipher, classic, lap, router};

fn assert_current(tests: impl IntoIterator<Item = Stf>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/tests");
    for test in tests {
        let file = folder.join(test.file_name());
        if std::env::var_os("LINEWARDEN_WRITE").is_some() {
            std::fs::write(&file, test.text()).unwrap();
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            found == test.text(),
            "p4/tests/{} is not what the protocol gives; run `LINEWARDEN_WRITE=1 cargo test -p linewarden-protocol \
             --test p4_packets`, look at what has changed, and commit it",
            test.file_name()
        );
    }
}

#[test]
fn the_router_s_packets_are_current() {
    assert_current(router::tests());
}

#[test]
fn the_ciphers_packets_are_current() {
    assert_current(cipher::tests());
}

#[test]
fn the_attesting_programs_packets_are_current() {
    assert_current(attest::tests());
}

#[test]
fn the_classic_profiles_packets_are_current() {
    assert_current(classic::tests());
}

#[test]
fn the_gateway_s_packets_are_current() {
    assert_current(lap::tests());
}
