//! One way to speak to either database: the same texts, the same values, the same rows.
//!
//! Every statement of this crate is written once, in the SQL that SQLite and PostgreSQL have in common; parameters are `$1`, `$2`, ..
//! Integers are 64 bits wide on the way in, whatever their column's width. What of a schema differs is in [`crate::migrations`].

mod connection;
mod query;
mod row;
mod value;

pub(crate) use connection::{Connection, Pool, Transaction, without_connection};
pub(crate) use query::{Builder, query, text};
pub(crate) use row::{Cell, FromRow, Row};
pub(crate) use value::Value;
