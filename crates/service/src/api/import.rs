//! Devices in numbers: one a line, stored as they come.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use linewarden_registry::{
    JournalFilter, NewDevice as StoredDevice, OnConflict, Registry, RegistryError, SealedDevices,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use utoipa::{IntoParams, ToSchema};

use super::devices::{NewDevice, act, note};
use crate::auth::Operator;
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Query};
use crate::state::App;

/// Longest line, bytes: a device of as many rows as there may be.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Devices stored in one transaction: their ids come in no order, and the more of them share a page of the database, the less is written.
/// Nobody else writes meanwhile, a third of a second or so ..
pub const CHUNK_DEVICES: usize = 10_000;
/// .. or fewer, where they are of so many bytes.
pub const CHUNK_BYTES: usize = 8 << 20;
/// Longest wait for more of a body.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest wait for all devices of one transaction.
const CHUNK_MAX: Duration = Duration::from_secs(600);
/// When who found too many imports under way comes again.
const RETRY_S: u32 = 5;
/// Entries of somebody's that are looked through for an import that is sent once more.
const MARKS_LOOKED_AT: u32 = 1_000;

/// How.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct How {
    /// What becomes of devices that are enrolled already: refuse (the default), or replace their credentials.
    pub on_conflict: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Imported {
    /// Devices stored.
    pub stored: u64,
}

/// Enrols devices: a JSON object a line, as for one device. They are stored as they come, some thousands at a time; `stored` in an error
/// says how many were before the line that is at fault. The reason is the header `X-Reason`. With an `Idempotency-Key` (1 to 64 letters,
/// digits, `-` and `_`) the same body may be sent again, however the first time ended: what is stored already is not stored again.
#[utoipa::path(post, path = "/api/v1/devices/import", params(How), request_body(content = String, content_type = "application/x-ndjson"), responses((status = 200, body = Imported), (status = 422, body = ErrorBody)))]
pub(crate) async fn import(
    Operator(principal): Operator,
    State(app): State<App>,
    Query(how): Query<How>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Imported>> {
    let _place = app
        .limits
        .import(&principal.name)
        .ok_or_else(|| ApiError::rate_limited(RETRY_S))?;
    let on_conflict = match how.on_conflict.as_deref() {
        None | Some("refuse") => OnConflict::Refuse,
        Some("replace") => OnConflict::Replace,
        Some(_) => return Err(ApiError::invalid("on_conflict", "refuse or replace")),
    };
    let reason = headers.get("x-reason").map(axum::http::HeaderValue::as_bytes);
    let reason = std::str::from_utf8(reason.unwrap_or_default())
        .map_err(|_| ApiError::invalid("X-Reason", "a text in UTF-8"))?
        .to_owned();
    let key = key(&headers)?;
    let before = match &key {
        Some(key) => Mark::find(&app, &principal.name, key).await?,
        None => None,
    };
    let lines = Lines::new(
        body,
        app.registry.clone(),
        before.as_ref().map(|before| before.stored),
    );
    let mut chunks = Chunks::read(lines);
    let mut stored = 0;
    loop {
        let chunk = tokio::time::timeout(CHUNK_MAX, chunks.next()).await;
        let chunk = chunk.unwrap_or_else(|_| Err(broken_off("it comes too slowly")));
        let chunk = chunk.map_err(|error| error.having_stored(stored))?;
        if !principal.may_stay(&app.registry).await {
            return Err(ApiError::unauthenticated().having_stored(stored));
        }
        let count = chunk.count;
        if count == 0 {
            return match before.is_some_and(|before| before.stored > stored) {
                true => Err(another()),
                false => Ok(Json(Imported { stored })),
            };
        }
        let mark = Mark {
            stored: stored + count,
            digest: chunk.digest,
        };
        match &before {
            Some(before) if mark.stored < before.stored || mark == *before => {
                stored = mark.stored;
                continue;
            }
            Some(before) if stored < before.stored => return Err(another()),
            _ => {}
        }
        let what = note("enrolled", None, mark.detail(count, key.as_deref()));
        let turn = app.limits.store().await;
        let done = act(&app, &principal, &reason, what, async |registry| {
            Ok(registry.import_chunk(chunk.devices?, on_conflict).await?)
        });
        done.await.map_err(|error| error.having_stored(stored))?;
        drop(turn);
        stored = mark.stored;
    }
}

fn another() -> ApiError {
    ApiError::conflict("this Idempotency-Key was used for something else")
}

/// What an import is called by whoever sends it.
fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match key.to_str() {
        Ok(key) if (1..=64).contains(&key.len()) && key.bytes().all(is_plain) => Ok(Some(key.to_owned())),
        _ => Err(ApiError::invalid(
            "Idempotency-Key",
            "1 to 64 letters, digits, - and _",
        )),
    }
}

/// How far an import has come. It stands in the journal, in the transaction that stores the devices: whatever dies when, both are there
/// or neither.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    stored: u64,
    /// Of all lines up to there.
    digest: String,
}

impl Mark {
    fn detail(&self, count: u64, key: Option<&str>) -> String {
        match key {
            Some(key) => format!(
                "{count} devices imported; {key}: {} with {}",
                self.stored, self.digest
            ),
            None => format!("{count} devices imported"),
        }
    }

    fn parse(detail: &str, key: &str) -> Option<Self> {
        let (_, mark) = detail.split_once("; ")?;
        let mark = mark.strip_prefix(key)?.strip_prefix(": ")?;
        let (stored, digest) = mark.split_once(" with ")?;
        Some(Self {
            stored: stored.parse().ok()?,
            digest: digest.to_owned(),
        })
    }

