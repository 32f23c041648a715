//! Enrollment of a device with an emulated TPM, by exchange of files.

mod boot;
#[path = "../../../../../../crates/measurement/tests/common/log.rs"]
#[allow(dead_code, reason = "these tests use only some of the items")]
mod log;

use linewarden_measurement::eventlog::EventType;
use linewarden_measurement::pcr::PcrSelection;
use linewarden_protocol::attest::{PeriodStart, quote_nonce};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::Protection;
use linewarden_tpm::AttestationKey as _;
use linewarden_tpm::device::{EndorsementKind, KeyBlobs, SignerKind, TpmKey};
use linewarden_tpm::endorsement::EkHash;
use linewarden_tpm::enroll::{Identity, KeyOffer, Version, from_json};
use linewarden_tpm::evidence::{Evidence, EvidenceQuote};
use linewarden_tpm::public::Public;
use linewarden_tpm::template::EndorsementKey;

use self::log::Log;
use super::*;
use crate::emulator::{self, Emulator, TpmManufacturer};

const BANK: HashAlgorithm = HashAlgorithm::Sha256;
const DEVICE: DeviceId = DeviceId(0xd1);

/// PCR 16, which any process can extend and reset, and PCR 0, which is never extended.
fn selection() -> PcrSelection {
    "0,16".parse().unwrap()
}

/// A TCG event log in which a boot loader has measured these bytes.
pub fn log_with_event(measured: &[u8]) -> Vec<u8> {
    let mut log = Log::new();
    log.event(16, EventType::EV_IPL, measured, measured);
    log.bytes
}

/// A site, and a device with a TPM of a trusted manufacturer.
struct TpmFixture {
    site: Site,
    emulator: Emulator,
    keys: KeyBlobs,
}

impl TpmFixture {
    fn new() -> Self {
        emulator::require();
        let site = Site::attesting(2);
        let manufacturer = TpmManufacturer::new();
        fs::create_dir_all(site.path("makers/intermediate")).unwrap();
        // The manufacturer's certificates are created with the first TPM.
        let emulator = Emulator::made_by(&manufacturer);
        let trusted_certificates = [
            ("swtpm-localca-rootca-cert.pem", "makers/root.pem"),
            ("issuercert.pem", "makers/intermediate/ca.pem"),
        ];
        for (from, to) in trusted_certificates {
            fs::copy(manufacturer.file(from), site.path(to)).unwrap();
        }
        let keys = emulator
            .open()
            .create_keys(EndorsementKind::Rsa2048, SignerKind::default())
            .unwrap();
        let fixture = Self { site, emulator, keys };
        fixture.boot(b"kernel 1");
        fixture
    }

    /// Resets PCR 16 and extends it with the digest of `measured`, as a boot would do.
    fn boot(&self, measured: &[u8]) {
        let digest = BANK.digest(&[measured]);
        let directory = self.site.directory.path();
        self.emulator.tool(directory, &["tpm2_pcrreset", "16"]);
        self.emulator
            .tool(directory, &["tpm2_pcrextend", &format!("16:sha256={digest}")]);
    }

    /// Writes the device's identity, with this event log, to `d1.identity`.
    fn identity(&self, log: Option<Vec<u8>>) -> Identity {
        let identity = self
            .emulator
            .open()
            .identity(&self.keys, BANK, selection(), log)
            .unwrap();
        fs::write(
            self.site.path("d1.identity"),
            serde_json::to_vec(&identity).unwrap(),
        )
        .unwrap();
        identity
    }

    /// Runs the operator's first step, which creates an offer to the device.
    fn begin(&self, arguments: &str) -> CommandOutput {
        self.site.on_registry(&format!(
            "attest enroll d1 --group pumps --identity d1.identity --offer d1.offer --pending d1.pending {arguments}"
        ))
    }

    /// Creates the device's answer to the offer.
    fn answer(&mut self) {
        let offer: KeyOffer = from_json(&fs::read(self.site.path("d1.offer")).unwrap()).unwrap();
        let (key, answer) = self.emulator.open().accept(&self.keys, &offer).unwrap();
        self.keys.key = Some(key);
        fs::write(self.site.path("d1.answer"), serde_json::to_vec(&answer).unwrap()).unwrap();
    }

