//! Traffic manager of simple_switch: processing before, between and after the pipelines.

use std::collections::VecDeque;

use num_bigint::BigInt;

use super::number;
use super::state::{Packet, Requests};
use super::{COPIES_MAX, DropReason, Interpreter, PASSES_MAX, STEPS_MAX, WAITING_MAX};
use crate::program::FieldList;

/// Values of `instance_type`.
mod instance {
    pub const NORMAL: u32 = 0;
    pub const INGRESS_CLONE: u32 = 1;
    pub const EGRESS_CLONE: u32 = 2;
    pub const RECIRCULATED: u32 = 4;
    pub const REPLICATED: u32 = 5;
    pub const RESUBMITTED: u32 = 6;
}

/// Queues of packets that result from one received packet.
#[derive(Default)]
struct Queues<'p> {
    ingress: VecDeque<Packet<'p>>,
    egress: VecDeque<(u32, Packet<'p>)>,
    /// Number of resubmitted and recirculated passes.
    extra_passes: u32,
    egress_passes: u32,
}

impl<'a> Interpreter<'a> {
    /// Processes a packet until all queues are empty.
    pub(super) fn receive(&mut self, port: u32, frame: &[u8]) {
        let mut packet = Packet::new(self.program, frame.to_vec());
        self.set_standard(&mut packet, "ingress_port", port);
        let length = packet.length;
        self.set_standard(&mut packet, "packet_length", length);
        self.set_standard(&mut packet, "instance_type", instance::NORMAL);
        let now_us = self.now_us;
        self.set_named(
            &mut packet,
            "intrinsic_metadata",
            "ingress_global_timestamp",
            now_us,
        );
        let mut queues = Queues::default();
        queues.ingress.push_back(packet);
        while let Some(packet) = queues.ingress.pop_front() {
            self.ingress(port, packet, &mut queues);
            while let Some((port, packet)) = queues.egress.pop_front() {
                self.egress(port, packet, &mut queues);
            }
        }
    }

    fn set_standard(&self, packet: &mut Packet<'a>, field: &str, value: impl Into<BigInt>) -> bool {
        self.set_named(packet, "standard_metadata", field, value)
    }

    fn read_named(&self, packet: &Packet<'a>, header: &str, field: &str) -> Option<u32> {
        let field = self.program.field_named(header, field)?;
        Some(number::low_u32(&packet.headers.field(field)))
    }

    fn egress_spec(&self, packet: &Packet<'a>) -> u32 {
        self.read_named(packet, "standard_metadata", "egress_spec")
            .unwrap_or(0)
    }

    fn count_drop(&mut self, reason: DropReason) {
        *self.outcome.dropped.entry(reason).or_default() += 1;
    }

    fn ingress(&mut self, port: u32, mut packet: Packet<'a>, queues: &mut Queues<'a>) {
        let received = packet.data.clone();
        let length = packet.length;
        if let Err(reason) = self.run_ingress(&mut packet) {
            return self.count_drop(reason);
        }
        let egress_spec = self.egress_spec(&packet);
        let group = self
            .read_named(&packet, "intrinsic_metadata", "mcast_grp")
            .unwrap_or(0);
        if let Some((session, list)) = packet.requests.clone.take() {
            self.clone_ingress(port, &packet, (&received, length), session, list, queues);
        }
        self.send_digest(&packet);
        if packet.requests.resubmit != 0 {
            let list = packet.requests.resubmit;
            let pass = self.new_pass(&packet, received, length, list, instance::RESUBMITTED);
            return self.enqueue_pass(pass, queues);
        }
        if group != 0 {
            self.set_standard(&mut packet, "instance_type", instance::REPLICATED);
            return self.multicast(&mut packet, group, queues);
        }
        if egress_spec == self.config.drop_port {
            return self.count_drop(DropReason::Ingress);
        }
        self.set_standard(&mut packet, "instance_type", instance::NORMAL);
        self.enqueue(egress_spec, packet, queues);
    }

