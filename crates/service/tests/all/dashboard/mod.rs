//! The dashboard in Chromium: a real controller over TLS, gateways over gRPC, and devices that authenticate.

mod access;
mod browser;
mod evidence;
mod pictures;

use std::time::Duration;

use linewarden_gateway::Gateway;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::Role;
use serde_json::json;

use self::browser::Browser;
use crate::controller::{NAME, TestController};
use crate::fleet::{DeviceSpec, Fleet, make_group, start_gateway};

/// A hostile name for devices, gateways and reasons that tries to run a script.
const HOSTILE: &str =
    "<img src=x onerror=alert(1)>\"'><script>alert(2)</script><svg/onload=alert(3)>{{7*7}}\u{202e}elbisivni";
/// `HOSTILE` as the dashboard displays this name: an invisible character appears as its code point.
const HOSTILE_ESCAPED: &str =
    "<img src=x onerror=alert(1)>\"'><script>alert(2)</script><svg/onload=alert(3)>{{7*7}}\\u202eelbisivni";
const DEVICES: u64 = 24;
/// The device with the hostile name. A test revokes this device.
const VICTIM: DeviceId = DeviceId(0xd1);
/// The views, each with the selector of an element in the view.
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

/// A controller, two gateways, and authenticating devices.
struct DashboardTest {
    fleet: Fleet,
    north: Gateway,
    south: Gateway,
    controller: TestController,
}

impl DashboardTest {
    fn new(controller: TestController) -> Self {
        let ada = controller.caller("ada", Role::Admin);
        controller.token("otto", Role::Operator);
        controller.token("vera", Role::Viewer);
        for (id, name) in [(3, "north gate"), (4, HOSTILE)] {
            ada.post(
                "/api/v1/gateways",
                &json!({"id": id, "name": name, "reason": "new"}),
            )
            .ok();
        }
        drop(ada);
        make_group(&controller, "sensors", 1);
        let (north, north_address) = start_gateway(&controller, GatewayId(3));
        let (south, south_address) = start_gateway(&controller, GatewayId(4));
        let specs: Vec<DeviceSpec> = (0..DEVICES)
            .map(|number| DeviceSpec {
                device: DeviceId(VICTIM.0 + number),
                name: match number {
                    0 => HOSTILE.to_owned(),
                    _ => format!("sensor {number}"),
                },
                gateway: if number % 2 == 0 {
                    north_address
                } else {
                    south_address
                },
                first_gateway: GatewayId(if number % 2 == 0 { 3 } else { 4 }),
                group: "sensors",
                is_changed: false,
            })
            .collect();
        let fleet = Fleet::start(&controller, &specs, Duration::from_millis(20));
        for spec in &specs {
            fleet.wait(spec.device, |(accepted, _)| accepted > 0);
        }
        Self {
            controller,
            north,
            south,
            fleet,
        }
    }

    fn url(&self, view: &str) -> String {
        format!("https://{NAME}:{}/#/{view}", self.controller.address.port())
    }
}

#[test]
fn a_live_fleet_is_displayed_a_device_is_revoked_and_stale_values_are_marked() {
    let controller = TestController::new();
    let browser = Browser::require(&controller.runtime);
    let mut test = DashboardTest::new(controller);
    browser.set_window((1280, 900), "light");
    log_in_by_keyboard(&test, &browser);
    check_live_updates(&test, &browser);
    revoke_by_keyboard(&test, &browser);
    access::assert_every_view_is_accessible(&browser, &VIEWS, |view| test.url(view));
    check_stale_display(&mut test, &browser);
    no_errors(&browser);
}

/// Asserts that no foreign script ran and that no script of the dashboard failed.
#[track_caller]
fn no_errors(browser: &Browser) {
    let events = browser.evaluate("return window.seen");
    assert_eq!(events["violations"], json!([]), "{events}");
    assert_eq!(events["alerts"], json!([]), "{events}");
    assert_eq!(events["errors"], json!([]), "{events}");
}

fn log_in_by_keyboard(test: &DashboardTest, browser: &Browser) {
    browser.navigate(&test.url("overview"));
    browser.wait(
        "focus in the token's field",
        "document.activeElement.dataset.testid === 'token'",
    );
    access::check_names_and_landmarks(browser, "log-in");
    browser.type_in("lw_nobodys");
    browser.enter();
    browser.wait(
        "refusal",
        "document.querySelector('#log-in-error').textContent.includes('invalid')",
    );
    browser.wait(
        "focus in the token's field after the refusal",
        "document.activeElement.dataset.testid === 'token'",
    );
    browser.type_in(TOKEN_OF_OTTO);
    browser.enter();
    browser.wait(
        "the user name",
        "document.querySelector('[data-testid=user]').textContent.includes('otto')",
    );
    let storage = browser.evaluate("return [document.cookie, Object.values(localStorage).join(), Object.values(sessionStorage).join(), document.documentElement.innerHTML].join()");
    assert!(
        !storage.as_str().unwrap().contains(TOKEN_OF_OTTO),
        "no script and no storage has the token"
    );
}

