//! Unsuitable PUFs, and PUFs that are already enrolled as other devices.

use linewarden_puf::Challenge;
use linewarden_puf::Puf as _;
use linewarden_puf::model::{Simulated, SramParameters, SramPuf};
use rand::{Rng as _, RngExt as _, SeedableRng as _};

use super::*;

const CHIP_BYTES: usize = 16 << 10;

/// Writes five dumps of a memory that begins with `data` in place of power-up state.
fn write_chip_dumps(site: &Site, name: &str, seed: u64, data: &[u8]) {
    write_noisy_dumps(site, name, seed, data, 0.0);
}

/// Writes five dumps of a memory that begins with `data` in place of power-up state. In each dump, each bit of the data flips
/// with this probability, as power-up state does.
fn write_noisy_dumps(site: &Site, name: &str, seed: u64, data: &[u8], flip_probability: f64) {
    let mut noise = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let parameters = SramParameters {
        cells: 8 * CHIP_BYTES,
        ones: 0.5,
        bit_error_rate: 0.05,
    };
    let mut chip = Simulated::new(SramPuf::new(parameters, seed).unwrap(), seed);
    fs::create_dir_all(site.path(name)).unwrap();
    for number in 0..5 {
        let mut bytes = chip.read(Challenge::PowerUp, 8 * CHIP_BYTES).unwrap().to_bytes();
        let noisy = data.iter().map(|byte| {
            (0..8).fold(*byte, |byte, bit| {
                byte ^ u8::from(noise.random_bool(flip_probability)) << bit
            })
        });
        bytes
            .iter_mut()
            .zip(noisy)
            .for_each(|(byte, noisy)| *byte = noisy);
        fs::write(site.path(&format!("{name}/{number}.bin")), bytes).unwrap();
    }
}

#[test]
fn a_chip_with_firmware_in_half_of_its_memory_is_enrolled_from_the_other_half_only() {
    let site = Site::new();
    let firmware =
        fs::read(env!("CARGO_BIN_EXE_linewarden")).unwrap()[100_000..100_000 + CHIP_BYTES / 2].to_vec();
    for (chip, seed) in [("a", 1), ("b", 2)] {
        write_chip_dumps(&site, &format!("dumps/{chip}"), seed, &firmware);
        let enroll = format!("device enroll readouts dumps/{chip} --device {chip}1 --out devices");
        let error = site.on_registry(&enroll).refused(4);
        assert!(
            error.contains("8192 of 16384 bytes are not power-up state"),
            "{error}"
        );
        assert!(
            error.contains("0x0 to 0x1fff") && error.contains("--range"),
            "{error}"
        );
        let error = site.run(&format!("puf report dumps/{chip}")).refused(4);
        assert!(
            error.contains("enrollment refuses") && error.contains("0x0 to 0x1fff"),
            "{error}"
        );
        let error = site
            .on_registry(&format!("{enroll} --range 0x1000..0x4000"))
            .refused(4);
        assert!(error.contains("0x1000 to 0x1fff"), "{error}");
        let text = site.on_registry(&format!("{enroll} --range 0x2000..0x4000")).ok();
        assert!(text.contains("enrolled"), "{text}");
        let config = fs::read_to_string(site.path(&format!("devices/00000000000000{chip}1.toml"))).unwrap();
        assert!(config.contains("start = 8192\n"), "{config}");
        site.run(&format!("puf report dumps/{chip} --json")).refused(4);
    }
    let error = site.run("puf report dumps").refused(4);
    assert!(error.contains("and 2 findings"), "{error}");
    for range in ["0x2000..0x2000", "5", "0..2097152", "0x80..0x2000"] {
        let arguments = format!("device enroll readouts dumps/a --out devices --range {range}");
        assert!(site.on_registry(&arguments).refused(2).contains("START..END"));
    }
    let command = "device enroll readouts dumps/a --out devices --range 0x2000..0x5000";
    assert!(
        site.on_registry(command)
            .refused(2)
            .contains("16384 bytes, but range 0x2000..0x5000")
    );
}

#[test]
fn one_chip_is_one_device() {
    let site = Site::new();
    write_chip_dumps(&site, "chip", 1, &[]);
    write_chip_dumps(&site, "other", 2, &[]);
    // Readouts of the first chip at later times.
    write_chip_dumps(&site, "later", 1, &[]);
    let enroll =
        |arguments: &str| site.on_registry(&format!("device enroll readouts {arguments} --out devices"));
    enroll("chip --device d1").ok();
    enroll("other --device d2").ok();
    for arguments in [
        "chip --device d3",
        "later --device d3",
        "later --range 0..0x2000 --device d3",
        "later --range 0x2000..0x4000 --device d3",
        "later --range 0x1100..0x3d00 --device d3",
    ] {
        let error = enroll(arguments).refused(4);
        assert!(
            error.contains("matches that of device 00000000000000d1"),
            "{error}"
        );
        assert!(!site.path("devices/00000000000000d3.helper").exists());
    }
    enroll("later --device d1 --replace").ok();
    site.on_registry("device revoke d1 --reason lost").ok();
    enroll("later --device d3").ok();

    // The fingerprint is exported and imported with the device.
    site.on_registry("device export fleet.jsonl --export-key export.key")
        .ok();
    site.run("registry create --registry new.registry --key-file new.key")
        .ok();
    let new = "--registry new.registry --key-file new.key";
    site.run(&format!(
        "device import fleet.jsonl --export-key export.key {new}"
    ))
    .ok();
    let arguments = format!("device enroll readouts other --device d4 --out elsewhere {new}");
    let error = site.run(&arguments).refused(4);
    assert!(
        error.contains("matches that of device 00000000000000d2"),
        "{error}"
    );
    let report = site.run("puf report chip --enrollment-readouts 5").ok();
    assert!(
        report.contains("NOT TRIED: enrollment uses 5 readouts and a rebuild one more, but only 5 exist"),
        "{report}"
    );
}

/// A faulty dump tool adds the same noisy data to the dumps of all chips. The dumps of a single chip do not reveal this fault.
#[test]
fn common_data_that_look_like_power_up_state_are_found_at_the_second_chip() {
    let site = Site::new();
    for (case, bytes) in [(0, CHIP_BYTES / 2), (1, CHIP_BYTES * 3 / 4)] {
        let mut data = vec![0; bytes];
        rand_chacha::ChaCha8Rng::seed_from_u64(90 + case).fill_bytes(&mut data);
        let enroll = |device: u64| {
            let name = format!("noisy{device}");
            write_noisy_dumps(&site, &name, device, &data, 0.05);
            site.on_registry(&format!(
                "device enroll readouts {name} --device {device} --out devices"
            ))
        };
        enroll(10 + case).ok();
        let error = enroll(20 + case).refused(4);
        assert!(
            error.contains("the same chip, or chips with common memory content"),
            "{error}"
        );
    }
}

#[test]
fn a_strong_puf_is_one_device_too() {
    let site = Site::new();
    site.write("fair-puf", &BIASED_PUF.replace("0.62", "0.5"));
    fs::set_permissions(site.path("fair-puf"), fs::Permissions::from_mode(0o755)).unwrap();
    let enroll = |device: &str| {
        let options = "--registry fleet.registry --key-file master.key --out devices";
        site.run(&format!(
            "device enroll command --mode pool --rows 2 --device {device} {options} -- ./fair-puf"
        ))
    };
    enroll("d1").ok();
    let error = enroll("d2").refused(4);
    assert!(
        error.contains("matches that of device 00000000000000d1"),
        "{error}"
    );
}
