//! A registry in a database of PostgreSQL's: reached, told from others, opened, made.
//!
//! Any number of programs may have one open. Those that write take turns, under one advisory lock for the length of each
//! transaction, as SQLite has them do: revisions become visible in their order, so that no follower of the feed passes one by, and
//! what a transaction has read stands until it ends ([decision 36](../../../docs/adr/0036-one-writer-at-a-time.md)).

use std::time::Duration;

use linewarden_files::check_regular;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Postgres, Transaction};

use crate::error::{RegistryError, Result};
use crate::key::MasterKey;
use crate::location::Location;
use crate::migrations;
use crate::sql::{self, Connection, Pool};
use crate::storage::Storage;
use crate::store::{Keys, Options, STATEMENTS_AT, at, check_key};

/// Marks our advisory locks among those of other programs: the ASCII letters "LWRG".
const LOCK_CLASS: i32 = 0x4C57_5247;
/// The oldest server that is meant: older ones are not maintained any more.
const VERSION_MIN: i64 = 130_000;
/// How long a transaction may wait for its program, which may be gone: others wait for its lock.
const IDLE_MS_MAX: u32 = 10_000;
/// How long one statement of a transaction that writes may take.
const STATEMENT_MS_MAX: u32 = 60_000;
/// Connections for writing: one is at work, and one is on its way.
const WRITERS: u32 = 2;

/// The connections to a database.
pub(crate) struct Opened {
    pub(crate) writer: Pool,
    pub(crate) reader: Pool,
    pub(crate) reader_apart: Pool,
    pub(crate) keys: Keys,
    pub(crate) lock: WriteLock,
    pub(crate) storage: Storage,
}

/// Who has it, writes.
pub(crate) struct WriteLock {
    statement: String,
    registry: Location,
}

impl WriteLock {
    fn new(server: &Server, registry: &Location) -> Self {
        Self {
            statement: server.lock(),
            registry: registry.clone(),
        }
    }

    /// Begins a transaction that may write, once nobody else does.
    pub(crate) async fn begin(&self, writer: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
        // Not in one with BEGIN: the transaction has to be known as one before its wait can fail or be given up, or nobody undoes it.
        let mut transaction = writer.begin().await.map_err(sql::without_connection)?;
        sqlx::raw_sql(AssertSqlSafe(self.statement.clone()))
            .execute(&mut *transaction)
            .await?;
        Ok(transaction)
    }

    /// Refuses a schema in which anything is not as the migrations make it.
    pub(crate) async fn refuse_foreign(&self, reader: &Pool) -> Result<()> {
        migrations::refuse_foreign_postgres(&mut reader.acquire().await?, &self.registry).await
    }
}

/// What the server says of itself and of the schema that the registry is in.
struct Server {
    schema_id: u32,
    has_registry: bool,
}

impl Server {
    async fn ask(connection: &mut Connection, registry: &Location) -> Result<Self> {
        let unfit = |problem: String| RegistryError::UnfitDatabase {
            registry: registry.clone(),
            problem,
        };
        let (version, encoding, standby, fsync): (i64, String, i64, String) = sql::query(
            "SELECT CAST(current_setting('server_version_num') AS INTEGER), current_setting('server_encoding'), \
             CAST(pg_is_in_recovery() AS INTEGER), current_setting('fsync')",
        )
        .fetch_one(&mut *connection)
        .await?;
        if version < VERSION_MIN {
            let major = version / 10_000;
            return Err(unfit(format!(
                "it is PostgreSQL {major}; 13 and later are supported"
            )));
        }
        if encoding != "UTF8" {
            return Err(unfit(format!(
                "its encoding is {encoding}; make one with `createdb --encoding UTF8 --template template0`"
            )));
        }
        if standby != 0 {
            return Err(unfit(
                "it is a standby, which only reads; name the primary".to_owned(),
            ));
        }
        if fsync != "on" {
            log::warn!(
                "the server of {registry} runs with fsync = {fsync}: a loss of power may hand rows out twice"
            );
        }
        let schema: Option<(i64, i64)> = sql::query(
            "SELECT CAST(oid AS BIGINT), CAST(to_regclass(quote_ident(nspname) || '.registry') IS NOT NULL AS INTEGER) \
             FROM pg_namespace WHERE nspname = current_schema()",
        )
        .fetch_optional(connection)
        .await?;
        let Some((schema_id, has_registry)) = schema else {
            return Err(unfit(
                "none of the schemas in its search_path exists, or may be used; make one".to_owned(),
            ));
        };
        Ok(Self {
            schema_id: u32::try_from(schema_id).unwrap_or_default(),
            has_registry: has_registry != 0,
        })
    }

    /// The statement that takes the lock, until the transaction ends.
    fn lock(&self) -> String {
        format!("SELECT pg_advisory_xact_lock({})", self.lock_key())
    }

    fn lock_key(&self) -> String {
        format!("{LOCK_CLASS}, {}", self.schema_id.cast_signed())
    }
}

/// Connects, within the time that is waited for a lock.
async fn connect(registry: &Location, options: &Options) -> Result<(Connection, PgConnectOptions)> {
    let connect = connect_options(registry, options)?;
    let connecting = PgConnection::connect_with(&connect);
    let connection = match tokio::time::timeout(options.busy_timeout, connecting).await {
        Ok(connection) => connection.map_err(at(registry))?,
        Err(_) => return Err(at(registry)(sql::without_connection(sqlx::Error::PoolTimedOut))),
    };
    Ok((connection.into(), connect))
}