    fn run_ingress(&mut self, packet: &mut Packet<'a>) -> Result<(), DropReason> {
        let program = self.program;
        packet.steps = STEPS_MAX;
        self.parse(packet)?;
        let error = packet.parser_error.clone();
        self.set_standard(packet, "parser_error", error);
        let checksum_error = u32::from(packet.checksum_error);
        self.set_standard(packet, "checksum_error", checksum_error);
        self.pipeline(packet, &program.ingress)?;
        packet.exit = false;
        Ok(())
    }

    /// Clones the packet as received. The clone is parsed again and keeps only the headers.
    fn clone_ingress(
        &mut self,
        port: u32,
        packet: &Packet<'a>,
        (received, length): (&[u8], u64),
        session: u16,
        list: u16,
        queues: &mut Queues<'a>,
    ) {
        if self.forwarding.clone_session(u32::from(session)).is_none() {
            return;
        }
        let mut copy = Packet::new(self.program, received.to_vec());
        copy.ingress_length = packet.ingress_length;
        copy.length = length;
        self.set_standard(&mut copy, "ingress_port", port);
        if let Err(reason) = self.parse(&mut copy) {
            return self.count_drop(reason);
        }
        copy.headers.clear_metadata();
        self.copy_field_list(&mut copy, packet, list);
        self.set_standard(&mut copy, "instance_type", instance::INGRESS_CLONE);
        self.enqueue_clone(copy, session, queues);
    }

    /// Sends a clone to the destination of its session.
    fn enqueue_clone(&mut self, mut copy: Packet<'a>, session: u16, queues: &mut Queues<'a>) {
        let Some(session) = self.forwarding.clone_session(u32::from(session)) else {
            return;
        };
        if let Some(group) = session.group {
            self.multicast_to(&mut copy, group, session.bytes_max, queues);
        }
        if let Some(port) = session.port {
            truncate(&mut copy, session.bytes_max);
            self.enqueue(port, copy, queues);
        }
    }

    fn multicast(&mut self, packet: &mut Packet<'a>, group: u32, queues: &mut Queues<'a>) {
        self.multicast_to(packet, group, 0, queues);
    }

    fn multicast_to(&mut self, packet: &mut Packet<'a>, group: u32, bytes_max: u32, queues: &mut Queues<'a>) {
        let forwarding = self.forwarding;
        for replica in forwarding.group(group).into_iter().flat_map(|group| group.iter()) {
            self.set_named(packet, "intrinsic_metadata", "egress_rid", replica.rid);
            let mut copy = packet.copy();
            truncate(&mut copy, bytes_max);
            self.enqueue(replica.port, copy, queues);
        }
    }

    fn enqueue(&mut self, port: u32, mut packet: Packet<'a>, queues: &mut Queues<'a>) {
        let priority = self
            .read_named(&packet, "intrinsic_metadata", "priority")
            .unwrap_or(0);
        if priority >= self.config.priority_queues {
            return self.count_drop(DropReason::Priority);
        }
        if queues.egress_passes >= COPIES_MAX {
            return self.count_drop(DropReason::CopyLimit);
        }
        queues.egress_passes += 1;
        if self.has_queueing_metadata() {
            let now_us = self.now_us;
            self.set_named(&mut packet, "queueing_metadata", "enq_timestamp", now_us);
            self.set_named(&mut packet, "queueing_metadata", "enq_qdepth", 0);
        }
        queues.egress.push_back((port, packet));
    }

    fn has_queueing_metadata(&self) -> bool {
        ["enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"]
            .iter()
            .all(|field| self.program.field_named("queueing_metadata", field).is_some())
    }

