//! The fields through which a v1model program and the switch speak.

use serde::Serialize;

use super::builder::LowerError;
use crate::layout::{Layout, Place};
use crate::program::Program;
use crate::program::ids::FieldRef;

/// Where the standard metadata lies. Those that a program may lack are optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Standard {
    /// Port that the packet came in by.
    pub ingress_port: Place,
    /// Port that ingress wants it to leave by.
    pub egress_spec: Place,
    /// Port that it leaves by.
    pub egress_port: Place,
    /// Why there is this packet.
    pub instance_type: Place,
    /// Its length in bytes.
    pub packet_length: Place,
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
        let find = |header: &str, field: &str| -> Option<Place> {
            let place: FieldRef = program.field_named(header, field)?;
            layout.field(place)
        };
        let required = |field: &'static str| -> Result<Place, LowerError> {
            let short = field.rsplit('.').next().unwrap_or(field);
            find("standard_metadata", short).ok_or(LowerError::NoField(field))
        };
        Ok(Self {
            ingress_port: required("standard_metadata.ingress_port")?,
            egress_spec: required("standard_metadata.egress_spec")?,
            egress_port: required("standard_metadata.egress_port")?,
            instance_type: required("standard_metadata.instance_type")?,
            packet_length: required("standard_metadata.packet_length")?,
            parser_error: find("standard_metadata", "parser_error"),
            checksum_error: find("standard_metadata", "checksum_error"),
            mcast_grp: find("intrinsic_metadata", "mcast_grp"),
            egress_rid: find("intrinsic_metadata", "egress_rid"),
            ingress_global_timestamp: find("intrinsic_metadata", "ingress_global_timestamp"),
            egress_global_timestamp: find("intrinsic_metadata", "egress_global_timestamp"),
            enq_timestamp: find("queueing_metadata", "enq_timestamp"),
            enq_qdepth: find("queueing_metadata", "enq_qdepth"),
            deq_timedelta: find("queueing_metadata", "deq_timedelta"),
            deq_qdepth: find("queueing_metadata", "deq_qdepth"),
            qid: find("queueing_metadata", "qid"),
            priority: find("intrinsic_metadata", "priority"),
        })
    }
}
