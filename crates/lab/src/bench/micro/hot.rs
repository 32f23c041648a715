//! One device whose session is live.

use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::microbench::{Microbench, Program};
use linewarden_protocol::ids::{Mode, RowIndex};

use super::{LOADS, Least, best};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, Scale, keys, wait};
use crate::fleet::device_id;

/// One device: both messages, both modes, floors and their work.
///
/// # Errors
/// Those of the programs; a floor that does other work than the verifier.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    same_work()?;
    let mut least = Least::default();
    for _ in 0..LOADS {
        pool_mode(scale, &mut least)?;
        key_mode(scale, &mut least)?;
    }
    let ns = |name| least.above("harness", name);
    let floors = [
        ns("request") / ns("request floor"),
        ns("response") / ns("response floor"),
    ];
    rows.extend([
        Row::fact("xdp.harness_ns", least.of("harness"), "ns"),
        Row::lower("xdp.request_ns.hot", ns("request"), "ns", Some(90.0)),
        Row::lower("xdp.response_ns.hot", ns("response"), "ns", Some(200.0)),
        Row::lower("xdp.response_ns.first", ns("first response"), "ns", None),
        Row::fact("xdp.request_floor_ns", ns("request floor"), "ns"),
        Row::fact("xdp.response_floor_ns", ns("response floor"), "ns"),
        Row::lower("xdp.request_over_floor", floors[0], "ratio", Some(1.3)),
        Row::lower("xdp.response_over_floor", floors[1], "ratio", Some(1.3)),
        Row::lower("xdp.request_ns.hot.key_mode", ns("key request"), "ns", None),
        Row::lower("xdp.response_ns.hot.key_mode", ns("key response"), "ns", None),
    ]);
    Ok(())
}

fn pool_mode(scale: &Scale, least: &mut Least) -> Result<(), BenchError> {
    let (repeat, runs) = (scale.repeat, scale.runs.div_ceil(LOADS));
    let mut bench = device(Mode::Pool, false)?;
    let request = keys::request_frame(0);
    bench.set_cases([request.as_slice()]);
    for (program, name) in [
        (Program::Harness, "harness"),
        (Program::Gateway, "request"),
        (Program::FloorRequest, "request floor"),
    ] {
        least.note(name, best(&mut bench, program, repeat, runs)?);
    }
    let response = keys::response_frame(0, Mode::Pool, RowIndex(0), false);
    bench.set_cases([response.as_slice()]);
    for (program, name) in [
        (Program::Gateway, "response"),
        (Program::FloorResponse, "response floor"),
    ] {
        least.note(name, best(&mut bench, program, repeat, runs)?);
    }
    bench.reset_every_run(device_id(0), true);
    least.note(
        "first response",
        best(&mut bench, Program::Gateway, repeat, runs)?,
    );
    Ok(())
}

fn key_mode(scale: &Scale, least: &mut Least) -> Result<(), BenchError> {
    let mut bench = device(Mode::Key, false)?;
    for (frame, name) in [
        (keys::request_frame(0), "key request"),
        (
            keys::response_frame(0, Mode::Key, RowIndex(0), false),
            "key response",
        ),
    ] {
        bench.set_cases([frame.as_slice()]);
        let runs = scale.runs.div_ceil(LOADS);
        least.note(name, best(&mut bench, Program::Gateway, scale.repeat, runs)?);
    }
    Ok(())
}

/// The device, ready to be asked again and again.
fn device(mode: Mode, count_work: bool) -> Result<Microbench, BenchError> {
    let mut bench = Microbench::load(&keys::config(16, 8), GATEWAY.mac.0, 4, count_work)?;
    let rows = keys::rows(0, mode, RowIndex(0), 8);
    bench
        .store()
        .install(device_id(0), mode, RowIndex(0), &rows, None)
        .map_err(DataPlaneError::from)?;
    wait::keep_fresh(bench.store());
    bench.reset_every_run(device_id(0), false);
    Ok(bench)
}

/// The floors hash as many words and look up as many elements as the verifier does.
fn same_work() -> Result<(), BenchError> {
    let mut bench = device(Mode::Pool, true)?;
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
