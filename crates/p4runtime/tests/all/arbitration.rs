//! Arbitration: each rule of chapter 5 of the specification, and random runs compared with a simple model.

use std::collections::BTreeMap;

use linewarden_p4runtime::arbitration::{
    Arbitration, ArbitrationError, ArbitrationNotice, ArbitrationRequest, ArbitrationStatus, Limits, Outcome,
    StreamId, WriteError,
};
use proptest::prelude::*;
use prost_types::Any;

const DEVICE: u64 = 7;

fn arbitration_request(role: &str, election_id: impl Into<Option<u128>>) -> ArbitrationRequest {
    ArbitrationRequest {
        device_id: DEVICE,
        role: role.to_owned(),
        config: None,
        election_id: election_id.into(),
    }
}

fn new_arbitration() -> Arbitration {
    Arbitration::new(
        DEVICE,
        Limits {
            streams_per_role: 3,
            roles: 2,
        },
    )
}

/// Content of the notices: stream, status, highest election id of the role.
fn notified(notices: &[ArbitrationNotice]) -> Vec<(u64, ArbitrationStatus, Option<u128>)> {
    notices
        .iter()
        .map(|notice| (notice.stream.0, notice.status, notice.election_id))
        .collect()
}

/// Requests an update and completes the takeover, if the update starts one. Returns the content of all notices.
fn update(
    arbitration: &mut Arbitration,
    stream: u64,
    request: ArbitrationRequest,
) -> Vec<(u64, ArbitrationStatus, Option<u128>)> {
    let Outcome {
        mut notices,
        takeover,
    } = arbitration.update(StreamId(stream), request).unwrap();
    notices.extend(
        takeover
            .into_iter()
            .flat_map(|takeover| arbitration.complete(takeover)),
    );
    notified(&notices)
}

fn may_write(arbitration: &Arbitration, role: &str, election_id: u128) -> bool {
    arbitration.check_write(DEVICE, role, Some(election_id)).is_ok()
}

use ArbitrationStatus::{Backup, NoPrimary, Primary};

#[test]
fn controller_with_the_highest_election_id_is_primary_and_changes_are_notified() {
    let mut arbitration = new_arbitration();
    assert_eq!(
        update(&mut arbitration, 1, arbitration_request("", 10)),
        [(1, Primary, Some(10))]
    );
    assert_eq!(
        update(&mut arbitration, 2, arbitration_request("", 5)),
        [(2, Backup, Some(10))],
        "the primary receives no notice of a new backup"
    );
    assert_eq!(
        update(&mut arbitration, 3, arbitration_request("", 11)),
        [
            (1, Backup, Some(11)),
            (2, Backup, Some(11)),
            (3, Primary, Some(11))
        ]
    );
    assert!(
        may_write(&arbitration, "", 11)
            && !may_write(&arbitration, "", 10)
            && !may_write(&arbitration, "", 5)
    );
    assert!(arbitration.is_primary(StreamId(3)) && !arbitration.is_primary(StreamId(1)));
    assert_eq!(arbitration.primaries().collect::<Vec<_>>(), [StreamId(3)]);
}

#[test]
fn lost_primary_is_replaced_only_by_an_equal_or_higher_election_id() {
    let mut arbitration = new_arbitration();
    update(&mut arbitration, 1, arbitration_request("", 10));
    update(&mut arbitration, 2, arbitration_request("", 9));
    assert_eq!(
        notified(&arbitration.close(StreamId(1))),
        [(2, NoPrimary, Some(10))]
    );
    assert!(!may_write(&arbitration, "", 9) && !may_write(&arbitration, "", 10));
    assert_eq!(
        update(&mut arbitration, 2, arbitration_request("", 9)),
        [(2, NoPrimary, Some(10))]
    );
    assert_eq!(
        update(&mut arbitration, 3, arbitration_request("", 10)),
        [(2, Backup, Some(10)), (3, Primary, Some(10))]
    );
    assert!(
        arbitration.close(StreamId(2)).is_empty(),
        "no controller receives a notice of a disconnected backup"
    );
    assert!(arbitration.close(StreamId(2)).is_empty());
}

