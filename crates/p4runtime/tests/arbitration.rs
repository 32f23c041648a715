//! Arbitration: each rule of the specification's chapter 5, and random runs beside an obvious model.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, as tests do"
)]

use std::collections::BTreeMap;

use linewarden_p4runtime::arbitration::{
    Arbitration, Candidacy, Limits, Notice, Outcome, Refusal, Standing, StreamId, WriteRefusal,
};
use proptest::prelude::*;
use prost_types::Any;

const DEVICE: u64 = 7;

fn candidacy(role: &str, election_id: impl Into<Option<u128>>) -> Candidacy {
    Candidacy {
        device_id: DEVICE,
        role: role.to_owned(),
        config: None,
        election_id: election_id.into(),
    }
}

fn arbitration() -> Arbitration {
    Arbitration::new(
        DEVICE,
        Limits {
            streams_per_role: 3,
            roles: 2,
        },
    )
}

/// Who is told what: stream, standing, rank.
fn told(notices: &[Notice]) -> Vec<(u64, Standing, Option<u128>)> {
    notices
        .iter()
        .map(|notice| (notice.stream.0, notice.standing, notice.election_id))
        .collect()
}

/// Both steps of an accepted candidacy.
fn update(
    arbitration: &mut Arbitration,
    stream: u64,
    candidacy: Candidacy,
) -> Vec<(u64, Standing, Option<u128>)> {
    let Outcome {
        mut notices,
        takeover,
    } = arbitration.update(StreamId(stream), candidacy).unwrap();
    notices.extend(
        takeover
            .into_iter()
            .flat_map(|takeover| arbitration.complete(takeover)),
    );
    told(&notices)
}

fn may_write(arbitration: &Arbitration, role: &str, election_id: u128) -> bool {
    arbitration.may_write(DEVICE, role, Some(election_id)).is_ok()
}

use Standing::{Backup, Leaderless, Primary};

#[test]
fn the_highest_id_is_primary_and_everybody_hears_of_changes() {
    let mut a = arbitration();
    assert_eq!(update(&mut a, 1, candidacy("", 10)), [(1, Primary, Some(10))]);
    assert_eq!(
        update(&mut a, 2, candidacy("", 5)),
        [(2, Backup, Some(10))],
        "the primary need not hear of a backup"
    );
    assert_eq!(
        update(&mut a, 3, candidacy("", 11)),
        [
            (1, Backup, Some(11)),
            (2, Backup, Some(11)),
            (3, Primary, Some(11))
        ]
    );
    assert!(may_write(&a, "", 11) && !may_write(&a, "", 10) && !may_write(&a, "", 5));
    assert!(a.is_primary(StreamId(3)) && !a.is_primary(StreamId(1)));
    assert_eq!(a.primaries().collect::<Vec<_>>(), [StreamId(3)]);
}

#[test]
fn nobody_follows_a_primary_that_goes_until_somebody_ranks_as_high() {
    let mut a = arbitration();
    update(&mut a, 1, candidacy("", 10));
    update(&mut a, 2, candidacy("", 9));
    assert_eq!(told(&a.close(StreamId(1))), [(2, Leaderless, Some(10))]);
    assert!(!may_write(&a, "", 9) && !may_write(&a, "", 10));
    assert_eq!(update(&mut a, 2, candidacy("", 9)), [(2, Leaderless, Some(10))]);
    assert_eq!(
        update(&mut a, 3, candidacy("", 10)),
        [(2, Backup, Some(10)), (3, Primary, Some(10))]
    );
    assert!(
        a.close(StreamId(2)).is_empty(),
        "nobody need hear of a backup that goes"
    );
    assert!(a.close(StreamId(2)).is_empty());
}

#[test]
fn a_primary_may_step_down_and_come_back() {
    let mut a = arbitration();
    update(&mut a, 1, candidacy("", 10));
    update(&mut a, 2, candidacy("", 4));
    assert_eq!(
        update(&mut a, 1, candidacy("", 3)),
        [(1, Leaderless, Some(10)), (2, Leaderless, Some(10))]
    );
    assert!(!may_write(&a, "", 3));
    assert_eq!(
        update(&mut a, 1, candidacy("", None)),
        [(1, Leaderless, Some(10))]
    );
    assert_eq!(
        update(&mut a, 1, candidacy("", 10)),
        [(2, Backup, Some(10)), (1, Primary, Some(10))]
    );
}

#[test]
fn no_id_and_zero_stand_by() {
    let mut a = arbitration();
    assert_eq!(update(&mut a, 1, candidacy("", None)), [(1, Leaderless, None)]);
    assert_eq!(update(&mut a, 2, candidacy("", 0)), [(2, Leaderless, None)]);
    assert!(a.may_write(DEVICE, "", None).is_err() && !may_write(&a, "", 0));
    update(&mut a, 3, candidacy("", 1));
    assert_eq!(update(&mut a, 2, candidacy("", 0)), [(2, Backup, Some(1))]);
    assert!(a.may_write(DEVICE, "", None).is_err() && !may_write(&a, "", 0));
}

