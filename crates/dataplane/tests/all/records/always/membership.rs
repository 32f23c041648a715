//! Reports of group membership (IGMP, MLD), which pass only with a session.

use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::verdict::Verdict::*;

use super::{
    ALL_NODES, ALL_ROUTERS, Case, GLOBAL, LINK_LOCAL, REMOTE, SOLICITED, between, end, with_byte,
    with_session,
};
use crate::records::{Record, record};
use crate::support::device::A;

fn igmp(options: &[u8], ttl: u8, to: &str, message: &[u8]) -> Vec<u8> {
    let mut group = end(to);
    group.mac = [1, 0, 0x5e, 1, 1, 1];
    FrameBuilder::new(A.end(false), group)
        .options(options)
        .ip_fields(0xc0, 0, ttl)
        .ip(2, message)
}

fn mld(from: &str, to: &str, hop_limit: u8, options: [u8; 6], message: &[u8]) -> Vec<u8> {
    let header = [&[58, 0][..], &options, message].concat();
    between(from, to).ip_fields(0, 0, hop_limit).ip(0, &header)
}

/// Reports of group membership, and frames that resemble reports. The case says whether a frame passes with a session.
fn reports() -> Vec<Case> {
    const ALERT: [u8; 4] = [0x94, 4, 0, 0];
    const REPORT: [u8; 8] = [0x16, 0, 0, 0, 239, 1, 1, 1];
    const ALERT6: [u8; 6] = [5, 2, 0, 0, 1, 0];
    const REPORT6: [u8; 28] = {
        let mut report = [0; 28];
        report[0] = 143;
        report
    };
    let kind = |kind: u8| with_byte(REPORT.to_vec(), 0, kind);
    let kind6 = |kind: u8| with_byte(REPORT6[..24].to_vec(), 0, kind);
    vec![
        ("IGMP version 1", igmp(&ALERT, 1, "239.1.1.1", &kind(0x12)), true),
        ("IGMP version 2", igmp(&ALERT, 1, "239.1.1.1", &REPORT), true),
        (
            "IGMP version 2, leave",
            igmp(&ALERT, 1, "224.0.0.2", &kind(0x17)),
            true,
        ),
        (
            "IGMP version 3",
            igmp(&ALERT, 1, "224.0.0.22", &[&kind(0x22), &[0; 8][..]].concat()),
            true,
        ),
        (
            "an IGMP query behind the option",
            igmp(&ALERT, 1, "224.0.0.1", &kind(0x11)),
            false,
        ),
        ("IGMP with TTL 2", igmp(&ALERT, 2, "239.1.1.1", &REPORT), false),
        ("IGMP to one host", igmp(&ALERT, 1, "10.77.0.9", &REPORT), false),
        ("IGMP of 7 B", igmp(&ALERT, 1, "239.1.1.1", &REPORT[..7]), false),
        (
            "IGMP behind another option",
            igmp(&[7, 4, 4, 0], 1, "239.1.1.1", &REPORT),
            false,
        ),
        (
            "IGMP behind two options",
            igmp(&[0x94, 4, 0, 0, 1, 1, 1, 1], 1, "239.1.1.1", &REPORT),
            false,
        ),
        (
            "UDP behind a router alert",
            between("10.66.128.1", "239.1.1.1").options(&ALERT).udp(b"x"),
            false,
        ),
        (
            "MLD version 1",
            mld(LINK_LOCAL, "ff02::99", 1, ALERT6, &kind6(131)),
            true,
        ),
        (
            "MLD version 1, done",
            mld(LINK_LOCAL, ALL_ROUTERS, 1, ALERT6, &kind6(132)),
            true,
        ),
        (
            "MLD version 2",
            mld(LINK_LOCAL, "ff02::16", 1, ALERT6, &REPORT6),
            true,
        ),
        (
            "MLD from the unspecified address",
            mld("::", "ff02::16", 1, ALERT6, &REPORT6),
            true,
        ),
        (
            "MLD, padded by Pad1",
            mld(LINK_LOCAL, "ff02::16", 1, [5, 2, 0, 0, 0, 0], &REPORT6),
            true,
        ),
        (
            "MLD, padded in front",
            mld(LINK_LOCAL, "ff02::16", 1, [1, 0, 5, 2, 0, 0], &REPORT6),
            true,
        ),
        (
            "MLD, padded in front by Pad1",
            mld(LINK_LOCAL, "ff02::16", 1, [0, 0, 5, 2, 0, 0], &REPORT6),
            true,
        ),
        (
            "an MLD query behind the option",
            mld(LINK_LOCAL, ALL_NODES, 1, ALERT6, &kind6(130)),
            false,
        ),
        (
            "MLD with hop limit 2",
            mld(LINK_LOCAL, "ff02::16", 2, ALERT6, &REPORT6),
            false,
        ),
        (
            "MLD from a routed address",
            mld(GLOBAL, "ff02::16", 1, ALERT6, &REPORT6),
            false,
        ),
        (
            "MLD to one host",
            mld(LINK_LOCAL, REMOTE, 1, ALERT6, &REPORT6),
            false,
        ),
        (
            "MLD version 1, truncated",
            mld(LINK_LOCAL, "ff02::99", 1, ALERT6, &kind6(131)[..23]),
            false,
        ),
        (
            "MLD with code 1",
            mld(
                LINK_LOCAL,
                "ff02::16",
                1,
                ALERT6,
                &with_byte(REPORT6.to_vec(), 1, 1),
            ),
            false,
        ),
        (
            "MLD with another option value",
            mld(LINK_LOCAL, "ff02::16", 1, [5, 2, 0, 1, 1, 0], &REPORT6),
            false,
        ),
        (
            "MLD behind an evidence option",
            mld(LINK_LOCAL, "ff02::16", 1, [0x37, 4, 0, 0, 0, 0], &REPORT6),
            false,
        ),
        (
            "neighbor discovery behind a router alert",
            mld(LINK_LOCAL, SOLICITED, 1, ALERT6, &kind6(135)),
            false,
        ),
    ]
}

pub(super) fn records() -> Vec<Record> {
    let mut records = Vec::new();
    for (name, frame, is_report) in reports() {
        let (verdict_in_session, verdict) = if is_report {
            (PassSession, DropGate)
        } else {
            (DropGateExtension, DropGateExtension)
        };
        let same_frame = frame.clone();
        records.push(record(name, |_| {}, move |_| frame.clone(), verdict));
        let name = format!("{name}, of a live session");
        records.push(record(
            name,
            with_session,
            move |_| same_frame.clone(),
            verdict_in_session,
        ));
    }
    records
}
