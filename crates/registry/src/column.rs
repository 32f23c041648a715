//! Column values as stored, which may have another type than their column.
//!
//! SQLite permits text in a numeric column: another program may write text there, or a bit may flip. The driver would
//! fail every query that reads such a record. This module replaces the value by a substitute that no valid record
//! contains. Only this record is then damaged: its tag does not match.

use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Sqlite, Type, ValueRef as _};

/// A column value, or a substitute for a value of another type.
#[derive(Clone, Debug)]
pub(crate) struct ColumnValue<T>(pub(crate) T);

/// A substitute value that no valid record contains.
pub(crate) trait Substitute {
    /// The substitute for a value of another type.
    fn substitute() -> Self;

    /// The substitute for NULL.
    fn null_value() -> Self
    where
        Self: Sized,
    {
        Self::substitute()
    }
}

impl Substitute for i64 {
    /// As a device id, this value is 2^63, but the tag of the record then does not match. No other column of a valid
    /// record contains this value.
    fn substitute() -> Self {
        Self::MIN
    }
}

impl Substitute for i16 {
    fn substitute() -> Self {
        Self::MIN
    }
}

impl Substitute for Vec<u8> {
    /// A tag or sealed value is never empty. A text may be empty, but the tag of its record then does not match.
    fn substitute() -> Self {
        Self::new()
    }
}

impl<T: Substitute> Substitute for Option<T> {
    fn substitute() -> Self {
        Some(T::substitute())
    }

    fn null_value() -> Self {
        None
    }
}

impl<T: Type<Sqlite>> Type<Sqlite> for ColumnValue<T> {
    fn type_info() -> SqliteTypeInfo {
        T::type_info()
    }

    fn compatible(_: &SqliteTypeInfo) -> bool {
        true
    }
}

impl<'r, T: Substitute + Type<Sqlite> + Decode<'r, Sqlite>> Decode<'r, Sqlite> for ColumnValue<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        if value.is_null() {
            return Ok(Self(T::null_value()));
        }
        let is_compatible = T::compatible(&value.type_info());
        let decoded = if is_compatible {
            T::decode(value).ok()
        } else {
            None
        };
        Ok(Self(decoded.unwrap_or_else(T::substitute)))
    }
}
