//! The socket of a controller for gateways on its machine.

use linewarden_cli::failure::Failure;
use linewarden_service::SocketOptions;
use nix::unistd::Group;

use super::fields::ControllerConfig;
use crate::file::ConfigFile;
use crate::problem::Problem;

/// Reads `socket` and `socket_group`, if there is a socket.
///
/// # Errors
/// The group does not exist on this machine, or the groups of this machine cannot be read.
pub fn read(file: &ConfigFile<ControllerConfig>) -> Result<Option<SocketOptions>, Problem> {
    let section = &file.value.service;
    let Some(path) = section.socket.clone() else {
        return Ok(None);
    };
    let group_id = section.socket_group.as_deref().map(group_id).transpose();
    let group_id = group_id.map_err(|failure| {
        file.problem(&["service", "socket_group"], &failure.to_string())
            .with_code(failure.code())
    })?;
    Ok(Some(SocketOptions { path, group_id }))
}

fn group_id(name: &str) -> Result<u32, Failure> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(Failure::input(format!(
            "group {name:?} does not exist; use an existing group, or create it with `groupadd --system {name}`"
        ))),
        Err(error) => Err(Failure::failed(format!(
            "searching for group {name:?} failed: {error}"
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_id_of_the_system_and_a_missing_group_is_refused() {
        assert_eq!(group_id("root").unwrap(), 0);
        let error = group_id("no-such-group").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("group \"no-such-group\" does not exist"),
            "{error}"
        );
        assert_eq!(error.code(), 2);
    }
}
