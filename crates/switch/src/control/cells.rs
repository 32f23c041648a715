//! Writes and reads of counters, meters and registers.

use std::ops::Range;

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::{CounterData, Entity, MeterConfig};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as p4rt_ids;

use super::meter_rates::rates;
use super::read::StateReader;
use super::write::{BatchWriter, CellWrite, UpdateResult, require_bound};

/// Returns the range of the cell with this index; without an index, the range of all cells.
fn cell_range(index: Option<u64>, size: usize) -> Result<Range<u64>, EntityError> {
    let size = size as u64;
    match index {
        None => Ok(0..size),
        Some(index) if index < size => Ok(index..index + 1),
        Some(index) => Err(EntityError::out_of_range(format!(
            "index {index} is out of range: the array has {size} cells"
        ))),
    }
}

impl BatchWriter<'_, '_> {
    pub(super) fn counter(
        &mut self,
        id: p4rt_ids::CounterId,
        index: Option<u64>,
        data: Option<CounterData>,
    ) -> UpdateResult {
        let id = require_bound(self.binding.counters.get(&id).copied())?;
        let cells = cell_range(index, self.externs.counter_count(id))?;
        if let Some(data) = data {
            self.cell_writes
                .extend(cells.map(|index| CellWrite::Counter(id, index, (data.packets, data.bytes))));
        }
        Ok(())
    }

    pub(super) fn meter(
        &mut self,
        id: p4rt_ids::MeterId,
        index: Option<u64>,
        config: Option<MeterConfig>,
        reset_counters: bool,
    ) -> UpdateResult {
        if reset_counters {
            return Err(meter_counters_unsupported());
        }
        let id = require_bound(self.binding.meters.get(&id).copied())?;
        let meter = self.configured_meter(id, config.as_ref())?;
        let cells = cell_range(index, self.externs.meter_count(id))?;
        self.cell_writes
            .extend(cells.map(|index| CellWrite::Meter(id, index, meter)));
        Ok(())
    }

    pub(super) fn register(
        &mut self,
        id: p4rt_ids::RegisterId,
        index: Option<u64>,
        data: &Data,
    ) -> UpdateResult {
        let (id, layout) = require_bound(self.binding.registers.get(&id))?;
        let value = layout.to_number(data)?;
        let size = self.externs.registers(*id).map_or(0, |array| array.len());
        let cells = cell_range(index, size)?;
        self.cell_writes
            .extend(cells.map(|index| CellWrite::Register(*id, index, value.clone())));
        Ok(())
    }
}

fn meter_counters_unsupported() -> EntityError {
    EntityError::unimplemented("meter counters are not supported: omit counter_data")
}

impl StateReader<'_> {
    pub(super) fn counters(
        &self,
        id: p4rt_ids::CounterId,
        index: Option<u64>,
        emit: &mut dyn FnMut(Entity),
    ) -> UpdateResult {
        let program_id = require_bound(self.binding.counters.get(&id).copied())?;
        for index in cell_range(index, self.externs.counter_count(program_id))? {
            let (packets, bytes) = self
                .externs
                .counter(program_id, index)
                .map_or((0, 0), crate::externs::Counter::get);
            emit(Entity::Counter {
                id,
                index,
                data: CounterData { bytes, packets },
            });
        }
        Ok(())
    }

    pub(super) fn meters(
        &self,
        id: p4rt_ids::MeterId,
        index: Option<u64>,
        with_counters: bool,
        emit: &mut dyn FnMut(Entity),
    ) -> UpdateResult {
        if with_counters {
            return Err(meter_counters_unsupported());
        }
        let program_id = require_bound(self.binding.meters.get(&id).copied())?;
        for index in cell_range(index, self.externs.meter_count(program_id))? {
            let config = self
                .externs
                .meter(program_id, index)
                .and_then(|meter| rates(&meter));
            emit(Entity::Meter {
                id,
                index,
                config,
                counters: None,
            });
        }
        Ok(())
    }

    pub(super) fn registers(
        &self,
        id: p4rt_ids::RegisterId,
        index: Option<u64>,
        emit: &mut dyn FnMut(Entity),
    ) -> UpdateResult {
        let (program_id, layout) = require_bound(self.binding.registers.get(&id))?;
        // Packet processing waits for this lock, so the lock is released after the array is copied.
        let values: Vec<_> = {
            let array = require_bound(self.externs.registers(*program_id))?;
            let cells = cell_range(index, array.len())?;
            cells.map(|index| (index, array.get(index))).collect()
        };
        for (index, value) in values {
            let data = layout.value_of(&value.unwrap_or_default());
            emit(Entity::Register { id, index, data });
        }
        Ok(())
    }
}
