//! Appraisal: differences are named, and damaged reference values are rejected.

use linewarden_evidence::appraisal::{Appraisal, Difference, Reference, ReferenceError, appraise};
use linewarden_evidence::encoding::{
    Action, ActionRef, Bits, Class, DefaultAction, Entry, KeyField, Match, Object, ProfileMember, TableEntry,
};
use linewarden_evidence::keys::{Ed25519Signer, Signer};
use linewarden_evidence::state::{DirtyCells, MeasuredState, Stability, program_digest};
use linewarden_evidence::statement::{
    DataPlaneKind, Inventory, Nonce, ProvenEntries, Statement, VerifiedStatement, verify,
};
use linewarden_evidence::{BootCount, Digest, SwitchId};
use proptest::prelude::*;

use crate::common::config;

/// The state of a switch in a test.
#[derive(Clone)]
struct TestDataPlane {
    switch: u64,
    kind: DataPlaneKind,
    program: &'static [u8],
    entries: Vec<Entry>,
    memory: [u16; 4],
    memory_stability: Stability,
    counters: [u16; 2],
    /// Whether the sum over the tables contradicts the objects.
    contradicts: bool,
}

fn action(name: &str, data: &[u64]) -> Action {
    Action {
        name: name.to_owned(),
        data: data
            .iter()
            .map(|&value| Bits::from_u64(9, value).unwrap())
            .collect(),
    }
}

fn route(address: u64, port: u64) -> Entry {
    TableEntry {
        table: "ipv4".to_owned(),
        key: vec![KeyField {
            name: "dst".to_owned(),
            matches: Match::lpm(Bits::from_u64(32, address).unwrap(), 24).unwrap(),
        }],
        priority: 0,
        action: ActionRef::Action(action("forward", &[port])),
        idle_timeout_ns: 0,
    }
    .into()
}

fn default_action(name: &str) -> Entry {
    DefaultAction {
        table: "acl".to_owned(),
        is_const: false,
        action: Some(ActionRef::Action(action(name, &[]))),
    }
    .into()
}

impl TestDataPlane {
    fn valid() -> Self {
        Self {
            switch: 7,
            kind: DataPlaneKind::P4,
            program: b"router",
            entries: vec![
                route(0x0a00_0100, 1),
                route(0x0a00_0200, 2),
                default_action("drop"),
            ],
            memory: [0, 5, 0, 7],
            memory_stability: Stability::Static,
            counters: [1, 2],
            contradicts: false,
        }
    }

    /// The statement of the data plane, and the listed entries.
    fn evidence(&self) -> (VerifiedStatement, ProvenEntries) {
        let mut state = MeasuredState::new(SwitchId(self.switch), BootCount(1), program_digest(self.program));
        for entry in &self.entries {
            state.put(entry).unwrap();
        }
        let mut encodings: Vec<_> = state.entries().map(|encoded| encoded.to_bytes()).collect();
        for (name, cells, stability) in [
            ("memory", &self.memory[..], self.memory_stability),
            ("counters", &self.counters[..], Stability::Volatile),
        ] {
            let size = cells.len() as u32;
            let array = state.declare_array(name, 16, size, stability).unwrap();
            let mut dirty = DirtyCells::new(16, size);
            (0..size).for_each(|index| dirty.mark_u64(index, 0));
            let read = |index: u32, out: &mut [u8]| out.copy_from_slice(&cells[index as usize].to_be_bytes());
            state.fold(array, &mut dirty, read).unwrap();
            state
                .check_array(array)
                .unwrap()
                .each_cell(read, |cell| encodings.push(cell.to_vec()));
        }
        let mut snapshot = state.snapshot();
        if self.contradicts {
            snapshot.digests.tables.0[0] ^= 1;
        }
        let statement = Statement {
            kind: self.kind,
            snapshot,
            objects: state.objects(),
            exclusions: Statement::EXCLUSIONS_P4.map(str::to_owned).to_vec(),
            software_version: "0".to_owned(),
        };
        let mut signer = signer();
        let signed = statement.sign(Nonce([1; 32]), &mut signer).unwrap();
        let evidence = verify(&signed, &signer.public_key(), Nonce([1; 32])).unwrap();
        let inventory = Inventory::new(encodings.iter().map(Vec::as_slice)).unwrap();
        let proven = inventory.prove(&evidence).unwrap();
        (evidence, proven)
    }

