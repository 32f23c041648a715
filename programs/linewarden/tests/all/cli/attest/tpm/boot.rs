//! A device gets no key for a boot that differs from the reference values, unless the operator accepts the boot.

use linewarden_registry::{NewGroup, QuarantineRequest, RollOut};

use super::*;

const GOOD: &[u8] = b"kernel 1";
const CHANGED: &[u8] = b"kernel 1 with a back door";

impl TpmFixture {
    /// Number of files with an offer.
    fn offer_count(&self) -> usize {
        let names = self.site.file_names(".");
        names.iter().filter(|name| name.ends_with(".offer")).count()
    }

    fn remove_offer(&self) {
        for name in ["d1.offer", "d1.pending"] {
            fs::remove_file(self.site.path(name)).unwrap();
        }
    }

    /// Boots the kernel and writes the measured configuration to a file, as `linewarden-agent measure --out` does.
    fn measure(&self, kernel: &[u8], file: &str) {
        self.boot(kernel);
        let pcrs = self.emulator.open().pcrs(BANK, selection()).unwrap();
        let measured = Configuration::new(pcrs, configuration(1).files().clone()).unwrap();
        self.site.write_configuration(file, &measured);
    }

    fn enroll(&mut self, arguments: &str) {
        self.begin(&format!("--trust makers {arguments}")).ok();
        self.answer();
        self.finish(
            arguments
                .split_whitespace()
                .find(|word| *word == "--replace")
                .unwrap_or(""),
        )
        .ok();
        fs::remove_file(self.site.path("d1.offer")).unwrap();
    }

    fn quarantine(&self) {
        self.site.with_registry(async |registry| {
            let enrolled_at = registry.prover(DEVICE).await.unwrap().unwrap().enrolled_at();
            let suspect = QuarantineRequest {
                device: DEVICE,
                enrolled_at,
                reason: "no proof".to_owned(),
            };
            let token = registry
                .register_gateway(linewarden_protocol::ids::GatewayId(99), 0)
                .await
                .unwrap();
            registry
                .quarantine(&token, &[suspect], super::super::rounds::now_s())
                .await
                .unwrap();
        });
    }

    /// Boots this kernel and begins a further enrollment of the device.
    fn begin_again(&self, kernel: &[u8], arguments: &str) -> CommandOutput {
        self.boot(kernel);
        self.identity(Some(log_with_event(kernel)));
        self.begin(&format!("--trust makers --replace {arguments}"))
    }
}

