//! A common interface to SQLite and PostgreSQL: statements, values and rows.
//!
//! Every statement of this crate is written once, in the SQL that SQLite and PostgreSQL have in common; parameters
//! are `$1`, `$2`, .. Integer parameters are 64 bits wide, regardless of the column. The differences between the
//! schemas are in [`crate::schema`].

mod connection;
mod query;
mod row;
mod value;

pub(crate) use connection::{Connection, Pool, Transaction, timeout_as_io_error};
pub(crate) use query::{Builder, query, text};
pub(crate) use row::{Cell, FromRow, Row};
pub(crate) use value::Value;
