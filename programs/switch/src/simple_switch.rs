//! Options of simple_switch and simple_switch_grpc that this program does not implement.
//!
//! This program accepts the options that are not necessary here, so that existing command lines work. The program refuses
//! all other options with an error that names an alternative.

use std::ffi::OsString;

use clap::error::Result as ClapResult;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use linewarden_cli::failure::Failure;

/// How this program treats an option.
#[derive(Clone, Copy)]
enum FlagSupport {
    /// Accepted: this program always behaves as with this option.
    Implied,
    /// Accepted with a warning that the option has no effect.
    Ignored,
    /// Refused with an alternative.
    Unsupported(&'static str),
}

/// The name of each option, whether the option has a value, and how this program treats the option.
const FLAGS: [(&str, bool, FlagSupport); 24] = [
    ("log-console", false, FlagSupport::Implied),
    ("log-flush", false, FlagSupport::Implied),
    ("enable-swap", false, FlagSupport::Implied),
    ("log-level", true, FlagSupport::Ignored),
    ("log-file-max-size", true, FlagSupport::Ignored),
    ("log-file-max-files", true, FlagSupport::Ignored),
    ("nanolog", true, FlagSupport::Ignored),
    ("notifications-addr", true, FlagSupport::Ignored),
    ("dump-packet-data", true, FlagSupport::Ignored),
    ("thrift-port", true, FlagSupport::Ignored),
    ("max-port-count", true, FlagSupport::Ignored),
    ("max-mc-groups", true, FlagSupport::Ignored),
    ("max-l1-entries", true, FlagSupport::Ignored),
    ("max-l2-entries", true, FlagSupport::Ignored),
    ("disable-swap", false, FlagSupport::Ignored),
    (
        "log-file",
        true,
        FlagSupport::Unsupported("the log is on standard error: use 2> FILE"),
    ),
    (
        "pcap",
        false,
        FlagSupport::Unsupported("capture with tcpdump at the other end of the port's link"),
    ),
    (
        "packet-in",
        true,
        FlagSupport::Unsupported("use -i for packets from interfaces, or --use-files"),
    ),
    (
        "dp-grpc-server-addr",
        true,
        FlagSupport::Unsupported("use -i for packets from interfaces, or --use-files"),
    ),
    (
        "debugger",
        false,
        FlagSupport::Unsupported("use `linewarden-lab stf` to run packet tests against a program"),
    ),
    (
        "debugger-addr",
        true,
        FlagSupport::Unsupported("use `linewarden-lab stf` to run packet tests against a program"),
    ),
    (
        "restore-state",
        true,
        FlagSupport::Unsupported("a controller must write the entries again"),
    ),
    (
        "load-modules",
        true,
        FlagSupport::Unsupported("only the externs of v1model are available"),
    ),
    (
        "json-version",
        false,
        FlagSupport::Unsupported("every version of the format of p4c is supported"),
    ),
];

/// Names of the options on the command line.
#[derive(Debug)]
pub struct SimpleSwitchArgs(Vec<&'static str>);

impl Args for SimpleSwitchArgs {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (name, has_value, _)| {
            let arg = Arg::new(*name)
                .long(*name)
                .hide(true)
                .help("Compatibility option of simple_switch")
                .action(if *has_value {
                    ArgAction::Append
                } else {
                    ArgAction::SetTrue
                });
            command.arg(match *name {
                "log-level" => arg.short('L'),
                "pcap" => arg.action(ArgAction::Append).num_args(0..=1).require_equals(true),
                _ => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SimpleSwitchArgs {
    fn from_arg_matches(matches: &ArgMatches) -> ClapResult<Self> {
        let is_on_command_line = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let names = FLAGS.iter().map(|(name, ..)| *name);
        Ok(Self(names.filter(is_on_command_line).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> ClapResult<()> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SimpleSwitchArgs {
    /// Warns about options without effect.
    ///
    /// # Errors
    /// An unsupported option was given.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, _, support) in FLAGS.iter().filter(|(name, ..)| self.0.contains(name)) {
            match support {
                FlagSupport::Implied => {}
                FlagSupport::Ignored => {
                    tracing::warn!(option = *name, "option of simple_switch has no effect")
                }
                FlagSupport::Unsupported(alternative) => {
                    return Err(Failure::input(format_args!(
                        "--{name} is not supported: {alternative}"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Removes the first `--` from a command line of `run`. simple_switch requires `--` before some options.
pub fn without_separator(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_run = arguments.get(1).is_some_and(|command| command == "run");
    if let Some(index) = arguments
        .iter()
        .position(|argument| argument == "--")
        .filter(|_| is_run)
    {
        arguments.remove(index);
    }
    arguments
}
