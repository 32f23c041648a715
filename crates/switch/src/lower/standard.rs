//! The fields through which a v1model program and the switch speak.

use serde::Serialize;

use super::builder::LowerError;
use crate::layout::{Layout, Place};
use crate::program::Program;
use crate::program::ids::FieldRef;

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
        let find = |header: &str, field: &str| program.field_named(header, field);
        let mentioned = |field: Option<FieldRef>| {
            let field = field.filter(|field| program.mentioned.contains(field))?;
            layout.field(field)
        };
        let required = |field: &'static str| {
            let short = field.rsplit('.').next().unwrap_or(field);
            find("standard_metadata", short).ok_or(LowerError::NoField(field))
        };
        let egress_spec = required("standard_metadata.egress_spec")?;
        // As simple_switch: queues are told of where all of their fields are there.
        let has_queues = ["enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"]
            .iter()
            .all(|field| find("queueing_metadata", field).is_some());
        let queueing = |field| mentioned(find("queueing_metadata", field).filter(|_| has_queues));
        let intrinsic = |field| mentioned(find("intrinsic_metadata", field));
        Ok(Self {
            egress_spec: layout
                .field(egress_spec)
                .ok_or(LowerError::NoField("standard_metadata.egress_spec"))?,
            ingress_port: mentioned(Some(required("standard_metadata.ingress_port")?)),
            egress_port: mentioned(Some(required("standard_metadata.egress_port")?)),
            instance_type: mentioned(Some(required("standard_metadata.instance_type")?)),
            packet_length: mentioned(Some(required("standard_metadata.packet_length")?)),
            parser_error: mentioned(find("standard_metadata", "parser_error")),
            checksum_error: mentioned(find("standard_metadata", "checksum_error")),
            mcast_grp: intrinsic("mcast_grp"),
            egress_rid: intrinsic("egress_rid"),
            ingress_global_timestamp: intrinsic("ingress_global_timestamp"),
            egress_global_timestamp: intrinsic("egress_global_timestamp"),
            enq_timestamp: queueing("enq_timestamp"),
            enq_qdepth: queueing("enq_qdepth"),
            deq_timedelta: queueing("deq_timedelta"),
            deq_qdepth: queueing("deq_qdepth"),
            qid: queueing("qid"),
            priority: intrinsic("priority"),
        })
    }
}
