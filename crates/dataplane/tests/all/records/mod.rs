//! The records, by subject. Their closures call the fixture `w`.

pub mod admission;
pub mod always;
pub mod attest;
pub mod closed;
pub mod frame;
pub mod gate;
pub mod malformed;
pub mod owner;
pub mod repeated;
pub mod request;
pub mod response;
pub mod sealed;
pub mod slow;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::verdict::Verdict;

use crate::support::device::{A, TestDevice, gateway_end};
use crate::support::fixture::TestFixture;
use crate::support::test_config::TestConfig;

/// Creates the frame of a record, after its `setup` has run.
type MakePacket = Box<dyn Fn(&TestFixture) -> Vec<u8>>;

/// A packet in a certain state, and the expected verdict.
pub struct Record {
    pub description: String,
    /// Sets up the state. Packets that it sends are compared like the packet of the record.
    pub setup: Box<dyn Fn(&mut TestFixture)>,
    pub packet: MakePacket,
    pub verdict: Verdict,
}

/// Records that share a configuration.
pub struct Group {
    pub test_config: TestConfig,
    pub records: Vec<Record>,
}

pub fn record(
    description: impl Into<String>,
    setup: impl Fn(&mut TestFixture) + 'static,
    packet: impl Fn(&TestFixture) -> Vec<u8> + 'static,
    verdict: Verdict,
) -> Record {
    Record {
        description: description.into(),
        setup: Box::new(setup),
        packet: Box::new(packet),
        verdict,
    }
}

pub fn group(test_config: TestConfig, records: Vec<Record>) -> Group {
    Group { test_config, records }
}

/// The valid RESPONSE of a device from its own address, BOUND if `is_bound`.
pub fn valid_response(w: &TestFixture, device: TestDevice, is_bound: bool) -> Vec<u8> {
    let response = w.response(device);
    let response = if is_bound {
        response.bound(device.mac())
    } else {
        response
    };
    device.frame(false).udp(&response.bytes(device))
}

/// A frame to the gateway from A's address, after `change` has modified that address.
pub fn from(change: impl Fn(&mut Endpoint)) -> FrameBuilder {
    let mut end = A.end(false);
    change(&mut end);
    FrameBuilder::new(end, gateway_end(false))
}

pub fn all() -> Vec<Group> {
    let groups = [
        malformed::groups(),
        admission::groups(),
        request::groups(),
        response::groups(),
        repeated::groups(),
        owner::groups(),
        closed::groups(),
        frame::groups(),
        gate::groups(),
        always::groups(),
        sealed::groups(),
        slow::groups(),
        attest::groups(),
    ];
    groups.into_iter().flatten().collect()
}
