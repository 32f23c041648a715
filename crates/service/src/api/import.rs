//! Bulk import of devices: one JSON object per line, stored while the body is received.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use linewarden_api::{CHUNK_BYTES, CHUNK_DEVICES, ErrorBody, ImportQuery, ImportResult, NewDevice};
use linewarden_registry::{
    EventFilter, NewDevice as StoredDevice, OnConflict, Registry, RegistryError, SealedDevices,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use super::devices::{new_device_record, new_event, run_action};
use crate::auth::Operator;
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Query, field_name};
use crate::state::App;

/// Maximum length of a line, bytes: enough for a device with 290,000 rows.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Maximum time without new bytes of the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for receiving the devices of one transaction.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(600);
/// Retry-After if too many imports are in progress, seconds.
const RETRY_AFTER_S: u32 = 5;
/// Maximum number of a user's newest events that are searched for the checkpoint of a repeated import.
const CHECKPOINTS_SEARCHED_MAX: u32 = 1_000;

/// Enrolls devices. Each line of the body is a JSON object as in the request for one device, without the reason. Devices
/// are stored in chunks of several thousand; `stored` in an error response is the number of devices stored before the
/// error. The reason is the header `X-Reason`. With an `Idempotency-Key` (1 to 64 letters, digits, `-` and `_`) the same
/// body may be sent again after a failure: stored devices are not stored again.
#[utoipa::path(post, path = "/api/v1/devices/import", params(ImportQuery), request_body(content = String, content_type = "application/x-ndjson"), responses((status = 200, body = ImportResult), (status = 422, body = ErrorBody)))]
pub(crate) async fn import(
    Operator(principal): Operator,
    State(app): State<App>,
    Query(query): Query<ImportQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ImportResult>> {
    let _permit = app
        .limits
        .import_permit(&principal.name)
        .ok_or_else(|| ApiError::rate_limited(RETRY_AFTER_S))?;
    let on_conflict = match query.on_conflict.as_deref() {
        None | Some("refuse") => OnConflict::Refuse,
        Some("replace") => OnConflict::Replace,
        Some(_) => return Err(ApiError::invalid("on_conflict", "refuse or replace")),
    };
    let reason = headers.get("x-reason").map(axum::http::HeaderValue::as_bytes);
    let reason = std::str::from_utf8(reason.unwrap_or_default())
        .map_err(|_| ApiError::invalid("X-Reason", "expected UTF-8"))?
        .to_owned();
    let key = idempotency_key(&headers)?;
    let checkpoint = match &key {
        Some(key) => ImportCheckpoint::find(&app, &principal.name, key).await?,
        None => None,
    };
    let lines = LineReader::new(
        body,
        app.registry.clone(),
        checkpoint.as_ref().map(|checkpoint| checkpoint.stored),
    );
    let mut chunks = Chunks::read(lines);
    let mut stored = 0;
    loop {
        let chunk = tokio::time::timeout(CHUNK_TIMEOUT, chunks.next()).await;
        let chunk = chunk.unwrap_or_else(|_| Err(body_interrupted("devices arrive too slowly")));
        let chunk = chunk.map_err(|error| error.with_stored(stored))?;
        if !principal.is_still_authorized(&app.registry).await {
            return Err(ApiError::unauthenticated().with_stored(stored));
        }
        let count = chunk.count;
        // An empty chunk is the end of the body. A body that ends before the checkpoint is not the body of the earlier attempt.
        if count == 0 {
            return match checkpoint.is_some_and(|checkpoint| checkpoint.stored > stored) {
                true => Err(key_reused()),
                false => Ok(Json(ImportResult { stored })),
            };
        }
        let new_checkpoint = ImportCheckpoint {
            stored: stored + count,
            digest: chunk.digest,
        };
        // Chunks up to the checkpoint are already stored. The digest at the checkpoint must be that of the earlier attempt.
        match &checkpoint {
            Some(checkpoint)
                if new_checkpoint.stored < checkpoint.stored || new_checkpoint == *checkpoint =>
            {
                stored = new_checkpoint.stored;
                continue;
            }
            Some(checkpoint) if stored < checkpoint.stored => return Err(key_reused()),
            _ => {}
        }
        let event = new_event("enrolled", None, new_checkpoint.detail(count, key.as_deref()));
        let storing_permit = app.limits.storing_permit().await;
        let storing = run_action(&app, &principal, &reason, event, async |registry| {
            Ok(registry.import_chunk(chunk.devices?, on_conflict).await?)
        });
        storing.await.map_err(|error| error.with_stored(stored))?;
        drop(storing_permit);
        stored = new_checkpoint.stored;
    }
}

fn key_reused() -> ApiError {
    ApiError::conflict("this Idempotency-Key was used for another request")
}

/// The idempotency key of an import.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match key.to_str() {
        Ok(key) if (1..=64).contains(&key.len()) && key.bytes().all(is_plain) => Ok(Some(key.to_owned())),
        _ => Err(ApiError::invalid(
            "Idempotency-Key",
            "expected 1 to 64 letters, digits, - and _",
        )),
    }
}

