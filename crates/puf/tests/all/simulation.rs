//! Simulated failure rates agree with computed ones.

use std::sync::atomic::{AtomicU64, Ordering};

use linewarden_puf::code::{FailureReport, Profile, simulate_failure};

/// The probability that a correct program fails one of these tests.
const SIGNIFICANCE: f64 = 1e-6;

fn simulate(profile: Profile, rate: f64, decodes: u64, seed: u64) -> FailureReport {
    simulate_failure(profile, rate, decodes, seed, 2, &|_| true).unwrap()
}

#[test]
fn failures_at_high_error_rates_are_as_frequent_as_computed() {
    let small = Profile::new(7, 10, 3, 2).unwrap();
    for (profile, rate) in [(Profile::POOL, 0.17), (Profile::KEY, 0.22), (small, 0.12)] {
        let report = simulate(profile, rate, 20_000, 5);
        assert!(report.failures() > 50, "nothing to compare: {report:?}");
        assert!(report.agrees(SIGNIFICANCE), "seed 5: {report:?}");
        // The comparison is sensitive: an error rate that is one percentage point higher is detected.
        let shifted = FailureReport {
            computed: profile.failure(rate + 0.01).rebuild,
            ..report
        };
        assert!(!shifted.agrees(SIGNIFICANCE), "{shifted:?}");
    }
}

#[test]
fn no_failures_at_the_design_error_rates_of_the_profiles() {
    for (profile, rate) in [(Profile::POOL, 0.05), (Profile::POOL, 0.10), (Profile::KEY, 0.10)] {
        let report = simulate(profile, rate, 40_000, 6);
        assert_eq!(report.failures(), 0, "seed 6: {report:?}");
        assert!(report.upper_99 < 1.2e-4);
    }
}

#[test]
fn results_do_not_depend_on_threads_and_runs_can_be_stopped() {
    let run = |threads| simulate_failure(Profile::POOL, 0.18, 10_000, 7, threads, &|_| true).unwrap();
    assert_eq!(run(1), run(3));

    let calls = AtomicU64::new(0);
    let should_continue = |done| {
        calls.fetch_add(1, Ordering::Relaxed);
        done < 8192
    };
    let report = simulate_failure(Profile::POOL, 0.1, 1_000_000, 7, 1, &should_continue).unwrap();
    assert_eq!((report.decodes, calls.load(Ordering::Relaxed)), (8192, 2));
}
