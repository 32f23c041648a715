//! Gateways far from the registry that get rows only while they show what they run: by statements of keys of their own, of data planes
//! that are as they should be or not.

use std::sync::Arc;
use std::time::Instant;

use linewarden_controller::attest::PlanWish;
use linewarden_controller::trust::{Scrutiny, Standing, TrustPolicy};
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram, Entry};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::state::{Measured, bpf_digest};
use linewarden_evidence::statement::{Inventory, Kind, Nonce, Statement, verify};
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_link::{Client, Remote, Told};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{LeasedPlace, Location, Registry, Revision, Role};
use linewarden_testbed::{Postgres, PostgresOptions};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::office::{Ca, Caller, Office, key};
use crate::site::LONG;

const S: u64 = 1_000_000_000;
const GATEWAY: GatewayId = GatewayId(3);
const OTHER: GatewayId = GatewayId(4);
/// So long that nobody is asked a second time, unless a test wants it.
const SELDOM_S: u64 = 3_600;

/// A data plane with one setting, and its key.
struct Plane {
    of: GatewayId,
    pem: String,
    measured: Measured,
    signer: Ed25519Signer,
}

impl Plane {
    fn new(of: GatewayId) -> Self {
        Self::start(of, &Ed25519Signer::generate_pem().unwrap(), 2)
    }

    fn start(of: GatewayId, pem: &str, boot_count: u64) -> Self {
        let program = BpfProgram {
            name: "gateway".to_owned(),
            instructions: [1; 32],
        };
        let digest = bpf_digest([program.clone()]);
        let mut measured = Measured::new(SwitchId(of.0.into()), BootCount(boot_count), digest);
        measured.put(&program.into()).unwrap();
        let mut plane = Self {
            of,
            pem: pem.to_owned(),
            measured,
            signer: Ed25519Signer::from_pem(pem).unwrap(),
        };
        plane.set(7);
        plane
    }

    /// The same gateway, at another start.
    fn restarted(&self, boot_count: u64) -> Self {
        Self::start(self.of, &self.pem, boot_count)
    }

    fn set(&mut self, value: u8) {
        let entry = Entry::from(BpfMapEntry {
            map: "control".to_owned(),
            key: vec![0],
            value: vec![value],
        });
        self.measured.put(&entry).unwrap();
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
        let entries = Inventory::new(entries.iter().map(Vec::as_slice));
        entries.unwrap().to_bytes()
    }

    /// What it runs now, as what it is to run.
    fn policy(&mut self, every_s: u64, answer_s: u64) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let key = self.signer.public_key();
        let evidence = verify(&self.statement(nonce), &key, nonce).unwrap();
        let proven = Inventory::read(&self.inventory()).unwrap().prove(&evidence);
        TrustPolicy {
            reference: Reference::of("hall 3", &evidence, Some(&proven.unwrap()), |_| false),
            key,
            every_ns: every_s * S,
            answer_ns: answer_s * S,
        }
    }
}

/// A gateway without devices, which asks what it wants to.
struct Gateway<'r> {
    runtime: &'r Runtime,
    link: Client,
    fence: u64,
}

impl<'r> Gateway<'r> {
    fn enter(runtime: &'r Runtime, link: Client) -> Self {
        let fence = runtime.block_on(link.enter()).unwrap();
        Self { runtime, link, fence }
    }

    /// What is wanted of it.
    fn look(&mut self) -> Scrutiny {
        let (scrutiny, raised) = self.looked(self.fence);
        self.fence = raised.unwrap_or(self.fence);
        scrutiny
    }

    fn looked(&self, fence: u64) -> (Scrutiny, Option<u64>) {
        let changes = self.runtime.block_on(self.link.changes(fence, Revision::ZERO));
        changes.unwrap().1.expect("something is wanted of it")
    }

    /// What it is asked, once it is.
    fn nonce(&mut self) -> Nonce {
        let until = Instant::now() + LONG;
        loop {
            if let Some(nonce) = self.look().nonce {
                return nonce;
            }
            assert!(Instant::now() < until, "it is not asked");
        }
    }

