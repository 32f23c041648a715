//! A data plane with evidence.

use linewarden_controller::trust::TrustPolicy;
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram, Entry};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::state::{MeasuredState, bpf_digest};
use linewarden_evidence::statement::{DataPlaneKind, Inventory, Nonce, Statement, verify};
use linewarden_evidence::{BootCount, SwitchId};

use crate::trust::{EVIDENCE_INTERVAL_NS, GATEWAY, RESPONSE_TIMEOUT_NS};

/// A data plane with one setting, and its key.
pub struct AttestedDataPlane {
    pub measured: MeasuredState,
    pub signer: Ed25519Signer,
}

pub fn signer() -> Ed25519Signer {
    Ed25519Signer::from_pem(&Ed25519Signer::generate_pem().unwrap()).unwrap()
}

impl AttestedDataPlane {
    pub fn new(boot_count: u64) -> Self {
        Self::with_signer(signer(), boot_count)
    }

    pub fn with_signer(signer: Ed25519Signer, boot_count: u64) -> Self {
        let program = BpfProgram {
            name: "gateway".to_owned(),
            instructions: [1; 32],
        };
        let digest = bpf_digest([program.clone()]);
        let mut measured = MeasuredState::new(SwitchId(GATEWAY.0.into()), BootCount(boot_count), digest);
        measured.put(&program.into()).unwrap();
        let mut data_plane = Self { measured, signer };
        data_plane.set(7);
        data_plane
    }

    /// Changes the only setting.
    pub fn set(&mut self, value: u8) {
        let entry = Entry::from(BpfMapEntry {
            map: "control".to_owned(),
            key: vec![0],
            value: vec![value],
        });
        self.measured.put(&entry).unwrap();
    }

    /// Resets the state and its sequence number, like a machine whose disk was restored.
    pub fn restore(&mut self, boot_count: u64) {
        let signer = std::mem::replace(&mut self.signer, signer());
        *self = Self::with_signer(signer, boot_count);
    }

    pub fn statement(&mut self, nonce: Nonce) -> Vec<u8> {
        let statement = Statement {
            kind: DataPlaneKind::Xdp,
            snapshot: self.measured.snapshot(),
            objects: self.measured.objects(),
            exclusions: Vec::new(),
            software_version: "1".to_owned(),
        };
        statement.sign(nonce, &mut self.signer).unwrap()
    }

    pub fn inventory(&self) -> Vec<u8> {
        let entries: Vec<_> = self.measured.entries().map(|entry| entry.to_bytes()).collect();
        Inventory::new(entries.iter().map(Vec::as_slice))
            .unwrap()
            .to_bytes()
    }

    /// Reference values of the current state.
    pub fn policy(&mut self) -> TrustPolicy {
        let nonce = Nonce([0; 32]);
        let key = self.signer.public_key();
        let evidence = verify(&self.statement(nonce), &key, nonce).unwrap();
        let proven = Inventory::read(&self.inventory())
            .unwrap()
            .prove(&evidence)
            .unwrap();
        TrustPolicy {
            reference: Reference::from_statement("test", &evidence, Some(&proven), |_| false),
            key,
            every_ns: EVIDENCE_INTERVAL_NS,
            response_timeout_ns: RESPONSE_TIMEOUT_NS,
        }
    }
}

/// Returns a different nonce each time.
pub fn nonces() -> impl FnMut() -> Option<[u8; 32]> {
    let mut count = 0u64;
    move || {
        count += 1;
        let mut nonce = [9; 32];
        nonce[..8].copy_from_slice(&count.to_be_bytes());
        Some(nonce)
    }
}
