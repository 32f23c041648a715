//! What the gateway says of its data plane, signed.

use std::collections::BTreeMap;

use linewarden_dataplane::Measurement;
use linewarden_evidence::encoding::Entry;
use linewarden_evidence::inband::{EvidenceKey, MasterKey};
use linewarden_evidence::keys::{PublicKey, Signer};
use linewarden_evidence::state::{Measured, Snapshot, StateError, bpf_digest};
use linewarden_evidence::statement::{Inventory, InventoryError, Nonce, Statement, StatementError};
use linewarden_evidence::{BootCount, Digest, SwitchId};
use linewarden_protocol::ids::GatewayId;

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
pub enum AttesterError {
    /// The measurement contradicts itself: the data plane's mistake.
    #[error(transparent)]
    State(#[from] StateError),
    /// Likewise.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// It could not be signed.
    #[error(transparent)]
    Statement(#[from] StatementError),
}

/// A statement and the entries behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Signed (COSE_Sign1).
    pub statement: Vec<u8>,
    /// Not signed: the statement's digests prove it.
    pub inventory: Vec<u8>,
}

/// Signs what is measured, and counts its states.
pub struct Attester {
    signer: Box<dyn Signer + Send>,
    switch: SwitchId,
    boot_count: BootCount,
    /// What was measured last, by identity.
    measured: Option<(Measured, Digest)>,
    entries: BTreeMap<Box<[u8]>, Entry>,
}

impl Attester {
    /// For this start of a gateway, which has never had that count before.
    #[must_use]
    pub fn new(gateway: GatewayId, boot_count: BootCount, signer: Box<dyn Signer + Send>) -> Self {
        Self {
            signer,
            switch: SwitchId(gateway.0.into()),
            boot_count,
            measured: None,
            entries: BTreeMap::new(),
        }
    }

    /// By what its statements are verified.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.signer.public_key()
    }

    /// By what packets prove its states.
    pub(crate) fn packet_key(&self, master: &MasterKey) -> EvidenceKey {
        master.key(self.switch, self.boot_count)
    }

    /// The state that was measured, for packets.
    ///
    /// # Errors
    /// A measurement that contradicts itself.
    pub(crate) fn snapshot(&mut self, measurement: Measurement) -> Result<Snapshot, AttesterError> {
        let Measurement {
            programs, entries, ..
        } = measurement;
        Ok(self.take(bpf_digest(programs), entries)?.snapshot())
    }

    /// Says, in answer to a nonce, what was measured after the nonce had come.
    ///
    /// # Errors
    /// Nothing was signed.
    pub fn show(&mut self, nonce: Nonce, measurement: Measurement) -> Result<Shown, AttesterError> {
        let Measurement {
            kind,
            programs,
            entries,
            left_out,
        } = measurement;
        let measured = self.take(bpf_digest(programs), entries)?;
        let encoded: Vec<_> = measured.entries().map(|entry| entry.whole()).collect();
        let inventory = Inventory::new(encoded.iter().map(Vec::as_slice))?.to_bytes();
        let statement = Statement {
            kind,
            snapshot: measured.snapshot(),
            objects: measured.objects(),
            left_out,
            software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Shown {
            statement: statement.sign(nonce, &mut *self.signer)?,
            inventory,
        })
    }

    /// What differs from the measurement before is a new state; without a difference it is the same one.
    fn take(&mut self, program: Digest, entries: Vec<Entry>) -> Result<&mut Measured, StateError> {
        let first = || (Measured::new(self.switch, self.boot_count, program), program);
        let (measured, known) = self.measured.get_or_insert_with(first);
        if *known != program {
            *measured = measured.successor(program);
            *known = program;
            self.entries.clear();
        }
        let identified = entries
            .into_iter()
            .map(|entry| (entry.encode_parts().identity, entry));
        let now: BTreeMap<_, _> = identified.collect();
        for (identity, entry) in &self.entries {
            if !now.contains_key(identity) {
                measured.remove(entry)?;
            }
        }
        for entry in now.values() {
            measured.put(entry)?;
        }
        self.entries = now;
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use linewarden_evidence::appraisal::{Reference, appraise};
    use linewarden_evidence::encoding::{BpfMapEntry, BpfProgram};
    use linewarden_evidence::keys::Ed25519Signer;
    use linewarden_evidence::statement::{Kind, verify};

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
            kind: Kind::Xdp,
            programs: vec![program],
            entries,
            left_out: Vec::new(),
        }
    }

    #[test]
    fn equal_measurements_are_one_state_and_each_difference_is_a_later_one() {
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
            let shown = attester.show(NONCE, measurement(instructions, settings)).unwrap();
            let evidence = verify(&shown.statement, &key, NONCE).unwrap();
            let state = evidence.snapshot();
            assert_eq!((state.switch, state.boot_count), (SwitchId(5), BootCount(3)));
            assert_eq!(state.sequence.0 > sequence, is_new, "{instructions} {settings:?}");
            sequence = state.sequence.0;
            // As if it had been measured from the start.
            let anew = super::tests::attester().show(NONCE, measurement(instructions, settings));
            assert_eq!(anew.unwrap().inventory, shown.inventory);
        }
    }

    #[test]
    fn its_inventory_proves_the_statement_and_names_the_entry() {
        let mut attester = attester();
        let key = attester.public_key();
        let mut show = |settings: &[u8]| {
            let shown = attester.show(NONCE, measurement(1, settings)).unwrap();
            let evidence = verify(&shown.statement, &key, NONCE).unwrap();
            let proven = Inventory::read(&shown.inventory)
                .unwrap()
                .prove(&evidence)
                .unwrap();
            (evidence, proven)
        };
        let (evidence, proven) = show(&[1, 2]);
        let reference = Reference::of("test", &evidence, Some(&proven), |_| false);
        let (evidence, proven) = show(&[1, 9]);
        let appraisal = appraise(&evidence, &reference, Some(&proven)).unwrap();
        assert!(
            appraisal.to_string().contains("entry 01: 02 is now 09"),
            "{appraisal}"
        );
    }
}
