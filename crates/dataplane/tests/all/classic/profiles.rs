//! Both classic profiles, with responses of 64, 128 and 256 bits (docs/protocols.md 2).

use linewarden_dataplane::classic::ClassicProfile;
use linewarden_protocol::classic::{Block, Message, ResponseBits, device, message_type};
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::parse;
use linewarden_protocol::verdict::Verdict::{self, *};
use zerocopy::IntoBytes as _;

use super::fixture::{CLASSIC_IDENTIFIERS, CLASSIC_PORT, CLASSIC_ROWS, ClassicFixture, Served, crp};
use super::{Group, Record, record};
use crate::support::device::{A, gateway_end};

/// A classic profile with a length of its responses.
#[derive(Clone, Copy)]
struct Variant {
    profile: ClassicProfile,
    bits: ResponseBits,
}

impl Variant {
    fn name(self) -> String {
        format!("{:?}, {} bit", self.profile, self.bits.bytes() * 8)
    }

    fn bytes(self, message: &Message) -> Vec<u8> {
        let mut bytes = vec![0; self.bits.message_bytes()];
        message.write(self.bits, &mut bytes).unwrap();
        bytes
    }

    fn response(self, challenge: u32) -> Block {
        let (_, bytes) = crp(self.bits.bytes(), challenge >> 16, (challenge & 0xffff) as usize);
        let mut block = [0; 32];
        block[..bytes.len()].copy_from_slice(&bytes);
        block
    }

    /// Requests a challenge and answers it like the device; returns the RESP.
    fn request_challenge(self, w: &mut ClassicFixture, identifier: u32) -> Message {
        let request = frame(false).udp(&self.bytes(&device::request(identifier)));
        let (verdict, reply) = w.send_for_reply(&request);
        assert_eq!(verdict, ReplyClassicChallenge);
        let (_, udp) = parse(&reply).unwrap().datagram().unwrap();
        let challenge = Message::parse(self.bits, &reply[udp.payload()]).unwrap();
        assert_eq!(
            (challenge.kind, challenge.identifier),
            (message_type::CH, identifier)
        );
        let r1 = self.response(challenge.challenge1);
        let r2 = (self.profile == ClassicProfile::Uav).then(|| self.response(challenge.challenge2));
        assert_eq!(r2.is_none(), challenge.challenge2 == 0);
        device::respond(&challenge, self.bits, &r1, r2.as_ref()).unwrap()
    }

    fn record(
        self,
        description: &str,
        setup: impl Fn(&mut ClassicFixture) -> Vec<u8> + 'static,
        v6: bool,
        verdict: Verdict,
    ) -> Record {
        // The message of `setup` depends on a random choice of the verifier; a shared cell passes it to the packet.
        let message = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let packet_message = std::rc::Rc::clone(&message);
        record(
            format!("{}: {description}", self.name()),
            move |w| *packet_message.borrow_mut() = setup(w),
            move |_| frame(v6).udp(&message.borrow()),
            verdict,
        )
    }
}

fn frame(v6: bool) -> FrameBuilder {
    let mut end = gateway_end(v6);
    end.port = CLASSIC_PORT;
    FrameBuilder::new(A.end(v6), end)
}

