//! Differential test: random programs and packets run in the reference interpreter and in the switch.
//!
//! `LINEWARDEN_DIFFERENTIAL_CASES` sets the number of cases, `LINEWARDEN_DIFFERENTIAL_SEED` the first seed.
//! A failing case is minimized and printed with its seed.

mod case;
mod endless;
mod expression;
mod parser;
mod pipeline;
mod run;
mod shape;
mod source;
mod statement;

use self::case::Case;
use self::run::Comparison;
use self::source::Source;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Maximum number of printed failures; these often have different causes.
const FAILURES_MAX: usize = 5;

fn describe(seed: u64, (difference, choices, case): &(String, Vec<u64>, Case)) -> String {
    format!(
        "seed {seed}, {} choices\n{}ops {:?}\nrates {:?}\npackets {:?}\n{difference}",
        choices.len(),
        program(&case.program),
        case.ops,
        case.rates,
        case.packets
    )
}

/// Runs the case made from these choices. Returns the difference between the results, the used choices and the case;
/// `None` if the case does not fail.
fn failure(mut source: Source) -> Option<(String, Vec<u64>, Case)> {
    let case = Case::of(&mut source)?;
    match run::compare(&case) {
        Comparison::Different(difference) => Some((difference, source.into_choices(), case)),
        Comparison::Same | Comparison::Unrunnable => None,
    }
}

/// Minimizes a failing case: removes and shrinks choices while the case still fails.
fn minimize(mut smallest: (String, Vec<u64>, Case)) -> (String, Vec<u64>, Case) {
    let mut tries = setting("LINEWARDEN_DIFFERENTIAL_TRIES", 60_000);
    let mut replace_if_smaller = |choices: Vec<u64>, smallest: &mut (String, Vec<u64>, Case)| {
        tries = tries.saturating_sub(1);
        if tries == 0 {
            return false;
        }
        let Some(candidate) = failure(Source::recorded(choices)) else {
            return false;
        };
        let size = |choices: &[u64]| {
            (
                choices.len(),
                choices.iter().copied().map(u128::from).sum::<u128>(),
            )
        };
        let is_smaller = size(&candidate.1) < size(&smallest.1);
        if is_smaller {
            *smallest = candidate;
        }
        is_smaller
    };
    loop {
        let mut has_progress = false;
        for block in [256, 64, 16, 4, 2, 1] {
            let mut start = 0;
            while start < smallest.1.len() {
                let end = (start + block).min(smallest.1.len());
                let mut shorter = smallest.1.clone();
                shorter.drain(start..end);
                let mut zeroed = smallest.1.clone();
                zeroed[start..end].fill(0);
                if replace_if_smaller(shorter, &mut smallest)
                    || (smallest
                        .1
                        .get(start..end)
                        .is_some_and(|part| part.iter().any(|choice| *choice != 0))
                        && replace_if_smaller(zeroed, &mut smallest))
                {
                    has_progress = true;
                } else {
                    start += block;
                }
            }
        }
        for start in 0..smallest.1.len() {
            while smallest.1.get(start).is_some_and(|choice| *choice > 0) {
                let mut halved = smallest.1.clone();
                halved[start] /= 2;
                if !replace_if_smaller(halved, &mut smallest) {
                    break;
                }
                has_progress = true;
            }
        }
        for start in 0..smallest.1.len() {
            for block in [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64] {
                if smallest.1.get(start).is_none_or(|choice| *choice == 0)
                    || start + 1 + block > smallest.1.len()
                {
                    break;
                }
                let mut shortened = smallest.1.clone();
                shortened[start] -= 1;
                shortened.drain(start + 1..start + 1 + block);
                has_progress |= replace_if_smaller(shortened, &mut smallest);
            }
        }
        if !has_progress {
            return smallest;
        }
    }
}

#[test]
fn switch_matches_reference_interpreter() {
    let first = setting("LINEWARDEN_DIFFERENTIAL_SEED", 1);
    let cases = setting("LINEWARDEN_DIFFERENTIAL_CASES", 2_000);
    let (mut same_count, mut unrunnable_count, mut sent_count) = (0, 0, 0);
    let mut failures = Vec::new();
    for seed in first..first + cases {
        let mut source = Source::seeded(seed);
        let Some(case) = Case::of(&mut source) else {
            unrunnable_count += 1;
            continue;
        };
        match run::compare(&case) {
            Comparison::Same => {
                same_count += 1;
                sent_count += run::run_in_reference(&case)
                    .0
                    .iter()
                    .map(run::PacketOutcome::packets)
                    .sum::<usize>();
            }
            Comparison::Unrunnable => unrunnable_count += 1,
            Comparison::Different(difference) => {
                let minimized = minimize((difference, source.into_choices(), case));
                failures.push(describe(seed, &minimized));
                if failures.len() >= FAILURES_MAX {
                    break;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{same_count} cases agree, {unrunnable_count} cannot be run, {sent_count} packets sent");
    assert!(
        unrunnable_count * 10 <= cases,
        "{unrunnable_count} of {cases} cases cannot be run"
    );
    assert!(
        sent_count as u64 >= cases / 4,
        "only {sent_count} packets were sent"
    );
}

/// Description of the parts of a program that affect a case.
fn program(program: &linewarden_switch::program::Program) -> String {
    let mut text = String::new();
    for (index, header_type) in program.types.iter().enumerate().skip(1) {
        let fields = header_type.fields.iter().map(|field| {
            let (signed, saturating) = (
                ["", "s"][usize::from(field.signed)],
                ["", "!"][usize::from(field.saturating)],
            );
            format!(
                "{}{signed}{saturating}{}",
                field.bits,
                ["", "*"][usize::from(field.variable)]
            )
        });
        let fields: Vec<String> = fields.collect();
        text += &format!(
            "type {index}: {} {:?} max {}\n",
            fields.join(" "),
            header_type.variable_bits,
            header_type.max_bytes
        );
    }
    for (index, header) in program.headers.iter().enumerate().skip(2) {
        text += &format!("header {index}: {} type {}\n", header.name, header.header_type.0);
    }
    text += &format!("parser {:?}\n", program.parser.init);
    for (index, state) in program.parser.states.iter().enumerate() {
        text += &format!("state {index} {state:?}\n");
    }
    for (index, action) in program.actions.iter().enumerate() {
        let params: Vec<u32> = action.params.iter().map(|param| param.bits).collect();
        text += &format!("action {index} {params:?}\n");
        if action.name.starts_with("show") {
            continue;
        }
        for (index, statement) in action.body.iter().enumerate() {
            text += &format!("    {index} {statement:?}\n");
        }
    }
    for table in &program.tables {
        text += &format!("{table:?}\n");
    }
    text += &format!("ingress {:?}\negress {:?}\n", program.ingress, program.egress);
    text += &format!(
        "deparser {:?}\nchecksums {:?}\n",
        program.deparser, program.checksums
    );
    text += &format!(
        "calculations {:?}\nregisters {:?}\n",
        program.calculations, program.registers
    );
    text += &format!(
        "field lists {:?}\nvalue sets {:?}\n",
        program.field_lists, program.value_sets
    );
    text
}
