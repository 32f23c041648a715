//! Appraisal: what differs is named, and damaged reference values are refused.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

// Other tests use more of it.
#[allow(dead_code)]
mod common;

use linewarden_evidence::appraisal::{Appraisal, Difference, Reference, ReferenceError, appraise};
use linewarden_evidence::encoding::{
    Action, ActionRef, Bits, Class, DefaultAction, Entry, KeyField, Match, Object, ProfileMember, TableEntry,
};
use linewarden_evidence::keys::{Ed25519Signer, Signer};
use linewarden_evidence::state::{DirtyCells, Measured, Stability, program_digest};
use linewarden_evidence::statement::{Evidence, Inventory, Kind, Nonce, Proven, Statement, verify};
use linewarden_evidence::{BootCount, Digest, SwitchId};
use proptest::prelude::*;

use common::config;

/// What a switch runs in a test.
#[derive(Clone)]
struct Running {
    switch: u64,
    kind: Kind,
    program: &'static [u8],
    entries: Vec<Entry>,
    memory: [u16; 4],
    memory_stability: Stability,
    counters: [u16; 2],
    /// A sum over the tables that is not that of its objects.
    lies: bool,
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

impl Running {
    fn good() -> Self {
        Self {
            switch: 7,
            kind: Kind::P4,
            program: b"router",
            entries: vec![
                route(0x0a00_0100, 1),
                route(0x0a00_0200, 2),
                default_action("drop"),
            ],
            memory: [0, 5, 0, 7],
            memory_stability: Stability::Static,
            counters: [1, 2],
            lies: false,
        }
    }

