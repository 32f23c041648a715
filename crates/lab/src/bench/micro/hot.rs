//! The cost for one device with a live session.

use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::bench::micro::{Microbench, Program};
use linewarden_protocol::ids::{Mode, RowIndex};

use super::{LOADS, Minimums, fastest_run};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, Scale, freshness, keys};
use crate::fleet::device_id;

/// Measures one device: both messages in both modes, and the lower bounds.
///
/// # Errors
/// An error of the programs, or a lower bound that does other work than the verifier.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    check_equal_work()?;
    let mut minimums = Minimums::default();
    for _ in 0..LOADS {
        pool_mode(scale, &mut minimums)?;
        key_mode(scale, &mut minimums)?;
    }
    let ns = |name| minimums.above_harness("harness", name);
    let floors = [
        ns("request") / ns("request floor"),
        ns("response") / ns("response floor"),
    ];
    rows.extend([
        Row::fact("xdp.harness_ns", minimums.get("harness"), "ns"),
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

fn pool_mode(scale: &Scale, minimums: &mut Minimums) -> Result<(), BenchError> {
    let (repeat, runs) = (scale.repeat, scale.runs.div_ceil(LOADS));
    let mut microbench = device(Mode::Pool, false)?;
    let request = keys::request_frame(0);
    microbench.set_cases([request.as_slice()]);
    for (program, name) in [
        (Program::Harness, "harness"),
        (Program::Gateway, "request"),
        (Program::FloorRequest, "request floor"),
    ] {
        minimums.record(name, fastest_run(&mut microbench, program, repeat, runs)?);
    }
    let response = keys::response_frame(0, Mode::Pool, RowIndex(0), false);
    microbench.set_cases([response.as_slice()]);
    for (program, name) in [
        (Program::Gateway, "response"),
        (Program::FloorResponse, "response floor"),
    ] {
        minimums.record(name, fastest_run(&mut microbench, program, repeat, runs)?);
    }
    microbench.reset_every_run(device_id(0), true);
    minimums.record(
        "first response",
        fastest_run(&mut microbench, Program::Gateway, repeat, runs)?,
    );
    Ok(())
}

fn key_mode(scale: &Scale, minimums: &mut Minimums) -> Result<(), BenchError> {
    let mut microbench = device(Mode::Key, false)?;
    for (frame, name) in [
        (keys::request_frame(0), "key request"),
        (
            keys::response_frame(0, Mode::Key, RowIndex(0), false),
            "key response",
        ),
    ] {
        microbench.set_cases([frame.as_slice()]);
        let runs = scale.runs.div_ceil(LOADS);
        minimums.record(
            name,
            fastest_run(&mut microbench, Program::Gateway, scale.repeat, runs)?,
        );
    }
    Ok(())
}

/// A microbenchmark with one installed device.
fn device(mode: Mode, count_work: bool) -> Result<Microbench, BenchError> {
    let mut microbench = Microbench::load(&keys::config(16, 8), GATEWAY.mac.0, 4, count_work)?;
    let rows = keys::rows(0, mode, RowIndex(0), 8);
    microbench
        .store()
        .install(device_id(0), mode, RowIndex(0), &rows, None)
        .map_err(DataPlaneError::from)?;
    freshness::refresh(microbench.store());
    microbench.reset_every_run(device_id(0), false);
    Ok(microbench)
}

/// Checks that the lower bounds hash as many words and look up as many elements as the verifier.
fn check_equal_work() -> Result<(), BenchError> {
    let mut microbench = device(Mode::Pool, true)?;
    let messages = [
        (keys::request_frame(0), Program::FloorRequest),
        (
            keys::response_frame(0, Mode::Pool, RowIndex(0), false),
            Program::FloorResponse,
        ),
    ];
    for (frame, floor) in messages {
        microbench.set_cases([frame.as_slice()]);
        // One run opens the session, so that the session is live, as in the measurement.
        microbench.run(Program::Gateway, 1)?;
        let (verifier, floor_work) = (microbench.work(Program::Gateway)?, microbench.work(floor)?);
        if verifier != floor_work {
            let text = format!(
                "{floor:?} does other work than the verifier: {floor_work:?} instead of {verifier:?}"
            );
            return Err(BenchError::InvalidMeasurement(text));
        }
    }
    Ok(())
}