    fn show(&mut self, statement: &[u8], plane: &Plane) -> Result<Standing, Remote> {
        let inventory = plane.inventory();
        let shown = self.link.show(self.fence, statement, &inventory);
        let (scrutiny, raised) = self.runtime.block_on(shown)?;
        self.fence = raised.unwrap_or(self.fence);
        Ok(scrutiny.standing)
    }

    /// Answers what it is asked as it should.
    fn prove(&mut self, plane: &mut Plane) -> Standing {
        let nonce = self.nonce();
        self.show(&plane.statement(nonce), plane).unwrap()
    }

    /// Whether it gets what it asks for.
    fn gets_rows(&self) -> bool {
        let run = self.runtime;
        let (lease, knock, held) = (
            run.block_on(self.link.lease(self.fence, &[])).map(drop),
            run.block_on(self.link.receive(self.fence, &[], [7; 8])).map(drop),
            run.block_on(self.link.resume(self.fence, LeasedPlace::default()))
                .map(drop),
        );
        assert_eq!(lease.is_ok(), knock.is_ok());
        assert_eq!(lease.is_ok(), held.is_ok());
        if let Err(refused) = &lease {
            assert!(matches!(refused, Remote::Untrusted(_)), "{refused:?}");
        }
        lease.is_ok()
    }

    /// Says nothing more than that it lives until it is not trusted for that; why.
    fn until_distrusted(&mut self) -> String {
        let until = Instant::now() + LONG;
        loop {
            if let Standing::Distrusted { why } = self.look().standing {
                return why;
            }
            assert!(Instant::now() < until, "it is not distrusted");
        }
    }
}

/// What the journal has of gateways that are trusted or not, the oldest first, once it has so many.
fn judged(viewer: &Caller<'_>, count: usize) -> Vec<(String, String)> {
    let until = Instant::now() + LONG;
    loop {
        let history = viewer.get("/api/v1/events/history?limit=1000").ok();
        let items = history["items"].as_array().unwrap().iter().rev();
        let word = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
        let found: Vec<_> = items
            .map(|item| (word(item, "kind"), word(item, "detail")))
            .filter(|(kind, _)| kind.ends_with("trusted"))
            .collect();
        assert!(found.len() <= count, "{found:?}");
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < until, "{history}");
    }
}

fn evidence(viewer: &Caller<'_>) -> Value {
    viewer.get("/api/v1/gateways/3/evidence").ok()
}

