//! Signed evidence about the gateway's data plane.

use std::collections::BTreeMap;

use linewarden_dataplane::Measurement;
use linewarden_evidence::encoding::Entry;
use linewarden_evidence::inband::{EvidenceKey, MasterKey};
use linewarden_evidence::keys::{PublicKey, Signer};
use linewarden_evidence::state::{MeasuredState, Snapshot, StateError, bpf_digest};
use linewarden_evidence::statement::{Inventory, InventoryError, Nonce, Statement, StatementError};
use linewarden_evidence::{BootCount, Digest, SwitchId};
use linewarden_protocol::ids::GatewayId;

/// The reason why no evidence was created.
#[derive(Debug, thiserror::Error)]
pub enum AttesterError {
    /// The measurement is inconsistent, which is an error of the data plane.
    #[error(transparent)]
    State(#[from] StateError),
    /// The inventory of the measurement is invalid, which is an error of the data plane.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// Signing failed.
    #[error(transparent)]
    Statement(#[from] StatementError),
}

/// A statement and its inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedEvidence {
    /// The statement, signed (COSE_Sign1).
    pub statement: Vec<u8>,
    /// The inventory, not signed: digests in the signed statement prove it.
    pub inventory: Vec<u8>,
}

/// Signs measurements, and numbers the measured states.
pub struct Attester {
    signer: Box<dyn Signer + Send>,
    switch: SwitchId,
    boot_count: BootCount,
    /// The state of the last measurement, and the digest of its programs.
    state: Option<(MeasuredState, Digest)>,
    /// The entries of the last measurement, by identity.
    entries: BTreeMap<Box<[u8]>, Entry>,
}

impl Attester {
    /// Creates an attester for this start of the gateway. Each start has another boot count.
    #[must_use]
    pub fn new(gateway: GatewayId, boot_count: BootCount, signer: Box<dyn Signer + Send>) -> Self {
        Self {
            signer,
            switch: SwitchId(gateway.0.into()),
            boot_count,
            state: None,
            entries: BTreeMap::new(),
        }
    }

    /// The key that verifies the statements.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.signer.public_key()
    }

    /// The key of evidence in packets.
    pub(crate) fn packet_key(&self, master: &MasterKey) -> EvidenceKey {
        master.key(self.switch, self.boot_count)
    }

    /// Returns the state of a measurement, for evidence in packets.
    ///
    /// # Errors
    /// The measurement is inconsistent.
    pub(crate) fn snapshot(&mut self, measurement: Measurement) -> Result<Snapshot, AttesterError> {
        let Measurement {
            programs, entries, ..
        } = measurement;
        Ok(self.update_state(bpf_digest(programs), entries)?.snapshot())
    }

