//! The enrolment of a device with a TPM, which an emulator is, through files.

mod boot;
#[path = "../../../../measurement/tests/common/log.rs"]
#[allow(dead_code, reason = "it makes more than is needed here")]
mod log;
#[path = "../../../../tpm/tests/emulator/swtpm.rs"]
#[allow(dead_code, reason = "it does more than is needed here")]
mod swtpm;

use linewarden_measurement::eventlog::EventType;
use linewarden_measurement::pcr::PcrSelection;
use linewarden_protocol::attest::{PeriodStart, quote_nonce};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::Protection;
use linewarden_tpm::AttestationKey as _;
use linewarden_tpm::device::{EndorsementKind, KeyBlobs, SignerKind, TpmKey};
use linewarden_tpm::endorsement::EkHash;
use linewarden_tpm::enrol::{Identity, Offer, Version, from_json};
use linewarden_tpm::evidence::{Evidence, EvidenceQuote};
use linewarden_tpm::public::Public;
use linewarden_tpm::template::EndorsementKey;

use self::log::Log;
use self::swtpm::{Emulator, Maker, installed};
use super::*;

const BANK: HashAlgorithm = HashAlgorithm::Sha256;
const DEVICE: DeviceId = DeviceId(0xd1);

/// The PCR that a process may extend and reset, and some that nobody has extended.
fn selection() -> PcrSelection {
    "0,16".parse().unwrap()
}

/// A log in which a boot loader has measured this.
pub fn log_of(measured: &[u8]) -> Vec<u8> {
    let mut log = Log::new();
    log.event(16, EventType::EV_IPL, measured, measured);
    log.bytes
}

/// A site, and a device with a TPM whose maker the operator believes.
struct Bench {
    site: Site,
    emulator: Emulator,
    keys: KeyBlobs,
}

impl Bench {
    fn new() -> Option<Self> {
        if !installed() {
            return None;
        }
        let site = Site::attesting(2);
        let maker = Maker::new();
        fs::create_dir_all(site.path("makers/intermediate")).unwrap();
        // The maker's certificates are made with its first TPM.
        let emulator = Emulator::made_by(&maker);
        let believed = [
            ("swtpm-localca-rootca-cert.pem", "makers/root.pem"),
            ("issuercert.pem", "makers/intermediate/ca.pem"),
        ];
        for (from, to) in believed {
            fs::copy(maker.file(from), site.path(to)).unwrap();
        }
        let keys = emulator
            .open()
            .create_keys(EndorsementKind::Rsa2048, SignerKind::default())
            .unwrap();
        let bench = Self { site, emulator, keys };
        bench.boots(b"kernel 1");
        Some(bench)
    }

    /// Measures a boot, beginning anew.
    fn boots(&self, measured: &[u8]) {
        let digest = BANK.digest(&[measured]);
        let at = self.site.directory.path();
        self.emulator.tool(at, &["tpm2_pcrreset", "16"]);
        self.emulator
            .tool(at, &["tpm2_pcrextend", &format!("16:sha256={digest}")]);
    }

    /// The device's identity, with this log.
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

    fn begin(&self, words: &str) -> Said {
        self.site.on_registry(&format!(
            "attest enroll d1 --group pumps --identity d1.identity --offer d1.offer --pending d1.pending {words}"
        ))
    }

    /// The device answers the offer.
    fn answer(&mut self) {
        let offer: Offer = from_json(&fs::read(self.site.path("d1.offer")).unwrap()).unwrap();
        let (key, answer) = self.emulator.open().accept(&self.keys, &offer).unwrap();
        self.keys.key = Some(key);
        fs::write(self.site.path("d1.answer"), serde_json::to_vec(&answer).unwrap()).unwrap();
    }

    fn finish(&self, words: &str) -> Said {
        self.site.on_registry(&format!(
            "attest enroll d1 --group pumps --answer d1.answer --pending d1.pending {words}"
        ))
    }
}

