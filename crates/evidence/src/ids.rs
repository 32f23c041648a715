//! Who says it, and when.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A data plane, as its operator has numbered it. A gateway's is its gateway_id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SwitchId(pub u64);

/// How often the data plane was started; durable and never the same twice, else keys of packets' evidence would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootCount(pub u64);

/// The number of a state since the start. A higher one is later, equal ones are the same state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(pub u64);

macro_rules! shown_as_number {
    ($($id:ident)*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

shown_as_number!(SwitchId BootCount Sequence);
