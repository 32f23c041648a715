//! Chart of the thesis' Table 1: one bar per scheme, the thesis' values above this machine's values.

use linewarden_chart::{Axis, Chart, ChartError, LegendPosition, RGBColor, Series, TextPosition, number};

use super::end_to_end::THESIS_MS;
use crate::bench::Report;
use crate::bench::figures::COLORS;

/// Schemes measured here: name and row.
const MEASURED_ROWS: [(&str, &str); 8] = [
    ("RSA-2048", "rsa2048"),
    ("RSA-3072", "rsa3072"),
    ("ECDSA P-256, known signer", "p256"),
    ("Ed25519, known signer", "ed25519"),
    ("RA-2048, no mask ready", "ra32.new_masks"),
    ("RA-2048, half of the masks ready", "ra32.half_masks"),
    ("RA-2048, masks ready", "ra32.masks_ready"),
    ("RA-3072, masks ready", "ra32_rsa3072.masks_ready"),
];

struct Bar {
    name: String,
    us: f64,
    color: RGBColor,
}

/// Draws the chart if the report has at least one of the rows.
pub(super) fn draw(report: &Report) -> Result<Option<String>, ChartError> {
    let thesis = THESIS_MS.map(|(name, ms)| Bar {
        name: format!("thesis (2016): {name}"),
        us: ms * 1e3,
        color: COLORS[3],
    });
    let measured = MEASURED_ROWS.into_iter().filter_map(|(name, row)| {
        Some(Bar {
            name: format!("this machine, one core: {name}"),
            us: report.value(&format!("end_to_end.{row}_us"))?,
            color: COLORS[0],
        })
    });
    let bars: Vec<Bar> = thesis.into_iter().chain(measured).collect();
    if bars.len() == THESIS_MS.len() {
        return Ok(None);
    }
    const ROW_HEIGHT: u32 = 26;
    let height = 120 + ROW_HEIGHT * bars.len() as u32;
    let us = bars.iter().map(|bar| bar.us);
    let (min_us, max_us) = (us.clone().fold(f64::MAX, f64::min), us.fold(0.0, f64::max));
    let min_us = min_us / 2.0;
    let chart = Chart {
        title: "Time to sign and verify a message (HAA thesis, Table 1)",
        // Space for the value next to the longest bar.
        x: Axis::log(min_us..max_us * 2.5, "us per message (log)"),
        y: Axis::named(bars.iter().map(|bar| bar.name.clone())).reversed(),
        legend: LegendPosition::UpperRight,
    };
    let series = bars.iter().enumerate().flat_map(|(row, bar)| {
        let (top, middle) = (row as f64, row as f64 + 0.5);
        let value = ((bar.us * 1.04, middle), number(bar.us.round()));
        [
            Series::boxes("", bar.color, [[(min_us, top + 0.12), (bar.us, top + 0.88)]]),
            Series::texts(TextPosition::Right, [value]),
        ]
    });
    let remark = "RA: 32 components. ECDSA P-256 and Ed25519: signatures of 64 bytes, 128 bits of security; \
                  RA-2048: signatures of 288 bytes, 112 bits of security.";
    linewarden_chart::svg((900, height), |area| {
        let (upper, lower) = area.split_vertically(height - 30);
        chart.draw(&upper, series)?;
        linewarden_chart::draw_remarks(&lower, &[remark])
    })
    .map(Some)
}