#[test]
fn a_device_with_a_tpm_is_enrolled_and_explained() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.identity(Some(log_of(b"kernel 1")));
    let told = bench.begin("--trust makers").ok();
    assert!(
        told.contains("the event log replays to 2 PCRs with 1 event") && told.contains("300 s to answer"),
        "{told}"
    );
    let mode = fs::metadata(bench.site.path("d1.pending"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let error = bench.begin("--trust makers").refused(2);
    assert!(error.contains("d1.offer exists already"), "{error}");
    bench.answer();

    // What waits is of one device, and stays until that one's answer was right.
    let error = bench
        .site
        .on_registry("attest enroll d2 --group pumps --answer d1.answer --pending d1.pending")
        .refused(2);
    assert!(
        error.contains("d1.pending: it is of device 00000000000000d1, not of 00000000000000d2"),
        "{error}"
    );
    let told = bench.finish("--port 7000").ok();
    assert!(
        told.contains("00000000000000d1 is enrolled for attestation in group pumps; its key lies in the TPM")
            && told.contains("CN=swtpm-localca under CN=swtpm-localca-rootca")
            && told.contains("port = 7000"),
        "{told}"
    );
    assert!(!bench.site.path("d1.pending").exists());
    let error = bench.finish("").refused(2);
    assert!(
        error.contains("d1.pending: it is not there; it is removed at the end, so 00000000000000d1 may be enrolled already"),
        "{error}"
    );
    let prover = bench
        .site
        .with_registry(async |registry| registry.prover(DEVICE).await.unwrap().unwrap());
    assert_eq!((prover.protection, prover.port), (Protection::Tpm, 7000));
    assert_eq!(bench.site.standing("d1")["key"], "tpm");

    bench.explains();
}

impl Bench {
    /// A period that has begun.
    fn period(&self) -> PeriodStart {
        self.site.with_registry(async |registry| {
            let period = registry.draw_period(None, [1; 8], 1).await.unwrap();
            registry.begin_period(period.number, 1).await.unwrap();
            PeriodStart {
                period: period.number,
                salt: period.salt,
            }
        })
    }

    /// Sends what the device runs, quoted by its TPM, as its agent would.
    fn says(&self, start: &PeriodStart, log: Vec<u8>) -> Configuration {
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
                .put_evidence(DEVICE, &document, super::rounds::now_s())
                .await
                .unwrap();
        });
        configuration
    }

    /// Another kernel is told with the event that differs, and that the TPM has signed it.
    fn explains(&self) {
        let site = &self.site;
        let start = self.period();
        let expected = self.says(&start, log_of(b"kernel 1"));
        site.write_configuration("pumps.conf", &expected);
        site.on_registry("attest group set pumps --reference pumps.conf")
            .ok();
        let shown = site.on_registry("attest explain d1").ok();
        assert!(
            shown.contains("its TPM has signed the PCRs (quote verified;")
                && shown.contains("It says it runs what it should."),
            "{shown}"
        );
        self.boots(b"kernel 2");
        self.says(&start, log_of(b"kernel 2"));
        let shown = site.on_registry("attest explain d1").ok();
        let lines: Vec<&str> = shown.lines().collect();
        let at = lines
            .iter()
            .position(|line| line.starts_with("  PCR 16: "))
            .unwrap();
        assert!(
            lines[at + 1].contains("was entry 1, PCR 16, EV_IPL") && lines[at + 1].contains("kernel 1"),
            "{shown}"
        );
        assert!(
            lines[at + 2].contains("is entry 1") && lines[at + 2].contains("kernel 2"),
            "{shown}"
        );
    }
}

/// A fleet is updated without enrolling it twice: the key works with the old kernel, with the new one, and with no other.
#[test]
fn a_key_works_in_the_boots_of_its_group_and_in_those_that_were_named() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    let state = |bench: &Bench, kernel: &[u8], file: &str| {
        bench.boots(kernel);
        let pcrs = bench.emulator.open().pcrs(BANK, selection()).unwrap();
        let measured = Configuration::new(pcrs, configuration(1).files().clone()).unwrap();
        bench.site.write_configuration(file, &measured);
    };
    state(&bench, b"kernel 2", "2.conf");
    state(&bench, b"kernel 3", "3.conf");
    state(&bench, b"kernel 1", "1.conf");
    let run = |bench: &Bench, words: &str| bench.site.on_registry(words).ok();
    run(&bench, "attest group set pumps --reference 1.conf");
    run(
        &bench,
        "attest group roll-out pumps --reference 2.conf --for 3600",
    );
    bench.identity(Some(log_of(b"kernel 1")));
    let error = bench.begin("--trust makers --state pumps.conf").refused(2);
    assert!(error.contains("pumps.conf: it is of PCRs"), "{error}");
    let told = bench.begin("--trust makers --state 3.conf --state 1.conf").ok();
    assert!(told.contains("the key works in 3 states of 2 PCRs"), "{told}");
    bench.answer();
    bench.finish("").ok();
    let key = bench.keys.key.clone().unwrap();
    for (kernel, works) in [
        (b"kernel 1", true),
        (b"kernel 2", true),
        (b"kernel 3", true),
        (b"kernel 4", false),
    ] {
        bench.boots(kernel);
        let loaded = TpmKey::load(bench.emulator.open(), EndorsementKind::Rsa2048, &key);
        let made = loaded.unwrap().hmac(b"message");
        assert_eq!(made.is_ok(), works, "{}: {made:?}", kernel.escape_ascii());
    }
}

