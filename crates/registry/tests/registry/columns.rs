//! Values of wrong types, and edited records of gateways and locations. Each edit damages one record, which the check
//! names, and affects no other record.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::attestation::{NOW_S, appraisal, group, name, prover, round, with_enrollment};
use crate::support::{fleet_file, gateway, lease, lease_all, lease_request, open, pool_device, sql};
use linewarden_harness::stay_on_one_cpu;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RowIndex};
use linewarden_registry::{
    AttestationError, DeviceError, DeviceFilter, FencingError, ProvenSession, Registry, RegistryError,
    Renewal, SessionOrder,
};
use linewarden_types::{BootId, BootTimestamp, Revision, UnusedRows};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// A fleet with records in every table, including records of device 7.
async fn full_file() -> (TempDir, PathBuf) {
    let (directory, path) = fleet_file().await;
    let registry = open(&path).await.unwrap();
    let fencing_token = lease_all(&registry, 1..=40).await;
    let unused_rows = |id| UnusedRows {
        device: DeviceId(id),
        epoch: 0,
        unused_from: RowIndex(0),
        keep_leased: false,
    };
    let other_gateway = registry.register_gateway(GatewayId(2), 0).await.unwrap();
    let _ = lease(&registry, &other_gateway, 7, 0, 2).await.unwrap();
    // These rows are below the floor now, so they become unleased ranges.
    registry
        .record_unused_rows(&fencing_token, &[unused_rows(7), unused_rows(8)])
        .await
        .unwrap();
    registry.allow_pair(DeviceId(7), DeviceId(9)).await.unwrap();
    registry.allow_pair(DeviceId(40), DeviceId(39)).await.unwrap();
    let rows = Renewal::Rows {
        epoch: 0,
        first: 100,
        rows: crate::support::rows(7, 0, 1),
    };
    registry.renew(DeviceId(7), 1, rows).await.unwrap();
    let sessions = [7, 40].map(|id| ProvenSession {
        device: DeviceId(id),
        started: BootTimestamp {
            boot_id: BootId([3; 16]),
            ns: 5,
        },
    });
    let now = sessions[0].started;
    registry
        .record_sessions(&fencing_token, &sessions, now)
        .await
        .unwrap();
    add_attestation(&registry).await;
    assert!(registry.check().await.unwrap().is_empty());
    registry.close().await;
    (directory, path)
}

/// Adds devices 7 and 40 as provers, gateway 1 with rounds 7 and 8, two groups and two periods.
async fn add_attestation(registry: &Registry) {
    for name in ["fans", "pumps"] {
        registry.set_group(&group(name), NOW_S).await.unwrap();
    }
    let fencing_token = gateway(registry).await;
    registry.reserve_rounds(&fencing_token, 8, 0).await.unwrap();
    for id in [7, 40] {
        registry.enroll_prover(prover(id), NOW_S).await.unwrap();
    }
    for number in [7, 8] {
        let reported_appraisals = with_enrollment([7, 40].map(|id| appraisal(id, number)));
        registry
            .record_round(&fencing_token, &round(1, number), &reported_appraisals)
            .await
            .unwrap();
        for id in [7, 40] {
            registry.store_evidence(DeviceId(id), b"{}", NOW_S).await.unwrap();
        }
        let period = registry
            .create_period(Some(Period(u64::from(number) - 1)), [9; 8], NOW_S)
            .await
            .unwrap();
        registry.start_period(period.number, NOW_S).await.unwrap();
    }
}

