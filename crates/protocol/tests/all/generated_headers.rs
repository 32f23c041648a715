//! The C and P4 headers in the repository match the list of verdicts.

use std::path::Path;

use linewarden_protocol::verdict::{self, Disposition, VERDICT_SLOTS, Verdict};

fn assert_current(path: &str, render: fn(&mut dyn std::fmt::Write) -> std::fmt::Result) {
    let mut expected = String::new();
    render(&mut expected).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == expected,
        "{path} is not what crates/protocol/src/verdict.rs generates; run \
         `cargo run -p linewarden-protocol --example generate` (or `make generate`) and commit it"
    );
}

#[test]
fn the_c_headers_are_current() {
    assert_current("crates/dataplane/src/xdp/bpf/lw_verdicts.h", verdict::render_c);
    assert_current(
        "crates/dataplane/src/classic/bpf/lw_published_verdicts.h",
        verdict::render_published_c,
    );
}

#[test]
fn the_p4_header_is_current() {
    assert_current("p4/include/lw_verdicts.p4", verdict::render_p4);
}

/// Data planes derive the disposition from the number: below 16 pass, below 32 reply, otherwise drop.
#[test]
fn numbers_determine_the_disposition() {
    for verdict in Verdict::ALL {
        let by_number = match verdict.number() {
            0 => panic!("0 is not a verdict"),
            1..16 => Disposition::Pass,
            16..32 => Disposition::Reply,
            _ => Disposition::Drop,
        };
        assert_eq!(verdict.disposition(), by_number, "{verdict}");
        assert!(usize::from(verdict.number()) < VERDICT_SLOTS, "{verdict}");
        assert_eq!(Verdict::from_number(verdict.number()), Some(*verdict));
    }
    let mut names: Vec<_> = Verdict::ALL.iter().map(|verdict| verdict.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Verdict::ALL.len());
}
