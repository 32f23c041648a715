//! The executable form: one linear list of operations on two banks of registers and the packet's arena.
//!
//! Two lanes compute: 64 bits (`r`, the fast one) and 128 bits (`w`). Lowering proves for each that no value needs
//! more, or that only the low bits matter. What needs more, or is rare, refers to a tree of the program by its
//! number and is evaluated with integers of any size.

use serde::Serialize;

/// A register of 64 bits.
pub type R = u8;
/// A register of 128 bits.
pub type W = u8;
/// A position in the list of operations.
pub type Pc = u32;
/// A position in one of the lists beside the operations.
pub type Index = u32;

/// An operation on two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Alu {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient of unsigned numbers; 0 if the divisor is 0.
    Div,
    /// Remainder; 0 if the divisor is 0.
    Mod,
    /// Bits of both.
    And,
    /// Bits of either.
    Or,
    /// Bits of one of them.
    Xor,
    /// Left shift; 0 if by the width or more.
    Shl,
    /// Right shift that fills with zeros; 0 if by the width or more.
    Shr,
    /// Right shift that fills with the sign; by the width or more: all sign.
    Sar,
}

/// A comparison of two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Test {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less, unsigned.
    Below,
    /// Less or equal, unsigned.
    BelowEq,
    /// Less, signed.
    Less,
    /// Less or equal, signed.
    LessEq,
}

