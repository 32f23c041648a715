//! `linewarden-controller check`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_config::command::{CheckArgs, report};
use linewarden_config::{Program, controller};

/// Checks a configuration file, and with `--machine` the prerequisites on this machine.
///
/// # Errors
/// The file cannot be read, belongs to another program, or has mistakes.
pub fn run(args: &CheckArgs, output: Output) -> Result<(), Failure> {
    let text = Program::Controller.read(&args.file)?;
    let (file, mut problems) = controller::parse(&args.file, text.clone());
    if let (Some(file), true, true) = (file, args.machine, problems.is_empty()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        problems = runtime.block_on(controller::check_machine(&file));
    }
    report(&args.file, &text, &problems, output)
}