fn records(kind: Variant) -> Vec<Record> {
    let request = move |identifier| kind.bytes(&device::request(identifier));
    let mut records = vec![
        kind.record("REQ", move |_| request(1), false, ReplyClassicChallenge),
        kind.record("REQ over IPv6", move |_| request(1), true, ReplyClassicChallenge),
        kind.record(
            "the valid RESP",
            move |w| {
                let response = kind.request_challenge(w, 2);
                kind.bytes(&response)
            },
            false,
            ReplyClassicAck,
        ),
        kind.record(
            "the valid RESP, from another address",
            move |w| {
                let response = kind.request_challenge(w, 2);
                kind.bytes(&response)
            },
            true,
            ReplyClassicAck,
        ),
        kind.record(
            "the valid RESP twice: a hash is accepted only one time",
            move |w| {
                let response = kind.request_challenge(w, 2);
                let bytes = kind.bytes(&response);
                assert_eq!(w.send(&frame(false).udp(&bytes)), ReplyClassicAck);
                bytes
            },
            false,
            DropClassicHash,
        ),
        kind.record(
            "a wrong hash",
            move |w| {
                let response = kind.request_challenge(w, 2);
                kind.bytes(&Message {
                    hash: response.hash ^ 1,
                    ..response
                })
            },
            false,
            DropClassicHash,
        ),
        kind.record(
            "the hash of another identifier",
            move |w| {
                let response = kind.request_challenge(w, 3);
                kind.bytes(&Message {
                    identifier: 1,
                    ..response
                })
            },
            false,
            DropClassicHash,
        ),
        kind.record("identifier 0", move |_| request(0), false, DropClassicUnknown),
        kind.record(
            "an identifier that is too high",
            move |_| request(CLASSIC_IDENTIFIERS + 1),
            false,
            DropClassicUnknown,
        ),
        kind.record(
            "identifier 2^32 - 1",
            move |_| request(u32::MAX),
            false,
            DropClassicUnknown,
        ),
        kind.record(
            "a LAP REQUEST on the classic port",
            |_| A.request([0x5a; 16]).as_bytes().to_vec(),
            false,
            DropClassicMalformed,
        ),
        kind.record("an empty datagram", |_| Vec::new(), false, DropClassicMalformed),
    ];
    for kind_number in [message_type::CH, message_type::ACK, 4, 255] {
        records.push(kind.record(
            &format!("type {kind_number}"),
            move |_| {
                let mut bytes = request(1);
                bytes[0] = kind_number;
                bytes
            },
            false,
            DropClassicMalformed,
        ));
    }
    for length in [0, 1, 32, 33, 40, 41, 42, 56, 57, 58, 200] {
        if length != kind.bits.message_bytes() {
            records.push(kind.record(
                &format!("a REQ of {length} B"),
                move |_| {
                    let mut bytes = request(1);
                    bytes.resize(length, 0);
                    bytes
                },
                false,
                DropClassicMalformed,
            ));
        }
    }
    records
}

/// Records that need a new fixture, because the verifier counts earlier requests.
fn records_of_a_new_verifier(kind: Variant) -> Vec<Record> {
    let zero_response = move |identifier| {
        kind.bytes(&Message {
            kind: message_type::RESP,
            ..device::request(identifier)
        })
    };
    let mut records = vec![kind.record(
        "a RESP with hash 0 before any REQ: zero-initialized memory is not accepted",
        move |_| zero_response(1),
        false,
        DropClassicHash,
    )];
    if kind.profile == ClassicProfile::Iot {
        records.push(kind.record(
            "a REQ after all CRPs were used",
            move |w| {
                for _ in 0..CLASSIC_ROWS {
                    kind.request_challenge(w, 1);
                }
                kind.bytes(&device::request(1))
            },
            false,
            DropClassicUnknown,
        ));
        records.push(kind.record(
            "the last challenge can still be answered",
            move |w| {
                let responses: Vec<Message> =
                    (0..CLASSIC_ROWS).map(|_| kind.request_challenge(w, 2)).collect();
                let next_request = frame(false).udp(&kind.bytes(&device::request(2)));
                assert_eq!(w.send(&next_request), DropClassicUnknown);
                kind.bytes(responses.last().unwrap())
            },
            false,
            ReplyClassicAck,
        ));
    } else {
        records.push(kind.record(
            "a REQ after all CRPs were used: CRPs are used again",
            move |w| {
                for _ in 0..4 * CLASSIC_ROWS {
                    kind.request_challenge(w, 1);
                }
                kind.bytes(&device::request(1))
            },
            false,
            ReplyClassicChallenge,
        ));
    }
    records
}

pub fn groups() -> Vec<Group> {
    let profiles = [ClassicProfile::Iot, ClassicProfile::Uav];
    let kinds = profiles
        .into_iter()
        .flat_map(|profile| ResponseBits::ALL.map(|bits| Variant { profile, bits }));
    kinds
        .flat_map(|kind| {
            let served = Served::Classic(kind.profile, kind.bits.bytes());
            [records(kind), records_of_a_new_verifier(kind)].map(|records| Group { served, records })
        })
        .collect()
}
