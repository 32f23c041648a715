//! PUF fingerprints: one PUF belongs to one device.

use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{
    Band, BulkError, BulkOptions, DeviceError, DeviceFilter, DeviceRecord, ExportKey, Fingerprint, MasterKey,
    NewDevice, OnConflict, OnDamage, Registry, RegistryError, Result,
};
use rand::{RngExt as _, SeedableRng as _};

use crate::support::{key_device, pool_device, sql};

/// The readout of a chip: 20 bits at each of 128 positions.
pub fn fingerprint(chip: u64) -> Fingerprint {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(chip);
    let band = |position| Band {
        position,
        bits: rng.random_range(0..1 << 20),
    };
    Fingerprint::new((0..128).map(band).collect()).unwrap()
}

/// Fingerprint `own`, with the bands of fingerprint `other` at the positions for which `is_common` returns true.
fn mixed(own: &Fingerprint, other: &Fingerprint, is_common: impl Fn(usize) -> bool) -> Fingerprint {
    let bands = own.bands().iter().zip(other.bands()).enumerate();
    let mix = |(index, (own, other)): (usize, (&Band, &Band))| if is_common(index) { *other } else { *own };
    Fingerprint::new(bands.map(mix).collect()).unwrap()
}

pub fn with_fingerprint(record: DeviceRecord, fingerprint: Fingerprint) -> NewDevice {
    NewDevice {
        fingerprint: Some(fingerprint),
        ..record.into()
    }
}

fn device(id: u64, fingerprint: Fingerprint) -> NewDevice {
    with_fingerprint(key_device(id), fingerprint)
}

pub async fn store(registry: &Registry, devices: Vec<NewDevice>, on_conflict: OnConflict) -> Result<()> {
    registry
        .import_chunk(registry.seal_chunk(devices)?, on_conflict)
        .await
}

async fn registry() -> Registry {
    Registry::in_memory(&MasterKey::from_bytes([9; 32]))
        .await
        .unwrap()
}

fn is_refused(result: &Result<()>, device: u64, other: u64) -> bool {
    matches!(result, Err(RegistryError::Device(DeviceError::DuplicatePuf { device: d, other: o, .. }))
        if (*d, *o) == (DeviceId(device), DeviceId(other)))
}

#[test]
async fn the_puf_of_another_device_is_refused() {
    let registry = registry().await;
    let chips: Vec<Fingerprint> = (0..40).map(fingerprint).collect();
    let fleet = (0..40).map(|id| device(1 + id, chips[id as usize].clone()));
    store(&registry, fleet.collect(), OnConflict::Refuse)
        .await
        .unwrap();

    // The same chip; a chip with scattered equal bands; two chips with an equal part.
    let unknown = fingerprint(1000);
    let cases = [
        mixed(&unknown, &chips[6], |_| true),
        mixed(&unknown, &chips[6], |index| index % 3 == 0),
        mixed(&unknown, &chips[6], |index| {
            (64..96).contains(&index) && index % 3 != 0
        }),
        mixed(&unknown, &chips[6], |index| (100..108).contains(&index)),
    ];
    for (case, fingerprint) in cases.into_iter().enumerate() {
        let stored = store(&registry, vec![device(90, fingerprint)], OnConflict::Refuse).await;
        assert!(is_refused(&stored, 90, 7), "case {case}: {stored:?}");
    }
    assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), 40);
    let few = mixed(&unknown, &chips[6], |index| index % 11 == 0);
    store(&registry, vec![device(90, few)], OnConflict::Refuse)
        .await
        .unwrap();
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn one_puf_twice_in_one_transaction_is_refused() {
    let registry = registry().await;
    let twice = vec![
        device(1, fingerprint(1)),
        device(2, fingerprint(2)),
        device(3, fingerprint(1)),
    ];
    let stored = store(&registry, twice, OnConflict::Refuse).await;
    assert!(is_refused(&stored, 3, 1), "{stored:?}");
    assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), 0);
}

#[test]
async fn a_device_keeps_its_own_puf_and_revocation_frees_it() {
    let registry = registry().await;
    store(&registry, vec![device(1, fingerprint(1))], OnConflict::Refuse)
        .await
        .unwrap();
    store(&registry, vec![device(1, fingerprint(1))], OnConflict::Replace)
        .await
        .unwrap();
    // A new PUF under the same id: the old PUF may be enrolled as another device.
    store(&registry, vec![device(1, fingerprint(2))], OnConflict::Replace)
        .await
        .unwrap();
    store(&registry, vec![device(2, fingerprint(1))], OnConflict::Refuse)
        .await
        .unwrap();
    let stored = store(&registry, vec![device(3, fingerprint(2))], OnConflict::Refuse).await;
    assert!(is_refused(&stored, 3, 1), "{stored:?}");
    // The PUF of a device in quarantine is still compared.
    registry.quarantine_manually(DeviceId(1), "odd", 1).await.unwrap();
    let stored = store(&registry, vec![device(3, fingerprint(2))], OnConflict::Refuse).await;
    assert!(is_refused(&stored, 3, 1), "{stored:?}");
    registry
        .revoke(DeviceId(1), "its readouts leaked", 1)
        .await
        .unwrap();
    store(&registry, vec![device(3, fingerprint(2))], OnConflict::Refuse)
        .await
        .unwrap();
    assert!(registry.check().await.unwrap().is_empty());
}

