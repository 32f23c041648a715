//! Client arbitration: one primary controller for each role, elected by election id (specification 5).
//!
//! The module is a state machine without input and output. The server passes in the arbitration messages and the ends
//! of its streams, sends the resulting notices, and checks every write. A takeover has two steps, because writes of
//! the previous primary may still run: after the first step no controller of the role may write. The server calls
//! [`Arbitration::complete`] as soon as no earlier write runs.
//!
//! A controller with election id zero or without an election id never becomes primary. The configuration of a role is
//! stored and returned, but not interpreted.

use std::collections::BTreeMap;

use prost_types::Any;
use thiserror::Error;

/// Id of a stream between a controller and this server. The server never reuses an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Content of a controller's `MasterArbitrationUpdate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArbitrationRequest {
    /// Device that the controller requests to control.
    pub device_id: u64,
    /// Role of the controller; empty for the default role.
    pub role: String,
    /// Configuration of the role. The configuration takes effect if this controller becomes primary.
    pub config: Option<Any>,
    /// Election id, if the controller sent one.
    pub election_id: Option<u128>,
}

/// Status of a controller after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbitrationStatus {
    /// This controller is the primary: status OK.
    Primary,
    /// Another controller is the primary: status ALREADY_EXISTS.
    Backup,
    /// The role has no primary: status NOT_FOUND.
    NoPrimary,
}

/// Arbitration message for a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct ArbitrationNotice {
    /// Receiver.
    pub stream: StreamId,
    /// The role.
    pub role: String,
    /// Configuration of the role, as the last primary set it.
    pub config: Option<Any>,
    /// Highest election id ever received for the role; none before the first primary.
    pub election_id: Option<u128>,
    /// Status of the receiver.
    pub status: ArbitrationStatus,
}

/// Takeover that waits for running writes to finish.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the role has no primary until the takeover is completed"]
pub struct Takeover {
    role: String,
    number: u64,
}

/// Effects of an accepted [`ArbitrationRequest`].
#[derive(Debug)]
pub struct Outcome {
    /// Notices to send now.
    pub notices: Vec<ArbitrationNotice>,
    /// Takeover to complete when no write runs; set if the controller becomes primary.
    pub takeover: Option<Takeover>,
}

/// Reason to end a stream.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArbitrationError {
    /// NOT_FOUND: no such device.
    #[error("unknown device {requested}: this server controls device {actual}")]
    NoSuchDevice {
        /// Requested value.
        requested: u64,
        /// Device of this server.
        actual: u64,
    },
    /// FAILED_PRECONDITION: the device of a stream cannot change.
    #[error("device of the stream cannot change from {actual} to {requested}: open another stream")]
    DeviceChanged {
        /// Requested value.
        requested: u64,
        /// Value of the stream.
        actual: u64,
    },
    /// FAILED_PRECONDITION: the role of a stream cannot change.
    #[error("role of the stream cannot change from \"{actual}\" to \"{requested}\": open another stream")]
    RoleChanged {
        /// Requested value.
        requested: String,
        /// Value of the stream.
        actual: String,
    },
    /// INVALID_ARGUMENT: another controller uses this election id.
    #[error("election id {0} is in use by another connected controller of this role")]
    ElectionIdTaken(u128),
    /// RESOURCE_EXHAUSTED.
    #[error("too many controllers: {0} are connected with this role")]
    TooManyStreams(usize),
    /// RESOURCE_EXHAUSTED.
    #[error("too many roles: {0} are in use")]
    TooManyRoles(usize),
}

/// Reason to reject a write.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// NOT_FOUND: no such device.
    #[error("unknown device {requested}: this server controls device {actual}")]
    NoSuchDevice {
        /// Requested value.
        requested: u64,
        /// Device of this server.
        actual: u64,
    },
    /// NOT_FOUND: no such role.
    #[error("unknown role \"{0}\": no controller has requested it")]
    NoSuchRole(String),
    /// PERMISSION_DENIED: the controller is not the primary.
    #[error("not the primary of role \"{role}\": {}", match primary_election_id {
        Some(id) => format!("the primary has election id {id}"),
        None => "the role has no primary".to_owned(),
    })]
    NotPrimary {
        /// The role.
        role: String,
        /// Election id of the primary, if there is one.
        primary_election_id: Option<u128>,
    },
}

