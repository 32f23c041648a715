//! A parser of the PTX subset that NVRTC emits for these kernels. An unknown instruction fails the test.

use std::collections::HashMap;

/// A kernel.
pub struct Program {
    pub instructions: Vec<Instruction>,
    /// Number of registers of a lane, including predicates and the carry.
    pub registers: usize,
    pub shared_bytes: usize,
    pub argument_bytes: usize,
    /// The constants of the module, concatenated.
    pub constants: Vec<u8>,
}

/// The register of the condition code.
pub const CARRY: usize = 0;
/// The registers of the thread number in the block and of the block number: `%tid.x` and `%ctaid.x`.
pub const THREAD: usize = 1;
pub const BLOCK: usize = 2;

#[derive(Clone, Copy, Debug)]
pub enum Operand {
    Register(usize),
    Number(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Space {
    Argument,
    Constant,
    Global,
    Shared,
}

/// An address in memory: a register or a number, plus an offset.
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub space: Space,
    pub base: Operand,
    pub offset: u64,
    /// Bytes of each word.
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CarryOperation {
    Add,
    Subtract,
    MultiplyLow,
    MultiplyHigh,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ShuffleMode {
    Across,
    Down,
    From,
    Up,
}

#[derive(Debug)]
pub enum Instruction {
    /// Computes one value from up to three values.
    Value {
        function: fn([u64; 3]) -> u64,
        to: usize,
        from: [Operand; 3],
    },
    /// 32-bit operation with carry in, carry out, or both.
    Chain {
        operation: CarryOperation,
        has_carry_in: bool,
        has_carry_out: bool,
        to: usize,
        from: [Operand; 3],
    },
    Load {
        to: Vec<usize>,
        location: Location,
    },
    Store {
        location: Location,
        from: Vec<Operand>,
    },
    /// A branch of all lanes, or of the lanes for which `condition` holds.
    Branch {
        target: usize,
        /// Predicate register, and its required value.
        condition: Option<(usize, bool)>,
    },
    Return,
    Synchronize,
    Shuffle {
        mode: ShuffleMode,
        to: usize,
        /// Predicate register that receives whether the read lane is within the segment.
        is_inside: usize,
        value: Operand,
        /// Lane offset, mask or lane number, depending on the mode.
        by: Operand,
        bounds: Operand,
    },
    Ballot {
        to: usize,
        from: usize,
    },
    Exchange {
        to: usize,
        location: Location,
        value: Operand,
    },
}

/// Parses a module, and returns all its kernels by name.
pub fn read(ptx: &str) -> HashMap<String, Program> {
    let lines: Vec<&str> = ptx
        .lines()
        .map(|line| line.split("//").next().unwrap().trim())
        .collect();
    let (constants, constant_offsets) = constants(&lines);
    let mut programs = HashMap::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(head) = line.strip_prefix(".visible .entry ") else {
            continue;
        };
        let name = head.split('(').next().unwrap().trim().to_owned();
        let begin = index + lines[index..].iter().position(|line| *line == "{").unwrap();
        let end = begin + lines[begin..].iter().position(|line| *line == "}").unwrap();
        let argument_bytes = lines[index..begin]
            .iter()
            .find_map(|line| array_length(line))
            .unwrap();
        let mut reader = Reader::new(&name, &constant_offsets);
        reader.read(&lines[begin + 1..end]);
        let program = Program {
            instructions: reader.instructions,
            registers: 3 + reader.registers.len(),
            shared_bytes: reader.shared_bytes,
            argument_bytes,
            constants: constants.clone(),
        };
        programs.insert(name, program);
    }
    programs
}

/// The length in `.. NAME[LENGTH] ..`.
fn array_length(line: &str) -> Option<usize> {
    line.split_once('[')?.1.split_once(']')?.0.parse().ok()
}

/// The constants that are declared as `.const .align 4 .b8 NAME[N] = {1, 2, ..};` or `.const .align 4 .u32 NAME = 1;`,
/// concatenated, and the offset of each.
fn constants(lines: &[&str]) -> (Vec<u8>, HashMap<String, usize>) {
    let (mut bytes, mut constant_offsets) = (Vec::new(), HashMap::new());
    for line in lines.iter().filter(|line| line.starts_with(".const ")) {
        let (declaration, values) = line.trim_end_matches(';').split_once('=').unwrap();
        let words: Vec<&str> = declaration.split_whitespace().collect();
        let name = words.last().unwrap().split('[').next().unwrap();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        constant_offsets.insert(name.to_owned(), bytes.len());
        for value in values.trim().trim_matches(['{', '}']).split(',') {
            let value: i64 = value.trim().parse().unwrap();
            match words[3] {
                ".b8" => bytes.push(value as u8),
                ".u32" => bytes.extend((value as u32).to_le_bytes()),
                kind => panic!("unsupported constants of type {kind}"),
            }
        }
    }
    (bytes, constant_offsets)
}

struct Reader<'a> {
    kernel: &'a str,
    constants: &'a HashMap<String, usize>,
    shared: HashMap<String, usize>,
    shared_bytes: usize,
    registers: HashMap<String, usize>,
    labels: HashMap<String, usize>,
    instructions: Vec<Instruction>,
}

impl<'a> Reader<'a> {
    fn new(kernel: &'a str, constants: &'a HashMap<String, usize>) -> Self {
        Self {
            kernel,
            constants,
            shared: HashMap::new(),
            shared_bytes: 0,
            registers: HashMap::new(),
            labels: HashMap::new(),
            instructions: Vec::new(),
        }
    }

