//! Counters, meters and registers (9.3, 9.4, 9.6).

use super::{Translator, signed, unknown_id, unsigned};
use crate::data::Data;
use crate::entity::{CounterData, Entity, EntryRef, MeterConfig, MeterCounters, Update};
use crate::error::EntityError;
use crate::ids::{CounterId, MeterId, RegisterId};
use crate::p4info::{Counter, Meter, MeterType, Register, Table};
use crate::proto::v1;
use v1::entity::Entity as Message;

impl<'a> Translator<'a> {
    pub(super) fn counter(&self, id: u32) -> Result<&'a Counter, EntityError> {
        self.info
            .counters()
            .get(CounterId(id))
            .ok_or_else(|| unknown_id("counter", id))
    }

    pub(super) fn meter(&self, id: u32) -> Result<&'a Meter, EntityError> {
        self.info
            .meters()
            .get(MeterId(id))
            .ok_or_else(|| unknown_id("meter", id))
    }

    pub(super) fn register(&self, id: u32) -> Result<&'a Register, EntityError> {
        self.info
            .registers()
            .get(RegisterId(id))
            .ok_or_else(|| unknown_id("register", id))
    }

    pub(super) fn decode_counter_update(&self, message: &v1::CounterEntry) -> Result<Update, EntityError> {
        let counter = self.counter(message.counter_id)?;
        let at_counter = |error: EntityError| error.at(format!("counter \"{}\"", counter.name));
        let index = decode_index(message.index, counter.size).map_err(at_counter)?;
        let data = message
            .data
            .as_ref()
            .map(CounterData::try_from)
            .transpose()
            .map_err(at_counter)?;
        Ok(Update::Counter {
            id: counter.id,
            index,
            data,
        })
    }

    pub(super) fn decode_counter(&self, message: &v1::CounterEntry) -> Result<Entity, EntityError> {
        let counter = self.counter(message.counter_id)?;
        let index = require_index(message.index, counter.size)?;
        let data = message
            .data
            .as_ref()
            .map(CounterData::try_from)
            .transpose()?
            .unwrap_or_default();
        Ok(Entity::Counter {
            id: counter.id,
            index,
            data,
        })
    }

    pub(super) fn decode_meter_update(&self, message: &v1::MeterEntry) -> Result<Update, EntityError> {
        let meter = self.meter(message.meter_id)?;
        let at_meter = |error: EntityError| error.at(format!("meter \"{}\"", meter.name));
        let index = decode_index(message.index, meter.size).map_err(at_meter)?;
        let config = message
            .config
            .as_ref()
            .map(|config| decode_meter_config(meter.kind, config))
            .transpose();
        let reset_counters = decode_reset(message.counter_data.as_ref()).map_err(at_meter)?;
        Ok(Update::Meter {
            id: meter.id,
            index,
            config: config.map_err(at_meter)?,
            reset_counters,
        })
    }

    pub(super) fn decode_meter(&self, message: &v1::MeterEntry) -> Result<Entity, EntityError> {
        let meter = self.meter(message.meter_id)?;
        let index = require_index(message.index, meter.size)?;
        let config = message
            .config
            .as_ref()
            .map(|config| decode_meter_config(meter.kind, config))
            .transpose()?;
        let counters = message.counter_data.as_ref().map(decode_counters).transpose()?;
        Ok(Entity::Meter {
            id: meter.id,
            index,
            config,
            counters,
        })
    }

    pub(super) fn decode_register_update(&self, message: &v1::RegisterEntry) -> Result<Update, EntityError> {
        let register = self.register(message.register_id)?;
        let at_register = |error: EntityError| error.at(format!("register \"{}\"", register.name));
        let index = decode_index(message.index, register.size).map_err(at_register)?;
        let data = message
            .data
            .as_ref()
            .ok_or_else(|| at_register(EntityError::invalid("data is missing")))?;
        let data = Data::decode(&register.data, data).map_err(at_register)?;
        Ok(Update::Register {
            id: register.id,
            index,
            data,
        })
    }

    pub(super) fn decode_register(&self, message: &v1::RegisterEntry) -> Result<Entity, EntityError> {
        let register = self.register(message.register_id)?;
        let index = require_index(message.index, register.size)?;
        let data = message
            .data
            .as_ref()
            .ok_or_else(|| EntityError::invalid("register entry has no data"))?;
        Ok(Entity::Register {
            id: register.id,
            index,
            data: Data::decode(&register.data, data)?,
        })
    }

    pub(super) fn register_message(&self, id: RegisterId, index: Option<u64>, data: &Data) -> Message {
        let encoded = self
            .info
            .registers()
            .get(id)
            .map(|register| data.encode(&register.data));
        Message::RegisterEntry(v1::RegisterEntry {
            register_id: id.0,
            index: index.map(index_message),
            data: encoded,
        })
    }

    pub(super) fn decode_direct_counter_update(
        &self,
        message: &v1::DirectCounterEntry,
    ) -> Result<Update, EntityError> {
        let (table, entry) = self.decode_entry_ref(message.table_entry.as_ref())?;
        require_counter(table)?;
        let data = message.data.as_ref().map(CounterData::try_from).transpose()?;
        Ok(Update::DirectCounter { entry, data })
    }

    pub(super) fn decode_direct_counter(
        &self,
        message: &v1::DirectCounterEntry,
    ) -> Result<Entity, EntityError> {
        let (_, entry) = self.decode_entry_ref(message.table_entry.as_ref())?;
        let data = message
            .data
            .as_ref()
            .map(CounterData::try_from)
            .transpose()?
            .unwrap_or_default();
        Ok(Entity::DirectCounter { entry, data })
    }

    pub(super) fn decode_direct_meter_update(
        &self,
        message: &v1::DirectMeterEntry,
    ) -> Result<Update, EntityError> {
        let (table, entry) = self.decode_entry_ref(message.table_entry.as_ref())?;
        let kind = meter_type(table)?;
        let config = message
            .config
            .as_ref()
            .map(|config| decode_meter_config(kind, config))
            .transpose()?;
        Ok(Update::DirectMeter {
            entry,
            config,
            reset_counters: decode_reset(message.counter_data.as_ref())?,
        })
    }

    pub(super) fn decode_direct_meter(&self, message: &v1::DirectMeterEntry) -> Result<Entity, EntityError> {
        let (table, entry) = self.decode_entry_ref(message.table_entry.as_ref())?;
        let kind = meter_type(table)?;
        let config = message
            .config
            .as_ref()
            .map(|config| decode_meter_config(kind, config))
            .transpose()?;
        let counters = message.counter_data.as_ref().map(decode_counters).transpose()?;
        Ok(Entity::DirectMeter {
            entry,
            config,
            counters,
        })
    }

    /// Decodes the owner of a direct resource: only the identity of the entry is read.
    pub(super) fn decode_entry_ref(
        &self,
        entry: Option<&v1::TableEntry>,
    ) -> Result<(&'a Table, EntryRef), EntityError> {
        let entry = entry.ok_or_else(|| {
            EntityError::invalid("table_entry is missing: it identifies the owner of the direct resource")
        })?;
        let table = self.table(entry.table_id)?;
        if entry.is_default_action {
            return Ok((table, EntryRef::Default(table.id)));
        }
        let key = self
            .decode_key(table, entry)
            .map_err(|error| error.at(format!("table \"{}\"", table.name)))?;
        Ok((table, EntryRef::Entry(key)))
    }

    pub(super) fn entry_ref_message(&self, entry: &EntryRef) -> v1::TableEntry {
        match entry {
            EntryRef::Entry(key) => self.encode_key(key),
            EntryRef::Default(table) => v1::TableEntry {
                table_id: table.0,
                is_default_action: true,
                ..Default::default()
            },
        }
    }

    pub(super) fn direct_counter_message(&self, entry: &EntryRef, data: Option<CounterData>) -> Message {
        let table_entry = Some(self.entry_ref_message(entry));
        Message::DirectCounterEntry(v1::DirectCounterEntry {
            table_entry,
            data: data.map(encode_counter),
        })
    }

    pub(super) fn direct_meter_message(
        &self,
        entry: &EntryRef,
        config: Option<MeterConfig>,
        counters: Option<MeterCounters>,
    ) -> Message {
        Message::DirectMeterEntry(v1::DirectMeterEntry {
            table_entry: Some(self.entry_ref_message(entry)),
            config: config.map(encode_meter_config),
            counter_data: counters.map(encode_counters),
        })
    }
}