/// An operation. `to` is where execution goes on if it branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Op {
    /// `r := value`.
    Const {
        /// Target.
        r: R,
        /// Value.
        value: u64,
    },
    /// `r :=` one byte.
    Load1 {
        /// Target.
        r: R,
        /// Where it stands.
        at: u32,
    },
    /// `r :=` two bytes.
    Load2 {
        /// Target.
        r: R,
        /// Where the first stands.
        at: u32,
    },
    /// `r :=` four bytes.
    Load4 {
        /// Target.
        r: R,
        /// Where the first stands.
        at: u32,
    },
    /// `r :=` eight bytes.
    Load8 {
        /// Target.
        r: R,
        /// Where the first stands.
        at: u32,
    },
    /// `r :=` bits within eight bytes.
    Load {
        /// Target.
        r: R,
        /// Where the eight bytes begin.
        at: u32,
        /// Bits below.
        shift: u8,
        /// Bits that count.
        bits: u8,
    },
    /// Stores the low byte.
    Store1 {
        /// Source.
        r: R,
        /// Where to.
        at: u32,
    },
    /// Stores the low two bytes.
    Store2 {
        /// Source.
        r: R,
        /// Where to.
        at: u32,
    },
    /// Stores the low four bytes.
    Store4 {
        /// Source.
        r: R,
        /// Where to.
        at: u32,
    },
    /// Stores all eight bytes, less the bits above `bits`.
    Store8 {
        /// Source.
        r: R,
        /// Where to.
        at: u32,
        /// Bits that are kept.
        bits: u8,
    },
    /// Stores bits into eight bytes.
    Store {
        /// Source.
        r: R,
        /// Where the eight bytes begin.
        at: u32,
        /// Bits below.
        shift: u8,
        /// Bits that are stored.
        bits: u8,
    },
    /// `w :=` bits within sixteen bytes.
    WideLoad {
        /// Target.
        w: W,
        /// Where the sixteen bytes begin.
        at: u32,
        /// Bits below.
        shift: u8,
        /// Bits that count.
        bits: u8,
    },
    /// Stores bits into sixteen bytes.
    WideStore {
        /// Source.
        w: W,
        /// Where the sixteen bytes begin.
        at: u32,
        /// Bits below.
        shift: u8,
        /// Bits that are stored.
        bits: u8,
    },
    /// Copies bytes.
    Copy {
        /// Where from.
        from: u32,
        /// Where to.
        to: u32,
        /// How many.
        bytes: u32,
    },
    /// Stores a constant byte by byte; its first bytes are the most significant.
    Fill {
        /// Where to.
        at: u32,
        /// The constant's number.
        constant: Index,
    },
    /// `r :=` an argument of the action.
    Arg {
        /// Target.
        r: R,
        /// Where it ends among the argument's bytes.
        at: u32,
    },
    /// `w :=` an argument of the action.
    WideArg {
        /// Target.
        w: W,
        /// Where it begins among the argument's bytes.
        at: u32,
        /// Its bytes, at most 16.
        bytes: u8,
    },
    /// Stores an argument of the action in eight bytes, less the bits above `bits`.
    StoreArg {
        /// Where its eight bytes begin among the argument's bytes.
        arg: u32,
        /// Where to.
        at: u32,
        /// Bits that are kept.
        bits: u8,
    },
    /// Copies the low bytes of an argument of the action.
    CopyArg {
        /// Where its eight bytes begin among the argument's bytes.
        arg: u32,
        /// Where to.
        at: u32,
        /// How many, at most 8.
        bytes: u8,
    },
    /// `r := a op b`.
    Alu {
        /// Operation.
        op: Alu,
        /// Target.
        r: R,
        /// Left.
        a: R,
        /// Right.
        b: R,
    },
    /// `r := a op value`.
    AluConst {
        /// Operation.
        op: Alu,
        /// Target.
        r: R,
        /// Left.
        a: R,
        /// Right.
        value: u64,
    },
    /// `r := (a + value) & (2^bits - 1)`.
    AddMasked {
        /// Target.
        r: R,
        /// Left.
        a: R,
        /// Bits that are kept.
        bits: u8,
        /// Right.
        value: u64,
    },
    /// Adds to one byte, modulo 256: a TTL less one.
    AddToByte {
        /// Where it stands.
        at: u32,
        /// What is added.
        value: u8,
    },
    /// `r := !a`.
    Not {
        /// Target.
        r: R,
        /// Source.
        a: R,
    },
    /// The low bits as a signed number.
    SignExtend {
        /// Target and source.
        r: R,
        /// Bits that count.
        bits: u8,
    },
    /// The nearest number in range; signed comparison if either bound is.
    Clamp {
        /// Target and source.
        r: R,
        /// Whether `r` is signed.
        signed: bool,
        /// Range of this many bits.
        bits: u8,
        /// Whether the range is signed.
        to_signed: bool,
    },
    /// `w := a op b`.
    WideAlu {
        /// Operation.
        op: Alu,
        /// Target.
        w: W,
        /// Left.
        a: W,
        /// Right.
        b: W,
    },
    /// `w :=` a constant.
    WideConst {
        /// Target.
        w: W,
        /// The constant's number.
        constant: Index,
    },
    /// `w := !a`.
    WideNot {
        /// Target.
        w: W,
        /// Source.
        a: W,
    },
    /// The low bits as a signed number.
    WideSignExtend {
        /// Target and source.
        w: W,
        /// Bits that count.
        bits: u8,
    },
    /// As [`Op::Clamp`].
    WideClamp {
        /// Target and source.
        w: W,
        /// Whether `w` is signed.
        signed: bool,
        /// Range of this many bits.
        bits: u8,
        /// Whether the range is signed.
        to_signed: bool,
    },
    /// `w := a`, filled with the sign or with zeros.
    Widen {
        /// Target.
        w: W,
        /// Source.
        a: R,
        /// Whether the sign is kept.
        signed: bool,
    },
    /// `r :=` the low bits of `a`.
    Narrow {
        /// Target.
        r: R,
        /// Source.
        a: W,
    },
    /// `r := a`.
    Move {
        /// Target.
        r: R,
        /// Source.
        a: R,
    },
    /// `w := a`.
    WideMove {
        /// Target.
        w: W,
        /// Source.
        a: W,
    },
    /// Goes on elsewhere.
    Jump {
        /// Where.
        to: Pc,
    },
    /// Costs fuel; stands wherever execution can come back to, so that no program runs for ever.
    Fuel,
    /// Branches if the test holds.
    Branch {
        /// The test.
        test: Test,
        /// Left.
        a: R,
        /// Right.
        b: R,
        /// Where.
        to: Pc,
    },
    /// Branches if `a` equals a constant.
    BranchEq {
        /// Left.
        a: R,
        /// Where.
        to: Pc,
        /// Right.
        value: u64,
    },
    /// Branches if `a` does not equal a constant.
    BranchNe {
        /// Left.
        a: R,
        /// Where.
        to: Pc,
        /// Right.
        value: u64,
    },
    /// Branches if `a & mask == value`.
    BranchMasked {
        /// Left.
        a: R,
        /// Where.
        to: Pc,
        /// The number of the pair of value and mask.
        pair: Index,
    },
    /// Branches if bits of one byte are (not) within bounds, all where they stand.
    BranchByte {
        /// Where the byte stands.
        at: u32,
        /// Bits that count.
        mask: u8,
        /// The least.
        low: u8,
        /// The greatest.
        high: u8,
        /// Whether to branch if they are within.
        inside: bool,
        /// Where.
        to: Pc,
    },
    /// The same with two bytes.
    BranchPair {
        /// Where the first byte stands.
        at: u32,
        /// Bits that count.
        mask: u16,
        /// The least.
        low: u16,
        /// The greatest.
        high: u16,
        /// Whether to branch if they are within.
        inside: bool,
        /// Where.
        to: Pc,
    },
    /// Branches if the test holds.
    WideBranch {
        /// The test.
        test: Test,
        /// Left.
        a: W,
        /// Right.
        b: W,
        /// Where.
        to: Pc,
    },
    /// Branches if a byte is (not) 0: a header's validity.
    BranchValid {
        /// Where the byte stands.
        at: u32,
        /// Whether to branch if it is not 0.
        valid: bool,
        /// Where.
        to: Pc,
    },
    /// Branches if a condition, evaluated as a tree, is what is wanted.
    BranchTree {
        /// The condition's number.
        condition: Index,
        /// What is wanted.
        wanted: bool,
        /// Where.
        to: Pc,
    },
    /// `r :=` the low bits of an expression, evaluated as a tree.
    Tree {
        /// Target.
        r: R,
        /// The expression's number.
        expression: Index,
    },
    /// A statement that is evaluated as a tree.
    Statement {
        /// The statement's number.
        statement: Index,
    },
    /// Takes a header of fixed size from the packet, or ends the parser with an error.
    Extract {
        /// The header.
        header: Index,
    },
    /// Any other way to take a header from the packet.
    ExtractTree {
        /// The operation's number.
        op: Index,
    },
    /// `r :=` bits that lie ahead; ends the parser with an error if the packet is too short.
    Peek {
        /// Target.
        r: R,
        /// Offset in bits.
        offset: u32,
        /// Bits, at most 64.
        bits: u8,
        /// Whether a packet that is too short is an error; otherwise the bits that are missing are 0.
        strict: bool,
    },
    /// Skips so many bytes, or ends the parser with an error.
    Skip {
        /// How many.
        bytes: u32,
    },
    /// Any other operation of a parser.
    ParserTree {
        /// The operation's number.
        op: Index,
    },
    /// Chooses the next state by a key that no register holds.
    Select {
        /// The state's number.
        state: Index,
    },
    /// Makes a header valid, zero if it was not, and the packet longer.
    AddHeader {
        /// The header.
        header: Index,
    },
    /// Makes a header invalid and the packet shorter.
    RemoveHeader {
        /// The header.
        header: Index,
    },
    /// Marks the packet to be dropped.
    MarkToDrop {
        /// Where the number of the egress port goes.
        spec: Index,
    },
    /// Applies a table: goes on with its action, then where the table says.
    Apply {
        /// The table.
        table: Index,
    },
    /// Calls an action without arguments, then goes on there.
    Call {
        /// The action's first operation.
        action: Pc,
        /// Where to go on.
        then: Pc,
    },
    /// Ends an action.
    Return,
    /// Ends the pipeline after this action.
    Exit,
    /// Locks arrays of registers, in order; the end of the action lets go of them.
    Lock {
        /// The set's number.
        set: Index,
    },
    /// `r :=` a cell of up to 64 bits; nothing changes if there is no such cell.
    RegisterRead {
        /// Target.
        r: R,
        /// Index.
        index: R,
        /// Which of the locked arrays.
        held: u8,
        /// Where to go on if there is no such cell.
        missing: Pc,
    },
    /// Stores in a cell of up to 64 bits.
    RegisterWrite {
        /// Source.
        r: R,
        /// Index.
        index: R,
        /// Which of the locked arrays.
        held: u8,
    },
    /// Bits of the arena `:=` a cell of more than 64 bits, cut to them; nothing changes if there is no such cell.
    CellRead {
        /// Index.
        index: R,
        /// Which of the locked arrays.
        held: u8,
        /// The first bit.
        bit: u32,
        /// How many.
        bits: u32,
    },
    /// Counts the packet.
    Count {
        /// The array.
        counter: Index,
        /// Index.
        index: R,
    },
    /// `r :=` the colour of the packet.
    Meter {
        /// Target.
        r: R,
        /// Index.
        index: R,
        /// The array.
        meter: u16,
        /// Where to go on if there is no such meter.
        missing: Pc,
    },
    /// `r :=` a calculation's result.
    Hash {
        /// Target.
        r: R,
        /// The calculation.
        calculation: Index,
    },
    /// `r :=` a random number between two others.
    Random {
        /// Target.
        r: R,
        /// From.
        low: R,
        /// To, included.
        high: R,
        /// Where to go on if there is none.
        missing: Pc,
    },
    /// Asks for something at the end of the pipeline.
    Ask {
        /// For what.
        what: Asked,
        /// The number that goes with it.
        r: R,
        /// A second one, for clones.
        b: R,
    },
    /// Compares a checksum with what the packet says.
    Verify {
        /// The checksum.
        checksum: Index,
    },
    /// Stores a checksum.
    Update {
        /// The checksum.
        checksum: Index,
    },
    /// The end of a pipeline, parser or deparser.
    End,
}

/// What a program can ask the traffic manager for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Asked {
    /// A clone: session, field list.
    Clone,
    /// Another pass from the packet as received: field list.
    Resubmit,
    /// Another pass from the packet as sent: field list.
    Recirculate,
    /// A digest: its number.
    Digest,
    /// A shorter packet: bytes.
    Truncate,
    /// To be dropped, if the value is 0.
    Assert,
}

impl Op {
    /// The places that it can go on at, so that labels can be resolved.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Pc> {
        let (first, second) = match self {
            Self::Jump { to }
            | Self::Branch { to, .. }
            | Self::BranchEq { to, .. }
            | Self::BranchNe { to, .. }
            | Self::BranchMasked { to, .. }
            | Self::BranchByte { to, .. }
            | Self::BranchPair { to, .. }
            | Self::WideBranch { to, .. }
            | Self::BranchValid { to, .. }
            | Self::BranchTree { to, .. } => (Some(to), None),
            Self::RegisterRead { missing, .. }
            | Self::Meter { missing, .. }
            | Self::Random { missing, .. } => (Some(missing), None),
            Self::Call { action, then } => (Some(action), Some(then)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }
}
