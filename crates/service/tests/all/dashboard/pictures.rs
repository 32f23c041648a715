//! Takes screenshots of the dashboard with a simulated fleet, for the README. `scripts/dashboard-picture` runs this test.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::Role;
use serde_json::json;

use super::browser::Browser;
use super::evidence::AttestedGateway;
use crate::controller::{NAME, TestController};
use crate::fleet::{DeviceSpec, Fleet, make_group, start_gateway};

/// Duration of the simulated traffic, which fills the time span of the graphs.
const TRAFFIC_DURATION: Duration = Duration::from_secs(310);
const DEVICES: u64 = 180;
/// Name and round interval in seconds of each attestation group.
const GROUPS: [(&str, u32); 3] = [("cameras", 8), ("drones", 10), ("pumps", 12)];

fn specs(gateways: &[(GatewayId, SocketAddr)]) -> Vec<DeviceSpec> {
    let spec = |number: u64| {
        let (group, _) = GROUPS[number as usize % 3];
        let (first_gateway, gateway) = gateways[number as usize / 3 % gateways.len()];
        let kind = group.trim_end_matches('s');
        DeviceSpec {
            device: DeviceId(0x7a3f_0001_c000_0001 + number),
            name: format!("{kind}-{:03}", number / 3 + 1),
            gateway,
            first_gateway,
            group,
            is_changed: number == 76,
        }
    };
    (0..DEVICES).map(spec).collect()
}

/// Sends frames of unknown devices and malformed frames.
fn send_invalid_frames(gateway: SocketAddr, number: u64) {
    let socket = UdpSocket::bind("127.0.9.9:0").unwrap();
    let mut message = [0; 64];
    message[..8].copy_from_slice(&[0x4c, 0x57, 1, 1, 1, 0, 0, 64]);
    message[8..16].copy_from_slice(&(0xbad0_0000 + number % 7).to_be_bytes());
    message[16..24].copy_from_slice(&number.to_be_bytes());
    socket.send_to(&message, gateway).unwrap();
    if number.is_multiple_of(3) {
        socket.send_to(&message[..40], gateway).unwrap();
    }
}

#[test]
#[ignore = "takes five minutes and writes docs/figures: scripts/dashboard-picture"]
fn pictures_for_the_readme() {
    let directory = PathBuf::from(
        std::env::var_os("LINEWARDEN_PICTURES").expect("LINEWARDEN_PICTURES names a directory"),
    );
    let seconds = std::env::var("LINEWARDEN_PICTURES_S").ok();
    let duration = seconds.map_or(TRAFFIC_DURATION, |seconds| {
        Duration::from_secs(seconds.parse().unwrap())
    });
    let mut depot = AttestedGateway::load(GatewayId(4)).unwrap();
    let policy = depot.policy();
    let controller =
        TestController::new_with_change(|controller| controller.with_trust_policy(GatewayId(4), policy));
    let browser = Browser::start(&controller.runtime).unwrap();
    let ada = controller.caller("ada", Role::Admin);
    for (name, every_s) in GROUPS {
        make_group(&controller, name, every_s);
    }
    let names = [
        (1, "harbour-north"),
        (2, "harbour-south"),
        (3, "airfield"),
        (4, "depot"),
    ];
    for (id, name) in names {
        let body = json!({"id": id, "name": name, "reason": "opening of the site"});
        ada.post("/api/v1/gateways", &body).ok();
    }
    let gateways: Vec<_> = (1..=3)
        .map(|id| (GatewayId(id), start_gateway(&controller, GatewayId(id))))
        .collect();
    let _depot = depot.start(&controller);
    let addresses: Vec<_> = gateways
        .iter()
        .map(|(id, (_, address))| (*id, *address))
        .collect();
    let specs = specs(&addresses);
    let fleet = Fleet::start(&controller, &specs, Duration::from_millis(60));
    browser.set_window((1280, 900), "light");
    browser.navigate(&format!(
        "https://{NAME}:{}/#/overview",
        controller.address.port()
    ));
    browser.wait("the log-in", "document.activeElement.dataset.testid === 'token'");
    browser.type_in("lw_token_of_ada");
    browser.enter();
    browser.wait("the user name", "document.querySelector('[data-testid=user]')");
    generate_traffic(&ada, &fleet, &specs, &addresses, duration);
    for scheme in ["light", "dark"] {
        take_picture(
            &browser,
            (1280, 1860),
            scheme,
            &directory.join(format!("dashboard-{scheme}.png")),
        );
    }
}

fn generate_traffic(
    ada: &crate::controller::ApiClient<'_>,
    fleet: &Fleet,
    specs: &[DeviceSpec],
    gateways: &[(GatewayId, SocketAddr)],
    duration: Duration,
) {
    let started = Instant::now();
    // Time in seconds of `TRAFFIC_DURATION`, index of the device, action, reason.
    let mut operator_actions = [
        (60, 12, "revoke", "lost at sea"),
        (150, 97, "quarantine", "firmware under review"),
        (230, 155, "revoke", "stolen from its mast"),
    ]
    .into_iter()
    .peekable();
    let mut second = 0;
    while started.elapsed() < duration {
        let share = started.elapsed().as_secs_f64() / duration.as_secs_f64();
        // A typical morning load.
        let load = 1.0 + 0.55 * (share * 9.0).sin() + 0.25 * (share * 31.0).sin();
        fleet.set_pause(Duration::from_secs_f64(0.022 / load.max(0.2)));
        for (_, gateway) in gateways {
            send_invalid_frames(*gateway, second);
        }
        let is_due = |action: &(u64, usize, &str, &str)| share >= action.0 as f64 / 310.0;
        if let Some((_, index, action, reason)) = operator_actions.next_if(is_due) {
            let path = format!("/api/v1/devices/{}/{action}", specs[index].device);
            ada.post(&path, &json!({ "reason": reason })).ok();
        }
        // A device stops sending PROOFs, and the controller quarantines the device.
        fleet.set_muted(specs[40].device, share > 0.45);
        second += 1;
        // The sleep only sets the pace; the loop does not wait for a condition.
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn take_picture(browser: &Browser, size: (u32, u32), scheme: &str, path: &std::path::Path) {
    browser.set_window(size, scheme);
    browser.evaluate("window.scrollTo(0, 0); document.activeElement.blur(); return null");
    browser.wait(
        "a live stream",
        "document.querySelector('[data-testid=stream-state]').dataset.state === 'live'",
    );
    browser.wait_for_frames();
    let data = browser.picture(&json!({"format": "png", "optimizeForSpeed": false}));
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    std::fs::write(path, bytes).unwrap();
}
