//! Starting the data plane that a configuration names.

use linewarden_dataplane::config::ConfigError;
use linewarden_dataplane::{DataPlane, DataPlaneError, Gate, host, p4runtime, xdp};

use crate::addresses::{self, InterfaceError};
use crate::config::{Backend, GatewaySection, Resolved};

/// Why an interface is not released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// No such interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A gateway runs on the interface; the system's.
    #[error(transparent)]
    DataPlane(#[from] DataPlaneError),
}

/// Lets go of the interfaces that a gateway of this configuration, which has ended, still holds shut; how many. And of its
/// memory, also if another gateway has its interfaces by now. One that fails keeps none of the others.
///
/// # Errors
/// The first: an interface does not exist, a gateway runs on it; the system's.
pub fn release(section: &GatewaySection) -> Result<usize, ReleaseError> {
    let release = |name: &String| Ok(xdp::release(&section.pin_directory, addresses::index(name)?)?);
    let released: Vec<Result<bool, ReleaseError>> = section.interfaces.iter().map(release).collect();
    let memory = xdp::release_memory(&section.pin_directory, section.id);
    let mut count = 0;
    for released in released {
        count += usize::from(released?);
    }
    memory?;
    Ok(count)
}

/// Starts the data plane: the eBPF program on its interfaces, or the threads on their sockets, in the calling
/// thread's network namespace; or takes hold of the switch.
///
/// # Errors
/// A missing privilege (the message says which, and what works without it), the kernel's refusal, or the switch's.
pub fn start(section: &GatewaySection, resolved: &Resolved) -> Result<Box<dyn DataPlane>, DataPlaneError> {
    match section.dataplane {
        Backend::Xdp => {
            let mut config = resolved.config.clone();
            let needs_whole_packets = config.gate == Gate::Sealed || config.in_packets.is_some();
            config.fragments = !needs_whole_packets && xdp::has_large_frames(&resolved.interfaces);
            let mut plane = match section.pins() {
                Some(directory) => xdp::Xdp::load_kept(&config, directory)?,
                None => xdp::Xdp::load(&config)?,
            };
            for interface in &resolved.forward_to {
                plane.forward_to(*interface)?;
            }
            for interface in &resolved.interfaces {
                match section.pins() {
                    Some(directory) => plane.attach_pinned(*interface, directory)?,
                    None => plane.attach(*interface)?,
                }
            }
            for ifindex in section
                .pins()
                .map_or_else(Vec::new, |directory| xdp::strays(directory, &resolved.interfaces))
            {
                tracing::error!(
                    ifindex,
                    "an earlier gateway's program is still on this interface, which is not in the configuration: name it, or \
                     run `serve --release` with the configuration that named it"
                );
            }
            Ok(Box::new(plane))
        }
        Backend::Host => {
            let mut options = host::HostOptions::default();
            if let Some(threads) = section.threads {
                options.threads = threads;
            }
            Ok(Box::new(host::Host::start(&resolved.config, &options)?))
        }
        Backend::P4 => {
            // `GatewayConfig::check` has refused a configuration without a switch.
            let options = resolved.p4.as_ref().ok_or(ConfigError::Unsupported {
                backend: "p4",
                what: "configuration without [p4]",
            })?;
            Ok(Box::new(p4runtime::P4Runtime::connect(
                &resolved.config,
                options,
            )?))
        }
    }
}
