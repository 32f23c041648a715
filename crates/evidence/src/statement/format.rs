//! Constants and simple values of the format of statements.

/// Length of a nonce in bytes.
pub const NONCE_BYTES: usize = 32;

/// Maximum length of a statement, bytes: some hundred thousand objects.
pub const STATEMENT_BYTES_MAX: usize = 16 << 20;

/// A value drawn by the appraiser, so that an old statement is not accepted as a current statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

/// Types of data planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPlaneKind {
    /// The P4 switch.
    P4,
    /// The XDP gateway.
    Xdp,
}

impl DataPlaneKind {
    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P4 => "p4",
            Self::Xdp => "xdp",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::P4, Self::Xdp].into_iter().find(|kind| kind.name() == name)
    }
}

/// The profile, which defines the meaning of the claims (see the documentation of the module).
pub const PROFILE: &str = "tag:github.com,2026:linewarden/linewarden/evidence/1";
