//! Reports over fleets of simulated chips.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::{fs, path::Path};

use linewarden_puf::{
    Challenge, Puf,
    model::{Simulated, SramParameters, SramPuf},
    report::{PufReport, ReportOptions},
};

fn write_fleet(directory: &Path, devices: u64, readouts: usize) {
    for device in 0..devices {
        let parameters = SramParameters {
            cells: 65_536,
            ones: 0.5,
            bit_error_rate: 0.05,
        };
        let mut puf = Simulated::new(SramPuf::new(parameters, device).unwrap(), device);
        let path = directory.join(format!("device-{device}"));
        fs::create_dir(&path).unwrap();
        for readout in 0..readouts {
            let bytes = puf.read(Challenge::Whole, 65_536).unwrap().to_bytes();
            match readout % 2 {
                0 => fs::write(path.join(format!("{readout}.bin")), bytes).unwrap(),
                _ => {
                    let lines: Vec<String> = bytes
                        .chunks(32)
                        .map(|l| l.iter().map(|b| format!("{b:02X} ")).collect())
                        .collect();
                    fs::write(path.join(format!("{readout}.txt")), lines.join("\n")).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_fleet_is_compared_device_by_device() {
    let directory = tempfile::tempdir().unwrap();
    write_fleet(directory.path(), 4, 7);
    let report = PufReport::from_directory(directory.path(), &ReportOptions::default(), &|_| {}).unwrap();
    assert_eq!((report.devices.len(), report.windows_stand_in), (4, None));
    let uniqueness = report.uniqueness.unwrap();
    assert!((uniqueness.mean - 0.5).abs() < 0.01, "{uniqueness:?}");
    assert_eq!(report.inter_distances.counts.iter().sum::<u64>(), 6);
    assert_eq!(report.intra_distances.counts.iter().sum::<u64>(), 24);
    for trial in &report.rebuilds {
        assert_eq!((trial.failures, trial.refused), (0, 0), "{trial:?}");
        assert!(trial.windows > 0);
    }
    assert!(
        report
            .rows()
            .iter()
            .any(|row| row.metric == "device-3: uniformity")
    );
    assert!(report.svg().unwrap().contains("between devices"));
}

#[test]
fn a_single_readout_makes_a_report_without_the_figures_that_need_more() {
    let directory = tempfile::tempdir().unwrap();
    write_fleet(directory.path(), 1, 1);
    let report = PufReport::from_directory(directory.path(), &ReportOptions::default(), &|_| {}).unwrap();
    assert_eq!(report.devices[0].metrics.reliability, None);
    assert_eq!(report.rebuilds[0].attempts, 0);
    assert!(report.flip_probability_cdf.is_empty());
    report.svg().unwrap();
}

#[test]
fn a_dead_chip_shows_in_the_report() {
    let directory = tempfile::tempdir().unwrap();
    for readout in 0..7 {
        fs::write(directory.path().join(format!("{readout}.bin")), [0x55; 8192]).unwrap();
    }
    let report = PufReport::from_directory(directory.path(), &ReportOptions::default(), &|_| {}).unwrap();
    assert!(report.devices[0].health_findings[0].contains("repeats itself"));
    assert_eq!(report.rebuilds[0].windows, 0);
    assert!(
        report.rebuilds[0]
            .first_refusal
            .as_ref()
            .unwrap()
            .contains("repeats itself")
    );
}
