//! A registry in a PostgreSQL database: connecting, checking, opening, creating.
//!
//! Any number of programs may open the same registry. One program writes at a time, as with SQLite: each writing
//! transaction holds an advisory lock. So revisions become visible in their order, no reader of the change feed misses a
//! change, and data that a writing transaction has read does not change until the transaction ends ([ADR
//! 35](../../../docs/adr/0035-one-write-transaction-at-a-time.md)).

use linewarden_files::check_regular;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Postgres, Transaction};

use crate::error::{OpenError, RegistryError, Result};
use crate::key::MasterKey;
use crate::location::Location;
use crate::schema;
use crate::sql::{self, Connection, Pool};
use crate::storage::Storage;
use crate::store::{Keys, Options, STATEMENT_LOG_LEVEL, check_key, with_location};

/// The class of the advisory locks of registries: the ASCII letters "LWRG".
const LOCK_CLASS: i32 = 0x4C57_5247;
/// The oldest supported server version; older versions are no longer maintained.
const VERSION_MIN: i64 = 130_000;
/// Maximum idle time of a transaction, ms. The program of an idle transaction may have stopped while other programs wait
/// for the lock.
const IDLE_TRANSACTION_TIMEOUT_MS: u32 = 10_000;
/// Maximum duration of one statement of a writing transaction, ms.
const STATEMENT_TIMEOUT_MS: u32 = 60_000;
/// Maximum number of connections for writing: one in use, and one that is being established.
const WRITER_CONNECTIONS: u32 = 2;

/// The connections to a database.
pub(crate) struct Connections {
    pub(crate) writer: Pool,
    pub(crate) reader: Pool,
    pub(crate) separate_reader: Pool,
    pub(crate) keys: Keys,
    pub(crate) lock: WriteLock,
    pub(crate) storage: Storage,
}

/// The lock that a writer must hold.
pub(crate) struct WriteLock {
    statement: String,
    registry: Location,
}

impl WriteLock {
    fn new(server: &Server, registry: &Location) -> Self {
        Self {
            statement: server.lock_statement(),
            registry: registry.clone(),
        }
    }

    /// Begins a writing transaction after other writers have finished.
    pub(crate) async fn begin(&self, writer: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
        // The lock is requested after BEGIN, by a separate statement: only then sqlx rolls the transaction back if the
        // wait for the lock fails or is cancelled.
        let mut transaction = writer.begin().await.map_err(sql::timeout_as_io_error)?;
        sqlx::raw_sql(AssertSqlSafe(self.statement.clone()))
            .execute(&mut *transaction)
            .await?;
        Ok(transaction)
    }

    /// Refuses a schema that differs from the migrations.
    pub(crate) async fn refuse_foreign(&self, reader: &Pool) -> Result<()> {
        schema::refuse_foreign_postgres(&mut reader.acquire().await?, &self.registry).await
    }
}

/// Properties of the server and of the registry's schema.
struct Server {
    schema_id: u32,
    has_registry: bool,
}

impl Server {
    async fn query(connection: &mut Connection, registry: &Location) -> Result<Self> {
        let unsuitable = |problem: String| {
            RegistryError::Open(OpenError::UnsuitableDatabase {
                registry: registry.clone(),
                problem,
            })
        };
        let (version, encoding, standby, fsync): (i64, String, i64, String) = sql::query(
            "SELECT CAST(current_setting('server_version_num') AS INTEGER), current_setting('server_encoding'), \
             CAST(pg_is_in_recovery() AS INTEGER), current_setting('fsync')",
        )
        .fetch_one(&mut *connection)
        .await?;
        if version < VERSION_MIN {
            let major = version / 10_000;
            return Err(unsuitable(format!(
                "the server is PostgreSQL {major}; versions from 13 on are supported"
            )));
        }
        if encoding != "UTF8" {
            return Err(unsuitable(format!(
                "the encoding is {encoding}; create a database with `createdb --encoding UTF8 --template template0`"
            )));
        }
        if standby != 0 {
            return Err(unsuitable(
                "the server is a read-only standby; use the primary".to_owned(),
            ));
        }
        if fsync != "on" {
            log::warn!(
                "the PostgreSQL server of {registry} runs with fsync = {fsync}: after a power failure rows may be leased twice; set fsync = on"
            );
        }
        let schema: Option<(i64, i64)> = sql::query(
            "SELECT CAST(oid AS BIGINT), CAST(to_regclass(quote_ident(nspname) || '.registry') IS NOT NULL AS INTEGER) \
             FROM pg_namespace WHERE nspname = current_schema()",
        )
        .fetch_optional(connection)
        .await?;
        let Some((schema_id, has_registry)) = schema else {
            return Err(unsuitable(
                "no schema in the search_path exists or is accessible; create one".to_owned(),
            ));
        };
        Ok(Self {
            schema_id: u32::try_from(schema_id).unwrap_or_default(),
            has_registry: has_registry != 0,
        })
    }