    /// Runs the operator's second step, which reads the device's answer.
    fn finish(&self, arguments: &str) -> CommandOutput {
        self.site.on_registry(&format!(
            "attest enroll d1 --group pumps --answer d1.answer --pending d1.pending {arguments}"
        ))
    }
}

#[test]
fn a_device_with_a_tpm_is_enrolled_and_explained() {
    let mut fixture = TpmFixture::new();
    fixture.identity(Some(log_with_event(b"kernel 1")));
    let text = fixture.begin("--trust makers").ok();
    assert!(
        text.contains("the TCG event log replays to 2 PCRs with 1 event")
            && text.contains("must answer within 300 s"),
        "{text}"
    );
    let mode = fs::metadata(fixture.site.path("d1.pending"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let error = fixture.begin("--trust makers").refused(2);
    assert!(error.contains("d1.offer already exists"), "{error}");
    fixture.answer();

    // A pending enrollment is for one device. Its file remains until the device's answer is valid.
    let error = fixture
        .site
        .on_registry("attest enroll d2 --group pumps --answer d1.answer --pending d1.pending")
        .refused(2);
    assert!(
        error.contains(
            "d1.pending: pending enrollment is of device 00000000000000d1, not of 00000000000000d2"
        ),
        "{error}"
    );
    let text = fixture.finish("--port 7000").ok();
    assert!(
        text.contains(
            "enrolled device 00000000000000d1 for attestation in group pumps; its key is in the TPM"
        ) && text.contains("CN=swtpm-localca, issued by CN=swtpm-localca-rootca")
            && text.contains("port = 7000"),
        "{text}"
    );
    assert!(!fixture.site.path("d1.pending").exists());
    let error = fixture.finish("").refused(2);
    assert!(
        error.contains("d1.pending: file not found; an enrollment deletes the file at its end, so 00000000000000d1 may be enrolled already"),
        "{error}"
    );
    let prover = fixture
        .site
        .with_registry(async |registry| registry.prover(DEVICE).await.unwrap().unwrap());
    assert_eq!((prover.protection, prover.port), (Protection::Tpm, 7000));
    assert_eq!(fixture.site.status("d1")["protection"], "tpm");

    fixture.check_explanation();
}

impl TpmFixture {
    /// Creates and starts a period.
    fn start_period(&self) -> PeriodStart {
        self.site.with_registry(async |registry| {
            let period = registry.create_period(None, [1; 8], 1).await.unwrap();
            registry.start_period(period.number, 1).await.unwrap();
            PeriodStart {
                period: period.number,
                salt: period.salt,
            }
        })
    }

    /// Stores the device's configuration with a quote of its TPM, as if the agent had sent them. Returns the configuration.
    fn submit_evidence(&self, start: &PeriodStart, log: Vec<u8>) -> Configuration {
        let quoted = self
            .emulator
            .open()
            .quote(&self.keys, &quote_nonce(DEVICE, start), BANK, selection())
            .unwrap();
        let configuration = Configuration::new(quoted.values, configuration(1).files().clone()).unwrap();
        let evidence = Evidence {
            version: Version,
            period: start.period.0,
            configuration: configuration.encode(),
            event_log: Some(log),
            quote: Some(EvidenceQuote {
                quote: quoted.attest,
                signature: quoted.signature,
            }),
            protection: linewarden_tpm::Protection::Tpm,
        };
        let document = serde_json::to_vec(&evidence).unwrap();
        self.site.with_registry(async |registry| {
            registry
                .store_evidence(DEVICE, &document, super::rounds::now_s())
                .await
                .unwrap();
        });
        configuration
    }

    /// Checks that `attest show` names the event that differs after the boot of another kernel.
    fn check_explanation(&self) {
        let site = &self.site;
        let start = self.start_period();
        let expected = self.submit_evidence(&start, log_with_event(b"kernel 1"));
        site.write_configuration("pumps.conf", &expected);
        site.on_registry("attest group set pumps --reference pumps.conf")
            .ok();
        let text = site.on_registry("attest show d1").ok();
        assert!(
            text.contains("its TPM signed the PCRs (quote verified;")
                && text.contains("The claimed configuration is the expected one."),
            "{text}"
        );
        self.boot(b"kernel 2");
        self.submit_evidence(&start, log_with_event(b"kernel 2"));
        let text = site.on_registry("attest show d1").ok();
        let lines: Vec<&str> = text.lines().collect();
        let pcr_line = lines
            .iter()
            .position(|line| line.starts_with("  PCR 16: "))
            .unwrap();
        assert!(
            lines[pcr_line + 1].contains("was entry 1, PCR 16, EV_IPL")
                && lines[pcr_line + 1].contains("kernel 1"),
            "{text}"
        );
        assert!(
            lines[pcr_line + 2].contains("is entry 1") && lines[pcr_line + 2].contains("kernel 2"),
            "{text}"
        );
    }
}

/// The key works with the kernels of the reference value, of the roll-out and of the option `--state`, and with no other
/// kernel. An update therefore needs no second enrollment.
#[test]
fn a_key_works_only_in_the_boots_of_its_group_and_of_the_option_state() {
    let mut fixture = TpmFixture::new();
    let write_boot = |fixture: &TpmFixture, kernel: &[u8], file: &str| {
        fixture.boot(kernel);
        let pcrs = fixture.emulator.open().pcrs(BANK, selection()).unwrap();
        let measured = Configuration::new(pcrs, configuration(1).files().clone()).unwrap();
        fixture.site.write_configuration(file, &measured);
    };
    write_boot(&fixture, b"kernel 2", "2.conf");
    write_boot(&fixture, b"kernel 3", "3.conf");
    write_boot(&fixture, b"kernel 1", "1.conf");
    let run = |fixture: &TpmFixture, arguments: &str| fixture.site.on_registry(arguments).ok();
    run(&fixture, "attest group set pumps --reference 1.conf");
    run(
        &fixture,
        "attest rollout create pumps --reference 2.conf --for 3600",
    );
    fixture.identity(Some(log_with_event(b"kernel 1")));
    let error = fixture.begin("--trust makers --state pumps.conf").refused(2);
    assert!(error.contains("pumps.conf: has PCRs"), "{error}");
    let text = fixture.begin("--trust makers --state 3.conf --state 1.conf").ok();
    assert!(
        text.contains("the key works in 3 boots (compared: 2 PCRs)"),
        "{text}"
    );
    fixture.answer();
    fixture.finish("").ok();
    let key = fixture.keys.key.clone().unwrap();
    for (kernel, works) in [
        (b"kernel 1", true),
        (b"kernel 2", true),
        (b"kernel 3", true),
        (b"kernel 4", false),
    ] {
        fixture.boot(kernel);
        let loaded = TpmKey::load(fixture.emulator.open(), EndorsementKind::Rsa2048, &key);
        let mac = loaded.unwrap().hmac(b"message");
        assert_eq!(mac.is_ok(), works, "{}: {mac:?}", kernel.escape_ascii());
    }
}

#[test]
fn a_tpm_without_a_log_of_its_pcrs_is_enrolled_with_a_notice() {
    let mut fixture = TpmFixture::new();
    // No log, an empty log, and a log with SHA-1 digests only.
    let sha1_log = {
        let mut log = Log::empty();
        log.legacy(
            16,
            EventType::EV_IPL,
            HashAlgorithm::Sha1.digest(&[b"kernel 1"]).as_bytes(),
            b"kernel 1",
        );
        log.bytes
    };
    let logs = [
        (None, "the device has no TCG event log that explains its PCRs"),
        (Some(Vec::new()), "event log is empty"),
        (
            Some(sha1_log),
            "event log has no digests of the bank sha256, only of sha1",
        ),
    ];
    for (log, cause) in logs {
        fixture.identity(log);
        let output = fixture.begin("--trust makers --output json");
        let notice = format!("{cause}: PCRs 0,16 are appraised by their values alone");
        assert!(output.err.contains(&notice), "{}", output.err);
        let notice_line = json(&output.ok());
        assert_eq!(
            (&notice_line["event list"], &notice_line["notices"][0]["notice"]),
            (&serde_json::Value::Null, &"no_log".into())
        );
        if cause.contains("sha1") {
            continue;
        }
        for name in ["d1.offer", "d1.pending"] {
            fs::remove_file(fixture.site.path(name)).unwrap();
        }
    }
    fixture.answer();
    let text = fixture.finish("").ok();
    assert!(
        text.contains("enrolled device 00000000000000d1 for attestation"),
        "{text}"
    );
}

/// An event with data that do not match the event's digest is marked as unexplained, and the enrollment succeeds.
#[test]
fn unexplained_data_are_enrolled_and_explained_by_their_digests() {
    let mut fixture = TpmFixture::new();
    let log_with_event = |measured: &[u8]| {
        let mut log = Log::new();
        log.event(16, EventType::EV_S_CRTM_VERSION, measured, b"2.3.5");
        log.bytes
    };
    fixture.identity(Some(log_with_event(b"kernel 1")));
    let output = fixture.begin("--trust makers");
    assert!(
        output
            .err
            .contains("1 event with data that the digest does not cover"),
        "{}",
        output.err
    );
    output.ok();
    fixture.answer();
    fixture.finish("").ok();
    let site = &fixture.site;
    let start = fixture.start_period();
    let expected = fixture.submit_evidence(&start, log_with_event(b"kernel 1"));
    site.write_configuration("pumps.conf", &expected);
    site.on_registry("attest group set pumps --reference pumps.conf")
        .ok();
    fixture.boot(b"kernel 2");
    fixture.submit_evidence(&start, log_with_event(b"kernel 2"));
    let text = site.on_registry("attest show d1").ok();
    for measured in [&b"kernel 1"[..], b"kernel 2"] {
        let event = format!(
            "EV_S_CRTM_VERSION: 2.3.5 (unexplained, digest {})",
            BANK.digest(&[measured])
        );
        assert!(text.contains(&event), "{text}");
    }
    assert!(text.contains("1 event with data"), "{text}");
    let text = json(&site.on_registry("attest show d1 --output json").ok());
    assert_eq!(text["claimed"]["unexplained"][0]["coverage"], "unexplained");
}

#[test]
fn unsuitable_keys_of_a_tpm_are_rejected() {
    let mut fixture = TpmFixture::new();
    let pending_file_count = |fixture: &TpmFixture| {
        let names = fixture.site.file_names(".");
        let offer_files = names
            .iter()
            .filter(|name| name.ends_with(".offer") || name.ends_with(".pending"));
        offer_files.count()
    };
    // TCG event logs of another boot, and files that are not TCG event logs.
    for (log, cause) in [
        (
            Some(log_with_event(b"kernel 2")),
            "does not replay to the PCRs: PCR 16 does not match: the event log gives",
        ),
        (
            Some(log_with_event(b"kernel 2")),
            "the last entry of this PCR is 1",
        ),
        (Some(b"a log".to_vec()), "invalid TCG event log: "),
    ] {
        fixture.identity(log);
        let error = fixture.begin("--trust makers").refused(2);
        assert!(
            error.starts_with("error: d1.identity: ") && error.contains(cause),
            "{cause}: {error}"
        );
        assert_eq!(pending_file_count(&fixture), 0);
    }
    let mut empty = serde_json::to_value(fixture.identity(None)).unwrap();
    empty["pcrs"]["values"] = serde_json::json!({});
    fs::write(fixture.site.path("d1.identity"), empty.to_string()).unwrap();
    let error = fixture.begin("--trust makers").refused(2);
    assert!(
        error.contains("no PCRs, so the key would work after any boot"),
        "{error}"
    );
    // A key without a trusted certificate is rejected, unless the operator pins the key.
    let identity = fixture.identity(Some(log_with_event(b"kernel 1")));
    let hash =
        EkHash::of_key(&EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap());
    fs::create_dir(fixture.site.path("empty")).unwrap();
    for (arguments, cause) in [
        (
            "--trust empty",
            "empty: directory contains no certificate".to_owned(),
        ),
        ("--trust none", "none: cannot be read".to_owned()),
        ("", "is not trusted: its issuer".to_owned()),
        ("", format!("SHA-256 of the endorsement key: {hash}")),
    ] {
        let error = fixture.begin(arguments).refused(2);
        assert!(error.contains(&cause), "{arguments}: {error}");
    }
    fs::write(fixture.site.path("empty/text"), "no certificate").unwrap();
    let error = fixture.begin("--trust empty").refused(2);
    assert!(error.contains("empty/text"), "{error}");
    let wrong_digest = "11".repeat(32);
    let error = fixture.begin(&format!("--pin {wrong_digest}")).refused(2);
    let expected =
        format!("--pin {wrong_digest} is not the SHA-256 of this endorsement key, which is {hash}");
    assert!(error.contains(&expected), "{error}");
    assert!(!error.contains("is not trusted: its issuer"), "{error}");
    assert_eq!(pending_file_count(&fixture), 0);

    fixture.begin(&format!("--pin {hash}")).ok();
    fixture.answer();
    fixture.assert_other_files_are_rejected();
    // An answer to another offer changes nothing.
    for name in ["d1.offer", "d1.pending"] {
        fs::rename(
            fixture.site.path(name),
            fixture.site.path(&format!("first-{name}")),
        )
        .unwrap();
    }
    fixture.begin(&format!("--pin {hash}")).ok();
    let error = fixture.finish("").refused(2);
    assert!(
        error.contains("d1.answer: response rejected: it belongs to another enrollment"),
        "{error}"
    );
    fs::write(fixture.site.path("damaged.pending"), "{}").unwrap();
    fs::set_permissions(
        fixture.site.path("damaged.pending"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let finish = |pending: &str| {
        fixture.site.on_registry(&format!(
            "attest enroll d1 --group pumps --answer d1.answer --pending {pending}"
        ))
    };
    let error = finish("damaged.pending").refused(2);
    assert!(
        error.contains("not a file that --identity wrote with --pending"),
        "{error}"
    );
    let text = finish("first-d1.pending").ok();
    assert!(text.contains("(pinned)"), "{text}");
    assert!(
        fixture.site.path("d1.pending").exists(),
        "the file of another pending enrollment remains"
    );
    let error = fixture.begin(&format!("--pin {hash} --replace")).refused(2);
    assert!(error.contains("already exists"), "{error}");
}

impl TpmFixture {
    /// Asserts that the operator's second step rejects a truncated answer, an answer of another version, and other files of the
    /// enrollment.
    fn assert_other_files_are_rejected(&self) {
        let answer_bytes = fs::read(self.site.path("d1.answer")).unwrap();
        let mut newer_version: serde_json::Value = serde_json::from_slice(&answer_bytes).unwrap();
        newer_version["version"] = 2.into();
        for (bytes, cause) in [
            (Vec::new(), "message empty or truncated"),
            (answer_bytes[..100].to_vec(), "message empty or truncated"),
            (
                newer_version.to_string().into_bytes(),
                "unsupported message version 2",
            ),
            (
                b"no message".to_vec(),
                "message damaged or of another type (line 1, column 2)",
            ),
            (
                fs::read(self.site.path("d1.offer")).unwrap(),
                "unexpected message: an operator's offer",
            ),
            (
                fs::read(self.site.path("d1.identity")).unwrap(),
                "unexpected message: a device's identity",
            ),
        ] {
            fs::write(self.site.path("d1.other"), bytes).unwrap();
            let error = self
                .site
                .on_registry("attest enroll d1 --group pumps --answer d1.other --pending d1.pending")
                .refused(2);
            let cause = format!("d1.other: expected a device's answer: {cause}");
            assert!(
                error.contains(&cause) && error.contains("transfer the right file again"),
                "{cause}: {error}"
            );
        }
        fs::copy(self.site.path("d1.answer"), self.site.path("other.identity")).unwrap();
        let error = self
            .site
            .on_registry(
                "attest enroll d1 --group pumps --identity other.identity --offer other.offer --pending other.pending",
            )
            .refused(2);
        assert!(
            error.contains("expected a device's identity: unexpected message: a device's answer"),
            "{error}"
        );
    }
}
