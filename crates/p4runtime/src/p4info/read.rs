//! Reads and checks a P4Info.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage};

use super::parts::{PreambleFields, action_ref, cells, check_part_id, match_kind, part_error};
use super::types::{Types, width};
use super::*;
use crate::ids::{DirectCounterId, DirectMeterId};
use crate::proto::{DESCRIPTORS, config};
use config::p4_new_type_spec::Representation;
use config::p4_new_type_translation::SdnType;

impl P4Info {
    /// Reads protobuf's binary format.
    pub fn from_binary(bytes: &[u8]) -> Result<Self, P4InfoError> {
        Self::new(config::P4Info::decode(bytes)?)
    }

    /// Reads protobuf's text format, as `p4c --p4runtime-files NAME.txtpb` writes it.
    pub fn from_text(text: &str) -> Result<Self, P4InfoError> {
        static POOL: LazyLock<Result<DescriptorPool, DescriptorError>> =
            LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS));
        let pool = POOL.as_ref().map_err(P4InfoError::Descriptors)?;
        let descriptor = pool
            .get_message_by_name("p4.config.v1.P4Info")
            .ok_or_else(|| P4InfoError::Text("P4Info is missing in the built-in descriptors".to_owned()))?;
        let message = DynamicMessage::parse_text_format(descriptor, text)
            .map_err(|error| P4InfoError::Text(error.to_string()))?;
        Self::new(message.transcode_to().map_err(P4InfoError::Binary)?)
    }

    /// Checks a message and builds the index.
    pub fn new(message: config::P4Info) -> Result<Self, P4InfoError> {
        let no_types = config::P4TypeInfo::default();
        let mut reader = Reader {
            message: &message,
            types: Types::new(message.type_info.as_ref().unwrap_or(&no_types)),
            ids: BTreeSet::new(),
        };
        use ElementKind as Kind;
        let actions = reader.index(
            Kind::Action,
            &message.actions,
            |reader, preamble_fields, action| reader.action(preamble_fields, action),
        )?;
        let profiles = reader.index(
            Kind::ActionProfile,
            &message.action_profiles,
            |_, preamble_fields, profile| preamble_fields.profile(profile),
        )?;
        let direct_counters = reader.index(
            Kind::DirectCounter,
            &message.direct_counters,
            |_, preamble_fields, counter| preamble_fields.direct_counter(counter),
        )?;
        let direct_meters = reader.index(
            Kind::DirectMeter,
            &message.direct_meters,
            |_, preamble_fields, meter| preamble_fields.direct_meter(meter),
        )?;
        let references = TableReferences {
            actions: &actions,
            profiles: &profiles,
            counters: &direct_counters,
            meters: &direct_meters,
        };
        let tables = reader.index(Kind::Table, &message.tables, |reader, preamble_fields, table| {
            reader.table(preamble_fields, table, &references)
        })?;
        references.check_cross_references(&tables)?;
        let counters = reader.index(Kind::Counter, &message.counters, |_, preamble_fields, counter| {
            preamble_fields.counter(counter)
        })?;
        let meters = reader.index(Kind::Meter, &message.meters, |_, preamble_fields, meter| {
            preamble_fields.meter(meter)
        })?;
        let registers = reader.index(
            Kind::Register,
            &message.registers,
            |reader, preamble_fields, register| reader.register(preamble_fields, register),
        )?;
        let digests = reader.index(
            Kind::Digest,
            &message.digests,
            |reader, preamble_fields, digest| reader.digest(preamble_fields, digest),
        )?;
        let value_sets = reader.index(
            Kind::ValueSet,
            &message.value_sets,
            |reader, preamble_fields, set| reader.value_set(preamble_fields, set),
        )?;
        let (packet_in, packet_out) = reader.headers()?;
        Ok(Self {
            tables,
            actions,
            profiles,
            counters,
            meters,
            registers,
            digests,
            value_sets,
            packet_in,
            packet_out,
            message,
        })
    }
}

