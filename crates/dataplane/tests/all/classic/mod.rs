//! The classic profiles on the oracle, in eBPF (`BPF_PROG_TEST_RUN`) and in memory: each record has a description, a
//! state, a packet and the expected verdict. Output and counters must agree exactly.

mod fixture;
mod p4dra;
mod p4dra_frames;
mod p4dra_records;
mod profiles;

use linewarden_dataplane::Gate;
use linewarden_protocol::classic::p4dra::{Message, Round};
use linewarden_protocol::verdict::Verdict::{self, *};

use self::fixture::{ClassicFixture, Served};
use crate::support::device::{A, gateway_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

/// Creates the frame of a record, after its `setup` has run.
type MakePacket = Box<dyn Fn(&ClassicFixture) -> Vec<u8>>;

/// A packet in a certain state, and the expected verdict.
struct Record {
    description: String,
    /// Sets up the state. Packets that it sends are compared like the packet of the record.
    setup: Box<dyn Fn(&mut ClassicFixture)>,
    packet: MakePacket,
    verdict: Verdict,
}

/// Records that share a fixture.
struct Group {
    served: Served,
    records: Vec<Record>,
}

fn record(
    description: impl Into<String>,
    setup: impl Fn(&mut ClassicFixture) + 'static,
    packet: impl Fn(&ClassicFixture) -> Vec<u8> + 'static,
    verdict: Verdict,
) -> Record {
    Record {
        description: description.into(),
        setup: Box::new(setup),
        packet: Box::new(packet),
        verdict,
    }
}

fn run(groups: Vec<Group>) {
    for group in groups {
        let mut fixture = ClassicFixture::new(group.served);
        for record in group.records {
            (record.setup)(&mut fixture);
            let frame = (record.packet)(&fixture);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fixture.send(&frame)));
            match result {
                Ok(got) => assert_eq!(got, record.verdict, "{} ({:?})", record.description, group.served),
                Err(panic) => {
                    eprintln!("failed record: {} ({:?})", record.description, group.served);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// The verdicts of all records.
pub fn covered_verdicts() -> impl Iterator<Item = Verdict> {
    let groups = profiles::groups().into_iter().chain(p4dra_records::groups());
    groups
        .flat_map(|group| group.records)
        .map(|record| record.verdict)
}

#[test]
fn classic_profiles() {
    run(profiles::groups());
}

#[test]
fn frames_of_p4dra() {
    run(p4dra_records::groups());
}

/// The data planes of a gateway handle messages of the profiles like all other frames.
#[test]
fn a_gateway_serves_no_classic_profile() {
    let message = Message::Request(Round { r: [1; 8], n: [2; 8] });
    let frame = p4dra_frames::frame_between(gateway_end(false).mac, A.mac(), &message);
    for (gate, verdict) in [
        (Gate::Off, PassForeign),
        (Gate::Bound, DropGateType),
        (Gate::Sealed, DropGateType),
    ] {
        let mut fixture = TestFixture::new(TestConfig {
            gate,
            ..TestConfig::OFF
        });
        assert_eq!(fixture.send(&frame), verdict, "{gate:?}");
    }
}
