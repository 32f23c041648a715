//! Publishes events to NATS JetStream: each public entry of the event log once and in order, regardless of the number of
//! controllers that publish ([ADR 36](../../../docs/adr/0036-the-event-stream-holds-its-own-position.md)).
//!
//! Publishing continues after the log entry that the newest message in the stream contains. This position is only in the
//! stream: a position that a controller stores could be lost, or differ from those of other controllers. The server
//! accepts a message only if no other message was added to the stream since the position was read. If another controller
//! has added a message, the position is read again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, LastRawMessageErrorKind};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use linewarden_protocol::backoff::Backoff;
use linewarden_registry::{EventLogEntry, EventLogReader, Registry};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::peer::is_local_host;
use crate::stream::{entry_to_json, is_public};

/// Maximum number of entries in flight, which are in memory until the server acknowledges them.
const BATCH_ENTRIES: u32 = 200;
/// Maximum time until a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest delay after a failed attempt to publish, and maximum time between checks of the connection.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks of a broken connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Delays after another controller published first.
const CONFLICT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Delays after a failed attempt to publish.
const PUBLISH_BACKOFF: Backoff = Backoff::new(RETRY_INTERVAL, RETRY_INTERVAL);
/// Delays before the next attempt to connect.
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// Maximum size of a stream that a controller creates, bytes. A full stream removes its oldest messages.
const STREAM_BYTES_MAX: i64 = 256 << 20;
/// Value of [`NatsCounts::position`] before the position was read.
const UNKNOWN_POSITION: u64 = u64::MAX;

/// Options of event publishing.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Addresses of the servers of one cluster: `nats://HOST:PORT` or `tls://HOST:PORT`.
    pub servers: Vec<String>,
    /// TLS files; with these files, TLS is used for all addresses.
    pub tls: Option<NatsTls>,
    /// Permits connections to other machines without TLS. An attacker on the network path can then read and forge events
    /// and responses.
    pub plaintext: bool,
    /// Credentials: the text of a `.creds` file, as created by `nsc`.
    pub credentials: Option<Zeroizing<String>>,
    /// Stream name. The stream is created if it does not exist.
    pub stream: String,
    /// Subjects consist of this prefix, a dot and the event kind.
    pub subject_prefix: String,
}

/// TLS files, read for each connection.
#[derive(Clone, Debug)]
pub struct NatsTls {
    /// CA certificates of the servers, PEM.
    pub ca: PathBuf,
    /// Client certificate and key, PEM, if the server requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// An invalid NATS configuration.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// An invalid server address.
    #[error(
        "invalid NATS server address {address:?}: {reason}; expected nats://HOST:PORT or tls://HOST:PORT"
    )]
    Address {
        /// The configured value.
        address: String,
        /// Why the address is invalid.
        reason: String,
    },
    /// A server on another machine, without TLS.
    #[error(
        "{address} is on another machine and TLS is not configured: set `ca` to the CA of the servers, use tls://, or set `plaintext = true` \
         on a trusted network"
    )]
    PlaintextRemote {
        /// The configured value.
        address: String,
    },
    /// An invalid stream name or subject prefix.
    #[error("invalid name {value:?}: expected letters, digits, - and _{}", if *allows_dots { ", in parts separated by dots" } else { "" })]
    Name {
        /// The configuration field.
        field: &'static str,
        /// The configured value.
        value: String,
        /// Whether dots are allowed.
        allows_dots: bool,
    },
    /// Invalid credentials.
    #[error("invalid NATS credentials: {0}")]
    Credentials(String),
    /// The client could not be created.
    #[error("failed to create NATS client: {0}")]
    Client(String),
}

impl NatsError {
    /// The invalid field of [`NatsOptions`].
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Address { .. } | Self::PlaintextRemote { .. } | Self::Client(_) => "servers",
            Self::Name { field, .. } => field,
            Self::Credentials(_) => "credentials_file",
        }
    }
}

