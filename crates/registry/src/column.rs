//! Column values as stored, which may have another type than their column.
//!
//! SQLite stores text in a numeric column if another program, or a flipped bit, puts it there. The driver would fail
//! every query that reads such a row. Here such a value is replaced by one that no valid record has, so that only
//! this record is damaged: its MAC does not match.

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
    /// Only device ids are negative; this value is device 2^63.
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
    /// No MAC and no sealed value is empty.
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
        let fits = T::compatible(&value.type_info());
        let decoded = if fits { T::decode(value).ok() } else { None };
        Ok(Self(decoded.unwrap_or_else(T::substitute)))
    }
}