/// The checkpoint of an import. The transaction that stores devices also records the checkpoint in the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ImportCheckpoint {
    /// Number of devices of the body that are stored.
    stored: u64,
    /// Digest of the lines of these devices.
    digest: String,
}

impl ImportCheckpoint {
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
        let (_, checkpoint) = detail.split_once("; ")?;
        let checkpoint = checkpoint.strip_prefix(key)?.strip_prefix(": ")?;
        let (stored, digest) = checkpoint.split_once(" with ")?;
        Some(Self {
            stored: stored.parse().ok()?,
            digest: digest.to_owned(),
        })
    }

    /// The newest checkpoint of the import with this key; `None` if the newest events of the user contain no checkpoint.
    async fn find(app: &App, user: &str, key: &str) -> Result<Option<Self>> {
        let filter = EventFilter {
            kinds: vec!["enrolled".to_owned()],
            actor: Some(user.to_owned()),
            exclude_refused: true,
            ..EventFilter::default()
        };
        let page = app
            .registry
            .events(&filter, None, CHECKPOINTS_SEARCHED_MAX)
            .await?;
        let authentic = page.entries.iter().filter(|entry| entry.authentic);
        Ok(authentic
            .filter_map(|entry| Self::parse(&entry.event.detail, key))
            .next())
    }
}

fn body_interrupted(cause: impl std::fmt::Display) -> ApiError {
    ApiError::invalid("line", format!("the body was interrupted: {cause}"))
}

fn internal_error() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "internal error; see the controller's log",
    )
}

/// Devices that are stored in one transaction.
struct Chunk {
    count: u64,
    /// The sealed devices, or the error of an invalid device. The action returns this error, so that the audit log records
    /// the refusal.
    devices: std::result::Result<SealedDevices, RegistryError>,
    /// Digest of all devices of the body, up to the last device of this chunk.
    digest: String,
}

/// Chunks of a body: the next chunk is read and sealed while the previous chunk is stored. At most one chunk is queued.
struct Chunks {
    receiver: Receiver<Result<Chunk>>,
    /// The reader task, aborted on drop.
    _reader: JoinSet<()>,
}

