//! What a data plane is configured with before it starts, and what of it may change while it runs.

use std::net::{IpAddr, Ipv6Addr};

use linewarden_evidence::inband::Form;
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::ProverId;
use linewarden_protocol::commit;
use linewarden_protocol::frame::{Mac, header};
use linewarden_protocol::gateway::ControlProtocol;
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::sources::{DeviceSources, OwnAddress, PREFIXES_MAX, Prefix, REFUSED_MAX};

use crate::p4dra;
use crate::store::Geometry;
use crate::store::provers::ProverGeometry;

/// The gate (LAP/1 1.4.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Only authenticates; other traffic is none of its business.
    Off,
    /// Lets traffic of live BOUND sessions through, and the list of what always passes.
    Open,
    /// Lets only sealed datagrams through, both ways, and the list of what always passes.
    Sealed,
}

/// Which of the papers' profiles; insecure, for measurement and interoperation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicProfile {
    /// One CRP a time, in order.
    Iot,
    /// Two CRPs a time, picked at random.
    Uav,
}

/// The classic profile and its CRPs, which are the same size for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classic {
    /// Which.
    pub profile: ClassicProfile,
    /// UDP port; exactly this one.
    pub port: u16,
    /// Response size, bytes: 8, 16 or 32.
    pub response_bytes: usize,
    /// By identifier (from 1): its CRPs, all of one number.
    pub crps: Vec<Vec<(u32, Vec<u8>)>>,
    /// Seeds the random numbers of the profile.
    pub seed: u64,
}

/// A prover of `p4dra-classic`.
#[derive(Clone, Debug)]
pub struct P4draProver {
    /// d.
    pub id: ProverId,
    /// k.
    pub key: AttestationKey,
    /// What it should run.
    pub h: ConfigurationHash,
}

impl PartialEq for P4draProver {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.h) == (other.id, other.h) && self.key.as_bytes() == other.key.as_bytes()
    }
}

impl Eq for P4draProver {}

/// `p4dra-classic` (LAP/1 3.1); insecure, for comparison and interoperation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4dra {
    /// Ethernet type; 0x1234 in the published tools.
    pub ether_type: u16,
    /// Where it is told who is ok.
    pub controller: Mac,
    /// Interfaces, by number, that `host` takes frames from; `xdp` takes them from where it is attached.
    pub interfaces: Vec<u32>,
    /// Who is known.
    pub provers: Vec<P4draProver>,
}

/// A data plane's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This gateway.
    pub gateway_id: GatewayId,
    /// Lease of a session, seconds; not 0.
    pub lease_s: u32,
    /// UDP port of LAP/1.
    pub lap_port: u16,
    /// The gateway's own addresses, at most four of each family.
    pub local: Vec<IpAddr>,
    /// Where devices are: from other addresses no REQUEST and no RESPONSE is taken (LAP/1 1.4.13). At most
    /// [`PREFIXES_MAX`].
    pub device_prefixes: Vec<Prefix>,
    /// The prefixes are subnets of the machine's interfaces, and change with these; evidence leaves them out.
    pub follows_interfaces: bool,
    /// Further addresses of the gateway's machine, which no device has either.
    pub other_addresses: Vec<OwnAddress>,
    /// `xdp` only: frames may come in fragments, as drivers deliver those of a large MTU. Not at a sealed gate and not with
    /// `in_packets`, which need the whole packet in one piece.
    pub fragments: bool,
    /// The gate.
    pub gate: Gate,
    /// Control protocols of links that pass the gate without a session, each once; none that another one's addresses belong to.
    pub always_pass: Vec<ControlProtocol>,
    /// DHCP servers that clients may send to past the gate beside broadcast and the link's group, at most four of each family. If there
    /// are any of IPv4, no other one's messages pass a sealed gate to devices.
    pub dhcp_servers: Vec<IpAddr>,
    /// NAKs a second and CPU.
    pub nak_per_s: u32,
    /// Events of wrong tags and wrong PROOFs a second and CPU; of PROOFs that nobody follows (`xdp`) as many again.
    pub alarm_per_s: u32,
    /// Messages of unknown devices that go to the slow path, a second and CPU; 0: none, there is no slow path.
    pub miss_per_s: u32,
    /// An event when fewer rows than this are left beside the current one; below `ring`, 0 for none.
    pub low_rows: u32,
    /// An event, too, when the mark leaves no more rows than this to be spent; at most 13.
    pub low_credit: u32,
    /// Sizes.
    pub geometry: Geometry,
    /// Provers that fit (LAP/1 3.2); 0: PROOFs are not served.
    pub provers: u32,
    /// Off when `None`.
    pub classic: Option<Classic>,
    /// Off when `None`.
    pub p4dra: Option<P4dra>,
    /// The evidence that IPv6 packets carry which pass the gate towards services; none when `None`. Of `xdp`, with a gate.
    pub in_packets: Option<Form>,
}

