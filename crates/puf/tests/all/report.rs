//! Reports over fleets of simulated chips.

use std::{fs, path::Path};

use crate::support::{chip_readouts, overwritten, with_noise};
use linewarden_puf::{
    Challenge, Puf,
    bits::Bits,
    model::{Simulated, SramParameters, SramPuf},
    report::{PufReport, ReportOptions},
};
use rand::{RngExt as _, SeedableRng as _};

/// Writes a subdirectory with `readouts` readouts for each of `devices` simulated chips. Every second readout is hex text.
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
            let bytes = puf.read(Challenge::PowerUp, 65_536).unwrap().to_bytes();
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
    assert_eq!((report.devices.len(), report.substitute_windows), (4, None));
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
    assert!(report.refusals().is_empty(), "{:?}", report.refusals());
    assert!(
        report
            .devices
            .iter()
            .all(|device| device.enrollment_bits.unwrap() >= 128.0)
    );
    // With only four devices, the estimate of the min-entropy per position is below 1 bit even for fair bits.
    let rows = report.rows();
    let across = rows
        .iter()
        .find(|row| row.metric.starts_with("min-entropy per bit by position"));
    assert_eq!(across.unwrap().target, "0.583 for fair bits");
    let rebuilds = rows
        .iter()
        .find(|row| row.metric.starts_with("key mode ("))
        .unwrap();
    assert!(
        rebuilds
            .value
            .contains("0 failures in 16 rebuilds, 8 windows: failure rate below 17.07 %"),
        "{}",
        rebuilds.value
    );
}

#[test]
fn a_report_of_one_readout_omits_figures_that_need_several_readouts() {
    let directory = tempfile::tempdir().unwrap();
    write_fleet(directory.path(), 1, 1);
    let report = PufReport::from_directory(directory.path(), &ReportOptions::default(), &|_| {}).unwrap();
    assert_eq!(report.devices[0].metrics.reliability, None);
    assert_eq!(report.rebuilds[0].attempts, 0);
    assert!(report.flip_probability_cdf.is_empty());
    let rows = report.rows();
    assert!(
        rows.iter()
            .filter(|row| row.value.starts_with("NOT TRIED: enrollment uses 5 readouts"))
            .count()
            == 3,
        "{rows:?}"
    );
    assert!(!rows.iter().any(|row| row.value.contains("0 failures")));
    assert!(
        report.refusals()[0].contains("too few readouts: 1 given"),
        "{:?}",
        report.refusals()
    );
    report.svg().unwrap();
}

#[test]
fn a_dead_chip_is_named_in_the_report() {
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

fn report_of(devices: &[Vec<Bits>]) -> PufReport {
    let directory = tempfile::tempdir().unwrap();
    for (index, readouts) in devices.iter().enumerate() {
        let path = directory.path().join(format!("board-{index}"));
        fs::create_dir(&path).unwrap();
        for (number, readout) in readouts.iter().enumerate() {
            fs::write(path.join(format!("{number}.bin")), readout.to_bytes()).unwrap();
        }
    }
    PufReport::from_directory(directory.path(), &ReportOptions::default(), &|_| {}).unwrap()
}

#[test]
fn the_report_lists_the_refusals_of_enrollment() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let firmware: Vec<u8> = (0..16 << 10).map(|_| rng.random()).collect();
    let mut chips = [
        chip_readouts(32 << 10, 0.05, 1, 5),
        chip_readouts(32 << 10, 0.05, 2, 5),
    ];
    // First the unchanged chips, then the chips with common data, then with common data and separate noise.
    assert!(report_of(&chips).refusals().is_empty());
    chips = chips.map(|chip| overwritten(&chip, 0, &firmware));
    let report = report_of(&chips);
    assert_eq!(report.refusals().len(), 3, "{:?}", report.refusals());
    let range = &report.devices[1].bad_ranges[0];
    assert_eq!((range.start, range.end), (0, 16 << 10));
    let mut seed = 0;
    let noisy = chips.map(|chip| {
        seed += 1;
        with_noise(&chip, 0..16 << 10, 0.05, seed)
    });
    let report = report_of(&noisy);
    let [duplicate] = report.duplicate_devices.as_slice() else {
        panic!("{:?}", report.duplicate_devices);
    };
    assert_eq!((duplicate.from_byte, duplicate.common_bytes), (0, 16 << 10));
    assert_eq!(
        report.refusals(),
        [duplicate.to_string()],
        "random data with noise must look like power-up state"
    );
}

/// Each board is refused because of its size; the report must also name the duplicate.
#[test]
fn small_boards_that_agree_are_reported_as_a_pair() {
    let first = chip_readouts(1024, 0.05, 1, 5);
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(2);
    let changed: Vec<bool> = (0..8192).map(|_| rng.random_bool(0.013)).collect();
    let change =
        |readout: &Bits| Bits::from_bools(readout.iter().zip(&changed).map(|(bit, changed)| bit ^ changed));
    let second = chip_readouts(1024, 0.05, 1, 10);
    let second = second.iter().skip(5).map(change).collect();
    let report = report_of(&[first, second]);
    let refusals = report.refusals();
    assert_eq!(refusals.len(), 3, "{refusals:?}");
    assert!(
        refusals[0].contains("board-0 and board-1 agree in 9"),
        "{refusals:?}"
    );
    assert!(
        report
            .rows()
            .iter()
            .any(|row| row.value.contains("the same chip"))
    );
}
