//! Chart of the thesis' Table 1: one bar per scheme, the thesis' values above this machine's values.

use std::path::{Path, PathBuf};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::end_to_end::THESIS_MS;
use crate::bench::Report;
use crate::bench::figures::{COLORS, error_text, round_to_integer};

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
pub(super) fn draw(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
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
    let root = SVGBackend::new(path, (900, height)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let (upper, lower) = root.split_vertically(height - 30);
    let us = bars.iter().map(|bar| bar.us);
    let (min_us, max_us) = (us.clone().fold(f64::MAX, f64::min), us.fold(0.0, f64::max));
    let min_us = min_us / 2.0;
    let mut chart = ChartBuilder::on(&upper)
        .caption(
            "Time to sign and verify a message (HAA thesis, Table 1)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(300)
        // Space for the value next to the longest bar.
        .build_cartesian_2d((min_us..max_us * 2.5).log_scale(), bars.len() as f64..0.0)
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_label_formatter(&|us| round_to_integer(*us))
        .x_desc("us per message (log)")
        .draw()
        .map_err(error_text)?;
    let label_style = |side| TextStyle::from(("sans-serif", 14)).pos(Pos::new(side, VPos::Center));
    let (right, left) = (label_style(HPos::Right), label_style(HPos::Left));
    for (row, bar) in bars.iter().enumerate() {
        let (top, middle) = (row as f64, row as f64 + 0.5);
        let filled = Rectangle::new([(min_us, top + 0.12), (bar.us, top + 0.88)], bar.color.filled());
        chart.draw_series([filled]).map_err(error_text)?;
        let value = Text::new(round_to_integer(bar.us), (bar.us * 1.04, middle), left.clone());
        chart.draw_series([value]).map_err(error_text)?;
        let (x, y) = chart.backend_coord(&(min_us, middle));
        upper
            .draw(&Text::new(bar.name.clone(), (x - 8, y), right.clone()))
            .map_err(error_text)?;
    }
    let remark = "RA: 32 components. ECDSA P-256 and Ed25519: signatures of 64 bytes, 128 bits of security; \
                  RA-2048: signatures of 288 bytes, 112 bits of security.";
    lower
        .draw(&Text::new(remark, (16, 4), ("sans-serif", 13)))
        .map_err(error_text)?;
    root.present().map_err(error_text)?;
    Ok(Some(path.to_owned()))
}
