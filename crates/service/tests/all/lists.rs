//! Paginated lists contain each item once and in order.

use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_registry::{
    Appraisal, AttestationState, Credentials, NewEvent, NewGroup, NewProver, Protection, ProverLocation,
    Role, RoundRecord, SignerRecord,
};
use linewarden_types::{GroupName, GroupPolicy};
use serde_json::{Value, json};

use crate::controller::{ApiClient, TestController};
use crate::site::{record, row_key};

/// Number of items in each list; not a multiple of `PAGE_ITEMS`.
const COUNT: u32 = 23;
const PAGE_ITEMS: usize = 5;

fn group(name: &str) -> GroupName {
    GroupName::new(name.to_owned()).unwrap()
}

/// Reads a list page by page. Asserts that each page has 1 to `PAGE_ITEMS` items.
#[track_caller]
fn read_list(caller: &ApiClient<'_>, path: &str, format: impl Fn(&Value) -> String) -> Vec<String> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let (mut entries, mut after) = (Vec::new(), String::new());
    for _ in 0..=COUNT {
        let page = caller
            .get(&format!("{path}{separator}limit={PAGE_ITEMS}{after}"))
            .ok();
        let items = page["items"].as_array().unwrap();
        assert!((1..=PAGE_ITEMS).contains(&items.len()), "{path}: {page}");
        entries.extend(items.iter().map(&format));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return entries,
        }
    }
    panic!("{path} has no end: {entries:?}")
}

