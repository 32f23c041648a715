//! The numbers by which P4Runtime's messages name things, each kind a type of its own.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl From<u32> for $name {
            fn from(id: u32) -> Self {
                Self(id)
            }
        }

        impl From<$name> for u32 {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}

ids! {
    /// A table, as P4Info numbers it.
    TableId,
    /// An action, as P4Info numbers it.
    ActionId,
    /// An action profile or selector, as P4Info numbers it.
    ProfileId,
    /// An indirect counter array, as P4Info numbers it.
    CounterId,
    /// A direct counter, as P4Info numbers it.
    DirectCounterId,
    /// An indirect meter array, as P4Info numbers it.
    MeterId,
    /// A direct meter, as P4Info numbers it.
    DirectMeterId,
    /// A parser value set, as P4Info numbers it.
    ValueSetId,
    /// A register array, as P4Info numbers it.
    RegisterId,
    /// A digest, as P4Info numbers it.
    DigestId,
    /// A match field within its table or value set.
    FieldId,
    /// A parameter within its action.
    ParamId,
    /// A field within the header of packet-ins or of packet-outs.
    MetadataId,
    /// A member within its action profile; the controller chooses it, never zero.
    MemberId,
    /// A group within its action selector; the controller chooses it, never zero.
    GroupId,
    /// A multicast group of the packet replication engine, never zero.
    MulticastGroupId,
    /// A clone session of the packet replication engine, never zero.
    CloneSessionId,
}
