//! What the standing of a gateway does to its link: rows, leases, fences.

use std::time::Duration;

use linewarden_controller::trust::{Standing, Times, Unbelieved, Verdict};
use linewarden_controller::{Controller, Denial, Link, Policy, Refusal, Want};
use linewarden_evidence::encoding::{BpfMapEntry, Entry};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{Credentials, DeviceRecord, MasterKey, Options, Registry, RegistryError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, Executor as _, SqliteConnection};

use crate::plane::Plane;
use crate::{ANSWER, EVERY, GATEWAY, S, why};

const DEVICE: DeviceId = DeviceId(0xd1);

fn times(now_ns: u64) -> Times {
    Times {
        now_ns,
        now_s: now_ns / S,
    }
}

async fn site(plane: &mut Plane) -> Controller {
    let key = MasterKey::from_bytes([1; 32]);
    site_over(Registry::in_memory(&key).await.unwrap(), plane).await
}

async fn site_over(registry: Registry, plane: &mut Plane) -> Controller {
    let device = DeviceRecord {
        device: DEVICE,
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: String::new(),
        credentials: Credentials::Key(RowKey::from_bytes([5; 16])),
    };
    registry.enrol(device).await.unwrap();
    Controller::new(registry, Policy::default()).trusting(GATEWAY, plane.policy())
}

fn want() -> Want {
    Want {
        device: DEVICE,
        epoch: 0,
        from: RowIndex(0),
        received: RowIndex(0),
        hold: 4,
        ahead: 4,
    }
}

/// Asks, and has the plane answer.
async fn shown(link: &Link, plane: &mut Plane, now: u64) -> Verdict {
    let asked = link.look(times(now), &mut nonces_at(now)).await.unwrap().unwrap();
    let nonce = asked.scrutiny.nonce.expect("it is time");
    let inventory = plane.inventory();
    let judged = link
        .judge(plane.statement(nonce), Some(inventory), times(now))
        .await;
    judged.unwrap().unwrap()
}

fn nonces_at(now: u64) -> impl FnMut() -> Option<[u8; 32]> + Send {
    move || {
        let mut nonce = [3; 32];
        nonce[..8].copy_from_slice(&now.to_be_bytes());
        Some(nonce)
    }
}

#[tokio::test]
async fn rows_are_given_only_to_a_gateway_that_is_trusted() {
    let mut plane = Plane::new(3);
    let controller = site(&mut plane).await;
    let link = controller.connect(GATEWAY, 1).await.unwrap();
    let denied = |denial: Denial| denial.to_string();
    let unproven = denied(link.lease(&[want()]).await.unwrap_err());
    assert!(unproven.contains("not shown yet"), "{unproven}");
    assert!(matches!(
        link.held().next_chunk().await,
        Err(Denial::Untrusted { .. })
    ));
    assert!(matches!(
        link.receive(&[], [7; 8]).await,
        Err(Denial::Untrusted { .. })
    ));
    // Others, of whom nobody asks anything, are served.
    let other = controller.connect(GatewayId(6), 1).await.unwrap();
    let (_, refused) = other.lease(&[want()]).await.unwrap();
    assert_eq!(refused[0].why, Refusal::NotHeld);
    assert!(other.look(times(0), &mut nonces_at(0)).await.unwrap().is_none());

    let verdict = shown(&link, &mut plane, S).await;
    assert_eq!(verdict.scrutiny.standing, Standing::Trusted);
    assert!(verdict.link.is_none(), "nothing was taken away");
    controller.pass_time(S);
    link.lease(&[want()]).await.unwrap();
    assert!(link.held().next_chunk().await.is_ok());
}

#[tokio::test]
async fn a_gateway_that_changes_loses_its_leases_by_its_fence() {
    let mut plane = Plane::new(3);
    let controller = site(&mut plane).await;
    let link = controller.connect(GATEWAY, 1).await.unwrap();
    shown(&link, &mut plane, S).await;
    let held = link.held();
    plane.set(8);
    let verdict = shown(&link, &mut plane, EVERY + S).await;
    assert!(
        why(&verdict.scrutiny.standing).contains("07 is now 08"),
        "{verdict:?}"
    );

    let now = verdict.link.expect("the fence was raised");
    assert_eq!(now.number(), link.number() + 1);
    let old = link.settle(&[]).await.unwrap_err();
    assert!(matches!(old, RegistryError::OldFence { .. }), "{old}");
    assert!(controller.has_distrusted(&old), "it is no other process");
    drop(held);
    assert!(matches!(
        now.lease(&[want()]).await,
        Err(Denial::Untrusted { .. })
    ));

    plane.set(7);
    let verdict = shown(&now, &mut plane, 2 * EVERY + S).await;
    assert_eq!(verdict.scrutiny.standing, Standing::Trusted);
    now.lease(&[want()]).await.unwrap();

    // Another process takes the gateway's place, and has to show itself.
    let successor = controller.connect(GATEWAY, 2).await.unwrap();
    let old = now.settle(&[]).await.unwrap_err();
    assert!(!controller.has_distrusted(&old), "this one was replaced");
    assert!(matches!(
        successor.lease(&[want()]).await,
        Err(Denial::Untrusted { .. })
    ));
    let nonce = successor
        .look(times(3 * EVERY), &mut nonces_at(9))
        .await
        .unwrap()
        .unwrap();
    let nonce = nonce.scrutiny.nonce.unwrap();
    let judged = now.judge(plane.statement(nonce), None, times(3 * EVERY)).await;
    assert!(judged.is_err(), "the one before does not speak for it");
}