    /// Signs a measurement that was taken after the nonce was received.
    ///
    /// # Errors
    /// The measurement is inconsistent, or signing failed.
    pub fn sign(&mut self, nonce: Nonce, measurement: Measurement) -> Result<SignedEvidence, AttesterError> {
        let Measurement {
            kind,
            programs,
            entries,
            exclusions,
        } = measurement;
        let measured = self.update_state(bpf_digest(programs), entries)?;
        let encoded: Vec<_> = measured.entries().map(|entry| entry.to_bytes()).collect();
        let inventory = Inventory::new(encoded.iter().map(Vec::as_slice))?.to_bytes();
        let statement = Statement {
            kind,
            snapshot: measured.snapshot(),
            objects: measured.objects(),
            exclusions,
            software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(SignedEvidence {
            statement: statement.sign(nonce, &mut *self.signer)?,
            inventory,
        })
    }

    /// Returns the state of a measurement: a new state if the measurement differs from the previous measurement,
    /// otherwise the previous state.
    fn update_state(
        &mut self,
        program: Digest,
        entries: Vec<Entry>,
    ) -> Result<&mut MeasuredState, StateError> {
        let initial = || (MeasuredState::new(self.switch, self.boot_count, program), program);
        let (measured, measured_program) = self.state.get_or_insert_with(initial);
        if *measured_program != program {
            *measured = measured.successor(program);
            *measured_program = program;
            self.entries.clear();
        }
        let identified = entries
            .into_iter()
            .map(|entry| (entry.encode_parts().identity, entry));
        let current: BTreeMap<_, _> = identified.collect();
        for (identity, entry) in &self.entries {
            if !current.contains_key(identity) {
                measured.remove(entry)?;
            }
        }
        for entry in current.values() {
            measured.put(entry)?;
        }
        self.entries = current;
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use linewarden_evidence::appraisal::{Reference, appraise};
    use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram};
    use linewarden_evidence::keys::Ed25519Signer;
    use linewarden_evidence::statement::{DataPlaneKind, verify};

    use super::*;

    const NONCE: Nonce = Nonce([7; 32]);

    fn attester() -> Attester {
        let key = Ed25519Signer::generate_pem().unwrap();
        let signer = Ed25519Signer::from_pem(&key).unwrap();
        Attester::new(GatewayId(5), BootCount(3), Box::new(signer))
    }

    fn measurement(instructions: u8, settings: &[u8]) -> Measurement {
        let program = BpfProgram {
            name: "gateway".to_owned(),
            instructions: [instructions; 32],
        };
        let entry = |(key, value): (usize, &u8)| {
            let map = "control".to_owned();
            Entry::from(BpfMapEntry {
                map,
                key: vec![key as u8],
                value: vec![*value],
            })
        };
        let mut entries: Vec<_> = settings.iter().enumerate().map(entry).collect();
        entries.push(program.clone().into());
        Measurement {
            kind: DataPlaneKind::Xdp,
            programs: vec![program],
            entries,
            exclusions: Vec::new(),
        }
    }

    #[test]
    fn equal_measurements_keep_the_state_and_each_difference_creates_a_later_state() {
        let mut attester = attester();
        let key = attester.public_key();
        let mut sequence = 0;
        let steps: [(u8, &[u8], bool); 7] = [
            (1, &[1, 2], true),
            (1, &[1, 2], false),
            (1, &[1, 3], true),
            (1, &[1], true),
            (2, &[1], true),
            (2, &[1], false),
            (1, &[1, 2], true),
        ];
        for (instructions, settings, is_new) in steps {
            let statement = attester.sign(NONCE, measurement(instructions, settings)).unwrap();
            let evidence = verify(&statement.statement, &key, NONCE).unwrap();
            let state = evidence.snapshot();
            assert_eq!((state.switch, state.boot_count), (SwitchId(5), BootCount(3)));
            assert_eq!(state.sequence.0 > sequence, is_new, "{instructions} {settings:?}");
            sequence = state.sequence.0;
            // A new attester makes the same inventory.
            let from_new_attester = super::tests::attester().sign(NONCE, measurement(instructions, settings));
            assert_eq!(from_new_attester.unwrap().inventory, statement.inventory);
        }
    }

    #[test]
    fn inventory_proves_the_statement_and_names_the_changed_entry() {
        let mut attester = attester();
        let key = attester.public_key();
        let mut prove = |settings: &[u8]| {
            let statement = attester.sign(NONCE, measurement(1, settings)).unwrap();
            let evidence = verify(&statement.statement, &key, NONCE).unwrap();
            let proven = Inventory::read(&statement.inventory)
                .unwrap()
                .prove(&evidence)
                .unwrap();
            (evidence, proven)
        };
        let (evidence, proven) = prove(&[1, 2]);
        let reference = Reference::from_statement("test", &evidence, Some(&proven), |_| false);
        let (evidence, proven) = prove(&[1, 9]);
        let appraisal = appraise(&evidence, &reference, Some(&proven)).unwrap();
        assert!(
            appraisal.to_string().contains("entry 01: 02 is now 09"),
            "{appraisal}"
        );
    }
}