pub(super) fn counter_message(id: CounterId, index: Option<u64>, data: Option<CounterData>) -> Message {
    let (index, data) = (index.map(index_message), data.map(encode_counter));
    Message::CounterEntry(v1::CounterEntry {
        counter_id: id.0,
        index,
        data,
    })
}

pub(super) fn meter_message(
    id: MeterId,
    index: Option<u64>,
    config: Option<MeterConfig>,
    counters: Option<MeterCounters>,
) -> Message {
    Message::MeterEntry(v1::MeterEntry {
        meter_id: id.0,
        index: index.map(index_message),
        config: config.map(encode_meter_config),
        counter_data: counters.map(encode_counters),
    })
}

/// Decodes the index of a cell; `None` for all cells.
pub(super) fn decode_index(index: Option<v1::Index>, size: u64) -> Result<Option<u64>, EntityError> {
    let Some(index) = index else { return Ok(None) };
    let index = unsigned(index.index, "index")?;
    if index >= size {
        return Err(EntityError::out_of_range(format!(
            "index {index} is out of range: the array has {size} cells"
        )));
    }
    Ok(Some(index))
}

fn require_index(index: Option<v1::Index>, size: u64) -> Result<u64, EntityError> {
    decode_index(index, size)?.ok_or_else(|| EntityError::invalid("index is missing"))
}

