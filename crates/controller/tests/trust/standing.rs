//! What is known of one gateway, and what changes it.

use linewarden_controller::trust::{Memory, Standing, Trust, Unbelieved};
use linewarden_evidence::keys::Signer as _;
use linewarden_evidence::statement::{Nonce, verify};
use linewarden_evidence::{BootCount, Sequence};
use proptest::prelude::*;

use crate::plane::{Plane, nonces, signer};
use crate::{ANSWER, EVERY, S, why};

/// A gateway that has become trusted at 0 s.
fn trusted() -> (Plane, Trust, impl FnMut() -> Option<[u8; 32]>) {
    let mut plane = Plane::new(3);
    let mut trust = Trust::new(plane.policy());
    let mut random = nonces();
    assert!(!trust.gives_rows(0), "before it has shown anything");
    let nonce = trust.look(0, &mut random).nonce.unwrap();
    assert!(!trust.gives_rows(0), "because it was asked");
    trust.judge(&plane.statement(nonce), None, S).unwrap();
    assert!(trust.gives_rows(S));
    (plane, trust, random)
}

#[test]
fn it_is_asked_again_after_a_period_each_time_with_another_nonce() {
    let (mut plane, mut trust, mut random) = trusted();
    assert_eq!(trust.look(EVERY, &mut random).nonce, None);
    let second = trust.look(EVERY + S, &mut random).nonce.unwrap();
    assert_eq!(
        trust.look(EVERY + 2 * S, &mut random).nonce,
        Some(second),
        "an answer may be lost"
    );
    trust
        .judge(&plane.statement(second), None, EVERY + 3 * S)
        .unwrap();
    let third = trust.look(2 * EVERY + 3 * S, &mut random).nonce.unwrap();
    assert_ne!(second, third);
}

#[test]
fn what_differs_ends_the_trust_and_is_named() {
    let (mut plane, mut trust, mut random) = trusted();
    plane.set(8);
    let nonce = trust.look(EVERY + S, &mut random).nonce.unwrap();
    trust
        .judge(&plane.statement(nonce), Some(&plane.inventory()), EVERY + S)
        .unwrap();
    assert!(!trust.gives_rows(EVERY + S));
    let said = why(trust.standing()).to_owned();
    assert!(
        said.contains("control") && said.contains("07 is now 08"),
        "{said}"
    );
    plane.set(7);
    let nonce = trust.look(2 * EVERY + S, &mut random).nonce.unwrap();
    trust.judge(&plane.statement(nonce), None, 2 * EVERY + S).unwrap();
    assert!(trust.gives_rows(2 * EVERY + S), "it was put right");
}

#[test]
fn silence_ends_it_and_says_what_was_refused() {
    let (mut plane, mut trust, mut random) = trusted();
    let at = EVERY + S;
    let nonce = trust.look(at, &mut random).nonce.unwrap();
    assert!(trust.gives_rows(at + ANSWER - 1), "there is time to answer");
    assert!(!trust.gives_rows(at + ANSWER), "though nobody has looked");
    let late = trust
        .judge(&plane.statement(nonce), None, at + ANSWER)
        .unwrap_err();
    assert!(matches!(late, Unbelieved::Unasked), "{late}");
    let scrutiny = trust.look(at + ANSWER, &mut random);
    assert!(why(&scrutiny.standing).contains("not answered for 10 s"));
    let nonce = scrutiny.nonce.expect("it is asked on");
    let forged = Plane::new(3).statement(nonce);
    trust.judge(&forged, None, at + ANSWER).unwrap_err();
    let scrutiny = trust.look(at + 2 * ANSWER, &mut random);
    assert!(
        why(&scrutiny.standing).contains("not that of this key"),
        "{scrutiny:?}"
    );
}

/// A gateway that never asks what is wanted of it is not asked for a statement, and not trusted for longer either.
#[test]
fn who_does_not_ask_is_not_trusted_for_ever() {
    let (_, trust, _) = trusted();
    let due = S + EVERY;
    assert!(trust.gives_rows(due + ANSWER - 1));
    assert!(!trust.gives_rows(due + ANSWER));
}

#[test]
fn without_randomness_nobody_stays_trusted() {
    let (_, mut trust, _) = trusted();
    let at = EVERY + S;
    assert_eq!(trust.look(at, &mut || None).standing, Standing::Trusted);
    assert!(why(&trust.look(at + ANSWER, &mut || None).standing).contains("random"));
}

#[test]
fn an_older_state_is_refused_whatever_it_says() {
    for (boot_count, is_refused) in [(2, true), (3, true), (4, false)] {
        let (mut plane, mut trust, mut random) = trusted();
        // Two states later than that which it began with.
        plane.set(1);
        plane.set(7);
        let nonce = trust.look(EVERY + S, &mut random).nonce.unwrap();
        trust.judge(&plane.statement(nonce), None, EVERY + S).unwrap();
        plane.put_back(boot_count);
        let nonce = trust.look(2 * EVERY + S, &mut random).nonce.unwrap();
        trust.judge(&plane.statement(nonce), None, 2 * EVERY + S).unwrap();
        assert_eq!(trust.gives_rows(2 * EVERY + S), !is_refused, "start {boot_count}");
        if is_refused {
            assert!(why(trust.standing()).contains("put back"));
        }
    }
}

