//! Second stage of a start: attaches the data plane, and then drops the privileges that only the start needs.

use linewarden_cli::failure::Failure;
use linewarden_config::gateway::ResolvedGateway;
use linewarden_dataplane::{DataPlane, DataPlaneError};
use linewarden_gateway::TicketSockets;
use linewarden_gateway::data_plane::{self, DataPlaneOptions};

use super::inputs::StartInputs;

/// A data plane that is attached to its interfaces, sockets or switch, and sends no reply yet.
pub struct AttachedGateway {
    pub inputs: StartInputs,
    pub data_plane: Box<dyn DataPlane>,
    /// The sockets of the ticket relay, if it is enabled.
    pub ticket_sockets: Option<TicketSockets>,
}

impl AttachedGateway {
    /// Attaches the data plane.
    ///
    /// # Errors
    /// A port is in use, a privilege is missing, or an error of the kernel or the switch.
    pub fn attach(inputs: StartInputs) -> Result<Self, Failure> {
        let (resolved, retained) = (&inputs.resolved, &inputs.retained);
        // The sockets are bound before the data plane is attached, because a port in use prevents the start.
        let ticket_sockets = bind_ticket_sockets(resolved)?;
        let data_plane = match resolved.data_plane {
            // The P4 data plane has its own threads and needs no privilege.
            DataPlaneOptions::P4(_) => retained.run_confined(|| start_data_plane(resolved))??,
            DataPlaneOptions::Xdp { .. } | DataPlaneOptions::Host { .. } => start_data_plane(resolved)?,
        };
        retained.enforce()?;
        Ok(Self {
            inputs,
            data_plane,
            ticket_sockets,
        })
    }
}

fn start_data_plane(resolved: &ResolvedGateway) -> Result<Box<dyn DataPlane>, DataPlaneError> {
    data_plane::start(
        &resolved.config,
        &resolved.data_plane,
        &resolved.interfaces,
        &resolved.forward_to,
    )
}

/// Binds the sockets of the ticket relay, if it is enabled.
fn bind_ticket_sockets(resolved: &ResolvedGateway) -> Result<Option<TicketSockets>, Failure> {
    let bind = |port| TicketSockets::bind(&resolved.config.local, port);
    resolved
        .ticket_port
        .map(bind)
        .transpose()
        .map_err(Failure::failed)
}