#[test]
fn a_primary_may_step_down_and_become_primary_again() {
    let mut arbitration = new_arbitration();
    update(&mut arbitration, 1, arbitration_request("", 10));
    update(&mut arbitration, 2, arbitration_request("", 4));
    assert_eq!(
        update(&mut arbitration, 1, arbitration_request("", 3)),
        [(1, NoPrimary, Some(10)), (2, NoPrimary, Some(10))]
    );
    assert!(!may_write(&arbitration, "", 3));
    assert_eq!(
        update(&mut arbitration, 1, arbitration_request("", None)),
        [(1, NoPrimary, Some(10))]
    );
    assert_eq!(
        update(&mut arbitration, 1, arbitration_request("", 10)),
        [(2, Backup, Some(10)), (1, Primary, Some(10))]
    );
}

#[test]
fn controllers_without_election_id_or_with_id_zero_stay_backup() {
    let mut arbitration = new_arbitration();
    assert_eq!(
        update(&mut arbitration, 1, arbitration_request("", None)),
        [(1, NoPrimary, None)]
    );
    assert_eq!(
        update(&mut arbitration, 2, arbitration_request("", 0)),
        [(2, NoPrimary, None)]
    );
    assert!(arbitration.check_write(DEVICE, "", None).is_err() && !may_write(&arbitration, "", 0));
    update(&mut arbitration, 3, arbitration_request("", 1));
    assert_eq!(
        update(&mut arbitration, 2, arbitration_request("", 0)),
        [(2, Backup, Some(1))]
    );
    assert!(arbitration.check_write(DEVICE, "", None).is_err() && !may_write(&arbitration, "", 0));
}

#[test]
fn roles_are_elected_separately_and_keep_their_configuration() {
    let mut arbitration = new_arbitration();
    let config = Any {
        type_url: "example.com/Role".into(),
        value: vec![1, 2],
    };
    update(&mut arbitration, 1, arbitration_request("", 10));
    let with_config = ArbitrationRequest {
        config: Some(config.clone()),
        ..arbitration_request("acl", 2)
    };
    assert_eq!(update(&mut arbitration, 2, with_config), [(2, Primary, Some(2))]);
    assert!(
        may_write(&arbitration, "", 10)
            && may_write(&arbitration, "acl", 2)
            && !may_write(&arbitration, "acl", 10)
    );
    let outcome = arbitration
        .update(
            StreamId(3),
            ArbitrationRequest {
                config: None,
                ..arbitration_request("acl", 1)
            },
        )
        .unwrap();
    assert_eq!(
        outcome.notices[0].config,
        Some(config),
        "the configuration of a backup does not replace the configuration of the role"
    );
    assert_eq!(
        arbitration.primaries().collect::<Vec<_>>(),
        [StreamId(1), StreamId(2)]
    );
}

