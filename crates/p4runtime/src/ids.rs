//! Ids in P4Runtime messages, one type for each kind.

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
    /// Id of a table in the P4Info.
    TableId,
    /// Id of an action in the P4Info.
    ActionId,
    /// Id of an action profile or selector in the P4Info.
    ProfileId,
    /// Id of an indirect counter array in the P4Info.
    CounterId,
    /// Id of a direct counter in the P4Info.
    DirectCounterId,
    /// Id of an indirect meter array in the P4Info.
    MeterId,
    /// Id of a direct meter in the P4Info.
    DirectMeterId,
    /// Id of a parser value set in the P4Info.
    ValueSetId,
    /// Id of a register array in the P4Info.
    RegisterId,
    /// Id of a digest in the P4Info.
    DigestId,
    /// Id of a match field within its table or value set.
    FieldId,
    /// Id of a parameter within its action.
    ParamId,
    /// Id of a metadata field of packet-ins or packet-outs.
    MetadataId,
    /// Id of a member within its action profile, chosen by the controller; never zero.
    MemberId,
    /// Id of a group within its action selector, chosen by the controller; never zero.
    GroupId,
    /// Id of a multicast group of the packet replication engine; never zero.
    MulticastGroupId,
    /// Id of a clone session of the packet replication engine; never zero.
    CloneSessionId,
}
