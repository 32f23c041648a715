//! Who may write: one primary for each role, by election (specification 5, "Client Arbitration").
//!
//! A state machine without input and output. The server feeds it the arbitration messages of its streams and
//! their ends, sends the notices that come out, and asks it before every write. A takeover has two steps,
//! because writes of the primary before may still run: after the first nobody of the role may write, and
//! [`Arbitration::complete`] is called once no write runs any more.
//!
//! An election id of zero never makes a primary; like an id that is not set it is for standing by. What a
//! role's configuration means is not judged here: it is remembered and repeated.

use std::collections::BTreeMap;

use prost_types::Any;
use thiserror::Error;

/// A stream between a controller and this server; the server numbers them and uses no number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What a controller says of itself with a `MasterArbitrationUpdate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidacy {
    /// The device it wants to control.
    pub device_id: u64,
    /// The role it plays; empty for the default role.
    pub role: String,
    /// The configuration of that role, which becomes the role's if this controller becomes primary.
    pub config: Option<Any>,
    /// Its rank, where it has one.
    pub election_id: Option<u128>,
}

/// How a controller stands after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is the primary: status OK.
    Primary,
    /// Another one is: status ALREADY_EXISTS.
    Backup,
    /// Nobody is: status NOT_FOUND.
    Leaderless,
}

/// What a controller is to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Whom to tell.
    pub stream: StreamId,
    /// The role.
    pub role: String,
    /// The role's configuration, as the last primary gave it.
    pub config: Option<Any>,
    /// The highest rank that was ever seen for the role; none before the first primary.
    pub election_id: Option<u128>,
    /// How it stands.
    pub standing: Standing,
}

/// A takeover that waits for the writes that still run.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the role has no primary until the takeover is completed"]
pub struct Takeover {
    role: String,
    number: u64,
}

/// What an accepted [`Candidacy`] changes.
#[derive(Debug)]
pub struct Outcome {
    /// To be sent now.
    pub notices: Vec<Notice>,
    /// To be completed when no write runs any more, if the controller is to be primary.
    pub takeover: Option<Takeover>,
}

/// Why a stream has to end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// NOT_FOUND: no such device.
    #[error("device {asked} is not here; this is device {here}")]
    NoSuchDevice {
        /// As asked for.
        asked: u64,
        /// The one that is.
        here: u64,
    },
    /// FAILED_PRECONDITION: a stream keeps its device.
    #[error("this stream is device {here}'s; open another one for device {asked}")]
    DeviceChanged {
        /// As asked for.
        asked: u64,
        /// The stream's.
        here: u64,
    },
    /// FAILED_PRECONDITION: a stream keeps its role.
    #[error("this stream has the role \"{here}\"; open another one for \"{asked}\"")]
    RoleChanged {
        /// As asked for.
        asked: String,
        /// The stream's.
        here: String,
    },
    /// INVALID_ARGUMENT: another controller has this rank.
    #[error("election id {0} is another live controller's of this role")]
    ElectionIdTaken(u128),
    /// RESOURCE_EXHAUSTED.
    #[error("{0} controllers have this role already")]
    TooManyStreams(usize),
    /// RESOURCE_EXHAUSTED.
    #[error("{0} roles are known already")]
    TooManyRoles(usize),
}

/// Why a write is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteRefusal {
    /// NOT_FOUND: no such device.
    #[error("device {asked} is not here; this is device {here}")]
    NoSuchDevice {
        /// As asked for.
        asked: u64,
        /// The one that is.
        here: u64,
    },
    /// NOT_FOUND: no such role.
    #[error("no controller has ever had the role \"{0}\"")]
    NoSuchRole(String),
    /// PERMISSION_DENIED: not the primary.
    #[error("only the primary of role \"{role}\" may do this, and {}", match highest {
        Some(id) => format!("its election id is {id}"),
        None => "there is none".to_owned(),
    })]
    NotPrimary {
        /// The role.
        role: String,
        /// The primary's rank, if there is one.
        highest: Option<u128>,
    },
}

/// How much of clients' doing is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Live streams of one role.
    pub streams_per_role: usize,
    /// Roles that were ever used: their highest ranks stay until the server starts anew (5, 16.2).
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
    /// The highest rank ever seen; its holder is the primary, while it lives and keeps it.
    highest: Option<u128>,
    config: Option<Any>,
    primary: Option<StreamId>,
    /// Whether the primary may write already, or which takeover it waits for.
    awaits: Option<u64>,
}

/// The election of one device's primaries.
#[derive(Debug)]
pub struct Arbitration {
    device_id: u64,
    limits: Limits,
    clients: BTreeMap<StreamId, Client>,
    roles: BTreeMap<String, Role>,
    takeovers: u64,
}

impl Arbitration {
    /// Nobody has come yet.
    pub fn new(device_id: u64, limits: Limits) -> Self {
        Self {
            device_id,
            limits,
            clients: BTreeMap::new(),
            roles: BTreeMap::new(),
            takeovers: 0,
        }
    }

    /// The device that is controlled here.
    pub fn device_id(&self) -> u64 {
        self.device_id
    }