#[test]
fn a_gateway_gets_rows_while_it_shows_what_it_should_and_people_see_why_not() {
    let mut plane = Plane::new(GATEWAY);
    let policy = plane.policy(1, SELDOM_S);
    let office = Office::new_deciding(|controller| controller.trusting(GATEWAY, policy));
    let vic = office.caller("vic", Role::Viewer);
    let mut gateway = Gateway::enter(&office.runtime, office.link(GATEWAY, &[]));
    assert!(!gateway.gets_rows(), "it has shown nothing");
    assert_eq!(evidence(&vic)["trust"], "unproven");
    assert_eq!(gateway.prove(&mut plane), Standing::Trusted);
    assert!(gateway.gets_rows());
    let shown = evidence(&vic);
    assert_eq!(
        (&shown["trust"], &shown["reference"]),
        (&"trusted".into(), &"hall 3".into()),
        "{shown}"
    );
    assert_eq!(shown["evidence"]["verdict"], "affirming", "{shown}");
    assert_eq!(shown["evidence"]["boot_count"], 2, "{shown}");
    assert_eq!(
        shown["key"],
        hex(&plane.signer.public_key().fingerprint()),
        "{shown}"
    );
    assert!(shown["program"].is_string() && shown["why"].is_null(), "{shown}");

    // Another one, of whom nobody wants anything, has nothing to show.
    let other = Gateway::enter(&office.runtime, office.link(OTHER, &[]));
    assert!(other.gets_rows());
    assert_eq!(vic.get("/api/v1/gateways/4").ok()["trust"], Value::Null);
    vic.get("/api/v1/gateways/4/evidence").refused(404, "not_found");

    plane.set(8);
    let before = gateway.fence;
    let nonce = gateway.nonce();
    // It does not hear what comes of it.
    let (statement, inventory) = (plane.statement(nonce), plane.inventory());
    let shown = gateway.link.show(before, &statement, &inventory);
    let (scrutiny, raised) = office.runtime.block_on(shown).unwrap();
    assert!(
        matches!(scrutiny.standing, Standing::Distrusted { .. }),
        "{scrutiny:?}"
    );
    assert!(raised > Some(before), "its leases are taken away");
    assert!(!gateway.gets_rows());
    assert_eq!(gateway.looked(before).1, raised, "it is told again");
    gateway.look();
    assert_eq!(Some(gateway.fence), raised);
    assert!(!gateway.gets_rows());
    let listed = vic.get("/api/v1/gateways").ok()["items"][0].clone();
    assert_eq!(listed["trust"], "untrusted", "{listed}");
    assert_eq!(listed["evidence"]["verdict"], "contraindicated", "{listed}");
    let why = listed["trust_why"].as_str().unwrap();
    assert!(why.contains("control") && why.contains("07 is now 08"), "{why}");
    assert_eq!(evidence(&vic)["why"], why);

    plane.set(7);
    assert_eq!(gateway.prove(&mut plane), Standing::Trusted);
    assert!(gateway.gets_rows());
    let told = Told::default();
    office
        .runtime
        .block_on(gateway.link.tell(gateway.fence, &told))
        .unwrap();
    let events = judged(&vic, 3);
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(
        kinds,
        ["gateway_trusted", "gateway_distrusted", "gateway_trusted"]
    );
    assert!(events[1].1.contains("07 is now 08"), "{events:?}");
    let metrics = format!("http://{}/metrics", office.metrics);
    let page = office
        .runtime
        .block_on(async { reqwest::get(metrics).await.unwrap().text().await.unwrap() });
    assert!(
        page.contains("linewarden_gateway_trusted{gateway=\"3\"} 1"),
        "{page}"
    );
    assert!(
        page.contains("linewarden_gateway_evidence_age_seconds{gateway=\"3\"} "),
        "{page}"
    );
    assert!(
        !page.contains("linewarden_gateway_trusted{gateway=\"4\"}"),
        "{page}"
    );
}

/// Who only says that its fence is the newest, over a connection of its own, takes nothing from the process whose it is.
#[test]
fn a_fence_that_is_none_ends_nobodys_trust() {
    let mut plane = Plane::new(GATEWAY);
    let policy = plane.policy(SELDOM_S, SELDOM_S);
    let office = Office::new_deciding(|controller| controller.trusting(GATEWAY, policy));
    let run = &office.runtime;
    let older = Gateway::enter(run, office.link(GATEWAY, &[]));
    let mut gateway = Gateway::enter(run, office.link(GATEWAY, &[]));
    assert_eq!(gateway.prove(&mut plane), Standing::Trusted);
    for fence in [u64::MAX, gateway.fence + 1, older.fence, 0] {
        let liar = office.link(GATEWAY, &[]);
        let wish = PlanWish {
            begin: None,
            period_s: 3_600,
            numbers: false,
        };
        for refused in [
            run.block_on(liar.changes(fence, Revision::ZERO)).map(drop),
            run.block_on(liar.plan(fence, wish)).map(drop),
            run.block_on(liar.prover_ids(fence, 0)).map(drop),
        ] {
            // The largest number is of no incarnation that there was.
            let is_right = match fence {
                u64::MAX => matches!(refused, Err(Remote::Restored(_))),
                _ => matches!(refused, Err(Remote::Replaced(_))),
            };
            assert!(is_right, "{fence}: {refused:?}");
        }
        assert!(gateway.gets_rows(), "{fence}");
    }
}

