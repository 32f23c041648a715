//! Dense ids of a program's elements: positions in the lists of [`Program`](super::Program).

use serde::Serialize;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in the list.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Header type.
    TypeId;
    /// Header or metadata instance.
    HeaderId;
    /// Header stack.
    StackId;
    /// Header union.
    UnionId;
    /// Header union stack.
    UnionStackId;
    /// Action.
    ActionId;
    /// Match-action table.
    TableId;
    /// Action profile.
    ProfileId;
    /// Parser state.
    StateId;
    /// Parser value set.
    ValueSetId;
    /// Calculation: an algorithm over a list of inputs.
    CalculationId;
    /// Register array.
    RegisterId;
    /// Indirect counter array.
    CounterId;
    /// Meter array, direct or indirect.
    MeterId;
    /// Digest (BMv2: learn list).
    DigestId;
    /// Field list: fields that clones, resubmitted and recirculated packets keep.
    FieldListId;
    /// Control flow node of a pipeline.
    NodeId;
}

/// Field of a header instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FieldRef {
    /// Header.
    pub header: HeaderId,
    /// Index in the header type; the index after the last field is the hidden field `$valid$`.
    pub field: u32,
}
