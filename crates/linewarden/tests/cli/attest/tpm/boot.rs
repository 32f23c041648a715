//! A boot that no reference value accepts gets no key, unless the operator accepts it.

use linewarden_registry::{NewGroup, RollOut, Suspect};

use super::*;

const GOOD: &[u8] = b"kernel 1";
const CHANGED: &[u8] = b"kernel 1 with a door";

impl Bench {
    /// The files of the device's part that a step leaves.
    fn offers(&self) -> usize {
        let names = self.site.names(".");
        names.iter().filter(|name| name.ends_with(".offer")).count()
    }

    fn forget_offer(&self) {
        for name in ["d1.offer", "d1.pending"] {
            fs::remove_file(self.site.path(name)).unwrap();
        }
    }

    /// Boots and measures it into a file, as `attest measure --out` does.
    fn measures(&self, kernel: &[u8], file: &str) {
        self.boots(kernel);
        let pcrs = self.emulator.open().pcrs(BANK, selection()).unwrap();
        let measured = Configuration::new(pcrs, configuration(1).files().clone()).unwrap();
        self.site.write_configuration(file, &measured);
    }

    fn enrolls(&mut self, words: &str) {
        self.begin(&format!("--trust makers {words}")).ok();
        self.answer();
        self.finish(
            words
                .split_whitespace()
                .find(|word| *word == "--replace")
                .unwrap_or(""),
        )
        .ok();
        fs::remove_file(self.site.path("d1.offer")).unwrap();
    }

    fn is_quarantined(&self) {
        self.site.with_registry(async |registry| {
            let enrolled_at = registry.prover(DEVICE).await.unwrap().unwrap().enrolled_at();
            let suspect = Suspect {
                device: DEVICE,
                enrolled_at,
                reason: "silent".to_owned(),
            };
            registry
                .quarantine(&[suspect], super::super::rounds::now_s())
                .await
                .unwrap();
        });
    }

    /// Boots, and begins to enroll the device again.
    fn begins_again(&self, kernel: &[u8], words: &str) -> Said {
        self.boots(kernel);
        self.identity(Some(log_of(kernel)));
        self.begin(&format!("--trust makers --replace {words}"))
    }
}

/// The attack: a device that was quarantined for its boot is enrolled again in that very boot.
#[test]
fn a_boot_that_led_to_quarantine_gets_no_key() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.measures(CHANGED, "changed.conf");
    bench.measures(GOOD, "good.conf");
    bench
        .site
        .on_registry("attest group set pumps --reference good.conf")
        .ok();
    bench.identity(Some(log_of(GOOD)));
    bench.enrolls("");
    let start = bench.period();
    bench.says(&start, log_of(GOOD));
    bench.is_quarantined();

    let error = bench.begins_again(CHANGED, "").refused(4);
    for expected in [
        "the boot of device 00000000000000d1 is not accepted: it differs from the reference value of group pumps in PCRs 16;",
        "accept the boot that it is in with `--state current`",
        "was entry 1, PCR 16, EV_IPL: kernel 1\n",
        "is entry 1, PCR 16, EV_IPL: kernel 1 with a door",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(bench.offers(), 0);

    // It names fewer PCRs, so that those that differ are not among them.
    let fewer = bench
        .emulator
        .open()
        .identity(&bench.keys, BANK, "0".parse().unwrap(), None);
    fs::write(
        bench.site.path("d1.identity"),
        serde_json::to_vec(&fewer.unwrap()).unwrap(),
    )
    .unwrap();
    let error = bench.begin("--trust makers --replace").refused(4);
    assert!(
        error.contains("in that it has PCRs 0 of sha256, not 0,16 of sha256"),
        "{error}"
    );
    assert_eq!(bench.offers(), 0);

    // It claims the accepted boot: the key works in that boot alone.
    let mut lie = serde_json::to_value(bench.identity(None)).unwrap();
    let good = Configuration::decode(&fs::read(bench.site.path("good.conf")).unwrap()).unwrap();
    for (pcr, value) in good.pcrs().iter() {
        lie["pcrs"]["values"][pcr.to_string()] = value.to_string().into();
    }
    fs::write(bench.site.path("d1.identity"), lie.to_string()).unwrap();
    let output = bench.begin("--trust makers --replace").ok();
    assert!(
        output.contains("the device is in the boot of the reference value of group pumps"),
        "{output}"
    );
    let offer: Offer = from_json(&fs::read(bench.site.path("d1.offer")).unwrap()).unwrap();
    assert!(bench.emulator.open().accept(&bench.keys, &offer).is_err());
    bench.forget_offer();

    // What the group is being updated to is accepted while that lasts.
    let roll_out = |until_s| {
        bench.site.with_registry(async |registry| {
            let group = registry.group(&"pumps".parse().unwrap()).await.unwrap().unwrap();
            let group = NewGroup {
                name: group.name,
                policy: group.policy,
                reference: group.reference,
                roll_out: Some(RollOut {
                    reference: fs::read(bench.site.path("changed.conf")).unwrap(),
                    until_s,
                }),
            };
            registry.set_group(&group, 1).await.unwrap();
        });
    };
    roll_out(2);
    let error = bench.begins_again(CHANGED, "").refused(4);
    assert!(!error.contains("roll-out"), "{error}");
    roll_out(super::super::rounds::now_s() + 3_600);
    let output = bench.begins_again(CHANGED, "").ok();
    assert!(
        output.contains("in the boot of the roll-out of group pumps")
            && output.contains("the key works in 2 states"),
        "{output}"
    );
    bench.forget_offer();
    bench.site.on_registry("attest group withdraw pumps").ok();

    // And by the operator's word.
    bench.begins_again(CHANGED, "--state changed.conf").ok();
    bench.forget_offer();
    let output = json(&bench.begins_again(CHANGED, "--state current --json").ok());
    assert_eq!(output["accepted"]["by"], "operator");
    bench.answer();
    // Accepted for the devices of one group, it is not for those of another.
    bench
        .site
        .on_registry("attest group set others --reference good.conf")
        .ok();
    let error = bench
        .site
        .on_registry("attest enroll d1 --group others --answer d1.answer --pending d1.pending --replace")
        .refused(2);
    assert!(
        error.contains("d1.pending: it is of group pumps, not of others"),
        "{error}"
    );
    bench.finish("--replace").ok();
}