#[test]
fn silence_old_statements_and_those_of_others_count_as_nothing_shown() {
    type Lie = fn(&mut Plane, &mut Plane, Nonce, &[u8]) -> Option<Vec<u8>>;
    let lies: [(&str, Lie, &str); 4] = [
        ("silence", |_, _, _, _| None, "not answered for 2 s"),
        ("an old one", |_, _, _, old| Some(old.to_vec()), "nonce"),
        (
            "another's",
            |_, other, nonce, _| Some(other.statement(nonce)),
            "not that of this key",
        ),
        (
            "another's data plane",
            |plane, _, nonce, _| Some(Plane::start(OTHER, &plane.pem, 2).statement(nonce)),
            "4",
        ),
    ];
    let mut plane = Plane::new(GATEWAY);
    let policy = plane.policy(1, 2);
    let office = Office::new_deciding(|controller| controller.trusting(GATEWAY, policy));
    let vic = office.caller("vic", Role::Viewer);
    let mut other = Plane::new(OTHER);
    let mut gateway = Gateway::enter(&office.runtime, office.link(GATEWAY, &[]));
    let nonce = gateway.nonce();
    let old = plane.statement(nonce);
    assert_eq!(gateway.show(&old, &plane), Ok(Standing::Trusted));
    for (what, lie, said) in lies {
        let nonce = gateway.nonce();
        if let Some(statement) = lie(&mut plane, &mut other, nonce, &old) {
            // Refused, or taken for what it is.
            let shown = gateway.show(&statement, &plane);
            assert_ne!(shown, Ok(Standing::Trusted), "{what}");
        }
        let why = gateway.until_distrusted();
        assert!(why.contains(said), "{what}: {why}");
        assert!(!gateway.gets_rows(), "{what}");
        assert_eq!(evidence(&vic)["trust"], "untrusted", "{what}");
        // It is asked on, and what it should have shown is enough.
        assert_eq!(gateway.prove(&mut plane), Standing::Trusted, "{what}");
    }
    let events = judged(&vic, 9);
    assert!(events[1].1.contains("not answered"), "{events:?}");
}

/// Whoever goes on with a gateway has seen nothing of it: it shows itself anew, and not what was before.
#[test]
fn a_gateway_that_comes_to_another_controller_shows_itself_there_too() {
    let server = match Postgres::start(PostgresOptions::default()) {
        Ok(server) => server,
        Err(missing) => {
            println!("SKIPPED: needs PostgreSQL: {missing}");
            return;
        }
    };
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    runtime.block_on(Registry::create(&location, &key())).unwrap();
    let open = || runtime.block_on(Registry::open(&location, &key())).unwrap();
    let ca = Arc::new(Ca::new());
    let mut plane = Plane::new(GATEWAY);
    let mut office = |name| {
        let policy = plane.policy(SELDOM_S, SELDOM_S);
        Office::deciding(
            Arc::clone(&ca),
            Arc::clone(&runtime),
            open(),
            name,
            None,
            |controller| controller.trusting(GATEWAY, policy),
        )
    };
    let (mut a, b) = (office("ctl-a"), office("ctl-b"));
    let vic = b.caller("vic", Role::Viewer);
    let mut gateway = Gateway::enter(&runtime, a.link(GATEWAY, &[b.address]));
    let mut plane = plane.restarted(5);
    assert_eq!(gateway.prove(&mut plane), Standing::Trusted);
    assert!(gateway.gets_rows());
    judged(&vic, 1);
    a.stop();
    assert!(!gateway.gets_rows(), "it has shown nothing to this one");
    let nonce = gateway.nonce();
    assert_eq!(evidence(&vic)["trust"], "unproven");
    assert_eq!(evidence(&vic)["controller"], "ctl-b");
    // What an earlier start has signed counts against it, though this controller has not seen the later one.
    let mut older = plane.restarted(4);
    let shown = gateway.show(&older.statement(nonce), &older).unwrap();
    assert!(
        matches!(&shown, Standing::Distrusted { why } if why.contains("put back")),
        "{shown:?}"
    );
    assert!(!gateway.gets_rows());
    let kinds: Vec<String> = judged(&vic, 2).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["gateway_trusted", "gateway_distrusted"]);
    // Started again, it may show itself at once.
    let mut gateway = Gateway::enter(&runtime, b.link(GATEWAY, &[]));
    assert!(!gateway.gets_rows());
    assert_eq!(gateway.prove(&mut plane), Standing::Trusted);
    assert!(gateway.gets_rows());
    assert_eq!(judged(&vic, 3)[2].0, "gateway_trusted");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
