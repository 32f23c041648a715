//! Gateways with required attestation get rows only with valid evidence of their data planes.

use std::sync::Arc;
use std::time::Instant;

use linewarden_controller::trust::TrustPolicy;
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram, Entry};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::state::{MeasuredState, bpf_digest};
use linewarden_evidence::statement::{DataPlaneKind, Inventory, Nonce, Statement, verify};
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_link::Client;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{Location, Registry, Role};
use linewarden_types::{
    AdmitDevices, ExtendLeases, GatewayTrustState, GetPlan, LeasedCursor, LinkError, ListChanges,
    ListProverIds, PlanRequest, ReportStatus, ResumeLeases, Revision, StatusReport, SubmitEvidence,
    TrustStatus,
};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::controller::{ApiClient, Ca, TestController, master_key};
use crate::servers::require_postgres;
use crate::site::TIMEOUT;

const NS_PER_S: u64 = 1_000_000_000;
const GATEWAY: GatewayId = GatewayId(3);
const OTHER_GATEWAY: GatewayId = GatewayId(4);
/// An interval so long that no second evidence is requested.
const LONG_INTERVAL_S: u64 = 3_600;

/// A data plane with one setting, and the key that signs its statements.
struct TestDataPlane {
    gateway: GatewayId,
    pem: String,
    measured: MeasuredState,
    signer: Ed25519Signer,
}

impl TestDataPlane {
    fn new(gateway: GatewayId) -> Self {
        Self::start(gateway, &Ed25519Signer::generate_pem().unwrap(), 2)
    }

    fn start(gateway: GatewayId, pem: &str, boot_count: u64) -> Self {
        let program = BpfProgram {
            name: "gateway".to_owned(),
            instructions: [1; 32],
        };
        let digest = bpf_digest([program.clone()]);
        let mut measured = MeasuredState::new(SwitchId(gateway.0.into()), BootCount(boot_count), digest);
        measured.put(&program.into()).unwrap();
        let mut data_plane = Self {
            gateway,
            pem: pem.to_owned(),
            measured,
            signer: Ed25519Signer::from_pem(pem).unwrap(),
        };
        data_plane.set(7);
        data_plane
    }

    /// The data plane of the same gateway after a restart with this boot count.
    fn restarted(&self, boot_count: u64) -> Self {
        Self::start(self.gateway, &self.pem, boot_count)
    }

    /// Changes the value of the only setting.
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
            kind: DataPlaneKind::Xdp,
            snapshot: self.measured.snapshot(),
            objects: self.measured.objects(),
            exclusions: Vec::new(),
            software_version: "1".to_owned(),
        };
        statement.sign(nonce, &mut self.signer).unwrap()
    }

    fn inventory(&self) -> Vec<u8> {
        let entries: Vec<_> = self.measured.entries().map(|entry| entry.to_bytes()).collect();
        let entries = Inventory::new(entries.iter().map(Vec::as_slice));
        entries.unwrap().to_bytes()
    }

    /// A policy with this data plane's current state as the reference value.
    fn policy(&mut self, every_s: u64, response_timeout_s: u64) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let key = self.signer.public_key();
        let evidence = verify(&self.statement(nonce), &key, nonce).unwrap();
        let proven = Inventory::read(&self.inventory()).unwrap().prove(&evidence);
        TrustPolicy {
            reference: Reference::from_statement("hall 3", &evidence, Some(&proven.unwrap()), |_| false),
            key,
            every_ns: every_s * NS_PER_S,
            response_timeout_ns: response_timeout_s * NS_PER_S,
        }
    }
}

const ALL_CHANGES: ListChanges = ListChanges {
    since: Revision::ZERO,
};

/// A gateway without devices, with requests controlled by the test.
struct Gateway<'r> {
    runtime: &'r Runtime,
    link: Client,
    fencing_token: u64,
}

impl<'r> Gateway<'r> {
    fn register(runtime: &'r Runtime, link: Client) -> Self {
        let fencing_token = runtime.block_on(link.register()).unwrap();
        Self {
            runtime,
            link,
            fencing_token,
        }
    }

    /// Polls the change feed and returns the trust status, which can contain a request for evidence.
    fn check(&mut self) -> TrustStatus {
        let trust_status = self.check_with_token(self.fencing_token);
        self.fencing_token = trust_status.fencing_token.unwrap_or(self.fencing_token);
        trust_status
    }

    fn check_with_token(&self, fencing_token: u64) -> TrustStatus {
        let changes = self.runtime.block_on(self.link.call(fencing_token, &ALL_CHANGES));
        changes.unwrap().1.expect("evidence is requested")
    }