    /// The statement that acquires the write lock; the lock is held until the end of the transaction.
    fn lock_statement(&self) -> String {
        format!("SELECT pg_advisory_xact_lock({})", self.lock_key())
    }

    fn lock_key(&self) -> String {
        format!("{LOCK_CLASS}, {}", self.schema_id.cast_signed())
    }
}

/// Connects, with the lock timeout as the maximum duration.
async fn connect(registry: &Location, options: &Options) -> Result<(Connection, PgConnectOptions)> {
    let connect_options = connect_options(registry, options)?;
    let connecting = PgConnection::connect_with(&connect_options);
    let connection = match tokio::time::timeout(options.busy_timeout, connecting).await {
        Ok(connection) => connection.map_err(with_location(registry))?,
        Err(_) => {
            return Err(with_location(registry)(sql::timeout_as_io_error(
                sqlx::Error::PoolTimedOut,
            )));
        }
    };
    Ok((connection.into(), connect_options))
}

fn connect_options(registry: &Location, options: &Options) -> Result<PgConnectOptions> {
    let Location::Postgres(address) = registry else {
        return Err(RegistryError::Open(OpenError::NoRegistry {
            registry: registry.clone(),
        }));
    };
    // The driver would block on a FIFO, in a thread that keeps the process from exiting.
    for file in address.files() {
        check_regular(&file).map_err(RegistryError::io(format!("read {}", file.display())))?;
    }
    let lock_ms = options.busy_timeout.as_millis().to_string();
    let idle_ms = IDLE_TRANSACTION_TIMEOUT_MS.to_string();
    let mut connect = address.options.clone().log_statements(STATEMENT_LOG_LEVEL);
    if connect.get_application_name().is_none() {
        connect = connect.application_name("linewarden");
    }
    Ok(connect.options([
        // Each commit is on disk before it returns, regardless of the server's configuration.
        ("synchronous_commit", "on"),
        ("lock_timeout", lock_ms.as_str()),
        ("idle_in_transaction_session_timeout", idle_ms.as_str()),
        // A client that the server cannot reach must not hold a lock for long.
        ("tcp_keepalives_idle", "10"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_keepalives_count", "3"),
    ]))
}

/// Returns the server's properties; an error if the database has no registry or cannot have one.
async fn refuse_missing(connection: &mut Connection, registry: &Location) -> Result<Server> {
    let server = Server::query(connection, registry)
        .await
        .map_err(with_location_if_missing(registry))?;
    match server.has_registry {
        true => Ok(server),
        false => Err(RegistryError::Open(OpenError::NoRegistry {
            registry: registry.clone(),
        })),
    }
}

/// Refuses a registry with another master key, a newer schema or unexpected objects; returns the registry's keys.
async fn examine_with(connection: &mut Connection, registry: &Location, key: &MasterKey) -> Result<Keys> {
    schema::refuse_newer(connection, registry).await?;
    let keys = check_key(connection, registry, key).await?;
    schema::refuse_foreign_postgres(connection, registry).await?;
    Ok(keys)
}

/// Opens an existing registry.
pub(crate) async fn open(registry: &Location, key: &MasterKey, options: &Options) -> Result<Connections> {
    let (mut connection, connect) = connect(registry, options).await?;
    let server = refuse_missing(&mut connection, registry).await?;
    let keys = examine_with(&mut connection, registry, key).await?;
    schema::run(&mut connection)
        .await
        .map_err(with_location(registry))?;
    let storage = Storage::of_database(&mut connection)
        .await
        .map_err(with_location(registry))?;
    connection.close().await.map_err(with_location(registry))?;

    let pool = || {
        PgPoolOptions::new()
            .acquire_timeout(options.busy_timeout)
            // Without these limits, the pool has no maintenance task. This task can loop endlessly, and then the process does not
            // end (sqlx issue 3645). The pool tests a connection before use, so a closed connection is replaced.
            .idle_timeout(None)
            .max_lifetime(None)
    };
    let statement_ms = STATEMENT_TIMEOUT_MS.to_string();
    let writing = connect
        .clone()
        .options([("statement_timeout", statement_ms.as_str())]);
    let reader = || pool().max_connections(options.readers.max(1));
    Ok(Connections {
        writer: Pool::Postgres(
            pool()
                .max_connections(WRITER_CONNECTIONS)
                .connect_lazy_with(writing),
        ),
        reader: Pool::Postgres(reader().connect_lazy_with(connect.clone())),
        separate_reader: Pool::Postgres(reader().connect_lazy_with(connect)),
        keys,
        lock: WriteLock::new(&server, registry),
        storage,
    })
}

/// Connects to an existing registry.
pub(crate) async fn open_read_only(registry: &Location) -> Result<Connection> {
    let (mut connection, _) = connect(registry, &Options::default()).await?;
    refuse_missing(&mut connection, registry).await?;
    Ok(connection)
}

/// Checks whether [`open`] would accept the registry with this key; nothing is changed.
pub(crate) async fn examine(registry: &Location, key: &MasterKey) -> Result<()> {
    let mut connection = open_read_only(registry).await?;
    examine_with(&mut connection, registry, key).await?;
    connection.close().await.map_err(with_location(registry))
}

/// A registry that is being created in one transaction: all tables become visible at once, or none.
pub(crate) struct Draft {
    /// The transactions of the migrations are nested in this transaction.
    transaction: sql::Transaction,
    pool: PgPool,
    registry: Location,
}

impl Draft {
    /// Begins a transaction and creates the tables of a new registry.
    pub(crate) async fn begin(registry: &Location) -> Result<Self> {
        let (mut connection, connect) = connect(registry, &Options::default()).await?;
        let server = Server::query(&mut connection, registry)
            .await
            .map_err(with_location_if_missing(registry))?;
        connection.close().await.map_err(with_location(registry))?;
        let exists = || {
            RegistryError::Open(OpenError::AlreadyExists {
                registry: registry.clone(),
            })
        };
        if server.has_registry {
            return Err(exists());
        }
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(connect);
        let begin = async || -> Result<Option<sql::Transaction>> {
            let mut transaction =
                sql::Transaction::from(pool.begin().await.map_err(sql::timeout_as_io_error)?);
            // Another program may create a registry at the same time.
            sql::text(server.lock_statement())
                .execute(&mut *transaction)
                .await?;
            if Server::query(&mut transaction, registry).await?.has_registry {
                return Ok(None);
            }
            schema::run(&mut transaction).await?;
            Ok(Some(transaction))
        };
        match begin().await.map_err(with_location_if_missing(registry))? {
            Some(transaction) => Ok(Self {
                transaction,
                pool,
                registry: registry.clone(),
            }),
            None => Err(exists()),
        }
    }

    /// The connection of the transaction.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.transaction
    }

    /// Commits the new registry.
    pub(crate) async fn finish(self) -> Result<()> {
        self.transaction
            .commit()
            .await
            .map_err(with_location(&self.registry))?;
        self.pool.close().await;
        Ok(())
    }
}

/// [`with_location`] for errors that do not name the location themselves.
fn with_location_if_missing(registry: &Location) -> impl FnOnce(RegistryError) -> RegistryError {
    let registry = registry.clone();
    move |error| match error {
        unsuitable @ RegistryError::Open(OpenError::UnsuitableDatabase { .. }) => unsuitable,
        error => with_location(registry)(error),
    }
}
