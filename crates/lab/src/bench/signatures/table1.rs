//! The picture of the thesis' Table 1: a bar for each scheme, its name beside it, the thesis' own above ours.

use std::path::{Path, PathBuf};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::end_to_end::THESIS_MS;
use crate::bench::Report;
use crate::bench::figures::{COLOURS, text, whole};

/// Ours: name and row.
const OURS: [(&str, &str); 8] = [
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
    colour: RGBColor,
}

/// Draws it, if one of our rows is there.
pub(super) fn draw(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let thesis = THESIS_MS.map(|(name, ms)| Bar {
        name: format!("thesis (2016): {name}"),
        us: ms * 1e3,
        colour: COLOURS[3],
    });
    let ours = OURS.into_iter().filter_map(|(name, row)| {
        Some(Bar {
            name: format!("one core here: {name}"),
            us: report.value(&format!("end_to_end.{row}_us"))?,
            colour: COLOURS[0],
        })
    });
    let bars: Vec<Bar> = thesis.into_iter().chain(ours).collect();
    if bars.len() == THESIS_MS.len() {
        return Ok(None);
    }
    const ROW: u32 = 26;
    let height = 120 + ROW * bars.len() as u32;
    let root = SVGBackend::new(path, (900, height)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    let (upper, lower) = root.split_vertically(height - 30);
    let us = bars.iter().map(|bar| bar.us);
    let (least, most) = (us.clone().fold(f64::MAX, f64::min), us.fold(0.0, f64::max));
    let least = least / 2.0;
    let mut chart = ChartBuilder::on(&upper)
        .caption(
            "Signing and verifying a message, one after the other (HAA thesis, Table 1)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(300)
        // Room for the last value.
        .build_cartesian_2d((least..most * 2.5).log_scale(), bars.len() as f64..0.0)
        .map_err(text)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_label_formatter(&|us| whole(*us))
        .x_desc("us per message (log)")
        .draw()
        .map_err(text)?;
    let beside = |side| TextStyle::from(("sans-serif", 14)).pos(Pos::new(side, VPos::Center));
    let (right, left) = (beside(HPos::Right), beside(HPos::Left));
    for (row, bar) in bars.iter().enumerate() {
        let (top, middle) = (row as f64, row as f64 + 0.5);
        let filled = Rectangle::new([(least, top + 0.12), (bar.us, top + 0.88)], bar.colour.filled());
        chart.draw_series([filled]).map_err(text)?;
        let value = Text::new(whole(bar.us), (bar.us * 1.04, middle), left.clone());
        chart.draw_series([value]).map_err(text)?;
        let (x, y) = chart.backend_coord(&(least, middle));
        upper
            .draw(&Text::new(bar.name.clone(), (x - 8, y), right.clone()))
            .map_err(text)?;
    }
    let remark = "RA: 32 components. ECDSA P-256 and Ed25519 have signatures of 64 bytes and 128 bits of security; \
                  RA-2048's have 288 bytes and 112 bits.";
    lower
        .draw(&Text::new(remark, (16, 4), ("sans-serif", 13)))
        .map_err(text)?;
    root.present().map_err(text)?;
    Ok(Some(path.to_owned()))
}
