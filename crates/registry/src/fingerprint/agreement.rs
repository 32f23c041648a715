//! Decides whether two fingerprints are of the same PUF.
//!
//! Two unrelated PUFs agree in at most 70 % of the bits: enrollment refuses memory in which the columns have a common
//! bias that would cause a higher agreement. So a band of 20 bits agrees with a probability of at most 0.7^20 = 8.0e-4.
//! Two readouts of one PUF agree in at least 95 % of the bits, and in 36 % of the bands. Two unrelated PUFs reach one of
//! the [`LIMITS`] with a probability under 2e-20. 100,000 devices form 5e9 pairs, so the probability of a false alarm in
//! such a fleet is under 1e-9.

/// Each limit: the length of a window of consecutive bands, and the number of agreeing bands in the window that indicates
/// the same PUF. Short windows detect a small common part of two memories.
const LIMITS: [(usize, usize); 5] = [(8, 8), (16, 9), (32, 10), (64, 11), (super::BANDS_MAX, 13)];

/// The number of bands in which two fingerprints agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) bands: usize,
    pub(crate) bands_compared: usize,
}

/// `Some` if the pattern of agreeing bands, in the order of the fingerprint, indicates the same PUF.
pub(crate) fn agreement(agrees: &[bool]) -> Option<Agreement> {
    let exceeds = |&(window, limit): &(usize, usize)| {
        let windows = agrees.windows(window.min(agrees.len()).max(1));
        windows
            .map(|window| window.iter().filter(|agrees| **agrees).count())
            .any(|bands| bands >= limit)
    };
    LIMITS.iter().any(exceeds).then(|| Agreement {
        bands: agrees.iter().filter(|agrees| **agrees).count(),
        bands_compared: agrees.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `P(X >= minimum)` for `count` trials of probability `p`.
    fn at_least(count: usize, p: f64, minimum: usize) -> f64 {
        let combinations = |chosen: usize| {
            (0..chosen).fold(1.0, |combinations, i| {
                combinations * (count - i) as f64 / (i + 1) as f64
            })
        };
        let term = |n: usize| combinations(n) * p.powi(n as i32) * (1.0 - p).powi((count - n) as i32);
        (minimum..=count).map(term).sum()
    }

    #[test]
    fn a_fleet_of_100_000_devices_has_no_false_alarm() {
        let devices = 1e5;
        for (agree, bound) in [(0.70, 1e-9), (0.65, 1e-13)] {
            let band = f64::powi(agree, 20);
            let windows = |window: usize| (super::super::BANDS_MAX - window + 1) as f64;
            let pair: f64 = LIMITS
                .iter()
                .map(|&(window, limit)| windows(window) * at_least(window, band, limit))
                .sum();
            let alarms = pair * devices * (devices - 1.0) / 2.0;
            println!("{agree}: {alarms:e} false alarms expected");
            assert!(alarms < bound, "{agree}: {alarms:e}");
        }
    }

    #[test]
    fn one_puf_at_two_times_is_recognized() {
        // With 5 % wrong bits, two majorities of three readouts agree in 95 % of the bits; two majorities of five readouts agree
        // in 96 %.
        for (agree, missed) in [(0.95, 1e-6), (0.92, 0.01)] {
            let band = f64::powi(agree, 20);
            let recognized = at_least(128, band, 13);
            assert!(1.0 - recognized < missed, "{agree}: {recognized}");
        }
    }

    #[test]
    fn a_common_part_is_recognized_by_its_bands() {
        let common = |start: usize, count: usize| -> Vec<bool> {
            (0..128).map(|i| (start..start + count).contains(&i)).collect()
        };
        assert_eq!(agreement(&common(40, 7)), None);
        let expected = Agreement {
            bands: 8,
            bands_compared: 128,
        };
        assert_eq!(agreement(&common(40, 8)), Some(expected));
        let every_third: Vec<bool> = (0..128).map(|i| i < 32 && i % 3 == 0).collect();
        assert!(agreement(&every_third).is_some());
        let every_twelfth: Vec<bool> = (0..128).map(|i| i % 12 == 0).collect();
        assert_eq!(agreement(&every_twelfth), None, "11 of 128 bands, evenly spread");
        assert_eq!(agreement(&[]), None);
    }
}
