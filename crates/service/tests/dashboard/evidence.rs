//! A gateway over the kernel's data plane, which shows its controller what it runs: in the dashboard as it should be, changed, put right,
//! and gone.

use std::sync::{Arc, Mutex};

use linewarden_controller::trust::TrustPolicy;
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlaneError, Live};
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::statement::{Inventory, Nonce, verify};
use linewarden_evidence::{BootCount, keys::PublicKey};
use linewarden_gateway::{About, Attester, ControllerLink, EvidenceSource, Gateway, Settings};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::Role;

use crate::browser::Browser;
use crate::office::{NAME, Office};
use crate::site::{LONG, config};
use crate::{access, nothing_went_wrong};

const S: u64 = 1_000_000_000;

/// A gateway that has not started, and what it will be believed by. Its data plane is in the kernel; no packet comes to it.
pub struct Witnessed {
    id: GatewayId,
    config: Config,
    plane: Xdp,
    attester: Attester,
    key: PublicKey,
}

impl Witnessed {
    /// `Err` says what this machine lacks.
    pub fn load(id: GatewayId) -> Result<Self, String> {
        let config = Config {
            gateway_id: id,
            ..config()
        };
        let plane = match Xdp::load(&config) {
            Ok(plane) => plane,
            Err(DataPlaneError::Privilege { needed, .. }) => return Err(format!("needs {needed}")),
            Err(error) => panic!("{error}"),
        };
        let signer = Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap();
        Ok(Self {
            id,
            config,
            plane,
            key: signer.public_key(),
            attester: Attester::new(id, BootCount(1), Box::new(signer)),
        })
    }

    /// What it runs now is what it is to run, to be shown each second.
    pub fn policy(&mut self) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let shown = self.attester.show(nonce, self.plane.measure().unwrap()).unwrap();
        let evidence = verify(&shown.statement, &self.key, nonce).unwrap();
        let proven = Inventory::read(&shown.inventory).unwrap().prove(&evidence);
        TrustPolicy {
            reference: Reference::of("as delivered", &evidence, Some(&proven.unwrap()), |_| false),
            key: self.key,
            every_ns: S,
            answer_ns: 5 * S,
        }
    }

    /// It comes to work; and its settings as they should be.
    pub fn start(self, office: &Office) -> (Gateway, Live) {
        let settings = Settings::for_plane(&self.config);
        let about = About {
            dataplane: "xdp".to_owned(),
            slots: self.config.geometry.slots.into(),
        };
        let link = ControllerLink::Remote(office.link(self.id, &[]), about);
        let source = EvidenceSource::Gateway(Arc::new(Mutex::new(self.attester)));
        let plane = Box::new(self.plane);
        let gateway = Gateway::start_with(plane, link, self.id, settings, Some(source)).unwrap();
        assert!(
            gateway.wait_until(LONG, |status| status.loaded),
            "{:?}",
            gateway.status()
        );
        (gateway, self.config.live())
    }
}

/// Changes settings of the data plane past everybody who should know of it.
fn reconfigure(gateway: &Gateway, live: &Live) {
    let live = live.clone();
    gateway
        .with_plane(move |plane| plane.reconfigure(&live, 0))
        .unwrap()
        .unwrap();
}

/// Of the only row of the gateways' table.
const CELL: &str = "document.querySelector('[data-testid=gateway-row] [data-label=Evidence]')";

fn cell_says(badge: &str, words: &str) -> String {
    format!("{CELL}.textContent.startsWith('{badge}') && /{words}/.test({CELL}.textContent)")
}

#[test]
fn what_a_gateway_runs_is_shown_with_its_age_and_told_when_it_is_another_thing() {
    let mut witnessed = match Witnessed::load(GatewayId(5)) {
        Ok(witnessed) => witnessed,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let policy = witnessed.policy();
    let office = Office::new_deciding(|controller| controller.trusting(GatewayId(5), policy));
    let browser = match Browser::start(&office.runtime) {
        Ok(browser) => browser,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let url = |view: &str| format!("https://{NAME}:{}/#/{view}", office.address.port());
    let token = office.token("vera", Role::Viewer);
    browser.look_like((1280, 900), "light");
    browser.go(&url("gateways"));
    browser.wait(
        "focus in the token's field",
        "document.activeElement.dataset.testid === 'token'",
    );
    browser.type_in(&token);
    browser.enter();

    let (gateway, right) = witnessed.start(&office);
    let affirming = "affirming, [0-5] s old";
    browser.wait("evidence that affirms", &cell_says("trusted", affirming));
    let shown = browser.get(&format!("return {CELL}.textContent"));
    browser.wait("an age that goes on", &format!("{CELL}.textContent !== {shown}"));

    let wrong = Live {
        nak_per_s: right.nak_per_s + 1,
        ..right.clone()
    };
    reconfigure(&gateway, &wrong);
    browser.wait(
        "evidence against it",
        &cell_says("untrusted", "contraindicated, "),
    );
    browser.go(&url("gateways/5"));
    browser.wait(
        "why",
        "document.querySelector('main').textContent.includes('map control: differs')",
    );
    let views = [
        (
            "gateways",
            "[data-testid=gateway-row] [data-label=Evidence] .badge",
        ),
        ("gateways/5", "[data-testid=evidence-why]"),
    ];
    access::every_view_is_for_everybody(&browser, &views, url);

    browser.look_like((1280, 900), "light");
    reconfigure(&gateway, &right);
    browser.go(&url("gateways"));
    browser.wait("evidence that affirms again", &cell_says("trusted", affirming));
    gateway.stop().unwrap();
    // What nobody has shown for too long makes nobody trusted.
    browser.wait("evidence that is old", &cell_says("overdue", "stale, as of"));
    nothing_went_wrong(&browser);
}
