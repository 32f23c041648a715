//! The output rate of P4 ciphers by input rate, up to overload: Figure 10 of the P4DRA paper, over packet sockets, on one core.
//!
//! A switching chip queues recirculated packets with new packets and drops either kind when the queue is full. Under overload
//! it spends more and more work on packets that are never sent. This switch finishes a packet before it takes the next packet,
//! and drops surplus packets before any work is spent on them.

use std::time::Duration;

use super::Size;
use super::ciphers::{self, PassWork, Variant};
use super::link::{self, SwitchHarness};
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};
use crate::pace::{PacedRun, best_of};

/// The variants of the paper: Forró and ChaCha with a quarter round per pipeline, and ChaCha with a round per pipeline.
pub fn variants() -> impl Iterator<Item = Variant> {
    Variant::all().filter(|variant| match variant.pass_work {
        PassWork::QuarterRound => true,
        PassWork::Round => variant.cipher == "chacha",
        PassWork::OnePass => false,
    })
}

/// Measures the rows `p4.rate.*`: input and output rates.
///
/// # Errors
/// An error of the lab or of a program, or a run without output.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let lab = link::lab()?;
    let mut harness = SwitchHarness::new(&lab)?;
    for variant in variants() {
        let name = variant.name();
        progress(&format!("output rate by input rate: {name}"), None);
        let switch = variant.switch(programs)?;
        let mut max_rate = 0.0_f64;
        harness.with_switch(&switch, |harness| {
            for rate in size.rates {
                let best = best_at_rate(harness, *rate, size)?;
                max_rate = max_rate.max(best.received_per_s());
                let row = |figure: &str| format!("p4.rate.{name}.{}k.{figure}", rate / 1000);
                rows.push(Row::fact(row("in"), best.sent_per_s(), "packets/s"));
                rows.push(Row::fact(row("out"), best.received_per_s(), "packets/s"));
            }
            Ok(())
        })?;
        rows.push(Row::higher(
            format!("p4.rate.{name}.max"),
            max_rate,
            "packets/s",
            None,
        ));
    }
    Ok(())
}

fn best_at_rate(harness: &mut SwitchHarness<'_>, rate: u64, size: &Size) -> Result<PacedRun, BenchError> {
    let frame = ciphers::frame();
    let length = Duration::from_millis(size.paced_ms);
    let best = best_of(size.paced_runs, || {
        harness.send_without_drain(&frame, rate, length)
    })?;
    if best.received == 0 {
        return Err(BenchError::InvalidMeasurement(
            "the switch sent no packet".to_owned(),
        ));
    }
    Ok(best)
}
