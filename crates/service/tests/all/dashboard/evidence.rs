//! A gateway with the kernel data plane and its evidence in the dashboard: valid, changed, repaired and outdated.

use std::sync::{Arc, Mutex};

use linewarden_controller::trust::TrustPolicy;
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlaneError, LiveSettings};
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::statement::{Inventory, Nonce, verify};
use linewarden_evidence::{BootCount, keys::PublicKey};
use linewarden_gateway::{Attester, DataPlaneInfo, EvidenceSource, Gateway, Settings};
use linewarden_harness::skip;
use linewarden_link::RemoteController;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::Role;

use super::browser::Browser;
use super::{access, no_errors};
use crate::controller::{NAME, TestController};
use crate::site::{TIMEOUT, config};

const NS_PER_S: u64 = 1_000_000_000;

/// A gateway that is not started yet. Its data plane is loaded in the kernel and receives no packets.
pub struct AttestedGateway {
    id: GatewayId,
    config: Config,
    data_plane: Xdp,
    attester: Attester,
    key: PublicKey,
}

impl AttestedGateway {
    /// Loads the data plane. Returns an error with the name of the capability that this process lacks.
    pub fn load(id: GatewayId) -> Result<Self, String> {
        let config = Config {
            gateway_id: id,
            ..config()
        };
        let data_plane = match Xdp::load(&config) {
            Ok(data_plane) => data_plane,
            Err(DataPlaneError::Privilege { capability, .. }) => return Err(format!("needs {capability}")),
            Err(error) => panic!("{error}"),
        };
        let signer = Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap();
        Ok(Self {
            id,
            config,
            data_plane,
            key: signer.public_key(),
            attester: Attester::new(id, BootCount(1), Box::new(signer)),
        })
    }

    /// A trust policy with the data plane's current state as the reference value. The policy requires evidence each second.
    pub fn policy(&mut self) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let submitted = self
            .attester
            .sign(nonce, self.data_plane.measure().unwrap())
            .unwrap();
        let evidence = verify(&submitted.statement, &self.key, nonce).unwrap();
        let proven = Inventory::read(&submitted.inventory).unwrap().prove(&evidence);
        TrustPolicy {
            reference: Reference::from_statement("as delivered", &evidence, Some(&proven.unwrap()), |_| {
                false
            }),
            key: self.key,
            every_ns: NS_PER_S,
            response_timeout_ns: 5 * NS_PER_S,
        }
    }

    /// Starts the gateway. Also returns the settings that match the reference value.
    pub fn start(self, controller: &TestController) -> (Gateway, LiveSettings) {
        let settings = Settings::for_data_plane(&self.config);
        let data_plane_info = DataPlaneInfo {
            kind: "xdp".to_owned(),
            slots: self.config.geometry.slots.into(),
        };
        let link = Arc::new(RemoteController::from(controller.link(self.id, &[])));
        let source = EvidenceSource::Gateway(Arc::new(Mutex::new(self.attester)));
        let data_plane = Box::new(self.data_plane);
        let gateway =
            Gateway::start_with_evidence(data_plane, link, settings, data_plane_info, Some(source)).unwrap();
        assert!(
            gateway.wait_until(TIMEOUT, |status| status.loaded),
            "{:?}",
            gateway.status()
        );
        (gateway, self.config.live_settings())
    }
}

/// Changes settings of the data plane directly, so that they differ from the gateway's configuration.
fn reconfigure(gateway: &Gateway, live: &LiveSettings) {
    let live = live.clone();
    gateway
        .with_data_plane(move |data_plane| data_plane.reconfigure(&live, 0))
        .unwrap()
        .unwrap();
}

/// The evidence cell in the only row of the gateway table.
const CELL: &str = "document.querySelector('[data-testid=gateway-row] [data-label=Evidence]')";

fn cell_contains(badge: &str, words: &str) -> String {
    format!("{CELL}.textContent.startsWith('{badge}') && /{words}/.test({CELL}.textContent)")
}

#[test]
fn gateway_evidence_is_displayed_with_age_and_mismatch() {
    let mut attested_gateway = match AttestedGateway::load(GatewayId(5)) {
        Ok(attested_gateway) => attested_gateway,
        Err(reason) => skip!("{reason}"),
    };
    let policy = attested_gateway.policy();
    let controller =
        TestController::new_with_change(|controller| controller.with_trust_policy(GatewayId(5), policy));
    let browser = Browser::require(&controller.runtime);
    let url = |view: &str| format!("https://{NAME}:{}/#/{view}", controller.address.port());
    let token = controller.token("vera", Role::Viewer);
    browser.set_window((1280, 900), "light");
    browser.navigate(&url("gateways"));
    browser.wait(
        "focus in the token's field",
        "document.activeElement.dataset.testid === 'token'",
    );
    browser.type_in(&token);
    browser.enter();

    let (gateway, valid_settings) = attested_gateway.start(&controller);
    let affirming = "affirming, [0-5] s old";
    browser.wait("affirming evidence", &cell_contains("trusted", affirming));
    let cell_text = browser.evaluate(&format!("return {CELL}.textContent"));
    browser.wait(
        "an increasing age",
        &format!("{CELL}.textContent !== {cell_text}"),
    );

    let changed_settings = LiveSettings {
        nak_per_s: valid_settings.nak_per_s + 1,
        ..valid_settings.clone()
    };
    reconfigure(&gateway, &changed_settings);
    browser.wait(
        "contraindicated evidence",
        &cell_contains("untrusted", "contraindicated, "),
    );
    browser.navigate(&url("gateways/5"));
    browser.wait(
        "the reason for the mismatch",
        "document.querySelector('main').textContent.includes('map control: differs')",
    );
    let views = [
        (
            "gateways",
            "[data-testid=gateway-row] [data-label=Evidence] .badge",
        ),
        ("gateways/5", "[data-testid=evidence-reason]"),
    ];
    access::assert_every_view_is_accessible(&browser, &views, url);

    browser.set_window((1280, 900), "light");
    reconfigure(&gateway, &valid_settings);
    browser.navigate(&url("gateways"));
    browser.wait(
        "affirming evidence after the repair",
        &cell_contains("trusted", affirming),
    );
    gateway.stop().unwrap();
    // Outdated evidence ends trust.
    browser.wait("outdated evidence", &cell_contains("overdue", "stale, as of"));
    no_errors(&browser);
}