/// SQLite stores values of any type in any column. A value of a wrong type damages one record, which is named.
#[test]
async fn a_value_of_another_type_spares_the_other_records() {
    stay_on_one_cpu();
    let (_directory, path) = full_file().await;
    let original = fs::read(&path).unwrap();
    let storage_record = path.with_file_name("fleet.registry.storage");
    let original_storage_record = fs::read(&storage_record).unwrap();
    let tables = [
        ("device", "device_id"),
        ("credential", "device_id"),
        ("lease", "device_id"),
        ("unleased_range", "device_id"),
        ("ticket", "device_id"),
        ("pair", "low_id"),
        ("newest_session", "device_id"),
        ("gateway", "2 + 5 * gateway_id"),
        ("attest_group", "7 * (name = 'fans')"),
        ("prover", "device_id"),
        ("period", "number"),
        ("round_counter", "7 * gateway_id"),
        ("attest_round", "number"),
        ("appraisal", "device_id"),
        ("evidence", "device_id"),
    ];
    let mut edits = 0;
    for (table, id) in tables {
        for column in columns(&path, table).await {
            // If the key of a pair cannot be unsealed, it is replaced without an error.
            if (table, column.as_str()) == ("pair", "sealed") {
                continue;
            }
            for value in ["'text'", "x'0102'", "1.5", "-3"] {
                for sibling in ["fleet.registry-wal", "fleet.registry-shm"] {
                    let _ = fs::remove_file(path.with_file_name(sibling));
                }
                fs::write(&path, &original).unwrap();
                fs::write(&storage_record, &original_storage_record).unwrap();
                let statement = format!(
                    "PRAGMA ignore_check_constraints = ON; UPDATE {table} SET {column} = {value} \
                     WHERE rowid = (SELECT MIN(rowid) FROM {table} WHERE {id} = 7)"
                );
                sql(&path, &statement).await;
                let findings = check_other_devices(&path, table == "gateway").await;
                assert!(!findings.is_empty(), "{statement}");
                let is_named = findings.iter().any(|error| match error {
                    RegistryError::Device(DeviceError::DamagedRecord { device, .. }) => device.0 == 7,
                    RegistryError::Fencing(FencingError::DamagedGateway { .. }) => table == "gateway",
                    RegistryError::Attestation(AttestationError::DamagedRoundCounter { .. }) => {
                        table == "round_counter"
                    }
                    RegistryError::Attestation(AttestationError::DamagedGroup { group }) => group == "fans",
                    RegistryError::Attestation(AttestationError::DamagedPeriod { period }) => period.0 == 7,
                    RegistryError::Attestation(AttestationError::DamagedRound { number, .. }) => *number == 7,
                    _ => false,
                });
                // An edited key column hides the owner of the record.
                let is_nameless = ["device_id", "low_id", "gateway_id", "revision", "name", "number"]
                    .contains(&column.as_str());
                assert!(is_named || is_nameless, "{statement}: {findings:?}");
                edits += 1;
            }
        }
    }
    assert!(edits > 400, "{edits}");
}

async fn columns(path: &Path, table: &str) -> Vec<String> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let names: Vec<(String,)> = sqlx::query_as("SELECT name FROM pragma_table_info($1)")
        .bind(table)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    names.into_iter().map(|(name,)| name).collect()
}

/// Returns the findings of the check, and asserts that all other devices are served.
async fn check_other_devices(path: &Path, gateway_is_damaged: bool) -> Vec<RegistryError> {
    let registry = open(path).await.unwrap();
    let findings = registry.check().await.unwrap();
    assert_eq!(
        registry.load(DeviceId(40)).await.unwrap().credentials,
        pool_device(40, 100).credentials
    );
    let page = registry.list(&DeviceFilter::default(), None, 100).await.unwrap();
    assert!(page.devices.len() >= 39 && page.devices.iter().any(|info| info.device.0 == 40));
    let feed = registry.changes_since(Revision::ZERO, 1000).await.unwrap();
    assert!(
        feed.changes
            .iter()
            .any(|change| change.device.0 == 40 && change.active)
    );
    assert!(feed.newest_sessions.iter().any(|session| session.device.0 == 40));
    assert_eq!(registry.enrollment(DeviceId(40)).await.unwrap().ticket_number, 0);
    assert_eq!(registry.leases_of(DeviceId(40)).await.unwrap().len(), 1);
    assert!(
        registry
            .pairs_of(DeviceId(40))
            .await
            .unwrap()
            .iter()
            .any(Result::is_ok)
    );
    check_other_provers(&registry).await;
    if !gateway_is_damaged {
        let fencing_token = gateway(&registry).await;
        let mut stream = registry.stream_leased(fencing_token, 16);
        let mut loaded = 0;
        while let Some(chunk) = stream.next_chunk().await.unwrap() {
            loaded += chunk
                .devices
                .iter()
                .filter(|device| device.info.device.0 != 7)
                .count();
        }
        // Device 7 is damaged, and device 8 has returned its rows.
        assert_eq!(loaded, 38);
        let results = registry
            .lease(
                &fencing_token,
                &[7, 40].map(|id| lease_request(DeviceId(id), 0, 1)),
            )
            .await
            .unwrap();
        assert!(results[1].is_ok());
    }
    registry.close().await;
    findings
}