impl Chunks {
    fn read(mut lines: LineReader) -> Self {
        let (sender, receiver) = channel(1);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            loop {
                let chunk = lines.chunk().await;
                let is_last = chunk.as_ref().map_or(true, |chunk| chunk.count == 0);
                if sender.send(chunk).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self {
            receiver,
            _reader: reader,
        }
    }

    /// The next chunk; an empty chunk at the end of the body.
    async fn next(&mut self) -> Result<Chunk> {
        // The channel closes without an empty chunk only if the reader panics.
        self.receiver.recv().await.ok_or_else(internal_error)?
    }
}

/// Reads a body line by line; at most one chunk is in memory.
struct LineReader {
    registry: Registry,
    /// The number of devices up to the checkpoint of an earlier attempt. A chunk ends after this number, so that its digest
    /// can be compared with the checkpoint: the chunks of the earlier attempt may have had another size.
    checkpoint_devices: Option<u64>,
    /// Number of devices read so far.
    devices: u64,
    body: axum::body::BodyDataStream,
    buffer: Vec<u8>,
    /// Start of the next line in the buffer.
    line_start: usize,
    /// Position in the buffer at which the search for the next line feed continues.
    search_start: usize,
    /// Number of the last line that was read, from 1.
    line_number: u64,
    enrolled_at_s: u64,
    /// State of the digest of all devices read so far.
    hash: Sha256,
    /// Whether the end of the body was received.
    is_finished: bool,
}

impl LineReader {
    fn new(body: Body, registry: Registry, checkpoint_devices: Option<u64>) -> Self {
        Self {
            registry,
            checkpoint_devices,
            devices: 0,
            body: body.into_data_stream(),
            buffer: Vec::new(),
            line_start: 0,
            search_start: 0,
            line_number: 0,
            enrolled_at_s: now_s(),
            hash: Sha256::new(),
            is_finished: false,
        }
    }

    /// The next chunk; an empty chunk at the end of the body.
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
            if self.checkpoint_devices == Some(self.devices) {
                break;
            }
        }
        let count = devices.len() as u64;
        // Devices are sorted as in the index of the database, so that consecutive inserts share pages.
        devices.sort_unstable_by_key(|device| device.record.device.0.cast_signed());
        // Sealing takes long enough to block other tasks.
        let registry = self.registry.clone();
        let sealed = tokio::task::spawn_blocking(move || registry.seal_chunk(devices));
        Ok(Chunk {
            count,
            devices: sealed.await.map_err(|_| internal_error())?,
            digest: self.digest(),
        })
    }

    /// Digest of all devices read so far.
    fn digest(&self) -> String {
        let digest = self.hash.clone().finalize();
        hex::encode(digest.get(..16).unwrap_or_default())
    }

    fn device(&self, line: &[u8]) -> Result<StoredDevice> {
        let line_error =
            |problem: String| ApiError::invalid("line", format!("line {}: {problem}", self.line_number));
        // The text of a serde error is omitted, because it may contain a value, and the value may be a key.
        let invalid_json = |column| line_error(format!("invalid JSON (column {column})"));
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let new: NewDevice = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let cause = error.inner();
            match cause.is_data() {
                true => {
                    let field = field_name(error.path(), &cause.to_string());
                    line_error(format!("invalid field {field} (column {})", cause.column()))
                }
                false => invalid_json(cause.column()),
            }
        })?;
        deserializer.end().map_err(|error| invalid_json(error.column()))?;
        new_device_record(&new, self.enrolled_at_s).map_err(|error| line_error(error.message().to_owned()))
    }

    /// The next line without its line feed; `None` at the end of the body.
    async fn line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            // Each byte is searched and moved only once, regardless of how the body is split into pieces.
            let unsearched = self.buffer.get(self.search_start..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let end = self.search_start + end;
                let line = self.buffer.get(self.line_start..end).unwrap_or_default().to_vec();
                (self.line_start, self.search_start) = (end + 1, end + 1);
                self.line_number += 1;
                return Ok(Some(line));
            }
            self.buffer.drain(..self.line_start);
            (self.line_start, self.search_start) = (0, self.buffer.len());
            if self.buffer.len() > LINE_BYTES_MAX {
                let line = self.line_number + 1;
                return Err(ApiError::invalid(
                    "line",
                    format!("line {line} is longer than {LINE_BYTES_MAX} bytes"),
                ));
            }
            if self.is_finished {
                let line = std::mem::take(&mut self.buffer);
                self.search_start = 0;
                self.line_number += 1;
                return Ok((!line.is_empty()).then_some(line));
            }
            let received = tokio::time::timeout(BODY_TIMEOUT, self.body.next()).await;
            let timeout = |_| body_interrupted("no data for 60 s");
            match received.map_err(timeout)? {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => {
                    return Err(body_interrupted(error));
                }
                None => self.is_finished = true,
            }
        }
    }
}
