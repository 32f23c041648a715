//! The cost of the classic profiles, the protocols of the IoT and UAV papers, by response size.

use linewarden_dataplane::classic::ClassicProfile;
use linewarden_dataplane::classic::bench::{ClassicBench, ClassicProgram};
use linewarden_protocol::classic::{self as classic_protocol, ResponseBits};

use super::{LOADS, Minimums};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, Scale, keys};

/// Measures the classic profiles at three response sizes: one REQ and one RESP.
///
/// # Errors
/// A program could not be loaded or run.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut minimums = Minimums::default();
    let sizes = [ResponseBits::B64, ResponseBits::B128, ResponseBits::B256];
    for (profile, name) in [(ClassicProfile::Iot, "iot"), (ClassicProfile::Uav, "uav")] {
        for bits in sizes {
            let row = format!("xdp.classic_{name}_ns.{}", bits.bytes() * 8);
            let ns = exchange(scale, profile, bits)?;
            minimums.record(&row, ns);
            rows.push(Row::lower(row, ns, "ns", None));
        }
    }
    let growth = minimums.get("xdp.classic_iot_ns.256") / minimums.get("xdp.classic_iot_ns.64");
    rows.push(Row::lower(
        "xdp.classic256_over_classic64",
        growth,
        "ratio",
        Some(1.5),
    ));
    Ok(())
}

fn exchange(scale: &Scale, profile: ClassicProfile, bits: ResponseBits) -> Result<f64, BenchError> {
    let config = keys::config(16, 8);
    let classic = keys::classic(profile, bits.bytes(), 1, 4);
    let frames: Vec<Vec<u8>> = [
        classic_protocol::device::request(1),
        classic_protocol::Message::new(classic_protocol::message_type::RESP, 1),
    ]
    .iter()
    .map(|message| {
        let mut payload = vec![0u8; bits.message_bytes()];
        // The RESP carries hash 0: before each run, the verifier's state is reset to an outstanding hash 0.
        let written = message.write(bits, &mut payload);
        written.map(|()| keys::frame(0, keys::CLASSIC_PORT, &payload))
    })
    .collect::<Option<_>>()
    .ok_or_else(|| BenchError::InvalidMeasurement("a classic message cannot be encoded".into()))?;
    let mut minimums = Minimums::default();
    for _ in 0..LOADS {
        let bench = ClassicBench::load(&config, &classic, GATEWAY.mac.0)?;
        for (frame, name) in frames.iter().zip(["REQ", "RESP"]) {
            bench.set_frame(frame);
            for (name, program) in [
                ("harness", ClassicProgram::Harness),
                (name, ClassicProgram::Profile),
            ] {
                for _ in 0..scale.runs.div_ceil(LOADS) {
                    minimums.record(name, bench.run(program, scale.repeat)?);
                }
            }
        }
    }
    Ok(minimums.get("REQ") + minimums.get("RESP") - 2.0 * minimums.get("harness"))
}
