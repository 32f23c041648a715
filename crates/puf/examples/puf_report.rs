//! Prints the quality report of a directory of readouts and writes its picture.
//!
//! `cargo run --release -p linewarden-puf --example puf_report DIRECTORY [PICTURE.svg]`

use std::{error::Error, fs, path::Path};

use linewarden_puf::report::{PufReport, ReportOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("give the directory of the readouts")?;
    let report = PufReport::from_directory(Path::new(&directory), &ReportOptions::default(), &|step| {
        eprintln!("{step}")
    })?;
    for row in report.rows() {
        println!("{:<64} {:<60} {}", row.metric, row.value, row.wanted);
    }
    if let Some(picture) = arguments.next() {
        fs::write(picture, report.svg()?)?;
    }
    Ok(())
}
