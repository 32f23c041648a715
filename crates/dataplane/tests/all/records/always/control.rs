//! Control protocols of the link: the gate passes a control protocol if the operator has listed it.

use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::verdict::Verdict::*;

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;

use super::{end, with_byte};
use crate::records::{Record, record};
use crate::support::device::B;

/// Messages of a protocol, one to each of its addresses.
fn messages_of(protocol: ControlProtocol) -> Vec<Vec<u8>> {
    let to = |(mac, ether_type): &([u8; 6], u16)| {
        let to = Endpoint {
            mac: *mac,
            ..end("10.66.0.9")
        };
        let from = Endpoint {
            mac: B.mac(),
            ..end("10.66.128.2")
        };
        let ether_type = if *ether_type == 0 { 46 } else { *ether_type };
        FrameBuilder::new(from, to).ethernet(ether_type, &[2; 46])
    };
    protocol.addresses().iter().map(to).collect()
}

/// Messages of all control protocols, which pass only if the operator has listed the protocols.
pub(super) fn records(is_listed: bool) -> Vec<Record> {
    let mut records = Vec::new();
    for protocol in ControlProtocol::ALL {
        let is_bridge_message = matches!(protocol, ControlProtocol::Stp | ControlProtocol::Cdp);
        let verdict = match (is_listed, is_bridge_message) {
            (true, _) => PassAlways,
            (false, true) => DropGateRole,
            (false, false) => DropGateType,
        };
        for (number, frame) in messages_of(*protocol).into_iter().enumerate() {
            // The same message with another Ethernet type, and the same message to a host.
            let (other_type, to_host) = (
                with_byte(frame.clone(), 13, 0xff),
                with_byte(frame.clone(), 0, 0x02),
            );
            let name = format!("{}, address {number}, listed {is_listed}", protocol.name());
            let record =
                |name, frame: Vec<u8>, verdict| record(name, |_| {}, move |_| frame.clone(), verdict);
            records.push(record(format!("{name}, to a host"), to_host, DropGateType));
            let is_llc = other_type[12] < 6;
            if !is_llc {
                records.push(record(format!("{name}, another type"), other_type, DropGateType));
            }
            records.push(record(name, frame, verdict));
        }
    }
    records
}