pub(super) fn index_message(index: u64) -> v1::Index {
    v1::Index { index: signed(index) }
}

fn require_counter(table: &Table) -> Result<(), EntityError> {
    let missing = || EntityError::invalid(format!("table \"{}\" has no direct counter", table.name));
    table.counter.as_ref().map(|_| ()).ok_or_else(missing)
}

fn meter_type(table: &Table) -> Result<MeterType, EntityError> {
    let missing = || EntityError::invalid(format!("table \"{}\" has no direct meter", table.name));
    table.meter.as_ref().map(|meter| meter.kind).ok_or_else(missing)
}

fn decode_reset(counters: Option<&v1::MeterCounterData>) -> Result<bool, EntityError> {
    match counters.map(decode_counters).transpose()? {
        Some(counters) if counters != MeterCounters::default() => Err(EntityError::invalid(
            "counter_data can only be reset: all values must be 0",
        )),
        counters => Ok(counters.is_some()),
    }
}

impl TryFrom<&v1::CounterData> for CounterData {
    type Error = EntityError;

    fn try_from(data: &v1::CounterData) -> Result<Self, EntityError> {
        let bytes = unsigned(data.byte_count, "byte_count")?;
        Ok(Self {
            bytes,
            packets: unsigned(data.packet_count, "packet_count")?,
        })
    }
}

pub(super) fn encode_counter(data: CounterData) -> v1::CounterData {
    v1::CounterData {
        byte_count: signed(data.bytes),
        packet_count: signed(data.packets),
    }
}

pub(super) fn decode_counters(counters: &v1::MeterCounterData) -> Result<MeterCounters, EntityError> {
    let decode = |data: &Option<v1::CounterData>| {
        data.as_ref()
            .map(CounterData::try_from)
            .transpose()
            .map(Option::unwrap_or_default)
    };
    Ok(MeterCounters {
        green: decode(&counters.green)?,
        yellow: decode(&counters.yellow)?,
        red: decode(&counters.red)?,
    })
}

pub(super) fn encode_counters(counters: MeterCounters) -> v1::MeterCounterData {
    v1::MeterCounterData {
        green: Some(encode_counter(counters.green)),
        yellow: Some(encode_counter(counters.yellow)),
        red: Some(encode_counter(counters.red)),
    }
}

/// Decodes a configuration that is valid for this meter type.
pub(super) fn decode_meter_config(
    kind: MeterType,
    config: &v1::MeterConfig,
) -> Result<MeterConfig, EntityError> {
    let decoded = MeterConfig {
        committed_rate: unsigned(config.cir, "cir")?,
        committed_burst: unsigned(config.cburst, "cburst")?,
        peak_rate: unsigned(config.pir, "pir")?,
        peak_burst: unsigned(config.pburst, "pburst")?,
        excess_burst: unsigned(config.eburst, "eburst")?,
    };
    let is_single_rate =
        decoded.peak_rate == decoded.committed_rate && decoded.peak_burst == decoded.committed_burst;
    if kind != MeterType::SingleRateThreeColor && decoded.excess_burst != 0 {
        return Err(EntityError::invalid(
            "eburst requires a single-rate three-color meter",
        ));
    }
    if kind != MeterType::TwoRateThreeColor && !is_single_rate {
        return Err(EntityError::invalid(
            "single-rate meter requires pir equal to cir and pburst equal to cburst",
        ));
    }
    Ok(decoded)
}

pub(super) fn encode_meter_config(config: MeterConfig) -> v1::MeterConfig {
    v1::MeterConfig {
        cir: signed(config.committed_rate),
        cburst: signed(config.committed_burst),
        pir: signed(config.peak_rate),
        pburst: signed(config.peak_burst),
        eburst: signed(config.excess_burst),
    }
}
