//! Identifiers of data planes, starts and states.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A data plane, numbered by its operator. For a gateway, the number is the gateway_id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SwitchId(pub u64);

/// Number of starts of the data plane. The number is durable and never repeats, because keys of packet evidence must
/// not repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootCount(pub u64);

/// The number of a state since the start. A higher number is a later state; equal numbers are the same state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(pub u64);

macro_rules! display_as_number {
    ($($id:ident)*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

display_as_number!(SwitchId BootCount Sequence);
