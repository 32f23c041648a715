//! 5: a program that writes false evidence.

use linewarden_evidence::inband::{Appraiser, Content, Form, is_clone, read_clone, read_option};
use linewarden_switch::evidence::Carrier;
use linewarden_switch::tables::FieldMatch;
use proptest::prelude::*;

use super::bench::{ADDRESS, Ask, Bench, ask, ipv6, master, read_by_program, shorts};

/// With the table filled, every packet leaves the program with an option of false digests: in the classic and in the
/// default content's form.
fn forger(carrier: Carrier, form: Form, head: u128) -> Bench {
    let mut bench = Bench::new("evidence", Some((carrier, form)));
    let false_digests = bench.action("EvidenceIngress.false_digests", &[u128::MAX, head]);
    bench.insert(
        "EvidenceIngress.forge",
        &[FieldMatch::Exact(ADDRESS.to_vec())],
        false_digests,
    );
    bench
}

#[test]
fn false_options_are_replaced() {
    for head in [0, 0x0100_0000] {
        let mut bench = forger(Carrier::Option, Form::Default, head);
        let known = bench.snapshot();
        let mut appraiser = Appraiser::new(master());
        let fresh = bench.one(0, &ipv6(17, b"a datagram"));
        // Over its own option of a switch before, too.
        let again = bench.one(0, &fresh);
        for frame in [&fresh, &again] {
            let carried = read_option(frame).unwrap().unwrap();
            appraiser.appraise(&carried, &known.digests).unwrap();
        }
        assert_eq!(fresh.len(), again.len());
        let mut bench = forger(Carrier::Option, Form::Classic, head);
        let known = shorts(&bench.snapshot()).concat();
        let frame = bench.one(0, &ipv6(17, b"a datagram"));
        let Content::Classic { fields, .. } = read_option(&frame).unwrap().unwrap().content else {
            panic!("not the classic content");
        };
        assert_eq!(fields.as_slice(), known);
    }
}

#[test]
fn false_options_beside_clones_are_dropped() {
    let mut bench = forger(Carrier::Clone { port: 9 }, Form::Default, 0);
    assert_eq!(bench.send(0, &ipv6(17, b"a datagram")), []);
    assert_eq!(bench.attester().settings().identity.forged(), 1);
}

/// What has no room for a true option must not leave with a false one.
#[test]
fn a_false_option_in_a_packet_without_room_is_dropped() {
    let mut bench = forger(Carrier::Option, Form::Classic, 0);
    let longest = ipv6(17, &vec![0; 65_535 - 104]);
    let sent = bench.send(0, &longest);
    // The program's option is exchanged in its place: there is room for that.
    let Content::Classic { fields, .. } = read_option(&sent[0].1).unwrap().unwrap().content else {
        panic!("not the classic content");
    };
    assert_eq!(fields.as_slice(), shorts(&bench.snapshot()).concat());
    let too_long = ipv6(17, &vec![0; 65_535 - 103]);
    let sent = bench.send(0, &too_long);
    assert!(
        sent.iter()
            .all(|(_, frame)| !matches!(read_option(frame), Ok(Some(_)))),
        "its length has wrapped: nobody takes it for evidence"
    );
}

/// What no reader of ours takes for evidence, another might.
#[test]
fn what_resembles_evidence_leaves_only_as_it_came() {
    let mut bench = Bench::new("evidence", Some((Carrier::Option, Form::Default)));
    let tagged = [&[2; 12][..], &[0x81, 0, 0, 1].repeat(3), &[0x52, 0x41], &[7; 60]].concat();
    assert_eq!(
        bench.one(0, &tagged),
        tagged,
        "another switch's, behind three tags"
    );
    // The program's option in a packet whose length says less than there is.
    let mut bench = forger(Carrier::Option, Form::Classic, 0);
    let mut short = ipv6(17, b"a datagram");
    short[18..20].copy_from_slice(&200u16.to_be_bytes());
    assert_eq!(bench.send(0, &short), []);
    assert_eq!(bench.attester().settings().identity.forged(), 1);
}

#[test]
fn frames_of_evidences_own_type_are_dropped_unless_they_came_so() {
    let mut bench = Bench::new("evidence", Some((Carrier::Clone { port: 9 }, Form::Default)));
    assert_eq!(bench.send(0, &ask(Ask::LeaveAsEvidence, 0, 0)), []);
    assert_eq!(bench.attester().settings().identity.forged(), 1);
    let mut upstream = Bench::new("evidence", Some((Carrier::Clone { port: 9 }, Form::Default)));
    let sent = upstream.send(0, &ipv6(17, b"a datagram"));
    let clone = &sent[1].1;
    assert!(is_clone(clone));
    assert_eq!(
        bench.send(0, clone),
        [(1, clone.clone())],
        "as it came, and without a clone of its own"
    );
}

