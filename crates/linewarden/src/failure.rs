//! How a command ends when it does not end well.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use linewarden_agent::AgentError;
use linewarden_client::ClientError;
use linewarden_dataplane::DataPlaneError;
use linewarden_gateway::plane::ReleaseError;
use linewarden_gateway::{DeskError, GatewayError};
use linewarden_registry::RegistryError;

use crate::config_file::Problem;
use crate::output::{printable, tell};

/// For `--help`.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0  done
  1  failed
  2  wrong use; a configuration or input file with a mistake; something that was named and is not there
  3  a privilege is missing; a controller knows no such user, or does not let this one
  4  refused for safety: a key file that others can read, a PUF that gives less than 128 bits or fails its health test, a TPM's
     key for a boot that no reference value accepts
  5  no session in the time given (agent --timeout)"
    };
}
pub(crate) use exit_codes;

/// What went wrong, as an exit code and words.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    /// Further ones.
    more: Vec<String>,
}

impl Failure {
    /// It was tried and did not work.
    pub fn failed(message: impl Display) -> Self {
        Self::new(1, message)
    }

    /// What was asked for, or a file, has a mistake.
    pub fn input(message: impl Display) -> Self {
        Self::new(2, message)
    }

    /// A privilege is missing.
    pub fn privilege(message: impl Display) -> Self {
        Self::new(3, message)
    }

    /// Refused for safety.
    pub fn unsafe_(message: impl Display) -> Self {
        Self::new(4, message)
    }

    /// No session was opened in time.
    pub fn not_authenticated(message: impl Display) -> Self {
        Self::new(5, message)
    }

    /// Whether it was refused for safety.
    pub fn is_unsafe(&self) -> bool {
        self.code == 4
    }

    /// Several mistakes at once; the first of them that is no warning gives the exit code.
    pub fn all(problems: &[Problem]) -> Self {
        let mut errors = problems.iter().filter(|problem| problem.exit_code != 0);
        let Some(first) = errors.next() else {
            return Self::failed("nothing is wrong");
        };
        Self {
            more: errors.map(ToString::to_string).collect(),
            ..Self::new(first.exit_code, first)
        }
    }

    /// What is wrong, one by one.
    pub fn messages(&self) -> Vec<String> {
        [&self.message].into_iter().chain(&self.more).cloned().collect()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The same, with more to say.
    pub fn and(mut self, more: impl Display) -> Self {
        self.message.push_str(&format!("; {more}"));
        self
    }

    /// The same, with further messages.
    pub fn with(mut self, more: Vec<String>) -> Self {
        self.more.extend(more);
        self
    }

    fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            more: Vec::new(),
        }
    }

    /// Says it on standard error and gives the exit code.
    pub fn tell(&self, json: bool) -> ExitCode {
        if json {
            let mut object = serde_json::json!({ "error": self.message, "exit_code": self.code });
            if let (Some(object), false) = (object.as_object_mut(), self.more.is_empty()) {
                object.insert("errors".to_owned(), self.messages().into());
            }
            tell(object);
        } else {
            let style = anstyle::AnsiColor::Red.on_default() | anstyle::Effects::BOLD;
            for message in self.messages() {
                tell(format_args!("{style}error:{style:#} {}", printable(&message)));
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

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        if let RegistryError::ImportLines { path, mistakes } = &error
            && mistakes.len() > 1
        {
            let nothing = format!("{}: nothing was imported", path.display());
            let mut told: Vec<String> = mistakes.iter().map(|mistake| mistake.of(path)).collect();
            told.push(nothing);
            return Self {
                message: told.remove(0),
                more: told,
                code: 2,
            };
        }
        let code = match &error {
            RegistryError::KeyFileUnsafe { .. } | RegistryError::SamePuf { .. } => 4,
            RegistryError::Chunk { source, .. } if matches!(**source, RegistryError::SamePuf { .. }) => 4,
            RegistryError::KeyMalformed { .. }
            | RegistryError::KeyVariableUnset { .. }
            | RegistryError::KeyFileUnreadable { .. }
            | RegistryError::NoRegistry { .. }
            | RegistryError::NotARegistry { .. }
            | RegistryError::ImportLines { .. }
            | RegistryError::UnknownDevice { .. }
            | RegistryError::NotAProver { .. }
            | RegistryError::UnknownGroup { .. }
            | RegistryError::InvalidGroup { .. }
            | RegistryError::InvalidRecord { .. } => 2,
            _ => 1,
        };
        Self::new(code, error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused {
                status: 401 | 403, ..
            }
            | ClientError::NotTaken { .. } => 3,
            refused if refused.code() == Some("same_puf") => 4,
            ClientError::Refused {
                status: 400 | 404 | 413 | 415 | 422,
                ..
            }
            | ClientError::Address { .. }
            | ClientError::Tls(_)
            | ClientError::Header(_) => 2,
            _ => 1,
        };
        Self::new(code, error)
    }
}

impl From<DataPlaneError> for Failure {
    fn from(error: DataPlaneError) -> Self {
        match error {
            DataPlaneError::Privilege { .. } => Self::privilege(error),
            DataPlaneError::Config(_) => Self::input(error),
            other => Self::failed(other),
        }
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Interface(error) => Self::input(error),
            ReleaseError::DataPlane(error) => error.into(),
        }
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        Self::failed(error)
    }
}

impl From<DeskError> for Failure {
    fn from(error: DeskError) -> Self {
        Self::failed(error)
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self::failed(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::failed(error)
    }
}
