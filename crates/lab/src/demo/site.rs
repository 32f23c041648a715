//! The gateway of the demonstration: a data plane on the lab's link, fed from the registry by the real node.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use linewarden_controller::{Controller, Policy};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlane, Gate, Geometry, LineStatus};
use linewarden_gateway::{Gateway, Settings};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::wire::LAP_PORT;
use linewarden_switch::hosted::Hosted;

use super::attest::PERIOD_S;
use super::cast::Groups;
use super::home::Home;
use super::{Audience, Backend, DemoError, Options, Sabotage, switch};
use crate::address::{self, GATEWAY};
use crate::attackers::LineState;
use crate::topology::Lab;

/// The gateway's number.
pub(super) const GATEWAY_ID: GatewayId = GatewayId(1);
/// Longer than any demonstration: no device has to renew its session.
const LEASE_S: u32 = 3_600;
/// How long the gateway may take to load the fleet.
const LOAD_LIMIT: Duration = Duration::from_secs(120);
/// How long a revocation may take to arrive.
const REVOCATION_LIMIT: Duration = Duration::from_secs(10);

/// What a data plane is started with.
pub(super) fn config(
    options: &Options,
    backend: Backend,
    local: Vec<IpAddr>,
    records: u32,
) -> Result<Config, DemoError> {
    let wants_gate = backend.has_gate() && options.sabotage != Some(Sabotage::GateLeftOff);
    Ok(Config {
        gateway_id: GATEWAY_ID,
        lease_s: LEASE_S,
        lap_port: LAP_PORT,
        device_prefixes: match local.iter().all(IpAddr::is_loopback) {
            true => address::loopback_prefixes(),
            false => address::link_prefixes(),
        },
        follows_interfaces: false,
        other_addresses: address::other_addresses(),
        fragments: false,
        local,
        gate: if wants_gate { Gate::Open } else { Gate::Off },
        nak_per_s: 1_000,
        alarm_per_s: 100,
        miss_per_s: 100_000,
        low_rows: 0,
        low_credit: 2,
        geometry: Geometry {
            slots: records,
            ring: options.rows - 1,
            hash_seed: [getrandom::u64()?, getrandom::u64()?],
        },
        provers: Groups::of(options).attested,
        classic: None,
        p4dra: None,
        in_packets: None,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    })
}

/// A data plane on the lab's link, and the switch below it, if it stands on one.
pub(super) type Attached = (Box<dyn DataPlane>, Option<Hosted>);

/// Starts the data plane on the gateway's end of the link.
pub(super) fn plane(lab: &Lab, backend: Backend, config: &Config) -> Result<Attached, DemoError> {
    let index = lab.gateway_devices_end.index;
    lab.gateway.run(|| -> Result<Attached, DemoError> {
        match backend {
            Backend::Xdp => {
                let mut plane = Xdp::load(config)?;
                plane.attach(index)?;
                Ok((Box::new(plane), None))
            }
            Backend::Host => Ok((Box::new(Host::start(config, &HostOptions::default())?), None)),
            Backend::P4 => {
                let (plane, switch) = switch::start(lab, config)?;
                Ok((Box::new(plane), Some(switch)))
            }
        }
    })?
}

/// The lab's addresses of the gateway.
pub(super) fn lab_addresses() -> Vec<IpAddr> {
    vec![GATEWAY.v4.into(), GATEWAY.v6.into()]
}

/// Starts the node over a data plane. The calling thread stands where the interfaces are whose packets it hands on.
pub(super) fn gateway(plane: Box<dyn DataPlane>, config: &Config, home: &Home) -> Result<Gateway, DemoError> {
    let settings = Settings {
        attest_period_s: PERIOD_S,
        ..Settings::for_plane(config)
    };
    let policy = Policy {
        lease_rows: config.geometry.ring.saturating_add(1),
        mark_block: settings.mark_block,
    };
    let controller = Controller::new(home.registry.clone(), policy);
    Ok(Gateway::start(plane, controller, GATEWAY_ID, settings)?)
}

/// A gateway at work that has the whole fleet.
pub(super) struct Site {
    pub(super) gateway: Gateway,
    /// Below the gateway's data plane; it ends after it.
    switch: Option<Hosted>,
}

impl Site {
    /// Waits until the gateway has loaded `wanted` devices.
    pub(super) fn load(
        gateway: Gateway,
        switch: Option<Hosted>,
        wanted: u64,
        audience: &mut Audience<'_>,
    ) -> Result<Self, DemoError> {
        let started = Instant::now();
        while !gateway.wait_until(Duration::from_millis(100), |status| status.loaded) {
            audience.check()?;
            audience.progress(gateway.status().devices, wanted);
            if started.elapsed() > LOAD_LIMIT {
                break;
            }
        }
        let status = gateway.status();
        audience.progress(status.devices, wanted);
        if !status.loaded {
            return Err(DemoError::NotLoaded {
                loaded: status.devices,
                wanted,
                limit_s: LOAD_LIMIT.as_secs(),
            });
        }
        Ok(Self { gateway, switch })
    }

    /// Ends the gateway, which says where it stood, and the switch.
    pub(super) fn stop(self) -> Result<(), DemoError> {
        self.gateway.stop()?;
        self.switch.map_or(Ok(()), |switch| Ok(switch.stop()?))
    }

    /// A device's line, as attackers' judges want it. A gateway that is gone has no line.
    pub(super) fn line(&self, device: DeviceId) -> Option<LineState> {
        let status = self.gateway.with_plane(move |plane| plane.status(device));
        status.ok().flatten().map(|status| LineState {
            commit: status.commit,
            has_session: status.has_session,
            lease_until_s: status.lease_until_s,
        })
    }

    /// All these lines at one moment, as far as packets under way allow.
    pub(super) fn lines(&self, devices: Vec<DeviceId>) -> Result<Vec<Option<LineStatus>>, DemoError> {
        Ok(self
            .gateway
            .with_plane(move |plane| devices.iter().map(|device| plane.status(*device)).collect())?)
    }

    /// Waits until the gateway has learnt of so many revocations; how long that took.
    pub(super) fn await_revocations(&self, count: u64) -> Result<Duration, DemoError> {
        let started = Instant::now();
        if self
            .gateway
            .wait_until(REVOCATION_LIMIT, |status| status.revoked >= count)
        {
            Ok(started.elapsed())
        } else {
            Err(DemoError::NotRevoked(REVOCATION_LIMIT.as_secs()))
        }
    }
}
