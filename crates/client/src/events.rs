//! What happens, as it happens: a stream that goes on where it broke off.

use std::time::Duration;

use linewarden_service::wire::{Happening, History};
use reqwest::Response;
use reqwest::header::{HeaderName, HeaderValue};
use tokio::time::timeout;

use crate::ask::Result;
use crate::connection::Client;
use crate::error::ClientError;
use crate::patience::Patience;

const PATH: &str = "/api/v1/events";
const LAST: HeaderName = HeaderName::from_static("last-event-id");
/// A controller says something at least every 5 s; one that says nothing for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Longest event, bytes; no controller sends more.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// A stream of what happens.
pub struct Events {
    client: Client,
    last: u64,
    response: Option<Response>,
    buffer: Vec<u8>,
}

impl Client {
    /// What happens from now on, or behind the event of that number.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn events(&self, after: Option<u64>) -> Result<Events> {
        let last = match after {
            Some(after) => after,
            None => {
                let newest = History {
                    limit: Some(1),
                    ..History::default()
                };
                let newest = self.history(&newest).await?;
                newest.items.first().map_or(0, |newest| newest.id)
            }
        };
        Ok(Events {
            client: self.clone(),
            last,
            response: None,
            buffer: Vec::new(),
        })
    }
}

impl Events {
    /// The next one. A stream that breaks off is begun again behind the last event that came, for as long as there is patience.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn next(&mut self) -> Result<Happening> {
        let mut patience: Option<Patience> = None;
        loop {
            match self.advance().await {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => patience = None,
                Err(error) => {
                    self.response = None;
                    self.buffer.clear();
                    let patience = patience.get_or_insert_with(|| Patience::new(self.client.patience));
                    patience.bear(error).await?;
                }
            }
        }
    }

    /// An event, or `None` where something came that is none.
    async fn advance(&mut self) -> Result<Option<Happening>> {
        let response = match &mut self.response {
            Some(response) => response,
            None => {
                let begun = self.begin().await?;
                self.response.insert(begun)
            }
        };
        if let Some(event) = take(&mut self.buffer) {
            return Ok(self.parse(&event));
        }
        let gone = |why: &str| ClientError::Away {
            server: self.client.server().to_owned(),
            why: why.to_owned(),
        };
        let chunk = timeout(SILENCE_MAX, response.chunk())
            .await
            .map_err(|_| gone("it says nothing any more"))?
            .map_err(|error| ClientError::unanswered(self.client.server(), &error))?
            .ok_or_else(|| gone("it has ended the stream"))?;
        self.buffer.extend_from_slice(&chunk);
        match self.buffer.len() > EVENT_BYTES_MAX && !self.buffer.windows(2).any(|two| two == b"\n\n") {
            true => Err(ClientError::NoController {
                server: self.client.server().to_owned(),
                why: "it sends an event without end".to_owned(),
            }),
            false => Ok(None),
        }
    }

    async fn begin(&self) -> Result<Response> {
        let request = self
            .client
            .http
            .get(self.client.url(PATH)?)
            .header(LAST, HeaderValue::from(self.last));
        let response = self.client.authorized(request)?.send();
        let response = timeout(SILENCE_MAX, response)
            .await
            .map_err(|_| ClientError::Away {
                server: self.client.server().to_owned(),
                why: "it does not answer".to_owned(),
            })?;
        let response = response.map_err(|error| ClientError::unanswered(self.client.server(), &error))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.client.refusal(PATH, response).await),
        }
    }

    /// Only what has a number has happened; the rest tells how things stand.
    fn parse(&mut self, event: &str) -> Option<Happening> {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        let id: u64 = field("id:")?.trim().parse().ok()?;
        self.last = self.last.max(id);
        match serde_json::from_str(field("data:")?.trim()) {
            Ok(event) => Some(event),
            Err(error) => {
                tracing::warn!(%error, id, "an event cannot be read; is the controller newer?");
                None
            }
        }
    }
}

/// The first whole event.
fn take(buffer: &mut Vec<u8>) -> Option<String> {
    let end = buffer.windows(2).position(|two| two == b"\n\n")?;
    let event: Vec<u8> = buffer.drain(..end + 2).collect();
    Some(String::from_utf8_lossy(&event).into_owned())
}
