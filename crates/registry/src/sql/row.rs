//! Rows and the conversion of their columns.

use sqlx::postgres::{PgRow, PgValueRef};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, TypeInfo as _, ValueRef as _};

use crate::column::{ColumnValue, Substitute};

/// A row of either database. Columns are read by position, because names are ambiguous in joins.
pub(crate) enum Row<'r> {
    Sqlite(&'r SqliteRow),
    Postgres(&'r PgRow),
}

impl Row<'_> {
    /// The column at a position, from 0.
    pub(crate) fn get<T: Column>(&self, position: usize) -> sqlx::Result<T> {
        match self {
            Self::Sqlite(row) => T::from_sqlite(row, position),
            Self::Postgres(row) => row
                .try_get_raw(position)
                .and_then(T::from_postgres)
                .map_err(|error| match error {
                    sqlx::Error::Decode(source) => sqlx::Error::ColumnDecode {
                        index: position.to_string(),
                        source,
                    },
                    error => error,
                }),
        }
    }

    /// The last column.
    pub(crate) fn last<T: Column>(&self) -> sqlx::Result<T> {
        let columns = match self {
            Self::Sqlite(row) => row.len(),
            Self::Postgres(row) => row.len(),
        };
        self.get(columns.saturating_sub(1))
    }
}

/// A column value of any type.
pub(crate) enum Cell {
    Null,
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
    /// A type that this crate never writes.
    Other,
}

impl Row<'_> {
    /// The values of all columns.
    pub(crate) fn cells(&self) -> sqlx::Result<Vec<Cell>> {
        match self {
            Self::Sqlite(row) => (0..row.len())
                .map(|position| {
                    let value = row.try_get_raw(position)?;
                    let kind = value.type_info().name().to_owned();
                    Ok(match kind.as_str() {
                        _ if value.is_null() => Cell::Null,
                        "INTEGER" => Cell::Integer(row.try_get_unchecked(position)?),
                        "TEXT" => row.try_get_unchecked(position).map_or(Cell::Other, Cell::Text),
                        "BLOB" => Cell::Bytes(row.try_get_unchecked(position)?),
                        _ => Cell::Other,
                    })
                })
                .collect(),
            Self::Postgres(row) => (0..row.len())
                .map(|position| {
                    let value = row.try_get_raw(position)?;
                    let kind = value.type_info().name().to_owned();
                    Ok(match kind.as_str() {
                        _ if value.is_null() => Cell::Null,
                        "INT2" | "INT4" | "INT8" => Cell::Integer(i64::from_postgres(value)?),
                        "TEXT" => Cell::Text(String::from_postgres(value)?),
                        "BYTEA" => Cell::Bytes(Vec::from_postgres(value)?),
                        _ => Cell::Other,
                    })
                })
                .collect(),
        }
    }
}

/// A type that a column can be read as. Integers of every width are one type.
pub(crate) trait Column: Sized {
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self>;
    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self>;
}

fn decode<'r, T>(value: PgValueRef<'r>) -> sqlx::Result<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres>,
{
    T::decode(value).map_err(sqlx::Error::Decode)
}

fn unexpected(value: &PgValueRef<'_>) -> sqlx::Error {
    let kind = value.type_info().name().to_owned();
    sqlx::Error::Decode(format!("a column has the unexpected type {kind}").into())
}

impl Column for i64 {
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self> {
        row.try_get(position)
    }

    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self> {
        let kind = value.type_info().name().to_owned();
        match kind.as_str() {
            "INT8" => decode(value),
            "INT4" => decode::<i32>(value).map(Self::from),
            "INT2" => decode::<i16>(value).map(Self::from),
            _ => Err(unexpected(&value)),
        }
    }
}

impl Column for i16 {
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self> {
        row.try_get(position)
    }

    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self> {
        let wide = i64::from_postgres(value)?;
        Self::try_from(wide).map_err(|error| sqlx::Error::Decode(error.into()))
    }
}

impl Column for String {
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self> {
        row.try_get(position)
    }

    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self> {
        decode(value)
    }
}

impl Column for Vec<u8> {
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self> {
        row.try_get(position)
    }

    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self> {
        let kind = value.type_info().name().to_owned();
        match kind.as_str() {
            // A prepared statement returns both types as raw bytes.
            "BYTEA" | "TEXT" | "VARCHAR" | "NAME" => {
                let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
                Ok(bytes.to_vec())
            }
            _ => Err(unexpected(&value)),
        }
    }
}

impl<T: Column> Column for Option<T>
where
    Option<T>: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self> {
        row.try_get(position)
    }

    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self> {
        (!value.is_null()).then(|| T::from_postgres(value)).transpose()
    }
}

/// PostgreSQL columns contain only values of their type.
impl<T: Substitute + Column> Column for ColumnValue<T>
where
    ColumnValue<T>: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    fn from_sqlite(row: &SqliteRow, position: usize) -> sqlx::Result<Self> {
        row.try_get(position)
    }

    fn from_postgres(value: PgValueRef<'_>) -> sqlx::Result<Self> {
        match value.is_null() {
            true => Ok(Self(T::null_value())),
            false => T::from_postgres(value).map(Self),
        }
    }
}

/// A type that a row can be read as.
pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self>;
}

macro_rules! tuples {
    ($($column:ident $position:literal),+) => {
        impl<$($column: Column),+> FromRow for ($($column,)+) {
            fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
                Ok(($(row.get::<$column>($position)?,)+))
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13);
