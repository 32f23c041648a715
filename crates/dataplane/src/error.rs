//! Errors of a data plane.

use std::net::IpAddr;

use linewarden_protocol::ids::DeviceId;

use crate::config::ConfigError;
#[cfg(feature = "p4")]
use crate::p4runtime::error::SwitchError;
use crate::store::StoreError;
use crate::store::provers::ProverError;

/// An operation of a data plane failed.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// The store refused a change.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The provers' memory refused a change.
    #[error(transparent)]
    Prover(#[from] ProverError),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The P4 switch refused a request, or the connection to the switch is lost.
    #[cfg(feature = "p4")]
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The switch port of a device is unknown: the device has sent no message that reveals the port.
    #[error("the switch port of device {device} is unknown: no message arrived from {address}")]
    DeviceLocationUnknown {
        /// The device.
        device: DeviceId,
        /// The address to which the ATTEST_REQUEST was to be sent.
        address: IpAddr,
    },
    /// A capability is missing.
    #[error("the {backend} data plane needs {capability}; {hint}")]
    Privilege {
        /// Name of the backend.
        backend: &'static str,
        /// The capability by its name in capabilities(7).
        capability: &'static str,
        /// How the user can obtain the capability or do without it.
        hint: &'static str,
    },
    /// The kernel or libbpf refused an operation.
    #[error("{operation}: {source}")]
    Kernel {
        /// What was attempted, such as "loading the eBPF program".
        operation: String,
        /// The error of the kernel or of libbpf.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DataPlaneError {
    pub(crate) fn kernel(
        operation: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Kernel {
            operation: operation.into(),
            source: source.into(),
        }
    }
}
