//! The event stream. The stream resumes after the last received event when the connection breaks.

use std::time::Duration;

use linewarden_api::{EventHistoryQuery, EventRecord};
use reqwest::Response;
use reqwest::header::{HeaderName, HeaderValue};
use tokio::time::timeout;

use crate::connection::Client;
use crate::error::ClientError;
use crate::request::Result;
use crate::retry::RetryTimer;

const PATH: &str = "/api/v1/events";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// A controller sends data at least every 5 s; without data for this time the connection counts as lost.
const EVENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of an event, bytes. Controllers do not send longer events.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// A stream of events.
pub struct EventStream {
    client: Client,
    last_id: u64,
    response: Option<Response>,
    buffer: Vec<u8>,
}

impl Client {
    /// Returns a stream of the events after the event `after`; without `after`, of all future events.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn events(&self, after: Option<u64>) -> Result<EventStream> {
        let last_id = match after {
            Some(after) => after,
            None => {
                let query = EventHistoryQuery {
                    limit: Some(1),
                    ..EventHistoryQuery::default()
                };
                let history = self.history(&query).await?;
                history.items.first().map_or(0, |newest| newest.id)
            }
        };
        Ok(EventStream {
            client: self.clone(),
            last_id,
            response: None,
            buffer: Vec::new(),
        })
    }
}

impl EventStream {
    /// Returns the next event. If the connection breaks, the stream connects again and resumes after the last received
    /// event. Attempts to connect end after the retry timeout.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn next(&mut self) -> Result<EventRecord> {
        let mut retry_timer: Option<RetryTimer> = None;
        loop {
            match self.advance().await {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => retry_timer = None,
                Err(error) => {
                    self.response = None;
                    self.buffer.clear();
                    let retry_timer =
                        retry_timer.get_or_insert_with(|| RetryTimer::new(self.client.retry_timeout));
                    retry_timer.wait_or_fail(error).await?;
                }
            }
        }
    }

    /// Connects if necessary, and returns a received event or receives more data. Returns `None` if more data arrived, or
    /// if an entry of the stream was skipped ([`EventStream::parse`]).
    async fn advance(&mut self) -> Result<Option<EventRecord>> {
        let response = match &mut self.response {
            Some(response) => response,
            None => {
                let new_response = self.connect().await?;
                self.response.insert(new_response)
            }
        };
        if let Some(event) = take_event(&mut self.buffer) {
            return Ok(self.parse(&event));
        }
        let unreachable = |reason: &str| ClientError::Unreachable {
            server: self.client.server().to_owned(),
            reason: reason.to_owned(),
        };
        let chunk = timeout(EVENT_TIMEOUT, response.chunk())
            .await
            .map_err(|_| unreachable("no data for 15 s"))?
            .map_err(|error| ClientError::from_transport(self.client.server(), &error))?
            .ok_or_else(|| unreachable("the controller closed the stream"))?;
        self.buffer.extend_from_slice(&chunk);
        match self.buffer.len() > EVENT_BYTES_MAX && !self.buffer.windows(2).any(|pair| pair == b"\n\n") {
            true => Err(ClientError::InvalidResponse {
                server: self.client.server().to_owned(),
                reason: "an event exceeds 1 MiB".to_owned(),
            }),
            false => Ok(None),
        }
    }

    async fn connect(&self) -> Result<Response> {
        let request = self
            .client
            .http
            .get(self.client.url(PATH)?)
            .header(LAST_EVENT_ID, HeaderValue::from(self.last_id));
        let response = self.client.execute(self.client.authorized(request)?);
        let response = timeout(EVENT_TIMEOUT, response)
            .await
            .map_err(|_| ClientError::Unreachable {
                server: self.client.server().to_owned(),
                reason: "no response within 15 s".to_owned(),
            })??;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.client.stream_error(PATH, response).await),
        }
    }

    /// Parses an entry of the stream. Returns `None` for an entry without an event id, which reports the current state,
    /// and for an event that cannot be parsed.
    fn parse(&mut self, event: &str) -> Option<EventRecord> {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        let id: u64 = field("id:")?.trim().parse().ok()?;
        self.last_id = self.last_id.max(id);
        match serde_json::from_str(field("data:")?.trim()) {
            Ok(event) => Some(event),
            Err(error) => {
                tracing::warn!(
                    %error,
                    event = id,
                    action = "upgrade this program if the controller is newer",
                    "event stream: event cannot be parsed; skipped"
                );
                None
            }
        }
    }
}

/// Removes the first complete event from the buffer and returns it.
fn take_event(buffer: &mut Vec<u8>) -> Option<String> {
    let end = buffer.windows(2).position(|pair| pair == b"\n\n")?;
    let event: Vec<u8> = buffer.drain(..end + 2).collect();
    Some(String::from_utf8_lossy(&event).into_owned())
}