#[test]
fn without_a_reference_value_of_pcrs_the_first_boot_is_the_reference() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.identity(Some(log_of(GOOD)));
    let output = bench.begin("--trust makers").ok();
    assert!(
        output.contains("the boot that the device is in becomes its reference, PCRs 0,16 of sha256"),
        "{output}"
    );
    bench.answer();
    bench.finish("").ok();
    fs::remove_file(bench.site.path("d1.offer")).unwrap();

    let error = bench.begins_again(CHANGED, "").refused(4);
    assert!(
        error.contains("it differs from the boot in which its present key was enrolled in PCRs 16;")
            && error.contains("no event log of the accepted boot is known"),
        "{error}"
    );
    let output = json(&bench.begins_again(GOOD, "--json").ok());
    assert_eq!(output["accepted"]["by"], "earlier_key");
    bench.forget_offer();

    // Nor is a device in quarantine new because its key was removed.
    bench.is_quarantined();
    bench.site.on_registry("attest remove d1").ok();
    let error = bench.begins_again(CHANGED, "").refused(4);
    assert!(
        error.contains("the device is in quarantine, and group pumps has no reference value of PCRs"),
        "{error}"
    );
    assert_eq!(bench.offers(), 0);
    bench.begins_again(CHANGED, "--state current").ok();
}

/// The attack: the operator measures the changed device, and names the result as the device's own entries.
#[test]
fn pcrs_of_a_devices_own_accept_no_boot() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.measures(CHANGED, "changed.conf");
    bench.measures(GOOD, "good.conf");
    bench
        .site
        .on_registry("attest group set pumps --reference good.conf")
        .ok();
    bench.identity(Some(log_of(GOOD)));
    bench.enrolls("");
    bench.is_quarantined();

    let error = bench.begins_again(CHANGED, "--own changed.conf").refused(4);
    for expected in [
        "it differs from the reference value of group pumps in PCRs 16;",
        "changed.conf: its PCRs 0,16 do not accept the boot in which they were measured",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // From an accepted boot such values would be stored, and accept the changed boot the next time.
    let error = bench.begins_again(GOOD, "--own changed.conf").refused(4);
    assert!(
        error.contains("changed.conf: its PCRs 0,16 are not those of the boot that the device is in"),
        "{error}"
    );
    assert_eq!(bench.offers(), 0);

    // Nor do those of a device whose key is in a file, which nothing has compared with its boot.
    bench
        .site
        .on_registry(
            "attest enroll d1 --group pumps --software --key-out d1.key --own changed.conf --replace",
        )
        .ok();
    let error = bench.begins_again(CHANGED, "").refused(4);
    assert!(
        error.contains("the device's own entries: its PCRs 0,16 do not accept the boot"),
        "{error}"
    );
    assert_eq!(bench.offers(), 0);

    // Accepted by the operator, they are accepted from then on, and no others.
    let output = json(
        &bench
            .begins_again(CHANGED, "--own changed.conf --state current --json")
            .ok(),
    );
    assert_eq!(output["accepted"]["by"], "operator");
    bench.answer();
    bench.finish("--replace").ok();
    fs::remove_file(bench.site.path("d1.offer")).unwrap();
    for words in ["--json", "--own changed.conf --json"] {
        let output = json(&bench.begins_again(CHANGED, words).ok());
        assert_eq!(output["accepted"]["by"], "reference", "{words}: {output}");
        bench.forget_offer();
    }
    bench.begins_again(GOOD, "").refused(4);
}

#[test]
fn an_answer_keeps_the_entries_of_the_devices_own_that_its_boot_was_accepted_with() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    let serial = |content| files(&[("/etc/serial", content)]);
    for content in [1, 2] {
        bench
            .site
            .write_configuration(&format!("serial-{content}.conf"), &serial(content));
    }
    let overlay = |bench: &Bench| {
        let prover = bench
            .site
            .with_registry(async |registry| registry.prover(DEVICE).await.unwrap().unwrap());
        prover.overlay
    };
    bench.identity(Some(log_of(GOOD)));
    bench.begin("--trust makers --own serial-1.conf").ok();
    bench.answer();
    bench.finish("").ok();
    assert_eq!(overlay(&bench), Some(serial(1).encode()));
    fs::remove_file(bench.site.path("d1.offer")).unwrap();

    // Those of before, which nothing names.
    bench.begins_again(GOOD, "").ok();
    bench.answer();
    let error = bench.finish("--replace --own serial-2.conf").refused(2);
    assert!(
        error.contains(
            "d1.pending: the entries of --own are not those with which --identity accepted the boot"
        ),
        "{error}"
    );
    bench.finish("--replace").ok();
    assert_eq!(overlay(&bench), Some(serial(1).encode()));
    fs::remove_file(bench.site.path("d1.offer")).unwrap();

    // Others, named once or twice.
    bench.begins_again(GOOD, "--own serial-2.conf").ok();
    bench.answer();
    bench.finish("--replace --own serial-2.conf").ok();
    assert_eq!(overlay(&bench), Some(serial(2).encode()));
}
