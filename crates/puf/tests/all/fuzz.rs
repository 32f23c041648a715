//! Arbitrary bytes as helper data and as hex text: the parsers accept or refuse the bytes without a panic. Accepted
//! helper data have exactly one encoding.

use std::sync::OnceLock;

use linewarden_puf::extractor::{
    HelperData, KeyEnrollment, PoolEnrollment, PoolHelper, enroll_pool, enroll_puf,
};
use linewarden_puf::model::{Simulated, SramParameters, SramPuf, XorArbiterPuf};
use linewarden_puf::readout::parse_hex;
use proptest::collection::vec;
use proptest::prelude::*;
use rand::SeedableRng as _;

/// Valid helper data of pool mode and of key mode.
fn valid_helper_data() -> &'static [Vec<u8>; 2] {
    static VALID: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    VALID.get_or_init(|| {
        let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
        let model = XorArbiterPuf::with_bit_error_rate(64, 6, 0.05, 1).unwrap();
        let pool = enroll_pool(&mut Simulated::new(model, 2), &PoolEnrollment::rows(2), &mut rng).unwrap();
        let parameters = SramParameters {
            cells: 32_768,
            ones: 0.5,
            bit_error_rate: 0.05,
        };
        let sram = SramPuf::new(parameters, 3).unwrap();
        let key = enroll_puf(
            &mut Simulated::new(sram, 4),
            32_768,
            3,
            &KeyEnrollment::default(),
            &mut rng,
        )
        .unwrap();
        [pool.helper.to_bytes(), key.helper.to_bytes()]
    })
}

/// Up to four edits. Each edit has a position as a share of the length, a value, and the number of an operation.
fn edits() -> impl Strategy<Value = Vec<(f64, u8, u8)>> {
    vec((0.0..1.0, any::<u8>(), 0u8..6), 0..5)
}

fn with_edits(bytes: &[u8], edits: &[(f64, u8, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (share, value, operation) in edits {
        // The header is short, so half of the edits are restricted to the header.
        let position_limit = if value & 1 == 0 {
            bytes.len()
        } else {
            bytes.len().min(24)
        };
        let position = (share * position_limit as f64) as usize;
        match operation {
            0 => bytes.truncate(position),
            1 => bytes.insert(position, *value),
            2 if position < bytes.len() => drop(bytes.remove(position)),
            3 => bytes.extend_from_within(position..),
            _ if position < bytes.len() => bytes[position] ^= value | 1,
            _ => {}
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edited_helper_data_are_refused_or_canonical(changes in edits()) {
        let [pool, key] = valid_helper_data();
        let bytes = with_edits(pool, &changes);
        if let Ok(helper) = PoolHelper::from_bytes(&bytes) {
            prop_assert_eq!(helper.to_bytes(), bytes);
        }
        let bytes = with_edits(key, &changes);
        if let Ok(helper) = HelperData::from_bytes(&bytes) {
            prop_assert_eq!(helper.to_bytes(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_as_helper_data_or_canonical(tail in vec(any::<u8>(), 0..200), kind in 0..3usize) {
        let bytes = [[&b"LWHP\x01\0\0\0"[..], b"LWHK\x01\0\0\0", b""][kind], &tail].concat();
        if let Ok(helper) = PoolHelper::from_bytes(&bytes) {
            prop_assert_eq!(helper.to_bytes(), bytes.clone());
        }
        if let Ok(helper) = HelperData::from_bytes(&bytes) {
            prop_assert_eq!(helper.to_bytes(), bytes);
        }
    }

    #[test]
    fn parsed_hex_has_at_most_one_byte_for_two_characters(text in vec(any::<u8>(), 0..200)) {
        if let Ok(bytes) = parse_hex(&text) {
            prop_assert!(bytes.len() <= text.len() / 2);
        }
    }
}
