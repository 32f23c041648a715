//! Realistic devices for the measurements.

use linewarden_protocol::ids::{DeviceId, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{Credentials, DeviceRecord, PoolRow};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Sparse ids: random nonzero 64-bit values, the same for the same seed.
pub fn sparse_ids(devices: usize, seed: u64) -> Vec<DeviceId> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..devices).map(|_| DeviceId(rng.next_u64().max(1))).collect()
}

/// A device with a pool of `rows` random rows.
pub fn record(device: DeviceId, rows: usize) -> DeviceRecord {
    let mut rng = ChaCha8Rng::seed_from_u64(device.0);
    let rows = (0..rows)
        .map(|_| {
            let (mut challenge, mut key) = ([0; 8], [0; 16]);
            rng.fill_bytes(&mut challenge);
            rng.fill_bytes(&mut key);
            PoolRow {
                challenge,
                row_key: RowKey::from_bytes(key),
            }
        })
        .collect();
    DeviceRecord {
        device,
        name: format!("hall 3 / pump {device}"),
        suite: Suite::SipHash128,
        enrolled_at_s: 1_790_000_000,
        puf_profile: "4-xor arbiter, 64 stages, bch(255,131,18), repetition 3".to_owned(),
        credentials: Credentials::pool(rows),
    }
}
