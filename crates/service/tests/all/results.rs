//! Signed attestation results, verified with only the public key, and the list of revoked signers in the format that
//! receivers read.

use std::time::{Duration, Instant};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use linewarden_controller::attest::Signer;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::Role;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::Revocations;
use reqwest::Method;
use serde_json::{Value, json};

use crate::controller::{ApiClient, TestController};
use crate::fleet::{DeviceSpec, Fleet, make_group, start_gateway};
use crate::gateways::enroll;
use crate::site::TIMEOUT;

/// Returns the claims of a token; `None` if the public key does not verify the token's signature.
fn claims(jwk: &str, token: &str) -> Option<Value> {
    let jwk: Value = serde_json::from_str(jwk).unwrap();
    let bytes = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    let mut point = vec![4];
    for coordinate in ["x", "y"] {
        point.extend(bytes(jwk[coordinate].as_str().unwrap()).unwrap());
    }
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
    let (signed_text, signature) = token.rsplit_once('.')?;
    key.verify(signed_text.as_bytes(), &bytes(signature)?).ok()?;
    let (header, claims) = signed_text.split_once('.')?;
    let header: Value = serde_json::from_slice(&bytes(header)?).ok()?;
    assert_eq!(header, json!({"typ": "JWT", "alg": "ES256"}));
    serde_json::from_slice(&bytes(claims)?).ok()
}

/// Waits until a device has this state, and returns the claims of its signed result.
#[track_caller]
fn wait_for_signed_result(viewer: &ApiClient<'_>, jwk: &str, device: DeviceId, state: &str) -> Value {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let request = viewer.request(Method::GET, &format!("/api/v1/results/{device}"));
        let message = viewer.send(request);
        if message.status == 200 {
            let claims = claims(jwk, &message.text).expect("the controller has signed the result");
            let device_claims = &claims["submods"][device.to_string()];
            if device_claims["ear_verifier_claims"]["state"] == state {
                return claims;
            }
        }
        assert!(Instant::now() < deadline, "{} {}", message.status, message.text);
    }
}

#[test]
fn attestation_results_are_signed() {
    let signer = Signer::from_pem(&Signer::generate_pem().unwrap()).unwrap();
    let jwk = signer.public_jwk();
    let controller = TestController::new_with_change(|controller| controller.with_signer(signer));
    let vera = controller.caller("vera", Role::Viewer);
    make_group(&controller, "sensors", 1);
    let (gateway, address) = start_gateway(&controller, GatewayId(3));
    let [attested, unresponsive, never_attested] = [0xd1, 0xd2, 0xd9].map(DeviceId);
    let specs = [attested, unresponsive].map(|device| DeviceSpec {
        device,
        name: String::new(),
        gateway: address,
        first_gateway: GatewayId(3),
        group: "sensors",
        is_changed: false,
    });
    let fleet = Fleet::start(&controller, &specs, Duration::from_millis(200));
    enroll(&controller, never_attested, 1);

    let result = wait_for_signed_result(&vera, &jwk, attested, "ok");
    assert_eq!(result["eat_profile"], "tag:ietf.org,2026:rats/ear#04");
    assert!(result["exp"].as_u64() > result["iat"].as_u64(), "{result}");
    let submods = result["submods"].as_object().unwrap();
    assert_eq!(submods.len(), 1, "{result}");
    let attested_claims = &submods[&attested.to_string()];
    assert_eq!(attested_claims["ear_status"], "affirming", "{result}");
    assert_eq!(
        attested_claims["ear_trustworthiness_vector"]["executables"], 2,
        "{result}"
    );
    assert_eq!(attested_claims["ear_verifier_claims"]["gateway"], 3, "{result}");
    assert_eq!(
        attested_claims["ear_appraisal_policy_ids"],
        json!(["linewarden:group:sensors"])
    );
    wait_for_signed_result(&vera, &jwk, unresponsive, "ok");
    fleet.set_muted(unresponsive, true);
    let result = wait_for_signed_result(&vera, &jwk, unresponsive, "quarantined");
    let unresponsive_claims = &result["submods"][unresponsive.to_string()];
    assert_eq!(unresponsive_claims["ear_status"], "contraindicated", "{result}");
    assert!(
        unresponsive_claims["ear_trustworthiness_vector"].is_null(),
        "{result}"
    );

    // A modified result does not verify, and a result does not verify with another key.
    let response = vera.send(vera.request(Method::GET, &format!("/api/v1/results/{attested}")));
    let (first_half, second_half) = response.text.split_at(response.text.len() / 2);
    let replacement = if second_half.starts_with('A') { "B" } else { "A" };
    assert_eq!(
        claims(&jwk, &format!("{first_half}{replacement}{}", &second_half[1..])),
        None
    );
    let other_signer = Signer::from_pem(&Signer::generate_pem().unwrap()).unwrap();
    assert_eq!(claims(&other_signer.public_jwk(), &response.text), None);

    for (state, device) in [("ok", attested), ("quarantined", unresponsive)] {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let result_list = vera.get(&format!("/api/v1/results?state={state}")).ok();
            let items = result_list["items"].as_array().unwrap();
            assert!(items.iter().all(|item| item["state"] == state), "{result_list}");
            if items.len() == 1 && items[0]["device"] == device.to_string() {
                break;
            }
            assert!(Instant::now() < deadline, "{result_list}");
        }
    }
    let path = |device: DeviceId| format!("/api/v1/results/{device}");
    vera.get(&path(never_attested)).refused(404, "not_found");
    vera.get(&path(DeviceId(0xff))).refused(404, "unknown_device");
    drop(fleet);
    drop(gateway);
}

#[test]
fn receivers_can_read_the_list_of_revoked_signers() {
    let controller = TestController::new();
    let ada = controller.caller("ada", Role::Admin);
    let read = || {
        let message = ada.send(ada.request(Method::GET, "/api/v1/signers/revoked"));
        assert_eq!(message.status, 200, "{}", message.text);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &message.text).unwrap();
        Revocations::read(file.path()).unwrap()
    };
    assert!(read().is_empty());
    let ids = ["beacon", "mast", "buoy"].map(|name| {
        let key = PrivateKey::generate(Scheme::Ed25519, None).unwrap();
        let public_key = key.public().to_json().unwrap();
        let new = json!({"name": name, "public_key": public_key, "reason": "new"});
        ada.post("/api/v1/signers", &new).ok();
        key.public().id()
    });
    assert!(read().is_empty());
    let [beacon, mast, buoy] = ids;
    for (signer, count) in [(mast, 1), (buoy, 2)] {
        let path = format!("/api/v1/signers/{signer}/revoke");
        ada.post(&path, &json!({"reason": "stolen"})).ok();
        assert_eq!(read().len(), count);
    }
    let list = read();
    assert!(list.contains(mast) && list.contains(buoy) && !list.contains(beacon));
}
