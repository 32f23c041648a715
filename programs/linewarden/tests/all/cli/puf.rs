//! Unsuitable PUFs, and PUFs that are already enrolled as other devices.

use linewarden_agent::source::{FleetSeed, SimulatedPuf};
use linewarden_protocol::ids::DeviceId;
use linewarden_puf::Challenge;
use linewarden_puf::Puf as _;
use linewarden_puf::model::{Simulated, SramParameters, SramPuf};
use rand::{Rng as _, RngExt as _, SeedableRng as _};

use super::*;
use crate::support::program;

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
    let firmware = fs::read(program("linewarden")).unwrap()[100_000..100_000 + CHIP_BYTES / 2].to_vec();
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
        let error = site
            .run(&format!("linewarden puf report dumps/{chip}"))
            .refused(4);
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
        site.run(&format!("linewarden puf report dumps/{chip} --output json"))
            .refused(4);
    }
    let error = site.run("linewarden puf report dumps").refused(4);
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
    site.run("linewarden registry create --registry new.registry --key-file new.key")
        .ok();
    let new = "--registry new.registry --key-file new.key";
    site.run(&format!(
        "linewarden device import fleet.jsonl --export-key export.key {new}"
    ))
    .ok();
    let arguments = format!("linewarden device enroll readouts other --device d4 --out elsewhere {new}");
    let error = site.run(&arguments).refused(4);
    assert!(
        error.contains("matches that of device 00000000000000d2"),
        "{error}"
    );
    let report = site
        .run("linewarden puf report chip --enrollment-readouts 5")
        .ok();
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
            "linewarden device enroll command --mode pool --rows 2 --device {device} {options} -- ./fair-puf"
        ))
    };
    enroll("d1").ok();
    let error = enroll("d2").refused(4);
    assert!(
        error.contains("matches that of device 00000000000000d1"),
        "{error}"
    );
}

/// A program that simulates a biased PUF: 62 % of the response bits are ones, and 2 % of the bits flip in each readout.
const BIASED_PUF: &str = r#"#!/bin/sh
read challenge bits
awk -v seed="$((0x${challenge%????????????}))" -v noise="$(date +%N | sed 's/^0*//')" -v digits="$(((bits + 7) / 8 * 2))" '
BEGIN {
    srand(seed)
    for (i = 0; i < 4 * digits; i++) bit[i] = rand() < 0.62
    srand(noise)
    for (i = 0; i < 4 * digits; i++) if (rand() < 0.02) bit[i] = 1 - bit[i]
    for (i = 0; i < digits; i++) printf "%x", 8 * bit[4 * i] + 4 * bit[4 * i + 1] + 2 * bit[4 * i + 2] + bit[4 * i + 3]
}'
"#;

#[test]
fn a_puf_with_too_little_entropy_is_refused() {
    let site = Site::new();
    site.write("biased-puf", BIASED_PUF);
    fs::set_permissions(site.path("biased-puf"), fs::Permissions::from_mode(0o755)).unwrap();
    let registry = "--registry fleet.registry --key-file master.key";
    let error = site
        .run(&format!(
            "linewarden device enroll command --mode pool --rows 2 --out devices {registry} -- ./biased-puf"
        ))
        .refused(4);
    assert!(error.contains("bits of min-entropy, 143 are required"), "{error}");
    assert_eq!(site.on_registry("device list --output json").ok(), "");
    assert_eq!(fs::read_dir(site.path("devices")).unwrap().count(), 0);
}