    fn reference(&self) -> Reference {
        let (evidence, proven) = self.evidence();
        Reference::from_statement("router", &evidence, Some(&proven), |_| false)
    }

    fn appraise_against(&self, reference: &Reference) -> Appraisal {
        let (evidence, proven) = self.evidence();
        appraise(&evidence, reference, Some(&proven)).unwrap()
    }
}

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

#[track_caller]
fn assert_differences(changed: &TestDataPlane, lines: &[&str]) {
    let reported = changed.appraise_against(&TestDataPlane::valid().reference());
    assert_eq!(reported.to_string().lines().collect::<Vec<_>>(), lines);
    assert_eq!(reported.is_affirmed(), lines == ["no differences"]);
}

#[test]
fn a_compliant_data_plane_is_affirmed() {
    assert_differences(&TestDataPlane::valid(), &["no differences"]);
    // The order of entries and the values of counters have no effect.
    let mut equivalent = TestDataPlane::valid();
    equivalent.entries.reverse();
    equivalent.counters = [0, 900];
    assert_differences(&equivalent, &["no differences"]);
}

#[test]
fn another_program_is_named() {
    let changed = TestDataPlane {
        program: b"other",
        ..TestDataPlane::valid()
    };
    let (old, new) = (program_digest(b"router"), program_digest(b"other"));
    assert_differences(&changed, &[&format!("program: {old} is now {new}")]);
}

#[test]
fn each_entry_that_differs_is_named() {
    let mut changed = TestDataPlane::valid();
    changed.entries = vec![
        route(0x0a00_0100, 3),
        route(0x0a00_0900, 2),
        default_action("pass"),
        ProfileMember {
            profile: "nexthops".to_owned(),
            member: 4,
            action: action("forward", &[1]),
        }
        .into(),
    ];
    assert_differences(
        &changed,
        &[
            "table acl: differs",
            "    default action: drop() is now pass()",
            "table ipv4: differs",
            "    entry dst=0xa000100/24: forward(0x1) is now forward(0x3)",
            "    entry dst=0xa000200/24: removed, was forward(0x2)",
            "    entry dst=0xa000900/24: added, forward(0x2)",
            "action profile nexthops: unexpected",
            "    member 4: added, forward(0x1)",
        ],
    );
    changed.entries = vec![default_action("drop")];
    assert_differences(
        &changed,
        &[
            "table ipv4: missing",
            "    entry dst=0xa000100/24: removed, was forward(0x1)",
            "    entry dst=0xa000200/24: removed, was forward(0x2)",
        ],
    );
}

#[test]
fn each_cell_that_differs_is_named() {
    let mut changed = TestDataPlane::valid();
    changed.memory = [1, 5, 0, 8];
    assert_differences(
        &changed,
        &[
            "register array memory: differs",
            "    cell 0: added, 0x1 of 16 bits",
            "    cell 3: 0x7 of 16 bits is now 0x8 of 16 bits",
        ],
    );
    // A switch that declares the array volatile is detected.
    let hidden = TestDataPlane {
        memory_stability: Stability::Volatile,
        ..TestDataPlane::valid()
    };
    assert_differences(
        &hidden,
        &["register array memory: now excluded from the registers' digest as volatile"],
    );
    // Where the reference values accept any content, there is no difference.
    let (evidence, proven) = TestDataPlane::valid().evidence();
    let accepts_any_content = |object: &Object| object.class == Class::Register;
    let reference = Reference::from_statement("router", &evidence, Some(&proven), accepts_any_content);
    assert!(changed.appraise_against(&reference).is_affirmed());
    assert!(hidden.appraise_against(&reference).is_affirmed());
}

#[test]
fn without_inventories_the_object_is_named() {
    let mut changed = TestDataPlane::valid();
    changed.entries.push(route(0x0a00_0900, 2));
    let (evidence, proven) = changed.evidence();
    let reported = appraise(&evidence, &TestDataPlane::valid().reference(), None).unwrap();
    let line = "table ipv4: differs (entries unknown: inventories of both sides are required)\n";
    assert_eq!(reported.to_string(), line);
    let (valid, _) = TestDataPlane::valid().evidence();
    let without_entries = Reference::from_statement("router", &valid, None, |_| false);
    assert_eq!(
        appraise(&evidence, &without_entries, Some(&proven))
            .unwrap()
            .to_string(),
        line
    );
    assert!(matches!(
        reported.differences(),
        [Difference::Object { entries: None, .. }]
    ));
}