impl NatsOptions {
    /// Validates the options without connecting.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), NatsError> {
        for address in self.addresses()? {
            let is_protected = self.tls.is_some() || address.tls_required() || is_local_host(address.host());
            if !is_protected && !self.plaintext {
                return Err(NatsError::PlaintextRemote {
                    address: address.into_inner().to_string(),
                });
            }
        }
        let is_word = |text: &str| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        let invalid_name = |field, value: &str, allows_dots| NatsError::Name {
            field,
            value: value.to_owned(),
            allows_dots,
        };
        if !is_word(&self.stream) {
            return Err(invalid_name("stream", &self.stream, false));
        }
        if !self.subject_prefix.split('.').all(is_word) {
            return Err(invalid_name("subject_prefix", &self.subject_prefix, true));
        }
        if let Some(credentials) = &self.credentials {
            let result = ConnectOptions::new().credentials(credentials);
            result.map_err(|error| NatsError::Credentials(error.to_string()))?;
        }
        Ok(())
    }

    fn addresses(&self) -> Result<Vec<ServerAddr>, NatsError> {
        let parse = |address: &String| {
            let invalid = |reason: String| NatsError::Address {
                address: address.clone(),
                reason,
            };
            let parsed: ServerAddr = address
                .parse()
                .map_err(|error: std::io::Error| invalid(error.to_string()))?;
            match parsed.scheme() {
                "nats" | "tls" => Ok(parsed),
                scheme => Err(invalid(format!("unsupported scheme {scheme}://"))),
            }
        };
        match self.servers.is_empty() {
            // Without addresses, the client would connect to the local machine.
            true => Err(NatsError::Address {
                address: String::new(),
                reason: "no address given".to_owned(),
            }),
            false => self.servers.iter().map(parse).collect(),
        }
    }

    fn connect_options(&self, name: &str, counts: &Arc<NatsCounts>) -> Result<ConnectOptions, NatsError> {
        let counts = Arc::clone(counts);
        let mut options = ConnectOptions::new()
            .name(format!("linewarden controller {name}"))
            .retry_on_initial_connect()
            .connection_timeout(RESPONSE_TIMEOUT)
            .request_timeout(Some(RESPONSE_TIMEOUT))
            .ping_interval(RESPONSE_TIMEOUT)
            .client_capacity(BATCH_ENTRIES as usize)
            .subscription_capacity(BATCH_ENTRIES as usize)
            .reconnect_delay_callback(|attempts| {
                let failures = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
                RECONNECT_BACKOFF.after(failures).next(random())
            });
        if self.tls.is_none() && !self.plaintext {
            // Otherwise the client might connect without TLS to a server that another server announces.
            options = options.ignore_discovered_servers();
        }
        // The error is logged once per disconnection, not for each attempt.
        let is_logged = AtomicBool::new(false);
        options = options.event_callback(move |event| {
            match &event {
                Event::Connected => is_logged.store(false, Relaxed),
                Event::ClientError(error) => {
                    counts.failed.fetch_add(1, Relaxed);
                    if !is_logged.swap(true, Relaxed) {
                        tracing::warn!(%error, "NATS connection failed; events remain in the event log");
                    }
                }
                _ => {}
            }
            std::future::ready(())
        });
        if let Some(tls) = &self.tls {
            options = options.add_root_certificates(tls.ca.clone()).require_tls(true);
            if let Some((cert, key)) = &tls.identity {
                options = options.add_client_certificate(cert.clone(), key.clone());
            }
        }
        match &self.credentials {
            Some(text) => options
                .credentials(text)
                .map_err(|error| NatsError::Credentials(error.to_string())),
            None => Ok(options),
        }
    }
}