    fn read(&mut self, lines: &[&str]) {
        // Collects the labels first, since branches may go forward.
        let mut count = 0;
        for line in lines.iter().filter(|line| !line.is_empty()) {
            if let Some(label) = line.strip_suffix(':') {
                self.labels.insert(label.to_owned(), count);
            } else if let Some(declaration) = line.strip_prefix(".shared ") {
                let name = declaration
                    .split_whitespace()
                    .last()
                    .unwrap()
                    .split('[')
                    .next()
                    .unwrap();
                self.shared.insert(name.to_owned(), self.shared_bytes);
                self.shared_bytes += array_length(declaration).unwrap();
            } else if !line.starts_with('.') {
                count += 1;
            }
        }
        for line in lines
            .iter()
            .filter(|line| !line.is_empty() && !line.ends_with(':') && !line.starts_with('.'))
        {
            let instruction = self.instruction(line.trim_end_matches(';'));
            self.instructions.push(instruction);
        }
    }

    fn register(&mut self, name: &str) -> usize {
        let next = 3 + self.registers.len();
        *self.registers.entry(name.to_owned()).or_insert(next)
    }

    fn operand(&mut self, text: &str) -> Operand {
        match text {
            "%tid.x" => Operand::Register(THREAD),
            "%ctaid.x" => Operand::Register(BLOCK),
            _ if text.starts_with('%') => Operand::Register(self.register(text)),
            _ if text.ends_with("_param_0") => Operand::Number(0),
            _ => match self.shared.get(text).or_else(|| self.constants.get(text)) {
                Some(offset) => Operand::Number(*offset as u64),
                None => {
                    Operand::Number(text.parse::<i64>().unwrap_or_else(|_| panic!("operand {text}")) as u64)
                }
            },
        }
    }

    /// Parses `{%r1, %r2}` or a single operand.
    fn operands(&mut self, text: &str) -> Vec<Operand> {
        text.trim_matches(['{', '}'])
            .split(',')
            .map(|text| self.operand(text.trim()))
            .collect()
    }

    fn registers(&mut self, text: &str) -> Vec<usize> {
        text.trim_matches(['{', '}'])
            .split(',')
            .map(|text| self.register(text.trim()))
            .collect()
    }

    fn location(&mut self, space: &str, kind: &str, text: &str) -> Location {
        let text = text.trim_matches(['[', ']']);
        let (base, offset) = text.split_once('+').unwrap_or((text, "0"));
        let space = match space {
            "param" => Space::Argument,
            "const" => Space::Constant,
            "global" => Space::Global,
            "shared" => Space::Shared,
            _ => panic!("memory {space}"),
        };
        let bytes = kind.trim_start_matches(['b', 'u', 's']).parse::<usize>().unwrap() / 8;
        Location {
            space,
            base: self.operand(base),
            offset: offset.parse::<i64>().unwrap() as u64,
            bytes,
        }
    }

