//! Test harness: tests that report a missing requirement as ignored, with the reason.
//!
//! A test program of this harness has the line `harness = false` in its section `[[test]]` in Cargo.toml, and this
//! `main.rs`. Then, the attribute `test` of all modules of the program is [`test`] of this crate.
//!
//! ```no_run
//! #[macro_use(test)]
//! extern crate linewarden_harness;
//!
//! fn main() -> std::process::ExitCode {
//!     linewarden_harness::main()
//! }
//! ```
//!
//! A test whose requirement is missing ends with [`skip!`]:
//!
//! ```
//! use linewarden_harness::test;
//!
//! #[test]
//! fn root_may_change_the_owner() {
//!     if !is_root() {
//!         linewarden_harness::skip!("needs root");
//!     }
//! }
//! # fn is_root() -> bool { true }
//! ```
//!
//! A test that runs only on request has the attribute `ignore` with a reason:
//!
//! ```
//! use linewarden_harness::test;
//!
//! #[test]
//! #[ignore = "takes an hour"]
//! fn all_pairs() {}
//! ```
//!
//! Without a reason, the test does not compile:
//!
//! ```compile_fail
//! use linewarden_harness::test;
//!
//! #[test]
//! #[ignore]
//! fn all_pairs() {}
//! ```
//!
//! Differences from the standard harness: the output of tests is not captured, and a list of the ignored tests with
//! the reasons follows the result. A test of the standard library's attribute, also in the expansion of
//! `tokio::test`, would not run; write `#[test] async fn`.
#![forbid(unsafe_code)]
#![allow(
    clippy::test_attr_in_doctest,
    reason = "the examples show the attribute of this crate"
)]

mod one_cpu;

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Arguments as Format;
use std::panic::resume_unwind;
use std::process::{ExitCode, Termination};
use std::sync::{Mutex, PoisonError};
use std::thread;

use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};

#[doc(hidden)]
pub use inventory;
pub use linewarden_harness_macros::test;

pub use self::one_cpu::stay_on_one_cpu;

/// Ends the test as ignored. The arguments are those of `format!` and give the reason, for example `needs root`.
///
/// Ends only the thread of the test: other threads of the test must have ended or must end without this thread.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {
        $crate::skip(format_args!($($reason)+))
    };
}

/// Reports the test as ignored in part, if the test passes. The arguments are those of `format!` and give the reason, for
/// example `IPv6: this machine has no address`.
///
/// Only the thread of the test may call this.
#[macro_export]
macro_rules! skip_part {
    ($($reason:tt)+) => {
        $crate::skip_part(format_args!($($reason)+))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($name:ident, $ignored:expr, $panics:expr) => {
        $crate::inventory::submit! {
            $crate::Test {
                module: module_path!(),
                name: stringify!($name),
                ignored: $ignored,
                panics: $panics,
                run: || $crate::result($name()),
            }
        }
    };
}

/// A registered test.
#[doc(hidden)]
#[derive(Debug)]
pub struct Test {
    pub module: &'static str,
    pub name: &'static str,
    /// The reason of the attribute `ignore`.
    pub ignored: Option<&'static str>,
    /// Part of the message of the attribute `should_panic`.
    pub panics: Option<&'static str>,
    pub run: fn() -> Result<(), String>,
}

inventory::collect!(Test);

/// Payload of the unwinding that ends an ignored test.
struct Skipped(String);

#[doc(hidden)]
pub fn skip(reason: Format<'_>) -> ! {
    // Does not call the panic hook, which would print a message.
    resume_unwind(Box::new(Skipped(reason.to_string())))
}

thread_local! {
    /// Reasons for which the test of this thread has skipped parts.
    static SKIPPED_PARTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[doc(hidden)]
pub fn skip_part(reason: Format<'_>) {
    let reason = reason.to_string();
    SKIPPED_PARTS.with_borrow_mut(|reasons| {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    });
}

#[doc(hidden)]
pub fn result(returned: impl Termination) -> Result<(), String> {
    // Prints the error of a `Result`.
    match returned.report() {
        ExitCode::SUCCESS => Ok(()),
        code => Err(format!("the test returned an error: {code:?}")),
    }
}

/// The ignored tests with the reasons.
static IGNORED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn ignore(name: &str, reason: &str) {
    IGNORED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(name.to_owned(), reason.replace('\n', "; "));
}

impl Test {
    /// The name without the program: `module::name`.
    fn full_name(&self) -> String {
        match self.module.split_once("::") {
            Some((_, module)) => format!("{module}::{}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Runs the test in a thread of the test's name, which the message of a panic contains.
    fn run(&self) -> Result<Completion, Failed> {
        let name = self.full_name();
        let run = self.run;
        let thread = thread::Builder::new().name(name.clone());
        let outcome = thread.spawn(move || run().map(|()| SKIPPED_PARTS.take()))?.join();
        let reason = match (outcome, self.panics) {
            (Ok(result), None) => {
                let skipped_parts = result?;
                if skipped_parts.is_empty() {
                    return Ok(Completion::Completed);
                }
                format!("in part: {}", skipped_parts.join("; "))
            }
            (Ok(_), Some(_)) => return Err("the test did not panic as expected".into()),
            (Err(payload), panics) => match (payload.downcast::<Skipped>(), panics) {
                (Ok(skipped), _) => skipped.0,
                (Err(payload), None) => {
                    return Err(format!("test panicked: {}", message(payload.as_ref())).into());
                }
                (Err(payload), Some(expected)) => {
                    let message = message(payload.as_ref());
                    if message.contains(expected) {
                        return Ok(Completion::Completed);
                    }
                    return Err(
                        format!("the message of the panic does not contain {expected:?}: {message}").into(),
                    );
                }
            },
        };
        ignore(&name, &reason);
        Ok(Completion::ignored_with(reason))
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message,
        _ => "",
    }
}

/// Runs the tests that the program's arguments select. The arguments are those of the standard harness, with at most
/// one filter.
pub fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = std::env::var("RUST_TEST_THREADS")
            .ok()
            .and_then(|text| text.parse().ok());
    }
    let mut trials = Vec::new();
    for test in inventory::iter::<Test>() {
        let trial =
            Trial::ignorable_test(test.full_name(), || test.run()).with_ignored_flag(test.ignored.is_some());
        if let Some(reason) = test.ignored
            && arguments.is_ignored(&trial)
            && !arguments.is_filtered_out(&trial)
        {
            ignore(trial.name(), reason);
        }
        trials.push(trial);
    }
    if trials.is_empty() {
        eprintln!("error: no test is registered; import the attribute `test` of linewarden_harness");
        return ExitCode::FAILURE;
    }
    trials.sort_by(|one, other| one.name().cmp(other.name()));
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ignored = IGNORED.lock().unwrap_or_else(PoisonError::into_inner);
    if !arguments.list && arguments.format != Some(FormatSetting::Json) && !ignored.is_empty() {
        println!("ignored:");
        for (name, reason) in ignored.iter() {
            let separator = if reason.is_empty() { "" } else { ": " };
            println!("    {name}{separator}{reason}");
        }
        println!();
    }
    conclusion.exit_code()
}