    /// Its statement, and the entries that it lists.
    fn evidence(&self) -> (Evidence, Proven) {
        let mut state = Measured::new(SwitchId(self.switch), BootCount(1), program_digest(self.program));
        for entry in &self.entries {
            state.put(entry).unwrap();
        }
        let mut encodings: Vec<_> = state.entries().map(|encoded| encoded.whole()).collect();
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
        if self.lies {
            snapshot.digests.tables.0[0] ^= 1;
        }
        let statement = Statement {
            kind: self.kind,
            snapshot,
            objects: state.objects(),
            left_out: Statement::LEFT_OUT_P4.map(str::to_owned).to_vec(),
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
        Reference::of("router", &evidence, Some(&proven), |_| false)
    }

    fn against(&self, reference: &Reference) -> Appraisal {
        let (evidence, proven) = self.evidence();
        appraise(&evidence, reference, Some(&proven)).unwrap()
    }
}

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

#[track_caller]
fn assert_told(changed: &Running, lines: &[&str]) {
    let told = changed.against(&Running::good().reference());
    assert_eq!(told.to_string().lines().collect::<Vec<_>>(), lines);
    assert_eq!(told.is_affirmed(), lines == ["nothing differs"]);
}

#[test]
fn what_is_as_it_should_be_is_affirmed() {
    assert_told(&Running::good(), &["nothing differs"]);
    // Order and counters say nothing.
    let mut same = Running::good();
    same.entries.reverse();
    same.counters = [0, 900];
    assert_told(&same, &["nothing differs"]);
}

#[test]
fn another_program_is_named() {
    let changed = Running {
        program: b"other",
        ..Running::good()
    };
    let (old, new) = (program_digest(b"router"), program_digest(b"other"));
    assert_told(&changed, &[&format!("program: {old} is now {new}")]);
}

#[test]
fn each_entry_that_differs_is_named() {
    let mut changed = Running::good();
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
    assert_told(
        &changed,
        &[
            "table acl: differs",
            "    default action: drop() is now pass()",
            "table ipv4: differs",
            "    entry dst=0xa000100/24: forward(0x1) is now forward(0x3)",
            "    entry dst=0xa000200/24: gone, was forward(0x2)",
            "    entry dst=0xa000900/24: added, forward(0x2)",
            "action profile nexthops: should not be there",
            "    member 4: added, forward(0x1)",
        ],
    );
    changed.entries = vec![default_action("drop")];
    assert_told(
        &changed,
        &[
            "table ipv4: not there",
            "    entry dst=0xa000100/24: gone, was forward(0x1)",
            "    entry dst=0xa000200/24: gone, was forward(0x2)",
        ],
    );
}

#[test]
fn each_cell_that_differs_is_named() {
    let mut changed = Running::good();
    changed.memory = [1, 5, 0, 8];
    assert_told(
        &changed,
        &[
            "register array memory: differs",
            "    cell 0: added, 0x1 of 16 bits",
            "    cell 3: 0x7 of 16 bits is now 0x8 of 16 bits",
        ],
    );
    // A switch that calls it volatile says so by that.
    let hidden = Running {
        memory_stability: Stability::Volatile,
        ..Running::good()
    };
    assert_told(
        &hidden,
        &["register array memory: now left out of the registers' digest as volatile"],
    );
    // Where the reference values let it be anything, nothing is told.
    let (evidence, proven) = Running::good().evidence();
    let open = |object: &Object| object.class == Class::Register;
    let reference = Reference::of("router", &evidence, Some(&proven), open);
    assert!(changed.against(&reference).is_affirmed());
    assert!(hidden.against(&reference).is_affirmed());
}

#[test]
fn without_inventories_the_object_is_named() {
    let mut changed = Running::good();
    changed.entries.push(route(0x0a00_0900, 2));
    let (evidence, proven) = changed.evidence();
    let told = appraise(&evidence, &Running::good().reference(), None).unwrap();
    let line = "table ipv4: differs (which entries is not known: both sides' inventories are needed)\n";
    assert_eq!(told.to_string(), line);
    let (good, _) = Running::good().evidence();
    let bare = Reference::of("router", &good, None, |_| false);
    assert_eq!(
        appraise(&evidence, &bare, Some(&proven)).unwrap().to_string(),
        line
    );
    assert!(matches!(
        told.differences(),
        [Difference::Object { entries: None, .. }]
    ));
}

#[test]
fn another_data_plane_and_one_that_lies_are_told() {
    let other = Running {
        switch: 8,
        kind: Kind::Xdp,
        ..Running::good()
    };
    assert_told(
        &other,
        &["data plane 8, not 7", "a data plane of kind xdp, not p4"],
    );
    let mut any = Running::good().reference();
    any.switch = None;
    any.kind = Kind::Xdp;
    assert!(other.against(&any).is_affirmed());
    let lies = Running {
        lies: true,
        ..Running::good()
    };
    assert_told(
        &lies,
        &[
            "tables: the digest over all objects differs, though each is as it should be: do not trust this data plane's \
             measurements",
        ],
    );
}

#[test]
fn the_result_has_the_drafts_names() {
    let mut changed = Running::good();
    changed.entries.push(route(0x0a00_0900, 2));
    let told = changed.against(&Running::good().reference());
    let digests = told.snapshot().digests;
    let sequence = told.snapshot().sequence.0;
    let ear = serde_json::to_value(told.ear(100, 200)).unwrap();
    let claims = |digest: Digest| {
        serde_json::json!({
            "kind": "p4", "boot_count": 1, "sequence": sequence, "digest": digest.to_string(),
        })
    };
    let good = |claim: &str, digest| {
        serde_json::json!({
            "ear_status": "affirming",
            "ear_trustworthiness_vector": {"instance-identity": 2, claim: 2},
            "ear_appraisal_policy_ids": ["linewarden:reference:router"],
            "ear_verifier_claims": claims(digest),
        })
    };
    let mut tables = good("configuration", digests.tables);
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
            "0000000000000007/program": good("executables", digests.program),
            "0000000000000007/registers": good("configuration", digests.registers),
            "0000000000000007/tables": tables,
        },
    });
    assert_eq!(ear, expected);
    // Another data plane affirms nothing at all.
    let other = Running {
        switch: 8,
        ..Running::good()
    };
    let ear = serde_json::to_value(other.against(&Running::good().reference()).ear(1, 2)).unwrap();
    for name in ["program", "tables", "registers"] {
        let submodule = &ear["submods"][format!("0000000000000008/{name}")];
        assert_eq!(submodule["ear_status"], "contraindicated");
        assert_eq!(submodule["ear_trustworthiness_vector"]["instance-identity"], 96);
    }
}

#[test]
fn a_result_is_not_longer_than_it_may_be() {
    let mut changed = Running::good();
    changed
        .entries
        .extend((0..500).map(|n| route(0x0b00_0000 + (n << 8), 1)));
    let told = changed.against(&Running::good().reference());
    let ear = serde_json::to_value(told.ear(1, 2)).unwrap();
    let claims = &ear["submods"]["0000000000000007/tables"]["ear_verifier_claims"];
    assert_eq!(claims["differences"].as_array().unwrap().len(), 100);
    assert_eq!(claims["more_differences"], 401);
}