#[test]
fn another_data_plane_and_a_contradicting_one_are_reported() {
    let other_switch = TestDataPlane {
        switch: 8,
        kind: DataPlaneKind::Xdp,
        ..TestDataPlane::valid()
    };
    assert_differences(
        &other_switch,
        &["data plane 8, not 7", "a data plane of kind xdp, not p4"],
    );
    let mut reference = TestDataPlane::valid().reference();
    reference.switch = None;
    reference.kind = DataPlaneKind::Xdp;
    assert!(other_switch.appraise_against(&reference).is_affirmed());
    let contradicting = TestDataPlane {
        contradicts: true,
        ..TestDataPlane::valid()
    };
    assert_differences(
        &contradicting,
        &[
            "tables: the digest over all objects differs, although each object matches: do not trust this data plane's \
             measurements",
        ],
    );
}

#[test]
fn the_result_has_the_field_names_of_the_draft() {
    let mut changed = TestDataPlane::valid();
    changed.entries.push(route(0x0a00_0900, 2));
    let reported = changed.appraise_against(&TestDataPlane::valid().reference());
    let digests = reported.snapshot().digests;
    let sequence = reported.snapshot().sequence.0;
    let ear = serde_json::to_value(reported.ear(100, 200)).unwrap();
    let claims = |digest: Digest| {
        serde_json::json!({
            "kind": "p4", "boot_count": 1, "sequence": sequence, "digest": digest.to_string(),
        })
    };
    let valid = |claim: &str, digest| {
        serde_json::json!({
            "ear_status": "affirming",
            "ear_trustworthiness_vector": {"instance-identity": 2, claim: 2},
            "ear_appraisal_policy_ids": ["linewarden:reference:router"],
            "ear_verifier_claims": claims(digest),
        })
    };
    let mut tables = valid("configuration", digests.tables);
    tables["ear_status"] = "contraindicated".into();
    tables["ear_trustworthiness_vector"]["configuration"] = 96.into();
    tables["ear_verifier_claims"]["differences"] = serde_json::json!([
        "table ipv4: differs",
        "    entry dst=0xa000900/24: added, forward(0x2)"
    ]);
    let expected = serde_json::json!({
        "eat_profile": "tag:ietf.org,2026:rats/ear#04",
        "eat_nonce": "01".repeat(32),
        "iat": 100,
        "exp": 200,
        "ear_verifier_id": {
            "developer": env!("CARGO_PKG_REPOSITORY"),
            "build": concat!("linewarden ", env!("CARGO_PKG_VERSION")),
        },
        "submods": {
            "0000000000000007/program": valid("executables", digests.program),
            "0000000000000007/registers": valid("configuration", digests.registers),
            "0000000000000007/tables": tables,
        },
    });
    assert_eq!(ear, expected);
    // Another data plane affirms no claim.
    let other = TestDataPlane {
        switch: 8,
        ..TestDataPlane::valid()
    };
    let ear = serde_json::to_value(
        other
            .appraise_against(&TestDataPlane::valid().reference())
            .ear(1, 2),
    )
    .unwrap();
    for name in ["program", "tables", "registers"] {
        let submodule = &ear["submods"][format!("0000000000000008/{name}")];
        assert_eq!(submodule["ear_status"], "contraindicated");
        assert_eq!(submodule["ear_trustworthiness_vector"]["instance-identity"], 96);
    }
}

#[test]
fn a_result_does_not_exceed_its_maximum_length() {
    let mut changed = TestDataPlane::valid();
    changed
        .entries
        .extend((0..500).map(|n| route(0x0b00_0000 + (n << 8), 1)));
    let reported = changed.appraise_against(&TestDataPlane::valid().reference());
    let ear = serde_json::to_value(reported.ear(1, 2)).unwrap();
    let claims = &ear["submods"]["0000000000000007/tables"]["ear_verifier_claims"];
    assert_eq!(claims["differences"].as_array().unwrap().len(), 100);
    assert_eq!(claims["more_differences"], 401);
}

