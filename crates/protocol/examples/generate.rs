//! Writes the files that are generated from the list of verdicts: the C headers of the eBPF programs and the P4
//! header. `cargo run -p linewarden-protocol --example generate`, or `make generate`.

use std::path::Path;
use std::process::ExitCode;
use std::{fmt, fs};

use linewarden_protocol::verdict;

/// Writes one of the headers.
type Render = fn(&mut dyn fmt::Write) -> fmt::Result;

/// Each generated file, relative to the repository's root, and the function that writes it.
const GENERATED: [(&str, Render); 3] = [
    ("crates/dataplane/src/xdp/bpf/lw_verdicts.h", verdict::render_c),
    (
        "crates/dataplane/src/classic/bpf/lw_published_verdicts.h",
        verdict::render_published_c,
    ),
    ("p4/include/lw_verdicts.p4", verdict::render_p4),
];

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, render) in GENERATED {
        if let Err(error) = write(&root.join(path), render) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
        println!("{path}");
    }
    ExitCode::SUCCESS
}

fn write(path: &Path, render: Render) -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    render(&mut text)?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(path, text)?)
}