#[test]
fn a_file_says_what_was_written() {
    let reference = Running::good().reference();
    let mut signer = signer();
    let file = reference.to_file(Some(&mut signer)).unwrap();
    assert_eq!(
        Reference::read(&file, Some(&signer.public_key())).unwrap(),
        reference
    );
    assert_eq!(Reference::read(&file, None).unwrap(), reference);
    let refused = Reference::read(&file, Some(&self::signer().public_key()));
    assert!(matches!(refused, Err(ReferenceError::Signature)));
    let unsigned = reference.to_file(None).unwrap();
    assert_eq!(Reference::read(&unsigned, None).unwrap(), reference);
    let refused = Reference::read(&unsigned, Some(&signer.public_key()));
    assert!(matches!(refused, Err(ReferenceError::Unsigned)));
    // Blanks say nothing.
    let value: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let compact = serde_json::to_vec(&value).unwrap();
    assert_eq!(
        Reference::read(&compact, Some(&signer.public_key())).unwrap(),
        reference
    );
    assert_eq!(
        Running::good().evidence().0.snapshot().digests,
        reference.digests()
    );
}

#[test]
fn edited_files_are_refused_with_what_is_wrong() {
    let file = Running::good().reference().to_file(None).unwrap();
    let text = String::from_utf8(file).unwrap();
    let program = program_digest(b"router").to_string();
    let told = |text: &str| Reference::read(text.as_bytes(), None).unwrap_err().to_string();
    let edited = told(&text.replace(&program, &program_digest(b"evil").to_string()));
    assert!(
        edited.starts_with("the reference values are damaged or were edited: their SHA-256 is "),
        "{edited}"
    );
    let unknown = told(&text.replacen("\"name\"", "\"extra\": 1, \"name\"", 1));
    assert!(unknown.contains("unknown field `extra`"), "{unknown}");
    let version = told(&text.replacen("\"version\": 1", "\"version\": 2", 1));
    assert!(
        version.contains("version 2 of reference values is not known"),
        "{version}"
    );
    let short = told(&text[..text.len() / 2]);
    assert!(short.contains("line"), "{short}");
}

/// Files whose hash is right and that still cannot be believed.
#[test]
fn files_that_contradict_themselves_are_refused() {
    let good = Running::good().reference();
    let json = serde_json::to_value(&good).unwrap();
    let told = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        edit(&mut json);
        let reference: Reference = serde_json::from_value(json).unwrap();
        Reference::read(&reference.to_file(None).unwrap(), None).unwrap_err()
    };
    let first = json["objects"][0].clone();
    assert!(matches!(
        told(&|json| json["objects"].as_array_mut().unwrap().push(first.clone())),
        ReferenceError::Twice(_)
    ));
    assert!(matches!(
        told(&|json| json["entries"][0] = "xyz".into()),
        ReferenceError::Entry { number: 0, .. }
    ));
    assert!(matches!(
        told(&|json| json["entries"][0] = "0102".into()),
        ReferenceError::Entries(_)
    ));
    let entry = json["entries"][0].clone();
    assert!(matches!(
        told(&|json| json["entries"].as_array_mut().unwrap().push(entry.clone())),
        ReferenceError::Entries(_)
    ));
    assert!(matches!(
        told(&|json| drop(json["entries"].as_array_mut().unwrap().pop())),
        ReferenceError::Inconsistent(_)
    ));
    let foreign = hex::encode(route(0, 1).encode()).replace(&hex::encode("ipv4"), &hex::encode("ipv9"));
    assert!(matches!(
        told(&|json| json["entries"]
            .as_array_mut()
            .unwrap()
            .push(foreign.clone().into())),
        ReferenceError::Inconsistent(_)
    ));
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn bent_and_cut_files_are_refused_or_say_the_same(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let reference = Running::good().reference();
        let file = reference.to_file(None).unwrap();
        let mut bent = file.clone();
        bent[at.index(file.len())] = byte;
        if let Ok(read) = Reference::read(&bent, None) {
            prop_assert_eq!(&read, &reference);
        }
        let cut = cut.index(file.len() - 1);
        prop_assert!(Reference::read(&file[..cut], None).is_err());
    }
}