/// If a simulated chip is too biased, the command simulates another chip from the same seed and enrolls that chip.
#[test]
fn a_refused_simulated_chip_is_replaced_by_another_chip() {
    let seed = [7; 32];
    let ones = |device: u64, chip: u32| {
        let text = format!("model = \"arbiter\"\nchip = {chip}\nseed_file = \"unused\"");
        let puf: SimulatedPuf = toml::from_str(&text).unwrap();
        let mut chip = puf
            .build(&FleetSeed::from_bytes(seed), DeviceId(device), 1)
            .unwrap();
        chip.read(Challenge::Pool([3; 8]), 4096).unwrap().count_ones()
    };
    // Chip 0 of this device has far too many ones; chip 1 has about as many ones as zeros.
    let device = (1..).find(|device| ones(*device, 0) > 2600 && ones(*device, 1).abs_diff(2048) < 60);
    let device = DeviceId(device.unwrap());
    let site = Site::new();
    site.write("fleet.seed", &"07".repeat(32));
    fs::set_permissions(site.path("fleet.seed"), fs::Permissions::from_mode(0o600)).unwrap();
    let arguments = format!(
        "device enroll simulated --device {device} --model arbiter --rows 2 --out devices --seed-file fleet.seed"
    );
    let output = site.on_registry(&arguments).ok();
    assert!(output.contains("1 chip"), "{output}");
    let config = fs::read_to_string(site.path(&format!("devices/{device}.toml"))).unwrap();
    assert!(config.contains("chip = 1\n"), "{config}");
    // The second enrollment reads chip 1, because the device's configuration file names this chip.
    let output = site.on_registry(&format!("{arguments} --replace")).ok();
    assert!(!output.contains("refused"), "{output}");
}

/// A PUF with too few cells, and a PUF with stuck cells.
#[test]
fn an_unsuitable_puf_is_rejected() {
    let site = Site::new();
    let registry = "--registry fleet.registry --key-file master.key";
    let enroll = |arguments: &str| {
        site.run(&format!(
            "linewarden device enroll {arguments} --out devices {registry}"
        ))
        .refused(4)
    };
    for cells in ["64", "1000"] {
        let error = enroll(&format!("simulated --model sram --cells {cells}"));
        // Two readouts of so few cells can also be identical.
        let causes = ["cells", "bits", "identical"];
        assert!(causes.iter().any(|cause| error.contains(cause)), "{error}");
    }
    site.write(
        "stuck",
        "#!/bin/sh\nread challenge bits\nhead -c $(((bits + 7) / 8)) /dev/zero | od -An -v -tx1\n",
    );
    fs::set_permissions(site.path("stuck"), fs::Permissions::from_mode(0o755)).unwrap();
    let arguments =
        format!("linewarden device enroll command --mode key --out devices {registry} -- ./stuck");
    let error = site.run(&arguments).refused(4);
    assert!(error.contains("bits are 0"), "{error}");
    assert_eq!(site.on_registry("device list --output json").ok(), "");
}

#[test]
fn readouts_of_a_weak_puf_are_enrolled_in_key_mode() {
    let site = Site::new();
    fs::create_dir(site.path("dumps")).unwrap();
    write_dumps(&site.path("dumps"), 5);
    site.on_registry("device enroll readouts dumps --device d7 --out devices")
        .ok();
    let device = json(&site.on_registry("device show d7 --output json").ok());
    assert_eq!(device["mode"], "key");
    let report = site
        .run("linewarden puf report dumps --svg report.svg --enrollment-readouts 3")
        .ok();
    assert!(
        report.contains("uniformity") || report.contains("ones"),
        "{report}"
    );
    assert!(
        fs::read_to_string(site.path("report.svg"))
            .unwrap()
            .contains("<svg")
    );
    assert!(
        json(
            &site
                .run("linewarden puf report dumps --enrollment-readouts 3 --output json")
                .ok()
        )["devices"]
            .is_array()
    );
    let error = site.run("linewarden puf report nothing").refused(2);
    assert!(error.contains("nothing"), "{error}");
}

/// Noisy dumps of one simulated memory of 4 KiB.
fn write_dumps(directory: &Path, count: u64) {
    let model: SimulatedPuf = toml::from_str("model = \"sram\"\nseed_file = \"unused\"").unwrap();
    for index in 0..count {
        let mut chip = model
            .build(&FleetSeed::from_bytes([4; 32]), DeviceId(1), index)
            .unwrap();
        let bits = chip.read(Challenge::PowerUp, 32_768).unwrap();
        fs::write(directory.join(format!("readout-{index}.bin")), bits.to_bytes()).unwrap();
    }
}
