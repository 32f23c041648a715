//! The API and the metrics count the devices without a successful attestation.

use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, AttestationState, Credentials, NewGroup, NewProver, Protection, Role, RoundRecord,
};
use linewarden_types::{GroupName, GroupPolicy};

use crate::controller::TestController;
use crate::site::{record, row_key};

#[test]
fn unproven_devices_are_reported() {
    let controller = TestController::new();
    let otto = controller.caller("otto", Role::Operator);
    let registry = &controller.registry;
    let pumps = GroupName::new("pumps".to_owned()).unwrap();
    // The states of devices 1 to 4. The test revokes device 4 later. Device 5 is never attested.
    let states = [
        AttestationState::Unproven,
        AttestationState::Missed,
        AttestationState::Ok,
        AttestationState::Unproven,
    ];
    controller.runtime.block_on(async {
        let group = NewGroup {
            name: pumps.clone(),
            policy: GroupPolicy::default(),
            reference: None,
            roll_out: None,
        };
        registry.set_group(&group, 1).await.unwrap();
        let mut appraisals = Vec::new();
        for number in 1..=states.len() + 1 {
            let device = DeviceId(number as u64);
            let credentials = Credentials::Key(row_key(device, 0));
            registry.enroll(record(device, credentials)).await.unwrap();
            let prover = NewProver {
                device,
                group: pumps.clone(),
                key: AttestationKey::from_bytes([7; 32]),
                protection: Protection::Software,
                binding: None,
                overlay: None,
                location: None,
                port: 20_554,
                enrolled_period: Period(0),
            };
            registry.enroll_prover(prover, 1).await.unwrap();
            let enrolled = registry.prover(device).await.unwrap().unwrap();
            let Some(state) = states.get(number - 1) else {
                break;
            };
            let appraisal = Appraisal {
                device,
                gateway: GatewayId(3),
                address: None,
                state: *state,
                since_s: 1,
                since_round: 1,
                configuration: Configuration::Current,
                missed_rounds: Vec::new(),
                rounds_total: 1,
            };
            appraisals.push((appraisal, enrolled.enrolled_at()));
        }
        let fencing_token = registry.register_gateway(GatewayId(3), 1).await.unwrap();
        registry.reserve_rounds(&fencing_token, 1, 0).await.unwrap();
        let requested = states.len() as u32;
        let round = RoundRecord {
            gateway: GatewayId(3),
            number: 1,
            group: pumps.clone(),
            period: Period(1),
            started_at_s: 1,
            ended_at_s: 2,
            requested,
            ok: 1,
            late: 0,
            missed: requested - 1,
            last_proof_ms: 1,
        };
        registry
            .record_round(&fencing_token, &round, &appraisals)
            .await
            .unwrap();
    });
    otto.post("/api/v1/devices/4/revoke", &serde_json::json!({"reason": "lost"}))
        .ok();
    let devices = &otto.get("/api/v1/status").ok()["devices"];
    assert_eq!(
        (
            &devices["unproven"],
            &devices["awaiting_first_round"],
            &devices["missed"]
        ),
        (&1.into(), &1.into(), &1.into()),
        "{devices}"
    );
    let address = format!("http://{}/metrics", controller.metrics);
    let page = controller
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    for state in ["unproven", "awaiting_first_round", "missed"] {
        let line = format!("linewarden_unattested_devices{{state=\"{state}\"}} 1\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
}
