//! What comes out of a P4 cipher by what goes in, past what it can do: Figure 10 of the paper, over packet sockets, one core.
//!
//! A switching chip queues packets that recirculate beside those that come in, and drops of both what finds no room: past
//! saturation more and more work is spent on packets that never leave. Here a packet is finished before the next is
//! taken, and what is too much is dropped before anything was spent on it.

use std::time::Duration;

use super::Size;
use super::ciphers::{self, Share, Variant};
use super::link::{self, Through};
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};
use crate::pace::{Paced, best_of};

/// Those of the paper: Forró and ChaCha a quarter round a pipeline, and ChaCha's rounds in parallel.
pub fn variants() -> impl Iterator<Item = Variant> {
    Variant::all().filter(|variant| match variant.share {
        Share::QuarterRound => true,
        Share::Round => variant.cipher == "chacha",
        Share::OnePass => false,
    })
}

/// Input and output rates.
///
/// # Errors
/// Those of the lab and of the programs; an output that nothing was put in for.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let lab = link::lab()?;
    let mut through = Through::new(&lab)?;
    for variant in variants() {
        let name = variant.name();
        progress(&format!("output by input, {name}"), None);
        let switch = variant.switch(programs)?;
        let mut most = 0.0_f64;
        through.switch(&switch, |through| {
            for rate in size.rates {
                let best = best_at_rate(through, *rate, size)?;
                most = most.max(best.received_per_s());
                let row = |figure: &str| format!("p4.rate.{name}.{}k.{figure}", rate / 1000);
                rows.push(Row::fact(row("in"), best.sent_per_s(), "packets/s"));
                rows.push(Row::fact(row("out"), best.received_per_s(), "packets/s"));
            }
            Ok(())
        })?;
        rows.push(Row::higher(
            format!("p4.rate.{name}.most"),
            most,
            "packets/s",
            None,
        ));
    }
    Ok(())
}

fn best_at_rate(through: &mut Through<'_>, rate: u64, size: &Size) -> Result<Paced, BenchError> {
    let frame = ciphers::frame();
    let length = Duration::from_millis(size.paced_ms);
    let best = best_of(size.paced_runs, || through.send_meanwhile(&frame, rate, length))?;
    if best.received == 0 {
        return Err(BenchError::Contradiction("nothing came out".to_owned()));
    }
    Ok(best)
}
