//! Exit codes for the errors of an agent.

use linewarden_agent::AgentError;

use crate::failure::Failure;

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self::failed(error)
    }
}
