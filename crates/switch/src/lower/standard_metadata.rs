//! Locates the standard metadata: the fields shared by a v1model program and the switch.

use super::builder::LowerError;
use crate::executable::StandardMetadata;
use crate::layout::{FieldLayout, Layout};
use crate::program::Program;
use crate::program::ids::FieldRef;

/// Required fields.
const REQUIRED: [&str; 5] = [
    "standard_metadata.egress_spec",
    "standard_metadata.ingress_port",
    "standard_metadata.egress_port",
    "standard_metadata.instance_type",
    "standard_metadata.packet_length",
];
/// Queueing metadata: used only if all of these fields exist.
const QUEUEING: [&str; 4] = [
    "queueing_metadata.enq_timestamp",
    "queueing_metadata.enq_qdepth",
    "queueing_metadata.deq_timedelta",
    "queueing_metadata.deq_qdepth",
];

impl StandardMetadata {
    /// Locates the fields.
    pub fn locate(program: &Program, layout: &Layout) -> Result<Self, LowerError> {
        let find = |name: &str| {
            let (header, field) = name.split_once('.')?;
            program.field_named(header, field)
        };
        for name in REQUIRED {
            find(name).ok_or(LowerError::MissingField(name))?;
        }
        // As in simple_switch, queueing metadata is set only if all of its fields exist.
        let has_queues = QUEUEING.iter().all(|name| find(name).is_some());
        let find = |name: &'static str| {
            let field = find(name);
            field.filter(|_| has_queues || !name.starts_with("queueing_metadata."))
        };
        let [spec, ..] = REQUIRED;
        let egress_spec = find(spec).and_then(|field| layout.field(field));
        let egress_spec = egress_spec.ok_or(LowerError::MissingField(spec))?;
        let mut switch_fields: Vec<FieldRef> = find(spec).into_iter().collect();
        Self::fill(egress_spec, |name| {
            switch_fields.extend(find(name));
            None
        });
        Ok(Self::fill(egress_spec, |name| {
            let field = find(name)?;
            // A field may be an alias of another field that the switch reads.
            let is_shared = switch_fields.iter().filter(|other| **other == field).count() > 1;
            let is_used = is_shared || program.referenced_fields.contains(&field);
            is_used.then(|| layout.field(field)).flatten()
        }))
    }

    fn fill(egress_spec: FieldLayout, mut locate: impl FnMut(&'static str) -> Option<FieldLayout>) -> Self {
        Self {
            egress_spec,
            ingress_port: locate("standard_metadata.ingress_port"),
            egress_port: locate("standard_metadata.egress_port"),
            instance_type: locate("standard_metadata.instance_type"),
            packet_length: locate("standard_metadata.packet_length"),
            parser_error: locate("standard_metadata.parser_error"),
            checksum_error: locate("standard_metadata.checksum_error"),
            mcast_grp: locate("intrinsic_metadata.mcast_grp"),
            egress_rid: locate("intrinsic_metadata.egress_rid"),
            ingress_global_timestamp: locate("intrinsic_metadata.ingress_global_timestamp"),
            egress_global_timestamp: locate("intrinsic_metadata.egress_global_timestamp"),
            enq_timestamp: locate("queueing_metadata.enq_timestamp"),
            enq_qdepth: locate("queueing_metadata.enq_qdepth"),
            deq_timedelta: locate("queueing_metadata.deq_timedelta"),
            deq_qdepth: locate("queueing_metadata.deq_qdepth"),
            qid: locate("queueing_metadata.qid"),
            priority: locate("intrinsic_metadata.priority"),
        }
    }
}
