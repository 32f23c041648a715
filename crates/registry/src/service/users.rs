//! Who may use the API, and as what.

use sha2::{Digest as _, Sha256};

use super::{check, damaged, invalid, text};
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::record_mac::RecordMac;
use crate::row::seconds_to_column;
use crate::sql::{self, Connection};
use crate::store::Registry;

const USER_LABEL: &[u8] = b"linewarden registry table api_user v1";
const SESSION_LABEL: &[u8] = b"linewarden registry table api_session v1";
const NAME_BYTES_MAX: usize = 64;

/// What somebody may do: each all that the one before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look.
    Viewer,
    /// Enrol, revoke, quarantine, release, ask for rounds.
    Operator,
    /// Users, gateways, policies, signers; the audit.
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

/// Somebody who may use the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Their name; in a certificate, too.
    pub name: String,
    /// As what.
    pub role: Role,
    /// Whether they have a token.
    pub has_token: bool,
    /// Seconds since 1970-01-01 UTC.
    pub created_at_s: u64,
    /// Until when, likewise; `None`: for good.
    pub expires_at_s: Option<u64>,
}

/// Sessions of one user at once.
const SESSIONS_MAX: i64 = 100;

/// A row of `api_user`: name, role, token, created, expires, mac.
type UserRow = (
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<Option<i64>>,
    Stored<Vec<u8>>,
);

/// A row of `api_session`: hash, user, expires, mac.
type SessionRow = (Stored<Vec<u8>>, Stored<Vec<u8>>, Stored<i64>, Stored<Vec<u8>>);

fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

fn user_code(mac: &RecordMac, row: &UserRow) -> crate::record_mac::RowCode {
    mac.row(USER_LABEL)
        .bytes(&row.0.0)
        .number(row.1.0)
        .bytes_or_null(row.2.0.as_deref())
        .number(row.3.0)
        .number_or_null(row.4.0)
}

fn session_code(mac: &RecordMac, row: &SessionRow) -> crate::record_mac::RowCode {
    mac.row(SESSION_LABEL)
        .bytes(&row.0.0)
        .bytes(&row.1.0)
        .number(row.2.0)
}

fn user(mac: &RecordMac, row: UserRow) -> Result<User> {
    let name = text(row.0.0.clone());
    let role = Role::from_number(row.1.0).filter(|_| user_code(mac, &row).is(&row.5.0));
    Ok(User {
        role: role.ok_or_else(|| damaged(format!("the record of user {name:?}")))?,
        name,
        has_token: row.2.0.is_some(),
        created_at_s: u64::try_from(row.3.0).unwrap_or_default(),
        expires_at_s: row.4.0.map(|at_s| u64::try_from(at_s).unwrap_or_default()),
    })
}

impl User {
    fn is_valid(&self, now_s: u64) -> bool {
        self.expires_at_s.is_none_or(|until_s| now_s < until_s)
    }
}

impl Registry {
    /// Lets somebody use the API, with this token, of which only a hash is kept; without one by a certificate of that name.
    ///
    /// # Errors
    /// A name that is taken or none, or a failure of the database.
    pub async fn add_user(&self, user: &User, token: Option<&str>) -> Result<()> {
        check("name", &user.name, NAME_BYTES_MAX)?;
        if user.name.is_empty() || user.name.contains('\n') {
            return Err(invalid("name", "a user has a name of one line"));
        }
        let mut row: UserRow = (
            Stored(user.name.as_bytes().to_vec()),
            Stored(user.role.number()),
            Stored(token.map(hash)),
            Stored(seconds_to_column(user.created_at_s)),
            Stored(user.expires_at_s.map(seconds_to_column)),
            Stored(Vec::new()),
        );
        row.5.0 = user_code(self.record_mac(), &row).finish();
        let mut transaction = self.write().await?;
        let added = sql::query(
            "INSERT INTO api_user (name, role, token_hash, created_at_s, expires_at_s, mac) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(&user.name)
        .bind(row.1.0)
        .bind(row.2.0)
        .bind(row.3.0)
        .bind(row.4.0)
        .bind(row.5.0)
        .execute(&mut *transaction)
        .await?;
        if added == 0 {
            return Err(invalid(
                "name",
                format!("there is a user {:?} already", user.name),
            ));
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Takes somebody's access away, at once; whether they had any.
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

    /// All users, by name; each, or what is wrong with the record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn users(&self) -> Result<Vec<Result<User>>> {
        let rows: Vec<UserRow> = sql::query(
            "SELECT name, role, token_hash, created_at_s, expires_at_s, mac FROM api_user ORDER BY name",
        )
        .fetch_all(self.reader())
        .await?;
        Ok(rows.into_iter().map(|row| user(self.record_mac(), row)).collect())
    }

    /// Whose token this is, if it is somebody's who may come in.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn user_of_token(&self, token: &str, now_s: u64) -> Result<Option<User>> {
        let mut connection = self.reader().acquire().await?;
        self.user_of_token_in(&mut connection, token, now_s).await
    }

    async fn user_of_token_in(
        &self,
        connection: &mut Connection,
        token: &str,
        now_s: u64,
    ) -> Result<Option<User>> {
        // Whoever comes in reads on: of a registry that was moved they would take what was for what is.
        self.refuse_moved(connection).await?;
        let row: Option<UserRow> = sql::query(
            "SELECT name, role, token_hash, created_at_s, expires_at_s, mac FROM api_user WHERE token_hash = $1",
        )
        .bind(hash(token))
        .fetch_optional(connection)
        .await?;
        let user = row.map(|row| user(self.record_mac(), row)).transpose()?;
        Ok(user.filter(|user| user.is_valid(now_s)))
    }

    /// The user of that name, as a certificate says it, if they may come in.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn user_of_name(&self, name: &str, now_s: u64) -> Result<Option<User>> {
        let mut connection = self.reader().acquire().await?;
        self.refuse_moved(&mut connection).await?;
        let row: Option<UserRow> = sql::query(
            "SELECT name, role, token_hash, created_at_s, expires_at_s, mac FROM api_user WHERE name = $1",
        )
        .bind(name)
        .fetch_optional(&mut connection)
        .await?;
        let user = row.map(|row| user(self.record_mac(), row)).transpose()?;
        Ok(user.filter(|user| user.is_valid(now_s)))
    }

