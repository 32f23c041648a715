//! The programs that have a configuration file.

use std::path::Path;

use toml::de::DeTable;

use crate::problem::Problem;
use crate::text::read_text;

/// A program that has a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `linewarden-gateway`
    Gateway,
    /// `linewarden-agent`
    Agent,
    /// `linewarden-controller`
    Controller,
}

impl Program {
    /// Name of the executable.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "linewarden-gateway",
            Self::Agent => "linewarden-agent",
            Self::Controller => "linewarden-controller",
        }
    }

    /// Returns the program that reads a configuration; `None` if no known table is present. Only the configuration of an agent
    /// has the table `device`, and only the configuration of a controller has `service`.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let (root, _) = DeTable::parse_recoverable(text);
        let has = |name: &str| root.get_ref().iter().any(|(key, _)| key.get_ref() == name);
        match (has("device"), has("service"), has("controller")) {
            (true, ..) => Some(Self::Agent),
            (false, true, _) => Some(Self::Controller),
            (false, false, true) => Some(Self::Gateway),
            (false, false, false) => None,
        }
    }

    /// Refuses the configuration of another program, in which every field would be unknown.
    ///
    /// # Errors
    /// The file is the configuration of another program.
    pub fn check_owner(self, path: &Path, text: &str) -> Result<(), Problem> {
        match Self::of(text).filter(|program| *program != self) {
            None => Ok(()),
            Some(owner) => {
                let problem = format!(
                    "file is the configuration of {}; expected a configuration of {}",
                    owner.name(),
                    self.name()
                );
                Err(Problem::new(path, None, None, problem))
            }
        }
    }

    /// Reads the text of a configuration of this program.
    ///
    /// # Errors
    /// The file cannot be read, or is the configuration of another program.
    pub fn read(self, path: &Path) -> Result<String, Problem> {
        let text = read_text(path)?;
        self.check_owner(path, &text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_another_program_is_refused_with_its_owner() {
        let path = Path::new("f.toml");
        let refusal = Program::Gateway
            .check_owner(path, "[device]\nid = 1\n")
            .unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "f.toml: file is the configuration of linewarden-agent; expected a configuration of linewarden-gateway"
        );
        assert_eq!(refusal.exit_code, 2);
        assert!(Program::Controller.check_owner(path, "[controller]\n").is_err());
        assert!(Program::Agent.check_owner(path, "[service]\n").is_err());
        for text in ["", "[unknown]\n", "[controller]\n", "[gateway]\n"] {
            assert!(Program::Gateway.check_owner(path, text).is_ok(), "{text}");
        }
    }
}
