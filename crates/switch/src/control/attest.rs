//! Evidence of the program that runs, for whoever asks beside P4Runtime.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use linewarden_evidence::encoding::Object;
use linewarden_evidence::keys::Signer;
use linewarden_evidence::statement::Nonce;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::evidence::{Attested, Digests, Listing, NONCE_BYTES, NoEvidence, Source};

use super::{Control, Programs};
use crate::evidence::{Attester, EvidenceSettings, Rescan};
use crate::switch::Switch;

/// How a switch gives evidence, whatever program it runs.
pub struct Attesting {
    settings: EvidenceSettings,
    software_version: String,
    signer: Option<Mutex<Box<dyn Signer + Send>>>,
}

impl Attesting {
    /// With a key to sign statements with, or without: then digests are told, and packets may carry evidence.
    #[must_use]
    pub fn new(
        settings: EvidenceSettings,
        software_version: &str,
        signer: Option<Box<dyn Signer + Send>>,
    ) -> Self {
        Self {
            settings,
            software_version: software_version.to_owned(),
            signer: signer.map(Mutex::new),
        }
    }
}

impl Control {
    /// Begins to measure a program that is to run; its states' numbers go on where those of the one before end.
    pub(super) fn measure(&self, programs: &Programs, switch: &mut Switch) -> Result<(), EntityError> {
        let Some(attesting) = &self.attesting else {
            return Ok(());
        };
        let begun = switch.attest(attesting.settings.clone(), programs.running());
        begun
            .map(|_| ())
            .map_err(|error| EntityError::invalid(format!("no evidence can be given of it: {error}")))
    }

    fn attesting(&self) -> Result<&Attesting, NoEvidence> {
        let none = "this switch gives no evidence: start it with --switch-id and --boot-count";
        self.attesting.as_ref().ok_or_else(|| NoEvidence(none.to_owned()))
    }

    /// Of the program that runs now.
    fn attester(&self) -> Result<Arc<Attester>, NoEvidence> {
        self.attesting()?;
        let programs = self.programs();
        let attester = programs.running().and_then(|switch| switch.attester().cloned());
        attester.ok_or_else(|| NoEvidence("no program runs yet".to_owned()))
    }

    /// Packets that were dropped because a program had made what looks like evidence; nothing where none is given.
    #[must_use]
    pub fn forged(&self) -> Option<u64> {
        let attesting = self.attesting.as_ref();
        attesting.map(|attesting| attesting.settings.identity.forged())
    }

    /// Compares memory with what was measured; nothing where nothing is measured.
    ///
    /// # Errors
    /// Something in force has no encoding.
    pub fn rescan(&self) -> Result<Option<Rescan>, NoEvidence> {
        let programs = self.programs();
        let rescan = programs.running().map(Switch::rescan).transpose();
        Ok(rescan.map_err(no_evidence)?.flatten())
    }
}

impl Source for Control {
    fn digests(&self) -> Result<Digests, NoEvidence> {
        let snapshot = self.attester()?.snapshot().map_err(no_evidence)?;
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

    fn attest(&self, nonce: [u8; NONCE_BYTES], listing: Listing) -> Result<Attested, NoEvidence> {
        let attesting = self.attesting()?;
        let without = match listing {
            Listing::Nothing => None,
            Listing::AllBut(names) => Some(objects(&names)?),
        };
        let none =
            || NoEvidence("this switch has no key to sign with: start it with --evidence-key".to_owned());
        let signer = attesting.signer.as_ref().ok_or_else(none)?;
        // A signer that panicked has no state that could be half written. It is waited for first: the statement is of the
        // program that runs when it is signed.
        let mut signer = signer.lock().unwrap_or_else(PoisonError::into_inner);
        let attester = self.attester()?;
        let stated = attester.statement(
            Nonce(nonce),
            &attesting.software_version,
            without.as_ref(),
            signer.as_mut(),
        );
        let (statement, inventory) = stated.map_err(no_evidence)?;
        if !Arc::ptr_eq(&attester, &self.attester()?) {
            return Err(NoEvidence(
                "another program runs since this was asked: ask again".to_owned(),
            ));
        }
        Ok(Attested {
            statement,
            inventory: inventory.map(|inventory| inventory.to_bytes()),
        })
    }
}

fn objects(names: &[String]) -> Result<BTreeSet<Object>, NoEvidence> {
    let object = |name: &String| {
        name.parse()
            .map_err(|error| NoEvidence(format!("{name} is no object: {error}")))
    };
    names.iter().map(object).collect()
}

fn no_evidence(error: crate::evidence::EvidenceError) -> NoEvidence {
    NoEvidence(error.to_string())
}
