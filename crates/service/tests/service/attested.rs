//! Devices that have not proven what they run are counted where they are watched for.

use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, Credentials, GroupName, GroupPolicy, NewGroup, NewProver, Protection, Role, RoundRecord, State,
};

use crate::office::Office;
use crate::site::{record, row_key};

#[test]
fn a_device_that_was_never_proved_is_told_by_the_api_and_a_metric() {
    let office = Office::new();
    let otto = office.caller("otto", Role::Operator);
    let registry = &office.registry;
    let pumps = GroupName::new("pumps".to_owned()).unwrap();
    // The last one is not asked, and the fourth is revoked afterwards.
    let states = [State::Unproven, State::Silent, State::Ok, State::Unproven];
    office.runtime.block_on(async {
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
            registry.enrol(record(device, credentials)).await.unwrap();
            let prover = NewProver {
                device,
                group: pumps.clone(),
                key: AttestationKey::from_bytes([7; 32]),
                protection: Protection::Software,
                binding: None,
                overlay: None,
                home: None,
                port: 20_554,
                enrolled_period: Period(0),
            };
            registry.enrol_prover(prover, 1).await.unwrap();
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
                silences: Vec::new(),
                asked: 1,
            };
            appraisals.push((appraisal, enrolled.enrolled_at()));
        }
        let fence = registry.register_gateway(GatewayId(3), 1).await.unwrap();
        registry.reserve_rounds(&fence, 1, 0).await.unwrap();
        let asked = states.len() as u32;
        let round = RoundRecord {
            gateway: GatewayId(3),
            number: 1,
            group: pumps.clone(),
            period: Period(1),
            started_at_s: 1,
            ended_at_s: 2,
            asked,
            ok: 1,
            late: 0,
            silent: asked - 1,
            last_verdict_ms: 1,
        };
        registry.record_round(&fence, &round, &appraisals).await.unwrap();
    });
    otto.post("/api/v1/devices/4/revoke", &serde_json::json!({"reason": "lost"}))
        .ok();
    let devices = &otto.get("/api/v1/status").ok()["devices"];
    assert_eq!(
        (
            &devices["never_proved"],
            &devices["never_asked"],
            &devices["silent"]
        ),
        (&1.into(), &1.into(), &1.into()),
        "{devices}"
    );
    let address = format!("http://{}/metrics", office.metrics);
    let page = office
        .runtime
        .block_on(async { reqwest::get(address).await.unwrap().text().await.unwrap() });
    for state in ["never_proved", "never_asked", "silent"] {
        let line = format!("linewarden_attested_devices{{state=\"{state}\"}} 1\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
}
