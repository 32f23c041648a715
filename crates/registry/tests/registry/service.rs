//! What running as a service rests on: users and their sessions, the journal, answers kept, the book of gateways, signers.

use crate::support::{fleet_of_40, gateway, in_memory, is_on_postgres, open, pool_device, sql};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    Act, Actor, Answered, Entry, Follower, GatewayState, JournalFilter, Kept, NOTED_AHEAD_MS, Note, Registry,
    RegistryError, Role, SignerEntry, User,
};

const NOW_S: u64 = 1_790_000_000;

fn user(name: &str, role: Role) -> User {
    User {
        name: name.to_owned(),
        role,
        has_token: true,
        created_at_s: NOW_S,
        expires_at_s: None,
    }
}

fn act(what: &str, device: Option<u64>) -> Act {
    Act {
        at_ms: NOW_S * 1000,
        actor: Actor {
            name: "alice".to_owned(),
            role: Role::Operator,
            origin: "192.0.2.7".to_owned(),
        },
        reason: "stolen\nin Basel".to_owned(),
        note: Note {
            kind: what.to_owned(),
            device: device.map(DeviceId),
            ..Note::default()
        },
    }
}

#[tokio::test]
async fn a_token_opens_for_whom_it_was_made_until_it_is_over() {
    let registry = in_memory().await;
    let admin = user("alice", Role::Admin);
    registry.add_user(&admin, Some("token of alice")).await.unwrap();
    let guest = User {
        expires_at_s: Some(NOW_S + 10),
        ..user("guest", Role::Viewer)
    };
    registry.add_user(&guest, Some("token of guest")).await.unwrap();
    let by_certificate = User {
        has_token: false,
        ..user("build server", Role::Operator)
    };
    registry.add_user(&by_certificate, None).await.unwrap();

    assert_eq!(
        registry.user_of_token("token of alice", NOW_S).await.unwrap(),
        Some(admin)
    );
    assert_eq!(
        registry.user_of_token("token of Alice", NOW_S).await.unwrap(),
        None
    );
    assert_eq!(
        registry.user_of_token("token of guest", NOW_S + 9).await.unwrap(),
        Some(guest)
    );
    assert_eq!(
        registry
            .user_of_token("token of guest", NOW_S + 10)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        registry.user_of_name("build server", NOW_S).await.unwrap(),
        Some(by_certificate)
    );
    assert_eq!(registry.users().await.unwrap().len(), 3);
    let taken = registry
        .add_user(&user("alice", Role::Viewer), Some("another"))
        .await;
    assert!(
        matches!(taken, Err(RegistryError::InvalidEntry { field: "name", .. })),
        "{taken:?}"
    );

    let begun = registry
        .begin_session("token of alice", "cookie", NOW_S, NOW_S + 100)
        .await
        .unwrap();
    assert_eq!(begun.unwrap().1, NOW_S + 100);
    let nobody = registry
        .begin_session("alice", "biscuit", NOW_S, NOW_S + 100)
        .await;
    assert_eq!(nobody.unwrap(), None, "a name is no token");
    assert_eq!(registry.user_of_session("biscuit", NOW_S).await.unwrap(), None);
    let (found, until_s) = registry
        .user_of_session("cookie", NOW_S + 99)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((found.name.as_str(), until_s), ("alice", NOW_S + 100));
    assert_eq!(
        registry.user_of_session("cookie", NOW_S + 100).await.unwrap(),
        None
    );
    assert!(registry.remove_user("alice").await.unwrap());
    assert_eq!(
        registry.user_of_token("token of alice", NOW_S).await.unwrap(),
        None
    );
    assert_eq!(
        registry.user_of_session("cookie", NOW_S).await.unwrap(),
        None,
        "at once"
    );
    assert!(!registry.remove_user("alice").await.unwrap());
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_makes_room_for_newer_ones() {
    let registry = in_memory().await;
    let guest = User {
        expires_at_s: Some(NOW_S + 50),
        ..user("guest", Role::Viewer)
    };
    registry.add_user(&guest, Some("token of guest")).await.unwrap();
    let begin = async |cookie: &str, until_s| {
        let begun = registry
            .begin_session("token of guest", cookie, NOW_S, until_s)
            .await;
        begun.unwrap().unwrap().1
    };
    assert_eq!(begin("long", NOW_S + 100).await, NOW_S + 50);
    for number in 0..100 {
        assert_eq!(begin(&number.to_string(), NOW_S + 10).await, NOW_S + 10);
    }
    let lives = async |cookie: &str| registry.user_of_session(cookie, NOW_S).await.unwrap().is_some();
    assert!(lives("long").await && lives("99").await);
    let mut living = 0;
    for number in 0..100 {
        living += usize::from(lives(&number.to_string()).await);
    }
    assert_eq!(living, 99, "with the long one as many as there may be");
}

/// Whoever writes the database without the master key makes nobody an admin.
#[tokio::test]
async fn nobody_is_let_in_by_an_edit() {
    for edit in [
        "UPDATE api_user SET role = 3",
        "UPDATE api_user SET expires_at_s = NULL",
        "UPDATE api_user SET name = 'bob'",
        "UPDATE api_user SET token_hash = mac",
        "UPDATE gateway_book SET retired_at_s = NULL, retired_reason = NULL",
        "UPDATE signer SET revoked_at_s = NULL",
    ] {
        let (_directory, place) = fleet_of_40().await;
        let registry = open(&place).await.unwrap();
        let guest = User {
            expires_at_s: Some(NOW_S),
            ..user("guest", Role::Viewer)
        };
        registry.add_user(&guest, Some("token")).await.unwrap();
        registry
            .retire_gateway(GatewayId(7), "sold", NOW_S)
            .await
            .unwrap();
        registry.add_signer(&signer(1)).await.unwrap();
        registry.revoke_signer(&[1; 8], NOW_S).await.unwrap();
        assert!(registry.check().await.unwrap().is_empty());
        sql(&place, edit).await;
        assert_eq!(registry.check().await.unwrap().len(), 1, "{edit}");
        if edit.contains("api_user") {
            for name in ["guest", "bob"] {
                let found = registry.user_of_name(name, 0).await;
                assert!(!matches!(found, Ok(Some(_))), "{edit}: {found:?}");
            }
        }
        if edit.contains("gateway_book") {
            assert!(registry.register_gateway(GatewayId(7), NOW_S).await.is_err());
        }
    }
}

#[tokio::test]
async fn what_somebody_does_is_in_the_journal_with_it() {
    let registry = in_memory().await;
    for id in 1..=3 {
        registry.enrol(pool_device(id, 4)).await.unwrap();
    }
    let acting = registry.acting(act("revoked", Some(2))).unwrap();
    acting.revoke(DeviceId(2), "stolen", NOW_S).await.unwrap();
    // Nothing came about.
    acting.revoke(DeviceId(2), "stolen", NOW_S).await.unwrap();
    let stranger = registry.acting(act("revoked", Some(9))).unwrap();
    let refused = stranger.revoke(DeviceId(9), "stolen", NOW_S).await.unwrap_err();
    stranger.note_refused(&refused.to_string()).await.unwrap();
    registry
        .note(
            &[Note {
                kind: "gateway_lost".to_owned(),
                gateway: Some(GatewayId(1)),
                ..Note::default()
            }],
            5,
        )
        .await
        .unwrap();

    let page = registry
        .journal(&JournalFilter::default(), None, 100)
        .await
        .unwrap();
    let told: Vec<_> = page
        .entries
        .iter()
        .map(|entry| {
            (
                entry.number,
                entry.note.kind.as_str(),
                entry.actor.is_some(),
                entry.refused,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (3, "gateway_lost", false, false),
            (2, "revoked", true, true),
            (1, "revoked", true, false)
        ]
    );
    assert!(page.entries.iter().all(|entry| entry.authentic));
    assert_eq!(page.entries[2].reason.as_deref(), Some("stolen\nin Basel"));
    assert_eq!(page.entries[2].actor, Some(act("", None).actor));
    assert!(page.entries[1].note.detail.contains("not enrolled"));

    let filters = [
        (
            JournalFilter {
                device: Some(DeviceId(2)),
                ..JournalFilter::default()
            },
            vec![1],
        ),
        (
            JournalFilter {
                gateway: Some(GatewayId(1)),
                ..JournalFilter::default()
            },
            vec![3],
        ),
        (
            JournalFilter {
                acts_only: true,
                ..JournalFilter::default()
            },
            vec![2, 1],
        ),
        (
            JournalFilter {
                without_refused: true,
                ..JournalFilter::default()
            },
            vec![3, 1],
        ),
        (
            JournalFilter {
                who: Some("alice".to_owned()),
                ..JournalFilter::default()
            },
            vec![2, 1],
        ),
        (
            JournalFilter {
                kinds: vec!["round".to_owned()],
                ..JournalFilter::default()
            },
            vec![],
        ),
    ];
    for (filter, expected) in filters {
        let page = registry.journal(&filter, None, 100).await.unwrap();
        let numbers: Vec<u64> = page.entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, expected, "{filter:?}");
    }
    let first = registry
        .journal(&JournalFilter::default(), None, 2)
        .await
        .unwrap();
    let rest = registry
        .journal(&JournalFilter::default(), first.next, 2)
        .await
        .unwrap();
    assert_eq!((first.next, rest.entries.len(), rest.next), (Some(2), 1, None));
    assert_eq!(registry.journal_end().await.unwrap(), 3);
    let after = registry.journal_after(1, 10).await.unwrap();
    assert_eq!(after.iter().map(|entry| entry.number).collect::<Vec<_>>(), [2, 3]);
}

#[tokio::test]
async fn an_entry_that_was_changed_or_taken_out_is_noticed() {
    for (edit, damaged) in [
        ("UPDATE journal SET reason = 'none' WHERE number = 2", vec![2]),
        ("UPDATE journal SET who = NULL WHERE number = 2", vec![2]),
        ("DELETE FROM journal WHERE number = 2", vec![3]),
        ("DELETE FROM journal WHERE number = 1", vec![2]),
        ("UPDATE journal SET number = 9 WHERE number = 4", vec![9]),
    ] {
        let (_directory, place) = fleet_of_40().await;
        let registry = open(&place).await.unwrap();
        for id in 1..=4 {
            let acting = registry.acting(act("revoked", Some(id))).unwrap();
            acting.revoke(DeviceId(id), "lost", NOW_S).await.unwrap();
        }
        assert!(registry.check().await.unwrap().is_empty());
        sql(&place, edit).await;
        let found = registry.check().await.unwrap();
        let numbers: Vec<u64> = found
            .iter()
            .map(|error| match error {
                RegistryError::DamagedEntry { number } => *number,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(numbers, damaged, "{edit}");
        let page = registry
            .journal(&JournalFilter::default(), None, 10)
            .await
            .unwrap();
        assert!(page.entries.iter().any(|entry| !entry.authentic), "{edit}");
    }
}

#[tokio::test]
async fn a_key_is_answered_once_and_the_same_again() {
    let registry = in_memory().await;
    let begin = async |user: &str, key: &str, request: u8, now_s: u64| {
        registry
            .begin_answer(user, key, &[request; 32], now_s, 60)
            .await
            .unwrap()
    };
    assert_eq!(begin("alice", "k", 1, NOW_S).await, Answered::New);
    assert_eq!(begin("alice", "k", 1, NOW_S + 59).await, Answered::UnderWay);
    assert_eq!(begin("alice", "k", 2, NOW_S).await, Answered::Another);
    assert_eq!(
        begin("bob", "k", 2, NOW_S).await,
        Answered::New,
        "each has keys of their own"
    );
    assert_eq!(
        begin("alice", "k", 1, NOW_S + 60).await,
        Answered::New,
        "its controller is gone"
    );
    let kept = Kept {
        status: 201,
        body: b"{}".to_vec(),
    };
    registry
        .end_answer("alice", "k", &[1; 32], Some(&kept))
        .await
        .unwrap();
    assert_eq!(begin("alice", "k", 1, NOW_S + 61).await, Answered::Again(kept));
    registry.end_answer("bob", "k", &[2; 32], None).await.unwrap();
    assert_eq!(
        begin("bob", "k", 3, NOW_S).await,
        Answered::New,
        "nothing was done"
    );
    // A day later it is a new question.
    assert_eq!(begin("carol", "k", 1, NOW_S + 86_462).await, Answered::New);
    assert_eq!(begin("alice", "k", 2, NOW_S + 86_463).await, Answered::New);
    assert!(
        registry
            .begin_answer("alice", "", &[0; 32], NOW_S, 60)
            .await
            .is_err()
    );
}

/// Somebody who writes into the database has nothing answered that was not done.
#[tokio::test]
async fn an_answer_that_somebody_else_has_written_is_none() {
    for edit in [
        "UPDATE api_answer SET status = 200",
        "UPDATE api_answer SET body = x'7b7d'",
        "UPDATE api_answer SET body = NULL",
        "UPDATE api_answer SET body = x'20'",
        "UPDATE api_answer SET status = 70000",
        "UPDATE api_answer SET user_name = 'bob'",
        "UPDATE api_answer SET key = 'l'",
        "UPDATE api_answer SET request = x'0202020202020202020202020202020202020202020202020202020202020202'",
    ] {
        let (_directory, place) = fleet_of_40().await;
        let registry = open(&place).await.unwrap();
        let begin =
            async |user, key, request: u8| registry.begin_answer(user, key, &[request; 32], NOW_S, 60).await;
        begin("alice", "k", 1).await.unwrap();
        let kept = Kept {
            status: 201,
            body: b"{}".to_vec(),
        };
        registry
            .end_answer("alice", "k", &[1; 32], Some(&kept))
            .await
            .unwrap();
        assert_eq!(begin("alice", "k", 1).await.unwrap(), Answered::Again(kept));
        sql(&place, edit).await;
        let (user, key, request) = match edit {
            _ if edit.contains("user_name") => ("bob", "k", 1),
            _ if edit.contains("key") => ("alice", "l", 1),
            _ if edit.contains("request") => ("alice", "k", 2),
            _ => ("alice", "k", 1),
        };
        let refused = begin(user, key, request).await.unwrap_err();
        assert!(
            refused.to_string().contains("does not authenticate"),
            "{edit}: {refused}"
        );
    }
}

/// What somebody else has written, and takes out again, has nothing passed over; nor an older journal that is put back.
#[tokio::test]
async fn a_follower_is_led_astray_by_nobody() {
    let (_directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
    let revoke = async |id: u64| {
        let acting = registry.acting(act("revoked", Some(id))).unwrap();
        acting.revoke(DeviceId(id), "lost", NOW_S).await.unwrap();
    };
    revoke(1).await;
    revoke(2).await;
    const FORGED: &str = "INSERT INTO journal (number, at_ms, kind, detail, refused, mac) \
                          SELECT 9223372036854775807, at_ms, kind, detail, refused, mac FROM journal WHERE number = 1";
    sql(&place, FORGED).await;
    assert_eq!(registry.journal_end().await.unwrap(), 2);
    let mut follower = Follower::after(1);
    let next = async |follower: &mut Follower, limit| -> Vec<(u64, bool)> {
        let entries = follower.next(&registry, limit).await.unwrap();
        let of = |entry: &Entry| (entry.number, entry.authentic);
        entries.iter().map(of).collect()
    };
    let forged = (i64::MAX.unsigned_abs(), false);
    assert_eq!(next(&mut follower, 10).await, [(2, true), forged]);
    assert_eq!(next(&mut follower, 10).await, [], "once");
    sql(&place, "DELETE FROM journal WHERE number > 2").await;
    assert_eq!(next(&mut follower, 10).await, []);
    revoke(3).await;
    assert_eq!(next(&mut follower, 10).await, [(3, true)]);
    assert_eq!(follower.read(), 3);
    // Pages of nothing but that are read over.
    sql(&place, "UPDATE journal SET kind = 'other' WHERE number IN (1, 2)").await;
    let mut other = Follower::after(0);
    for expected in [(1, false), (2, false), (3, true)] {
        assert_eq!(next(&mut other, 1).await, [expected]);
    }
    let mut again = other;
    again.go_to(0);
    assert_eq!(next(&mut again, 1).await, [(3, true)]);
    // An older journal is put back.
    sql(&place, "DELETE FROM journal WHERE number > 1").await;
    assert_eq!(next(&mut follower, 10).await, []);
    assert_eq!(follower.read(), 1, "it goes on from there");
}

#[tokio::test]
async fn a_retired_gateway_gets_nothing_and_never_comes_back() {
    let registry = in_memory().await;
    registry.enrol(pool_device(1, 10)).await.unwrap();
    registry
        .enter_gateway(GatewayId(1), "hall 1", NOW_S)
        .await
        .unwrap();
    let fence = gateway(&registry).await;
    registry
        .enter_gateway(GatewayId(1), "hall one", NOW_S + 5)
        .await
        .unwrap();
    let entry = registry.gateways().await.unwrap().remove(0).unwrap();
    assert_eq!(
        (entry.name.as_str(), entry.created_at_s, entry.fence),
        ("hall one", NOW_S, 1)
    );
    registry
        .retire_gateway(GatewayId(1), "sold", NOW_S + 9)
        .await
        .unwrap();
    assert!(matches!(
        registry.register_gateway(GatewayId(1), NOW_S).await,
        Err(RegistryError::RetiredGateway { .. })
    ));
    assert!(matches!(
        registry.verify_fence(&fence).await,
        Err(RegistryError::OldFence { .. })
    ));
    let again = registry.enter_gateway(GatewayId(1), "hall 1", NOW_S).await;
    assert!(again.unwrap_err().to_string().contains("never used again"));
    registry
        .retire_gateway(GatewayId(1), "once more", NOW_S + 20)
        .await
        .unwrap();
    let entry = registry.gateways().await.unwrap().remove(0).unwrap();
    assert_eq!(entry.retired, Some((NOW_S + 9, "sold".to_owned())));
    // One that nobody has entered may come.
    registry.register_gateway(GatewayId(2), NOW_S).await.unwrap();

    let state = GatewayState {
        gateway: GatewayId(1),
        at_ms: 7,
        controller: "a".to_owned(),
        body: "{}".to_owned(),
    };
    registry.tell_gateway_state(&state, 7).await.unwrap();
    let later = GatewayState { at_ms: 8, ..state };
    registry.tell_gateway_state(&later, 8).await.unwrap();
    assert_eq!(registry.gateway_states().await.unwrap(), [later]);
}

/// A clock that was ahead for one note keeps no later ones out; one that is a little ahead does, until it is passed.
#[tokio::test]
async fn what_is_noted_ahead_of_now_is_noted_over() {
    const NOW_MS: u64 = NOW_S * 1_000;
    let registry = in_memory().await;
    let note = async |at_ms: u64, now_ms: u64| {
        let state = GatewayState {
            gateway: GatewayId(1),
            at_ms,
            controller: "a".to_owned(),
            body: "{}".to_owned(),
        };
        registry.tell_gateway_state(&state, now_ms).await.unwrap();
        registry.gateway_state(GatewayId(1)).await.unwrap().unwrap().at_ms
    };
    let ahead = NOW_MS + NOTED_AHEAD_MS;
    assert_eq!(note(ahead + 1, ahead + 1).await, ahead + 1);
    assert_eq!(note(NOW_MS, NOW_MS).await, NOW_MS);
    assert_eq!(note(ahead, ahead).await, ahead);
    assert_eq!(note(NOW_MS, NOW_MS).await, ahead);
    assert_eq!(note(ahead + 1, ahead + 1).await, ahead + 1);
    // What waited long is no newer for that.
    assert_eq!(note(NOW_MS, ahead + 1).await, ahead + 1);
    assert_eq!(note(u64::MAX, u64::MAX).await, i64::MAX.unsigned_abs());
    assert_eq!(note(NOW_MS, NOW_MS).await, NOW_MS);
}

fn signer(id: u8) -> SignerEntry {
    SignerEntry {
        id: vec![id; 8],
        name: format!("truck {id}"),
        scheme: "ed25519".to_owned(),
        public_key: vec![id; 32],
        added_at_s: NOW_S,
        revoked_at_s: None,
    }
}

#[tokio::test]
async fn a_signer_that_was_revoked_stays_so() {
    let registry = in_memory().await;
    for id in [2, 1] {
        registry.add_signer(&signer(id)).await.unwrap();
    }
    assert!(registry.revoke_signer(&[1; 8], NOW_S).await.unwrap());
    assert!(registry.revoke_signer(&[1; 8], NOW_S + 5).await.unwrap());
    assert!(!registry.revoke_signer(&[3; 8], NOW_S).await.unwrap());
    let all: Vec<SignerEntry> = registry
        .signers()
        .await
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let revoked = SignerEntry {
        revoked_at_s: Some(NOW_S),
        ..signer(1)
    };
    assert_eq!(all, [revoked, signer(2)]);
    let again = registry.add_signer(&signer(1)).await.unwrap_err().to_string();
    assert!(again.contains("stays so"), "{again}");
}

/// The whole of a fleet, in one go.
#[tokio::test]
async fn many_are_revoked_at_once_or_nobody() {
    let registry: Registry = in_memory().await;
    for id in 1..=5 {
        registry.enrol(pool_device(id, 2)).await.unwrap();
    }
    registry.revoke(DeviceId(4), "before", NOW_S).await.unwrap();
    let these = [1, 4, 9, 2].map(DeviceId);
    let (revoked, problems) = registry.revoke_all(&these, "recall", NOW_S).await.unwrap();
    assert_eq!((revoked, problems.len()), (2, 1));
    assert!(
        problems[0].to_string().contains("0000000000000009"),
        "{}",
        problems[0]
    );
    for id in 1..=5 {
        let info = registry.get(DeviceId(id)).await.unwrap();
        assert_eq!(info.status.is_active(), [3, 5].contains(&id), "{id}");
    }
    if is_on_postgres() {
        return;
    }
    let bad = registry.revoke_all(&[DeviceId(3)], "\u{1b}[2J", NOW_S).await;
    assert!(matches!(bad, Err(RegistryError::InvalidRecord { .. })));
}
