//! The dashboard in a browser: a real controller over TLS, gateways over gRPC, devices that authenticate, and Chromium that looks on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod access;
mod browser;
mod evidence;
mod fleet;
#[path = "../service/office.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod office;
mod pictures;
#[path = "../../../gateway/tests/site/mod.rs"]
mod site;

use std::time::Duration;

use linewarden_gateway::Gateway;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::Role;
use serde_json::json;

use self::browser::Browser;
use self::fleet::{Fleet, Spec, make_group, start_gateway};
use self::office::{NAME, Office};

/// What somebody calls a device, a gateway or a reason who wants a page to run it.
const HOSTILE: &str =
    "<img src=x onerror=alert(1)>\"'><script>alert(2)</script><svg/onload=alert(3)>{{7*7}}\u{202e}elbisivni";
/// What is shown of it: what does not show is told by its number.
const SHOWN: &str =
    "<img src=x onerror=alert(1)>\"'><script>alert(2)</script><svg/onload=alert(3)>{{7*7}}\\u202eelbisivni";
const DEVICES: u64 = 24;
const VICTIM: DeviceId = DeviceId(0xd1);
/// Views, and what is there when they are there.
const VIEWS: [(&str, &str); 8] = [
    ("overview", "[data-testid=heat-cell]"),
    ("devices", "[data-testid=device-row]"),
    ("devices/00000000000000d1", "[data-testid=history-row]"),
    ("gateways", "[data-testid=gateway-row]"),
    ("gateways/3", "[data-testid=verdict-row]"),
    ("rounds", "[data-testid=round-row]"),
    ("events", "[data-testid=event-row]"),
    ("nowhere", "h1"),
];
const TOKEN_OF_OTTO: &str = "lw_token_of_otto";

/// A controller, two gateways, and who authenticates there.
struct Scene {
    fleet: Fleet,
    north: Gateway,
    south: Gateway,
    office: Office,
}

impl Scene {
    fn new(office: Office) -> Self {
        let ada = office.caller("ada", Role::Admin);
        office.token("otto", Role::Operator);
        office.token("vera", Role::Viewer);
        for (id, name) in [(3, "north gate"), (4, HOSTILE)] {
            ada.post(
                "/api/v1/gateways",
                &json!({"id": id, "name": name, "reason": "new"}),
            )
            .ok();
        }
        drop(ada);
        make_group(&office, "sensors", 1);
        let (north, to_north) = start_gateway(&office, GatewayId(3));
        let (south, to_south) = start_gateway(&office, GatewayId(4));
        let specs: Vec<Spec> = (0..DEVICES)
            .map(|number| Spec {
                device: DeviceId(VICTIM.0 + number),
                name: match number {
                    0 => HOSTILE.to_owned(),
                    _ => format!("sensor {number}"),
                },
                gateway: if number % 2 == 0 { to_north } else { to_south },
                home: GatewayId(if number % 2 == 0 { 3 } else { 4 }),
                group: "sensors",
                is_changed: false,
            })
            .collect();
        let fleet = Fleet::start(&office, &specs, Duration::from_millis(20));
        for spec in &specs {
            fleet.wait(spec.device, |(accepted, _)| accepted > 0);
        }
        Self {
            office,
            north,
            south,
            fleet,
        }
    }

    fn url(&self, view: &str) -> String {
        format!("https://{NAME}:{}/#/{view}", self.office.address.port())
    }
}

