//! The fields through which a v1model program and the switch speak.

use serde::Serialize;

use super::builder::LowerError;
use crate::layout::{Layout, Place};
use crate::program::Program;
use crate::program::ids::FieldRef;

/// Without these a program cannot be run.
const REQUIRED: [&str; 5] = [
    "standard_metadata.egress_spec",
    "standard_metadata.ingress_port",
    "standard_metadata.egress_port",
    "standard_metadata.instance_type",
    "standard_metadata.packet_length",
];
/// What a queue tells of a packet: all of it or nothing.
const QUEUEING: [&str; 4] = [
    "queueing_metadata.enq_timestamp",
    "queueing_metadata.enq_qdepth",
    "queueing_metadata.deq_timedelta",
    "queueing_metadata.deq_qdepth",
];
/// Where the standard metadata lies. What a program lacks or never mentions is none, and is not set for it: most programs look
/// at a few of these fields, and setting them all would be a tenth of what a packet costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Standard {
    /// Port that ingress wants it to leave by.
    pub egress_spec: Place,
    /// Port that the packet came in by.
    pub ingress_port: Option<Place>,
    /// Port that it leaves by.
    pub egress_port: Option<Place>,
    /// Why there is this packet.
    pub instance_type: Option<Place>,
    /// Its length in bytes.
    pub packet_length: Option<Place>,
    /// The error that ended the parser.
    pub parser_error: Option<Place>,
    /// Whether a checksum was wrong.
    pub checksum_error: Option<Place>,
    /// The multicast group that it is sent to.
    pub mcast_grp: Option<Place>,
    /// Which copy of a multicast packet it is.
    pub egress_rid: Option<Place>,
    /// When it came in, in microseconds.
    pub ingress_global_timestamp: Option<Place>,
    /// When egress began.
    pub egress_global_timestamp: Option<Place>,
    /// When it was queued.
    pub enq_timestamp: Option<Place>,
    /// How many packets were queued then.
    pub enq_qdepth: Option<Place>,
    /// How long it was queued.
    pub deq_timedelta: Option<Place>,
    /// How many packets were queued when it left.
    pub deq_qdepth: Option<Place>,
    /// The queue that it left by.
    pub qid: Option<Place>,
    /// The queue that it is put in.
    pub priority: Option<Place>,
}

impl Standard {
    /// Finds the fields.
    pub fn of(program: &Program, layout: &Layout) -> Result<Self, LowerError> {
        let find = |name: &str| {
            let (header, field) = name.split_once('.')?;
            program.field_named(header, field)
        };
        for name in REQUIRED {
            find(name).ok_or(LowerError::NoField(name))?;
        }
        // As simple_switch: queues are told of where all of their fields are there.
        let has_queues = QUEUEING.iter().all(|name| find(name).is_some());
        let find = |name: &'static str| {
            let found = find(name);
            found.filter(|_| has_queues || !name.starts_with("queueing_metadata."))
        };
        let [spec, ..] = REQUIRED;
        let egress_spec = find(spec).and_then(|field| layout.field(field));
        let egress_spec = egress_spec.ok_or(LowerError::NoField(spec))?;
        let mut known: Vec<FieldRef> = find(spec).into_iter().collect();
        Self::fill(egress_spec, |name| {
            known.extend(find(name));
            None
        });
        Ok(Self::fill(egress_spec, |name| {
            let field = find(name)?;
            // By an alias, one may be another, which the switch itself reads.
            let is_shared = known.iter().filter(|other| **other == field).count() > 1;
            let is_kept = is_shared || program.mentioned.contains(&field);
            is_kept.then(|| layout.field(field)).flatten()
        }))
    }

    fn fill(egress_spec: Place, mut place: impl FnMut(&'static str) -> Option<Place>) -> Self {
        Self {
            egress_spec,
            ingress_port: place("standard_metadata.ingress_port"),
            egress_port: place("standard_metadata.egress_port"),
            instance_type: place("standard_metadata.instance_type"),
            packet_length: place("standard_metadata.packet_length"),
            parser_error: place("standard_metadata.parser_error"),
            checksum_error: place("standard_metadata.checksum_error"),
            mcast_grp: place("intrinsic_metadata.mcast_grp"),
            egress_rid: place("intrinsic_metadata.egress_rid"),
            ingress_global_timestamp: place("intrinsic_metadata.ingress_global_timestamp"),
            egress_global_timestamp: place("intrinsic_metadata.egress_global_timestamp"),
            enq_timestamp: place("queueing_metadata.enq_timestamp"),
            enq_qdepth: place("queueing_metadata.enq_qdepth"),
            deq_timedelta: place("queueing_metadata.deq_timedelta"),
            deq_qdepth: place("queueing_metadata.deq_qdepth"),
            qid: place("queueing_metadata.qid"),
            priority: place("intrinsic_metadata.priority"),
        }
    }
}
