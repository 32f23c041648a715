//! Devices in numbers: one a line, stored as they come.

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use linewarden_registry::{DeviceRecord, OnConflict};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use utoipa::{IntoParams, ToSchema};

use super::devices::{NewDevice, act, note};
use crate::auth::Operator;
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::state::App;

/// Longest line, bytes: a device of as many rows as there may be.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Devices stored in one transaction: their ids come in no order, and the more of them share a page of the database, the less is written.
/// Nobody else writes meanwhile, a tenth of a second or so ..
const CHUNK_DEVICES: usize = 4_000;
/// .. or fewer, where they are of so many bytes.
const CHUNK_BYTES: usize = 8 << 20;

/// How.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct How {
    /// What becomes of devices that are enrolled already: refuse (the default), or replace their credentials.
    on_conflict: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Imported {
    /// Devices stored.
    stored: u64,
}

/// Enrols devices: a JSON object a line, as for one device. They are stored as they come, some thousands at a time; `stored` in an error
/// says how many were before the line that is at fault. The reason is the header `X-Reason`.
#[utoipa::path(post, path = "/api/v1/devices/import", params(How), request_body(content = String, content_type = "application/x-ndjson"), responses((status = 200, body = Imported), (status = 422, body = ErrorBody)))]
pub(crate) async fn import(
    Operator(principal): Operator,
    State(app): State<App>,
    Query(how): Query<How>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Imported>> {
    let on_conflict = match how.on_conflict.as_deref() {
        None | Some("refuse") => OnConflict::Refuse,
        Some("replace") => OnConflict::Replace,
        Some(_) => return Err(ApiError::invalid("on_conflict", "refuse or replace")),
    };
    let reason = headers.get("x-reason").and_then(|reason| reason.to_str().ok());
    let reason = reason.unwrap_or_default().to_owned();
    let mut chunks = Chunks::read(body);
    let mut stored = 0;
    loop {
        let chunk = chunks.next().await.map_err(|error| error.having_stored(stored))?;
        if chunk.is_empty() {
            return Ok(Json(Imported { stored }));
        }
        let count = chunk.len() as u64;
        let what = note("enrolled", None, format!("{count} devices imported"));
        act(&app, &principal, &reason, what, async |registry| {
            Ok(registry.enrol_chunk(chunk, on_conflict).await?)
        })
        .await
        .map_err(|error| error.having_stored(stored))?;
        stored += count;
    }
}

/// Devices of a body: the next ones are read while those before them are stored. No more than one chunk waits.
struct Chunks {
    inbox: Receiver<Result<Vec<DeviceRecord>>>,
    /// Ended when nobody wants any more.
    _reader: JoinSet<()>,
}

impl Chunks {
    fn read(body: Body) -> Self {
        let (outbox, inbox) = channel(1);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let mut lines = Lines::new(body);
            loop {
                let chunk = lines.chunk().await;
                let is_last = chunk.as_ref().map_or(true, Vec::is_empty);
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
    async fn next(&mut self) -> Result<Vec<DeviceRecord>> {
        // It does not end without having said so, unless it panics.
        let broken = || {
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "see the controller's log",
            )
        };
        self.inbox.recv().await.ok_or_else(broken)?
    }
}

/// A body, line by line; no more of it is in memory than a chunk needs.
struct Lines {
    body: axum::body::BodyDataStream,
    buffer: Vec<u8>,
    /// Where in it the next line begins, and up to where there is no end of it.
    at: usize,
    searched: usize,
    /// The line read last, from 1.
    number: u64,
    enrolled_at_s: u64,
    is_over: bool,
}

impl Lines {
    fn new(body: Body) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            number: 0,
            enrolled_at_s: now_s(),
            is_over: false,
        }
    }

    /// The next devices; none at the end.
    async fn chunk(&mut self) -> Result<Vec<DeviceRecord>> {
        let (mut devices, mut bytes) = (Vec::new(), 0);
        while devices.len() < CHUNK_DEVICES && bytes < CHUNK_BYTES {
            let Some(line) = self.line().await? else {
                break;
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            bytes += line.len();
            devices.push(self.device(&line)?);
        }
        Ok(devices)
    }

    fn device(&self, line: &[u8]) -> Result<DeviceRecord> {
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
        new.record(self.enrolled_at_s)
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
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => {
                    return Err(ApiError::invalid("line", format!("the body broke off: {error}")));
                }
                None => self.is_over = true,
            }
        }
    }
}