    /// A `MasterArbitrationUpdate` came on a stream. If it is refused nothing has changed; the caller ends
    /// the stream with the error and calls [`close`](Self::close).
    pub fn update(&mut self, stream: StreamId, candidacy: Candidacy) -> Result<Outcome, Refusal> {
        self.check(stream, &candidacy)?;
        let Candidacy {
            role: name,
            config,
            election_id,
            ..
        } = candidacy;
        let role = self.roles.entry(name.clone()).or_default();
        self.clients.insert(
            stream,
            Client {
                role: name.clone(),
                election_id,
            },
        );
        let rank = election_id.filter(|id| *id > 0);
        if let Some(rank) = rank
            && role.highest.is_none_or(|highest| rank >= highest)
        {
            self.takeovers += 1;
            *role = Role {
                highest: Some(rank),
                config,
                primary: Some(stream),
                awaits: Some(self.takeovers),
            };
            let notices = self.notices(&name, |other| other != stream);
            return Ok(Outcome {
                notices,
                takeover: Some(Takeover {
                    role: name,
                    number: self.takeovers,
                }),
            });
        }
        let stepped_down = role.primary == Some(stream);
        if stepped_down {
            role.primary = None;
            role.awaits = None;
        }
        let notices = self.notices(&name, |other| stepped_down || other == stream);
        Ok(Outcome {
            notices,
            takeover: None,
        })
    }

    /// No write runs any more that began before this takeover: its controller may write from now on, if
    /// nothing has come in between, and is told so.
    pub fn complete(&mut self, takeover: Takeover) -> Vec<Notice> {
        let Some(role) = self.roles.get_mut(&takeover.role) else {
            return Vec::new();
        };
        if role.awaits != Some(takeover.number) {
            return Vec::new();
        }
        role.awaits = None;
        let primary = role.primary;
        self.notices(&takeover.role, |stream| Some(stream) == primary)
    }

    /// A stream ended, for whatever reason.
    pub fn close(&mut self, stream: StreamId) -> Vec<Notice> {
        let Some(client) = self.clients.remove(&stream) else {
            return Vec::new();
        };
        match self.roles.get_mut(&client.role) {
            Some(role) if role.primary == Some(stream) => {
                role.primary = None;
                role.awaits = None;
                self.notices(&client.role, |_| true)
            }
            _ => Vec::new(),
        }
    }

    /// Whether a write with these three may be made now (12, "Write RPC"; checked in this order).
    pub fn may_write(
        &self,
        device_id: u64,
        role: &str,
        election_id: Option<u128>,
    ) -> Result<(), WriteRefusal> {
        if device_id != self.device_id {
            return Err(WriteRefusal::NoSuchDevice {
                asked: device_id,
                here: self.device_id,
            });
        }
        let known = self.roles.get(role);
        if known.is_none() && !role.is_empty() {
            return Err(WriteRefusal::NoSuchRole(role.to_owned()));
        }
        let primary = known.filter(|role| role.primary.is_some() && role.awaits.is_none());
        let highest = primary.and_then(|role| role.highest);
        if highest.is_some() && highest == election_id {
            return Ok(());
        }
        Err(WriteRefusal::NotPrimary {
            role: role.to_owned(),
            highest,
        })
    }

    /// Whether packets and acknowledgements of this stream are taken: it is its role's primary.
    pub fn is_primary(&self, stream: StreamId) -> bool {
        self.clients
            .get(&stream)
            .and_then(|client| self.roles.get(&client.role))
            .is_some_and(|role| role.primary == Some(stream) && role.awaits.is_none())
    }

    /// The primaries of all roles, who get packets and notifications.
    pub fn primaries(&self) -> impl Iterator<Item = StreamId> {
        self.roles
            .values()
            .filter(|role| role.awaits.is_none())
            .filter_map(|role| role.primary)
    }

    fn check(&self, stream: StreamId, candidacy: &Candidacy) -> Result<(), Refusal> {
        let known = self.clients.get(&stream);
        let (asked, here) = (candidacy.device_id, self.device_id);
        if asked != here {
            return Err(match known {
                None => Refusal::NoSuchDevice { asked, here },
                Some(_) => Refusal::DeviceChanged { asked, here },
            });
        }
        if let Some(client) = known
            && client.role != candidacy.role
        {
            return Err(Refusal::RoleChanged {
                asked: candidacy.role.clone(),
                here: client.role.clone(),
            });
        }
        let mut others = 0;
        for (other, client) in &self.clients {
            if *other == stream || client.role != candidacy.role {
                continue;
            }
            others += 1;
            if let Some(id) = candidacy.election_id
                && client.election_id == Some(id)
            {
                return Err(Refusal::ElectionIdTaken(id));
            }
        }
        if others >= self.limits.streams_per_role {
            return Err(Refusal::TooManyStreams(others));
        }
        if !self.roles.contains_key(&candidacy.role) && self.roles.len() >= self.limits.roles {
            return Err(Refusal::TooManyRoles(self.roles.len()));
        }
        Ok(())
    }

    /// How things stand, for those controllers of a role.
    fn notices(&self, name: &str, whom: impl Fn(StreamId) -> bool) -> Vec<Notice> {
        let Some(role) = self.roles.get(name) else {
            return Vec::new();
        };
        let notice = |stream: &StreamId| Notice {
            stream: *stream,
            role: name.to_owned(),
            config: role.config.clone(),
            election_id: role.highest,
            standing: match role.primary {
                Some(primary) if primary == *stream => Standing::Primary,
                Some(_) => Standing::Backup,
                None => Standing::Leaderless,
            },
        };
        let of_role = self.clients.iter().filter(|(_, client)| client.role == name);
        of_role
            .map(|(stream, _)| stream)
            .filter(|stream| whom(**stream))
            .map(notice)
            .collect()
    }
}
