//! Responses to requests with an idempotency key: a repeated request gets the same response, and its action is
//! carried out once.

use super::{check_text, damaged_record, invalid_field};
use crate::conversion::seconds_to_column;
use crate::error::Result;
use crate::record_tag::{TAG_BYTES, TagBuilder};
use crate::sql;
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table api_response v1";
/// Time for which a response is kept, seconds.
pub const RESPONSES_KEPT_S: u64 = 86_400;
const KEY_BYTES_MAX: usize = 64;
/// Maximum size of a stored response, bytes.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// The state of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyState {
    /// The key is new and now reserved for this request.
    New,
    /// This request was completed earlier, with the stored response.
    Completed(StoredResponse),
    /// This request is in progress.
    InProgress,
    /// The key was used for another request.
    KeyReused,
}

/// Columns of `api_response`: request, status, body, time.
type ResponseColumns = (Vec<u8>, Option<i64>, Option<Vec<u8>>, i64);

impl Registry {
    /// The tag of a response. Without the tag, a party with write access to the database could forge the response to a
    /// request that was never carried out.
    fn response_tag(&self, user: &str, key: &str, request: &[u8], status: i64, body: &[u8]) -> TagBuilder {
        self.authenticator()
            .begin(LABEL)
            .bytes(user.as_bytes())
            .bytes(key.as_bytes())
            .bytes(request)
            .number(status)
            .bytes(body)
    }

    /// Reserves a key for a request of `user`; `request` is the SHA-256 of the request. If the same request was started at least
    /// `abandoned_s` seconds ago and has no response, its controller has stopped, and the request is started again.
    ///
    /// # Errors
    /// An invalid key, a response that does not authenticate, or a failure of the database.
    pub async fn begin_request(
        &self,
        user: &str,
        key: &str,
        request: &[u8; 32],
        now_s: u64,
        abandoned_s: u64,
    ) -> Result<IdempotencyState> {
        check_text("Idempotency-Key", key, KEY_BYTES_MAX)?;
        if key.is_empty() {
            return Err(invalid_field("Idempotency-Key", "empty"));
        }
        let mut transaction = self.write_even_if_moved().await?;
        self.refuse_moved(&mut transaction).await?;
        let known: Option<ResponseColumns> = sql::query(
            "SELECT request, status, body, at_s FROM api_response WHERE user_name = $1 AND key = $2",
        )
        .bind(user)
        .bind(key)
        .fetch_optional(&mut *transaction)
        .await?;
        if let Some((known_request, status, body, at_s)) = known {
            if known_request != request {
                return Ok(IdempotencyState::KeyReused);
            }
            if let Some(number) = status {
                // The column contains the tag, followed by the body.
                let tagged_body = body.unwrap_or_default();
                let (tag, body) = tagged_body.split_at_checked(TAG_BYTES).unwrap_or_default();
                let status = u16::try_from(number).ok();
                let is_authentic = self.response_tag(user, key, request, number, body).matches(tag);
                return match status.filter(|_| is_authentic) {
                    Some(status) => Ok(IdempotencyState::Completed(StoredResponse {
                        status,
                        body: body.to_vec(),
                    })),
                    // The action may have been carried out; a request with another key carries the action out again.
                    None => Err(damaged_record("the response stored for this Idempotency-Key")),
                };
            }
            let started_at_s = u64::try_from(at_s).unwrap_or_default();
            if now_s < started_at_s.saturating_add(abandoned_s) {
                return Ok(IdempotencyState::InProgress);
            }
        }
        sql::query("DELETE FROM api_response WHERE at_s < $1")
            .bind(seconds_to_column(now_s.saturating_sub(RESPONSES_KEPT_S)))
            .execute(&mut *transaction)
            .await?;
        sql::query(
            "INSERT INTO api_response (user_name, key, request, at_s) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (user_name, key) DO UPDATE SET at_s = excluded.at_s",
        )
        .bind(user)
        .bind(key)
        .bind(request.as_slice())
        .bind(seconds_to_column(now_s))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(IdempotencyState::New)
    }

    /// Stores the response to the request. Releases the key if there is no response, because the request changed nothing,
    /// or if the response is too long.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn finish_request(
        &self,
        user: &str,
        key: &str,
        request: &[u8; 32],
        response: Option<&StoredResponse>,
    ) -> Result<()> {
        let mut transaction = self.write_even_if_moved().await?;
        match response.filter(|response| response.body.len() <= BODY_BYTES_MAX) {
            Some(response) => {
                let status = i64::from(response.status);
                let tag = self.response_tag(user, key, request, status, &response.body);
                let tagged_body = [tag.finish(), response.body.clone()].concat();
                sql::query("UPDATE api_response SET status = $1, body = $2 WHERE user_name = $3 AND key = $4")
                    .bind(status)
                    .bind(tagged_body)
                    .bind(user)
                    .bind(key)
                    .execute(&mut *transaction)
                    .await?
            }
            None => {
                sql::query("DELETE FROM api_response WHERE user_name = $1 AND key = $2")
                    .bind(user)
                    .bind(key)
                    .execute(&mut *transaction)
                    .await?
            }
        };
        transaction.commit().await?;
        Ok(())
    }
}