    /// Begins a session of the user whose token this is, with this cookie, of which only a hash is kept; who that is, and until when. It ends
    /// with the token at the latest. Nobody's token, or one that is over, begins none. Sessions that are over are forgotten, and of a
    /// user's the ones that end first, where there are more than a hundred.
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
        // Guesses do not wait for those who write.
        if self.user_of_token(token, now_s).await?.is_none() {
            return Ok(None);
        }
        let mut transaction = self.write().await?;
        // The user may have been removed, or the token exchanged, since.
        let Some(user) = self.user_of_token_in(&mut transaction, token, now_s).await? else {
            return Ok(None);
        };
        let until_s = user.expires_at_s.unwrap_or(u64::MAX).min(until_s);
        let mut row: SessionRow = (
            Stored(hash(cookie)),
            Stored(user.name.as_bytes().to_vec()),
            Stored(seconds_to_column(until_s)),
            Stored(Vec::new()),
        );
        row.3.0 = session_code(self.record_mac(), &row).finish();
        forget_sessions(&mut transaction, &user.name, now_s).await?;
        sql::query(
            "INSERT INTO api_session (session_hash, user_name, expires_at_s, mac) VALUES ($1, $2, $3, $4)",
        )
        .bind(row.0.0)
        .bind(&user.name)
        .bind(row.2.0)
        .bind(row.3.0)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(Some((user, until_s)))
    }

    /// Whose session that is and until when, if it lives.
    ///
    /// # Errors
    /// A record that does not authenticate, or a failure of the database.
    pub async fn user_of_session(&self, cookie: &str, now_s: u64) -> Result<Option<(User, u64)>> {
        let row: Option<SessionRow> = sql::query(
            "SELECT session_hash, user_name, expires_at_s, mac FROM api_session WHERE session_hash = $1",
        )
        .bind(hash(cookie))
        .fetch_optional(self.reader())
        .await?;
        let Some(row) = row else {
            return Ok(None);
        };
        if !session_code(self.record_mac(), &row).is(&row.3.0) {
            return Err(damaged("a session"));
        }
        let until_s = u64::try_from(row.2.0).unwrap_or_default();
        if until_s <= now_s {
            return Ok(None);
        }
        let user = self.user_of_name(&text(row.1.0), now_s).await?;
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

/// Forgets the sessions that are over, and makes room for one more of the user.
async fn forget_sessions(connection: &mut Connection, name: &str, now_s: u64) -> Result<()> {
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

/// Users and sessions that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_users(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let users: Vec<UserRow> =
        sql::query("SELECT name, role, token_hash, created_at_s, expires_at_s, mac FROM api_user")
            .fetch_all(&mut *connection)
            .await?;
    let mut found: Vec<RegistryError> = users
        .into_iter()
        .filter_map(|row| user(registry.record_mac(), row).err())
        .collect();
    let sessions: Vec<SessionRow> =
        sql::query("SELECT session_hash, user_name, expires_at_s, mac FROM api_session")
            .fetch_all(connection)
            .await?;
    let is_damaged = |row: &&SessionRow| !session_code(registry.record_mac(), row).is(&row.3.0);
    found.extend(sessions.iter().filter(is_damaged).map(|_| damaged("a session")));
    Ok(found)
}
