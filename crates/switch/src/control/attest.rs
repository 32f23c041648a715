//! Evidence of the running program, for the evidence service at the address of the P4Runtime server.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use linewarden_evidence::encoding::Object;
use linewarden_evidence::statement::Nonce;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::evidence::{
    Digests, EvidenceSource, EvidenceUnavailable, InventoryScope, NONCE_BYTES, SignedEvidence,
};

use super::attestation_config::AttestationConfig;
use super::{Control, Programs};
use crate::evidence::{Attester, Rescan};
use crate::switch::Switch;

impl Control {
    /// Starts the measurement of a program before it runs. The sequence numbers continue those of the previous program.
    pub(super) fn start_measurement(
        &self,
        programs: &Programs,
        switch: &mut Switch,
    ) -> Result<(), EntityError> {
        let Some(attestation) = &self.attestation else {
            return Ok(());
        };
        let result = switch.start_attestation(attestation.settings.clone(), programs.running_switch());
        result.map(|_| ()).map_err(|error| {
            EntityError::invalid(format!("cannot measure the program for evidence: {error}"))
        })
    }

    fn attestation_config(&self) -> Result<&AttestationConfig, EvidenceUnavailable> {
        let message = "evidence is disabled: start the switch with --switch-id and --boot-count";
        self.attestation
            .as_ref()
            .ok_or_else(|| EvidenceUnavailable(message.to_owned()))
    }

    /// Attester of the running program.
    fn attester(&self) -> Result<Arc<Attester>, EvidenceUnavailable> {
        self.attestation_config()?;
        let programs = self.programs();
        let attester = programs
            .running_switch()
            .and_then(|switch| switch.attester().cloned());
        attester.ok_or_else(|| EvidenceUnavailable("no program is running".to_owned()))
    }

    /// Number of packets dropped because a program had produced data that resembles evidence; `None` if evidence is disabled.
    #[must_use]
    pub fn forged_packets(&self) -> Option<u64> {
        let attestation = self.attestation.as_ref();
        attestation.map(|attestation| attestation.settings.identity.forged_packets())
    }

    /// Compares memory with the measurement; `None` if no program is measured.
    ///
    /// # Errors
    /// Active state cannot be encoded.
    pub fn rescan(&self) -> Result<Option<Rescan>, EvidenceUnavailable> {
        let programs = self.programs();
        let rescan = programs.running_switch().map(Switch::rescan).transpose();
        Ok(rescan.map_err(evidence_unavailable)?.flatten())
    }
}

impl EvidenceSource for Control {
    fn digests(&self) -> Result<Digests, EvidenceUnavailable> {
        let snapshot = self.attester()?.snapshot().map_err(evidence_unavailable)?;
        let digests = snapshot.digests;
        Ok(Digests {
            switch_id: snapshot.switch.0,
            boot_count: snapshot.boot_count.0,
            sequence: snapshot.sequence.0,
            registers: digests.registers.0.to_vec(),
            tables: digests.tables.0.to_vec(),
            program: digests.program.0.to_vec(),
        })
    }

    fn attest(
        &self,
        nonce: [u8; NONCE_BYTES],
        scope: InventoryScope,
    ) -> Result<SignedEvidence, EvidenceUnavailable> {
        let attestation = self.attestation_config()?;
        let excluded = match scope {
            InventoryScope::None => None,
            InventoryScope::AllExcept(names) => Some(parse_objects(&names)?),
        };
        let missing_key =
            || EvidenceUnavailable("signing key is missing: start the switch with --evidence-key".to_owned());
        let signer = attestation.signer.as_ref().ok_or_else(missing_key)?;
        // A panic of a signer leaves no partial state. The request takes the lock before it reads the attester, because
        // the program may change while the request waits for the lock.
        let mut signer = signer.lock().unwrap_or_else(PoisonError::into_inner);
        let attester = self.attester()?;
        let result = attester.statement(
            Nonce(nonce),
            &attestation.software_version,
            excluded.as_ref(),
            signer.as_mut(),
        );
        let (statement, inventory) = result.map_err(evidence_unavailable)?;
        if !Arc::ptr_eq(&attester, &self.attester()?) {
            return Err(EvidenceUnavailable(
                "program changed during the request: retry the request".to_owned(),
            ));
        }
        Ok(SignedEvidence {
            statement,
            inventory: inventory.map(|inventory| inventory.to_bytes()),
        })
    }
}

fn parse_objects(names: &[String]) -> Result<BTreeSet<Object>, EvidenceUnavailable> {
    let object = |name: &String| {
        name.parse()
            .map_err(|error| EvidenceUnavailable(format!("invalid object {name}: {error}")))
    };
    names.iter().map(object).collect()
}

fn evidence_unavailable(error: crate::evidence::EvidenceError) -> EvidenceUnavailable {
    EvidenceUnavailable(error.to_string())
}
