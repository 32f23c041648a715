//! Statements.

use std::fmt::Display;

use sqlx::{AssertSqlSafe, Executor, IntoArguments, SqlSafeStr as _, SqlStr};

use super::connection::{Connection, Driver, Handle, Pool};
use super::row::FromRow;
use super::value::Value;

/// A statement and its parameters.
#[must_use = "a query does nothing until it is executed"]
pub(crate) struct Query {
    text: Text,
    values: Vec<Value>,
}

/// The text of a statement.
enum Text {
    /// Parameters are `$1`, `$2`, ..
    Complete(SqlStr),
    /// Parts, with a parameter between each two parts.
    Parts(Vec<String>),
}

impl Text {
    /// The text in the syntax of the database.
    fn into_sql<DB: Driver>(self) -> SqlStr {
        let parts = match self {
            Self::Complete(text) => return text,
            Self::Parts(parts) => parts,
        };
        let length = parts.iter().map(|part| part.len() + 5).sum();
        let mut text = String::with_capacity(length);
        for (number, part) in parts.iter().enumerate() {
            if number > 0 {
                DB::write_parameter(&mut text, number);
            }
            text.push_str(part);
        }
        AssertSqlSafe(text).into_sql_str()
    }
}

/// A statement with a static text.
pub(crate) fn query(text: &'static str) -> Query {
    Query {
        text: Text::Complete(SqlStr::from_static(text)),
        values: Vec::new(),
    }
}

/// A statement with a generated text, which must not contain external input.
pub(crate) fn text(text: String) -> Query {
    Query {
        text: Text::Complete(AssertSqlSafe(text).into_sql_str()),
        values: Vec::new(),
    }
}

impl Query {
    /// Binds the next parameter.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Executes the statement; returns the number of changed rows.
    pub(crate) async fn execute<'c>(self, target: impl Into<Target<'c>>) -> sqlx::Result<u64> {
        match target.into().connection(&mut None).await? {
            Connection::Sqlite(handle) => Ok(execute(self, handle).await?.rows_affected()),
            Connection::Postgres(handle) => Ok(execute(self, handle).await?.rows_affected()),
        }
    }

    /// Executes the statement; returns all rows.
    pub(crate) async fn fetch_all<'c, R: FromRow>(
        self,
        target: impl Into<Target<'c>>,
    ) -> sqlx::Result<Vec<R>> {
        match target.into().connection(&mut None).await? {
            Connection::Sqlite(handle) => fetch_all(self, handle).await,
            Connection::Postgres(handle) => fetch_all(self, handle).await,
        }
    }

    /// The first row, if there is one.
    pub(crate) async fn fetch_optional<'c, R: FromRow>(
        self,
        target: impl Into<Target<'c>>,
    ) -> sqlx::Result<Option<R>> {
        match target.into().connection(&mut None).await? {
            Connection::Sqlite(handle) => fetch_optional(self, handle).await,
            Connection::Postgres(handle) => fetch_optional(self, handle).await,
        }
    }

    /// The first row.
    pub(crate) async fn fetch_one<'c, R: FromRow>(self, target: impl Into<Target<'c>>) -> sqlx::Result<R> {
        self.fetch_optional(target).await?.ok_or(sqlx::Error::RowNotFound)
    }

    fn prepared<DB: Driver>(self) -> sqlx::Result<sqlx::query::Query<'static, DB, DB::Arguments>>
    where
        DB::Arguments: IntoArguments<DB>,
    {
        let mut arguments = DB::Arguments::default();
        for value in self.values {
            DB::add(&mut arguments, value).map_err(sqlx::Error::Encode)?;
        }
        Ok(sqlx::query_with(self.text.into_sql::<DB>(), arguments))
    }
}

async fn execute<DB: Driver>(query: Query, handle: &mut Handle<DB>) -> sqlx::Result<DB::QueryResult>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
{
    query.prepared::<DB>()?.execute(&mut **handle).await
}

