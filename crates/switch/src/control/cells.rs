//! Writing and reading counters, meters and registers.

use std::ops::Range;

use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::entity::{CounterData, Entity, MeterConfig};
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::ids as named;

use super::reading::Reading;
use super::writing::{Effect, Writing, Written, bound};
use crate::meter::{self, Meter, RATES_MAX};

/// Gives a meter its rates and full buckets.
pub(super) fn set_rates(meter: &mut Meter, rate_count: u32, config: &MeterConfig) -> Written {
    if config.excess_burst != 0 {
        return Err(EntityError::unimplemented(
            "meters have two rates here and no excess burst: leave eburst at 0",
        ));
    }
    let signed = |value: u64, name: &str| {
        i64::try_from(value).map_err(|_| EntityError::out_of_range(format!("{name} is {value}")))
    };
    let wanted = meter::MeterConfig {
        cir: signed(config.committed_rate, "cir")?,
        cburst: signed(config.committed_burst, "cburst")?,
        pir: signed(config.peak_rate, "pir")?,
        pburst: signed(config.peak_burst, "pburst")?,
    };
    let wrong = |error: meter::MeterError| EntityError::invalid(error.to_string());
    let rates = wanted.rates().map_err(wrong)?;
    let count = (rate_count as usize).min(RATES_MAX);
    let rates = rates.get(..count).unwrap_or_default();
    meter.set_rates(count, rates).map_err(wrong)
}

/// The rates of a meter; none of one that is always green.
pub(super) fn rates(meter: &Meter) -> Option<MeterConfig> {
    let mut rates = meter.rates();
    let committed = rates.next()?;
    let peak = rates.next().unwrap_or(committed);
    let config = meter::MeterConfig::from_rates([committed, peak]);
    Some(MeterConfig {
        committed_rate: config.cir.cast_unsigned(),
        committed_burst: config.cburst.cast_unsigned(),
        peak_rate: config.pir.cast_unsigned(),
        peak_burst: config.pburst.cast_unsigned(),
        excess_burst: 0,
    })
}

/// One cell of so many, or all.
fn cells(index: Option<u64>, size: usize) -> Result<Range<u64>, EntityError> {
    let size = size as u64;
    match index {
        None => Ok(0..size),
        Some(index) if index < size => Ok(index..index + 1),
        Some(index) => Err(EntityError::out_of_range(format!(
            "index {index}; there are {size} cells"
        ))),
    }
}

impl Writing<'_, '_> {
    pub(super) fn counter(
        &mut self,
        id: named::CounterId,
        index: Option<u64>,
        data: Option<CounterData>,
    ) -> Written {
        let id = bound(self.binding.counters.get(&id).copied())?;
        let cells = cells(index, self.externs.counters(id))?;
        if let Some(data) = data {
            self.effects
                .extend(cells.map(|index| Effect::Counter(id, index, (data.packets, data.bytes))));
        }
        Ok(())
    }

    pub(super) fn meter(
        &mut self,
        id: named::MeterId,
        index: Option<u64>,
        config: Option<MeterConfig>,
        reset_counters: bool,
    ) -> Written {
        if reset_counters {
            return Err(no_marks());
        }
        let id = bound(self.binding.meters.get(&id).copied())?;
        let meter = self.configured(id, config.as_ref())?;
        let cells = cells(index, self.externs.meters(id))?;
        self.effects
            .extend(cells.map(|index| Effect::Meter(id, index, meter)));
        Ok(())
    }

    pub(super) fn register(&mut self, id: named::RegisterId, index: Option<u64>, data: &Data) -> Written {
        let (id, shape) = bound(self.binding.registers.get(&id))?;
        let value = shape.to_number(data)?;
        let size = self.externs.registers(*id).map_or(0, |array| array.len());
        let cells = cells(index, size)?;
        self.effects
            .extend(cells.map(|index| Effect::Register(*id, index, value.clone())));
        Ok(())
    }
}

fn no_marks() -> EntityError {
    EntityError::unimplemented("meters do not count what they mark here: leave counter_data out")
}

impl Reading<'_> {
    pub(super) fn counters(
        &self,
        id: named::CounterId,
        index: Option<u64>,
        found: &mut dyn FnMut(Entity),
    ) -> Written {
        let known = bound(self.binding.counters.get(&id).copied())?;
        for index in cells(index, self.externs.counters(known))? {
            let (packets, bytes) = self
                .externs
                .counter(known, index)
                .map_or((0, 0), crate::externs::Counter::get);
            found(Entity::Counter {
                id,
                index,
                data: CounterData { bytes, packets },
            });
        }
        Ok(())
    }

    pub(super) fn meters(
        &self,
        id: named::MeterId,
        index: Option<u64>,
        with_marks: bool,
        found: &mut dyn FnMut(Entity),
    ) -> Written {
        if with_marks {
            return Err(no_marks());
        }
        let known = bound(self.binding.meters.get(&id).copied())?;
        for index in cells(index, self.externs.meters(known))? {
            let config = self.externs.meter(known, index).and_then(|meter| rates(&meter));
            found(Entity::Meter {
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
        id: named::RegisterId,
        index: Option<u64>,
        found: &mut dyn FnMut(Entity),
    ) -> Written {
        let (known, shape) = bound(self.binding.registers.get(&id))?;
        // The array is locked for no longer than it takes to copy it: packets wait for it.
        let values: Vec<_> = {
            let array = bound(self.externs.registers(*known))?;
            let cells = cells(index, array.len())?;
            cells.map(|index| (index, array.get(index))).collect()
        };
        for (index, value) in values {
            let data = shape.of_number(&value.unwrap_or_default());
            found(Entity::Register { id, index, data });
        }
        Ok(())
    }
}
