//! Answers to what was asked under a key of who asked: asked again, the same is answered again, and done once.

use super::{check, damaged, invalid};
use crate::error::Result;
use crate::record_mac::{MAC_BYTES, RowCode};
use crate::row::seconds_to_column;
use crate::sql;
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table api_answer v1";
/// How long an answer is kept, seconds.
pub const ANSWERS_KEPT_S: u64 = 86_400;
const KEY_BYTES_MAX: usize = 64;
/// Longest answer that is kept, bytes.
const BODY_BYTES_MAX: usize = 1 << 20;

/// An answer that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Nothing was asked under it; from now on this is.
    New,
    /// This was asked under it, and answered.
    Again(Kept),
    /// This was asked under it, and is not answered yet.
    UnderWay,
    /// Something else was asked under it.
    Another,
}

/// Of a row of `api_answer`: request, status, body, at.
type AnswerRow = (Vec<u8>, Option<i64>, Option<Vec<u8>>, i64);

impl Registry {
    /// What authenticates an answer: nobody who only writes into the database has a request answered that was never done.
    fn answer_code(&self, user: &str, key: &str, request: &[u8], status: i64, body: &[u8]) -> RowCode {
        self.record_mac()
            .row(LABEL)
            .bytes(user.as_bytes())
            .bytes(key.as_bytes())
            .bytes(request)
            .number(status)
            .bytes(body)
    }

    /// Takes a key for a request, whose SHA-256 is given; `user` is who asks. One that was begun `given_up_s` seconds ago or more
    /// and not answered is begun anew: its controller is gone.
    ///
    /// # Errors
    /// A key that is none, an answer that does not authenticate, or a failure of the database.
    pub async fn begin_answer(
        &self,
        user: &str,
        key: &str,
        request: &[u8; 32],
        now_s: u64,
        given_up_s: u64,
    ) -> Result<Answered> {
        check("Idempotency-Key", key, KEY_BYTES_MAX)?;
        if key.is_empty() {
            return Err(invalid("Idempotency-Key", "empty"));
        }
        let mut transaction = self.write_whatever().await?;
        self.refuse_moved(&mut transaction).await?;
        let known: Option<AnswerRow> = sql::query(
            "SELECT request, status, body, at_s FROM api_answer WHERE user_name = $1 AND key = $2",
        )
        .bind(user)
        .bind(key)
        .fetch_optional(&mut *transaction)
        .await?;
        if let Some((asked, status, body, at_s)) = known {
            if asked != request {
                return Ok(Answered::Another);
            }
            if let Some(number) = status {
                // Its code stands before it.
                let kept = body.unwrap_or_default();
                let (code, body) = kept.split_at_checked(MAC_BYTES).unwrap_or_default();
                let status = u16::try_from(number).ok();
                let is_own = self.answer_code(user, key, request, number, body).is(code);
                return match status.filter(|_| is_own) {
                    Some(status) => Ok(Answered::Again(Kept {
                        status,
                        body: body.to_vec(),
                    })),
                    // What was asked may have been done, or not: another key has it done.
                    None => Err(damaged("the answer that is kept under this Idempotency-Key")),
                };
            }
            let began_s = u64::try_from(at_s).unwrap_or_default();
            if now_s < began_s.saturating_add(given_up_s) {
                return Ok(Answered::UnderWay);
            }
        }
        sql::query("DELETE FROM api_answer WHERE at_s < $1")
            .bind(seconds_to_column(now_s.saturating_sub(ANSWERS_KEPT_S)))
            .execute(&mut *transaction)
            .await?;
        sql::query(
            "INSERT INTO api_answer (user_name, key, request, at_s) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (user_name, key) DO UPDATE SET at_s = excluded.at_s",
        )
        .bind(user)
        .bind(key)
        .bind(request.as_slice())
        .bind(seconds_to_column(now_s))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(Answered::New)
    }

    /// Keeps the answer to the request; without one the key is free again, as nothing was done.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn end_answer(
        &self,
        user: &str,
        key: &str,
        request: &[u8; 32],
        answer: Option<&Kept>,
    ) -> Result<()> {
        let mut transaction = self.write_whatever().await?;
        match answer.filter(|answer| answer.body.len() <= BODY_BYTES_MAX) {
            Some(answer) => {
                let status = i64::from(answer.status);
                let code = self.answer_code(user, key, request, status, &answer.body);
                let kept = [code.finish(), answer.body.clone()].concat();
                sql::query("UPDATE api_answer SET status = $1, body = $2 WHERE user_name = $3 AND key = $4")
                    .bind(status)
                    .bind(kept)
                    .bind(user)
                    .bind(key)
                    .execute(&mut *transaction)
                    .await?
            }
            None => {
                sql::query("DELETE FROM api_answer WHERE user_name = $1 AND key = $2")
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