#[test]
fn a_live_fleet_is_watched_a_device_cut_off_and_nothing_stale_shown_as_fresh() {
    let office = Office::new();
    let browser = match Browser::start(&office.runtime) {
        Ok(browser) => browser,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let mut scene = Scene::new(office);
    browser.look_like((1280, 900), "light");
    log_in_by_keyboard(&scene, &browser);
    watch(&scene, &browser);
    cut_off_by_keyboard(&scene, &browser);
    access::every_view_is_for_everybody(&browser, &VIEWS, |view| scene.url(view));
    grow_stale(&mut scene, &browser);
    nothing_went_wrong(&browser);
}

/// No script ran that is not ours, and none of ours failed.
#[track_caller]
fn nothing_went_wrong(browser: &Browser) {
    let seen = browser.get("return window.seen");
    assert_eq!(seen["violations"], json!([]), "{seen}");
    assert_eq!(seen["alerts"], json!([]), "{seen}");
    assert_eq!(seen["errors"], json!([]), "{seen}");
}

fn log_in_by_keyboard(scene: &Scene, browser: &Browser) {
    browser.go(&scene.url("overview"));
    browser.wait(
        "focus in the token's field",
        "document.activeElement.dataset.testid === 'token'",
    );
    access::names_and_landmarks(browser, "log-in");
    browser.type_in("lw_nobodys");
    browser.enter();
    browser.wait(
        "refusal",
        "document.querySelector('#log-in-error').textContent.includes('nobody')",
    );
    browser.wait(
        "the field again",
        "document.activeElement.dataset.testid === 'token'",
    );
    browser.type_in(TOKEN_OF_OTTO);
    browser.enter();
    browser.wait(
        "who is logged in",
        "document.querySelector('[data-testid=user]').textContent.includes('otto')",
    );
    let kept = browser.get("return [document.cookie, Object.values(localStorage).join(), Object.values(sessionStorage).join(), document.documentElement.innerHTML].join()");
    assert!(
        !kept.as_str().unwrap().contains(TOKEN_OF_OTTO),
        "no script and no storage has the token"
    );
}

/// A number of the page, without what groups its digits.
fn number(testid: &str) -> String {
    format!(
        "parseFloat((document.querySelector('[data-testid={testid}]')?.textContent ?? '').replaceAll(/[^0-9.]/g, ''))"
    )
}

fn watch(scene: &Scene, browser: &Browser) {
    browser.wait(
        "a live stream",
        "document.querySelector('[data-testid=stream-state]').dataset.state === 'live'",
    );
    browser.wait("a rate", &format!("{} > 1", number("rate")));
    for latency in ["latency-p50", "latency-p99"] {
        browser.wait(latency, &format!("/^[0-9.]+ (µs|ms)$/.test(document.querySelector('[data-testid={latency}]').textContent) && {} > 0", number(latency)));
    }
    browser.wait(
        "all sessions",
        &format!("{} === {DEVICES}", number("authenticated")),
    );
    browser.wait("all devices", &format!("{} === {DEVICES}", number("fleet-total")));
    let accepted = "parseFloat(document.querySelector('[data-verdict=reply_ack] [data-label=\"Since start\"]').textContent.replaceAll(/[^0-9]/g, ''))";
    let before = browser.wait("accepted RESPONSEs", accepted);
    browser.wait("more of them", &format!("{accepted} > {before}"));
    browser.wait("two gateways", &format!("{} === 2", number("gateways-connected")));
    browser.wait(
        "cache fill, sessions and age of both",
        "[...document.querySelectorAll('[data-testid=gateway-row]')].filter((row) => row.textContent.includes('connected') \
         && row.querySelector('[data-label=\"Cache fill\"]').textContent.includes('12 of 256') \
         && row.querySelector('[data-label=Sessions]').textContent === '12' \
         && /^[0-9]+ s$/.test(row.querySelector('[data-label=\"Age of numbers\"]').textContent)).length === 2",
    );
    browser.wait(
        "events",
        "document.querySelector('[data-kind=gateway_connected]')",
    );
    // One of each second and gateway, and the next by the stream: lists of rounds are read every 15 s only.
    let newest = "Math.max(...[...document.querySelectorAll('[data-testid=heat-cell]')].map((cell) => Number(cell.ariaLabel.match(/^Round ([0-9,]+)/)[1].replaceAll(',', ''))))";
    let lists = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes('/rounds')).length";
    browser.wait("rounds", &format!("{newest} > 0"));
    let is_told = (0..3).any(|_| {
        let read = browser.get(lists);
        let before = browser.get(&format!("return {newest}"));
        browser.wait("further rounds", &format!("{newest} >= {before} + 2"));
        browser.get(lists) == read
    });
    assert!(is_told, "further rounds come by lists only");
    browser.wait("rounds in which all were well", "[...document.querySelectorAll('[data-testid=heat-cell]')].some((cell) => cell.textContent === '100')");
    assert!(scene.north.counters().unwrap().get(Verdict::ReplyAck) > 0);
}

