//! A data plane that states what it runs.

use linewarden_controller::trust::TrustPolicy;
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram, Entry};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::state::{Measured, bpf_digest};
use linewarden_evidence::statement::{Inventory, Kind, Nonce, Statement, verify};
use linewarden_evidence::{BootCount, SwitchId};

use crate::{ANSWER, EVERY, GATEWAY};

/// A data plane with one setting, and its key.
pub struct Plane {
    pub measured: Measured,
    pub signer: Ed25519Signer,
}

pub fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

impl Plane {
    pub fn new(boot_count: u64) -> Self {
        Self::with(signer(), boot_count)
    }

    pub fn with(signer: Ed25519Signer, boot_count: u64) -> Self {
        let program = BpfProgram {
            name: "gateway".to_owned(),
            instructions: [1; 32],
        };
        let digest = bpf_digest([program.clone()]);
        let mut measured = Measured::new(SwitchId(GATEWAY.0.into()), BootCount(boot_count), digest);
        measured.put(&program.into()).unwrap();
        let mut plane = Self { measured, signer };
        plane.set(7);
        plane
    }

    pub fn set(&mut self, value: u8) {
        let entry = Entry::from(BpfMapEntry {
            map: "control".to_owned(),
            key: vec![0],
            value: vec![value],
        });
        self.measured.put(&entry).unwrap();
    }

    /// Loses what it was, and counts its states anew, as a machine whose disk was put back.
    pub fn put_back(&mut self, boot_count: u64) {
        let signer = std::mem::replace(&mut self.signer, signer());
        *self = Self::with(signer, boot_count);
    }

    pub fn statement(&mut self, nonce: Nonce) -> Vec<u8> {
        let statement = Statement {
            kind: Kind::Xdp,
            snapshot: self.measured.snapshot(),
            objects: self.measured.objects(),
            left_out: Vec::new(),
            software_version: "1".to_owned(),
        };
        statement.sign(nonce, &mut self.signer).unwrap()
    }

    pub fn inventory(&self) -> Vec<u8> {
        let entries: Vec<_> = self.measured.entries().map(|entry| entry.whole()).collect();
        Inventory::new(entries.iter().map(Vec::as_slice))
            .unwrap()
            .to_bytes()
    }

    /// What it runs now, as what it is to run.
    pub fn policy(&mut self) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let key = self.signer.public_key();
        let evidence = verify(&self.statement(nonce), &key, nonce).unwrap();
        let proven = Inventory::read(&self.inventory())
            .unwrap()
            .prove(&evidence)
            .unwrap();
        TrustPolicy {
            reference: Reference::of("test", &evidence, Some(&proven), |_| false),
            key,
            every_ns: EVERY,
            answer_ns: ANSWER,
        }
    }
}

/// Never the same twice.
pub fn nonces() -> impl FnMut() -> Option<[u8; 32]> {
    let mut count = 0u64;
    move || {
        count += 1;
        let mut nonce = [9; 32];
        nonce[..8].copy_from_slice(&count.to_be_bytes());
        Some(nonce)
    }
}
