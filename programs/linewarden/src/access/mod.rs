//! Access to the API: of a controller, or over a registry that this process opens. Commands use both with the same client.

mod args;
mod lists;
mod store;

pub use self::args::AccessArgs;
pub use self::lists::{check_damaged, for_each_item, read_all};
pub use self::store::enroll_devices;

/// Option for the reason of a change; stored in the registry audit log.
#[derive(clap::Args, Debug)]
pub struct ReasonArgs {
    /// Reason, stored in the registry audit log (text; required with --server)
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}
