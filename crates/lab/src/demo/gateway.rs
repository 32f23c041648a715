//! The gateway of the demonstration: a data plane on the lab's link with the gateway process and the registry behind it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, InProcess, Policy};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlane, Gate, Geometry, LineStatus};
use linewarden_gateway::{Gateway, Settings};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::wire::LAP_PORT;

use super::attest::PERIOD_S;
use super::participants::Groups;
use super::registry_store::RegistryStore;
use super::{
    DataPlaneKind, DemoError, InjectedFault, Options, RunControl,
    switch::{self, DemoSwitch},
};
use crate::address::{self, GATEWAY};
use crate::attackers::LineState;
use crate::topology::Lab;

/// The gateway's id.
pub(super) const GATEWAY_ID: GatewayId = GatewayId(1);
/// Longer than any demonstration: no device has to renew its session.
const SESSION_LIFETIME_S: u32 = 3_600;
/// Timeout for loading the fleet into the gateway.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for a revocation to reach the gateway.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a data plane.
pub(super) fn config(
    options: &Options,
    data_plane: DataPlaneKind,
    local: Vec<IpAddr>,
    slots: u32,
) -> Result<Config, DemoError> {
    let gate_enabled = data_plane.has_gate() && options.fault != Some(InjectedFault::GateDisabled);
    Ok(Config {
        gateway_id: GATEWAY_ID,
        session_lifetime_s: SESSION_LIFETIME_S,
        lap_port: LAP_PORT,
        device_prefixes: match local.iter().all(IpAddr::is_loopback) {
            true => address::loopback_prefixes(),
            false => address::link_prefixes(),
        },
        follows_interfaces: false,
        other_addresses: address::gateway_addresses(),
        fragments: false,
        local,
        gate: if gate_enabled { Gate::Bound } else { Gate::Off },
        nak_per_s: 1_000,
        alarm_per_s: 100,
        miss_per_s: 100_000,
        low_rows: 0,
        low_credit: 2,
        geometry: Geometry {
            slots,
            ring: options.rows - 1,
            hash_seed: [getrandom::u64()?, getrandom::u64()?],
        },
        provers: Groups::of(options).provers,
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    })
}

/// A data plane on the lab's link, and its P4 switch if the data plane is `p4`.
pub(super) type AttachedDataPlane = (Box<dyn DataPlane>, Option<DemoSwitch>);

/// Starts the data plane on the gateway's end of the link.
pub(super) fn start_data_plane(
    lab: &Lab,
    data_plane: DataPlaneKind,
    config: &Config,
) -> Result<AttachedDataPlane, DemoError> {
    let index = lab.gateway_devices_end.index;
    lab.gateway.run(|| -> Result<AttachedDataPlane, DemoError> {
        match data_plane {
            DataPlaneKind::Xdp => {
                let mut engine = Xdp::load(config)?;
                engine.attach(index)?;
                Ok((Box::new(engine), None))
            }
            DataPlaneKind::Host => Ok((Box::new(Host::start(config, &HostOptions::default())?), None)),
            DataPlaneKind::P4 => {
                let (engine, switch) = switch::start(lab, config)?;
                Ok((engine, Some(switch)))
            }
        }
    })?
}

/// The lab's addresses of the gateway.
pub(super) fn lab_addresses() -> Vec<IpAddr> {
    vec![GATEWAY.v4.into(), GATEWAY.v6.into()]
}

/// Starts the gateway process on a data plane. The calling thread must be in the namespace of the interfaces.
pub(super) fn start_gateway(
    data_plane: Box<dyn DataPlane>,
    config: &Config,
    store: &RegistryStore,
) -> Result<Gateway, DemoError> {
    let settings = Settings {
        attest_period_s: PERIOD_S,
        ..Settings::for_data_plane(config)
    };
    let policy = Policy {
        lease_rows: config.geometry.ring.saturating_add(1),
        mark_block: settings.mark_block,
    };
    let controller = Arc::new(InProcess::link(
        Controller::new(store.registry.clone(), policy),
        GATEWAY_ID,
    ));
    Ok(Gateway::start(data_plane, controller, settings)?)
}

/// A running gateway that has loaded the whole fleet.
pub(super) struct DemoGateway {
    pub(super) gateway: Gateway,
    /// The switch of the data plane; stopped after the gateway.
    switch: Option<DemoSwitch>,
}

impl DemoGateway {
    /// Waits until the gateway has loaded `expected` devices; reports progress.
    pub(super) fn load(
        gateway: Gateway,
        switch: Option<DemoSwitch>,
        expected: u64,
        control: &mut RunControl<'_>,
    ) -> Result<Self, DemoError> {
        let started = Instant::now();
        while !gateway.wait_until(Duration::from_millis(100), |status| status.loaded) {
            control.check_stop()?;
            control.report_progress(gateway.status().devices, expected);
            if started.elapsed() > LOAD_TIMEOUT {
                break;
            }
        }
        let status = gateway.status();
        control.report_progress(status.devices, expected);
        if !status.loaded {
            return Err(DemoError::NotLoaded {
                loaded: status.devices,
                enrolled: expected,
                timeout_s: LOAD_TIMEOUT.as_secs(),
            });
        }
        Ok(Self { gateway, switch })
    }

    /// Stops the gateway, which stores its marks, and then the switch.
    pub(super) fn stop(self) -> Result<(), DemoError> {
        self.gateway.stop()?;
        self.switch.map_or(Ok(()), |switch| Ok(switch.stop()?))
    }

    /// A device's line in the form that the attack checks use; `None` if the gateway has stopped.
    pub(super) fn line(&self, device: DeviceId) -> Option<LineState> {
        let status = self
            .gateway
            .with_data_plane(move |data_plane| data_plane.status(device));
        status.ok().flatten().map(|status| LineState {
            commit: status.commit,
            has_session: status.has_session,
            session_until_s: status.session_until_s,
        })
    }

    /// The lines of these devices, read in one operation of the gateway.
    pub(super) fn lines(&self, devices: Vec<DeviceId>) -> Result<Vec<Option<LineStatus>>, DemoError> {
        Ok(self.gateway.with_data_plane(move |data_plane| {
            devices.iter().map(|device| data_plane.status(*device)).collect()
        })?)
    }

    /// Waits until the gateway has applied `count` revocations and returns the elapsed time.
    pub(super) fn await_revocations(&self, count: u64) -> Result<Duration, DemoError> {
        let started = Instant::now();
        if self
            .gateway
            .wait_until(REVOCATION_TIMEOUT, |status| status.revoked >= count)
        {
            Ok(started.elapsed())
        } else {
            Err(DemoError::RevocationTimeout(REVOCATION_TIMEOUT.as_secs()))
        }
    }
}
