//! Attestation rounds, attestation states and quarantine, with a running gateway and devices that respond to requests.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use linewarden_harness::skip_part;
use linewarden_protocol::attest::prover::{ProofOutcome, Prover, RequestTagKey};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash, Round};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::wire::{self, Message};

use linewarden_registry::{Appraisal, AttestationState, QuarantineRequest, RoundRecord};
use linewarden_types::GroupName;

use super::*;
use crate::cli::terminal::at_terminal;
use crate::support::{Process, TEST_TIMEOUT, command, free_udp_port, start_controller};

/// Verifies the signature of a result with this public key (RFC 7515, RFC 7517) and returns the claims.
fn verify_result(jwk: &str, token: &str) -> serde_json::Value {
    let bytes = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).unwrap();
    let jwk = json(jwk);
    let mut point = vec![4];
    point.extend(
        ["x", "y"]
            .iter()
            .flat_map(|name| bytes(jwk[name].as_str().unwrap())),
    );
    let (signed_text, signature) = token.rsplit_once('.').unwrap();
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
        .verify(signed_text.as_bytes(), &bytes(signature))
        .unwrap();
    let claims = signed_text.split_once('.').unwrap().1;
    serde_json::from_slice(&bytes(claims)).unwrap()
}

/// A device without a session that proves `configuration(1)` with the key from `load_key`.
struct Device {
    port: u16,
    is_mute: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    key: Arc<Mutex<Option<AttestationKey>>>,
}

