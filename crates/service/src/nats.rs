//! Events through NATS JetStream: each entry of the journal that the API's stream tells, once and in order, however many controllers
//! publish them ([decision 38](../../../docs/adr/0038-the-stream-itself-says-how-far-it-has-come.md)).
//!
//! How far it has come is what the newest message of the stream says, and nothing else: nobody keeps a position that could be lost or
//! differ. Each message is published on the condition that nothing has come into the stream since that was read. Who finds that another
//! controller was first reads again.

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
use linewarden_registry::{Entry, Follower, Registry};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::peer::is_here;
use crate::stream::{body_of, is_told};

/// Entries that are on their way at once: what a server that has died keeps in memory here.
const BATCH_ENTRIES: u32 = 200;
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// From one try to the next.
const TRY_EVERY: Duration = Duration::from_secs(1);
/// Who was second leaves the first so much time.
const YIELD: Duration = Duration::from_millis(50);
/// Longest pause before the next try to connect.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// A stream that is made here grows no longer; the oldest make room.
const STREAM_BYTES_MAX: i64 = 256 << 20;
/// Position that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Where events are published.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`, of one cluster.
    pub servers: Vec<String>,
    /// By TLS, whatever the addresses say.
    pub tls: Option<NatsTls>,
    /// Also in the clear to other machines: whoever is on the way reads events, writes others, and is believed in what he answers.
    pub plaintext: bool,
    /// What `nsc` or an administrator gave: a `.creds` file's text.
    pub credentials: Option<Zeroizing<String>>,
    /// The stream; made if it is not there.
    pub stream: String,
    /// Subjects are this, a dot and the kind of the event.
    pub subject_prefix: String,
}

/// Files of TLS, read with each connection.
#[derive(Clone, Debug)]
pub struct NatsTls {
    /// Whom to believe, PEM.
    pub ca: PathBuf,
    /// One's own certificate and key, PEM, where the server asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// What of that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// No address.
    #[error("{address:?} is no address of a NATS server ({why}): nats://HOST:PORT or tls://HOST:PORT")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another machine, without TLS.
    #[error(
        "{address} is on another machine, and there is no TLS: name the CA of the servers in `ca`, or write tls://, or set `plaintext = true` \
         where nobody else is on the way"
    )]
    InTheClear {
        /// What was given.
        address: String,
    },
    /// No name.
    #[error("{value:?} cannot be one: letters, digits, - and _{}", if *dots { ", in parts with dots between them" } else { "" })]
    Name {
        /// Which field.
        field: &'static str,
        /// What was given.
        value: String,
        /// Whether it may have parts.
        dots: bool,
    },
    /// Credentials that are none.
    #[error("no credentials of NATS: {0}")]
    Credentials(String),
    /// What the client says.
    #[error("no client of NATS: {0}")]
    Client(String),
}

impl NatsError {
    /// What of [`NatsOptions`] is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Address { .. } | Self::InTheClear { .. } | Self::Client(_) => "servers",
            Self::Name { field, .. } => field,
            Self::Credentials(_) => "credentials_file",
        }
    }
}

