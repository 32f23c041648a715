//! Values of statement parameters.

/// A parameter. NULL has a type, because PostgreSQL requires a type for each parameter.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Integer(Option<i64>),
    Bool(bool),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

macro_rules! from {
    ($($kind:ty => $value:expr),+ $(,)?) => {
        $(impl From<$kind> for Value {
            fn from(value: $kind) -> Self {
                $value(value)
            }
        })+
    };
}

from! {
    i64 => |value| Self::Integer(Some(value)),
    i16 => |value| Self::Integer(Some(i64::from(value))),
    Option<i64> => Self::Integer,
    Option<i16> => |value: Option<i16>| Self::Integer(value.map(i64::from)),
    bool => Self::Bool,
    String => |value| Self::Text(Some(value)),
    &String => |value: &String| Self::Text(Some(value.clone())),
    &str => |value: &str| Self::Text(Some(value.to_owned())),
    Option<&str> => |value: Option<&str>| Self::Text(value.map(ToOwned::to_owned)),
    Vec<u8> => |value| Self::Bytes(Some(value)),
    &Vec<u8> => |value: &Vec<u8>| Self::Bytes(Some(value.clone())),
    &[u8] => |value: &[u8]| Self::Bytes(Some(value.to_vec())),
    Option<Vec<u8>> => Self::Bytes,
}