#[test]
fn roles_are_elected_apart_and_keep_their_configuration() {
    let mut a = arbitration();
    let config = Any {
        type_url: "example.com/Role".into(),
        value: vec![1, 2],
    };
    update(&mut a, 1, candidacy("", 10));
    let with_config = Candidacy {
        config: Some(config.clone()),
        ..candidacy("acl", 2)
    };
    assert_eq!(update(&mut a, 2, with_config), [(2, Primary, Some(2))]);
    assert!(may_write(&a, "", 10) && may_write(&a, "acl", 2) && !may_write(&a, "acl", 10));
    let outcome = a
        .update(
            StreamId(3),
            Candidacy {
                config: None,
                ..candidacy("acl", 1)
            },
        )
        .unwrap();
    assert_eq!(
        outcome.notices[0].config,
        Some(config),
        "a backup's configuration is not the role's"
    );
    assert_eq!(a.primaries().collect::<Vec<_>>(), [StreamId(1), StreamId(2)]);
}

#[test]
fn each_refusal_leaves_everything_as_it_was() {
    let mut a = arbitration();
    update(&mut a, 1, candidacy("", 10));
    update(&mut a, 2, candidacy("", 5));
    let before = format!("{a:?}");
    let elsewhere = Candidacy {
        device_id: 8,
        ..candidacy("", 20)
    };
    let cases = [
        (
            9,
            elsewhere.clone(),
            Refusal::NoSuchDevice {
                asked: 8,
                here: DEVICE,
            },
        ),
        (
            1,
            elsewhere,
            Refusal::DeviceChanged {
                asked: 8,
                here: DEVICE,
            },
        ),
        (
            1,
            candidacy("acl", 10),
            Refusal::RoleChanged {
                asked: "acl".into(),
                here: String::new(),
            },
        ),
        (9, candidacy("", 5), Refusal::ElectionIdTaken(5)),
        (2, candidacy("", 10), Refusal::ElectionIdTaken(10)),
    ];
    for (stream, candidacy, refusal) in cases {
        assert_eq!(a.update(StreamId(stream), candidacy).unwrap_err(), refusal);
        assert_eq!(format!("{a:?}"), before);
    }
    update(&mut a, 3, candidacy("", None));
    assert_eq!(
        a.update(StreamId(4), candidacy("", None)).unwrap_err(),
        Refusal::TooManyStreams(3)
    );
    update(&mut a, 3, candidacy("", None));
    update(&mut a, 4, candidacy("acl", 1));
    a.close(StreamId(4));
    assert_eq!(
        a.update(StreamId(5), candidacy("more", 1)).unwrap_err(),
        Refusal::TooManyRoles(2)
    );
}

#[test]
fn writes_are_refused_in_the_order_of_the_specification() {
    let mut a = arbitration();
    assert_eq!(
        a.may_write(8, "x", None),
        Err(WriteRefusal::NoSuchDevice {
            asked: 8,
            here: DEVICE
        })
    );
    assert_eq!(
        a.may_write(DEVICE, "x", None),
        Err(WriteRefusal::NoSuchRole("x".into()))
    );
    let refusal = a.may_write(DEVICE, "", Some(1)).unwrap_err();
    assert_eq!(
        refusal,
        WriteRefusal::NotPrimary {
            role: String::new(),
            highest: None
        }
    );
    assert_eq!(
        refusal.to_string(),
        "only the primary of role \"\" may do this, and there is none"
    );
    update(&mut a, 1, candidacy("", 3));
    let refusal = a.may_write(DEVICE, "", Some(1)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "only the primary of role \"\" may do this, and its election id is 3"
    );
}

#[test]
fn nobody_writes_between_the_steps_of_a_takeover() {
    let mut a = arbitration();
    update(&mut a, 1, candidacy("", 10));
    let first = a.update(StreamId(2), candidacy("", 11)).unwrap();
    assert_eq!(told(&first.notices), [(1, Backup, Some(11))]);
    assert!(!may_write(&a, "", 10) && !may_write(&a, "", 11) && a.primaries().count() == 0);
    // A third one overtakes both: the second never was primary.
    let second = a.update(StreamId(3), candidacy("", 12)).unwrap();
    assert_eq!(
        told(&second.notices),
        [(1, Backup, Some(12)), (2, Backup, Some(12))]
    );
    assert!(a.complete(first.takeover.unwrap()).is_empty());
    assert!(!may_write(&a, "", 11) && !may_write(&a, "", 12));
    assert_eq!(
        told(&a.complete(second.takeover.unwrap())),
        [(3, Primary, Some(12))]
    );
    assert!(may_write(&a, "", 12));
    // One that goes while it waits.
    let third = a.update(StreamId(2), candidacy("", 13)).unwrap();
    assert_eq!(
        told(&a.close(StreamId(2))),
        [(1, Leaderless, Some(13)), (3, Leaderless, Some(13))]
    );
    assert!(a.complete(third.takeover.unwrap()).is_empty());
    assert!(!may_write(&a, "", 13) && !may_write(&a, "", 12));
}

