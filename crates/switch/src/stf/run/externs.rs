//! Commands about counters, registers, meters and the states of entries.

use num_bigint::BigUint;

use super::Runner;
use super::error::{CommandError, CommandResult, fail, number};
use crate::meter::Rate;
use crate::program::ids::{CounterId, MeterId, RegisterId};
use crate::stf::names::resolve_name;
use crate::stf::{CountedUnit, CounterCell, CounterCheck, Number};

impl Runner {
    pub(super) fn counter(&self, test_name: &str) -> CommandResult<CounterId> {
        let counters = &self.program().counters;
        let name = resolve_name(test_name, counters.iter().map(|counter| counter.name.as_str()))?;
        number(counters.iter().position(|counter| counter.name == name)).map(CounterId)
    }

    pub(super) fn register(&self, test_name: &str) -> CommandResult<RegisterId> {
        let registers = &self.program().registers;
        let name = resolve_name(test_name, registers.iter().map(|register| register.name.as_str()))?;
        number(registers.iter().position(|register| register.name == name)).map(RegisterId)
    }

    pub(super) fn meter(&self, test_name: &str) -> CommandResult<MeterId> {
        let meters = &self.program().meters;
        let name = resolve_name(test_name, meters.iter().map(|meter| meter.name.as_str()))?;
        number(meters.iter().position(|meter| meter.name == name)).map(MeterId)
    }

    pub(super) fn check_counter(
        &mut self,
        counter: &str,
        cell: &CounterCell,
        check: Option<&CounterCheck>,
    ) -> CommandResult<()> {
        let (packets, bytes) = match cell {
            CounterCell::Index(index) => {
                let id = self.counter(counter)?;
                let counts = self
                    .switch
                    .externs()
                    .counter(id, *index)
                    .map(crate::externs::Counter::get);
                counts.ok_or_else(|| CommandError::Other(format!("counter {counter} has no cell {index}")))?
            }
            CounterCell::Entry(name) => {
                let state = self.entry_state(name, |state| state.counts())?;
                state.ok_or_else(|| CommandError::Other(format!("entry {name} has no direct counter")))?
            }
        };
        let Some(check) = check else { return Ok(()) };
        let counted = match check.unit {
            CountedUnit::Packets => packets,
            CountedUnit::Bytes => bytes,
        };
        match check.comparison.holds(counted, check.expected) {
            true => Ok(()),
            false => fail(format!(
                "counter {counter} has an unexpected value: {packets} packets, {bytes} bytes"
            )),
        }
    }

    fn entry_state<T>(
        &self,
        name: &str,
        read: impl Fn(&crate::tables::EntryState) -> T,
    ) -> CommandResult<Option<T>> {
        let Some((id, handle)) = self.entries.get(name).copied() else {
            return fail(format!("unknown entry {name}"));
        };
        let forwarding = self.switch.forwarding();
        let table = forwarding.tables().table(id);
        let entry = table.and_then(|table| table.get(handle).ok());
        let Some(entry) = entry else {
            return fail(format!("entry {name} was deleted"));
        };
        Ok(entry.state().map(read))
    }

    pub(super) fn register_write(&mut self, register: &str, index: u64, value: &Number) -> CommandResult<()> {
        let id = self.register(register)?;
        let Some(mut array) = self.switch.externs().registers(id) else {
            return fail(format!("unknown register {register}"));
        };
        let value = BigUint::from_bytes_be(&value.to_bytes(array.bits())?);
        match array.set(index, &value) {
            true => Ok(()),
            false => fail(format!("register {register} has no cell {index}")),
        }
    }

    pub(super) fn set_rates(&mut self, meter: &str, index: u64, rates: &[Rate]) -> CommandResult<()> {
        let id = self.meter(meter)?;
        let count = self
            .program()
            .meters
            .get(id.index())
            .map_or(0, |array| array.rates as usize);
        let Some(mut cell) = self.switch.externs().meter(id, index) else {
            return fail(format!("meter {meter} has no cell {index}"));
        };
        cell.set_rates(count, rates)?;
        Ok(())
    }

    pub(super) fn idle_timeout(&mut self, entry: &str, timeout_us: u64) -> CommandResult<()> {
        let now_ms = self.now_us / 1000;
        let result = self.entry_state(entry, |state| state.set_timeout(now_ms, timeout_us / 1000))?;
        result.ok_or_else(|| CommandError::Other(format!("table of entry {entry} has no idle timeouts")))
    }

    pub(super) fn expect_idle(&mut self, entry: &str, expected: bool) -> CommandResult<()> {
        let now_ms = self.now_us / 1000;
        match self.entry_state(entry, |state| state.is_idle(now_ms))? {
            Some(idle) if idle == expected => Ok(()),
            Some(true) => fail(format!("entry {entry} is idle, expected used")),
            Some(false) => fail(format!("entry {entry} is used, expected idle")),
            None => fail(format!("table of entry {entry} has no idle timeouts")),
        }
    }

    pub(super) fn entry_rates(&mut self, entry: &str, rates: &[Rate]) -> CommandResult<()> {
        let Some((table, _)) = self.entries.get(entry) else {
            return fail(format!("unknown entry {entry}"));
        };
        let table = self.program().tables.get(table.0 as usize);
        let meter = table.and_then(|table| table.direct_meter);
        let meter = meter.and_then(|(meter, _)| self.program().meters.get(meter.index()));
        let Some(count) = meter.map(|meter| meter.rates as usize) else {
            return fail(format!("table of entry {entry} has no direct meter"));
        };
        let result = self.entry_state(entry, |state| state.meter(|meter| meter.set_rates(count, rates)))?;
        match result {
            Some(result) => Ok(result?),
            None => fail(format!("entry {entry} has no direct meter")),
        }
    }

    pub(super) fn expect_register(
        &mut self,
        register: &str,
        index: u64,
        value: &Number,
    ) -> CommandResult<()> {
        let id = self.register(register)?;
        let actual = self
            .switch
            .externs()
            .registers(id)
            .map(|array| (array.bits(), array.get(index)));
        let Some((bits, Some(actual))) = actual else {
            return fail(format!("register {register} has no cell {index}"));
        };
        match actual == BigUint::from_bytes_be(&value.to_bytes(bits)?) {
            true => Ok(()),
            false => fail(format!("register {register} holds {actual:#x}")),
        }
    }
}
