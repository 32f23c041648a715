//! Connections, connection pools and transactions.

use std::ops::{Deref, DerefMut};

use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgPool, PgRow};
use sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sqlx::{Arguments as _, Connection as _, Database, PgConnection, Postgres, Sqlite, SqliteConnection};

use super::row::Row;
use super::value::Value;
use crate::monitor::TransactionObserver;

/// The differences between the databases.
pub(crate) trait Driver: Database {
    /// Appends a parameter.
    fn add(arguments: &mut Self::Arguments, value: Value) -> Result<(), BoxDynError>;
    /// Appends the placeholder of parameter `number`, from 1, to a statement.
    fn write_parameter(text: &mut String, number: usize);
    /// Wraps a row of either database.
    fn row(row: &Self::Row) -> Row<'_>;
}

impl Driver for Sqlite {
    fn add(arguments: &mut SqliteArguments, value: Value) -> Result<(), BoxDynError> {
        match value {
            Value::Integer(value) => sqlx::Arguments::add(arguments, value),
            Value::Bool(value) => sqlx::Arguments::add(arguments, value),
            Value::Text(value) => sqlx::Arguments::add(arguments, value),
            Value::Bytes(value) => sqlx::Arguments::add(arguments, value),
        }
    }

    /// Writes `?` without a number: SQLite looks up numbered parameters linearly, which would dominate the time of
    /// statements with a thousand parameters.
    fn write_parameter(text: &mut String, _number: usize) {
        text.push('?');
    }

    fn row(row: &SqliteRow) -> Row<'_> {
        Row::Sqlite(row)
    }
}

impl Driver for Postgres {
    fn add(arguments: &mut PgArguments, value: Value) -> Result<(), BoxDynError> {
        match value {
            Value::Integer(value) => arguments.add(value),
            Value::Bool(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
        }
    }

    fn write_parameter(text: &mut String, number: usize) {
        use std::fmt::Write as _;
        // Writing into a String does not fail.
        let _ = write!(text, "${number}");
    }

    fn row(row: &PgRow) -> Row<'_> {
        Row::Postgres(row)
    }
}

/// A connection to either database.
pub(crate) enum Connection {
    Sqlite(Handle<Sqlite>),
    Postgres(Handle<Postgres>),
}

/// A connection and its owner.
pub(crate) enum Handle<DB: Database> {
    Own(Box<DB::Connection>),
    Pooled(PoolConnection<DB>),
    InTransaction(sqlx::Transaction<'static, DB>),
}

impl<DB: Database> Deref for Handle<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        match self {
            Self::Own(connection) => connection,
            Self::Pooled(connection) => connection,
            Self::InTransaction(transaction) => transaction,
        }
    }
}

impl<DB: Database> DerefMut for Handle<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        match self {
            Self::Own(connection) => connection,
            Self::Pooled(connection) => connection,
            Self::InTransaction(transaction) => transaction,
        }
    }
}

impl From<SqliteConnection> for Connection {
    fn from(connection: SqliteConnection) -> Self {
        Self::Sqlite(Handle::Own(Box::new(connection)))
    }
}

impl From<PgConnection> for Connection {
    fn from(connection: PgConnection) -> Self {
        Self::Postgres(Handle::Own(Box::new(connection)))
    }
}

impl Connection {
    /// Closes an owned connection. Any other connection returns to its pool or transaction.
    pub(crate) async fn close(self) -> sqlx::Result<()> {
        match self {
            Self::Sqlite(Handle::Own(connection)) => connection.close().await,
            Self::Postgres(Handle::Own(connection)) => connection.close().await,
            _ => Ok(()),
        }
    }
}

/// A transaction, rolled back on drop.
pub(crate) struct Transaction {
    connection: Connection,
    observer: Option<Box<dyn TransactionObserver>>,
}

impl Transaction {
    /// Sets an observer of the transaction.
    pub(crate) fn observed_by(mut self, observer: Option<Box<dyn TransactionObserver>>) -> Self {
        self.observer = observer;
        self
    }

    pub(crate) async fn commit(self) -> sqlx::Result<()> {
        match self.connection {
            Connection::Sqlite(Handle::InTransaction(transaction)) => transaction.commit().await?,
            Connection::Postgres(Handle::InTransaction(transaction)) => transaction.commit().await?,
            // The handle of a transaction is always `InTransaction`.
            _ => {}
        }
        if let Some(mut observer) = self.observer {
            observer.committed();
        }
        Ok(())
    }

    /// Rolls back and waits for the rollback.
    pub(crate) async fn rollback(self) -> sqlx::Result<()> {
        match self.connection {
            Connection::Sqlite(Handle::InTransaction(transaction)) => transaction.rollback().await,
            Connection::Postgres(Handle::InTransaction(transaction)) => transaction.rollback().await,
            _ => Ok(()),
        }
    }
}

impl From<Connection> for Transaction {
    fn from(connection: Connection) -> Self {
        Self {
            connection,
            observer: None,
        }
    }
}

impl From<sqlx::Transaction<'static, Sqlite>> for Transaction {
    fn from(transaction: sqlx::Transaction<'static, Sqlite>) -> Self {
        Connection::Sqlite(Handle::InTransaction(transaction)).into()
    }
}

impl From<sqlx::Transaction<'static, Postgres>> for Transaction {
    fn from(transaction: sqlx::Transaction<'static, Postgres>) -> Self {
        Connection::Postgres(Handle::InTransaction(transaction)).into()
    }
}

impl Deref for Transaction {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// A pool of connections to one database.
#[derive(Clone)]
pub(crate) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Pool {
    /// A connection; waits until a connection is free.
    pub(crate) async fn acquire(&self) -> sqlx::Result<Connection> {
        Ok(match self {
            Self::Sqlite(pool) => Connection::Sqlite(Handle::Pooled(pool.acquire().await?)),
            Self::Postgres(pool) => {
                let connection = pool.acquire().await.map_err(timeout_as_io_error)?;
                Connection::Postgres(Handle::Pooled(connection))
            }
        })
    }

    /// A read-only transaction with a consistent snapshot.
    pub(crate) async fn snapshot(&self) -> sqlx::Result<Transaction> {
        Ok(match self {
            Self::Sqlite(pool) => pool.begin().await?.into(),
            Self::Postgres(pool) => pool
                .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                .await
                .map_err(timeout_as_io_error)?
                .into(),
        })
    }

    /// Waits for pending operations and closes all connections.
    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// Converts a timeout of a PostgreSQL pool, which means that the server or the network has failed. A timeout of a SQLite
/// pool means a lock and is not converted.
pub(crate) fn timeout_as_io_error(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::PoolTimedOut => sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            "no connection within the timeout",
        )),
        error => error,
    }
}