impl NatsOptions {
    /// Whether it can be used at all; nothing is connected.
    ///
    /// # Errors
    /// What of it is wrong.
    pub fn check(&self) -> Result<(), NatsError> {
        for address in self.addresses()? {
            let is_private = self.tls.is_some() || address.tls_required() || is_here(address.host());
            if !is_private && !self.plaintext {
                return Err(NatsError::InTheClear {
                    address: address.into_inner().to_string(),
                });
            }
        }
        let is_word = |text: &str| {
            let mut bytes = text.bytes();
            !text.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        let name = |field, value: &str, dots| NatsError::Name {
            field,
            value: value.to_owned(),
            dots,
        };
        if !is_word(&self.stream) {
            return Err(name("stream", &self.stream, false));
        }
        if !self.subject_prefix.split('.').all(is_word) {
            return Err(name("subject_prefix", &self.subject_prefix, true));
        }
        if let Some(credentials) = &self.credentials {
            let taken = ConnectOptions::new().credentials(credentials);
            taken.map_err(|error| NatsError::Credentials(error.to_string()))?;
        }
        Ok(())
    }

    fn addresses(&self) -> Result<Vec<ServerAddr>, NatsError> {
        let parse = |address: &String| {
            let wrong = |why: String| NatsError::Address {
                address: address.clone(),
                why,
            };
            let parsed: ServerAddr = address
                .parse()
                .map_err(|error: std::io::Error| wrong(error.to_string()))?;
            match parsed.scheme() {
                "nats" | "tls" => Ok(parsed),
                other => Err(wrong(format!("{other}:// is not spoken"))),
            }
        };
        match self.servers.is_empty() {
            // The client would take that for this machine.
            true => Err(NatsError::Address {
                address: String::new(),
                why: "none is given".to_owned(),
            }),
            false => self.servers.iter().map(parse).collect(),
        }
    }

    fn connect_options(&self, name: &str, counts: &Arc<NatsCounts>) -> Result<ConnectOptions, NatsError> {
        let counts = Arc::clone(counts);
        let mut options = ConnectOptions::new()
            .name(format!("linewarden controller {name}"))
            .retry_on_initial_connect()
            .connection_timeout(ANSWER_TIMEOUT)
            .request_timeout(Some(ANSWER_TIMEOUT))
            .ping_interval(ANSWER_TIMEOUT)
            .client_capacity(BATCH_ENTRIES as usize)
            .subscription_capacity(BATCH_ENTRIES as usize)
            .reconnect_delay_callback(|tries| {
                let tries = u32::try_from(tries).unwrap_or(u32::MAX);
                Duration::from_millis(50).saturating_mul(tries).min(RECONNECT_MAX)
            });
        if self.tls.is_none() && !self.plaintext {
            // Those that a server names are spoken to as they like, and that may be in the clear.
            options = options.ignore_discovered_servers();
        }
        // Once for each time that it goes: tries are many.
        let is_told = AtomicBool::new(false);
        options = options.event_callback(move |event| {
            match &event {
                Event::Connected => is_told.store(false, Relaxed),
                Event::ClientError(error) => {
                    counts.failed.fetch_add(1, Relaxed);
                    if !is_told.swap(true, Relaxed) {
                        tracing::warn!(%error, "no connection to a NATS server; events are kept in the journal");
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

/// How publishing goes.
pub(crate) struct NatsCounts {
    /// Messages that the stream took from here.
    pub(crate) published: AtomicU64,
    /// Tries that failed, to connect too.
    pub(crate) failed: AtomicU64,
    connected: AtomicBool,
    /// Up to which entry all is in the stream.
    position: AtomicU64,
    newest: watch::Receiver<u64>,
}

impl NatsCounts {
    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Entries of the journal that the stream does not have yet; `None` before it was asked what it has.
    pub(crate) fn lag(&self) -> Option<u64> {
        let position = self.position.load(Relaxed);
        (position != UNKNOWN).then(|| self.newest.borrow().saturating_sub(position))
    }
}

/// Publishes what the journal gets.
pub(crate) struct Publisher {
    client: Client,
    context: Context,
    options: NatsOptions,
    registry: Registry,
    newest: watch::Receiver<u64>,
    counts: Arc<NatsCounts>,
    follower: Follower,
    position: Option<Position>,
}

/// How far the stream has come.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The entry of the journal up to which it has all.
    entry: u64,
    /// Its newest message.
    sequence: u64,
}

/// What a try has brought.
enum Step {
    /// There is more to do.
    More,
    /// The stream has all.
    Done,
    /// Another controller was first.
    Second,
}

impl Publisher {
    /// Begins to connect; servers need not be there yet. `newest` tells the number of the journal's newest entry.
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
            position: AtomicU64::new(UNKNOWN),
            newest: newest.clone(),
        });
        let connecting = options.connect_options(name, &counts)?.connect(addresses);
        let client = connecting
            .await
            .map_err(|error| NatsError::Client(error.to_string()))?;
        let context = jetstream::context::ContextBuilder::new()
            .timeout(ANSWER_TIMEOUT)
            .ack_timeout(ANSWER_TIMEOUT)
            .max_ack_inflight(2 * BATCH_ENTRIES as usize)
            .build(client.clone());
        let publisher = Self {
            client,
            context,
            options,
            registry,
            newest,
            counts: Arc::clone(&counts),
            follower: Follower::after(0),
            position: None,
        };
        Ok((publisher, counts))
    }

    /// Goes on until it is aborted; nobody waits for it.
    pub(crate) async fn run(mut self) {
        let mut is_failing = false;
        loop {
            let is_connected = self.client.connection_state() == State::Connected;
            self.counts.connected.store(is_connected, Relaxed);
            if !is_connected {
                // What is handed to a client without a connection waits in memory.
                tokio::time::sleep(YIELD).await;
                continue;
            }
            match self.step().await {
                Ok(step) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("events are published again");
                    }
                    match step {
                        Step::More => {}
                        Step::Second => tokio::time::sleep(YIELD).await,
                        Step::Done => self.wait().await,
                    }
                }
                Err(problem) => {
                    self.position = None;
                    self.counts.failed.fetch_add(1, Relaxed);
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(problem, "events are not published; they are kept in the journal");
                    }
                    tokio::time::sleep(TRY_EVERY).await;
                }
            }
        }
    }

    /// Until the journal has more, or a while has passed: a connection may have gone.
    async fn wait(&mut self) {
        let behind = self.position.map_or(0, |position| position.entry);
        let more = self.newest.wait_for(|newest| *newest > behind);
        // Its sender lives as long as this.
        let _ = tokio::time::timeout(TRY_EVERY, more).await;
    }

    /// Publishes the next entries.
    async fn step(&mut self) -> Result<Step, String> {
        let position = match self.position {
            Some(position) => position,
            None => {
                let found = self.find().await?;
                self.at(found);
                found
            }
        };
        self.follower.go_to(position.entry);
        let entries = self.follower.next(&self.registry, BATCH_ENTRIES).await;
        let mut entries = entries.map_err(|error| error.to_string())?;
        let is_end = entries.is_empty();
        // What somebody else has written moves the position no further.
        entries.retain(|entry| entry.authentic);
        if is_end {
            return Ok(match self.follower.read() < position.entry {
                // An older registry was put back: the stream has to say what it has.
                true => {
                    self.position = None;
                    Step::Second
                }
                false => Step::Done,
            });
        }
        self.publish(position, &entries).await
    }

    fn at(&mut self, position: Position) {
        self.position = Some(position);
        self.counts.position.store(position.entry, Relaxed);
    }

    /// All at once, each on the condition that the one before it was taken: where one is not, none behind it is.
    async fn publish(&mut self, mut position: Position, entries: &[Entry]) -> Result<Step, String> {
        let mut answers: Vec<(u64, Option<PublishAckFuture>)> = Vec::with_capacity(entries.len());
        let mut sequence = position.sequence;
        for entry in entries {
            if !is_told(entry) {
                answers.push((entry.number, None));
                continue;
            }
            let message = PublishMessage::build()
                .payload(body_of(entry).to_string().into())
                .message_id(message_id(entry))
                .expected_stream(&self.options.stream)
                .expected_last_sequence(sequence);
            let sent = self.context.send_publish(self.subject(entry), message).await;
            answers.push((entry.number, Some(sent.map_err(|error| said(&error))?)));
            sequence += 1;
        }
        for (entry, answer) in answers {
            if let Some(answer) = answer {
                let ack = match answer.await {
                    Ok(ack) => ack,
                    Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                        self.position = None;
                        return Ok(Step::Second);
                    }
                    Err(error) => return Err(said(&error)),
                };
                position.sequence = ack.sequence;
                self.counts
                    .published
                    .fetch_add(u64::from(!ack.duplicate), Relaxed);
            }
            position.entry = entry;
            self.at(position);
        }
        Ok(Step::More)
    }

