//! The records, by subject.

pub mod classic;
pub mod frame;
pub mod gate;
pub mod malformed;
pub mod request;
pub mod response;

use linewarden_protocol::verdict::Verdict;

use crate::support::world::{Shape, World};

/// One packet in one state.
pub struct Record {
    pub description: String,
    /// Brings the state about; packets that it sends are compared like the last one.
    pub given: Box<dyn Fn(&mut World)>,
    pub packet: Box<dyn Fn(&World) -> Vec<u8>>,
    pub verdict: Verdict,
}

/// Records under one configuration.
pub struct Group {
    pub shape: Shape,
    pub records: Vec<Record>,
}

pub fn record(
    description: impl Into<String>,
    given: impl Fn(&mut World) + 'static,
    packet: impl Fn(&World) -> Vec<u8> + 'static,
    verdict: Verdict,
) -> Record {
    Record {
        description: description.into(),
        given: Box::new(given),
        packet: Box::new(packet),
        verdict,
    }
}

pub fn group(shape: Shape, records: Vec<Record>) -> Group {
    Group { shape, records }
}

pub fn all() -> Vec<Group> {
    let groups = [
        malformed::groups(),
        request::groups(),
        response::groups(),
        frame::groups(),
        gate::groups(),
        classic::groups(),
    ];
    groups.into_iter().flatten().collect()
}