#[test]
fn a_new_registration_shows_itself_anew() {
    let (mut plane, mut trust, mut random) = trusted();
    trust.begin();
    assert!(!trust.gives_rows(2 * S));
    let nonce = trust.look(2 * S, &mut random).nonce.expect("at once");
    trust.judge(&plane.statement(nonce), None, 2 * S).unwrap();
    assert!(trust.gives_rows(2 * S));
}

/// However often it begins anew.
#[test]
fn it_is_asked_no_more_than_once_a_second() {
    let (mut plane, mut trust, mut random) = trusted();
    let mut asked = 0;
    for at in (2 * S..4 * S).step_by(S as usize / 10) {
        trust.begin();
        asked += u32::from(trust.look(at, &mut random).nonce.is_some());
    }
    assert_eq!(asked, 2);
    let nonce = trust.look(5 * S, &mut random).nonce.expect("a second later");
    trust.judge(&plane.statement(nonce), None, 5 * S).unwrap();
    assert!(trust.gives_rows(5 * S));
}

#[test]
fn what_another_controller_has_seen_counts_while_the_key_is_the_same() {
    for (is_same, seen, gives_rows) in [(true, (3, 2), true), (true, (4, 0), false), (false, (4, 0), true)] {
        let mut plane = Plane::new(3);
        let mut trust = Trust::new(plane.policy());
        let key = match is_same {
            true => plane.signer.public_key(),
            false => signer().public_key(),
        };
        trust.begin();
        trust.recall(&Memory {
            key: key.fingerprint(),
            seen: Some((BootCount(seen.0), Sequence(seen.1))),
        });
        let nonce = trust.look(0, &mut nonces()).nonce.unwrap();
        trust.judge(&plane.statement(nonce), None, 0).unwrap();
        assert_eq!(trust.gives_rows(0), gives_rows, "{is_same} {seen:?}");
    }
}

/// Something that happens to a gateway.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Look,
    /// Signed by itself in answer to what it was asked; whether it is as it should be.
    Genuine(bool),
    /// The same bytes as that time before.
    Replay(usize),
    /// Another one's, in answer to what this one was asked.
    OtherKey,
    OtherNonce([u8; 32]),
    /// Its own, with a bit changed.
    Changed(usize, u8),
    Noise(Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20u64).prop_map(|seconds| Step::Pass(seconds * S)),
        4 => Just(Step::Look),
        3 => any::<bool>().prop_map(Step::Genuine),
        1 => any::<usize>().prop_map(Step::Replay),
        1 => Just(Step::OtherKey),
        1 => any::<[u8; 32]>().prop_map(Step::OtherNonce),
        2 => (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Step::Changed(at, bit)),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Noise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes, it is trusted only after its own key has signed, for a nonce of now, that it is what it should be; and what it
    /// has not signed for that nonce never changes how it stands.
    #[test]
    fn nobody_else_speaks_for_a_gateway(steps in prop::collection::vec(step(), 1..80)) {
        let (mut plane, mut stranger) = (Plane::new(3), Plane::new(3));
        let mut trust = Trust::new(plane.policy());
        let (mut random, mut now) = (nonces(), 0);
        let mut asked: Option<(Nonce, u64)> = None;
        // When it has to be asked again.
        let mut due = 0;
        let mut before: Vec<Vec<u8>> = Vec::new();
        let mut is_good = false;
        for step in steps {
            let live = asked.filter(|(_, at)| now - at < ANSWER);
            let nonce = asked.map_or(Nonce([0; 32]), |(nonce, _)| nonce);
            let standing = trust.standing().clone();
            let forged = match step {
                Step::Pass(time) => { now += time; None }
                Step::Look => {
                    if asked.is_some() && live.is_none() {
                        (asked, is_good) = (None, false);
                    }
                    let wanted = trust.look(now, &mut random).nonce;
                    asked = wanted.map(|wanted| (wanted, asked.filter(|(asked, _)| *asked == wanted).map_or(now, |(_, at)| at)));
                    None
                }
                Step::Genuine(is_right) => {
                    plane.set(if is_right { 7 } else { 8 });
                    let statement = plane.statement(nonce);
                    let judged = trust.judge(&statement, None, now);
                    prop_assert_eq!(judged.is_ok(), live.is_some());
                    if live.is_some() {
                        (asked, is_good, due) = (None, is_right, now + EVERY);
                        before.push(statement);
                    }
                    None
                }
                Step::Replay(which) => before.get(which % before.len().max(1)).cloned(),
                Step::OtherKey => Some(stranger.statement(nonce)),
                Step::OtherNonce(other) => Some(plane.statement(Nonce(other))),
                Step::Changed(at, bit) => {
                    let mut statement = plane.statement(nonce);
                    let at = at % statement.len();
                    statement[at] ^= 1 << bit;
                    // The name of the key, which nothing signs and nobody reads.
                    let key = plane.signer.public_key();
                    verify(&statement, &key, nonce).is_err().then_some(statement)
                }
                Step::Noise(bytes) => Some(bytes),
            };
            if let Some(forged) = forged {
                prop_assert!(trust.judge(&forged, None, now).is_err());
                prop_assert_eq!(trust.standing(), &standing);
            }
            let since = asked.map_or(due, |(_, at)| at);
            let is_live = now.saturating_sub(since) < ANSWER;
            prop_assert_eq!(trust.gives_rows(now), is_good && is_live);
        }
    }
}
