//! The flags of simple_switch and simple_switch_grpc that have nothing to set here: who brings a command line along is not stopped by
//! those that change nothing, and told what to do instead of the others.

use std::ffi::OsString;

use clap::error::Result as ClapResult;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::failure::Failure;

/// What becomes of a flag.
#[derive(Clone, Copy)]
enum Here {
    /// It is so anyway.
    Always,
    /// It changes nothing, which is said.
    Nothing,
    /// It is refused: what to do instead.
    Instead(&'static str),
}

/// Name, whether a value follows, and what becomes of it.
const FLAGS: [(&str, bool, Here); 24] = [
    ("log-console", false, Here::Always),
    ("log-flush", false, Here::Always),
    ("enable-swap", false, Here::Always),
    ("log-level", true, Here::Nothing),
    ("log-file-max-size", true, Here::Nothing),
    ("log-file-max-files", true, Here::Nothing),
    ("nanolog", true, Here::Nothing),
    ("notifications-addr", true, Here::Nothing),
    ("dump-packet-data", true, Here::Nothing),
    ("thrift-port", true, Here::Nothing),
    ("max-port-count", true, Here::Nothing),
    ("max-mc-groups", true, Here::Nothing),
    ("max-l1-entries", true, Here::Nothing),
    ("max-l2-entries", true, Here::Nothing),
    ("disable-swap", false, Here::Nothing),
    (
        "log-file",
        true,
        Here::Instead("the log is on standard error: write 2> FILE"),
    ),
    (
        "pcap",
        false,
        Here::Instead("capture at the other end of the port's link, with tcpdump"),
    ),
    (
        "packet-in",
        true,
        Here::Instead("packets come by -i, or from files with --use-files"),
    ),
    (
        "dp-grpc-server-addr",
        true,
        Here::Instead("packets come by -i, or from files with --use-files"),
    ),
    (
        "debugger",
        false,
        Here::Instead("`linewarden switch stf` runs packet tests against a program"),
    ),
    (
        "debugger-addr",
        true,
        Here::Instead("`linewarden switch stf` runs packet tests against a program"),
    ),
    (
        "restore-state",
        true,
        Here::Instead("entries are a controller's: it writes them anew"),
    ),
    (
        "load-modules",
        true,
        Here::Instead("there are no externs but those of v1model"),
    ),
    (
        "json-version",
        false,
        Here::Instead("every version of the format that p4c has written is read"),
    ),
];

/// Which of them were given.
#[derive(Debug)]
pub struct SimpleSwitchArgs(Vec<&'static str>);

impl Args for SimpleSwitchArgs {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (name, has_value, _)| {
            let arg = Arg::new(*name)
                .long(*name)
                .hide(true)
                .help("One of simple_switch's")
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
        let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(Self(
            FLAGS.iter().map(|(name, ..)| *name).filter(is_given).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> ClapResult<()> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SimpleSwitchArgs {
    /// Says which change nothing.
    ///
    /// # Errors
    /// One that asks for what there is not.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, _, here) in FLAGS.iter().filter(|(name, ..)| self.0.contains(name)) {
            match here {
                Here::Always => {}
                Here::Nothing => tracing::warn!("--{name} changes nothing here"),
                Here::Instead(instead) => {
                    return Err(Failure::input(format_args!(
                        "--{name} is not to be had here: {instead}"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// A command line without the `--` that simple_switch wants before some of its flags.
pub fn without_separator(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let is_run = words.windows(2).any(|pair| pair == ["switch", "run"]);
    if let Some(at) = words.iter().position(|word| word == "--").filter(|_| is_run) {
        words.remove(at);
    }
    words
}
