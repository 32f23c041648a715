//! Values as they stand in the file, which need not be of their column's type.
//!
//! SQLite keeps text in a column of numbers if somebody or a flipped bit puts it there. Refused by the driver, such a value
//! would fail every question that meets its row; here it is read as a value that no record has, and so becomes the damage
//! of that one record, whose code it does not fit.

use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Sqlite, Type, ValueRef as _};

/// A value of a column, or what stands for one of another type.
#[derive(Clone, Debug)]
pub(crate) struct Stored<T>(pub(crate) T);

/// What no column of a sound record holds.
pub(crate) trait Foreign {
    /// In place of a value of another type.
    fn foreign() -> Self;

    /// In place of NULL.
    fn null() -> Self
    where
        Self: Sized,
    {
        Self::foreign()
    }
}

impl Foreign for i64 {
    /// Only ids are negative; of those this is device 2^63.
    fn foreign() -> Self {
        Self::MIN
    }
}

impl Foreign for i16 {
    fn foreign() -> Self {
        Self::MIN
    }
}

impl Foreign for Vec<u8> {
    /// No code, and no sealed text, is empty.
    fn foreign() -> Self {
        Self::new()
    }
}

impl<T: Foreign> Foreign for Option<T> {
    fn foreign() -> Self {
        Some(T::foreign())
    }

    fn null() -> Self {
        None
    }
}

impl<T: Type<Sqlite>> Type<Sqlite> for Stored<T> {
    fn type_info() -> SqliteTypeInfo {
        T::type_info()
    }

    fn compatible(_: &SqliteTypeInfo) -> bool {
        true
    }
}

impl<'r, T: Foreign + Type<Sqlite> + Decode<'r, Sqlite>> Decode<'r, Sqlite> for Stored<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        if value.is_null() {
            return Ok(Self(T::null()));
        }
        let fits = T::compatible(&value.type_info());
        let decoded = if fits { T::decode(value).ok() } else { None };
        Ok(Self(decoded.unwrap_or_else(T::foreign)))
    }
}
