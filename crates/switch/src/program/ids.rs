//! Dense numbers of a program's parts: positions in the lists of [`Program`](super::Program).

use serde::Serialize;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in its list.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A header type.
    TypeId;
    /// A header instance, of a packet or of metadata.
    HeaderId;
    /// A header stack.
    StackId;
    /// A header union.
    UnionId;
    /// A stack of header unions.
    UnionStackId;
    /// An action.
    ActionId;
    /// A match-action table.
    TableId;
    /// An action profile.
    ProfileId;
    /// A parser state.
    StateId;
    /// A parser's value set.
    ValueSetId;
    /// A calculation: an algorithm over a list of inputs.
    CalculationId;
    /// An array of registers.
    RegisterId;
    /// An array of counters that are not direct.
    CounterId;
    /// An array of meters, direct or not.
    MeterId;
    /// A digest (BMv2: learn list).
    DigestId;
    /// A list of fields that clones, resubmitted and recirculated packets keep.
    FieldListId;
    /// A node of a pipeline's control flow.
    NodeId;
}

/// A field of a header instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FieldRef {
    /// The header.
    pub header: HeaderId,
    /// Its position in the header's type; one past the last is the hidden field `$valid$`.
    pub field: u32,
}