    fn instruction(&mut self, line: &str) -> Instruction {
        let (condition, line) = match line.strip_prefix('@') {
            None => (None, line),
            Some(rest) => {
                let (predicate, line) = rest.split_once(char::is_whitespace).unwrap();
                let expected = !predicate.starts_with('!');
                (
                    Some((self.register(predicate.trim_start_matches('!')), expected)),
                    line,
                )
            }
        };
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let parts: Vec<&str> = name.split('.').collect();
        let arguments = arguments(rest);
        let argument = |index: usize| arguments.get(index).copied().unwrap_or("0");
        assert!(
            condition.is_none() || parts[0] == "bra",
            "unsupported predicate: {line}"
        );
        match parts.as_slice() {
            ["bra", ..] => Instruction::Branch {
                target: self.labels[argument(0)],
                condition,
            },
            ["ret"] => Instruction::Return,
            ["bar", "warp", "sync"] | ["bar" | "barrier", "sync"] => Instruction::Synchronize,
            ["shfl", "sync", mode, "b32"] => {
                let (to, is_inside) = argument(0).split_once('|').unwrap();
                let mode = match *mode {
                    "bfly" => ShuffleMode::Across,
                    "down" => ShuffleMode::Down,
                    "idx" => ShuffleMode::From,
                    "up" => ShuffleMode::Up,
                    _ => panic!("{line}"),
                };
                let (to, is_inside) = (self.register(to), self.register(is_inside));
                let [value, by, bounds] = [1, 2, 3].map(|index| self.operand(argument(index)));
                Instruction::Shuffle {
                    mode,
                    to,
                    is_inside,
                    value,
                    by,
                    bounds,
                }
            }
            ["vote", "sync", "ballot", "b32"] => Instruction::Ballot {
                to: self.register(argument(0)),
                from: self.register(argument(1)),
            },
            ["ld", space, .., kind] => Instruction::Load {
                to: self.registers(argument(0)),
                location: self.location(space, kind, argument(1)),
            },
            ["st", space, .., kind] => Instruction::Store {
                location: self.location(space, kind, argument(0)),
                from: self.operands(argument(1)),
            },
            ["atom", space, "exch", kind] => Instruction::Exchange {
                to: self.register(argument(0)),
                location: self.location(space, kind, argument(1)),
                value: self.operand(argument(2)),
            },
            [operation, middle @ .., "u32"] if is_chain(operation, middle) => {
                let carry_operation = match (*operation, middle) {
                    ("add" | "addc", _) => CarryOperation::Add,
                    ("sub" | "subc", _) => CarryOperation::Subtract,
                    (_, ["lo", ..]) => CarryOperation::MultiplyLow,
                    _ => CarryOperation::MultiplyHigh,
                };
                Instruction::Chain {
                    operation: carry_operation,
                    has_carry_in: operation.ends_with('c'),
                    has_carry_out: middle.contains(&"cc"),
                    to: self.register(argument(0)),
                    from: [1, 2, 3].map(|index| self.operand(argument(index))),
                }
            }
            _ => {
                let function = value(&parts).unwrap_or_else(|| panic!("{}: {line}", self.kernel));
                let to = self.register(argument(0));
                let from = [1, 2, 3].map(|index| self.operand(argument(index)));
                Instruction::Value { function, to, from }
            }
        }
    }
}

fn is_chain(operation: &str, middle: &[&str]) -> bool {
    matches!(operation, "addc" | "subc" | "madc") || middle.contains(&"cc")
}

/// Splits at commas outside braces.
fn arguments(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
    .collect()
}

const fn signed(word: u64) -> i64 {
    word as u32 as i32 as i64
}

const HALF: u64 = 0xffff;
/// Mask of the low 32 bits.
const LOW: u64 = 0xffff_ffff;

/// The function of a value operation, by the parts of its name.
fn value(parts: &[&str]) -> Option<fn([u64; 3]) -> u64> {
    Some(match parts {
        ["mov", "b32" | "u32"] => |[a, ..]| a & LOW,
        ["mov", "b64" | "u64"]
        | ["cvta", "to", "global", "u64"]
        | ["cvt", "u64" | "u32", "u32" | "u16" | "u8"] => |[a, ..]| a,
        ["mov", "pred"] => |[a, ..]| u64::from(a != 0),
        ["cvt", "u32", "u64"] => |[a, ..]| a & LOW,
        ["cvt", "u16", "u32"] => |[a, ..]| a & HALF,
        ["and", "b16"] => |[a, b, _]| a & b & HALF,
        ["sub", "s16"] => |[a, b, _]| a.wrapping_sub(b) & HALF,
        ["mul", "lo", "s16"] => |[a, b, _]| a.wrapping_mul(b) & HALF,
        ["mul", "wide", "u16"] => |[a, b, _]| (a & HALF) * (b & HALF),
        ["shl", "b16"] => |[a, b, _]| (a << b.min(16)) & HALF,
        ["shr", "u16"] => |[a, b, _]| (a & HALF) >> b.min(16),
        ["setp", "lt", "u16"] => |[a, b, _]| u64::from(a & HALF < b & HALF),
        ["div", "u32"] => |[a, b, _]| (a & LOW) / (b & LOW),
        ["cvt", "s64", "s32"] => |[a, ..]| signed(a) as u64,
        ["add", "s32" | "u32"] => |[a, b, _]| a.wrapping_add(b) & LOW,
        ["sub", "s32" | "u32"] => |[a, b, _]| a.wrapping_sub(b) & LOW,
        ["mul", "lo", "s32" | "u32"] => |[a, b, _]| a.wrapping_mul(b) & LOW,
        ["mad", "lo", "s32" | "u32"] => |[a, b, c]| a.wrapping_mul(b).wrapping_add(c) & LOW,
        ["mul", "hi", "s32"] => |[a, b, _]| ((signed(a) * signed(b)) >> 32) as u64 & LOW,
        ["mul", "wide", "u32"] => |[a, b, _]| (a & LOW) * (b & LOW),
        ["mul", "wide", "s32"] => |[a, b, _]| (signed(a) * signed(b)) as u64,
        ["add", "s64" | "u64"] => |[a, b, _]| a.wrapping_add(b),
        ["sub", "s64" | "u64"] => |[a, b, _]| a.wrapping_sub(b),
        ["mul", "lo", "s64" | "u64"] => |[a, b, _]| a.wrapping_mul(b),
        ["and", "b64"] => |[a, b, _]| a & b,
        ["or", "b64"] => |[a, b, _]| a | b,
        ["and", "b32"] => |[a, b, _]| a & b & LOW,
        ["or", "b32"] => |[a, b, _]| (a | b) & LOW,
        ["xor", "b32"] => |[a, b, _]| (a ^ b) & LOW,
        ["not", "b32"] => |[a, ..]| !a & LOW,
        ["neg", "s32"] => |[a, ..]| a.wrapping_neg() & LOW,
        ["and", "pred"] => |[a, b, _]| a & b,
        ["or", "pred"] => |[a, b, _]| a | b,
        ["xor", "pred"] => |[a, b, _]| a ^ b,
        ["not", "pred"] => |[a, ..]| a ^ 1,
        ["shl", "b32"] => |[a, b, _]| (a << b.min(32)) & LOW,
        ["shl", "b64"] => |[a, b, _]| if b < 64 { a << b } else { 0 },
        ["shr", "u32"] => |[a, b, _]| (a & LOW) >> b.min(32),
        ["shr", "u64"] => |[a, b, _]| if b < 64 { a >> b } else { 0 },
        ["shr", "s32"] => |[a, b, _]| (signed(a) >> b.min(31)) as u64 & LOW,
        ["shf", "r", "wrap", "b32"] => |[a, b, c]| (((a & LOW) | b << 32) >> (c & 31)) & LOW,
        ["prmt", "b32"] => |[a, b, selector]| {
            let bytes = (a & LOW) | b << 32;
            (0..4)
                .map(|index| ((bytes >> (8 * ((selector >> (4 * index)) & 7))) & 0xff) << (8 * index))
                .sum()
        },
        ["selp", ..] => |[a, b, predicate]| if predicate == 1 { a } else { b },
        ["setp", "eq", "b32" | "s32" | "u32"] => |[a, b, _]| u64::from(a & LOW == b & LOW),
        ["setp", "ne", "b32" | "s32" | "u32"] => |[a, b, _]| u64::from(a & LOW != b & LOW),
        ["setp", "eq", "s64" | "u64" | "b64"] => |[a, b, _]| u64::from(a == b),
        ["setp", "ne", "s64" | "u64" | "b64"] => |[a, b, _]| u64::from(a != b),
        ["setp", "lt", "u32"] => |[a, b, _]| u64::from(a & LOW < b & LOW),
        ["setp", "le", "u32"] => |[a, b, _]| u64::from(a & LOW <= b & LOW),
        ["setp", "gt", "u32"] => |[a, b, _]| u64::from(a & LOW > b & LOW),
        ["setp", "ge", "u32"] => |[a, b, _]| u64::from(a & LOW >= b & LOW),
        ["setp", "lt", "s32"] => |[a, b, _]| u64::from(signed(a) < signed(b)),
        ["setp", "le", "s32"] => |[a, b, _]| u64::from(signed(a) <= signed(b)),
        ["setp", "gt", "s32"] => |[a, b, _]| u64::from(signed(a) > signed(b)),
        ["setp", "ge", "s32"] => |[a, b, _]| u64::from(signed(a) >= signed(b)),
        _ => return None,
    })
}
