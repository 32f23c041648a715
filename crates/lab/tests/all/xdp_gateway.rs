//! The `xdp` data plane on the gateway's interface to the lab's devices, with a bound gate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use linewarden_dataplane::store::{Geometry, Row};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Admission as _, Config, Counters, Devices as _, Gate, Telemetry};
use linewarden_lab::address::{self, GATEWAY};
use linewarden_lab::attackers::LineState;
use linewarden_lab::fleet::SimulatedDevice;
use linewarden_lab::topology::Lab;
use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_protocol::wire::LAP_PORT;

use crate::oracle::{GATEWAY_ID, rows};

pub struct XdpGateway {
    data_plane: Arc<Mutex<Xdp>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl XdpGateway {
    pub fn start(lab: &Lab, devices: &[SimulatedDevice]) -> Self {
        let config = Config {
            gateway_id: GATEWAY_ID,
            session_lifetime_s: 3600,
            lap_port: LAP_PORT,
            local: vec![GATEWAY.v4.into(), GATEWAY.v6.into()],
            device_prefixes: address::link_prefixes(),
            follows_interfaces: false,
            other_addresses: address::gateway_addresses(),
            fragments: false,
            gate: Gate::Bound,
            nak_per_s: 100,
            alarm_per_s: 100,
            miss_per_s: 0,
            low_rows: 0,
            low_credit: 0,
            geometry: Geometry {
                slots: 16_384,
                ring: 4,
                hash_seed: [1, 2],
            },
            provers: 0,
            inband_evidence: false,
            always_pass: Vec::new(),
            dhcp_servers: Vec::new(),
        };
        let index = lab.gateway_devices_end.index;
        let data_plane = lab
            .gateway
            .run(|| {
                let mut data_plane = Xdp::load(&config).unwrap();
                data_plane.attach(index).unwrap();
                data_plane
            })
            .unwrap();
        let data_plane = Arc::new(Mutex::new(data_plane));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stop_flag) = (data_plane.clone(), stop.clone());
        set_fresh_value(&mut shared.lock().unwrap(), 1);
        let thread = std::thread::spawn(move || {
            let mut number = 2u64;
            while !stop_flag.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_secs(4));
                set_fresh_value(&mut shared.lock().unwrap(), number);
                number += 1;
            }
        });
        let gateway = Self {
            data_plane,
            stop,
            thread: Some(thread),
        };
        gateway.install(devices);
        gateway
    }

    pub fn install(&self, devices: &[SimulatedDevice]) {
        let mut data_plane = self.data_plane.lock().unwrap();
        for device in devices {
            let rows: Vec<Row> = rows(device)
                .into_iter()
                .map(|row| Row {
                    challenge: row.challenge,
                    auth_key: row.auth_key,
                })
                .collect();
            let config = &device.member.config;
            data_plane
                .install(config.device, config.mode, RowIndex(0), &rows, None)
                .unwrap();
        }
    }

    pub fn line(&self, device: DeviceId) -> Option<LineState> {
        let status = self.data_plane.lock().unwrap().status(device)?;
        Some(LineState {
            commit: status.commit,
            has_session: status.has_session,
            session_until_s: status.session_until_s,
        })
    }

    pub fn counters(&self) -> Counters {
        Telemetry::counters(&*self.data_plane.lock().unwrap()).unwrap()
    }
}

impl Drop for XdpGateway {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn set_fresh_value(data_plane: &mut Xdp, number: u64) {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let now_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    data_plane.set_fresh(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), now_ns);
}