    /// Waits for a request for evidence and returns its nonce.
    fn nonce(&mut self) -> Nonce {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(nonce) = self.check().nonce {
                return nonce;
            }
            assert!(Instant::now() < deadline, "no evidence is requested");
        }
    }

    fn submit_evidence(
        &mut self,
        statement: &[u8],
        data_plane: &TestDataPlane,
    ) -> Result<GatewayTrustState, LinkError> {
        let evidence = SubmitEvidence {
            statement: statement.to_vec(),
            inventory: data_plane.inventory(),
        };
        let submission = self.link.call(self.fencing_token, &evidence);
        let trust_status = self.runtime.block_on(submission)?;
        self.fencing_token = trust_status.fencing_token.unwrap_or(self.fencing_token);
        Ok(trust_status.state)
    }

    /// Waits for a request for evidence and submits valid evidence.
    fn prove(&mut self, data_plane: &mut TestDataPlane) -> GatewayTrustState {
        let nonce = self.nonce();
        self.submit_evidence(&data_plane.statement(nonce), data_plane)
            .unwrap()
    }

    /// Whether the controller grants the gateway's requests for leases.
    fn gets_rows(&self) -> bool {
        let (run, token) = (self.runtime, self.fencing_token);
        let admission = AdmitDevices {
            requests: Vec::new(),
            fresh: [7; 8],
        };
        let resumption = ResumeLeases {
            cursor: LeasedCursor::default(),
        };
        let (lease, admission, resumption) = (
            run.block_on(self.link.call(token, &ExtendLeases(Vec::new())))
                .map(drop),
            run.block_on(self.link.call(token, &admission)).map(drop),
            run.block_on(self.link.call(token, &resumption)).map(drop),
        );
        assert_eq!(lease.is_ok(), admission.is_ok());
        assert_eq!(lease.is_ok(), resumption.is_ok());
        if let Err(error) = &lease {
            assert!(matches!(error, LinkError::Untrusted(_)), "{error:?}");
        }
        lease.is_ok()
    }

    /// Polls the change feed, without submitting evidence, until the gateway is untrusted; returns the reason.
    fn wait_until_untrusted(&mut self) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let GatewayTrustState::Untrusted { reason } = self.check().state {
                return reason;
            }
            assert!(Instant::now() < deadline, "the gateway is still trusted");
        }
    }
}

/// Waits until the event log contains `count` trust events; returns their kinds and details, oldest first.
fn trust_events(viewer: &ApiClient<'_>, count: usize) -> Vec<(String, String)> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let history = viewer.get("/api/v1/events/history?limit=1000").ok();
        let items = history["items"].as_array().unwrap().iter().rev();
        let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
        let events: Vec<_> = items
            .map(|item| (text(item, "kind"), text(item, "detail")))
            .filter(|(kind, _)| kind.ends_with("trusted"))
            .collect();
        assert!(events.len() <= count, "{events:?}");
        if events.len() == count {
            return events;
        }
        assert!(Instant::now() < deadline, "{history}");
    }
}

fn evidence(viewer: &ApiClient<'_>) -> Value {
    viewer.get("/api/v1/gateways/3/evidence").ok()
}

