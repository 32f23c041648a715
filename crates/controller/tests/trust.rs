//! Which gateways are trusted: what makes one so, what ends it, and what nobody can do to it from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::time::Duration;

use linewarden_controller::trust::{Memory, Standing, Times, Trust, TrustPolicy, Unbelieved, Verdict};
use linewarden_controller::{Controller, Denial, Link, Policy, Refusal, Want};
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram, Entry};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::state::{Measured, bpf_digest};
use linewarden_evidence::statement::{Inventory, Kind, Nonce, Statement, verify};
use linewarden_evidence::{BootCount, Sequence, SwitchId};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{Credentials, DeviceRecord, MasterKey, Options, Registry, RegistryError};
use proptest::prelude::*;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, Executor as _, SqliteConnection};

const S: u64 = 1_000_000_000;
const EVERY: u64 = 60 * S;
const ANSWER: u64 = 10 * S;
const GATEWAY: GatewayId = GatewayId(5);
const DEVICE: DeviceId = DeviceId(0xd1);

/// A data plane with one setting, and its key.
struct Plane {
    measured: Measured,
    signer: Ed25519Signer,
}

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

impl Plane {
    fn new(boot_count: u64) -> Self {
        Self::with(signer(), boot_count)
    }

    fn with(signer: Ed25519Signer, boot_count: u64) -> Self {
        let program = BpfProgram {
            name: "gateway".to_owned(),
            instructions: [1; 32],
        };
        let digest = bpf_digest([program.clone()]);
        let mut measured = Measured::new(SwitchId(GATEWAY.0.into()), BootCount(boot_count), digest);
        measured.put(&program.into()).unwrap();
        let mut plane = Self { measured, signer };
        plane.set(7);
        plane
    }

    fn set(&mut self, value: u8) {
        let entry = Entry::from(BpfMapEntry {
            map: "control".to_owned(),
            key: vec![0],
            value: vec![value],
        });
        self.measured.put(&entry).unwrap();
    }

    /// Loses what it was, and counts its states anew, as a machine whose disk was put back.
    fn put_back(&mut self, boot_count: u64) {
        let signer = std::mem::replace(&mut self.signer, signer());
        *self = Self::with(signer, boot_count);
    }

    fn statement(&mut self, nonce: Nonce) -> Vec<u8> {
        let statement = Statement {
            kind: Kind::Xdp,
            snapshot: self.measured.snapshot(),
            objects: self.measured.objects(),
            left_out: Vec::new(),
            software_version: "1".to_owned(),
        };
        statement.sign(nonce, &mut self.signer).unwrap()
    }

    fn inventory(&self) -> Vec<u8> {
        let entries: Vec<_> = self.measured.entries().map(|entry| entry.whole()).collect();
        Inventory::new(entries.iter().map(Vec::as_slice))
            .unwrap()
            .to_bytes()
    }

    /// What it runs now, as what it is to run.
    fn policy(&mut self) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let key = self.signer.public_key();
        let evidence = verify(&self.statement(nonce), &key, nonce).unwrap();
        let proven = Inventory::read(&self.inventory())
            .unwrap()
            .prove(&evidence)
            .unwrap();
        TrustPolicy {
            reference: Reference::of("test", &evidence, Some(&proven), |_| false),
            key,
            every_ns: EVERY,
            answer_ns: ANSWER,
        }
    }
}

/// Never the same twice.
fn nonces() -> impl FnMut() -> Option<[u8; 32]> {
    let mut count = 0u64;
    move || {
        count += 1;
        let mut nonce = [9; 32];
        nonce[..8].copy_from_slice(&count.to_be_bytes());
        Some(nonce)
    }
}

fn why(standing: &Standing) -> &str {
    match standing {
        Standing::Distrusted { why } => why,
        other => panic!("{other:?}"),
    }
}

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
