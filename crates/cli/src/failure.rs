//! Errors of commands, with their exit codes.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use crate::output::{Output, print_error, printable};

/// Expands to the section "Exit codes" of `--help`.
#[macro_export]
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0  success
  1  operation failed
  2  invalid arguments, configuration or input file; a named object does not exist
  3  missing privilege; unknown API user, or operation not permitted for the user
  4  refused for safety: a key file that other users can read, a PUF with less than 128 bits of entropy or a failed health test,
     enrollment of a TPM key for a boot that no reference value accepts
  5  no session within the given time (linewarden-agent run --timeout)"
    };
}

/// Why a command failed: messages and an exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    further_messages: Vec<String>,
}

impl Failure {
    /// The operation failed (exit code 1).
    pub fn failed(message: impl Display) -> Self {
        Self::new(1, message)
    }

    /// Arguments, configuration or an input file are invalid (exit code 2).
    pub fn input(message: impl Display) -> Self {
        Self::new(2, message)
    }

    /// A privilege is missing (exit code 3).
    pub fn privilege(message: impl Display) -> Self {
        Self::new(3, message)
    }

    /// Refused for safety (exit code 4).
    pub fn unsafe_(message: impl Display) -> Self {
        Self::new(4, message)
    }

    /// No session was opened in time (exit code 5).
    pub fn not_authenticated(message: impl Display) -> Self {
        Self::new(5, message)
    }

    /// Whether the operation was refused for safety.
    pub fn is_unsafe(&self) -> bool {
        self.code == 4
    }

    /// All messages.
    pub fn messages(&self) -> Vec<String> {
        [&self.message]
            .into_iter()
            .chain(&self.further_messages)
            .cloned()
            .collect()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The same failure with a detail appended to its message.
    pub fn with_detail(mut self, detail: impl Display) -> Self {
        self.message.push_str(&format!("; {detail}"));
        self
    }

    /// The same failure with further messages.
    pub fn with_further_messages(mut self, messages: Vec<String>) -> Self {
        self.further_messages.extend(messages);
        self
    }

    /// A failure with this exit code.
    pub fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            further_messages: Vec::new(),
        }
    }

    /// Prints the messages on standard error; returns the exit code.
    pub fn print(&self, output: Output) -> ExitCode {
        if output.is_json() {
            let mut object = serde_json::json!({ "error": self.message, "exit_code": self.code });
            if let (Some(object), false) = (object.as_object_mut(), self.further_messages.is_empty()) {
                object.insert("errors".to_owned(), self.messages().into());
            }
            print_error(object);
        } else {
            let style = anstyle::AnsiColor::Red.on_default() | anstyle::Effects::BOLD;
            for message in self.messages() {
                print_error(format_args!("{style}error:{style:#} {}", printable(&message)));
            }
        }
        ExitCode::from(self.code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.messages().join("; "))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::failed(error)
    }
}