#[test]
async fn fingerprints_travel_with_an_export() {
    let directory = tempfile::tempdir().unwrap();
    let (file, key) = (
        directory.path().join("fleet.jsonl"),
        ExportKey::from_bytes([4; 32]),
    );
    let registry = registry().await;
    let fleet = vec![
        device(1, fingerprint(1)),
        with_fingerprint(pool_device(2, 5), fingerprint(2)),
        key_device(3).into(),
    ];
    store(&registry, fleet, OnConflict::Refuse).await.unwrap();
    registry
        .export_file(&file, Some(&key), OnDamage::Refuse, |_| ())
        .await
        .unwrap();

    // With another master key, the hashes differ.
    let other_registry = Registry::in_memory(&MasterKey::from_bytes([8; 32]))
        .await
        .unwrap();
    store(
        &other_registry,
        vec![device(7, fingerprint(2))],
        OnConflict::Refuse,
    )
    .await
    .unwrap();
    let error = other_registry
        .import_file(&file, &key, BulkOptions::default(), |_| ())
        .await
        .unwrap_err();
    let RegistryError::Bulk(BulkError::ChunkRefused {
        source, committed: 0, ..
    }) = error
    else {
        panic!("{error}");
    };
    assert!(is_refused(&Err(*source), 2, 7));
    other_registry
        .revoke(DeviceId(7), "its chip is device 2", 1)
        .await
        .unwrap();
    other_registry
        .import_file(&file, &key, BulkOptions::default(), |_| ())
        .await
        .unwrap();
    let stored = store(
        &other_registry,
        vec![device(9, fingerprint(1))],
        OnConflict::Refuse,
    )
    .await;
    assert!(is_refused(&stored, 9, 1), "{stored:?}");
    assert_eq!(
        other_registry.load(DeviceId(2)).await.unwrap().credentials,
        pool_device(2, 5).credentials
    );
}

/// An edited file can lack a fingerprint, but `check` reports that.
#[test]
async fn damaged_fingerprints_are_found() {
    let key = MasterKey::from_bytes([9; 32]);
    for (statement, found) in [
        (
            "DELETE FROM fingerprint_band WHERE hash = (SELECT MIN(hash) FROM fingerprint_band WHERE device_id = 7)",
            1,
        ),
        ("UPDATE fingerprint_band SET device_id = 8 WHERE device_id = 7", 1),
        (
            "UPDATE fingerprint_band SET hash = hash + 1 WHERE device_id = 7",
            1,
        ),
        (
            "UPDATE fingerprint SET sealed = (SELECT sealed FROM fingerprint WHERE device_id = 8) WHERE device_id = 7",
            1,
        ),
        ("UPDATE fingerprint SET sealed = 'text' WHERE device_id = 7", 1),
        ("SELECT 1", 0),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.registry");
        let registry = Registry::create(&path, &key).await.unwrap();
        let fleet = vec![device(7, fingerprint(7)), device(8, fingerprint(8))];
        store(&registry, fleet, OnConflict::Refuse).await.unwrap();
        registry.close().await;
        sql(&path, statement).await;
        let registry = Registry::open(&path, &key).await.unwrap();
        let damaged = registry.check().await.unwrap();
        assert_eq!(damaged.len(), found, "{statement}: {damaged:?}");
        assert!(
            damaged
                .iter()
                .all(|error| matches!(error, RegistryError::Device(DeviceError::DamagedRecord { device, .. }) if device.0 == 7))
        );
        // The device with the missing fingerprint can be replaced.
        store(&registry, vec![device(7, fingerprint(7))], OnConflict::Replace)
            .await
            .unwrap();
        assert!(registry.check().await.unwrap().is_empty(), "{statement}");
        registry.close().await;
    }
}

/// None of 2,000 devices matches another; a repeated device matches.
#[test]
async fn unrelated_devices_of_a_fleet_are_enrolled() {
    let registry = registry().await;
    for chunk in 0..4 {
        let fleet = (0..500).map(|id| device(1 + chunk * 500 + id, fingerprint(chunk * 500 + id)));
        store(&registry, fleet.collect(), OnConflict::Refuse)
            .await
            .unwrap();
    }
    let stored = store(
        &registry,
        vec![device(9_999, fingerprint(1_234))],
        OnConflict::Refuse,
    )
    .await;
    assert!(is_refused(&stored, 9_999, 1_235), "{stored:?}");
}
