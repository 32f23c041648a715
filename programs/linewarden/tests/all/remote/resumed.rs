//! A controller that is killed and restarted during a command: the command continues, and no change is made twice.

use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    BulkOptions, Credentials, DeviceFilter, DeviceRecord, Location, MasterKey, Registry,
};

use super::controller::TestController;
use super::json;
use crate::support::Process;

/// Number of imported devices. The import needs many transactions, so its first transaction is stored long before its last
/// transaction.
const DEVICES: u64 = 80_000;

/// Creates an export of devices in key mode, and the key of the export.
fn create_export(controller: &TestController) {
    controller
        .run("linewarden registry create --registry old.registry --key-file old.key")
        .ok();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let key = MasterKey::from_file(controller.path("old.key")).unwrap();
        let location = Location::Sqlite(controller.path("old.registry"));
        let registry = Registry::open(&location, &key).await.unwrap();
        let record = |number: u64| DeviceRecord {
            device: DeviceId(number),
            name: format!("valve {number}"),
            suite: Suite::SipHash128,
            enrolled_at_s: 1_700_000_000,
            puf_profile: String::new(),
            credentials: Credentials::Key(RowKey::from_bytes(
                [number.to_be_bytes(), [7; 8]].concat().try_into().unwrap(),
            )),
        };
        let records = (1..=DEVICES).map(record);
        registry
            .enroll_bulk(records, BulkOptions::default(), |_| ())
            .await
            .unwrap();
        registry.close().await;
    });
    controller
        .run("linewarden device export fleet.jsonl --export-key export.key --registry old.registry --key-file old.key")
        .ok();
}

fn stored_device_count(controller: &TestController) -> u64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let key = MasterKey::from_file(controller.path("master.key")).unwrap();
        let location = Location::Sqlite(controller.path("fleet.registry"));
        let registry = Registry::open(&location, &key).await.unwrap();
        let count = registry.count(&DeviceFilter::default()).await.unwrap();
        registry.close().await;
        count
    })
}

#[test]
fn an_import_and_an_event_stream_resume_after_a_controller_was_killed() {
    let mut controller = TestController::new();
    create_export(&controller);
    let run_command = |arguments: &str| {
        let connection = format!(
            "{} --token-file olga.token --retry-for 60 --output json",
            controller.server_options()
        );
        Process::start(controller.command(&format!("linewarden {arguments} {connection}")))
    };
    let follower = run_command("event trace --after 0");
    let import = run_command("device import fleet.jsonl --export-key export.key --reason moved");
    let is_import = |event: &serde_json::Value| event["kind"] == "enrolled";
    follower.wait_for("first devices", is_import);
    controller.kill();
    let stored_at_kill = stored_device_count(&controller);
    assert!(
        0 < stored_at_kill && stored_at_kill < DEVICES,
        "the kill was not during the import: {stored_at_kill}"
    );
    assert_eq!(
        stored_at_kill % 1_000,
        0,
        "a transaction is stored completely or not at all"
    );
    controller.start();
    let lines = import.wait_for_success();
    assert_eq!(lines.last().unwrap()["imported"], DEVICES, "{lines:?}");
    assert_eq!(stored_device_count(&controller), DEVICES);
    controller.run_local("registry check").ok();

    // The follower has received each event exactly once.
    let entries = controller
        .run_local("event list --output json --limit 10000")
        .ok();
    let mut event_numbers: Vec<u64> = entries
        .lines()
        .map(|line| json(line)["id"].as_u64().unwrap())
        .collect();
    event_numbers.reverse();
    let newest = *event_numbers.last().unwrap();
    if follower.printed_lines().last().unwrap()["id"] != newest {
        follower.wait_for("last event", |event| event["id"] == newest);
    }
    let followed_ids: Vec<u64> = follower
        .printed_lines()
        .iter()
        .map(|event| event["id"].as_u64().unwrap())
        .collect();
    assert_eq!(followed_ids, event_numbers);
    let imports = follower.printed_lines().into_iter().filter(is_import);
    let imported_counts = imports.map(|event| {
        let detail = event["detail"].as_str().unwrap().to_owned();
        detail.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(
        imported_counts.sum::<u64>(),
        DEVICES,
        "no device was stored twice"
    );
}