impl Device {
    fn new(device: DeviceId) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (is_mute, stop) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let key = Arc::<Mutex<Option<AttestationKey>>>::default();
        let thread = std::thread::spawn({
            let (is_mute, stop, key) = (Arc::clone(&is_mute), Arc::clone(&stop), Arc::clone(&key));
            move || {
                let mut prover = Prover::new(device, Period(0));
                let mut last_key = None;
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                        continue;
                    };
                    let key = key.lock().unwrap().clone();
                    let bytes = key.as_ref().map(|key| *key.as_bytes());
                    // After a change of the key, proofs with the previous key are invalid, so a new prover is necessary.
                    if std::mem::replace(&mut last_key, bytes) != bytes {
                        prover = Prover::new(device, Period(0));
                    }
                    if let (Some(key), false) = (key, is_mute.load(Ordering::Relaxed)) {
                        respond_to_request(device, &mut prover, &key, &buffer[..length], &socket, from);
                    }
                }
            }
        });
        Self {
            port,
            is_mute,
            stop,
            thread: Some(thread),
            key,
        }
    }

    /// Reads the device's attestation key from a file of the site.
    fn load_key(&self, site: &Site, file: &str) {
        let text = fs::read_to_string(site.path(file)).unwrap();
        let mut key = [0; 32];
        hex::decode_to_slice(text.trim_end(), &mut key).unwrap();
        *self.key.lock().unwrap() = Some(AttestationKey::from_bytes(key));
    }

    fn set_mute(&self, is_mute: bool) {
        self.is_mute.store(is_mute, Ordering::Relaxed);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn respond_to_request(
    device: DeviceId,
    prover: &mut Prover,
    key: &AttestationKey,
    message: &[u8],
    socket: &UdpSocket,
    from: SocketAddr,
) {
    let Ok(Message::AttestRequest(request)) = wire::parse(message) else {
        return;
    };
    let round = Round::from(request);
    let request_key = key.for_requests(device, round.gateway, round.start.period);
    let Ok(request) = prover
        .screen(message, false)
        .and_then(|screened| screened.verify(Some(RequestTagKey::Request(&request_key))))
    else {
        return;
    };
    let outcome = match prover.respond(request) {
        ProofOutcome::MeasurementNeeded(start, request) => {
            let h = ConfigurationHash(configuration(1).hash().0);
            prover.begin_period(&request, &key.for_period(device, &start, &h));
            prover.respond(request)
        }
        outcome => outcome,
    };
    if let Some(proof) = outcome.bytes() {
        socket.send_to(proof, from).unwrap();
    }
}

/// A site with devices that respond, and with the configuration of a gateway that attests these devices.
struct AttestationFixture {
    site: Site,
    devices: Vec<Device>,
    _controller: Process,
}

impl AttestationFixture {
    /// `policy`: options of `group set`.
    fn new(count: u64, policy: &str) -> Self {
        let site = Site::attesting(count as usize);
        site.on_registry(&format!("attest group set pumps {policy}")).ok();
        site.run("linewarden attest key --out results.pem").ok();
        let port = free_udp_port();
        site.write(
            "gateway.toml",
            &format!(
                "[gateway]\nid = 5\ndataplane = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\nthreads = 1\n\
                 ticket_port = 0\nslots = 100\n[controller]\nsocket = \"controller.sock\"\n\
                 [attest]\nprovers = 16\n[audit]\npath = \"audit.jsonl\"\n"
            ),
        );
        site.write(
            "controller.toml",
            "[service]\nsocket = \"controller.sock\"\n[registry]\npath = \"fleet.registry\"\nmaster_key_file = \"master.key\"\n\
             [attest]\nsigning_key = \"results.pem\"\n",
        );
        let controller = start_controller(site.directory.path());
        let devices = (1..=count)
            .map(|number| {
                let device = Device::new(DeviceId(0xd0 + number));
                site.on_registry(&format!(
                    "attest enroll d{number} --group pumps --software --key-out d{number}.key --gateway 5 \
                     --address 127.0.0.1 --port {}",
                    device.port
                ))
                .ok();
                device.load_key(&site, &format!("d{number}.key"));
                device
            })
            .collect();
        Self {
            site,
            devices,
            _controller: controller,
        }
    }

    fn serve(&self) -> Process {
        let arguments = "linewarden-gateway run --config gateway.toml --output json --status-interval 1";
        let gateway = Process::start(command(self.site.directory.path(), arguments));
        // The gateway runs a first round at its start. A test requests further rounds after this round.
        gateway.wait_for("first round", |line| {
            line["event"] == "status" && line["attest"]["rounds"].as_u64() > Some(0)
        });
        gateway
    }

    /// Requests a round. Returns the output line about the round, and the ids and states of the devices in the output.
    fn round(&self) -> (serde_json::Value, Vec<(String, String)>) {
        let output = self
            .site
            .on_registry("attest round run --wait 60 --output json")
            .ok();
        let lines: Vec<serde_json::Value> = output.lines().map(json).collect();
        assert_eq!(lines[0]["event"], "round", "{output}");
        let devices = lines[1..].iter().map(|line| {
            assert_eq!(line["event"], "device");
            let text = |field: &str| line[field].as_str().unwrap().to_owned();
            (text("device"), text("state"))
        });
        (lines[0].clone(), devices.collect())
    }

    fn states(&self) -> Vec<String> {
        let output = self.site.on_registry("attest list --output json").ok();
        output
            .lines()
            .map(|line| json(line)["state"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Options of `group set` for an interval of 1 h: during a test, rounds run only at the gateway's start and on request.
const LONG_INTERVAL_POLICY: &str =
    "--every 3600 --jitter 0 --proof-timeout-ms 500 --missed-limit 2 --window-rounds 3";

#[test]
fn without_a_gateway_no_round_runs() {
    let fixture = AttestationFixture::new(1, LONG_INTERVAL_POLICY);
    let error = fixture.site.on_registry("attest round run --wait 1").refused(1);
    assert_eq!(
        error,
        "error: no gateway completed a round within 1 second: check that a gateway runs with [attest]\n"
    );
    let arguments = "linewarden attest round run --wait 2 --registry fleet.registry --key-file master.key";
    match at_terminal(&fixture.site, arguments) {
        None => skip_part!("script(1) is not installed"),
        Some(output) => assert!(
            output.out.contains("waiting for any gateway with group pumps"),
            "{}",
            output.out
        ),
    }
}

/// Devices that cannot be challenged are not ok. Groups without devices cause no warning.
#[test]
fn devices_without_a_reference_value_are_not_reported_as_ok() {
    let fixture = AttestationFixture::new(1, LONG_INTERVAL_POLICY);
    let site = &fixture.site;
    site.on_registry("attest group set valves").ok();
    let _gateway = fixture.serve();
    let output = site.on_registry("attest round run --wait 60");
    assert_eq!(output.err, "", "no warning");
    assert!(output.ok().ends_with("all devices are ok: 1 device\n"));
    site.on_registry("device enroll simulated --device d9 --rows 2 --out devices")
        .ok();
    site.on_registry("attest enroll d9 --group valves --software --key-out d9.key")
        .ok();
    let output = site.on_registry("attest round run --wait 60");
    assert!(
        output.err.contains("group valves has no reference value") && output.err.lines().count() == 1,
        "{}",
        output.err
    );
    let text = output.ok();
    assert!(
        text.contains("00000000000000d9")
            && text.contains("awaiting first round")
            && text.contains("1 device ok, 1 not ok"),
        "{text}"
    );
}

/// Records a round of gateway 5 with requests to `requested` devices, and the state ok of `devices`.
pub async fn record_round(registry: &Registry, devices: &[DeviceId], requested: u32, at_s: u64) {
    let fencing_token = registry.register_gateway(GatewayId(5), at_s).await.unwrap();
    let number = registry
        .reserve_rounds(&fencing_token, 1, 0)
        .await
        .unwrap()
        .numbers
        .start;
    let round = RoundRecord {
        gateway: GatewayId(5),
        number,
        group: GroupName::new("pumps").unwrap(),
        period: Period(1),
        started_at_s: at_s,
        ended_at_s: at_s,
        requested,
        ok: requested,
        late: 0,
        missed: 0,
        last_proof_ms: 1,
    };
    let appraisal = |device: &DeviceId| Appraisal {
        device: *device,
        gateway: GatewayId(5),
        address: None,
        state: AttestationState::Ok,
        since_s: at_s,
        since_round: number,
        configuration: linewarden_protocol::gateway::Configuration::Current,
        missed_rounds: Vec::new(),
        rounds_total: 1,
    };
    let mut appraisals = Vec::new();
    for device in devices {
        let prover = registry.prover(*device).await.unwrap().unwrap();
        appraisals.push((appraisal(device), prover.enrolled_at()));
    }
    registry
        .record_round(&fencing_token, &round, &appraisals)
        .await
        .unwrap();
}

pub fn now_s() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// An incomplete round, for example after a device has moved, is reported.
#[test]
fn an_incomplete_round_is_reported() {
    let site = Site::attesting(2);
    site.on_registry("attest enroll d1 d2 --group pumps --software --key-dir keys")
        .ok();
    let devices = [DeviceId(0xd1), DeviceId(0xd2)];
    site.with_registry(async |registry| record_round(registry, &devices, 2, now_s()).await);
    site.on_registry("attest check").ok();
    site.with_registry(async |registry| record_round(registry, &[], 1, now_s()).await);
    let output = site.on_registry("attest check");
    assert!(
        output.code == 1
            && output.err.contains("attestation round was incomplete")
            && output
                .err
                .contains("gateway 5 attested only 1 of 2 devices of group pumps in its last round"),
        "{}",
        output.err
    );
    // A record with a time far in the future is stale.
    site.with_registry(async |registry| record_round(registry, &devices, 2, now_s() + 9_999).await);
    assert_eq!(site.status("d1")["state"], "stale");
}

#[test]
fn a_hundred_devices_fit_into_one_result() {
    let site = Site::attesting(0);
    let enrolled = site
        .on_registry("device enroll simulated --count 101 --rows 2 --out devices --output json")
        .ok();
    let ids: Vec<String> = enrolled
        .lines()
        .map(|line| json(line)["device_id"].as_str().unwrap().to_owned())
        .collect();
    site.on_registry(&format!(
        "attest enroll {} --group pumps --software --key-dir keys",
        ids.join(" ")
    ))
    .ok();
    site.run("linewarden attest key --out results.pem").ok();
    let devices: Vec<DeviceId> = ids
        .iter()
        .map(|id| DeviceId(u64::from_str_radix(id, 16).unwrap()))
        .collect();
    let at_s = now_s();
    site.with_registry(async |registry| record_round(registry, &devices, 101, at_s).await);
    let tokens_text = site
        .on_registry("attest export --signing-key results.pem --output json")
        .ok();
    let tokens: Vec<(u64, u64)> = tokens_text
        .lines()
        .map(|line| {
            let line = json(line);
            (
                line["devices"].as_u64().unwrap(),
                line["expires_s"].as_u64().unwrap(),
            )
        })
        .collect();
    // A result expires when the state becomes stale. The interval is 60 s, the jitter 5 s, and the timeout 2 s.
    let expires_s = at_s + 2 * 60 + 5 + 4 + 1;
    assert_eq!(tokens, [(100, expires_s), (1, expires_s)]);
}

#[test]
fn devices_prove_miss_rounds_are_quarantined_and_released() {
    let fixture = AttestationFixture::new(3, LONG_INTERVAL_POLICY);
    let site = &fixture.site;
    let _gateway = fixture.serve();
    let (round, listed_devices) = fixture.round();
    assert_eq!(
        (
            round["gateway"].as_u64(),
            round["requested"].as_u64(),
            round["ok"].as_u64()
        ),
        (Some(5), Some(3), Some(3)),
        "{round}"
    );
    assert!(
        round["last_proof_ms"].as_u64().is_some() && listed_devices.is_empty(),
        "{round}"
    );
    assert_eq!(fixture.states(), ["ok"; 3]);
    let text = site.on_registry("attest check").ok();
    assert_eq!(text, "3 devices: 3 ok\n");
    let text = site.on_registry("attest list").ok();
    assert!(
        text.contains("pump2") && text.ends_with("\n3 devices: 3 ok\n"),
        "{text}"
    );
    let text = site.on_registry("attest round run pumps").ok();
    assert!(
        text.contains("┆ pumps ┆") && text.ends_with("all devices are ok: 3 devices\n"),
        "{text}"
    );

    fixture.devices[1].set_mute(true);
    let muted_device = || ("00000000000000d2".to_owned(), "missed".to_owned());
    let (round, listed_devices) = fixture.round();
    assert_eq!(
        (round["missed"].as_u64(), listed_devices),
        (Some(1), vec![muted_device()])
    );
    assert_eq!(fixture.states(), ["ok", "missed", "ok"]);
    let listed = site.on_registry("attest list --state missed --state late").ok();
    assert!(
        listed.contains("pump2")
            && !listed.contains("pump1")
            && listed.ends_with("\n3 devices: 2 ok, 1 missed\n"),
        "{listed}"
    );
    let error = site.on_registry("attest check").refused(1);
    assert!(error.contains("not ok: 1 of 3 devices"), "{error}");
    let ok_status = site.status("d1");
    assert!(
        ok_status["last_round"].as_u64() > ok_status["since_round"].as_u64()
            && ok_status["last_round"] == round["number"],
        "{ok_status}"
    );
    let (_, listed_devices) = fixture.round();
    assert_eq!(listed_devices, [(muted_device().0, "quarantined".to_owned())]);
    let status = site.status("d2");
    assert_eq!(
        (
            status["state"].as_str(),
            status["reason"].as_str(),
            status["gateway"].as_u64()
        ),
        (
            Some("quarantined"),
            Some("no proof in 2 of the last 3 rounds"),
            Some(5)
        )
    );
    let error = site.on_registry("attest check").refused(1);
    assert!(error.contains("not ok: 1 of 3 devices"), "{error}");
    let text = site.on_registry("attest show d2").ok();
    assert!(
        text.contains("state        quarantined, since 20")
            && text.contains("reason       no proof in 2 of the last 3 rounds")
            && text.contains("attested by  gateway 5, at 127.0.0.1"),
        "{text}"
    );
    assert_eq!(
        json(&site.on_registry("device show d2 --output json").ok())["status"],
        "quarantined"
    );

    // A device that was released by a command is quarantined again after further missed rounds.
    let text = site.on_registry("device release d2").ok();
    assert_eq!(
        text,
        "released device 00000000000000d2 (reason of the quarantine: no proof in 2 of the last 3 rounds)\n"
    );
    assert_eq!(
        json(&site.on_registry("device show d2 --output json").ok())["status"],
        "active"
    );
    assert_eq!(fixture.states(), ["ok", "missed", "ok"]);
    fixture.round();
    assert_eq!(fixture.states(), ["ok", "missed", "ok"]);
    fixture.round();
    assert_eq!(fixture.states(), ["ok", "quarantined", "ok"]);
    fixture.devices[1].set_mute(false);
    fixture.round();
    assert_eq!(fixture.states(), ["ok"; 3], "a proof ends the quarantine");
}

/// In quarantine, a device has no session, and only a proof releases the device. The gateway therefore sends requests to the
/// device's previous address.
#[test]
fn a_device_that_is_enrolled_again_in_quarantine_is_attested_and_released_by_its_proof() {
    let fixture = AttestationFixture::new(2, LONG_INTERVAL_POLICY);
    let site = &fixture.site;
    let device = &fixture.devices[1];
    let _gateway = fixture.serve();
    fixture.round();
    for (file, earlier_command) in [("new.key", ""), ("newer.key", "attest delete d2")] {
        device.set_mute(true);
        fixture.round();
        fixture.round();
        assert_eq!(fixture.states(), ["ok", "quarantined"]);
        if !earlier_command.is_empty() {
            site.on_registry(earlier_command).ok();
        }
        site.on_registry(&format!(
            "attest enroll d2 --group pumps --software --key-out {file} --port {} --replace",
            device.port
        ))
        .ok();
        let text = site.on_registry("attest show d2").ok();
        assert!(
            text.contains("pending      a proof of the reference value with the key of 20")
                && text.contains("; gateway 5 attests the device at 127.0.0.1, UDP port"),
            "{text}"
        );
        let pending = site.status("d2")["pending_action"].as_str().unwrap().to_owned();
        assert!(text.contains(&pending), "{pending}");
        device.set_mute(false);
        // Proofs with the previous key are invalid.
        fixture.round();
        assert_eq!(fixture.states(), ["ok", "quarantined"]);
        device.load_key(site, file);
        fixture.round();
        assert_eq!(fixture.states(), ["ok"; 2], "after {file}");
    }
}

/// The registry is in the state after a kill of a gateway: the device is quarantined, but the round is not recorded.
#[test]
fn a_proof_releases_a_device_that_another_process_quarantined() {
    let fixture = AttestationFixture::new(2, LONG_INTERVAL_POLICY);
    let gateway = fixture.serve();
    fixture.round();
    gateway.terminate();
    fixture.site.with_registry(async |registry| {
        let device = DeviceId(0xd2);
        let suspect = QuarantineRequest {
            device,
            enrolled_at: registry.prover(device).await.unwrap().unwrap().enrolled_at(),
            reason: "no proof in 2 of the last 3 rounds".to_owned(),
        };
        let token = registry.register_gateway(GatewayId(99), 0).await.unwrap();
        registry.quarantine(&token, &[suspect], now_s()).await.unwrap();
    });
    assert_eq!(fixture.states(), ["ok", "quarantined"]);
    let _gateway = fixture.serve();
    wait_until("a proof", || fixture.states() == ["ok", "ok"]);
}

#[test]
fn devices_without_rounds_are_stale_and_never_affirmed() {
    let fixture = AttestationFixture::new(2, "--every 1 --jitter 0 --proof-timeout-ms 400");
    let site = &fixture.site;
    let gateway = fixture.serve();
    fixture.round();
    let signer = site.run("linewarden attest key --show results.pem").ok();
    let results = || -> Vec<(String, bool)> {
        let token = site.on_registry("attest export --signing-key results.pem").ok();
        let claims = verify_result(signer.trim_end(), token.trim_end());
        let devices = claims["submods"].as_object().unwrap().values();
        let device_status = |device: &serde_json::Value| {
            let status = device["ear_status"].as_str().unwrap().to_owned();
            (status, device.get("ear_trustworthiness_vector").is_some())
        };
        devices.map(device_status).collect()
    };
    let two_devices = |status: &str, has_vector| vec![(status.to_owned(), has_vector); 2];
    wait_until("fresh results", || results() == two_devices("affirming", true));
    let lines = gateway.terminate();
    let mut statuses = lines.iter().filter(|line| line["event"] == "status");
    assert_eq!(statuses.next_back().unwrap()["attest"]["provers"], 2);

    wait_until("stale devices", || fixture.states() == ["stale", "stale"]);
    assert_eq!(results(), two_devices("none", false));
    let text = site.on_registry("attest list").ok();
    assert!(
        text.contains("stale: last round") && text.ends_with("2 devices: 2 stale\n"),
        "{text}"
    );
    let error = site.on_registry("attest check").refused(1);
    assert!(error.contains("not ok: 2 of 2 devices"), "{error}");
    // `attest show` also reports the state as stale.
    let text = site.on_registry("attest show d1").ok();
    assert!(text.contains("stale: last round"), "{text}");
}

fn wait_until(condition_name: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "no {condition_name} after {TEST_TIMEOUT:?}"
        );
    }
}

#[test]
fn results_need_a_key() {
    let fixture = AttestationFixture::new(1, LONG_INTERVAL_POLICY);
    let site = &fixture.site;
    let error = site.on_registry("attest export").refused(2);
    assert!(error.contains("--signing-key"), "{error}");
    let error = site
        .on_registry("attest export --signing-key none.pem")
        .refused(2);
    assert!(error.contains("none.pem: cannot be read"), "{error}");
    let mut command = site.command("linewarden attest export --signing-key results.pem");
    command.env("LINEWARDEN_SERVER", "https://127.0.0.1:1");
    let error = CommandOutput::from(command.output().unwrap()).refused(2);
    assert!(
        error.contains("--signing-key requires --config or --registry"),
        "{error}"
    );
    // A device that was never attested has no result to sign.
    let output = site.on_registry("attest export --signing-key results.pem");
    assert_eq!((output.code, output.out.as_str()), (0, ""), "{}", output.err);
    assert!(output.err.contains("omitted from the results"), "{}", output.err);
}