/// One with a name that wants to be run is looked for, revoked, and gets nothing more at its gateway.
fn cut_off_by_keyboard(scene: &Scene, browser: &Browser) {
    browser.go(&scene.url("devices"));
    browser.wait(
        "devices",
        "document.querySelectorAll('[data-testid=device-row]').length > 20",
    );
    browser.get("document.querySelector('h1').focus(); return null");
    browser.tab_to("[data-testid=device-search]");
    browser.type_in("<img");
    browser.wait(
        "the one found",
        "document.querySelectorAll('[data-testid=device-row]').length === 1",
    );
    browser.tab_to("[data-testid=device-link]");
    browser.enter();
    browser.wait(
        "the device",
        "document.querySelector('[data-testid=device-status]').textContent === 'active'",
    );
    assert!(browser.text("h1").starts_with(SHOWN), "{}", browser.text("h1"));
    let made =
        browser.get("return document.querySelectorAll('main img, main script, main svg[onload]').length");
    assert_eq!(made, 0, "a name makes no elements");
    browser.wait(
        "its leases",
        "document.querySelector('[data-testid=leases]').textContent.includes('north gate')",
    );
    browser.wait(
        "how it proves itself",
        "document.querySelector('[data-testid=attestation-state]').textContent === 'ok'",
    );

    browser.tab_to("[data-testid=revoke]");
    browser.enter();
    browser.wait("the dialog", "document.activeElement.dataset.testid === 'reason'");
    access::names_and_landmarks(browser, "dialog");
    browser.escape();
    browser.wait(
        "the focus where it was",
        "document.activeElement.dataset.testid === 'revoke'",
    );
    let (accepted, refused) = scene.fleet.wait(VICTIM, |_| true);
    scene.fleet.wait(VICTIM, |(now, _)| now > accepted + 1);
    assert_eq!(refused, 0, "nobody was refused so far");

    browser.enter();
    browser.wait(
        "the dialog again",
        "document.activeElement.dataset.testid === 'reason'",
    );
    browser.tab_to("[data-testid=confirm]");
    browser.enter();
    browser.wait(
        "a reason is wanted",
        "document.querySelector('dialog [data-testid=error]').textContent.includes('reason')",
    );
    browser.type_in("found in a pond <b onclick=alert(4)>");
    browser.tab_to("[data-testid=confirm]");
    browser.enter();
    browser.wait(
        "revoked",
        "document.querySelector('[data-testid=device-status]').textContent === 'revoked'",
    );
    browser.wait(
        "the focus on the page's heading",
        "document.activeElement === document.querySelector('main h1')",
    );
    browser.wait(
        "who has done it, and why",
        "[...document.querySelectorAll('[data-testid=history-row]')].some((row) => row.textContent.includes('revoked') \
         && row.textContent.includes('<b onclick=alert(4)>') && row.textContent.includes('otto'))",
    );
    browser.wait(
        "its announcement",
        "document.querySelector('[data-testid=announcements]').textContent.includes('is revoked')",
    );

    let (accepted, _) = scene.fleet.wait(VICTIM, |(_, refused)| refused >= 2);
    let (still, _) = scene.fleet.wait(VICTIM, |(_, refused)| refused >= 4);
    assert_eq!(still, accepted, "it is let in no more");
    assert!(scene.north.counters().unwrap().get(Verdict::DropRevoked) > 0);
    browser.go(&scene.url("overview"));
    browser.wait("one revoked", &format!("{} === 1", number("fleet-revoked")));
    browser.wait(
        "its session gone",
        &format!("{} === {}", number("authenticated"), DEVICES - 1),
    );
    browser.wait(
        "what its frames come to",
        "document.querySelector('[data-verdict=drop_revoked]')",
    );
    browser.wait(
        "the event",
        "document.querySelector('[data-testid=event-row][data-kind=revoked]').textContent.includes('otto')",
    );
}

/// Of a gateway that is gone, and then of a controller that is, what was is told as what was.
fn grow_stale(scene: &mut Scene, browser: &Browser) {
    browser.look_like((1280, 900), "light");
    browser.go(&scene.url("overview"));
    browser.wait(
        "live numbers",
        "document.querySelector('[data-testid=stream-state]').dataset.state === 'live'",
    );
    browser.wait(
        "fresh numbers of gateways",
        "document.querySelectorAll('[data-testid=gateway-row]:not([data-stale])').length === 2",
    );
    let (south, spare) = (GatewayId(4), GatewayId(5));
    // A gateway under another number has its place: the one that it had falls silent.
    let gone = std::mem::replace(&mut scene.south, start_gateway(&scene.office, spare).0);
    gone.stop().unwrap();
    let row = format!(
        "document.querySelector('[data-testid=gateway-row][data-gateway=\"{}\"]')",
        south.0
    );
    browser.wait(
        "a gateway that is silent",
        &format!("{row}.hasAttribute('data-stale') && {row}.querySelector('[data-testid=stale-mark]').textContent.startsWith('stale') && {row}.textContent.includes('silent')"),
    );
    browser.wait(
        "who is still here",
        &format!("{} === 2", number("gateways-connected")),
    );
    browser.wait(
        "the others as fresh as before",
        "document.querySelectorAll('[data-testid=gateway-row]:not([data-stale])').length === 2",
    );

    let overview = browser.window();
    // What is read seldom, too, each in a window of its own.
    let lists = [
        ("events", "event-row"),
        ("devices", "device-row"),
        ("rounds", "round-row"),
    ];
    let lists = lists.map(|(view, row)| {
        let window = browser.open_window(&scene.url(view));
        browser.wait(
            "a fresh list",
            &format!("document.querySelector('[data-testid={row}]') && !document.querySelector('main .panel[data-stale]')"),
        );
        (view, window)
    });

    scene.office.stop();
    for (view, window) in &lists {
        browser.look_at(window);
        browser.wait(
            view,
            "[...document.querySelectorAll('main .panel')].every((panel) => panel.hasAttribute('data-stale') \
             && panel.querySelector('[data-testid=stale-mark]').textContent.startsWith('stale, as of'))",
        );
    }
    browser.look_at(&overview);
    browser.wait(
        "a stale stream",
        "document.querySelector('[data-testid=stream-state]').dataset.state === 'stale'",
    );
    browser.wait(
        "every live panel marked",
        "['.tiles-panel', '[data-testid=fleet]', '[data-testid=verdicts]', '.graph-panel'].every((panel) => document.querySelector(panel).closest('[data-stale]'))",
    );
    let words = browser.text("[data-testid=stream-state]");
    assert!(
        words.contains("reconnecting") && words.contains("stale, as of"),
        "{words}"
    );
    browser.wait(
        "every gateway marked",
        "document.querySelectorAll('[data-testid=gateway-row]:not([data-stale])').length === 0",
    );
}