    fn egress(&mut self, port: u32, mut packet: Packet<'a>, queues: &mut Queues<'a>) {
        if let Err(reason) = self.run_egress(port, &mut packet) {
            return self.count_drop(reason);
        }
        if let Some((session, list)) = packet.requests.clone.take()
            && self.forwarding.clone_session(u32::from(session)).is_some()
        {
            let mut copy = packet.copy();
            copy.headers.clear_metadata();
            self.copy_field_list(&mut copy, &packet, list);
            self.set_standard(&mut copy, "instance_type", instance::EGRESS_CLONE);
            self.enqueue_clone(copy, session, queues);
        }
        if self.egress_spec(&packet) == self.config.drop_port {
            return self.count_drop(DropReason::Egress);
        }
        if let Err(reason) = self.deparse(&mut packet) {
            return self.count_drop(reason);
        }
        if packet.requests.recirculate != 0 {
            let list = packet.requests.recirculate;
            let data = packet.data.clone();
            let length = data.len() as u64;
            packet.ingress_length = length;
            let pass = self.new_pass(&packet, data, length, list, instance::RECIRCULATED);
            return self.enqueue_pass(pass, queues);
        }
        self.outcome.sent.push((port, packet.visible().to_vec()));
    }

    fn run_egress(&mut self, port: u32, packet: &mut Packet<'a>) -> Result<(), DropReason> {
        let program = self.program;
        packet.steps = STEPS_MAX;
        let now_us = self.now_us;
        self.set_named(packet, "intrinsic_metadata", "egress_global_timestamp", now_us);
        if self.has_queueing_metadata() {
            self.set_named(packet, "queueing_metadata", "deq_timedelta", 0);
            self.set_named(packet, "queueing_metadata", "deq_qdepth", 0);
            let priority = self
                .read_named(packet, "intrinsic_metadata", "priority")
                .unwrap_or(0);
            self.set_named(packet, "queueing_metadata", "qid", priority);
        }
        self.set_standard(packet, "egress_port", port);
        // This value differs from the drop port, so the packet is dropped only if the program sets the drop port.
        self.set_standard(packet, "egress_spec", self.config.drop_port.wrapping_add(1));
        let length = packet.length;
        self.set_standard(packet, "packet_length", length);
        self.pipeline(packet, &program.egress)
    }

    /// Creates the packet of another ingress pass, with these bytes and the fields of the list.
    fn new_pass(
        &self,
        packet: &Packet<'a>,
        data: Vec<u8>,
        length: u64,
        list: u16,
        instance_type: u32,
    ) -> Packet<'a> {
        let mut pass = Packet::new(self.program, data);
        pass.ingress_length = packet.ingress_length;
        pass.length = length;
        self.copy_field_list(&mut pass, packet, list);
        self.set_standard(&mut pass, "instance_type", instance_type);
        self.set_standard(&mut pass, "packet_length", length);
        pass.requests = Requests::default();
        pass
    }

    fn enqueue_pass(&mut self, packet: Packet<'a>, queues: &mut Queues<'a>) {
        if queues.extra_passes >= PASSES_MAX {
            return self.count_drop(DropReason::PassLimit);
        }
        if queues.ingress.len() >= WAITING_MAX {
            return self.count_drop(DropReason::QueueFull);
        }
        queues.extra_passes += 1;
        queues.ingress.push_back(packet);
    }

    /// Copies the fields of a list between packets.
    fn copy_field_list(&self, to: &mut Packet<'a>, from: &Packet<'a>, list: u16) {
        let lists = &self.program.field_lists;
        let Some(FieldList { fields, .. }) = lists
            .iter()
            .find(|candidate| candidate.json_id == u32::from(list))
        else {
            return;
        };
        for field in fields {
            to.headers.set(*field, &from.headers.field(*field));
        }
    }

    fn send_digest(&mut self, packet: &Packet<'a>) {
        let digest_id = u32::from(packet.requests.digest);
        let digest = self
            .program
            .digests
            .iter()
            .find(|digest| digest.json_id == digest_id);
        if let (true, Some(digest)) = (digest_id != 0, digest) {
            let values = digest.fields.iter().map(|field| packet.headers.bytes(*field));
            self.outcome.digests.push((digest_id, values.collect()));
        }
    }
}

fn truncate(packet: &mut Packet<'_>, bytes_max: u32) {
    if bytes_max != 0 {
        packet.bytes_max = packet.bytes_max.min(bytes_max as usize);
    }
}
