//! API users, their roles and sessions.

use sha2::{Digest as _, Sha256};

use super::{check_text, damaged_record, invalid_field, text};
use crate::column::ColumnValue;
use crate::conversion::seconds_to_column;
use crate::error::{RegistryError, Result};
use crate::record_tag::RecordAuthenticator;
use crate::sql::{self, Connection};
use crate::store::Registry;

const USER_LABEL: &[u8] = b"linewarden registry table api_user v1";
const SESSION_LABEL: &[u8] = b"linewarden registry table api_session v1";
const NAME_BYTES_MAX: usize = 64;

/// The role of an API user; each role includes the permissions of the previous role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Read everything except users and the registry audit log.
    Viewer,
    /// Enroll, revoke, quarantine and release devices; revoke signers; request rounds.
    Operator,
    /// Manage users, gateways, policies and signers; read users and the registry audit log.
    Admin,
}

impl Role {
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Viewer => 1,
            Self::Operator => 2,
            Self::Admin => 3,
        }
    }

    pub(crate) const fn from_number(number: i64) -> Option<Self> {
        match number {
            1 => Some(Self::Viewer),
            2 => Some(Self::Operator),
            3 => Some(Self::Admin),
            _ => None,
        }
    }
}

/// An API user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user name; the certificate of a user contains the same name.
    pub name: String,
    /// The role.
    pub role: Role,
    /// Whether the user has a token.
    pub has_token: bool,
    /// Time of creation, seconds since 1970-01-01 UTC.
    pub created_at_s: u64,
    /// Expiry, seconds since 1970-01-01 UTC; `None`: no expiry.
    pub expires_at_s: Option<u64>,
}

/// Maximum number of sessions of one user.
const SESSIONS_MAX: i64 = 100;

/// The columns of `api_user`: name, role, token, created, expires, tag.
type UserColumns = (
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<i64>,
    ColumnValue<Option<i64>>,
    ColumnValue<Vec<u8>>,
);

