//! Stored permissions of pairs.

use crate::support::{key_device, master_key, pool_device, sql, unused_location};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{DeviceError, Registry, RegistryError};

const A: DeviceId = DeviceId(1);
/// This id has the highest bit set: its value in the database is negative, but the id is higher.
const B: DeviceId = DeviceId(0xf000_0000_0000_0001);
const C: DeviceId = DeviceId(3);

#[test]
async fn a_permission_applies_to_both_devices_and_cannot_be_forged_without_the_master_key() {
    let (_directory, path) = unused_location();
    let registry = Registry::create(&path, &master_key()).await.unwrap();
    registry.enroll(pool_device(A.0, 4)).await.unwrap();
    registry.enroll(key_device(B.0)).await.unwrap();
    registry.enroll(key_device(C.0)).await.unwrap();
    assert!(registry.allow_pair(B, A).await.unwrap());
    let created = registry.pair_key(A, B, 100).await.unwrap().unwrap();
    assert_eq!(registry.pair_key(A, C, 100).await.unwrap(), None);
    registry.close().await;

    let registry = Registry::open(&path, &master_key()).await.unwrap();
    let reloaded = registry.pair_key(B, A, 110).await.unwrap().unwrap();
    assert!(
        reloaded.pairing == created.pairing,
        "the key outlives the process"
    );
    registry.close().await;

    for forged in [
        "UPDATE pair SET low_id = 3",
        "INSERT INTO pair (low_id, high_id, tag) VALUES (1, 3, zeroblob(16))",
    ] {
        sql(&path, forged).await;
    }
    let registry = Registry::open(&path, &master_key()).await.unwrap();
    for (a, b) in [(C, B), (A, C)] {
        let result = registry.pair_key(a, b, 120).await;
        assert!(
            matches!(
                result,
                Err(RegistryError::Device(DeviceError::DamagedRecord { .. }))
            ),
            "{a} {b}"
        );
    }
    assert_eq!(registry.pair_key(A, B, 120).await.unwrap(), None);
    assert_eq!(registry.check().await.unwrap().len(), 2);
}
