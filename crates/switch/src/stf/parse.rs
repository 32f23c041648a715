//! Parser: one command from one line.

use super::command::{
    ActionCall, AddEntry, Command, Comparison, CountedUnit, CounterCell, CounterCheck, Key, Target,
};
use super::error::StfError;
use super::expected_packet::ExpectedPacket;
use super::lines::Cursor;
use super::numbers::{KeyValue, Number};
use crate::meter::Rate;

const MEMBER: &str = "a member number";
const GROUP: &str = "a group number";
const INDEX: &str = "an index";

/// Parses a line; `None` for an empty line or a comment.
pub(super) fn command(line: &mut Cursor<'_>) -> Result<Option<Command>, StfError> {
    if line.is_at_end() {
        return Ok(None);
    }
    let start = line.position();
    let keyword = line.identifier("a command")?.to_ascii_lowercase();
    let command = match entries_and_packets(&keyword, line)? {
        None => state_commands(&keyword, line)?,
        command => command,
    };
    let command = match command {
        None => extension_commands(&keyword, line)?,
        command => command,
    };
    let Some(command) = command else {
        line.rewind(start);
        return Err(line.fail("a command such as `add`, `packet` or `expect`"));
    };
    line.end()?;
    Ok(Some(command))
}

fn entries_and_packets(keyword: &str, line: &mut Cursor<'_>) -> Result<Option<Command>, StfError> {
    Ok(Some(match keyword {
        "add" => Command::Add(entry(line, |line, name| {
            Ok(Target::Action(action_named(line, name)?))
        })?),
        "setdefault" => Command::SetDefault {
            table: table(line)?,
            action: action(line)?,
        },
        "remove" => {
            let start = line.position();
            if !line.identifier("`all`")?.eq_ignore_ascii_case("all") {
                line.rewind(start);
                return Err(line.fail("`all`"));
            }
            Command::RemoveAll
        }
        "packet" => Command::Packet {
            port: line.port()?,
            bytes: packet(line)?,
        },
        "expect" => Command::Expect {
            port: line.port()?,
            packet: expected_packet(line)?,
        },
        "no_packet" => Command::NoPacket,
        "wait" => Command::Wait,
        _ => return Ok(None),
    }))
}

fn state_commands(keyword: &str, line: &mut Cursor<'_>) -> Result<Option<Command>, StfError> {
    let session = |line: &mut Cursor<'_>| line.integer("a clone session number");
    let counter = |line: &mut Cursor<'_>| line.name("a counter");
    let register = |line: &mut Cursor<'_>| line.name("a register array");
    let meter = |line: &mut Cursor<'_>| line.name("a meter array");
    Ok(Some(match keyword {
        "check_counter" => check_counter(line)?,
        "mirroring_add" => Command::MirroringAdd {
            session: session(line)?,
            port: line.integer("a port")?,
        },
        "mirroring_add_mc" => Command::MirroringAddGroup {
            session: session(line)?,
            group: line.integer(GROUP)?,
        },
        "mirroring_delete" => Command::MirroringDelete {
            session: session(line)?,
        },
        "mirroring_get" => Command::MirroringGet {
            session: session(line)?,
        },
        "mc_mgrp_create" => Command::GroupCreate {
            group: line.integer(GROUP)?,
        },
        "mc_node_create" => Command::NodeCreate {
            rid: line.integer("a replication id")?,
            ports: ports(line)?,
        },
        "mc_node_update" => Command::NodeUpdate {
            node: line.integer("a node number")?,
            ports: ports(line)?,
        },
        "mc_node_associate" => Command::NodeAssociate {
            group: line.integer(GROUP)?,
            node: line.integer("a node number")?,
        },
        "counter_read" => Command::CounterRead {
            counter: counter(line)?,
            index: line.integer(INDEX)?,
        },
        "counter_write" => Command::CounterWrite {
            counter: counter(line)?,
            index: line.integer(INDEX)?,
            packets: line.integer("a number of packets")?,
            bytes: line.integer("a number of bytes")?,
        },
        "register_read" => Command::RegisterRead {
            register: register(line)?,
            index: line.integer(INDEX)?,
        },
        "register_write" => Command::RegisterWrite {
            register: register(line)?,
            index: line.integer(INDEX)?,
            value: plain_number(line)?,
        },
        "register_reset" => Command::RegisterReset {
            register: register(line)?,
        },
        "meter_get_rates" => Command::MeterGetRates {
            meter: meter(line)?,
            index: line.integer(INDEX)?,
        },
        "meter_set_rates" => Command::MeterSetRates {
            meter: meter(line)?,
            index: line.integer(INDEX)?,
            rates: rates(line)?,
        },
        "meter_array_set_rates" => Command::MeterArraySetRates {
            meter: meter(line)?,
            rates: rates(line)?,
        },
        _ => return Ok(None),
    }))
}