#[test]
fn a_tpm_without_a_log_that_speaks_of_its_pcrs_is_enrolled_with_a_notice() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    // None, as the device's agent sends it; an empty one; and one that knows SHA-1 alone.
    let old = {
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
        (
            None,
            "the device has no event log that says how its PCRs came about",
        ),
        (Some(Vec::new()), "the event log is empty"),
        (
            Some(old),
            "the event log has no digests of the bank sha256, only of sha1",
        ),
    ];
    for (log, why) in logs {
        bench.identity(log);
        let said = bench.begin("--trust makers --json");
        let notice = format!("{why}: PCRs 0,16 are appraised by their values alone");
        assert!(said.err.contains(&notice), "{}", said.err);
        let told = json(&said.ok());
        assert_eq!(
            (&told["events"], &told["notices"][0]["notice"]),
            (&serde_json::Value::Null, &"no_log".into())
        );
        if why.contains("sha1") {
            continue;
        }
        for name in ["d1.offer", "d1.pending"] {
            fs::remove_file(bench.site.path(name)).unwrap();
        }
    }
    bench.answer();
    let told = bench.finish("").ok();
    assert!(
        told.contains("00000000000000d1 is enrolled for attestation"),
        "{told}"
    );
}

/// Data that the digest is not of are shown as such, with their digest, and refuse nothing.
#[test]
fn unexplained_data_are_enrolled_and_explained_by_their_digests() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    let log_of = |measured: &[u8]| {
        let mut log = Log::new();
        log.event(16, EventType::EV_S_CRTM_VERSION, measured, b"2.3.5");
        log.bytes
    };
    bench.identity(Some(log_of(b"kernel 1")));
    let said = bench.begin("--trust makers");
    assert!(
        said.err
            .contains("1 event of the log with data that the digest is not of"),
        "{}",
        said.err
    );
    said.ok();
    bench.answer();
    bench.finish("").ok();
    let site = &bench.site;
    let start = bench.period();
    let expected = bench.says(&start, log_of(b"kernel 1"));
    site.write_configuration("pumps.conf", &expected);
    site.on_registry("attest group set pumps --reference pumps.conf")
        .ok();
    bench.boots(b"kernel 2");
    bench.says(&start, log_of(b"kernel 2"));
    let shown = site.on_registry("attest explain d1").ok();
    for measured in [&b"kernel 1"[..], b"kernel 2"] {
        let event = format!(
            "EV_S_CRTM_VERSION: 2.3.5 (unexplained, digest {})",
            BANK.digest(&[measured])
        );
        assert!(shown.contains(&event), "{shown}");
    }
    assert!(shown.contains("1 event of the log with data"), "{shown}");
    let shown = json(&site.on_registry("attest explain d1 --json").ok());
    assert_eq!(shown["says"]["unexplained"][0]["binding"], "unexplained");
}

