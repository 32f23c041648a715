//! The real SRAM readouts: the report has the known figures, and no rebuild fails.
//!
//! `LINEWARDEN_PUF_DATA` names the directory; the default is `../shared/data/sram-puf-stm32f407`, relative to the root
//! of the workspace.

use crate::support::real_data;
use linewarden_puf::{
    bits::Bits,
    extractor::{CellSelection, ExtractorError, KeyEnrollment, enroll, reproduce, reproduce_puf},
    health::HealthTest,
    readout::{ReadoutPuf, Span, read_directory},
    report::{PufReport, ReportOptions},
};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

#[test]
fn the_report_finds_the_known_figures_and_no_failure() {
    let directory = real_data();
    let report = PufReport::from_directory(&directory, &ReportOptions::default(), &|_| {}).unwrap();
    let device = &report.devices[0];
    let metrics = &device.metrics;
    let assert_near = |value: f64, known: f64, tolerance: f64| {
        assert!((value - known).abs() < tolerance, "{value} instead of {known}")
    };
    // The figures are from 35 readouts of this chip; the data set has 20, so fewer cells have changed.
    assert_near(metrics.uniformity.mean, 0.496, 0.001);
    assert_near(metrics.error_vs_majority.mean, 0.0495, 0.0015);
    assert_near(metrics.error_vs_majority.max, 0.0595, 0.0015);
    assert_near(metrics.error_vs_first.unwrap().mean, 0.0697, 0.0015);
    assert_near(metrics.stable_share, 0.742, 0.03);
    assert!(device.health_findings.is_empty(), "{:?}", device.health_findings);
    assert!(device.bad_ranges.is_empty(), "{:?}", device.bad_ranges);
    assert!(report.refusals().is_empty(), "{:?}", report.refusals());

    assert_eq!(report.substitute_windows, Some(128));
    for trial in &report.rebuilds {
        assert_eq!((trial.failures, trial.refused), (0, 0), "{trial:?}");
        assert!(trial.attempts >= 240, "{trial:?}");
        assert!(trial.failure_rate_below.unwrap() < 0.013, "{trial:?}");
    }
    // The chip's columns are biased to one and to zero alternately, so raw cells have too little entropy for a key.
    let raw = device.entropy.as_ref().unwrap();
    assert!(!raw.is_enough() && raw.limited_by.contains("columns"), "{raw:?}");
    assert!(report.rebuilds[0].residual_bits_min.unwrap() >= 128.0);

    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["devices"][0]["metrics"]["readouts"], 20);
    assert!(
        report
            .rows()
            .iter()
            .any(|row| row.metric.contains("windows of one chip, not chips"))
    );
    let svg = report.svg().unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.len() > 20_000);
}

#[test]
fn the_chip_is_enrolled_and_all_later_readouts_rebuild_the_secret() {
    let directory = real_data();
    let readouts: Vec<Bits> = read_directory(&directory, &Span::default())
        .unwrap()
        .into_iter()
        .map(|d| d.bits)
        .collect();
    let mut rng = ChaCha20Rng::seed_from_u64(8);
    let health = HealthTest::default();
    for enrollment_readouts in [3, 5] {
        let enrolled = enroll(
            &readouts[..enrollment_readouts],
            &KeyEnrollment::default(),
            &mut rng,
        )
        .unwrap();
        println!("{enrollment_readouts} readouts: {:?}", enrolled.entropy);
        for (i, readout) in readouts.iter().enumerate().skip(enrollment_readouts) {
            assert_eq!(
                reproduce(readout, &enrolled.helper, &health).unwrap(),
                enrolled.secret,
                "readout {i}"
            );
        }
        let mut puf = ReadoutPuf::open(&directory, 0).unwrap();
        assert_eq!(
            reproduce_puf(&mut puf, &enrolled.helper, &health).unwrap(),
            enrolled.secret
        );
    }
    let raw = KeyEnrollment {
        selection: CellSelection::First,
        ..KeyEnrollment::default()
    };
    let result = enroll(&readouts[..5], &raw, &mut rng);
    assert!(matches!(result, Err(ExtractorError::TooLittleEntropy { .. })));
}