/// Elements that tables refer to.
struct TableReferences<'a> {
    actions: &'a Index<ActionId, Action>,
    profiles: &'a Index<ProfileId, Profile>,
    counters: &'a Index<DirectCounterId, (DirectCounter, TableId)>,
    meters: &'a Index<DirectMeterId, (DirectMeter, TableId)>,
}

impl TableReferences<'_> {
    fn direct_resources(&self, ids: &[u32]) -> Result<(Option<DirectCounter>, Option<DirectMeter>), Problem> {
        let (mut counter, mut meter) = (None, None);
        for id in ids {
            if let Some((resource, _)) = self.counters.get(DirectCounterId(*id)) {
                if counter.replace(resource.clone()).is_some() {
                    return Err(Problem::DuplicateDirectResource(ElementKind::DirectCounter));
                }
            } else if let Some((resource, _)) = self.meters.get(DirectMeterId(*id)) {
                if meter.replace(resource.clone()).is_some() {
                    return Err(Problem::DuplicateDirectResource(ElementKind::DirectMeter));
                }
            } else {
                return Err(Problem::Dangling {
                    kind: ElementKind::DirectCounter,
                    id: *id,
                });
            }
        }
        Ok((counter, meter))
    }

    /// Checks that a table and its profile or direct resource refer to each other.
    fn check_cross_references(&self, tables: &Index<TableId, Table>) -> Result<(), P4InfoError> {
        let one_sided = |kind, name: &str, id, peer_kind, peer_id| {
            let problem = Problem::OneSided {
                kind: peer_kind,
                id: peer_id,
            };
            Err(P4InfoError::Element {
                kind,
                name: name.to_owned(),
                id,
                problem,
            })
        };
        for table in tables.iter() {
            if let Some(profile) = table.profile.and_then(|id| self.profiles.get(id))
                && !profile.tables.contains(&table.id)
            {
                return one_sided(
                    ElementKind::Table,
                    &table.name,
                    table.id.0,
                    ElementKind::ActionProfile,
                    profile.id.0,
                );
            }
        }
        for profile in self.profiles.iter() {
            for id in &profile.tables {
                if tables
                    .get(*id)
                    .is_none_or(|table| table.profile != Some(profile.id))
                {
                    return one_sided(
                        ElementKind::ActionProfile,
                        &profile.name,
                        profile.id.0,
                        ElementKind::Table,
                        id.0,
                    );
                }
            }
        }
        for (counter, table) in self.counters.iter() {
            let table_counter = tables.get(*table).and_then(|table| table.counter.as_ref());
            if table_counter.is_none_or(|table_counter| table_counter.id != counter.id) {
                return one_sided(
                    ElementKind::DirectCounter,
                    &counter.name,
                    counter.id.0,
                    ElementKind::Table,
                    table.0,
                );
            }
        }
        for (meter, table) in self.meters.iter() {
            let table_meter = tables.get(*table).and_then(|table| table.meter.as_ref());
            if table_meter.is_none_or(|table_meter| table_meter.id != meter.id) {
                return one_sided(
                    ElementKind::DirectMeter,
                    &meter.name,
                    meter.id.0,
                    ElementKind::Table,
                    table.0,
                );
            }
        }
        Ok(())
    }
}

/// Message with a preamble.
trait Element {
    fn preamble(&self) -> Option<&config::Preamble>;
}

macro_rules! elements {
    ($($message:ident),*) => {$(
        impl Element for config::$message {
            fn preamble(&self) -> Option<&config::Preamble> {
                self.preamble.as_ref()
            }
        }
    )*};
}
elements!(
    Table,
    Action,
    ActionProfile,
    Counter,
    DirectCounter,
    Meter,
    DirectMeter,
    Register,
    Digest,
    ValueSet,
    ControllerPacketMetadata
);

struct Reader<'a> {
    message: &'a config::P4Info,
    types: Types<'a>,
    ids: BTreeSet<u32>,
}