/// Counters and state of publishing.
pub(crate) struct NatsCounts {
    /// Messages of this controller that the stream accepted.
    pub(crate) published: AtomicU64,
    /// Failed attempts to publish or to connect.
    pub(crate) failed: AtomicU64,
    connected: AtomicBool,
    /// Number of the last entry that is in the stream, or [`UNKNOWN_POSITION`].
    position: AtomicU64,
    /// Number of the newest entry of the event log.
    newest: watch::Receiver<u64>,
}

impl NatsCounts {
    /// Whether a server is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// The number of entries of the event log that are not yet in the stream; `None` before the position is known.
    pub(crate) fn lag(&self) -> Option<u64> {
        let position = self.position.load(Relaxed);
        (position != UNKNOWN_POSITION).then(|| self.newest.borrow().saturating_sub(position))
    }
}

/// Publishes the entries of the event log.
pub(crate) struct Publisher {
    client: Client,
    context: Context,
    options: NatsOptions,
    registry: Registry,
    newest: watch::Receiver<u64>,
    counts: Arc<NatsCounts>,
    reader: EventLogReader,
    position: Option<Position>,
}

/// Position of the stream.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Number of the last published entry of the event log.
    entry: u64,
    /// Sequence number of the newest message.
    sequence: u64,
}

/// Result of one publishing step.
enum Step {
    /// There may be more entries.
    More,
    /// All entries are published.
    Done,
    /// Another controller published first.
    Conflict,
}

impl Publisher {
    /// Begins to connect; the servers need not be reachable yet. `newest` is the number of the newest entry of the event
    /// log.
    pub(crate) async fn new(
        options: NatsOptions,
        name: &str,
        registry: Registry,
        newest: watch::Receiver<u64>,
    ) -> Result<(Self, Arc<NatsCounts>), NatsError> {
        options.check()?;
        let addresses = options.addresses()?;
        let counts = Arc::new(NatsCounts {
            published: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            position: AtomicU64::new(UNKNOWN_POSITION),
            newest: newest.clone(),
        });
        let connecting = options.connect_options(name, &counts)?.connect(addresses);
        let client = connecting
            .await
            .map_err(|error| NatsError::Client(error.to_string()))?;
        let context = jetstream::context::ContextBuilder::new()
            .timeout(RESPONSE_TIMEOUT)
            .ack_timeout(RESPONSE_TIMEOUT)
            .max_ack_inflight(2 * BATCH_ENTRIES as usize)
            .build(client.clone());
        let publisher = Self {
            client,
            context,
            options,
            registry,
            newest,
            counts: Arc::clone(&counts),
            reader: EventLogReader::after(0),
            position: None,
        };
        Ok((publisher, counts))
    }