/// What may change while a data plane runs; fields as in [`Config`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "documented once, in `Config`")]
pub struct Live {
    /// Of `device_prefixes`, `local` and `other_addresses`.
    pub sources: DeviceSources,
    pub lease_s: u32,
    pub low_rows: u32,
    pub low_credit: u32,
    pub nak_per_s: u32,
    pub alarm_per_s: u32,
    pub miss_per_s: u32,
    /// Interfaces that opened datagrams may leave by past the network stack, by number; of a sealed gate only.
    pub forward_to: Vec<u32>,
}

/// What is wrong with a [`Config`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field's value cannot be used.
    #[error("{field} = {value}: {hint}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        hint: &'static str,
    },
    /// The backend lacks what the configuration asks for.
    #[error("the {backend} data plane has no {what}; use the xdp data plane for it")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// What is asked for.
        what: &'static str,
    },
}

/// A host's address, or the group of all DHCPv6 servers of a site (RFC 8415 7.1).
fn may_be_dhcp_server(ip: IpAddr) -> bool {
    let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    ip == group || !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || is_broadcast)
}

/// 128 MiB of memory, and up to four times that.
const P4DRA_PROVERS_MAX: usize = 1 << 20;

/// Most addresses of one family.
pub const LOCAL_MAX: usize = 4;

/// Why data planes have no room for these sources. Without a prefix no device is admitted, as before an interface has its address.
#[must_use]
pub fn sources_problems(sources: &DeviceSources) -> Vec<ConfigError> {
    let mut problems = Vec::new();
    let mut refuse_if = |wrong, value, hint| {
        if wrong {
            let field = "device_prefixes";
            problems.push(ConfigError::Field { field, value, hint });
        }
    };
    let prefixes = sources.prefixes().len();
    refuse_if(
        prefixes > PREFIXES_MAX,
        format!("{prefixes} prefixes"),
        "at most 16; name wider prefixes",
    );
    for v4 in [true, false] {
        let of_family = sources.refused().iter().filter(|ip| ip.is_ipv4() == v4);
        let count = of_family.count();
        refuse_if(
            count > REFUSED_MAX,
            format!("{count} addresses of this machine lie inside"),
            "at most 64 of a family; name narrower prefixes",
        );
    }
    problems
}

impl Config {
    /// What of it may change, without forwarding.
    #[must_use]
    pub fn live(&self) -> Live {
        Live {
            sources: self.sources(),
            lease_s: self.lease_s,
            low_rows: self.low_rows,
            low_credit: self.low_credit,
            nak_per_s: self.nak_per_s,
            alarm_per_s: self.alarm_per_s,
            miss_per_s: self.miss_per_s,
            forward_to: Vec::new(),
        }
    }

    /// From where messages are taken.
    #[must_use]
    pub fn sources(&self) -> DeviceSources {
        let sources = DeviceSources::new(&self.device_prefixes, &self.local, &self.other_addresses);
        match self.follows_interfaces {
            true => sources.following_interfaces(),
            false => sources,
        }
    }