#[test]
fn a_file_contains_the_written_values() {
    let reference = TestDataPlane::valid().reference();
    let mut signer = signer();
    let file = reference.to_file(Some(&mut signer)).unwrap();
    assert_eq!(
        Reference::read(&file, Some(&signer.public_key())).unwrap(),
        reference
    );
    assert_eq!(Reference::read(&file, None).unwrap(), reference);
    let result = Reference::read(&file, Some(&self::signer().public_key()));
    assert!(matches!(result, Err(ReferenceError::InvalidSignature)));
    let unsigned = reference.to_file(None).unwrap();
    assert_eq!(Reference::read(&unsigned, None).unwrap(), reference);
    let result = Reference::read(&unsigned, Some(&signer.public_key()));
    assert!(matches!(result, Err(ReferenceError::Unsigned)));
    // Whitespace has no effect.
    let value: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let compact = serde_json::to_vec(&value).unwrap();
    assert_eq!(
        Reference::read(&compact, Some(&signer.public_key())).unwrap(),
        reference
    );
    assert_eq!(
        TestDataPlane::valid().evidence().0.snapshot().digests,
        reference.digests()
    );
}

#[test]
fn edited_files_are_rejected_with_the_error() {
    let file = TestDataPlane::valid().reference().to_file(None).unwrap();
    let text = String::from_utf8(file).unwrap();
    let program = program_digest(b"router").to_string();
    let reported = |text: &str| Reference::read(text.as_bytes(), None).unwrap_err().to_string();
    let edited = reported(&text.replace(&program, &program_digest(b"evil").to_string()));
    assert!(
        edited.starts_with("reference values damaged or edited: their SHA-256 is "),
        "{edited}"
    );
    let unknown = reported(&text.replacen("\"name\"", "\"extra\": 1, \"name\"", 1));
    assert!(unknown.contains("unknown field `extra`"), "{unknown}");
    let version = reported(&text.replacen("\"version\": 1", "\"version\": 2", 1));
    assert!(
        version.contains("unsupported version 2 of reference values"),
        "{version}"
    );
    let truncated = reported(&text[..text.len() / 2]);
    assert!(truncated.contains("line"), "{truncated}");
}

/// Files with a correct hash that are inconsistent.
#[test]
fn files_that_contradict_themselves_are_refused() {
    let valid = TestDataPlane::valid().reference();
    let json = serde_json::to_value(&valid).unwrap();
    let reported = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        edit(&mut json);
        let reference: Reference = serde_json::from_value(json).unwrap();
        Reference::read(&reference.to_file(None).unwrap(), None).unwrap_err()
    };
    let first = json["objects"][0].clone();
    assert!(matches!(
        reported(&|json| json["objects"].as_array_mut().unwrap().push(first.clone())),
        ReferenceError::DuplicateObject(_)
    ));
    assert!(matches!(
        reported(&|json| json["entries"][0] = "xyz".into()),
        ReferenceError::InvalidEntry { number: 0, .. }
    ));
    assert!(matches!(
        reported(&|json| json["entries"][0] = "0102".into()),
        ReferenceError::InvalidEntries(_)
    ));
    let entry = json["entries"][0].clone();
    assert!(matches!(
        reported(&|json| json["entries"].as_array_mut().unwrap().push(entry.clone())),
        ReferenceError::InvalidEntries(_)
    ));
    assert!(matches!(
        reported(&|json| drop(json["entries"].as_array_mut().unwrap().pop())),
        ReferenceError::Inconsistent(_)
    ));
    let foreign = hex::encode(route(0, 1).encode()).replace(&hex::encode("ipv4"), &hex::encode("ipv9"));
    assert!(matches!(
        reported(&|json| json["entries"]
            .as_array_mut()
            .unwrap()
            .push(foreign.clone().into())),
        ReferenceError::Inconsistent(_)
    ));
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn altered_and_truncated_files_are_rejected_or_equivalent(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let reference = TestDataPlane::valid().reference();
        let file = reference.to_file(None).unwrap();
        let mut altered = file.clone();
        altered[at.index(file.len())] = byte;
        if let Ok(read) = Reference::read(&altered, None) {
            prop_assert_eq!(&read, &reference);
        }
        let cut = cut.index(file.len() - 1);
        prop_assert!(Reference::read(&file[..cut], None).is_err());
    }
}