#[test]
fn rejected_request_leaves_the_state_unchanged() {
    let mut arbitration = new_arbitration();
    update(&mut arbitration, 1, arbitration_request("", 10));
    update(&mut arbitration, 2, arbitration_request("", 5));
    let initial_state = format!("{arbitration:?}");
    let other_device = ArbitrationRequest {
        device_id: 8,
        ..arbitration_request("", 20)
    };
    let cases = [
        (
            9,
            other_device.clone(),
            ArbitrationError::NoSuchDevice {
                requested: 8,
                actual: DEVICE,
            },
        ),
        (
            1,
            other_device,
            ArbitrationError::DeviceChanged {
                requested: 8,
                actual: DEVICE,
            },
        ),
        (
            1,
            arbitration_request("acl", 10),
            ArbitrationError::RoleChanged {
                requested: "acl".into(),
                actual: String::new(),
            },
        ),
        (
            9,
            arbitration_request("", 5),
            ArbitrationError::ElectionIdTaken(5),
        ),
        (
            2,
            arbitration_request("", 10),
            ArbitrationError::ElectionIdTaken(10),
        ),
    ];
    for (stream, request, error) in cases {
        assert_eq!(arbitration.update(StreamId(stream), request).unwrap_err(), error);
        assert_eq!(format!("{arbitration:?}"), initial_state);
    }
    update(&mut arbitration, 3, arbitration_request("", None));
    assert_eq!(
        arbitration
            .update(StreamId(4), arbitration_request("", None))
            .unwrap_err(),
        ArbitrationError::TooManyStreams(3)
    );
    update(&mut arbitration, 3, arbitration_request("", None));
    update(&mut arbitration, 4, arbitration_request("acl", 1));
    arbitration.close(StreamId(4));
    assert_eq!(
        arbitration
            .update(StreamId(5), arbitration_request("more", 1))
            .unwrap_err(),
        ArbitrationError::TooManyRoles(2)
    );
}