#[test]
fn what_a_tpm_must_not_be_enrolled_with_is_refused() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    let left = |bench: &Bench| {
        let names = bench.site.names(".");
        let made = names
            .iter()
            .filter(|name| name.ends_with(".offer") || name.ends_with(".pending"));
        made.count()
    };
    // Logs that are not of this boot, or not logs.
    for (log, told) in [
        (
            Some(log_of(b"kernel 2")),
            "does not replay to its PCRs: PCR 16: the event log gives",
        ),
        (Some(log_of(b"kernel 2")), "the last entry for it is 1"),
        (Some(b"a log".to_vec()), "its event log: "),
    ] {
        bench.identity(log);
        let error = bench.begin("--trust makers").refused(2);
        assert!(
            error.starts_with("error: d1.identity: ") && error.contains(told),
            "{told}: {error}"
        );
        assert_eq!(left(&bench), 0);
    }
    let mut nothing = serde_json::to_value(bench.identity(None)).unwrap();
    nothing["pcrs"]["values"] = serde_json::json!({});
    fs::write(bench.site.path("d1.identity"), nothing.to_string()).unwrap();
    let error = bench.begin("--trust makers").refused(2);
    assert!(error.contains("it has no PCRs"), "{error}");
    // A key that nobody vouches for, and then the operator himself.
    let identity = bench.identity(Some(log_of(b"kernel 1")));
    let hash =
        EkHash::of(&EndorsementKey::new(Public::from_sized(&identity.endorsement_key).unwrap()).unwrap());
    fs::create_dir(bench.site.path("nobody")).unwrap();
    for (words, told) in [
        (
            "--trust nobody",
            "nobody: there is no certificate in it".to_owned(),
        ),
        ("--trust none", "none: cannot be read".to_owned()),
        ("", "nobody who is trusted issued".to_owned()),
        ("", format!("SHA-256 of the endorsement key: {hash}")),
    ] {
        let error = bench.begin(words).refused(2);
        assert!(error.contains(&told), "{words}: {error}");
    }
    fs::write(bench.site.path("nobody/text"), "no certificate").unwrap();
    let error = bench.begin("--trust nobody").refused(2);
    assert!(error.contains("nobody/text"), "{error}");
    let wrong = "11".repeat(32);
    let error = bench.begin(&format!("--pin {wrong}")).refused(2);
    let told = format!("--pin {wrong} is not the SHA-256 of this endorsement key, which is {hash}");
    assert!(error.contains(&told), "{error}");
    assert!(!error.contains("nobody who is trusted"), "{error}");
    assert_eq!(left(&bench), 0);

    bench.begin(&format!("--pin {hash}")).ok();
    bench.answer();
    bench.refuses_other_files();
    // An answer to another offer changes nothing.
    for name in ["d1.offer", "d1.pending"] {
        fs::rename(bench.site.path(name), bench.site.path(&format!("first-{name}"))).unwrap();
    }
    bench.begin(&format!("--pin {hash}")).ok();
    let error = bench.finish("").refused(2);
    assert!(
        error.contains("d1.answer: the answer belongs to another conversation"),
        "{error}"
    );
    fs::write(bench.site.path("damaged.pending"), "{}").unwrap();
    fs::set_permissions(
        bench.site.path("damaged.pending"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let finish = |pending: &str| {
        bench.site.on_registry(&format!(
            "attest enroll d1 --group pumps --answer d1.answer --pending {pending}"
        ))
    };
    let error = finish("damaged.pending").refused(2);
    assert!(error.contains("not what `--identity` has written"), "{error}");
    let told = finish("first-d1.pending").ok();
    assert!(told.contains("(pinned)"), "{told}");
    assert!(bench.site.path("d1.pending").exists(), "another conversation's");
    let error = bench.begin(&format!("--pin {hash} --replace")).refused(2);
    assert!(error.contains("exists already"), "{error}");
}

impl Bench {
    /// An answer that was cut off on the way, is of another version, or is another file of the conversation.
    fn refuses_other_files(&self) {
        let answer = fs::read(self.site.path("d1.answer")).unwrap();
        let mut newer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        newer["version"] = 2.into();
        for (bytes, told) in [
            (Vec::new(), "it is empty or cut off"),
            (answer[..100].to_vec(), "it is empty or cut off"),
            (newer.to_string().into_bytes(), "it is of version 2"),
            (
                b"no message".to_vec(),
                "it was damaged, or is something else (line 1, column 2)",
            ),
            (
                fs::read(self.site.path("d1.offer")).unwrap(),
                "it is an operator's offer",
            ),
            (
                fs::read(self.site.path("d1.identity")).unwrap(),
                "it is a device's identity",
            ),
        ] {
            fs::write(self.site.path("d1.other"), bytes).unwrap();
            let error = self
                .site
                .on_registry("attest enroll d1 --group pumps --answer d1.other --pending d1.pending")
                .refused(2);
            let told = format!("d1.other: a device's answer is wanted: {told}");
            assert!(
                error.contains(&told) && error.contains("carry the right file over anew"),
                "{told}: {error}"
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
            error.contains("a device's identity is wanted: it is a device's answer"),
            "{error}"
        );
    }
}