fn extension_commands(keyword: &str, line: &mut Cursor<'_>) -> Result<Option<Command>, StfError> {
    let profile = |line: &mut Cursor<'_>| line.name("an action profile");
    let named_entry = |line: &mut Cursor<'_>| line.identifier("the name of an entry").map(str::to_owned);
    let microseconds = |line: &mut Cursor<'_>| line.integer("a number of microseconds");
    Ok(Some(match keyword {
        "add_member" => Command::Add(indirect_entry(line, |line| {
            Ok(Target::Member(line.integer(MEMBER)?))
        })?),
        "add_group" => Command::Add(indirect_entry(line, |line| {
            Ok(Target::Group(line.integer(GROUP)?))
        })?),
        "expect_digest" => Command::ExpectDigest {
            digest: line.name("a digest")?,
            values: one_or_more(line, plain_number)?,
        },
        "no_digest" => Command::NoDigest,
        "vset_add" => Command::ValueSetAdd {
            value_set: line.name("a value set")?,
            value: key_value(line)?,
        },
        "member_add" => Command::MemberAdd {
            profile: profile(line)?,
            member: line.integer(MEMBER)?,
            action: action(line)?,
        },
        "group_add" => Command::GroupAdd {
            profile: profile(line)?,
            group: line.integer(GROUP)?,
        },
        "group_add_member" => Command::GroupAddMember {
            profile: profile(line)?,
            group: line.integer(GROUP)?,
            member: line.integer(MEMBER)?,
        },
        "timeout" => Command::IdleTimeout {
            entry: named_entry(line)?,
            timeout_us: microseconds(line)?,
        },
        "expect_idle" => Command::ExpectIdle {
            entry: named_entry(line)?,
        },
        "expect_used" => Command::ExpectUsed {
            entry: named_entry(line)?,
        },
        "entry_rates" => Command::EntryRates {
            entry: named_entry(line)?,
            rates: rates(line)?,
        },
        "expect_register" => Command::ExpectRegister {
            register: line.name("a register array")?,
            index: line.integer(INDEX)?,
            value: plain_number(line)?,
        },
        "advance_us" => Command::AdvanceClock {
            by_us: microseconds(line)?,
        },
        _ => return Ok(None),
    }))
}

fn table(line: &mut Cursor<'_>) -> Result<String, StfError> {
    line.name("a table")
}

/// Parses keys up to the name of an action. `target` gets this name and parses the rest of the action.
fn entry<'a>(
    line: &mut Cursor<'a>,
    target: impl FnOnce(&mut Cursor<'a>, String) -> Result<Target, StfError>,
) -> Result<AddEntry, StfError> {
    let (table, priority) = (table(line)?, priority(line)?);
    let mut keys = Vec::new();
    loop {
        let start = line.position();
        let name = line.name(if keys.is_empty() {
            "a key"
        } else {
            "a key or an action"
        })?;
        if line.accept(":") {
            keys.push(Key {
                name,
                value: key_value(line)?,
            });
        } else if keys.is_empty() {
            line.rewind(start);
            return Err(line.fail("a key such as `hdr.field:0x1`"));
        } else {
            let target = target(line, name)?;
            return Ok(AddEntry {
                table,
                priority,
                keys,
                target,
                entry_name: entry_name(line)?,
            });
        }
    }
}