    /// The newest of an import, if it is among somebody's newest.
    async fn find(app: &App, who: &str, key: &str) -> Result<Option<Self>> {
        let filter = JournalFilter {
            kinds: vec!["enrolled".to_owned()],
            who: Some(who.to_owned()),
            without_refused: true,
            ..JournalFilter::default()
        };
        let page = app.registry.journal(&filter, None, MARKS_LOOKED_AT).await?;
        let authentic = page.entries.iter().filter(|entry| entry.authentic);
        Ok(authentic
            .filter_map(|entry| Self::parse(&entry.note.detail, key))
            .next())
    }
}

fn broken_off(why: impl std::fmt::Display) -> ApiError {
    ApiError::invalid("line", format!("the body broke off: {why}"))
}

fn broken() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "see the controller's log",
    )
}

/// Devices that are stored at once.
struct Chunk {
    count: u64,
    /// What must not be stored is refused as what somebody wanted to have done.
    devices: std::result::Result<SealedDevices, RegistryError>,
    /// Of all devices of the body, up to the last one of these.
    digest: String,
}

/// Devices of a body: the next ones are read and sealed while those before them are stored. No more than one chunk waits.
struct Chunks {
    inbox: Receiver<Result<Chunk>>,
    /// Ended when nobody wants any more.
    _reader: JoinSet<()>,
}

impl Chunks {
    fn read(mut lines: Lines) -> Self {
        let (outbox, inbox) = channel(1);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            loop {
                let chunk = lines.chunk().await;
                let is_last = chunk.as_ref().map_or(true, |chunk| chunk.count == 0);
                if outbox.send(chunk).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self {
            inbox,
            _reader: reader,
        }
    }

    /// The next devices; none at the end.
    async fn next(&mut self) -> Result<Chunk> {
        // It does not end without having said so, unless it panics.
        self.inbox.recv().await.ok_or_else(broken)?
    }
}

/// A body, line by line; no more of it is in memory than a chunk needs.
struct Lines {
    registry: Registry,
    /// A chunk ends with this device of the body, where an import has come to before: chunks may have been of another size.
    first_stop: Option<u64>,
    /// Read so far.
    devices: u64,
    body: axum::body::BodyDataStream,
    buffer: Vec<u8>,
    /// Where in it the next line begins, and up to where there is no end of it.
    at: usize,
    searched: usize,
    /// The line read last, from 1.
    number: u64,
    enrolled_at_s: u64,
    hash: Sha256,
    is_over: bool,
}

impl Lines {
    fn new(body: Body, registry: Registry, first_stop: Option<u64>) -> Self {
        Self {
            registry,
            first_stop,
            devices: 0,
            body: body.into_data_stream(),
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            number: 0,
            enrolled_at_s: now_s(),
            hash: Sha256::new(),
            is_over: false,
        }
    }

    /// The next devices; none at the end.
    async fn chunk(&mut self) -> Result<Chunk> {
        let (mut devices, mut bytes) = (Vec::new(), 0);
        while devices.len() < CHUNK_DEVICES && bytes < CHUNK_BYTES {
            let Some(line) = self.line().await? else {
                break;
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            bytes += line.len();
            self.hash.update((line.len() as u64).to_be_bytes());
            self.hash.update(&line);
            devices.push(self.device(&line)?);
            self.devices += 1;
            if self.first_stop == Some(self.devices) {
                break;
            }
        }
        let count = devices.len() as u64;
        // As the database has them: whoever is stored next shares a page with who was stored before.
        devices.sort_unstable_by_key(|device| device.record.device.0.cast_signed());
        // Long enough to keep others waiting.
        let registry = self.registry.clone();
        let sealed = tokio::task::spawn_blocking(move || registry.seal_chunk(devices));
        Ok(Chunk {
            count,
            devices: sealed.await.map_err(|_| broken())?,
            digest: self.digest(),
        })
    }

    /// Of all devices so far.
    fn digest(&self) -> String {
        let digest = self.hash.clone().finalize();
        hex::encode(digest.get(..16).unwrap_or_default())
    }

    fn device(&self, line: &[u8]) -> Result<StoredDevice> {
        let at = |problem: String| ApiError::invalid("line", format!("line {}: {problem}", self.number));
        // What serde says of a value may repeat it, and a value may be a key.
        let new: NewDevice = serde_json::from_slice(line).map_err(|error| {
            at(match error.classify() {
                serde_json::error::Category::Data => {
                    format!("no device as the API takes it (column {})", error.column())
                }
                _ => format!("no JSON (column {})", error.column()),
            })
        })?;
        new.to_stored(self.enrolled_at_s)
            .map_err(|error| at(error.message().to_owned()))
    }

    async fn line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            // Each byte is looked at and moved once, however many lines come at once or pieces a line comes in.
            let unseen = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(end) = unseen.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + end;
                let line = self.buffer.get(self.at..end).unwrap_or_default().to_vec();
                (self.at, self.searched) = (end + 1, end + 1);
                self.number += 1;
                return Ok(Some(line));
            }
            self.buffer.drain(..self.at);
            (self.at, self.searched) = (0, self.buffer.len());
            if self.buffer.len() > LINE_BYTES_MAX {
                let line = self.number + 1;
                return Err(ApiError::invalid(
                    "line",
                    format!("line {line} is longer than {LINE_BYTES_MAX} bytes"),
                ));
            }
            if self.is_over {
                let line = std::mem::take(&mut self.buffer);
                self.searched = 0;
                self.number += 1;
                return Ok((!line.is_empty()).then_some(line));
            }
            let more = tokio::time::timeout(SILENCE_MAX, self.body.next()).await;
            let silent = |_| broken_off("nothing came for a minute");
            match more.map_err(silent)? {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => {
                    return Err(broken_off(error));
                }
                None => self.is_over = true,
            }
        }
    }
}