fn field_text(field: &'static str) -> impl Fn(&Value) -> String {
    move |item| match &item[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[test]
fn gateways_signers_users_and_groups_are_listed() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let registry = &controller.registry;
    controller.runtime.block_on(async {
        for number in 1..=COUNT {
            // Every third gateway has no record and is known by its messages only.
            if number % 3 > 0 {
                let gateway = GatewayId(number * 100);
                registry.set_gateway(gateway, "hall", 1).await.unwrap();
            }
            let signer = SignerRecord {
                id: vec![u8::try_from(number).unwrap(); 8],
                name: String::new(),
                scheme: "Ed25519".to_owned(),
                public_key: Vec::new(),
                added_at_s: 1,
                revoked_at_s: None,
            };
            registry.add_signer(&signer).await.unwrap();
            let group = NewGroup {
                name: group(&format!("g{number}")),
                policy: GroupPolicy::default(),
                reference: None,
                roll_out: None,
            };
            registry.set_group(&group, 1).await.unwrap();
        }
        for number in (3..=COUNT).step_by(3) {
            let link = controller.link(GatewayId(number * 100), &[]);
            link.register().await.unwrap();
        }
    });
    for number in 2..=COUNT {
        controller.token(&format!("u{number}"), Role::Viewer);
    }
    let numbers = |format: fn(u32) -> String| -> Vec<String> { (1..=COUNT).map(format).collect() };
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    assert_eq!(
        read_list(&ada, "/api/v1/gateways", field_text("id")),
        numbers(|number| (number * 100).to_string())
    );
    assert_eq!(
        read_list(&ada, "/api/v1/signers", field_text("id")),
        numbers(|number| format!("{number:02x}").repeat(8))
    );
    assert_eq!(
        read_list(&ada, "/api/v1/groups", field_text("name")),
        sorted(numbers(|number| format!("g{number}")))
    );
    let mut users: Vec<String> = (2..=COUNT).map(|number| format!("u{number}")).collect();
    users.push("ada".to_owned());
    assert_eq!(
        read_list(&ada, "/api/v1/users", field_text("name")),
        sorted(users)
    );
    // A list continues after an id that does not exist.
    let page = ada.get("/api/v1/gateways?after=150&limit=1").ok();
    assert_eq!(page["items"][0]["id"], 200);
    for path in ["gateways", "signers", "users", "groups"] {
        for query in ["limit=0", "limit=1001"] {
            ada.get(&format!("/api/v1/{path}?{query}"))
                .refused(422, "invalid");
        }
    }
    ada.get("/api/v1/gateways?after=x").refused(422, "invalid");
}

#[test]
fn rounds_are_listed_for_all_gateways_for_one_gateway_and_for_one_group() {
    let controller = TestController::new();
    let vera = controller.caller("vera", Role::Viewer);
    let registry = &controller.registry;
    // Rounds of both gateways start at the same times.
    let round = |gateway: u32, number: u32| RoundRecord {
        gateway: GatewayId(gateway),
        number,
        group: group(if number.is_multiple_of(2) { "fans" } else { "pumps" }),
        period: Period(1),
        started_at_s: 1_790_000_000 + u64::from(number / 2),
        ended_at_s: 1_790_000_100,
        requested: 1,
        ok: 1,
        late: 0,
        missed: 0,
        last_proof_ms: 1,
    };
    controller.runtime.block_on(async {
        for gateway in [3, 4] {
            let fencing_token = registry.register_gateway(GatewayId(gateway), 1).await.unwrap();
            registry.reserve_rounds(&fencing_token, COUNT, 0).await.unwrap();
            for number in 1..=COUNT {
                registry
                    .record_round(&fencing_token, &round(gateway, number), &[])
                    .await
                    .unwrap();
            }
        }
    });
    let describe = |item: &Value| format!("{}/{}", item["gateway"], item["number"]);
    let all_rounds: Vec<(u32, u32)> = (1..=COUNT)
        .flat_map(|number| [(3, number), (4, number)])
        .collect();
    let expected = |is_selected: fn(&(u32, u32)) -> bool| -> Vec<String> {
        let mut rounds: Vec<_> = all_rounds.iter().copied().filter(is_selected).collect();
        rounds.sort_by_key(|(gateway, number)| (u32::MAX - number / 2, *gateway, u32::MAX - number));
        rounds
            .iter()
            .map(|(gateway, number)| format!("{gateway}/{number}"))
            .collect()
    };
    for (query, rounds) in [
        ("", expected(|_| true)),
        ("?gateway=4", expected(|(gateway, _)| *gateway == 4)),
        ("?group=fans", expected(|(_, number)| number.is_multiple_of(2))),
        (
            "?gateway=3&group=pumps",
            expected(|(gateway, number)| *gateway == 3 && !number.is_multiple_of(2)),
        ),
    ] {
        assert_eq!(
            read_list(&vera, &format!("/api/v1/rounds{query}"), describe),
            rounds,
            "{query}"
        );
    }
    for query in ["after=7", "after=1-2-x", "limit=0"] {
        vera.get(&format!("/api/v1/rounds?{query}"))
            .refused(422, "invalid");
    }
}

#[test]
fn results_are_listed() {
    let controller = TestController::new();
    let vera = controller.caller("vera", Role::Viewer);
    let registry = &controller.registry;
    let pumps = NewGroup {
        name: group("pumps"),
        policy: GroupPolicy::default(),
        reference: None,
        roll_out: None,
    };
    let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let round = RoundRecord {
        gateway: GatewayId(3),
        number: 1,
        group: group("pumps"),
        period: Period(1),
        started_at_s: now_s - 1,
        ended_at_s: now_s,
        requested: COUNT,
        ok: 0,
        late: COUNT,
        missed: 0,
        last_proof_ms: 1,
    };
    controller.runtime.block_on(async {
        registry.set_group(&pumps, 1).await.unwrap();
        let mut appraisals = Vec::new();
        for number in 1..=COUNT {
            let device = DeviceId(number.into());
            let credentials = Credentials::Key(row_key(device, 0));
            registry.enroll(record(device, credentials)).await.unwrap();
            let prover = NewProver {
                device,
                group: group("pumps"),
                key: AttestationKey::from_bytes([7; 32]),
                protection: Protection::Software,
                binding: None,
                overlay: None,
                location: Some(ProverLocation {
                    gateway: GatewayId(3),
                    address: [192, 0, 2, 1].into(),
                }),
                port: 20_554,
                enrolled_period: Period(0),
            };
            registry.enroll_prover(prover, 1).await.unwrap();
            let enrolled = registry.prover(device).await.unwrap().unwrap();
            let appraisal = Appraisal {
                device,
                gateway: GatewayId(3),
                address: None,
                state: AttestationState::Late,
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
        registry
            .record_round(&fencing_token, &round, &appraisals)
            .await
            .unwrap();
    });
    let devices: Vec<String> = (1..=COUNT).map(|number| format!("{number:016x}")).collect();
    for query in ["", "?state=late", "?group=pumps"] {
        let path = format!("/api/v1/results{query}");
        assert_eq!(read_list(&vera, &path, field_text("device")), devices, "{query}");
    }
    // A page without matching items refers to the next page.
    let empty_page = vera
        .get(&format!("/api/v1/results?state=ok&limit={PAGE_ITEMS}"))
        .ok();
    assert_eq!(empty_page["items"], json!([]));
    assert!(empty_page["next"].is_string(), "{empty_page}");
    let named = vera.get("/api/v1/results?devices=2,1").ok();
    assert_eq!(named["items"][1]["device"], devices[1]);
    assert_eq!(named["items"][0]["state"], "late");
    vera.get("/api/v1/results?devices=1,ff")
        .refused(404, "unknown_device");
    vera.get("/api/v1/results?group=fans").refused(404, "not_found");
    vera.get("/api/v1/results?state=odd").refused(422, "invalid");
    vera.get("/api/v1/results?after=x").refused(422, "invalid");
}

#[test]
fn event_and_audit_lists_are_complete_while_growing() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    for id in 1..=COUNT {
        let gateway = json!({"id": id, "name": "hall", "reason": "new"});
        ada.post("/api/v1/gateways", &gateway).ok();
    }
    let newest_first: Vec<String> = (1..=COUNT).rev().map(|id| id.to_string()).collect();
    for path in [
        "/api/v1/audit?action=gateway_created",
        "/api/v1/audit?actor=ada",
        "/api/v1/events/history?kinds=gateway_created",
    ] {
        let entries = read_list(&ada, path, |item| {
            // Items that are added during the reading are newer than the first page, so later pages do not contain them.
            let event = NewEvent {
                kind: "gateway_created".to_owned(),
                gateway: Some(GatewayId(99)),
                device: None,
                detail: String::new(),
            };
            if path.contains("history") {
                controller
                    .runtime
                    .block_on(controller.registry.record_events(&[event], 1))
                    .unwrap();
            }
            field_text("gateway")(item)
        });
        assert_eq!(entries, newest_first, "{path}");
    }
    for path in ["audit", "events/history"] {
        ada.get(&format!("/api/v1/{path}?after=x"))
            .refused(422, "invalid");
    }
}