/// A number in the page, without digit separators.
fn number(testid: &str) -> String {
    format!(
        "parseFloat((document.querySelector('[data-testid={testid}]')?.textContent ?? '').replaceAll(/[^0-9.]/g, ''))"
    )
}

fn check_live_updates(test: &DashboardTest, browser: &Browser) {
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
    let accepted_before = browser.wait("accepted RESPONSEs", accepted);
    browser.wait(
        "further accepted RESPONSEs",
        &format!("{accepted} > {accepted_before}"),
    );
    browser.wait("two gateways", &format!("{} === 2", number("gateways-connected")));
    browser.wait(
        "cache fill, sessions and report age of both gateways",
        "[...document.querySelectorAll('[data-testid=gateway-row]')].filter((row) => row.textContent.includes('connected') \
         && row.querySelector('[data-label=\"Cache fill\"]').textContent.includes('12 of 256') \
         && row.querySelector('[data-label=Sessions]').textContent === '12' \
         && /^[0-9]+ s$/.test(row.querySelector('[data-label=\"Report age\"]').textContent)).length === 2",
    );
    browser.wait(
        "events",
        "document.querySelector('[data-kind=gateway_connected]')",
    );
    // Each gateway starts a round per second. The event stream must report new rounds to the page before the page reads the
    // lists of rounds again, which happens only every 15 s.
    let newest = "Math.max(...[...document.querySelectorAll('[data-testid=heat-cell]')].map((cell) => Number(cell.ariaLabel.match(/^Round ([0-9,]+)/)[1].replaceAll(',', ''))))";
    let lists = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes('/rounds')).length";
    browser.wait("rounds", &format!("{newest} > 0"));
    let are_streamed = (0..3).any(|_| {
        let reads_before = browser.evaluate(lists);
        let newest_before = browser.evaluate(&format!("return {newest}"));
        browser.wait("further rounds", &format!("{newest} >= {newest_before} + 2"));
        browser.evaluate(lists) == reads_before
    });
    assert!(are_streamed, "the page received further rounds only from lists");
    browser.wait("a round in which all devices proved their configuration", "[...document.querySelectorAll('[data-testid=heat-cell]')].some((cell) => cell.textContent === '100')");
    assert!(test.north.counters().unwrap().get(Verdict::ReplyAck) > 0);
}

/// Searches and revokes the device with the hostile name. Then the gateway must refuse this device.
fn revoke_by_keyboard(test: &DashboardTest, browser: &Browser) {
    browser.navigate(&test.url("devices"));
    browser.wait(
        "devices",
        "document.querySelectorAll('[data-testid=device-row]').length > 20",
    );
    browser.evaluate("document.querySelector('h1').focus(); return null");
    browser.tab_to("[data-testid=device-search]");
    browser.type_in("<img");
    browser.wait(
        "only the device with this name",
        "document.querySelectorAll('[data-testid=device-row]').length === 1",
    );
    browser.tab_to("[data-testid=device-link]");
    browser.enter();
    browser.wait(
        "the page of the device",
        "document.querySelector('[data-testid=device-status]').textContent === 'active'",
    );
    assert!(
        browser.text("h1").starts_with(HOSTILE_ESCAPED),
        "{}",
        browser.text("h1")
    );
    let element_count = browser
        .evaluate("return document.querySelectorAll('main img, main script, main svg[onload]').length");
    assert_eq!(element_count, 0, "a name creates no elements");
    browser.wait(
        "the device's leases",
        "document.querySelector('[data-testid=leases]').textContent.includes('north gate')",
    );
    browser.wait(
        "the device's attestation state",
        "document.querySelector('[data-testid=attestation-state]').textContent === 'ok'",
    );

    browser.tab_to("[data-testid=revoke]");
    browser.enter();
    browser.wait("the dialog", "document.activeElement.dataset.testid === 'reason'");
    access::check_names_and_landmarks(browser, "dialog");
    browser.escape();
    browser.wait(
        "focus on the button that opened the dialog",
        "document.activeElement.dataset.testid === 'revoke'",
    );
    let (accepted, refused) = test.fleet.wait(VICTIM, |_| true);
    test.fleet.wait(VICTIM, |(now, _)| now > accepted + 1);
    assert_eq!(refused, 0, "no device was refused so far");

    browser.enter();
    browser.wait(
        "the dialog again",
        "document.activeElement.dataset.testid === 'reason'",
    );
    browser.tab_to("[data-testid=confirm]");
    browser.enter();
    browser.wait(
        "the error that a reason is required",
        "document.querySelector('dialog [data-testid=error]').textContent.includes('reason')",
    );
    browser.type_in("found in a pond <b onclick=alert(4)>");
    browser.tab_to("[data-testid=confirm]");
    browser.enter();
    browser.wait(
        "the status revoked",
        "document.querySelector('[data-testid=device-status]').textContent === 'revoked'",
    );
    browser.wait(
        "the focus on the page's heading",
        "document.activeElement === document.querySelector('main h1')",
    );
    browser.wait(
        "actor and reason",
        "[...document.querySelectorAll('[data-testid=history-row]')].some((row) => row.textContent.includes('revoked') \
         && row.textContent.includes('<b onclick=alert(4)>') && row.textContent.includes('otto'))",
    );
    browser.wait(
        "the announcement of the revocation",
        "document.querySelector('[data-testid=announcements]').textContent.includes('is revoked')",
    );

    let (accepted, _) = test.fleet.wait(VICTIM, |(_, refused)| refused >= 2);
    let (accepted_later, _) = test.fleet.wait(VICTIM, |(_, refused)| refused >= 4);
    assert_eq!(accepted_later, accepted, "the device is refused");
    assert!(test.north.counters().unwrap().get(Verdict::DropRevoked) > 0);
    browser.navigate(&test.url("overview"));
    browser.wait(
        "one revoked device",
        &format!("{} === 1", number("fleet-revoked")),
    );
    browser.wait(
        "the end of the device's session",
        &format!("{} === {}", number("authenticated"), DEVICES - 1),
    );
    browser.wait(
        "the verdict on the device's frames",
        "document.querySelector('[data-verdict=drop_revoked]')",
    );
    browser.wait(
        "the revocation event",
        "document.querySelector('[data-testid=event-row][data-kind=revoked]').textContent.includes('otto')",
    );
}