    /// Publishes entries until the task is aborted.
    pub(crate) async fn run(mut self) {
        let mut is_failing = false;
        let (mut conflict_backoff, mut publish_backoff) = (CONFLICT_BACKOFF, PUBLISH_BACKOFF);
        loop {
            let is_connected = self.client.connection_state() == State::Connected;
            self.counts.connected.store(is_connected, Relaxed);
            if !is_connected {
                // The client would queue messages in memory without a connection.
                tokio::time::sleep(CHECK_INTERVAL).await;
                continue;
            }
            match self.step().await {
                Ok(step) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("NATS publishing resumed");
                    }
                    match step {
                        Step::More => conflict_backoff.reset(),
                        Step::Conflict => tokio::time::sleep(conflict_backoff.next(random())).await,
                        Step::Done => {
                            conflict_backoff.reset();
                            self.wait_for_events().await;
                        }
                    }
                }
                Err(error) => {
                    self.position = None;
                    self.counts.failed.fetch_add(1, Relaxed);
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(error, "NATS publishing failed; events remain in the event log");
                    }
                    tokio::time::sleep(publish_backoff.next(random())).await;
                }
            }
        }
    }

    /// Waits for new entries, at most until the next check of the connection.
    async fn wait_for_events(&mut self) {
        let last_published = self.position.map_or(0, |position| position.entry);
        let new_entry = self.newest.wait_for(|newest| *newest > last_published);
        // The sender lives as long as the publisher.
        let _ = tokio::time::timeout(RETRY_INTERVAL, new_entry).await;
    }

    /// Publishes the next batch of entries.
    async fn step(&mut self) -> Result<Step, String> {
        let position = match self.position {
            Some(position) => position,
            None => {
                let position = self.read_position().await?;
                self.set_position(position);
                position
            }
        };
        self.reader.set_position(position.entry);
        let entries = self.reader.next(&self.registry, BATCH_ENTRIES).await;
        let mut entries = entries.map_err(|error| error.to_string())?;
        let is_end = entries.is_empty();
        // Entries that do not authenticate are not published and do not move the position.
        entries.retain(|entry| entry.authentic);
        if is_end {
            return Ok(match self.reader.position() < position.entry {
                // An older registry was restored, so the position is read from the stream again.
                true => {
                    self.position = None;
                    Step::Conflict
                }
                false => Step::Done,
            });
        }
        self.publish(position, &entries).await
    }

    fn set_position(&mut self, position: Position) {
        self.position = Some(position);
        self.counts.position.store(position.entry, Relaxed);
    }

    /// Publishes all entries without waiting for acknowledgments in between. The server accepts a message only if the
    /// previous message was accepted, so after a refused message all further messages are refused.
    async fn publish(&mut self, mut position: Position, entries: &[EventLogEntry]) -> Result<Step, String> {
        let mut acks: Vec<(u64, Option<PublishAckFuture>)> = Vec::with_capacity(entries.len());
        let mut sequence = position.sequence;
        for entry in entries {
            if !is_public(entry) {
                acks.push((entry.number, None));
                continue;
            }
            let message = PublishMessage::build()
                .payload(entry_to_json(entry).to_string().into())
                .message_id(message_id(entry))
                .expected_stream(&self.options.stream)
                .expected_last_sequence(sequence);
            let result = self.context.send_publish(self.subject(entry), message).await;
            acks.push((entry.number, Some(result.map_err(|error| error_chain(&error))?)));
            sequence += 1;
        }
        for (entry, ack) in acks {
            if let Some(ack) = ack {
                let ack = match ack.await {
                    Ok(ack) => ack,
                    Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                        self.position = None;
                        return Ok(Step::Conflict);
                    }
                    Err(error) => return Err(error_chain(&error)),
                };
                position.sequence = ack.sequence;
                self.counts
                    .published
                    .fetch_add(u64::from(!ack.duplicate), Relaxed);
            }
            position.entry = entry;
            self.set_position(position);
        }
        Ok(Step::More)
    }

    fn subject(&self, entry: &EventLogEntry) -> String {
        let subject_character = |character: char| {
            if character.is_ascii_alphanumeric() || character == '-' {
                character
            } else {
                '_'
            }
        };
        let kind: String = entry.event.kind.chars().map(subject_character).collect();
        match kind.is_empty() {
            true => format!("{}.event", self.options.subject_prefix),
            false => format!("{}.{kind}", self.options.subject_prefix),
        }
    }

    /// Reads the position from the stream; creates the stream if it does not exist.
    async fn read_position(&self) -> Result<Position, String> {
        let subjects = format!("{}.>", self.options.subject_prefix);
        let config = Config {
            name: self.options.stream.clone(),
            subjects: vec![subjects.clone()],
            max_bytes: STREAM_BYTES_MAX,
            discard: DiscardPolicy::Old,
            description: Some("Events of Linewarden".to_owned()),
            ..Config::default()
        };
        let stream = self.context.get_or_create_stream(config);
        let mut stream = stream.await.map_err(|error| error_chain(&error))?;
        // The sequence number is read before the newest message. If another message is added in between, the next publish
        // attempt fails because of this sequence number.
        let sequence = stream
            .info()
            .await
            .map_err(|error| error_chain(&error))?
            .state
            .last_sequence;
        let newest = match stream.get_last_raw_message_by_subject(&subjects).await {
            Ok(message) => {
                let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID);
                let number = id.and_then(|id| number_of(id.as_str()));
                Some(number.ok_or(
                    "the newest message of the stream is not a Linewarden event; use a stream for events only",
                )?)
            }
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => None,
            Err(error) => return Err(error_chain(&error)),
        };
        // The end of the event log is read after the newest message of the stream. An entry is in the log before it is in
        // the stream, so a stream that is ahead of the log shows that the log was restored.
        let log_end = self
            .registry
            .newest_authentic_event()
            .await
            .map_err(|error| error.to_string())?;
        let entry = match newest {
            Some(newest) if newest > log_end => {
                tracing::error!(
                    stream_event = newest,
                    registry_event = log_end,
                    "stream is ahead of the registry, so an older registry was restored; only new events are published"
                );
                log_end
            }
            Some(newest) => newest,
            None if sequence == 0 => 0,
            None => self.position_after_purge(log_end),
        };
        Ok(Position { entry, sequence })
    }

    /// The position if all messages were removed from the stream: the last entry that this controller has published, or
    /// the end of the event log if this controller has published none.
    fn position_after_purge(&self, log_end: u64) -> u64 {
        match self.counts.position.load(Relaxed) {
            UNKNOWN_POSITION => {
                tracing::warn!("stream was purged; only new events are published");
                log_end
            }
            position => position,
        }
    }
}