impl<'a> Reader<'a> {
    /// Reads all elements of one kind and adds the element's name to errors.
    fn index<M: Element, I: Copy + Ord + From<u32>, T>(
        &mut self,
        kind: ElementKind,
        messages: &'a [M],
        read: impl Fn(&mut Self, PreambleFields, &'a M) -> Result<T, Problem>,
    ) -> Result<Index<I, T>, P4InfoError> {
        let mut index = Index {
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_alias: BTreeMap::new(),
        };
        for message in messages {
            let preamble = message.preamble();
            let at_element = |problem| element_error(kind, preamble, problem);
            let preamble_fields = self.read_preamble(preamble).map_err(at_element)?;
            let (id, name, alias) = (
                I::from(preamble_fields.id),
                preamble_fields.name.clone(),
                preamble_fields.alias.clone(),
            );
            let element = read(self, preamble_fields, message).map_err(at_element)?;
            if index.by_name.insert(name, id).is_some() {
                return Err(at_element(Problem::DuplicateName(kind)));
            }
            if !alias.is_empty() && index.by_alias.insert(alias.clone(), id).is_some() {
                return Err(at_element(Problem::DuplicateAlias { kind, alias }));
            }
            index.by_id.insert(id, element);
        }
        Ok(index)
    }

    fn read_preamble(&mut self, preamble: Option<&config::Preamble>) -> Result<PreambleFields, Problem> {
        let preamble = preamble.ok_or(Problem::NoPreamble)?;
        if preamble.id == 0 {
            return Err(Problem::IdZero);
        }
        if preamble.name.is_empty() {
            return Err(Problem::NoName);
        }
        if !self.ids.insert(preamble.id) {
            return Err(Problem::DuplicateId);
        }
        Ok(PreambleFields {
            id: preamble.id,
            name: preamble.name.clone(),
            alias: preamble.alias.clone(),
        })
    }

    /// Encoding of a value of this width and type. The width of a translated type is already the width at the
    /// controller (8.5.6).
    fn format(&self, bitwidth: i32, type_name: Option<&config::P4NamedType>) -> Result<Format, Problem> {
        let translation = type_name
            .and_then(|named| self.message.type_info.as_ref()?.new_types.get(&named.name))
            .and_then(|spec| match &spec.representation {
                Some(Representation::TranslatedType(translation)) => translation.sdn_type.as_ref(),
                _ => None,
            });
        match (bitwidth, translation) {
            (0, _) | (_, Some(SdnType::SdnString(_))) => Ok(Format::Unwritable),
            (bits, _) => Ok(Format::Bits(width(bits)?)),
        }
    }

    fn action(&self, preamble_fields: PreambleFields, action: &config::Action) -> Result<Action, Problem> {
        let mut seen = BTreeSet::new();
        let params = action
            .params
            .iter()
            .map(|param| {
                check_part_id("parameter", &param.name, param.id, &mut seen)?;
                let format = self
                    .format(param.bitwidth, param.type_name.as_ref())
                    .map_err(part_error("parameter", &param.name))?;
                Ok(Param {
                    id: param.id.into(),
                    name: param.name.clone(),
                    format,
                })
            })
            .collect::<Result<_, Problem>>()?;
        Ok(Action {
            id: preamble_fields.id.into(),
            name: preamble_fields.name,
            alias: preamble_fields.alias,
            params,
        })
    }

    fn fields(&self, fields: &[config::MatchField]) -> Result<Vec<MatchField>, Problem> {
        let mut seen = BTreeSet::new();
        fields
            .iter()
            .map(|field| {
                check_part_id("match field", &field.name, field.id, &mut seen)?;
                let at_field = part_error("match field", &field.name);
                let kind = match_kind(field).map_err(&at_field)?;
                let format = self
                    .format(field.bitwidth, field.type_name.as_ref())
                    .map_err(&at_field)?;
                Ok(MatchField {
                    id: field.id.into(),
                    name: field.name.clone(),
                    format,
                    kind,
                })
            })
            .collect()
    }

    fn table(
        &self,
        preamble_fields: PreambleFields,
        table: &config::Table,
        references: &TableReferences<'_>,
    ) -> Result<Table, Problem> {
        let actions = table
            .action_refs
            .iter()
            .map(|action| action_ref(action, references.actions))
            .collect::<Result<Vec<_>, _>>()?;
        let const_default = Some(table.const_default_action_id)
            .filter(|id| *id != 0)
            .map(ActionId);
        if let Some(default) = const_default
            && !actions
                .iter()
                .any(|(id, scope)| *id == default && scope.allows_default())
        {
            return Err(Problem::ConstDefault(default.0));
        }
        let profile = Some(table.implementation_id).filter(|id| *id != 0).map(ProfileId);
        if let Some(profile) = profile
            && references.profiles.get(profile).is_none()
        {
            return Err(Problem::Dangling {
                kind: ElementKind::ActionProfile,
                id: profile.0,
            });
        }
        let (counter, meter) = references.direct_resources(&table.direct_resource_ids)?;
        Ok(Table {
            id: preamble_fields.id.into(),
            name: preamble_fields.name,
            alias: preamble_fields.alias,
            fields: self.fields(&table.match_fields)?,
            actions,
            const_default,
            profile,
            counter,
            meter,
            size: cells(table.size)?,
            idle_timeout: table.idle_timeout_behavior() == config::table::IdleTimeoutBehavior::NotifyControl,
            is_const: table.is_const_table,
            has_initial_entries: table.has_initial_entries,
        })
    }

    fn register(
        &mut self,
        preamble_fields: PreambleFields,
        register: &'a config::Register,
    ) -> Result<Register, Problem> {
        let data = self.types.resolve(register.type_spec.as_ref())?;
        Ok(Register {
            id: preamble_fields.id.into(),
            name: preamble_fields.name,
            data,
            size: cells(register.size.into())?,
        })
    }

    fn digest(
        &mut self,
        preamble_fields: PreambleFields,
        digest: &'a config::Digest,
    ) -> Result<Digest, Problem> {
        let data = self.types.resolve(digest.type_spec.as_ref())?;
        Ok(Digest {
            id: preamble_fields.id.into(),
            name: preamble_fields.name,
            data,
        })
    }

    fn value_set(
        &self,
        preamble_fields: PreambleFields,
        set: &config::ValueSet,
    ) -> Result<ValueSet, Problem> {
        let fields = self.fields(&set.r#match)?;
        Ok(ValueSet {
            id: preamble_fields.id.into(),
            name: preamble_fields.name,
            fields,
            size: cells(set.size.into())?,
        })
    }

    /// Reads the headers of packet-ins and packet-outs.
    fn headers(&mut self) -> Result<(Option<ControllerHeader>, Option<ControllerHeader>), P4InfoError> {
        let mut headers = (None, None);
        for message in &self.message.controller_packet_metadata {
            let at_header =
                |problem| element_error(ElementKind::ControllerHeader, message.preamble.as_ref(), problem);
            let preamble_fields = self.read_preamble(message.preamble.as_ref()).map_err(at_header)?;
            let header = self.header(message).map_err(at_header)?;
            let entry = match preamble_fields.name.as_str() {
                "packet_in" => &mut headers.0,
                "packet_out" => &mut headers.1,
                _ => return Err(at_header(Problem::HeaderName)),
            };
            if entry.replace(header).is_some() {
                return Err(at_header(Problem::DuplicateName(ElementKind::ControllerHeader)));
            }
        }
        Ok(headers)
    }

    fn header(&self, message: &config::ControllerPacketMetadata) -> Result<ControllerHeader, Problem> {
        let mut seen = BTreeSet::new();
        let fields = message
            .metadata
            .iter()
            .map(|field| {
                check_part_id("metadata", &field.name, field.id, &mut seen)?;
                let format = self
                    .format(field.bitwidth, field.type_name.as_ref())
                    .map_err(part_error("metadata", &field.name))?;
                Ok(MetadataField {
                    id: field.id.into(),
                    name: field.name.clone(),
                    format,
                })
            })
            .collect::<Result<_, Problem>>()?;
        Ok(ControllerHeader { fields })
    }
}

fn element_error(kind: ElementKind, preamble: Option<&config::Preamble>, problem: Problem) -> P4InfoError {
    let (id, name) = preamble
        .map(|preamble| (preamble.id, preamble.name.clone()))
        .unwrap_or_default();
    P4InfoError::Element {
        kind,
        name,
        id,
        problem,
    }
}
