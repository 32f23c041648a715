//! When two fingerprints are of one PUF.
//!
//! Bits of unrelated PUFs agree in at most 70 % (enrolment refuses memory in which columns would let more agree), so a
//! band of 20 bits does with a probability of at most 0.7^20 = 8.0e-4. Readouts of one PUF agree in 95 % and more, a band
//! in 36 %. Each limit below is passed by a pair of unrelated PUFs with a probability under 2e-20: among 100,000 devices
//! there are 5e9 pairs, so that no honest fleet of that size meets a false alarm but with a probability under 1e-9.

/// Of so many consecutive bands, so many may not agree. Small windows see a small part that is common to both.
const LIMITS: [(usize, usize); 5] = [(8, 8), (16, 9), (32, 10), (64, 11), (super::BANDS_MAX, 13)];

/// Bands in which two fingerprints agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) bands: usize,
    pub(crate) of: usize,
}

/// Whether the bands that agree, of a fingerprint's in their order, say that it is the other's PUF.
pub(crate) fn agreement(agrees: &[bool]) -> Option<Agreement> {
    let exceeds = |&(window, limit): &(usize, usize)| {
        let windows = agrees.windows(window.min(agrees.len()).max(1));
        windows
            .map(|window| window.iter().filter(|agrees| **agrees).count())
            .any(|bands| bands >= limit)
    };
    LIMITS.iter().any(exceeds).then(|| Agreement {
        bands: agrees.iter().filter(|agrees| **agrees).count(),
        of: agrees.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `P(X >= least)` of `count` trials of probability `p`.
    fn at_least(count: usize, p: f64, least: usize) -> f64 {
        let ways =
            |chosen: usize| (0..chosen).fold(1.0, |ways, i| ways * (count - i) as f64 / (i + 1) as f64);
        let term = |n: usize| ways(n) * p.powi(n as i32) * (1.0 - p).powi((count - n) as i32);
        (least..=count).map(term).sum()
    }

    #[test]
    fn no_honest_fleet_of_100_000_devices_meets_a_false_alarm() {
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
        // Majorities of three readouts of a memory with 5 % wrong bits agree in 95 %, of five in 96 %.
        for (agree, missed) in [(0.95, 1e-6), (0.92, 0.01)] {
            let band = f64::powi(agree, 20);
            let seen = at_least(128, band, 13);
            assert!(1.0 - seen < missed, "{agree}: {seen}");
        }
    }

    #[test]
    fn a_common_part_is_recognized_by_its_bands() {
        let common = |from: usize, count: usize| -> Vec<bool> {
            (0..128).map(|i| (from..from + count).contains(&i)).collect()
        };
        assert_eq!(agreement(&common(40, 7)), None);
        assert_eq!(agreement(&common(40, 8)), Some(Agreement { bands: 8, of: 128 }));
        let every_third: Vec<bool> = (0..128).map(|i| i < 32 && i % 3 == 0).collect();
        assert!(agreement(&every_third).is_some());
        let every_twelfth: Vec<bool> = (0..128).map(|i| i % 12 == 0).collect();
        assert_eq!(agreement(&every_twelfth), None, "11 of 128 bands all over");
        assert_eq!(agreement(&[]), None);
    }
}