    /// Sizes of the provers' memory; of at least one, for no array is empty.
    #[must_use]
    pub fn prover_geometry(&self) -> ProverGeometry {
        ProverGeometry {
            slots: self.provers.max(1),
            hash_seed: self.geometry.hash_seed,
        }
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// The first field that cannot be used.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// All fields that cannot be used.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        let mut refuse_if = |wrong, field, value: String, hint| {
            if wrong {
                problems.push(ConfigError::Field { field, value, hint });
            }
        };
        let Geometry { slots, ring, .. } = self.geometry;
        let of_family = |v4| self.local.iter().filter(|ip| ip.is_ipv4() == v4).count();
        refuse_if(
            self.lease_s == 0,
            "lease_s",
            "0".into(),
            "a session must last at least a second",
        );
        refuse_if(
            self.lap_port == 0,
            "lap_port",
            "0".into(),
            "name a UDP port; LAP/1's is 20550",
        );
        for (name, count) in [
            ("local (IPv4)", of_family(true)),
            ("local (IPv6)", of_family(false)),
        ] {
            refuse_if(
                count > LOCAL_MAX,
                name,
                count.to_string(),
                "at most 4 addresses of a family",
            );
        }
        refuse_if(
            self.local.is_empty(),
            "local",
            "[]".into(),
            "name the gateway's own addresses",
        );
        refuse_if(
            self.fragments && (self.gate == Gate::Sealed || self.in_packets.is_some()),
            "fragments",
            "true".into(),
            "a sealed gate, and evidence in packets, need the whole packet in one piece",
        );
        let slots_fit = (1..=1 << 28).contains(&slots);
        refuse_if(
            !slots_fit,
            "slots",
            slots.to_string(),
            "from 1 to 268435456 devices",
        );
        // What does not fit because of the slots is told of them.
        refuse_if(
            slots_fit && (ring == 0 || self.geometry.row_count().is_none()),
            "ring",
            ring.to_string(),
            "at least 1, and slots × ring below 2^32",
        );
        refuse_if(
            ring > 0 && self.low_rows >= ring,
            "low_rows",
            self.low_rows.to_string(),
            "less than `ring`, or every RESPONSE reports low rows",
        );
        refuse_if(
            self.provers > 1 << 28,
            "provers",
            self.provers.to_string(),
            "at most 268435456",
        );
        refuse_if(
            self.low_credit >= commit::CREDIT_MAX,
            "low_credit",
            self.low_credit.to_string(),
            "less than the 14 that a line holds",
        );
        refuse_if(
            self.in_packets.is_some() && self.gate == Gate::Off,
            "in_packets",
            "some".into(),
            "what passes without a gate is none of the gateway's business: set one",
        );
        problems.extend(sources_problems(&self.sources()));
        problems.extend(self.gate_problems());
        problems.extend(self.classic_problem());
        problems.extend(self.p4dra_problem());
        problems
    }

    /// Of what passes the gate without a session.
    fn gate_problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        let mut refuse = |field, value: String, hint| {
            problems.push(ConfigError::Field { field, value, hint });
        };
        let servers = &self.dhcp_servers;
        for v4 in [true, false] {
            let count = servers.iter().filter(|ip| ip.is_ipv4() == v4).count();
            if count > LOCAL_MAX {
                refuse(
                    "dhcp_servers",
                    count.to_string(),
                    "at most 4 addresses of a family",
                );
            }
        }
        if let Some(wrong) = servers.iter().find(|ip| !may_be_dhcp_server(**ip)) {
            let hint = "the address of one server, or ff05::1:3 for all of the site";
            refuse("dhcp_servers", wrong.to_string(), hint);
        }
        if self.gate == Gate::Off && !(servers.is_empty() && self.always_pass.is_empty()) {
            let field = match servers.is_empty() {
                true => "always_pass",
                false => "dhcp_servers",
            };
            refuse(
                field,
                "some".into(),
                "everything passes without a gate: set one, or leave it out",
            );
        }
        problems
    }

    fn p4dra_problem(&self) -> Option<ConfigError> {
        let p4dra = self.p4dra.as_ref()?;
        let field = |field, value: String, hint| Some(ConfigError::Field { field, value, hint });
        let taken = [
            header::ETHER_IPV4,
            header::ETHER_ARP,
            header::ETHER_VLAN,
            header::ETHER_QINQ,
            header::ETHER_IPV6,
        ];
        if p4dra.ether_type < header::ETHER_TYPE_LEAST || taken.contains(&p4dra.ether_type) {
            let value = format!("{:#06x}", p4dra.ether_type);
            return field("p4dra.ether_type", value, "a type of its own, 0x0600 or above");
        }
        let [first, ..] = p4dra.controller;
        if first & 1 == 1 || p4dra.controller == [0; 6] {
            let value = format!("{:02x?}", p4dra.controller);
            return field("p4dra.controller", value, "the MAC address of one interface");
        }
        let mut ids: Vec<ProverId> = p4dra.provers.iter().map(|prover| prover.id).collect();
        ids.sort_unstable();
        if let Some([twice, _]) = ids.array_windows().find(|[a, b]| a == b) {
            return field("p4dra.provers", twice.to_string(), "each prover once");
        }
        if ids.len() > P4DRA_PROVERS_MAX || p4dra::table(p4dra, self.geometry.hash_seed).is_none() {
            return field("p4dra.provers", ids.len().to_string(), "at most 1048576");
        }
        None
    }

    fn classic_problem(&self) -> Option<ConfigError> {
        let classic = self.classic.as_ref()?;
        let field = |field, value: String, hint| Some(ConfigError::Field { field, value, hint });
        if classic.port == 0 || classic.port == self.lap_port {
            return field("classic.port", classic.port.to_string(), "a UDP port of its own");
        }
        if ![8, 16, 32].contains(&classic.response_bytes) {
            return field(
                "classic.response_bytes",
                classic.response_bytes.to_string(),
                "8, 16 or 32",
            );
        }
        let rows = classic.crps.first().map_or(0, Vec::len);
        if rows < 2 || classic.crps.iter().any(|crps| crps.len() != rows) {
            return field(
                "classic.crps",
                rows.to_string(),
                "at least 2, and as many for every identifier",
            );
        }
        let fits = |crp: &(u32, Vec<u8>)| crp.1.len() == classic.response_bytes;
        if !classic.crps.iter().flatten().all(fits) {
            return field(
                "classic.crps",
                "a response".into(),
                "of response_bytes bytes each",
            );
        }
        None
    }
}