async fn fetch_all<DB: Driver, R: FromRow>(query: Query, handle: &mut Handle<DB>) -> sqlx::Result<Vec<R>>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
{
    let rows = query.prepared::<DB>()?.fetch_all(&mut **handle).await?;
    rows.iter().map(|row| R::from_row(&DB::row(row))).collect()
}

async fn fetch_optional<DB: Driver, R: FromRow>(
    query: Query,
    handle: &mut Handle<DB>,
) -> sqlx::Result<Option<R>>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
{
    let row = query.prepared::<DB>()?.fetch_optional(&mut **handle).await?;
    row.as_ref().map(|row| R::from_row(&DB::row(row))).transpose()
}

/// The target of a statement.
pub(crate) enum Target<'c> {
    Connection(&'c mut Connection),
    /// Any connection of a pool.
    Pool(&'c Pool),
}

impl<'c> Target<'c> {
    /// The connection; a connection from a pool is stored in `acquired`.
    async fn connection<'t>(self, acquired: &'t mut Option<Connection>) -> sqlx::Result<&'t mut Connection>
    where
        'c: 't,
    {
        match self {
            Self::Connection(connection) => Ok(connection),
            Self::Pool(pool) => Ok(acquired.insert(pool.acquire().await?)),
        }
    }
}

impl<'c> From<&'c mut Connection> for Target<'c> {
    fn from(connection: &'c mut Connection) -> Self {
        Self::Connection(connection)
    }
}

impl<'c> From<&'c Pool> for Target<'c> {
    fn from(pool: &'c Pool) -> Self {
        Self::Pool(pool)
    }
}

/// A builder of a statement; external input may only be added as parameters.
pub(crate) struct Builder {
    /// The complete parts, as in [`Text::Parts`].
    parts: Vec<String>,
    text: String,
    values: Vec<Value>,
}

impl Builder {
    pub(crate) fn new(text: &'static str) -> Self {
        Self {
            parts: Vec::new(),
            text: text.to_owned(),
            values: Vec::new(),
        }
    }

    /// Appends text.
    pub(crate) fn push(&mut self, text: impl Display) -> &mut Self {
        use std::fmt::Write as _;
        // Writing into a String does not fail.
        let _ = write!(self.text, "{text}");
        self
    }

    /// Appends a parameter with this value.
    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.parts.push(std::mem::take(&mut self.text));
        self
    }

    /// Appends `VALUES (…), (…), …`: a tuple for each item; `fill` appends the values of a tuple.
    pub(crate) fn push_values<I: IntoIterator>(
        &mut self,
        items: I,
        mut fill: impl FnMut(Values<'_>, I::Item),
    ) -> &mut Self {
        self.push("VALUES ");
        for (number, item) in items.into_iter().enumerate() {
            self.push(if number == 0 { "(" } else { ", (" });
            let values = Values {
                builder: self,
                is_first: true,
            };
            fill(values, item);
            self.push(')');
        }
        self
    }

    /// Appends `(…, …)`: a parameter for each value.
    pub(crate) fn push_list<V: Into<Value>>(&mut self, values: impl Iterator<Item = V>) -> &mut Self {
        self.push('(');
        for (number, value) in values.enumerate() {
            if number > 0 {
                self.push(", ");
            }
            self.push_bind(value);
        }
        self.push(')')
    }

    /// The statement.
    pub(crate) fn build(mut self) -> Query {
        self.parts.push(self.text);
        Query {
            text: Text::Parts(self.parts),
            values: self.values,
        }
    }
}

/// One tuple of a list of values.
pub(crate) struct Values<'b> {
    builder: &'b mut Builder,
    is_first: bool,
}

impl Values<'_> {
    /// Appends a parameter with this value.
    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        if !std::mem::replace(&mut self.is_first, false) {
            self.builder.push(", ");
        }
        self.builder.push_bind(value);
        self
    }
}