#[tokio::test]
async fn silence_takes_the_leases_away_too() {
    let mut plane = Plane::new(3);
    let controller = site(&mut plane).await;
    let link = controller.connect(GATEWAY, 1).await.unwrap();
    shown(&link, &mut plane, S).await;
    let at = EVERY + S;
    link.look(times(at), &mut nonces_at(at)).await.unwrap();
    controller.pass_time(at + ANSWER);
    let overdue = link.lease(&[want()]).await.unwrap_err();
    assert!(overdue.to_string().contains("overdue"), "{overdue}");
    let verdict = link.look(times(at + ANSWER), &mut nonces_at(at + ANSWER)).await;
    let verdict = verdict.unwrap().unwrap();
    assert!(why(&verdict.scrutiny.standing).contains("10 s"));
    assert!(verdict.link.is_some());
    let refused = link
        .judge(Vec::new(), None, times(at + ANSWER))
        .await
        .unwrap_err();
    assert!(matches!(refused, RegistryError::OldFence { .. }));
}

#[tokio::test]
async fn a_fence_that_was_raised_is_told_again_to_the_same_process_only() {
    let mut plane = Plane::new(3);
    let controller = site(&mut plane).await;
    let before = controller.connect(GATEWAY, 1).await.unwrap();
    let link = controller.connect(GATEWAY, 1).await.unwrap();
    shown(&link, &mut plane, S).await;
    plane.set(8);
    let first = shown(&link, &mut plane, EVERY + S).await.link.unwrap();
    // The answer was lost.
    let told = link.look(times(EVERY + S), &mut nonces_at(7)).await;
    let told = told.unwrap().unwrap();
    assert_eq!(told.link.unwrap().number(), first.number());
    assert!(matches!(told.scrutiny.standing, Standing::Distrusted { .. }));
    // Likewise where it was raised twice since.
    plane.set(7);
    shown(&first, &mut plane, 2 * EVERY + S).await;
    plane.set(8);
    let second = shown(&first, &mut plane, 3 * EVERY + S).await.link.unwrap();
    for lost in [&link, &first] {
        let told = lost.look(times(3 * EVERY + S), &mut nonces_at(8)).await;
        assert_eq!(told.unwrap().unwrap().link.unwrap().number(), second.number());
    }
    let old = before
        .look(times(3 * EVERY + S), &mut nonces_at(9))
        .await
        .unwrap_err();
    assert!(!controller.has_distrusted(&old), "that one was replaced: {old}");
    controller.connect(GATEWAY, 2).await.unwrap();
    let old = second
        .look(times(3 * EVERY + S), &mut nonces_at(9))
        .await
        .unwrap_err();
    assert!(!controller.has_distrusted(&old), "and this one by now: {old}");
}

/// A plane whose inventory takes a while.
fn laden() -> Plane {
    let mut plane = Plane::new(3);
    for number in 0..10_000_u32 {
        let entry = Entry::from(BpfMapEntry {
            map: "devices".to_owned(),
            key: number.to_be_bytes().to_vec(),
            value: vec![0; 64],
        });
        plane.measured.put(&entry).unwrap();
    }
    plane
}

/// What an inventory of many entries takes, nobody else waits for.
#[tokio::test]
async fn others_are_served_while_a_statement_is_judged() {
    let mut plane = laden();
    let controller = site(&mut plane).await;
    let link = controller.connect(GATEWAY, 1).await.unwrap();
    let other = controller.connect(GatewayId(6), 1).await.unwrap();
    let asked = link.look(times(S), &mut nonces_at(S)).await.unwrap().unwrap();
    let statement = plane.statement(asked.scrutiny.nonce.unwrap());
    let judged = link.judge(statement, Some(plane.inventory()), times(S));
    let mut judged = std::pin::pin!(judged);
    let (wants, mut served) = ([want()], 0);
    let verdict = loop {
        tokio::select! {
            biased;
            verdict = judged.as_mut() => break verdict.unwrap().unwrap(),
            leased = other.lease(&wants) => {
                leased.unwrap();
                served += 1;
            }
        }
        controller.pass_time(S);
    };
    assert_eq!(verdict.scrutiny.standing, Standing::Trusted);
    assert!(
        served > 5,
        "{served} questions of another gateway were answered meanwhile"
    );
}

