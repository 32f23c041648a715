//! Attestation results: the claims of an EAR (draft-ietf-rats-ear-04). The controller signs the claims.

use std::collections::BTreeMap;

use serde::Serialize;

use super::compare::{Appraisal, Difference};
use crate::encoding::Class;

/// The profile of draft-ietf-rats-ear-04.
const PROFILE: &str = "tag:ietf.org,2026:rats/ear#04";
/// AR4SI values: 2 affirming, 96 contraindicated.
const AFFIRMING: i8 = 2;
const CONTRAINDICATED: i8 = 96;
/// Maximum number of lines about differences in a submodule. The submodule also states how many lines are omitted.
const DIFFERENCES_MAX: usize = 100;

/// An EAR claims-set with the JSON names of draft-ietf-rats-ear-04: one submodule each for program, tables and
/// registers.
#[derive(Clone, Debug, Serialize)]
pub struct Ear {
    eat_profile: &'static str,
    eat_nonce: String,
    iat: u64,
    exp: u64,
    ear_verifier_id: VerifierId,
    submods: BTreeMap<String, Submodule>,
}

#[derive(Clone, Debug, Serialize)]
struct VerifierId {
    developer: &'static str,
    build: &'static str,
}

#[derive(Clone, Debug, Serialize)]
struct Submodule {
    ear_status: &'static str,
    ear_trustworthiness_vector: BTreeMap<&'static str, i8>,
    ear_appraisal_policy_ids: [String; 1],
    ear_verifier_claims: VerifierClaims,
}

#[derive(Clone, Debug, Serialize)]
struct VerifierClaims {
    kind: &'static str,
    boot_count: u64,
    sequence: u64,
    digest: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    more_differences: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The subject of a submodule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SubmoduleKind {
    Program,
    Tables,
    Registers,
}

impl SubmoduleKind {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Program, "program"),
        (Self::Tables, "tables"),
        (Self::Registers, "registers"),
    ];

    /// The submodule that a difference concerns; `None` if the difference concerns all submodules.
    const fn of(difference: &Difference) -> Option<Self> {
        match difference {
            Difference::Switch { .. } | Difference::Kind { .. } => None,
            Difference::Program { .. } => Some(Self::Program),
            Difference::Object { object, .. } | Difference::NowVolatile(object) => {
                Some(Self::of_class(object.class))
            }
            Difference::ClassDigest(class) => Some(Self::of_class(*class)),
        }
    }

    const fn of_class(class: Class) -> Self {
        match class {
            Class::Register => Self::Registers,
            _ => Self::Tables,
        }
    }

    /// The AR4SI claim of the submodule.
    const fn claim(self) -> &'static str {
        match self {
            Self::Program => "executables",
            Self::Tables | Self::Registers => "configuration",
        }
    }
}

impl Appraisal {
    /// The claims of the result, to be signed; times in seconds since 1970-01-01 UTC. The result is invalid after
    /// `expires_s`.
    #[must_use]
    pub fn ear(&self, issued_s: u64, expires_s: u64) -> Ear {
        let submodule = |(submodule_kind, name)| {
            (
                format!("{:016x}/{name}", self.snapshot.switch.0),
                self.submodule(submodule_kind),
            )
        };
        Ear {
            eat_profile: PROFILE,
            eat_nonce: hex::encode(self.nonce),
            iat: issued_s,
            exp: expires_s,
            ear_verifier_id: VerifierId {
                developer: env!("CARGO_PKG_REPOSITORY"),
                build: concat!("linewarden ", env!("CARGO_PKG_VERSION")),
            },
            submods: SubmoduleKind::ALL.map(submodule).into(),
        }
    }

    fn submodule(&self, submodule_kind: SubmoduleKind) -> Submodule {
        let concerns = |difference: &&Difference| {
            SubmoduleKind::of(difference).is_none_or(|kind| kind == submodule_kind)
        };
        let reported: Vec<_> = self
            .differences()
            .iter()
            .filter(concerns)
            .flat_map(|difference| {
                difference
                    .to_string()
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        let identity_differs = self
            .differences()
            .iter()
            .any(|difference| SubmoduleKind::of(difference).is_none());
        let value = |is_good| if is_good { AFFIRMING } else { CONTRAINDICATED };
        let is_affirmed = reported.is_empty();
        let digests = &self.snapshot.digests;
        let digest = match submodule_kind {
            SubmoduleKind::Program => digests.program,
            SubmoduleKind::Tables => digests.tables,
            SubmoduleKind::Registers => digests.registers,
        };
        Submodule {
            ear_status: if is_affirmed {
                "affirming"
            } else {
                "contraindicated"
            },
            ear_trustworthiness_vector: [
                ("instance-identity", value(!identity_differs)),
                (submodule_kind.claim(), value(is_affirmed)),
            ]
            .into(),
            ear_appraisal_policy_ids: [format!("linewarden:reference:{}", self.reference)],
            ear_verifier_claims: VerifierClaims {
                kind: self.kind.name(),
                boot_count: self.snapshot.boot_count.0,
                sequence: self.snapshot.sequence.0,
                digest: digest.to_string(),
                more_differences: reported.len().saturating_sub(DIFFERENCES_MAX),
                differences: reported.into_iter().take(DIFFERENCES_MAX).collect(),
            },
        }
    }
}