#[test]
fn a_gateway_gets_rows_while_its_evidence_matches_and_the_api_shows_the_mismatch() {
    let mut data_plane = TestDataPlane::new(GATEWAY);
    let policy = data_plane.policy(1, LONG_INTERVAL_S);
    let controller =
        TestController::new_with_change(|controller| controller.with_trust_policy(GATEWAY, policy));
    let vic = controller.caller("vic", Role::Viewer);
    let mut gateway = Gateway::register(&controller.runtime, controller.link(GATEWAY, &[]));
    assert!(!gateway.gets_rows(), "no evidence yet");
    assert_eq!(evidence(&vic)["trust"], "unproven");
    assert_eq!(gateway.prove(&mut data_plane), GatewayTrustState::Trusted);
    assert!(gateway.gets_rows());
    let gateway_detail = evidence(&vic);
    assert_eq!(
        (&gateway_detail["trust"], &gateway_detail["reference"]),
        (&"trusted".into(), &"hall 3".into()),
        "{gateway_detail}"
    );
    assert_eq!(
        gateway_detail["evidence"]["verdict"], "affirming",
        "{gateway_detail}"
    );
    assert_eq!(gateway_detail["evidence"]["boot_count"], 2, "{gateway_detail}");
    assert_eq!(
        gateway_detail["key"],
        hex(&data_plane.signer.public_key().fingerprint()),
        "{gateway_detail}"
    );
    assert!(
        gateway_detail["program"].is_string() && gateway_detail["reason"].is_null(),
        "{gateway_detail}"
    );

    // The attestation of another gateway is not required.
    let other_gateway = Gateway::register(&controller.runtime, controller.link(OTHER_GATEWAY, &[]));
    assert!(other_gateway.gets_rows());
    assert_eq!(vic.get("/api/v1/gateways/4").ok()["trust"], Value::Null);
    vic.get("/api/v1/gateways/4/evidence").refused(404, "not_found");

    data_plane.set(8);
    let token_before = gateway.fencing_token;
    let nonce = gateway.nonce();
    // This call does not update `gateway.fencing_token`, as if the gateway had not received the response.
    let evidence_of_change = SubmitEvidence {
        statement: data_plane.statement(nonce),
        inventory: data_plane.inventory(),
    };
    let submission = gateway.link.call(token_before, &evidence_of_change);
    let trust_status = controller.runtime.block_on(submission).unwrap();
    let new_token = trust_status.fencing_token;
    assert!(
        matches!(trust_status.state, GatewayTrustState::Untrusted { .. }),
        "{trust_status:?}"
    );
    assert!(new_token > Some(token_before), "the gateway's leases are ended");
    assert!(!gateway.gets_rows());
    assert_eq!(
        gateway.check_with_token(token_before).fencing_token,
        new_token,
        "the new token is reported again"
    );
    gateway.check();
    assert_eq!(Some(gateway.fencing_token), new_token);
    assert!(!gateway.gets_rows());
    let gateway_item = vic.get("/api/v1/gateways").ok()["items"][0].clone();
    assert_eq!(gateway_item["trust"], "untrusted", "{gateway_item}");
    assert_eq!(
        gateway_item["evidence"]["verdict"], "contraindicated",
        "{gateway_item}"
    );
    let reason = gateway_item["trust_reason"].as_str().unwrap();
    assert!(
        reason.contains("control") && reason.contains("07 is now 08"),
        "{reason}"
    );
    assert_eq!(evidence(&vic)["reason"], reason);

    data_plane.set(7);
    assert_eq!(gateway.prove(&mut data_plane), GatewayTrustState::Trusted);
    assert!(gateway.gets_rows());
    let report = ReportStatus(StatusReport::default());
    controller
        .runtime
        .block_on(gateway.link.call(gateway.fencing_token, &report))
        .unwrap();
    let events = trust_events(&vic, 3);
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(kinds, ["gateway_trusted", "gateway_untrusted", "gateway_trusted"]);
    assert!(events[1].1.contains("07 is now 08"), "{events:?}");
    let metrics = format!("http://{}/metrics", controller.metrics);
    let page = controller
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

/// A process that sends an invalid fencing token over another connection does not affect the registered process.
#[test]
fn an_invalid_fencing_token_ends_no_trust() {
    let mut data_plane = TestDataPlane::new(GATEWAY);
    let policy = data_plane.policy(LONG_INTERVAL_S, LONG_INTERVAL_S);
    let controller =
        TestController::new_with_change(|controller| controller.with_trust_policy(GATEWAY, policy));
    let run = &controller.runtime;
    let older = Gateway::register(run, controller.link(GATEWAY, &[]));
    let mut gateway = Gateway::register(run, controller.link(GATEWAY, &[]));
    assert_eq!(gateway.prove(&mut data_plane), GatewayTrustState::Trusted);
    for fencing_token in [u64::MAX, gateway.fencing_token + 1, older.fencing_token, 0] {
        let malicious_link = controller.link(GATEWAY, &[]);
        let plan_request = PlanRequest {
            start_period: None,
            period_s: 3_600,
            needs_round_numbers: false,
        };
        for result in [
            run.block_on(malicious_link.call(fencing_token, &ALL_CHANGES))
                .map(drop),
            run.block_on(malicious_link.call(fencing_token, &GetPlan(plan_request)))
                .map(drop),
            run.block_on(malicious_link.call(fencing_token, &ListProverIds { since: 0 }))
                .map(drop),
        ] {
            // The fencing token u64::MAX belongs to an incarnation that does not exist.
            let is_expected = match fencing_token {
                u64::MAX => matches!(result, Err(LinkError::RegistryRestored(_))),
                _ => matches!(result, Err(LinkError::Replaced(_))),
            };
            assert!(is_expected, "{fencing_token}: {result:?}");
        }
        assert!(gateway.gets_rows(), "{fencing_token}");
    }
}

#[test]
fn missing_old_and_foreign_statements_count_as_no_evidence() {
    /// Arguments: data plane, another data plane, nonce, an old statement.
    type MakeStatement = fn(&mut TestDataPlane, &mut TestDataPlane, Nonce, &[u8]) -> Option<Vec<u8>>;
    let cases: [(&str, MakeStatement, &str); 4] = [
        ("none", |_, _, _, _| None, "no evidence received for 2 s"),
        (
            "an old statement",
            |_, _, _, old_statement| Some(old_statement.to_vec()),
            "nonce",
        ),
        (
            "another gateway's statement",
            |_, other_data_plane, nonce, _| Some(other_data_plane.statement(nonce)),
            "signature does not verify",
        ),
        (
            "another gateway's id",
            |data_plane, _, nonce, _| {
                Some(TestDataPlane::start(OTHER_GATEWAY, &data_plane.pem, 2).statement(nonce))
            },
            "4",
        ),
    ];
    let mut data_plane = TestDataPlane::new(GATEWAY);
    let policy = data_plane.policy(1, 2);
    let controller =
        TestController::new_with_change(|controller| controller.with_trust_policy(GATEWAY, policy));
    let vic = controller.caller("vic", Role::Viewer);
    let mut other_data_plane = TestDataPlane::new(OTHER_GATEWAY);
    let mut gateway = Gateway::register(&controller.runtime, controller.link(GATEWAY, &[]));
    let nonce = gateway.nonce();
    let old_statement = data_plane.statement(nonce);
    assert_eq!(
        gateway.submit_evidence(&old_statement, &data_plane),
        Ok(GatewayTrustState::Trusted)
    );
    for (case, make_statement, message) in cases {
        let nonce = gateway.nonce();
        if let Some(statement) = make_statement(&mut data_plane, &mut other_data_plane, nonce, &old_statement)
        {
            // The controller refuses the submission or rejects the evidence.
            let result = gateway.submit_evidence(&statement, &data_plane);
            assert_ne!(result, Ok(GatewayTrustState::Trusted), "{case}");
        }
        let reason = gateway.wait_until_untrusted();
        assert!(reason.contains(message), "{case}: {reason}");
        assert!(!gateway.gets_rows(), "{case}");
        assert_eq!(evidence(&vic)["trust"], "untrusted", "{case}");
        // Evidence is still requested, and valid evidence restores trust.
        assert_eq!(
            gateway.prove(&mut data_plane),
            GatewayTrustState::Trusted,
            "{case}"
        );
    }
    let events = trust_events(&vic, 9);
    assert!(events[1].1.contains("no evidence received"), "{events:?}");
}

/// A controller does not have the evidence that a gateway submitted to another controller. The gateway must submit evidence
/// again.
#[test]
fn a_gateway_submits_evidence_to_each_controller() {
    let server = require_postgres();
    let runtime = Arc::new(Runtime::new().unwrap());
    let location: Location = server.new_schema("fleet").unwrap().parse().unwrap();
    runtime
        .block_on(Registry::create(&location, &master_key()))
        .unwrap();
    let open = || {
        runtime
            .block_on(Registry::open(&location, &master_key()))
            .unwrap()
    };
    let ca = Arc::new(Ca::new());
    let mut data_plane = TestDataPlane::new(GATEWAY);
    let mut controller = |name| {
        let policy = data_plane.policy(LONG_INTERVAL_S, LONG_INTERVAL_S);
        TestController::with_change(
            Arc::clone(&ca),
            Arc::clone(&runtime),
            open(),
            name,
            None,
            |controller| controller.with_trust_policy(GATEWAY, policy),
        )
    };
    let (mut a, b) = (controller("ctl-a"), controller("ctl-b"));
    let vic = b.caller("vic", Role::Viewer);
    let mut gateway = Gateway::register(&runtime, a.link(GATEWAY, &[b.address]));
    let mut data_plane = data_plane.restarted(5);
    assert_eq!(gateway.prove(&mut data_plane), GatewayTrustState::Trusted);
    assert!(gateway.gets_rows());
    trust_events(&vic, 1);
    a.stop();
    assert!(!gateway.gets_rows(), "no evidence at this controller yet");
    let nonce = gateway.nonce();
    assert_eq!(evidence(&vic)["trust"], "unproven");
    assert_eq!(evidence(&vic)["controller"], "ctl-b");
    // The controller refuses evidence of an earlier boot, although only the other controller has seen the later boot.
    let mut older_data_plane = data_plane.restarted(4);
    let result = gateway
        .submit_evidence(&older_data_plane.statement(nonce), &older_data_plane)
        .unwrap();
    assert!(
        matches!(&result, GatewayTrustState::Untrusted { reason } if reason.contains("restored")),
        "{result:?}"
    );
    assert!(!gateway.gets_rows());
    let kinds: Vec<String> = trust_events(&vic, 2).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["gateway_trusted", "gateway_untrusted"]);
    // After a restart, the gateway can submit evidence immediately.
    let mut gateway = Gateway::register(&runtime, b.link(GATEWAY, &[]));
    assert!(!gateway.gets_rows());
    assert_eq!(gateway.prove(&mut data_plane), GatewayTrustState::Trusted);
    assert!(gateway.gets_rows());
    assert_eq!(trust_events(&vic, 3)[2].0, "gateway_trusted");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