/// The message ID for deduplication. The time makes the ID unique even if a restored registry reuses entry numbers.
fn message_id(entry: &EventLogEntry) -> String {
    format!("{}-{}", entry.number, entry.at_ms)
}

/// Parses the entry number in a message ID.
fn number_of(id: &str) -> Option<u64> {
    id.split_once('-')?.0.parse().ok()
}

/// Formats an error with its causes.
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut text = String::new();
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    text
}

/// A random number for a delay. If the kernel has none, only the jitter is missing.
fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> NatsOptions {
        NatsOptions {
            servers: vec!["nats://127.0.0.1:4222".to_owned(), "tls://n2.example".to_owned()],
            tls: None,
            plaintext: false,
            credentials: None,
            stream: "LINEWARDEN".to_owned(),
            subject_prefix: "linewarden.events".to_owned(),
        }
    }

    #[test]
    fn invalid_options_are_detected_without_a_connection() {
        assert!(options().check().is_ok());
        type Change = fn(&mut NatsOptions);
        let cases: [(Change, &str); 8] = [
            (
                |options| options.servers.push("wss://n3.example".to_owned()),
                "servers",
            ),
            (|options| options.servers.clear(), "servers"),
            (
                |options| options.servers.push("nats://192.0.2.1:4222".to_owned()),
                "servers",
            ),
            (
                |options| options.servers.push("nats://a:b:c".to_owned()),
                "servers",
            ),
            (|options| options.stream = "a.b".to_owned(), "stream"),
            (
                |options| options.subject_prefix = "a..b".to_owned(),
                "subject_prefix",
            ),
            (
                |options| options.subject_prefix = "a.>".to_owned(),
                "subject_prefix",
            ),
            (
                |options| options.credentials = Some(Zeroizing::new("none".to_owned())),
                "credentials_file",
            ),
        ];
        for (change, field) in cases {
            let mut options = options();
            change(&mut options);
            let result = options.check().map_err(|error| error.field());
            assert_eq!(result, Err(field), "{options:?}");
        }
    }

    #[test]
    fn only_valid_message_ids_have_a_number() {
        assert_eq!(number_of("17-1700000000000"), Some(17));
        for invalid in ["", "17", "-17", "x-1", "99999999999999999999-1"] {
            assert_eq!(number_of(invalid), None, "{invalid}");
        }
    }
}
