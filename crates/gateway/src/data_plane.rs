//! Starts the data plane that a configuration selects.

use linewarden_dataplane::config::ConfigError;
use linewarden_dataplane::{DataPlane, DataPlaneError, Gate, host, p4runtime, xdp};

use crate::addresses::{self, InterfaceError};
use crate::config::{Backend, GatewaySection, ResolvedConfig};

/// The reason why a gate is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveGateError {
    /// The interface does not exist.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A gateway runs on the interface, or a system call failed.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
}

/// Removes the programs that a stopped gateway of this configuration has left on its interfaces, and returns their
/// number. Also removes the gateway's memory, even if another gateway uses the interfaces now. An error at one
/// interface does not prevent the removal from other interfaces.
///
/// # Errors
/// The first error: an interface does not exist, or a gateway runs on it, or a system call failed.
pub fn remove_gates(section: &GatewaySection) -> Result<usize, RemoveGateError> {
    let remove = |name: &String| Ok(xdp::remove_gate(&section.pin_directory, addresses::index(name)?)?);
    let results: Vec<Result<bool, RemoveGateError>> = section.interfaces.iter().map(remove).collect();
    let memory = xdp::remove_memory(&section.pin_directory, section.id);
    let mut count = 0;
    for result in results {
        count += usize::from(result?);
    }
    memory?;
    Ok(count)
}

/// Starts the data plane: the eBPF program on its interfaces or the threads on their sockets, in the calling thread's
/// network namespace; or connects to the switch.
///
/// # Errors
/// A missing privilege (the message names the privilege, and the functions that work without it), or an error of the
/// kernel or the switch.
pub fn start(
    section: &GatewaySection,
    resolved: &ResolvedConfig,
) -> Result<Box<dyn DataPlane>, DataPlaneError> {
    match section.dataplane {
        Backend::Xdp => {
            let mut config = resolved.config.clone();
            let needs_whole_packets = config.gate == Gate::Sealed || config.inband_evidence.is_some();
            config.fragments = !needs_whole_packets && xdp::has_large_frames(&resolved.interfaces);
            let mut data_plane = match section.pin_directory_if_kept() {
                Some(directory) => xdp::Xdp::load_pinned(&config, directory)?,
                None => xdp::Xdp::load(&config)?,
            };
            for interface in &resolved.forward_to {
                data_plane.forward_to(*interface)?;
            }
            for interface in &resolved.interfaces {
                match section.pin_directory_if_kept() {
                    Some(directory) => data_plane.attach_pinned(*interface, directory)?,
                    None => data_plane.attach(*interface)?,
                }
            }
            for ifindex in section
                .pin_directory_if_kept()
                .map_or_else(Vec::new, |directory| {
                    xdp::orphaned_interfaces(directory, &resolved.interfaces)
                })
            {
                tracing::error!(
                    interface = ifindex,
                    action = "add the interface to `interfaces`, or run `linewarden-gateway remove-gate --config FILE` with a configuration that names the interface",
                    "gate of an ended gateway is still on an interface that the configuration does not name"
                );
            }
            Ok(Box::new(data_plane))
        }
        Backend::Host => {
            let mut options = host::HostOptions::default();
            if let Some(threads) = section.threads {
                options.threads = threads;
            }
            Ok(Box::new(host::Host::start(&resolved.config, &options)?))
        }
        Backend::P4 => {
            // `GatewayConfig::check` has rejected a configuration without a switch.
            let options = resolved.p4.as_ref().ok_or(ConfigError::Unsupported {
                backend: "p4",
                feature: "configuration without [p4]",
            })?;
            Ok(Box::new(p4runtime::P4Runtime::connect(
                &resolved.config,
                options,
            )?))
        }
    }
}
