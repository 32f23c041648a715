//! Executable form: one linear list of operations on two register banks and the packet's arena.
//!
//! There are two lanes: 64 bits (`r`, fast) and 128 bits (`w`). Lowering proves that no value exceeds its lane, or
//! that only the low bits matter. Wider or rare expressions refer to an expression tree of the program by index and
//! are evaluated with arbitrary-precision integers.

use serde::Serialize;

/// Index of a 64-bit register.
pub type R = u8;
/// Index of a 128-bit register.
pub type W = u8;
/// Position in the list of operations.
pub type Pc = u32;
/// Position in one of the side tables.
pub type Index = u32;

/// Arithmetic operation on two registers.
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
    /// Bitwise AND.
    And,
    /// Bitwise OR.
    Or,
    /// Bitwise XOR.
    Xor,
    /// Left shift; 0 for a shift by the width or more.
    Shl,
    /// Logical right shift; 0 for a shift by the width or more.
    Shr,
    /// Arithmetic right shift; all sign bits for a shift by the width or more.
    Sar,
}

/// Comparison of two registers.
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

/// Operation. `to` is the target of a branch.
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
        /// Offset in the arena.
        at: u32,
    },
    /// `r :=` two bytes.
    Load2 {
        /// Target.
        r: R,
        /// Offset of the first byte.
        at: u32,
    },
    /// `r :=` four bytes.
    Load4 {
        /// Target.
        r: R,
        /// Offset of the first byte.
        at: u32,
    },
    /// `r :=` eight bytes.
    Load8 {
        /// Target.
        r: R,
        /// Offset of the first byte.
        at: u32,
    },
    /// `r :=` bits within eight bytes.
    Load {
        /// Target.
        r: R,
        /// Offset of the eight bytes.
        at: u32,
        /// Right shift after the load, bits.
        shift: u8,
        /// Number of significant bits.
        bits: u8,
    },
    /// Stores the low byte.
    Store1 {
        /// Source.
        r: R,
        /// Target offset.
        at: u32,
    },
    /// Stores the low two bytes.
    Store2 {
        /// Source.
        r: R,
        /// Target offset.
        at: u32,
    },
    /// Stores the low four bytes.
    Store4 {
        /// Source.
        r: R,
        /// Target offset.
        at: u32,
    },
    /// Stores eight bytes; the bits above `bits` are 0.
    Store8 {
        /// Source.
        r: R,
        /// Target offset.
        at: u32,
        /// Number of kept bits.
        bits: u8,
    },
    /// Stores bits into eight bytes.
    Store {
        /// Source.
        r: R,
        /// Offset of the eight bytes.
        at: u32,
        /// Left shift before the store, bits.
        shift: u8,
        /// Number of stored bits.
        bits: u8,
    },
    /// `w :=` bits within sixteen bytes.
    WideLoad {
        /// Target.
        w: W,
        /// Offset of the sixteen bytes.
        at: u32,
        /// Right shift after the load, bits.
        shift: u8,
        /// Number of significant bits.
        bits: u8,
    },
    /// Stores bits into sixteen bytes.
    WideStore {
        /// Source.
        w: W,
        /// Offset of the sixteen bytes.
        at: u32,
        /// Left shift before the store, bits.
        shift: u8,
        /// Number of stored bits.
        bits: u8,
    },
    /// Copies bytes.
    Copy {
        /// Source offset.
        from: u32,
        /// Target offset.
        to: u32,
        /// Length.
        bytes: u32,
    },
    /// Stores a constant as big-endian bytes.
    Fill {
        /// Target offset.
        at: u32,
        /// Index of the constant.
        constant: Index,
    },
    /// `r :=` an argument of the action.
    Arg {
        /// Target.
        r: R,
        /// Offset of the eight bytes in the argument bytes.
        at: u32,
    },
    /// `w :=` an argument of the action.
    WideArg {
        /// Target.
        w: W,
        /// Start offset in the argument bytes.
        at: u32,
        /// Number of bytes, at most 16.
        bytes: u8,
    },
    /// Stores an argument of the action in eight bytes; the bits above `bits` are 0.
    StoreArg {
        /// Offset of the eight bytes in the argument bytes.
        arg: u32,
        /// Target offset.
        at: u32,
        /// Number of kept bits.
        bits: u8,
    },
    /// Copies the low bytes of an argument of the action.
    CopyArg {
        /// Offset of the eight bytes in the argument bytes.
        arg: u32,
        /// Target offset.
        at: u32,
        /// Number of bytes, at most 8.
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
        /// Number of kept bits.
        bits: u8,
        /// Right.
        value: u64,
    },
    /// Adds to one byte, modulo 256, for example to decrement a TTL.
    AddToByte {
        /// Offset in the arena.
        at: u32,
        /// Summand.
        value: u8,
    },
    /// `r := !a`.
    Not {
        /// Target.
        r: R,
        /// Source.
        a: R,
    },
    /// Sign-extends the low bits.
    SignExtend {
        /// Target and source.
        r: R,
        /// Number of significant bits.
        bits: u8,
    },
    /// Clamps to a range; the comparison is signed if value or range is signed.
    Clamp {
        /// Target and source.
        r: R,
        /// Whether `r` is signed.
        signed: bool,
        /// Width of the range, bits.
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
        /// Index of the constant.
        constant: Index,
    },
    /// `w := !a`.
    WideNot {
        /// Target.
        w: W,
        /// Source.
        a: W,
    },
    /// Sign-extends the low bits.
    WideSignExtend {
        /// Target and source.
        w: W,
        /// Number of significant bits.
        bits: u8,
    },
    /// Same as [`Op::Clamp`] in the 128-bit lane.
    WideClamp {
        /// Target and source.
        w: W,
        /// Whether `w` is signed.
        signed: bool,
        /// Width of the range, bits.
        bits: u8,
        /// Whether the range is signed.
        to_signed: bool,
    },
    /// `w := a`, sign-extended or zero-extended.
    Widen {
        /// Target.
        w: W,
        /// Source.
        a: R,
        /// Whether to sign-extend.
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
    /// Jumps.
    Jump {
        /// Branch target.
        to: Pc,
    },
    /// Consumes one unit of the packet's fuel. Every loop contains this operation, so every program terminates.
    Fuel,
    /// Branches if the test holds.
    Branch {
        /// The test.
        test: Test,
        /// Left.
        a: R,
        /// Right.
        b: R,
        /// Branch target.
        to: Pc,
    },
    /// Branches if `a` equals a constant.
    BranchEq {
        /// Left.
        a: R,
        /// Branch target.
        to: Pc,
        /// Right.
        value: u64,
    },
    /// Branches if `a` does not equal a constant.
    BranchNe {
        /// Left.
        a: R,
        /// Branch target.
        to: Pc,
        /// Right.
        value: u64,
    },
    /// Branches if `a & mask == value`.
    BranchMasked {
        /// Left.
        a: R,
        /// Branch target.
        to: Pc,
        /// Index of the pair of value and mask.
        pair: Index,
    },
    /// Branches if the masked bits of one byte are inside or outside of bounds. Lowering has shifted the bounds to the position
    /// of the bits.
    BranchByte {
        /// Offset of the byte.
        at: u32,
        /// Mask of the compared bits.
        mask: u8,
        /// Lower bound, inclusive.
        low: u8,
        /// Upper bound, inclusive.
        high: u8,
        /// Whether to branch inside or outside of the bounds.
        inside: bool,
        /// Branch target.
        to: Pc,
    },
    /// Same as [`Op::BranchByte`] with two bytes.
    BranchPair {
        /// Offset of the first byte.
        at: u32,
        /// Mask of the compared bits.
        mask: u16,
        /// Lower bound, inclusive.
        low: u16,
        /// Upper bound, inclusive.
        high: u16,
        /// Whether to branch inside or outside of the bounds.
        inside: bool,
        /// Branch target.
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
        /// Branch target.
        to: Pc,
    },
    /// Branches if the validity of a header equals `valid`.
    BranchValid {
        /// Offset of the validity byte.
        at: u32,
        /// Validity that leads to the branch.
        valid: bool,
        /// Branch target.
        to: Pc,
    },
    /// Branches if a condition, evaluated as a tree, has the expected value.
    BranchTree {
        /// Index of the condition.
        condition: Index,
        /// Expected value.
        expected: bool,
        /// Branch target.
        to: Pc,
    },
    /// `r :=` the low bits of an expression, evaluated as a tree.
    Tree {
        /// Target.
        r: R,
        /// Index of the expression.
        expression: Index,
    },
    /// Executes a statement as a tree.
    Statement {
        /// Index of the statement.
        statement: Index,
    },
    /// Extracts a header of fixed size, or ends the parser with an error.
    Extract {
        /// The header.
        header: Index,
    },
    /// Extracts a header by a tree operation.
    ExtractTree {
        /// Index of the operation.
        op: Index,
    },
    /// `r :=` lookahead bits. `strict` determines what happens if the packet is too short.
    Peek {
        /// Target.
        r: R,
        /// Offset, bits.
        offset: u32,
        /// Width, at most 64 bits.
        bits: u8,
        /// Whether a packet that is too short ends the parser with an error; otherwise missing bits are 0.
        strict: bool,
    },
    /// Skips bytes, or ends the parser with an error.
    Skip {
        /// Length.
        bytes: u32,
    },
    /// Executes another parser operation as a tree.
    ParserTree {
        /// Index of the operation.
        op: Index,
    },
    /// Selects the next parser state by a key that is evaluated as a tree.
    Select {
        /// Index of the select expression.
        state: Index,
    },
    /// Makes a header valid (zeroed if it was invalid) and increases the packet length.
    AddHeader {
        /// The header.
        header: Index,
    },
    /// Makes a header invalid and decreases the packet length.
    RemoveHeader {
        /// The header.
        header: Index,
    },
    /// Marks the packet as dropped.
    MarkToDrop {
        /// The header that contains `egress_spec`.
        spec: Index,
    },
    /// Applies a table: continues with the action and then with the table's successor.
    Apply {
        /// The table.
        table: Index,
    },
    /// Calls an action without arguments, then continues at `then`.
    Call {
        /// First operation of the action.
        action: Pc,
        /// Operation after the action.
        then: Pc,
    },
    /// Ends an action.
    Return,
    /// Ends the pipeline after this action.
    Exit,
    /// Locks register arrays, in order; the end of the action unlocks them.
    Lock {
        /// Index of the lock set.
        set: Index,
    },
    /// `r :=` a cell of up to 64 bits; unchanged if the cell does not exist.
    RegisterRead {
        /// Target.
        r: R,
        /// Register with the index of the cell.
        index: R,
        /// Index among the locked arrays.
        lock_index: u8,
        /// Next operation if the cell does not exist.
        missing: Pc,
    },
    /// Stores in a cell of up to 64 bits.
    RegisterWrite {
        /// Source.
        r: R,
        /// Register with the index of the cell.
        index: R,
        /// Index among the locked arrays.
        lock_index: u8,
    },
    /// Arena bits `:=` a cell of more than 64 bits, truncated; unchanged if the cell does not exist.
    CellRead {
        /// Register with the index of the cell.
        index: R,
        /// Index among the locked arrays.
        lock_index: u8,
        /// First bit.
        bit: u32,
        /// Length.
        bits: u32,
    },
    /// Counts the packet.
    Count {
        /// Array.
        counter: Index,
        /// Register with the index of the cell.
        index: R,
    },
    /// `r :=` the meter color of the packet.
    Meter {
        /// Target.
        r: R,
        /// Register with the index of the cell.
        index: R,
        /// Array.
        meter: u16,
        /// Next operation if the meter does not exist.
        missing: Pc,
    },
    /// `r :=` the result of a calculation.
    Hash {
        /// Target.
        r: R,
        /// The calculation.
        calculation: Index,
    },
    /// `r :=` a random number in a range.
    Random {
        /// Target.
        r: R,
        /// Register with the lower bound, inclusive.
        low: R,
        /// Register with the upper bound, inclusive.
        high: R,
        /// Next operation if the range is empty.
        missing: Pc,
    },
    /// Stores a request of the program for the packet.
    Request {
        /// Request.
        request: PacketRequest,
        /// Value of the request.
        value: R,
        /// Second value, for clones.
        second: R,
    },
    /// Verifies a checksum.
    Verify {
        /// The checksum.
        checksum: Index,
    },
    /// Updates a checksum.
    Update {
        /// The checksum.
        checksum: Index,
    },
    /// Ends a pipeline, parser or deparser.
    End,
}

/// Request of a program for the packet, mostly to the traffic manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PacketRequest {
    /// Clone: session, field list.
    Clone,
    /// Resubmit: field list.
    Resubmit,
    /// Recirculate: field list.
    Recirculate,
    /// Digest: id.
    Digest,
    /// Truncate: length, bytes.
    Truncate,
    /// Assertion: drops the packet if the value is 0.
    Assert,
}

impl Op {
    /// Returns all jump targets. Before labels are resolved, a target is a label.
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
