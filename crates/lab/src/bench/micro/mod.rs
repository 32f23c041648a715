//! The eBPF verifier packet after packet on one CPU.
//!
//! Every figure is what the verifier adds to a harness that lays the message into the packet (`xdp.harness_ns`, which
//! holds the kernel's own loop too). *Hot*: one device over and over, its session live. *Random*: many devices with
//! sparse ids, each once, in random order.

use std::hint::black_box;
use std::time::Instant;

use linewarden_dataplane::ClassicProfile;
use linewarden_dataplane::xdp::microbench::{Microbench, Program};
use linewarden_protocol::classic::{self, ResponseBits};
use linewarden_protocol::ids::{Mode, RowIndex};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::{BenchError, Row, Scale, keys, wait};
use crate::fleet::device_id;

fn best(bench: &mut Microbench, program: Program, repeat: u32, runs: u32) -> Result<f64, BenchError> {
    let mut best = f64::MAX;
    for _ in 0..runs {
        wait::keep_fresh(bench.store());
        best = best.min(bench.run(program, repeat)?);
        bench.discard_events()?;
    }
    Ok(best)
}

/// The device of the hot figures, ready to be asked again and again.
fn hot_device(mode: Mode, count_work: bool) -> Result<Microbench, BenchError> {
    let mut bench = Microbench::load(&keys::config(16, 8), 4, count_work)?;
    let rows = keys::rows(0, mode, RowIndex(0), 8);
    let store = bench.store();
    store
        .install(device_id(0), mode, RowIndex(0), &rows)
        .map_err(linewarden_dataplane::DataPlaneError::from)?;
    wait::keep_fresh(bench.store());
    bench.reset_every_run(device_id(0), false);
    Ok(bench)
}

/// One device: both messages, both modes, floors and their work.
///
/// # Errors
/// Those of the programs; a floor that does other work than the verifier.
pub fn hot(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let (repeat, runs) = (scale.repeat, scale.runs);
    let mut bench = hot_device(Mode::Pool, false)?;
    let request = keys::request_frame(0);
    bench.set_cases([request.as_slice()]);
    let harness = best(&mut bench, Program::Harness, repeat, runs)?;
    let request_ns = best(&mut bench, Program::Gateway, repeat, runs)? - harness;
    let request_floor = best(&mut bench, Program::FloorRequest, repeat, runs)? - harness;
    let response = keys::response_frame(0, Mode::Pool, RowIndex(0), false);
    bench.set_cases([response.as_slice()]);
    let response_ns = best(&mut bench, Program::Gateway, repeat, runs)? - harness;
    let response_floor = best(&mut bench, Program::FloorResponse, repeat, runs)? - harness;
    bench.reset_every_run(device_id(0), true);
    let first_ns = best(&mut bench, Program::Gateway, repeat, runs)? - harness;
    same_work()?;

    rows.push(Row::fact("xdp.harness_ns", harness, "ns"));
    rows.push(Row::lower("xdp.request_ns.hot", request_ns, "ns", Some(90.0)));
    rows.push(Row::lower("xdp.response_ns.hot", response_ns, "ns", Some(200.0)));
    rows.push(Row::lower("xdp.response_ns.first", first_ns, "ns", None));
    rows.push(Row::fact("xdp.request_floor_ns", request_floor, "ns"));
    rows.push(Row::fact("xdp.response_floor_ns", response_floor, "ns"));
    rows.push(Row::lower(
        "xdp.request_over_floor",
        request_ns / request_floor,
        "ratio",
        Some(1.3),
    ));
    rows.push(Row::lower(
        "xdp.response_over_floor",
        response_ns / response_floor,
        "ratio",
        Some(1.3),
    ));

    let mut bench = hot_device(Mode::Key, false)?;
    bench.set_cases([request.as_slice()]);
    let key_request = best(&mut bench, Program::Gateway, repeat, runs)? - harness;
    let response = keys::response_frame(0, Mode::Key, RowIndex(0), false);
    bench.set_cases([response.as_slice()]);
    let key_response = best(&mut bench, Program::Gateway, repeat, runs)? - harness;
    rows.push(Row::lower("xdp.request_ns.hot.key_mode", key_request, "ns", None));
    rows.push(Row::lower(
        "xdp.response_ns.hot.key_mode",
        key_response,
        "ns",
        None,
    ));
    Ok(())
}

/// The floors hash as many words and look up as many elements as the verifier does.
fn same_work() -> Result<(), BenchError> {
    let mut bench = hot_device(Mode::Pool, true)?;
    let messages = [
        (keys::request_frame(0), Program::FloorRequest),
        (
            keys::response_frame(0, Mode::Pool, RowIndex(0), false),
            Program::FloorResponse,
        ),
    ];
    for (frame, floor) in messages {
        bench.set_cases([frame.as_slice()]);
        // Once, so that the session is live as in the measurement.
        bench.run(Program::Gateway, 1)?;
        let (verifier, floor_work) = (bench.work(Program::Gateway)?, bench.work(floor)?);
        if verifier != floor_work {
            let text = format!("{floor:?} does {floor_work:?}, the verifier {verifier:?}");
            return Err(BenchError::Contradiction(text));
        }
    }
    Ok(())
}

