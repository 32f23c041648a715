//! Successful handshakes, and all failures.

use alloc::vec::Vec;

use super::*;

const A: DeviceId = DeviceId(0xa1);
const B: DeviceId = DeviceId(0xb2);

fn pairing() -> Pairing {
    Pairing {
        id: [1; 16],
        key: [2; 32],
    }
}

fn side(role: Role) -> Side {
    let (own, peer) = match role {
        Role::Initiator => (A, B),
        Role::Responder => (B, A),
    };
    Side {
        pairing: pairing(),
        role,
        own,
        peer,
    }
}

fn sides() -> (Side, Side) {
    (side(Role::Initiator), side(Role::Responder))
}

fn sessions() -> (Session, Session) {
    let (a, b) = sides();
    let (welcome, b_session) = b.welcome(&a.hello(&[3; 16]), &[4; 16]).unwrap();
    (a.accept_welcome(&[3; 16], &welcome).unwrap(), b_session)
}

fn sealed(session: &mut Session, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; 200];
    let length = session.seal(payload, &mut out).unwrap();
    out[..length].to_vec()
}

#[test]
fn both_sides_get_one_session_whose_messages_open_once() {
    let (mut a, mut b) = sessions();
    for n in 0..40u8 {
        let payload = [n | 0x40; 5];
        let mut up = sealed(&mut a, &payload);
        let mut copy = up.clone();
        assert!(!up.windows(5).any(|window| window == payload));
        assert_eq!(b.open(&mut up), Ok(&payload[..]));
        assert_eq!(b.open(&mut copy), Err(PairError::Replayed));
        let mut down = sealed(&mut b, b"");
        assert_eq!(a.open(&mut down), Ok(&b""[..]));
    }
}

#[test]
fn a_reflected_message_does_not_open() {
    let (mut a, mut b) = sessions();
    let mut up = sealed(&mut a, b"x");
    assert_eq!(a.open(&mut up.clone()), Err(PairError::Unrecognized));
    // With the other role in the header, the message still does not open, because each direction has its own key.
    up[4] = Role::Responder as u8;
    assert_eq!(a.open(&mut up.clone()), Err(PairError::Unrecognized));
    assert_eq!(b.open(&mut up), Err(PairError::Unrecognized));
    let (initiator, responder) = sides();
    let hello = initiator.hello(&[3; 16]);
    assert!(initiator.welcome(&hello, &[4; 16]).is_err());
    assert!(initiator.accept_welcome(&[3; 16], &hello).is_err());
    let (welcome, _) = responder.welcome(&hello, &[4; 16]).unwrap();
    assert!(responder.welcome(&welcome, &[5; 16]).is_err());
    assert!(responder.accept_welcome(&[3; 16], &welcome).is_err());
}

#[test]
fn every_flipped_bit_and_every_other_length_is_refused() {
    let (initiator, responder) = sides();
    let hello = initiator.hello(&[3; 16]);
    let (welcome, _) = responder.welcome(&hello, &[4; 16]).unwrap();
    let (mut a, mut b) = sessions();
    let data = sealed(&mut a, b"payload");
    for bit in 0..HANDSHAKE_BYTES * 8 {
        let flip = |message: &[u8]| {
            let mut message = message.to_vec();
            message[bit / 8] ^= 1 << (bit % 8);
            message
        };
        assert!(responder.welcome(&flip(&hello), &[4; 16]).is_err(), "bit {bit}");
        assert!(
            initiator.accept_welcome(&[3; 16], &flip(&welcome)).is_err(),
            "bit {bit}"
        );
    }
    for bit in 0..data.len() * 8 {
        let mut flipped = data.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(b.open(&mut flipped).is_err(), "bit {bit}");
    }
    for length in 0..data.len() {
        assert!(b.open(&mut data[..length].to_vec()).is_err(), "{length} B");
    }
    for length in 0..HANDSHAKE_BYTES {
        assert!(responder.welcome(&hello[..length], &[4; 16]).is_err());
        assert!(initiator.accept_welcome(&[3; 16], &welcome[..length]).is_err());
    }
    // No failed attempt has used up the number.
    assert!(b.open(&mut data.clone()).is_ok());
}

#[test]
fn another_pair_key_peer_or_handshake_gives_other_keys() {
    let (initiator, responder) = sides();
    let hello = initiator.hello(&[3; 16]);
    let (welcome, mut b_session) = responder.welcome(&hello, &[4; 16]).unwrap();
    let mut other_sides: [Side; 3] = core::array::from_fn(|_| responder.clone());
    other_sides[0].pairing.key = [9; 32];
    other_sides[1].pairing.id = [9; 16];
    other_sides[2].peer = DeviceId(7);
    for side in &other_sides {
        assert!(side.welcome(&hello, &[4; 16]).is_err(), "{side:?}");
    }
    // A reply to another HELLO of the same pair.
    assert!(initiator.accept_welcome(&[8; 16], &welcome).is_err());
    // DATA of an earlier handshake.
    let (mut earlier, _) = {
        let (welcome, session) = responder.welcome(&hello, &[5; 16]).unwrap();
        (initiator.accept_welcome(&[3; 16], &welcome).unwrap(), session)
    };
    assert_eq!(
        b_session.open(&mut sealed(&mut earlier, b"x")),
        Err(PairError::Unrecognized)
    );
}

#[test]
fn numbers_run_out_and_failures_use_no_number() {
    let (mut a, _) = sessions();
    assert_eq!(
        a.seal(b"12", &mut [0; OVERHEAD_BYTES + 1]),
        Err(PairError::CannotSeal)
    );
    assert_eq!(a.last_sent, 0);
    a.last_sent = u32::MAX;
    assert_eq!(a.seal(b"", &mut [0; 99]), Err(PairError::CannotSeal));
}