fn connect_options(registry: &Location, options: &Options) -> Result<PgConnectOptions> {
    let Location::Postgres(address) = registry else {
        return Err(RegistryError::NoRegistry {
            registry: registry.clone(),
        });
    };
    // The driver would wait for a FIFO, in a thread that keeps the process from ending.
    for file in address.files() {
        check_regular(&file).map_err(RegistryError::io(format!("read {}", file.display())))?;
    }
    let lock_ms = options.busy_timeout.as_millis().to_string();
    let idle_ms = IDLE_MS_MAX.to_string();
    let mut connect = address.options.clone().log_statements(STATEMENTS_AT);
    if connect.get_application_name().is_none() {
        connect = connect.application_name("linewarden");
    }
    Ok(connect.options([
        // Each commit is on the disk before it returns, whatever this server does otherwise.
        ("synchronous_commit", "on"),
        ("lock_timeout", lock_ms.as_str()),
        ("idle_in_transaction_session_timeout", idle_ms.as_str()),
        // A client behind a network that is gone holds no lock for long.
        ("tcp_keepalives_idle", "10"),
        ("tcp_keepalives_interval", "5"),
        ("tcp_keepalives_count", "3"),
    ]))
}

async fn refuse_missing(connection: &mut Connection, registry: &Location) -> Result<Server> {
    let server = Server::ask(connection, registry)
        .await
        .map_err(at_once(registry))?;
    match server.has_registry {
        true => Ok(server),
        false => Err(RegistryError::NoRegistry {
            registry: registry.clone(),
        }),
    }
}

/// Refuses another key's registry, a newer one, and one that is not as the migrations make it.
async fn examine_with(connection: &mut Connection, registry: &Location, key: &MasterKey) -> Result<Keys> {
    migrations::refuse_newer(connection, registry).await?;
    let keys = check_key(connection, registry, key).await?;
    migrations::refuse_foreign_postgres(connection, registry).await?;
    Ok(keys)
}

/// Opens an existing registry and brings its schema up to this program's.
pub(crate) async fn open(registry: &Location, key: &MasterKey, options: &Options) -> Result<Opened> {
    let (mut connection, connect) = connect(registry, options).await?;
    let server = refuse_missing(&mut connection, registry).await?;
    let keys = examine_with(&mut connection, registry, key).await?;
    migrations::run(&mut connection).await.map_err(at(registry))?;
    let storage = Storage::of_database(&mut connection)
        .await
        .map_err(at(registry))?;
    connection.close().await.map_err(at(registry))?;

    let pool = || {
        PgPoolOptions::new()
            .acquire_timeout(options.busy_timeout)
            .idle_timeout(Duration::from_secs(600))
    };
    let statement_ms = STATEMENT_MS_MAX.to_string();
    let writing = connect
        .clone()
        .options([("statement_timeout", statement_ms.as_str())]);
    let reader = || pool().max_connections(options.readers.max(1));
    Ok(Opened {
        writer: Pool::Postgres(pool().max_connections(WRITERS).connect_lazy_with(writing)),
        reader: Pool::Postgres(reader().connect_lazy_with(connect.clone())),
        reader_apart: Pool::Postgres(reader().connect_lazy_with(connect)),
        keys,
        lock: WriteLock::new(&server, registry),
        storage,
    })
}

/// A connection to a registry that is there.
pub(crate) async fn reading(registry: &Location) -> Result<Connection> {
    let (mut connection, _) = connect(registry, &Options::default()).await?;
    refuse_missing(&mut connection, registry).await?;
    Ok(connection)
}

/// Whether [`open`] would find a registry of this key that this program knows; nothing is changed.
pub(crate) async fn examine(registry: &Location, key: &MasterKey) -> Result<()> {
    let mut connection = reading(registry).await?;
    examine_with(&mut connection, registry, key).await?;
    connection.close().await.map_err(at(registry))
}

/// Tables that are being filled: all of them are there at once, or none.
pub(crate) struct Draft {
    /// What the migrations begin in it are parts of it.
    transaction: sql::Transaction,
    pool: PgPool,
    registry: Location,
}

impl Draft {
    /// Makes the tables of a new registry, in a transaction.
    pub(crate) async fn begin(registry: &Location) -> Result<Self> {
        let (mut connection, connect) = connect(registry, &Options::default()).await?;
        let server = Server::ask(&mut connection, registry)
            .await
            .map_err(at_once(registry))?;
        connection.close().await.map_err(at(registry))?;
        let exists = || RegistryError::AlreadyExists {
            registry: registry.clone(),
        };
        if server.has_registry {
            return Err(exists());
        }
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(connect);
        let begin = async || -> Result<Option<sql::Transaction>> {
            let mut transaction =
                sql::Transaction::from(pool.begin().await.map_err(sql::without_connection)?);
            // Another program may be at it as well.
            sql::text(server.lock()).execute(&mut *transaction).await?;
            if Server::ask(&mut transaction, registry).await?.has_registry {
                return Ok(None);
            }
            migrations::run(&mut transaction).await?;
            Ok(Some(transaction))
        };
        match begin().await.map_err(at_once(registry))? {
            Some(transaction) => Ok(Self {
                transaction,
                pool,
                registry: registry.clone(),
            }),
            None => Err(exists()),
        }
    }

    /// What they are filled by.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.transaction
    }

    /// Makes them durable, for all to see.
    pub(crate) async fn finish(self) -> Result<()> {
        self.transaction.commit().await.map_err(at(&self.registry))?;
        self.pool.close().await;
        Ok(())
    }
}

/// [`at`] of what does not say itself where it is.
fn at_once(registry: &Location) -> impl FnOnce(RegistryError) -> RegistryError {
    let registry = registry.clone();
    move |error| match error {
        unfit @ RegistryError::UnfitDatabase { .. } => unfit,
        other => at(registry)(other),
    }
}