#[test]
fn writes_over_the_digests_change_nothing() {
    let mut bench = Bench::new("evidence", None);
    let known = bench.snapshot();
    bench.one(0, &ask(Ask::WriteDigest, 0, 0xdead));
    assert_eq!(known, bench.snapshot());
    assert_eq!(
        read_by_program(&bench.one(0, &ask(Ask::Nothing, 0, 0))),
        shorts(&known)
    );
    // Without evidence there is nothing to read, and still nothing to write.
    let mut plain = Bench::plain("evidence");
    plain.one(0, &ask(Ask::WriteDigest, 0, 0xdead));
    assert_eq!(
        read_by_program(&plain.one(0, &ask(Ask::Nothing, 0, 0))),
        [[0; 16]; 3]
    );
}

/// What a program sends to its controller begins with a header of its own, and is no packet to write into.
#[test]
fn the_controllers_port_is_left_alone() {
    let mut bench = Bench::new("router", Some((Carrier::Clone { port: 9 }, Form::Default)));
    let to_controller = bench.action("RouterIngress.to_port", &[510]);
    bench.insert(
        "RouterIngress.others",
        &[FieldMatch::Exact(vec![8, 6])],
        to_controller,
    );
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    assert_eq!(bench.send(0, &arp), [(510, arp.clone())]);
    // Behind such a header the end of a MAC address lies where a frame's type does: it may be that of evidence.
    for in_band in [None, Some((Carrier::Clone { port: 9 }, Form::Default))] {
        let mut bench = Bench::new("evidence", in_band);
        assert_eq!(bench.send(510, &ask(Ask::LeaveAsEvidence, 0, 0)).len(), 1);
        assert_eq!(bench.attester().settings().identity.forged(), 0);
    }
}

/// Bases, each bent in up to three places, cut or longer, by up to three VLAN tags and extension headers.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mut upstream = Bench::new("evidence", Some((Carrier::Option, Form::Default)));
    let mut cloning = Bench::new("evidence", Some((Carrier::Clone { port: 9 }, Form::Default)));
    let plain = ipv6(17, b"a datagram");
    let bases = vec![
        upstream.one(0, &plain),
        cloning.send(0, &plain)[1].1.clone(),
        // A hop-by-hop header with room, a destination header behind it, another first.
        ipv6(0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], b"a datagram"].concat()),
        ipv6(
            0,
            &[&[60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0][..], b"more"].concat(),
        ),
        ipv6(
            43,
            &[&[0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0][..], b"more"].concat(),
        ),
        ask(Ask::LeaveAsEvidence, 0, 0),
        plain,
    ];
    let base = prop::sample::select(bases);
    let bends = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let tags = 0..4usize;
    (base, bends, tags, 0..12usize, any::<bool>()).prop_map(|(mut frame, bends, tags, end, cut)| {
        for (at, byte) in bends {
            // Headers more often than what they carry.
            let end = frame.len().min(80);
            let at = at.index(end);
            frame[at] = byte;
        }
        for _ in 0..tags {
            frame.splice(12..12, [0x81, 0, 0, 1]);
        }
        match cut {
            true => frame.truncate(frame.len() - end),
            false => frame.resize(frame.len() + end, 0),
        }
        frame
    })
}

proptest! {
    /// Whatever comes in, what a reader takes for evidence is true, or has come in so.
    #[test]
    fn what_leaves_as_evidence_is_true_or_has_come_so(sent in prop::collection::vec(frames(), 1..8)) {
        for carrier in [Carrier::Option, Carrier::Clone { port: 9 }] {
            let honest = Bench::new("evidence", Some((carrier, Form::Default)));
            for mut bench in [honest, forger(carrier, Form::Default, 0), forger(carrier, Form::Default, 0x0100_0000)] {
                let mut appraiser = Appraiser::new(master());
                for frame in &sent {
                    for (port, left) in bench.send(0, frame) {
                        if left == *frame {
                            continue;
                        }
                        let known = bench.snapshot().digests;
                        for read in [read_option(&left), read_clone(&left)] {
                            if let Ok(Some(carried)) = read {
                                let judged = appraiser.appraise(&carried, &known);
                                prop_assert!(judged.is_ok(), "port {port}: {judged:?}");
                            }
                        }
                        prop_assert!(port == 9 || !is_clone(&left));
                    }
                }
            }
        }
    }
}