#[derive(Clone, Debug)]
enum Event {
    Update {
        stream: u64,
        role: &'static str,
        election_id: Option<u128>,
    },
    Complete(usize),
    Close {
        stream: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let role = prop::sample::select(vec!["", "acl"]);
    prop_oneof![
        6 => (0..5_u64, role, prop::option::weighted(0.9, 0..6_u128))
            .prop_map(|(stream, role, election_id)| Event::Update { stream, role, election_id }),
        3 => (0..4_usize).prop_map(Event::Complete),
        2 => (0..5_u64).prop_map(|stream| Event::Close { stream }),
    ]
}

/// The rule in one sentence: the primary is the live controller whose id is the highest that was ever accepted.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, (&'static str, Option<u128>)>,
    highest: BTreeMap<&'static str, u128>,
}

impl Model {
    fn primary(&self, role: &str) -> Option<u64> {
        let highest = *self.highest.get(role)?;
        self.live
            .iter()
            .find(|(_, live)| **live == (role, Some(highest)))
            .map(|(stream, _)| *stream)
    }

    fn standing(&self, stream: u64) -> Standing {
        match self.primary(self.live[&stream].0) {
            None => Leaderless,
            Some(primary) if primary == stream => Primary,
            Some(_) => Backup,
        }
    }

    fn accepts(&self, stream: u64, role: &str, election_id: Option<u128>) -> bool {
        let same_role = self.live.get(&stream).is_none_or(|(known, _)| *known == role);
        let unique = election_id.is_none()
            || self
                .live
                .iter()
                .all(|(other, live)| *other == stream || *live != (role, election_id));
        same_role && unique
    }
}

proptest! {
    #[test]
    fn random_runs_agree_with_the_model(events in prop::collection::vec(event(), 1..60)) {
        let mut a = Arbitration::new(DEVICE, Limits::default());
        let mut model = Model::default();
        let mut waiting = Vec::new();
        let mut heard: BTreeMap<u64, (Standing, Option<u128>)> = BTreeMap::new();
        for event in events {
            let notices = match event {
                Event::Update { stream, role, election_id } => match a.update(StreamId(stream), candidacy(role, election_id)) {
                    Ok(outcome) => {
                        prop_assert!(model.accepts(stream, role, election_id));
                        model.live.insert(stream, (role, election_id));
                        if let Some(id) = election_id.filter(|id| *id > 0) {
                            let highest = model.highest.entry(role).or_insert(id);
                            *highest = id.max(*highest);
                        }
                        prop_assert_eq!(outcome.takeover.is_some(), model.primary(role) == Some(stream));
                        waiting.extend(outcome.takeover);
                        outcome.notices
                    }
                    Err(_) => {
                        prop_assert!(!model.accepts(stream, role, election_id));
                        model.live.remove(&stream);
                        a.close(StreamId(stream))
                    }
                },
                Event::Complete(which) if which < waiting.len() => a.complete(waiting.remove(which)),
                Event::Complete(_) => Vec::new(),
                Event::Close { stream } => {
                    model.live.remove(&stream);
                    a.close(StreamId(stream))
                }
            };
            heard.retain(|stream, _| model.live.contains_key(stream));
            for notice in notices {
                heard.insert(notice.stream.0, (notice.standing, notice.election_id));
            }
            for role in ["", "acl"] {
                // At most the model's primary may write; all others are told at once where they stand.
                for id in 0..6 {
                    if may_write(&a, role, id) {
                        prop_assert_eq!(model.live[&model.primary(role).unwrap()], (role, Some(id)));
                    }
                }
            }
            for (stream, (role, _)) in &model.live {
                if model.standing(*stream) != Primary {
                    let expected = (model.standing(*stream), model.highest.get(role).copied());
                    prop_assert_eq!(heard.get(stream), Some(&expected), "stream {}", stream);
                }
            }
        }
        // Once all takeovers are through every primary knows, and may write.
        for takeover in waiting {
            for notice in a.complete(takeover) {
                heard.insert(notice.stream.0, (notice.standing, notice.election_id));
            }
        }
        for (stream, (role, id)) in &model.live {
            prop_assert_eq!(heard[stream].0, model.standing(*stream));
            let is_primary = model.primary(role) == Some(*stream);
            prop_assert_eq!(a.is_primary(StreamId(*stream)), is_primary);
            prop_assert_eq!(a.may_write(DEVICE, role, *id).is_ok(), is_primary);
        }
    }
}