/// A statement speaks for nobody who has begun anew while it was judged.
#[tokio::test]
async fn what_was_judged_counts_only_where_it_is_waited_for() {
    let mut plane = laden();
    let controller = site(&mut plane).await;
    let link = controller.connect(GATEWAY, 1).await.unwrap();
    let asked = link.look(times(S), &mut nonces_at(S)).await.unwrap().unwrap();
    let statement = plane.statement(asked.scrutiny.nonce.unwrap());
    let judged = link.judge(statement, Some(plane.inventory()), times(S));
    let mut judged = std::pin::pin!(judged);
    for _ in 0..3 {
        tokio::select! {
            biased;
            verdict = judged.as_mut() => panic!("too early: {verdict:?}"),
            fence = link.check() => fence.unwrap(),
        }
    }
    controller.begin_trust(GATEWAY, None);
    assert!(matches!(judged.await.unwrap(), Err(Unbelieved::Unasked)));
    controller.pass_time(S);
    let denied = link.lease(&[want()]).await.unwrap_err();
    assert!(matches!(denied, Denial::Untrusted { .. }), "{denied}");
}

/// Where the fence of a registration that may be over stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Raise {
    /// Nobody else has raised it.
    Due,
    /// Another controller has, for a newer process.
    Elsewhere,
    /// Likewise, and that process comes here.
    Moved,
}

/// A fence that could not be raised, because the database was locked, stays due to the process that is distrusted, whatever one of before
/// asks; where somebody else has raised it meanwhile that process hears that it is over.
#[tokio::test]
async fn a_fence_is_due_until_it_is_raised_or_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.registry");
    let options = Options {
        busy_timeout: Duration::from_millis(50),
        ..Options::default()
    };
    let key = MasterKey::from_bytes([1; 32]);
    let registry = Registry::create_with(path.clone(), &key, &options).await.unwrap();
    let mut plane = Plane::new(3);
    let controller = site_over(registry.clone(), &mut plane).await;
    let mut other = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path))
        .await
        .unwrap();
    for (turn, raise) in [Raise::Due, Raise::Elsewhere, Raise::Moved]
        .into_iter()
        .enumerate()
    {
        let begun = turn as u64 * 10 * EVERY;
        let now = begun + EVERY + S;
        plane.set(7);
        let before = controller.connect(GATEWAY, 1).await.unwrap();
        let link = controller.connect(GATEWAY, 1).await.unwrap();
        shown(&link, &mut plane, begun + S).await;
        plane.set(8);
        let asked = link.look(times(now), &mut nonces_at(now)).await;
        let nonce = asked.unwrap().unwrap().scrutiny.nonce.unwrap();
        other.execute("BEGIN IMMEDIATE").await.unwrap();
        let judged = link
            .judge(plane.statement(nonce), Some(plane.inventory()), times(now))
            .await;
        assert!(judged.is_err(), "nobody can write");
        other.execute("ROLLBACK").await.unwrap();

        let old = before.look(times(now), &mut nonces_at(8)).await.unwrap_err();
        assert!(!controller.has_distrusted(&old), "that one was replaced: {old}");
        if raise == Raise::Due {
            let told = link.look(times(now), &mut nonces_at(9)).await;
            let raised = told.unwrap().unwrap().link.expect("the fence was due");
            assert!(raised.number() > link.number());
            continue;
        }
        registry.register_gateway(GATEWAY, 2).await.unwrap();
        if raise == Raise::Moved {
            leaves_the_newer_alone(&controller, link.number() + 1, &mut plane, now + 2 * S).await;
        }
        let over = link.look(times(now), &mut nonces_at(9)).await.unwrap_err();
        assert!(!controller.has_distrusted(&over), "and this one by now: {over}");
    }
}

/// A newer process keeps what it got from another controller, until it is found to be no better itself.
async fn leaves_the_newer_alone(controller: &Controller, number: u64, plane: &mut Plane, now: u64) {
    controller.begin_trust(GATEWAY, None);
    let newer = controller.link(GATEWAY, number);
    let looked = newer.look(times(now), &mut nonces_at(now)).await;
    let looked = looked.unwrap().unwrap();
    assert!(looked.link.is_none(), "what was due is not its own");
    let nonce = looked.scrutiny.nonce.unwrap();
    let judged = newer.judge(plane.statement(nonce), None, times(now)).await;
    let raised = judged.unwrap().unwrap().link.expect("it is no better");
    assert_eq!(raised.number(), number + 1);
}