#[test]
fn writes_are_rejected_in_the_order_of_the_specification() {
    let mut arbitration = new_arbitration();
    assert_eq!(
        arbitration.check_write(8, "x", None),
        Err(WriteError::NoSuchDevice {
            requested: 8,
            actual: DEVICE
        })
    );
    assert_eq!(
        arbitration.check_write(DEVICE, "x", None),
        Err(WriteError::NoSuchRole("x".into()))
    );
    let error = arbitration.check_write(DEVICE, "", Some(1)).unwrap_err();
    assert_eq!(
        error,
        WriteError::NotPrimary {
            role: String::new(),
            primary_election_id: None
        }
    );
    assert_eq!(
        error.to_string(),
        "not the primary of role \"\": the role has no primary"
    );
    update(&mut arbitration, 1, arbitration_request("", 3));
    let error = arbitration.check_write(DEVICE, "", Some(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not the primary of role \"\": the primary has election id 3"
    );
}

#[test]
fn no_controller_writes_between_the_steps_of_a_takeover() {
    let mut arbitration = new_arbitration();
    update(&mut arbitration, 1, arbitration_request("", 10));
    let first = arbitration
        .update(StreamId(2), arbitration_request("", 11))
        .unwrap();
    assert_eq!(notified(&first.notices), [(1, Backup, Some(11))]);
    assert!(
        !may_write(&arbitration, "", 10)
            && !may_write(&arbitration, "", 11)
            && arbitration.primaries().count() == 0
    );
    // A third controller supersedes the takeover of the second controller; the second never becomes primary.
    let second = arbitration
        .update(StreamId(3), arbitration_request("", 12))
        .unwrap();
    assert_eq!(
        notified(&second.notices),
        [(1, Backup, Some(12)), (2, Backup, Some(12))]
    );
    assert!(arbitration.complete(first.takeover.unwrap()).is_empty());
    assert!(!may_write(&arbitration, "", 11) && !may_write(&arbitration, "", 12));
    assert_eq!(
        notified(&arbitration.complete(second.takeover.unwrap())),
        [(3, Primary, Some(12))]
    );
    assert!(may_write(&arbitration, "", 12));
    // A controller disconnects during its takeover.
    let third = arbitration
        .update(StreamId(2), arbitration_request("", 13))
        .unwrap();
    assert_eq!(
        notified(&arbitration.close(StreamId(2))),
        [(1, NoPrimary, Some(13)), (3, NoPrimary, Some(13))]
    );
    assert!(arbitration.complete(third.takeover.unwrap()).is_empty());
    assert!(!may_write(&arbitration, "", 13) && !may_write(&arbitration, "", 12));
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

/// Simple model of arbitration. The primary of a role is the connected controller whose election id equals the highest
/// election id that was ever accepted; without this controller, the role has no primary.
#[derive(Default)]
struct Model {
    connected: BTreeMap<u64, (&'static str, Option<u128>)>,
    highest: BTreeMap<&'static str, u128>,
}

impl Model {
    fn primary(&self, role: &str) -> Option<u64> {
        let highest = *self.highest.get(role)?;
        self.connected
            .iter()
            .find(|(_, client)| **client == (role, Some(highest)))
            .map(|(stream, _)| *stream)
    }

    fn status(&self, stream: u64) -> ArbitrationStatus {
        match self.primary(self.connected[&stream].0) {
            None => NoPrimary,
            Some(primary) if primary == stream => Primary,
            Some(_) => Backup,
        }
    }

    fn accepts(&self, stream: u64, role: &str, election_id: Option<u128>) -> bool {
        let is_same_role = self
            .connected
            .get(&stream)
            .is_none_or(|(existing, _)| *existing == role);
        let is_unique = election_id.is_none()
            || self
                .connected
                .iter()
                .all(|(peer, client)| *peer == stream || *client != (role, election_id));
        is_same_role && is_unique
    }
}

proptest! {
    #[test]
    fn random_runs_agree_with_the_model(events in prop::collection::vec(event(), 1..60)) {
        let mut arbitration = Arbitration::new(DEVICE, Limits::default());
        let mut model = Model::default();
        let mut pending_takeovers = Vec::new();
        let mut latest_status: BTreeMap<u64, (ArbitrationStatus, Option<u128>)> = BTreeMap::new();
        for event in events {
            let notices = match event {
                Event::Update { stream, role, election_id } => match arbitration
                    .update(StreamId(stream), arbitration_request(role, election_id))
                {
                    Ok(outcome) => {
                        prop_assert!(model.accepts(stream, role, election_id));
                        model.connected.insert(stream, (role, election_id));
                        if let Some(id) = election_id.filter(|id| *id > 0) {
                            let highest = model.highest.entry(role).or_insert(id);
                            *highest = id.max(*highest);
                        }
                        prop_assert_eq!(outcome.takeover.is_some(), model.primary(role) == Some(stream));
                        pending_takeovers.extend(outcome.takeover);
                        outcome.notices
                    }
                    Err(_) => {
                        prop_assert!(!model.accepts(stream, role, election_id));
                        model.connected.remove(&stream);
                        arbitration.close(StreamId(stream))
                    }
                },
                Event::Complete(index) if index < pending_takeovers.len() => {
                    arbitration.complete(pending_takeovers.remove(index))
                }
                Event::Complete(_) => Vec::new(),
                Event::Close { stream } => {
                    model.connected.remove(&stream);
                    arbitration.close(StreamId(stream))
                }
            };
            latest_status.retain(|stream, _| model.connected.contains_key(stream));
            for notice in notices {
                latest_status.insert(notice.stream.0, (notice.status, notice.election_id));
            }
            for role in ["", "acl"] {
                // At most the model's primary may write; all other controllers receive their status immediately.
                for id in 0..6 {
                    if may_write(&arbitration, role, id) {
                        prop_assert_eq!(model.connected[&model.primary(role).unwrap()], (role, Some(id)));
                    }
                }
            }
            for (stream, (role, _)) in &model.connected {
                if model.status(*stream) != Primary {
                    let expected = (model.status(*stream), model.highest.get(role).copied());
                    prop_assert_eq!(latest_status.get(stream), Some(&expected), "stream {}", stream);
                }
            }
        }
        // After all takeovers are completed every primary has received its status and may write.
        for takeover in pending_takeovers {
            for notice in arbitration.complete(takeover) {
                latest_status.insert(notice.stream.0, (notice.status, notice.election_id));
            }
        }
        for (stream, (role, id)) in &model.connected {
            prop_assert_eq!(latest_status[stream].0, model.status(*stream));
            let is_primary = model.primary(role) == Some(*stream);
            prop_assert_eq!(arbitration.is_primary(StreamId(*stream)), is_primary);
            prop_assert_eq!(arbitration.check_write(DEVICE, role, *id).is_ok(), is_primary);
        }
    }
}