/// Limits on the state kept for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open streams of one role.
    pub streams_per_role: usize,
    /// Maximum number of roles. The highest election id of each role is stored until the server restarts (5, 16.2).
    pub roles: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_per_role: 64,
            roles: 64,
        }
    }
}

#[derive(Debug)]
struct Client {
    role: String,
    election_id: Option<u128>,
}

#[derive(Debug, Default)]
struct Role {
    /// Highest election id ever received. A connected controller with this election id is the primary.
    highest_election_id: Option<u128>,
    config: Option<Any>,
    primary: Option<StreamId>,
    /// Takeover that the primary waits for; none if the primary may write.
    pending_takeover: Option<u64>,
}

/// Election of the primaries of one device.
#[derive(Debug)]
pub struct Arbitration {
    device_id: u64,
    limits: Limits,
    clients: BTreeMap<StreamId, Client>,
    roles: BTreeMap<String, Role>,
    last_takeover: u64,
}

impl Arbitration {
    /// Creates the state without controllers.
    pub fn new(device_id: u64, limits: Limits) -> Self {
        Self {
            device_id,
            limits,
            clients: BTreeMap::new(),
            roles: BTreeMap::new(),
            last_takeover: 0,
        }
    }

    /// Device of this server.
    pub fn device_id(&self) -> u64 {
        self.device_id
    }

    /// Handles a `MasterArbitrationUpdate` received on a stream. An error changes nothing: the caller ends the
    /// stream with the error and calls [`close`](Self::close).
    pub fn update(
        &mut self,
        stream: StreamId,
        request: ArbitrationRequest,
    ) -> Result<Outcome, ArbitrationError> {
        self.check(stream, &request)?;
        let ArbitrationRequest {
            role: name,
            config,
            election_id,
            ..
        } = request;
        let role = self.roles.entry(name.clone()).or_default();
        self.clients.insert(
            stream,
            Client {
                role: name.clone(),
                election_id,
            },
        );
        let candidate_id = election_id.filter(|id| *id > 0);
        if let Some(candidate_id) = candidate_id
            && role
                .highest_election_id
                .is_none_or(|highest| candidate_id >= highest)
        {
            self.last_takeover += 1;
            *role = Role {
                highest_election_id: Some(candidate_id),
                config,
                primary: Some(stream),
                pending_takeover: Some(self.last_takeover),
            };
            let notices = self.notices(&name, |peer| peer != stream);
            return Ok(Outcome {
                notices,
                takeover: Some(Takeover {
                    role: name,
                    number: self.last_takeover,
                }),
            });
        }
        let stepped_down = role.primary == Some(stream);
        if stepped_down {
            role.primary = None;
            role.pending_takeover = None;
        }
        let notices = self.notices(&name, |peer| stepped_down || peer == stream);
        Ok(Outcome {
            notices,
            takeover: None,
        })
    }

    /// Completes a takeover after all earlier writes have finished. The controller may write from now on and receives
    /// a notice, unless a later takeover has superseded this takeover.
    pub fn complete(&mut self, takeover: Takeover) -> Vec<ArbitrationNotice> {
        let Some(role) = self.roles.get_mut(&takeover.role) else {
            return Vec::new();
        };
        if role.pending_takeover != Some(takeover.number) {
            return Vec::new();
        }
        role.pending_takeover = None;
        let primary = role.primary;
        self.notices(&takeover.role, |stream| Some(stream) == primary)
    }

    /// Removes a stream that has ended. If the stream was the primary's, returns notices for the other controllers of
    /// the role.
    pub fn close(&mut self, stream: StreamId) -> Vec<ArbitrationNotice> {
        let Some(client) = self.clients.remove(&stream) else {
            return Vec::new();
        };
        match self.roles.get_mut(&client.role) {
            Some(role) if role.primary == Some(stream) => {
                role.primary = None;
                role.pending_takeover = None;
                self.notices(&client.role, |_| true)
            }
            _ => Vec::new(),
        }
    }