/// Many devices in random order: every one of them costs trips to memory.
///
/// # Errors
/// Those of the programs.
pub fn random(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let devices = scale.random_devices;
    let mut order: Vec<u32> = (0..devices).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    let mut request_ns = f64::MAX;
    let mut response_ns = f64::MAX;
    // A RESPONSE is good once, so every run starts from a table of its own: few runs, of many packets each.
    for _ in 0..scale.runs.clamp(1, 3) {
        let mut bench = Microbench::load(&keys::config(devices, 2), devices, false)?;
        for device in 0..devices {
            let given = keys::rows(device, Mode::Pool, RowIndex(0), 3);
            let store = bench.store();
            store
                .install(device_id(device), Mode::Pool, RowIndex(0), &given)
                .map_err(linewarden_dataplane::DataPlaneError::from)?;
        }
        let frames: Vec<Vec<u8>> = order.iter().map(|device| keys::request_frame(*device)).collect();
        bench.set_cases(frames.iter().map(Vec::as_slice));
        let harness = best(&mut bench, Program::Harness, devices, 3)?;
        request_ns = request_ns.min(best(&mut bench, Program::Gateway, devices, 3)? - harness);
        let frames: Vec<Vec<u8>> = order
            .iter()
            .map(|device| keys::response_frame(*device, Mode::Pool, RowIndex(0), false))
            .collect();
        bench.set_cases(frames.iter().map(Vec::as_slice));
        response_ns = response_ns.min(best(&mut bench, Program::Gateway, devices, 1)? - harness);
    }
    let hot = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .map_or(f64::NAN, |row| row.value)
    };
    let (hot_request, hot_response) = (hot("xdp.request_ns.hot"), hot("xdp.response_ns.hot"));
    rows.push(Row::lower(
        "xdp.request_ns.1m_random",
        request_ns,
        "ns",
        Some(3.0 * hot_request),
    ));
    rows.push(Row::lower(
        "xdp.response_ns.1m_random",
        response_ns,
        "ns",
        Some(3.0 * hot_response),
    ));
    rows.push(Row::lower(
        "xdp.request_random_over_hot",
        request_ns / hot_request,
        "ratio",
        Some(3.0),
    ));
    rows.push(Row::lower(
        "xdp.response_random_over_hot",
        response_ns / hot_response,
        "ratio",
        Some(3.0),
    ));
    Ok(())
}

/// The classic profiles at three response sizes: one REQ and one RESP.
///
/// # Errors
/// Those of the programs.
pub fn classic(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    for (profile, name) in [(ClassicProfile::Iot, "iot"), (ClassicProfile::Uav, "uav")] {
        for bits in [ResponseBits::B64, ResponseBits::B128, ResponseBits::B256] {
            let ns = classic_pair(scale, profile, bits)?;
            rows.push(Row::lower(
                format!("xdp.classic_{name}_ns.{}", bits.bytes() * 8),
                ns,
                "ns",
                None,
            ));
        }
    }
    let of = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .map_or(f64::NAN, |row| row.value)
    };
    let growth = of("xdp.classic_iot_ns.256") / of("xdp.classic_iot_ns.64");
    rows.push(Row::lower(
        "xdp.classic256_over_classic64",
        growth,
        "ratio",
        Some(1.5),
    ));
    Ok(())
}

fn classic_pair(scale: &Scale, profile: ClassicProfile, bits: ResponseBits) -> Result<f64, BenchError> {
    let mut config = keys::config(16, 8);
    config.classic = Some(keys::classic(profile, bits.bytes(), 1, 4));
    let mut bench = Microbench::load(&config, 4, false)?;
    bench.reset_classic_every_run();
    let mut total = 0.0;
    for message in [
        classic::device::request(1),
        classic::Message::new(classic::message_type::RESP, 1),
    ] {
        let mut payload = vec![0u8; bits.message_bytes()];
        // The hash of a RESP is what the state is put back to: 0, outstanding.
        message
            .write(bits, &mut payload)
            .ok_or_else(|| BenchError::Contradiction("classic message".into()))?;
        let frame = keys::frame(0, keys::CLASSIC_PORT, &payload);
        bench.set_cases([frame.as_slice()]);
        let harness = best(&mut bench, Program::Harness, scale.repeat, scale.runs)?;
        total += best(&mut bench, Program::Gateway, scale.repeat, scale.runs)? - harness;
    }
    Ok(total)
}

/// What one trip to memory costs here: dependent loads of random cache lines of 128 MiB in 4 KiB pages, as BPF arrays
/// are. It is what `1m_random` cannot be faster than.
#[must_use]
pub fn memory_row() -> Row {
    const LINES: usize = 2 << 20;
    let mut order: Vec<u32> = (0..LINES as u32).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(2));
    // Sixteen words are one line; the first holds the next line's number.
    let mut memory = vec![0u32; LINES * 16];
    advise_small_pages(&memory);
    for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        if let Some(word) = memory.get_mut(*at as usize * 16) {
            *word = *next;
        }
    }
    let mut best = f64::MAX;
    for _ in 0..3 {
        let mut at = 0u32;
        let start = Instant::now();
        for _ in 0..500_000 {
            at = memory.get(at as usize * 16).copied().unwrap_or(0);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / 500_000.0);
        black_box(at);
    }
    Row::fact("machine.memory_trip_ns", best, "ns")
}

fn advise_small_pages(memory: &[u32]) {
    let start = memory.as_ptr().addr().next_multiple_of(4096);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) & !4095;
    // SAFETY: whole pages inside an allocation of ours; the advice changes no contents.
    unsafe {
        libc::madvise(
            start as *mut libc::c_void,
            end.saturating_sub(start),
            libc::MADV_NOHUGEPAGE,
        )
    };
}