/// Asserts that device 40 is still a prover of an existing group, in a started period.
async fn check_other_provers(registry: &Registry) {
    let stored = registry.prover(DeviceId(40)).await.unwrap().unwrap();
    assert_eq!(stored.key.as_bytes(), prover(40).key.as_bytes());
    let page = registry.provers_since(0, 100).await.unwrap();
    assert!(page.provers.iter().any(|prover| prover.device.0 == 40));
    assert!(registry.group(&name("pumps")).await.unwrap().is_some());
    let groups = registry.groups().await.unwrap().groups;
    assert!(groups.iter().any(|group| group.name == name("pumps")));
    let period = registry.newest_started_period().await.unwrap().unwrap();
    assert_eq!((period.number, period.salt), (Period(8), [9; 8]));
    assert_eq!(registry.newest_period().await.unwrap(), Some(period));
    let rounds = registry.rounds(None, 10).await.unwrap();
    assert!(rounds.contains(&round(1, 8)));
    assert_eq!(
        registry.appraisal(DeviceId(40)).await.unwrap(),
        Some(appraisal(40, 8))
    );
    let page = registry.appraisals(None, 10).await.unwrap();
    assert!(page.appraisals.contains(&appraisal(40, 8)));
    assert!(registry.evidence(DeviceId(40)).await.unwrap().is_some());
}

/// With an older or a deleted gateway record, the registry would accept an old process.
#[test]
async fn the_check_includes_gateways() {
    for (statement, expected) in [
        ("UPDATE gateway SET fencing_token = 9 WHERE gateway_id = 1", 1),
        ("UPDATE gateway SET registered_at_s = 0 WHERE gateway_id = 1", 1),
        (
            "UPDATE gateway SET abandoned_requests = 9 WHERE gateway_id = 1",
            1,
        ),
        ("UPDATE gateway SET process_id = x'00' WHERE gateway_id = 1", 1),
        (
            "UPDATE gateway SET process_id = zeroblob(15) WHERE gateway_id = 1",
            1,
        ),
        (
            "UPDATE gateway SET process_id = randomblob(16) WHERE gateway_id = 1",
            1,
        ),
        ("DELETE FROM gateway WHERE gateway_id = 2", 2),
        ("UPDATE gateway SET gateway_id = 3 WHERE gateway_id = 2", 2),
    ] {
        let (_directory, path) = full_file().await;
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        let findings = registry.check().await.unwrap();
        let is_expected = |error: &RegistryError| match error {
            RegistryError::Fencing(FencingError::DamagedGateway { gateway }) => gateway.0 == expected,
            _ => false,
        };
        assert!(findings.iter().any(is_expected), "{statement}: {findings:?}");
    }
    // A restored older record has a valid tag, but contradicts the gateway's leases.
    let (_directory, path) = full_file().await;
    let attach = format!("ATTACH '{}' AS kept; ", path.with_extension("kept").display());
    fs::write(path.with_extension("kept"), "").unwrap();
    let save = "CREATE TABLE kept.gateways AS SELECT * FROM gateway";
    sql(&path, &[&attach, save].concat()).await;
    let registry = open(&path).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let _ = lease(&registry, &fencing_token, 30, 0, 4).await.unwrap();
    registry.close().await;
    let restore = "DELETE FROM gateway; INSERT INTO gateway SELECT * FROM kept.gateways";
    sql(&path, &[&attach, restore].concat()).await;
    let registry = open(&path).await.unwrap();
    let findings = registry.check().await.unwrap();
    assert!(
        matches!(
            findings[..],
            [RegistryError::Fencing(FencingError::DamagedGateway {
                gateway: GatewayId(1)
            })]
        ),
        "{findings:?}"
    );
}

/// Write access to the file without the master key does not end sessions.
#[test]
async fn the_location_of_a_device_cannot_be_edited() {
    for statement in [
        "UPDATE newest_session SET gateway_id = 2 WHERE device_id = 7",
        "UPDATE newest_session SET started_ns = 900 WHERE device_id = 7",
        "UPDATE newest_session SET boot_id = zeroblob(16) WHERE device_id = 7",
        "UPDATE newest_session SET revision = 100000 WHERE device_id = 7",
        "UPDATE newest_session SET device_id = 8 WHERE device_id = 7",
    ] {
        let (_directory, path) = full_file().await;
        sql(&path, statement).await;
        let registry = open(&path).await.unwrap();
        let feed = registry.changes_since(Revision::ZERO, 1000).await.unwrap();
        assert_eq!(
            feed.newest_sessions.len(),
            1,
            "{statement}: only the session of device 40"
        );
        assert_eq!(registry.check().await.unwrap().len(), 1, "{statement}");
        // The next report of the device repairs its record.
        if !statement.contains("device_id = 8") {
            let fencing_token = gateway(&registry).await;
            let started = BootTimestamp {
                boot_id: BootId([3; 16]),
                ns: 6,
            };
            let session = ProvenSession {
                device: DeviceId(7),
                started,
            };
            assert_eq!(
                registry
                    .record_sessions(&fencing_token, &[session], started)
                    .await
                    .unwrap(),
                [SessionOrder::Newest]
            );
            assert!(registry.check().await.unwrap().is_empty());
        }
    }
}
