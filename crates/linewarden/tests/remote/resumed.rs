//! A controller that dies in the middle and comes back: what was begun goes on, and nothing is done twice.

use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{BulkOptions, Credentials, DeviceRecord, Filter, Location, MasterKey, Registry};

use crate::json;
use crate::office::Office;
use crate::support::Process;

/// Of many transactions, so that the first one is seen long before the last.
const DEVICES: u64 = 80_000;

/// An export of devices of key mode, with its key.
fn export(office: &Office) {
    office
        .run("registry create --registry old.registry --key-file old.key")
        .ok();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let key = MasterKey::from_file(office.path("old.key")).unwrap();
        let location = Location::Sqlite(office.path("old.registry"));
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
            .enrol_bulk(records, BulkOptions::default(), |_| ())
            .await
            .unwrap();
        registry.close().await;
    });
    office
        .run("device export fleet.jsonl --export-key export.key --registry old.registry --key-file old.key")
        .ok();
}

fn stored(office: &Office) -> u64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let key = MasterKey::from_file(office.path("master.key")).unwrap();
        let location = Location::Sqlite(office.path("fleet.registry"));
        let registry = Registry::open(&location, &key).await.unwrap();
        let count = registry.count(&Filter::default()).await.unwrap();
        registry.close().await;
        count
    })
}

#[test]
fn an_import_and_who_follows_it_go_on_where_the_controller_died() {
    let mut office = Office::new();
    export(&office);
    let by = |words: &str| {
        let way = format!("{} --token-file olga.token --patience 60 --json", office.server());
        Process::start(office.command(&format!("{words} {way}")))
    };
    let follower = by("events --follow --after 0");
    let import = by("device import fleet.jsonl --export-key export.key --reason moved");
    let is_import = |event: &serde_json::Value| event["kind"] == "enrolled";
    follower.wait_for("first devices", is_import);
    office.kill();
    let half = stored(&office);
    assert!(0 < half && half < DEVICES, "in the middle: {half}");
    assert_eq!(half % 1_000, 0, "each transaction is there as a whole, or not");
    office.start();
    let told = import.ended_well();
    assert_eq!(told.last().unwrap()["imported"], DEVICES, "{told:?}");
    assert_eq!(stored(&office), DEVICES);
    office.at_hand("registry check").ok();

    // Each event once, and none left out.
    let entries = office.at_hand("events --json --limit 10000").ok();
    let mut kept: Vec<u64> = entries
        .lines()
        .map(|line| json(line)["id"].as_u64().unwrap())
        .collect();
    kept.reverse();
    let newest = *kept.last().unwrap();
    if follower.seen().last().unwrap()["id"] != newest {
        follower.wait_for("last event", |event| event["id"] == newest);
    }
    let followed: Vec<u64> = follower
        .seen()
        .iter()
        .map(|event| event["id"].as_u64().unwrap())
        .collect();
    assert_eq!(followed, kept);
    let imports = follower.seen().into_iter().filter(is_import);
    let each = imports.map(|event| {
        let detail = event["detail"].as_str().unwrap().to_owned();
        detail.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(each.sum::<u64>(), DEVICES, "no device was stored twice");
}