/// The columns of `api_session`: hash, user, expires, tag.
type SessionColumns = (
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

fn user_tag(authenticator: &RecordAuthenticator, record: &UserColumns) -> crate::record_tag::TagBuilder {
    authenticator
        .begin(USER_LABEL)
        .bytes(&record.0.0)
        .number(record.1.0)
        .bytes_or_null(record.2.0.as_deref())
        .number(record.3.0)
        .number_or_null(record.4.0)
}

fn session_tag(
    authenticator: &RecordAuthenticator,
    record: &SessionColumns,
) -> crate::record_tag::TagBuilder {
    authenticator
        .begin(SESSION_LABEL)
        .bytes(&record.0.0)
        .bytes(&record.1.0)
        .number(record.2.0)
}

fn user_from_record(authenticator: &RecordAuthenticator, record: UserColumns) -> Result<User> {
    let name = text(record.0.0.clone());
    let role =
        Role::from_number(record.1.0).filter(|_| user_tag(authenticator, &record).matches(&record.5.0));
    Ok(User {
        role: role.ok_or_else(|| damaged_record(format!("the record of user {name:?}")))?,
        name,
        has_token: record.2.0.is_some(),
        created_at_s: u64::try_from(record.3.0).unwrap_or_default(),
        expires_at_s: record.4.0.map(|at_s| u64::try_from(at_s).unwrap_or_default()),
    })
}

impl User {
    fn is_valid(&self, now_s: u64) -> bool {
        self.expires_at_s.is_none_or(|expires_at_s| now_s < expires_at_s)
    }
}

impl Registry {
    /// Adds an API user with this token; only a hash of the token is stored. Without a token, the user authenticates with
    /// a certificate that contains the user name.
    ///
    /// # Errors
    /// An invalid or existing name, or a failure of the database.
    pub async fn add_user(&self, user: &User, token: Option<&str>) -> Result<()> {
        check_text("name", &user.name, NAME_BYTES_MAX)?;
        if user.name.is_empty() || user.name.contains('\n') {
            return Err(invalid_field("name", "the name must be one line, not empty"));
        }
        let mut record: UserColumns = (
            ColumnValue(user.name.as_bytes().to_vec()),
            ColumnValue(user.role.number()),
            ColumnValue(token.map(hash)),
            ColumnValue(seconds_to_column(user.created_at_s)),
            ColumnValue(user.expires_at_s.map(seconds_to_column)),
            ColumnValue(Vec::new()),
        );
        record.5.0 = user_tag(self.authenticator(), &record).finish();
        let mut transaction = self.write().await?;
        let added = sql::query(
            "INSERT INTO api_user (name, role, token_hash, created_at_s, expires_at_s, tag) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(&user.name)
        .bind(record.1.0)
        .bind(record.2.0)
        .bind(record.3.0)
        .bind(record.4.0)
        .bind(record.5.0)
        .execute(&mut *transaction)
        .await?;
        if added == 0 {
            return Err(invalid_field(
                "name",
                format!("user {:?} already exists", user.name),
            ));
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes a user and its sessions; returns whether the user existed.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn remove_user(&self, name: &str) -> Result<bool> {
        let mut transaction = self.write().await?;
        sql::query("DELETE FROM api_session WHERE user_name = $1")
            .bind(name)
            .execute(&mut *transaction)
            .await?;
        let removed = sql::query("DELETE FROM api_user WHERE name = $1")
            .bind(name)
            .execute(&mut *transaction)
            .await?;
        if removed > 0 {
            transaction.commit().await?;
        }
        Ok(removed > 0)
    }

    /// All users, by name; an error for each damaged record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn users(&self) -> Result<Vec<Result<User>>> {
        let records: Vec<UserColumns> = sql::query(
            "SELECT name, role, token_hash, created_at_s, expires_at_s, tag FROM api_user ORDER BY name",
        )
        .fetch_all(self.reader())
        .await?;
        Ok(records
            .into_iter()
            .map(|record| user_from_record(self.authenticator(), record))
            .collect())
    }

    /// The user of a token, if the user exists and has not expired.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn user_by_token(&self, token: &str, now_s: u64) -> Result<Option<User>> {
        let mut connection = self.reader().acquire().await?;
        self.user_by_token_in(&mut connection, token, now_s).await
    }

    async fn user_by_token_in(
        &self,
        connection: &mut Connection,
        token: &str,
        now_s: u64,
    ) -> Result<Option<User>> {
        // Users of a moved registry would read outdated data.
        self.refuse_moved(connection).await?;
        let record: Option<UserColumns> = sql::query(
            "SELECT name, role, token_hash, created_at_s, expires_at_s, tag FROM api_user WHERE token_hash = $1",
        )
        .bind(hash(token))
        .fetch_optional(connection)
        .await?;
        let user = record
            .map(|record| user_from_record(self.authenticator(), record))
            .transpose()?;
        Ok(user.filter(|user| user.is_valid(now_s)))
    }

    /// The user with the name in a certificate, if the user exists and has not expired.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn user_by_name(&self, name: &str, now_s: u64) -> Result<Option<User>> {
        let mut connection = self.reader().acquire().await?;
        self.refuse_moved(&mut connection).await?;
        let record: Option<UserColumns> = sql::query(
            "SELECT name, role, token_hash, created_at_s, expires_at_s, tag FROM api_user WHERE name = $1",
        )
        .bind(name)
        .fetch_optional(&mut connection)
        .await?;
        let user = record
            .map(|record| user_from_record(self.authenticator(), record))
            .transpose()?;
        Ok(user.filter(|user| user.is_valid(now_s)))
    }

    /// Starts a session of the token's user with this cookie; only a hash of the cookie is stored. Returns the user and
    /// the end of the session, which is not after the expiry of the user. `None` for an unknown or expired token.
    /// Expired sessions are deleted. If a user has more than a hundred sessions, the sessions that expire first are
    /// deleted.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn begin_session(
        &self,
        token: &str,
        cookie: &str,
        now_s: u64,
        until_s: u64,
    ) -> Result<Option<(User, u64)>> {
        // A request with an invalid token is refused without the write lock: an attacker may send many such requests.
        if self.user_by_token(token, now_s).await?.is_none() {
            return Ok(None);
        }
        let mut transaction = self.write().await?;
        // The user may have been deleted or changed since the first query.
        let Some(user) = self.user_by_token_in(&mut transaction, token, now_s).await? else {
            return Ok(None);
        };
        let until_s = user.expires_at_s.unwrap_or(u64::MAX).min(until_s);
        let mut record: SessionColumns = (
            ColumnValue(hash(cookie)),
            ColumnValue(user.name.as_bytes().to_vec()),
            ColumnValue(seconds_to_column(until_s)),
            ColumnValue(Vec::new()),
        );
        record.3.0 = session_tag(self.authenticator(), &record).finish();
        delete_old_sessions(&mut transaction, &user.name, now_s).await?;
        sql::query(
            "INSERT INTO api_session (session_hash, user_name, expires_at_s, tag) VALUES ($1, $2, $3, $4)",
        )
        .bind(record.0.0)
        .bind(&user.name)
        .bind(record.2.0)
        .bind(record.3.0)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(Some((user, until_s)))
    }

    /// The user and the end of a session, if the session is valid.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn user_by_session(&self, cookie: &str, now_s: u64) -> Result<Option<(User, u64)>> {
        let record: Option<SessionColumns> = sql::query(
            "SELECT session_hash, user_name, expires_at_s, tag FROM api_session WHERE session_hash = $1",
        )
        .bind(hash(cookie))
        .fetch_optional(self.reader())
        .await?;
        let Some(record) = record else {
            return Ok(None);
        };
        if !session_tag(self.authenticator(), &record).matches(&record.3.0) {
            return Err(damaged_record("a session"));
        }
        let until_s = u64::try_from(record.2.0).unwrap_or_default();
        if until_s <= now_s {
            return Ok(None);
        }
        let user = self.user_by_name(&text(record.1.0), now_s).await?;
        Ok(user.map(|user| (user, until_s)))
    }

    /// Ends a session.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn end_session(&self, cookie: &str) -> Result<()> {
        let mut transaction = self.write().await?;
        sql::query("DELETE FROM api_session WHERE session_hash = $1")
            .bind(hash(cookie))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Deletes expired sessions. If one more session would exceed the user's maximum, also deletes the sessions of the user