    /// Checks whether a write with these parameters is allowed now (12, "Write RPC"; checked in this order).
    pub fn check_write(
        &self,
        device_id: u64,
        role: &str,
        election_id: Option<u128>,
    ) -> Result<(), WriteError> {
        if device_id != self.device_id {
            return Err(WriteError::NoSuchDevice {
                requested: device_id,
                actual: self.device_id,
            });
        }
        let existing_role = self.roles.get(role);
        if existing_role.is_none() && !role.is_empty() {
            return Err(WriteError::NoSuchRole(role.to_owned()));
        }
        let primary = existing_role.filter(|role| role.primary.is_some() && role.pending_takeover.is_none());
        let highest = primary.and_then(|role| role.highest_election_id);
        if highest.is_some() && highest == election_id {
            return Ok(());
        }
        Err(WriteError::NotPrimary {
            role: role.to_owned(),
            primary_election_id: highest,
        })
    }

    /// Whether the stream is the primary of its role. Only a primary may send packets and acknowledgments.
    pub fn is_primary(&self, stream: StreamId) -> bool {
        self.clients
            .get(&stream)
            .and_then(|client| self.roles.get(&client.role))
            .is_some_and(|role| role.primary == Some(stream) && role.pending_takeover.is_none())
    }

    /// Primaries of all roles: the receivers of packets and notifications.
    pub fn primaries(&self) -> impl Iterator<Item = StreamId> {
        self.roles
            .values()
            .filter(|role| role.pending_takeover.is_none())
            .filter_map(|role| role.primary)
    }

    fn check(&self, stream: StreamId, request: &ArbitrationRequest) -> Result<(), ArbitrationError> {
        let existing_client = self.clients.get(&stream);
        let (requested, device_id) = (request.device_id, self.device_id);
        if requested != device_id {
            return Err(match existing_client {
                None => ArbitrationError::NoSuchDevice {
                    requested,
                    actual: device_id,
                },
                Some(_) => ArbitrationError::DeviceChanged {
                    requested,
                    actual: device_id,
                },
            });
        }
        if let Some(client) = existing_client
            && client.role != request.role
        {
            return Err(ArbitrationError::RoleChanged {
                requested: request.role.clone(),
                actual: client.role.clone(),
            });
        }
        let mut peer_count = 0;
        for (peer, client) in &self.clients {
            if *peer == stream || client.role != request.role {
                continue;
            }
            peer_count += 1;
            if let Some(id) = request.election_id
                && client.election_id == Some(id)
            {
                return Err(ArbitrationError::ElectionIdTaken(id));
            }
        }
        if peer_count >= self.limits.streams_per_role {
            return Err(ArbitrationError::TooManyStreams(peer_count));
        }
        if !self.roles.contains_key(&request.role) && self.roles.len() >= self.limits.roles {
            return Err(ArbitrationError::TooManyRoles(self.roles.len()));
        }
        Ok(())
    }

    /// Notices with the current status for the selected controllers of a role.
    fn notices(&self, name: &str, is_recipient: impl Fn(StreamId) -> bool) -> Vec<ArbitrationNotice> {
        let Some(role) = self.roles.get(name) else {
            return Vec::new();
        };
        let notice = |stream: &StreamId| ArbitrationNotice {
            stream: *stream,
            role: name.to_owned(),
            config: role.config.clone(),
            election_id: role.highest_election_id,
            status: match role.primary {
                Some(primary) if primary == *stream => ArbitrationStatus::Primary,
                Some(_) => ArbitrationStatus::Backup,
                None => ArbitrationStatus::NoPrimary,
            },
        };
        let clients_of_role = self.clients.iter().filter(|(_, client)| client.role == name);
        clients_of_role
            .map(|(stream, _)| stream)
            .filter(|stream| is_recipient(**stream))
            .map(notice)
            .collect()
    }
}