/// Parses keys up to a number. `target` parses the number.
fn indirect_entry(
    line: &mut Cursor<'_>,
    target: impl FnOnce(&mut Cursor<'_>) -> Result<Target, StfError>,
) -> Result<AddEntry, StfError> {
    let (table, priority) = (table(line)?, priority(line)?);
    let mut keys = Vec::new();
    while keys.is_empty() || !line.next_is(|digit| digit.is_ascii_digit()) {
        let name = line.name(if keys.is_empty() {
            "a key"
        } else {
            "a key or a number"
        })?;
        line.expect(":", "`:` and the value of the key")?;
        keys.push(Key {
            name,
            value: key_value(line)?,
        });
    }
    Ok(AddEntry {
        table,
        priority,
        keys,
        target: target(line)?,
        entry_name: entry_name(line)?,
    })
}

fn priority(line: &mut Cursor<'_>) -> Result<Option<u32>, StfError> {
    if line.next_is(|digit| digit.is_ascii_digit()) {
        line.integer("a priority").map(Some)
    } else {
        Ok(None)
    }
}

fn entry_name(line: &mut Cursor<'_>) -> Result<Option<String>, StfError> {
    if line.accept("=") {
        Ok(Some(line.identifier("a name for the entry")?.to_owned()))
    } else {
        Ok(None)
    }
}

fn key_value(line: &mut Cursor<'_>) -> Result<KeyValue, StfError> {
    let number = |line: &mut Cursor<'_>| line.number("a number, decimal, `0x` or `0b`");
    let value = number(line)?;
    Ok(if line.accept("/") {
        KeyValue::Prefix {
            value,
            length_bits: line.integer("a prefix length")?,
        }
    } else if line.accept("&&&") {
        KeyValue::Mask {
            value,
            mask: plain_number(line)?,
        }
    } else if line.accept("->") {
        KeyValue::Range {
            low: value,
            high: plain_number(line)?,
        }
    } else {
        KeyValue::Number(value)
    })
}

fn plain_number(line: &mut Cursor<'_>) -> Result<Number, StfError> {
    let start = line.position();
    let expected = "a number without `*`";
    let number = line.number(expected)?;
    if number.has_wildcards() {
        line.rewind(start);
        return Err(line.fail(expected));
    }
    Ok(number)
}

fn action(line: &mut Cursor<'_>) -> Result<ActionCall, StfError> {
    let name = line.name("an action")?;
    action_named(line, name)
}

fn action_named(line: &mut Cursor<'_>, name: String) -> Result<ActionCall, StfError> {
    line.expect("(", "`(` and the arguments of the action")?;
    let mut arguments = Vec::new();
    if line.accept(")") {
        return Ok(ActionCall { name, arguments });
    }
    loop {
        let parameter = line.identifier("a parameter of the action")?.to_owned();
        line.expect(":", "`:` and the value of the parameter")?;
        arguments.push((parameter, plain_number(line)?));
        if line.accept(")") {
            return Ok(ActionCall { name, arguments });
        }
        line.expect(",", "`,` or `)`")?;
    }
}

fn packet(line: &mut Cursor<'_>) -> Result<Vec<u8>, StfError> {
    let mut bytes = Vec::new();
    let mut high = None;
    while let Some(digit) = hexadecimal_digit(line)? {
        high = match high {
            None => Some(digit),
            Some(high) => {
                bytes.push((high << 4) | digit);
                None
            }
        };
    }
    if bytes.is_empty() || high.is_some() {
        return Err(line.fail("a hexadecimal digit to complete the last byte"));
    }
    Ok(bytes)
}

fn hexadecimal_digit(line: &mut Cursor<'_>) -> Result<Option<u8>, StfError> {
    let start = line.position();
    let Some(next) = line.character() else {
        return Ok(None);
    };
    match next.to_digit(16).and_then(|digit| u8::try_from(digit).ok()) {
        Some(digit) => Ok(Some(digit)),
        None => {
            line.rewind(start);
            Err(line.fail("a hexadecimal digit"))
        }
    }
}

fn expected_packet(line: &mut Cursor<'_>) -> Result<Option<ExpectedPacket>, StfError> {
    if line.is_at_end() {
        return Ok(None);
    }
    let mut digits = Vec::new();
    while !line.is_at_end() {
        if line.accept("*") {
            digits.push(None);
        } else if line.accept("$") {
            line.end()?;
            return Ok(Some(ExpectedPacket::new(digits, true)));
        } else if line.next_is(|digit| digit.is_ascii_hexdigit()) {
            digits.push(hexadecimal_digit(line)?);
        } else {
            return Err(line.fail("a hexadecimal digit, `*` or `$`"));
        }
    }
    Ok(Some(ExpectedPacket::new(digits, false)))
}

fn check_counter(line: &mut Cursor<'_>) -> Result<Command, StfError> {
    let counter = line.name("a counter")?;
    line.expect("(", "`(` and the cell of the counter")?;
    let cell = if line.next_is(|first| first.is_ascii_digit()) {
        CounterCell::Index(line.integer(INDEX)?)
    } else {
        let name = line.identifier("an index, or `$` and the name of an entry")?;
        CounterCell::Entry(name.strip_prefix('$').unwrap_or(name).to_owned())
    };
    line.expect(")", "`)`")?;
    let check = if line.is_at_end() {
        None
    } else {
        Some(counter_check(line)?)
    };
    Ok(Command::CheckCounter { counter, cell, check })
}

fn counter_check(line: &mut Cursor<'_>) -> Result<CounterCheck, StfError> {
    let start = line.position();
    let units = "`packets` or `bytes`";
    let unit = match line.identifier(units)?.to_ascii_lowercase().as_str() {
        "packets" => CountedUnit::Packets,
        "bytes" => CountedUnit::Bytes,
        _ => {
            line.rewind(start);
            return Err(line.fail(units));
        }
    };
    // Longer operators precede shorter operators: `<` is a prefix of `<=`.
    let comparisons = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let Some((_, comparison)) = comparisons.into_iter().find(|(symbol, _)| line.accept(symbol)) else {
        return Err(line.fail("`==`, `!=`, `<`, `<=`, `>` or `>=`"));
    };
    Ok(CounterCheck {
        unit,
        comparison,
        expected: line.integer("a count")?,
    })
}

fn ports(line: &mut Cursor<'_>) -> Result<Vec<u32>, StfError> {
    one_or_more(line, |line| line.integer("a port"))
}

fn rates(line: &mut Cursor<'_>) -> Result<Vec<Rate>, StfError> {
    one_or_more(line, |line| {
        let units_per_us = line.decimal("a rate in units per microsecond")?;
        line.expect(":", "`:` and the burst")?;
        Ok(Rate {
            units_per_us,
            burst: line.integer("a burst in units")?,
        })
    })
}

/// Parses items up to the end of the line.
fn one_or_more<'a, T>(
    line: &mut Cursor<'a>,
    item: impl Fn(&mut Cursor<'a>) -> Result<T, StfError>,
) -> Result<Vec<T>, StfError> {
    let mut items = vec![item(line)?];
    while !line.is_at_end() {
        items.push(item(line)?);
    }
    Ok(items)
}