/// that expire first.
async fn delete_old_sessions(connection: &mut Connection, name: &str, now_s: u64) -> Result<()> {
    sql::query("DELETE FROM api_session WHERE expires_at_s <= $1")
        .bind(seconds_to_column(now_s))
        .execute(&mut *connection)
        .await?;
    sql::query(
        "DELETE FROM api_session WHERE session_hash IN \
         (SELECT session_hash FROM api_session WHERE user_name = $1 ORDER BY expires_at_s DESC, session_hash LIMIT 1000000 OFFSET $2)",
    )
    .bind(name)
    .bind(SESSIONS_MAX - 1)
    .execute(connection)
    .await?;
    Ok(())
}

/// Errors of users and sessions that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_users(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let users: Vec<UserColumns> =
        sql::query("SELECT name, role, token_hash, created_at_s, expires_at_s, tag FROM api_user")
            .fetch_all(&mut *connection)
            .await?;
    let mut damaged: Vec<RegistryError> = users
        .into_iter()
        .filter_map(|record| user_from_record(registry.authenticator(), record).err())
        .collect();
    let sessions: Vec<SessionColumns> =
        sql::query("SELECT session_hash, user_name, expires_at_s, tag FROM api_session")
            .fetch_all(connection)
            .await?;
    let is_damaged =
        |record: &&SessionColumns| !session_tag(registry.authenticator(), record).matches(&record.3.0);
    damaged.extend(
        sessions
            .iter()
            .filter(is_damaged)
            .map(|_| damaged_record("a session")),
    );
    Ok(damaged)
}