    fn subject(&self, entry: &Entry) -> String {
        let safe = |byte: char| {
            if byte.is_ascii_alphanumeric() || byte == '-' {
                byte
            } else {
                '_'
            }
        };
        let kind: String = entry.note.kind.chars().map(safe).collect();
        match kind.is_empty() {
            true => format!("{}.event", self.options.subject_prefix),
            false => format!("{}.{kind}", self.options.subject_prefix),
        }
    }

    /// What the stream says of how far it has come.
    async fn find(&self) -> Result<Position, String> {
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
        let mut stream = stream.await.map_err(|error| said(&error))?;
        // Before the newest message is read: what comes in between is noticed.
        let sequence = stream
            .info()
            .await
            .map_err(|error| said(&error))?
            .state
            .last_sequence;
        let newest = match stream.get_last_raw_message_by_subject(&subjects).await {
            Ok(message) => {
                let id = message.headers.get(async_nats::header::NATS_MESSAGE_ID);
                let number = id.and_then(|id| number_of(id.as_str()));
                Some(number.ok_or(
                    "the newest message of the stream is not from here: give events a stream of their own",
                )?)
            }
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => None,
            Err(error) => return Err(said(&error)),
        };
        // After it: no stream is ahead of its journal.
        let end = self
            .registry
            .journal_end()
            .await
            .map_err(|error| error.to_string())?;
        let entry = match newest {
            Some(newest) if newest > end => {
                tracing::error!(
                    newest,
                    end,
                    "the stream has events that the registry does not: an older registry was put back; what happens from now on is published"
                );
                end
            }
            Some(newest) => newest,
            None if sequence == 0 => 0,
            None => self.emptied(end),
        };
        Ok(Position { entry, sequence })
    }

    /// Everything was deleted: only who has published knows up to where.
    fn emptied(&self, end: u64) -> u64 {
        match self.counts.position.load(Relaxed) {
            UNKNOWN => {
                tracing::warn!("the stream was emptied: what happens from now on is published");
                end
            }
            known => known,
        }
    }
}

/// Once in the life of a fleet, also where an older registry is put back, which gives its numbers again.
fn message_id(entry: &Entry) -> String {
    format!("{}-{}", entry.number, entry.at_ms)
}

fn number_of(id: &str) -> Option<u64> {
    id.split_once('-')?.0.parse().ok()
}

/// An error with its causes.
fn said(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut said = String::new();
    for cause in causes.map(ToString::to_string) {
        if !said.contains(&cause) {
            let colon = if said.is_empty() { "" } else { ": " };
            said = format!("{said}{colon}{cause}");
        }
    }
    said
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
    fn what_cannot_be_used_is_said_before_anything_is_connected() {
        assert!(options().check().is_ok());
        type Change = fn(&mut NatsOptions);
        let wrong: [(Change, &str); 8] = [
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
        for (change, field) in wrong {
            let mut options = options();
            change(&mut options);
            let refused = options.check().map_err(|error| error.field());
            assert_eq!(refused, Err(field), "{options:?}");
        }
    }

    #[test]
    fn ids_tell_the_number_and_nothing_else_does() {
        assert_eq!(number_of("17-1700000000000"), Some(17));
        for strange in ["", "17", "-17", "x-1", "99999999999999999999-1"] {
            assert_eq!(number_of(strange), None, "{strange}");
        }
    }
}