/// After a gateway and then a controller stop, their last values are marked as outdated.
fn check_stale_display(test: &mut DashboardTest, browser: &Browser) {
    browser.set_window((1280, 900), "light");
    browser.navigate(&test.url("overview"));
    browser.wait(
        "live numbers",
        "document.querySelector('[data-testid=stream-state]').dataset.state === 'live'",
    );
    browser.wait(
        "fresh numbers of gateways",
        "document.querySelectorAll('[data-testid=gateway-row]:not([data-stale])').length === 2",
    );
    let (south, new_gateway) = (GatewayId(4), GatewayId(5));
    // A gateway with another id is started, and the former gateway is stopped.
    let former = std::mem::replace(&mut test.south, start_gateway(&test.controller, new_gateway).0);
    former.stop().unwrap();
    let row = format!(
        "document.querySelector('[data-testid=gateway-row][data-gateway=\"{}\"]')",
        south.0
    );
    browser.wait(
        "a disconnected gateway",
        &format!("{row}.hasAttribute('data-stale') && {row}.querySelector('[data-testid=stale-mark]').textContent.startsWith('stale') && {row}.textContent.includes('disconnected')"),
    );
    browser.wait(
        "the remaining gateways",
        &format!("{} === 2", number("gateways-connected")),
    );
    browser.wait(
        "two gateways that are not stale",
        "document.querySelectorAll('[data-testid=gateway-row]:not([data-stale])').length === 2",
    );

    let overview = browser.window();
    // Values that the page reads rarely are marked, too. Each of these views has its own window.
    let lists = [
        ("events", "event-row"),
        ("devices", "device-row"),
        ("rounds", "round-row"),
    ];
    let lists = lists.map(|(view, row)| {
        let window = browser.open_window(&test.url(view));
        browser.wait(
            "a fresh list",
            &format!("document.querySelector('[data-testid={row}]') && !document.querySelector('main .panel[data-stale]')"),
        );
        (view, window)
    });

    test.controller.stop();
    for (view, window) in &lists {
        browser.switch_to_window(window);
        browser.wait(
            view,
            "[...document.querySelectorAll('main .panel')].every((panel) => panel.hasAttribute('data-stale') \
             && panel.querySelector('[data-testid=stale-mark]').textContent.startsWith('stale, as of'))",
        );
    }
    browser.switch_to_window(&overview);
    browser.wait(
        "a stale stream",
        "document.querySelector('[data-testid=stream-state]').dataset.state === 'stale'",
    );
    browser.wait(
        "a mark on every live panel",
        "['.tiles-panel', '[data-testid=fleet]', '[data-testid=verdicts]', '.graph-panel'].every((panel) => document.querySelector(panel).closest('[data-stale]'))",
    );
    let text = browser.text("[data-testid=stream-state]");
    assert!(
        text.contains("reconnecting") && text.contains("stale, as of"),
        "{text}"
    );
    browser.wait(
        "a mark on every gateway",
        "document.querySelectorAll('[data-testid=gateway-row]:not([data-stale])').length === 0",
    );
}