/// The attack: a device that was quarantined for its boot is enrolled again in the same boot.
#[test]
fn a_boot_that_led_to_quarantine_gets_no_key() {
    let mut fixture = TpmFixture::new();
    fixture.measure(CHANGED, "changed.conf");
    fixture.measure(GOOD, "good.conf");
    fixture
        .site
        .on_registry("attest group set pumps --reference good.conf")
        .ok();
    fixture.identity(Some(log_with_event(GOOD)));
    fixture.enroll("");
    let start = fixture.start_period();
    fixture.submit_evidence(&start, log_with_event(GOOD));
    fixture.quarantine();

    let error = fixture.begin_again(CHANGED, "").refused(4);
    for expected in [
        "boot of device 00000000000000d1 not accepted: the boot differs from the reference value of group pumps in PCRs 16;",
        "accept the present boot with `--state current`",
        "was entry 1, PCR 16, EV_IPL: kernel 1\n",
        "is entry 1, PCR 16, EV_IPL: kernel 1 with a back door",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(fixture.offer_count(), 0);

    // The device reports fewer PCRs, without the changed PCR.
    let identity_with_fewer_pcrs =
        fixture
            .emulator
            .open()
            .identity(&fixture.keys, BANK, "0".parse().unwrap(), None);
    fs::write(
        fixture.site.path("d1.identity"),
        serde_json::to_vec(&identity_with_fewer_pcrs.unwrap()).unwrap(),
    )
    .unwrap();
    let error = fixture.begin("--trust makers --replace").refused(4);
    assert!(
        error.contains("its selection: PCRs 0 of bank sha256, not 0,16 of bank sha256"),
        "{error}"
    );
    assert_eq!(fixture.offer_count(), 0);

    // The device claims the PCR values of the accepted boot. The key works only in that boot, so the device cannot use it.
    let mut forged = serde_json::to_value(fixture.identity(None)).unwrap();
    let accepted = Configuration::decode(&fs::read(fixture.site.path("good.conf")).unwrap()).unwrap();
    for (pcr, value) in accepted.pcrs().iter() {
        forged["pcrs"]["values"][pcr.to_string()] = value.to_string().into();
    }
    fs::write(fixture.site.path("d1.identity"), forged.to_string()).unwrap();
    let output = fixture.begin("--trust makers --replace").ok();
    assert!(
        output.contains("boot accepted: same PCRs as the reference value of group pumps"),
        "{output}"
    );
    let offer: KeyOffer = from_json(&fs::read(fixture.site.path("d1.offer")).unwrap()).unwrap();
    assert!(fixture.emulator.open().accept(&fixture.keys, &offer).is_err());
    fixture.remove_offer();

    // The boot of the group's roll-out is accepted until the roll-out expires.
    let roll_out = |until_s| {
        fixture.site.with_registry(async |registry| {
            let group = registry.group(&"pumps".parse().unwrap()).await.unwrap().unwrap();
            let group = NewGroup {
                name: group.name,
                policy: group.policy,
                reference: group.reference,
                roll_out: Some(RollOut {
                    reference: fs::read(fixture.site.path("changed.conf")).unwrap(),
                    until_s,
                }),
            };
            registry.set_group(&group, 1).await.unwrap();
        });
    };
    roll_out(2);
    let error = fixture.begin_again(CHANGED, "").refused(4);
    assert!(!error.contains("roll-out"), "{error}");
    roll_out(super::super::rounds::now_s() + 3_600);
    let output = fixture.begin_again(CHANGED, "").ok();
    assert!(
        output.contains("boot accepted: same PCRs as the roll-out of group pumps")
            && output.contains("the key works in 2 boots"),
        "{output}"
    );
    fixture.remove_offer();
    fixture.site.on_registry("attest rollout delete pumps").ok();

    // The operator accepts the boot.
    fixture.begin_again(CHANGED, "--state changed.conf").ok();
    fixture.remove_offer();
    let output = json(&fixture.begin_again(CHANGED, "--state current --output json").ok());
    assert_eq!(output["accepted"]["by"], "operator");
    fixture.answer();
    // A boot that was accepted for one group is not accepted for another group.
    fixture
        .site
        .on_registry("attest group set others --reference good.conf")
        .ok();
    let error = fixture
        .site
        .on_registry("attest enroll d1 --group others --answer d1.answer --pending d1.pending --replace")
        .refused(2);
    assert!(
        error.contains("d1.pending: enrollment was begun for group pumps, not others"),
        "{error}"
    );
    fixture.finish("--replace").ok();
}

#[test]
fn without_a_reference_value_of_pcrs_the_first_boot_is_accepted() {
    let mut fixture = TpmFixture::new();
    fixture.identity(Some(log_with_event(GOOD)));
    let output = fixture.begin("--trust makers").ok();
    assert!(
        output.contains("the device has no earlier key: PCRs 0,16 of bank sha256"),
        "{output}"
    );
    fixture.answer();
    fixture.finish("").ok();
    fs::remove_file(fixture.site.path("d1.offer")).unwrap();

    let error = fixture.begin_again(CHANGED, "").refused(4);
    assert!(
        error.contains("the boot differs from the boot of its present key in PCRs 16;")
            && error.contains("events not compared: no TCG event log of the accepted boot"),
        "{error}"
    );
    let output = json(&fixture.begin_again(GOOD, "--output=json").ok());
    assert_eq!(output["accepted"]["by"], "earlier_key");
    fixture.remove_offer();

    // A device in quarantine does not count as new after its key was deleted.
    fixture.quarantine();
    fixture.site.on_registry("attest delete d1").ok();
    let error = fixture.begin_again(CHANGED, "").refused(4);
    assert!(
        error.contains("the device is in quarantine, and group pumps has no reference value of PCRs"),
        "{error}"
    );
    assert_eq!(fixture.offer_count(), 0);
    fixture.begin_again(CHANGED, "--state current").ok();
}

/// The attack: the operator measures the changed device and passes the result as the device's overlay.
#[test]
fn pcrs_in_the_overlay_of_a_device_accept_no_boot() {
    let mut fixture = TpmFixture::new();
    fixture.measure(CHANGED, "changed.conf");
    fixture.measure(GOOD, "good.conf");
    fixture
        .site
        .on_registry("attest group set pumps --reference good.conf")
        .ok();
    fixture.identity(Some(log_with_event(GOOD)));
    fixture.enroll("");
    fixture.quarantine();

    let error = fixture.begin_again(CHANGED, "--overlay changed.conf").refused(4);
    for expected in [
        "the boot differs from the reference value of group pumps in PCRs 16;",
        "changed.conf: the overlay does not make the boot accepted in which its PCRs 0,16 were measured",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // If an enrollment in the accepted boot stored this overlay, the next enrollment would accept the changed boot.
    let error = fixture.begin_again(GOOD, "--overlay changed.conf").refused(4);
    assert!(
        error.contains("changed.conf: the PCRs 0,16 of the overlay are neither those of the present boot"),
        "{error}"
    );
    assert_eq!(fixture.offer_count(), 0);

    // The same applies after an enrollment with a software key, which compares no boot.
    fixture
        .site
        .on_registry(
            "attest enroll d1 --group pumps --software --key-out d1.key --overlay changed.conf --replace",
        )
        .ok();
    let error = fixture.begin_again(CHANGED, "").refused(4);
    assert!(
        error.contains("the device's overlay: the overlay does not make the boot accepted in which its PCRs 0,16 were measured"),
        "{error}"
    );
    assert_eq!(fixture.offer_count(), 0);

    // The operator accepts the changed boot with this overlay. Later enrollments accept this boot and reject other boots.
    let output = json(
        &fixture
            .begin_again(CHANGED, "--overlay changed.conf --state current --output json")
            .ok(),
    );
    assert_eq!(output["accepted"]["by"], "operator");
    fixture.answer();
    fixture.finish("--replace").ok();
    fs::remove_file(fixture.site.path("d1.offer")).unwrap();
    for arguments in ["--output=json", "--overlay changed.conf --output json"] {
        let output = json(&fixture.begin_again(CHANGED, arguments).ok());
        assert_eq!(output["accepted"]["by"], "reference", "{arguments}: {output}");
        fixture.remove_offer();
    }
    fixture.begin_again(GOOD, "").refused(4);
}

#[test]
fn the_second_step_of_an_enrollment_stores_the_overlay_of_the_first_step() {
    let mut fixture = TpmFixture::new();
    let serial = |content| configuration_of_files(&[("/etc/serial", content)]);
    for content in [1, 2] {
        fixture
            .site
            .write_configuration(&format!("serial-{content}.conf"), &serial(content));
    }
    let overlay = |fixture: &TpmFixture| {
        let prover = fixture
            .site
            .with_registry(async |registry| registry.prover(DEVICE).await.unwrap().unwrap());
        prover.overlay
    };
    fixture.identity(Some(log_with_event(GOOD)));
    fixture.begin("--trust makers --overlay serial-1.conf").ok();
    fixture.answer();
    fixture.finish("").ok();
    assert_eq!(overlay(&fixture), Some(serial(1).encode()));
    fs::remove_file(fixture.site.path("d1.offer")).unwrap();

    // Without a new overlay, the device keeps the previous overlay.
    fixture.begin_again(GOOD, "").ok();
    fixture.answer();
    let error = fixture.finish("--replace --overlay serial-2.conf").refused(2);
    assert!(
        error.contains("d1.pending: the overlay differs from the one that --identity accepted"),
        "{error}"
    );
    fixture.finish("--replace").ok();
    assert_eq!(overlay(&fixture), Some(serial(1).encode()));
    fs::remove_file(fixture.site.path("d1.offer")).unwrap();

    // The second step can name the overlay of the first step again.
    fixture.begin_again(GOOD, "--overlay serial-2.conf").ok();
    fixture.answer();
    fixture.finish("--replace --overlay serial-2.conf").ok();
    assert_eq!(overlay(&fixture), Some(serial(2).encode()));
}
