//! Starts data planes, and removes gates that stopped gateways have left.

use std::path::{Path, PathBuf};

use linewarden_dataplane::p4runtime::{P4Options, P4Runtime};
use linewarden_dataplane::{Config, DataPlane, DataPlaneError, Gate, host, xdp};
use linewarden_protocol::ids::GatewayId;

use crate::addresses::{self, InterfaceError};

/// The kind of a data plane, and the options of this kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataPlaneOptions {
    /// An eBPF program on interfaces.
    Xdp {
        /// Directory in which the program is pinned, if the gate stays after the end of the process.
        pin_directory: Option<PathBuf>,
    },
    /// Threads on UDP sockets.
    Host {
        /// Number of threads per address; by default one per CPU.
        threads: Option<usize>,
    },
    /// A P4 switch.
    P4(Box<P4Options>),
}

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

/// Removes the gates that stopped gateways have left on these interfaces, and returns their number. Also removes the memory
/// of the gateway with this ID, even if another gateway uses the interfaces now. An error at one interface does not prevent
/// the removal from other interfaces.
///
/// # Errors
/// The first error: an interface does not exist, or a gateway runs on it, or a system call failed.
pub fn remove_gates(
    gateway: GatewayId,
    interfaces: &[String],
    pin_directory: &Path,
) -> Result<usize, RemoveGateError> {
    let remove = |name: &String| Ok(xdp::remove_gate(pin_directory, addresses::index(name)?)?);
    let results: Vec<Result<bool, RemoveGateError>> = interfaces.iter().map(remove).collect();
    let memory = xdp::remove_memory(pin_directory, gateway.0);
    let mut count = 0;
    for result in results {
        count += usize::from(result?);
    }
    memory?;
    Ok(count)
}

/// Starts the data plane: the eBPF program on the devices' `interfaces` or the threads on their sockets, in the calling
/// thread's network namespace; or connects to the switch. A sealed gate also forwards to the interfaces in `forward_to`.
///
/// # Errors
/// A missing privilege (the message names the privilege, and the functions that work without it), or an error of the
/// kernel or the switch.
pub fn start(
    config: &Config,
    options: &DataPlaneOptions,
    interfaces: &[u32],
    forward_to: &[u32],
) -> Result<Box<dyn DataPlane>, DataPlaneError> {
    match options {
        DataPlaneOptions::Xdp { pin_directory } => Ok(Box::new(start_xdp(
            config,
            pin_directory.as_deref(),
            interfaces,
            forward_to,
        )?)),
        DataPlaneOptions::Host { threads } => {
            let mut options = host::HostOptions::default();
            if let Some(threads) = *threads {
                options.threads = threads;
            }
            Ok(Box::new(host::Host::start(config, &options)?))
        }
        DataPlaneOptions::P4(options) => Ok(Box::new(P4Runtime::connect(config, options)?)),
    }
}

fn start_xdp(
    config: &Config,
    pin_directory: Option<&Path>,
    interfaces: &[u32],
    forward_to: &[u32],
) -> Result<xdp::Xdp, DataPlaneError> {
    let mut config = config.clone();
    let needs_whole_packets = config.gate == Gate::Sealed || config.inband_evidence;
    config.fragments = !needs_whole_packets && xdp::has_large_frames(interfaces);
    let mut data_plane = match pin_directory {
        Some(directory) => xdp::Xdp::load_pinned(&config, directory)?,
        None => xdp::Xdp::load(&config)?,
    };
    for interface in forward_to {
        data_plane.forward_to(*interface)?;
    }
    for interface in interfaces {
        match pin_directory {
            Some(directory) => data_plane.attach_pinned(*interface, directory)?,
            None => data_plane.attach(*interface)?,
        }
    }
    let orphaned = pin_directory.map(|directory| xdp::orphaned_interfaces(directory, interfaces));
    for ifindex in orphaned.into_iter().flatten() {
        tracing::error!(
            interface = ifindex,
            action = "add the interface to `interfaces`, or run `linewarden-gateway remove-gate --config FILE` with a configuration that names the interface",
            "gate of an ended gateway is still on an interface that the configuration does not name"
        );
    }
    Ok(data_plane)
}
