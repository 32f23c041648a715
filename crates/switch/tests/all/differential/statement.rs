//! Random statements and actions.

use linewarden_switch::program::Program;
use linewarden_switch::program::action::{
    Action, AnyStack, CloneKind, FieldSource, LValue, Param, Statement,
};
use linewarden_switch::program::expr::{Binary, Bool, Compare, Data, HeaderExpr};
use linewarden_switch::program::ids::{
    CalculationId, CounterId, FieldRef, HeaderId, MeterId, RegisterId, StackId, TypeId, UnionStackId,
};
use num_bigint::BigInt;

use super::expression::Expressions;
use super::shape;
use super::source::Source;

/// Register array that limits loops and repeated packets.
const COUNTERS: RegisterId = RegisterId(0);

/// Part of the program that contains a statement: some statements are valid only in actions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StatementContext {
    /// Parser or deparser.
    Plain,
    /// Action.
    Action,
}

fn number(value: impl Into<BigInt>) -> Data {
    Data::Const(value.into())
}

fn counter(cell: usize) -> Data {
    Data::Register(COUNTERS, Box::new(number(cell)))
}

/// 1 if the cell is below `limit`, else 0.
fn is_below_limit(cell: usize, limit: usize) -> Data {
    let (count, limit) = (Box::new(counter(cell)), Box::new(number(limit)));
    Data::FromBool(Box::new(Bool::Compare(Compare::Lt, count, limit)))
}

/// Statement that increments a cell.
fn increment(cell: usize) -> Statement {
    let next = Data::Binary(Binary::Add, Box::new(counter(cell)), Box::new(number(1)));
    Statement::RegisterWrite(COUNTERS, number(cell), next)
}

/// Generates statements.
pub struct Statements<'e> {
    /// Generator of the expressions in the statements.
    pub expressions: Expressions<'e>,
    /// Part of the program that contains the statements.
    pub context: StatementContext,
}

impl Statements<'_> {
    fn source(&mut self) -> &mut Source {
        self.expressions.source
    }

    fn program(&self) -> &Program {
        self.expressions.program
    }

    fn data(&mut self) -> Data {
        let depth = self.source().below(4);
        self.expressions.data(depth)
    }

    /// Writable field.
    fn target(&mut self) -> FieldRef {
        const WRITABLE: [&str; 4] = ["egress_spec", "mcast_grp", "egress_rid", "priority"];
        if self.source().percent(8) {
            return shape::standard(WRITABLE[self.source().below(WRITABLE.len())]);
        }
        let fields: Vec<FieldRef> = shape::fixed_fields(self.program())
            .into_iter()
            .filter(|field| field.header != shape::STANDARD)
            .collect();
        self.source().pick(&fields).unwrap()
    }

    fn lvalue(&mut self) -> LValue {
        match self.source().below(6) {
            5 => {
                if let Some((header, header_id)) = self.expressions.any_header() {
                    let fields = shape::fixed_fields_of(self.program(), header_id);
                    return LValue::Access(header, self.source().pick(&fields).unwrap().field);
                }
                LValue::Field(self.target())
            }
            4 if self.program().registers.len() > 1 => {
                let register = self.register();
                LValue::Register(register, self.expressions.index())
            }
            _ => LValue::Field(self.target()),
        }
    }

    fn field_lvalue(&mut self) -> LValue {
        match self.lvalue() {
            LValue::Register(..) => LValue::Field(self.target()),
            lvalue => lvalue,
        }
    }

    /// Any register array except the first.
    fn register(&mut self) -> RegisterId {
        let count = self.program().registers.len().saturating_sub(1);
        RegisterId(1 + self.source().below(count) as u32)
    }

    /// Statement without jumps.
    pub fn simple(&mut self) -> Statement {
        let kinds = if self.context == StatementContext::Plain {
            14
        } else {
            24
        };
        match self.source().below(kinds) {
            0 => Statement::Noop,
            1..=4 => {
                let target = self.lvalue();
                Statement::Assign(target, self.data())
            }
            5 | 6 => self.header_copy(),
            7 | 8 => match self.expressions.any_header() {
                Some((header, _)) => Statement::AddHeader(header),
                None => Statement::Noop,
            },
            9 => match self.expressions.any_header() {
                Some((header, _)) => Statement::RemoveHeader(header),
                None => Statement::Noop,
            },
            10 | 11 => self.move_stack(),
            12 => self.union_copy(),
            13 => self.variable_copy(),
            14 | 15 => self.registers(),
            16 => self.hash(),
            17 => match self.program().counters.len() {
                0 => Statement::Noop,
                count => {
                    let counter = CounterId(self.source().below(count) as u32);
                    Statement::Count(counter, self.expressions.index())
                }
            },
            18 => match self
                .program()
                .meters
                .iter()
                .filter(|meter| meter.direct.is_none())
                .count()
            {
                0 => Statement::Noop,
                count => {
                    let meter = MeterId(self.source().below(count) as u32);
                    let index = self.expressions.index();
                    Statement::Meter(meter, index, self.field_lvalue())
                }
            },
            19 => {
                let target = self.lvalue();
                let (low, high) = (self.expressions.index(), self.data());
                Statement::Random(target, low, high)
            }
            20 => Statement::Assign(
                LValue::Field(shape::standard("egress_spec")),
                number(self.source().below(8)),
            ),
            21 => match self.source().below(3) {
                0 => Statement::MarkToDrop(shape::STANDARD),
                1 => Statement::Drop,
                _ => Statement::Exit,
            },
            22 => Statement::Truncate(self.small(80)),
            _ => match self.source().below(4) {
                0 => Statement::Assert(self.data()),
                1 => Statement::LogMsg("{}".into(), vec![self.data()]),
                2 => Statement::Digest(self.small(3)),
                _ => Statement::Noop,
            },
        }
    }

    fn header_copy(&mut self) -> Statement {
        let Some((to, header_id)) = self.expressions.any_header() else {
            return Statement::Noop;
        };
        let header_type = self.program().headers[header_id.index()].header_type;
        Statement::AssignHeader(to, self.expressions.header_of(header_type))
    }

    fn stack(&mut self) -> Option<AnyStack> {
        let mut stacks: Vec<AnyStack> = Vec::new();
        stacks.extend(shape::stacks(self.program()).into_iter().map(AnyStack::Headers));
        stacks.extend(
            shape::union_stacks(self.program())
                .into_iter()
                .map(AnyStack::Unions),
        );
        self.source().pick(&stacks)
    }

    fn move_stack(&mut self) -> Statement {
        let Some(stack) = self.stack() else {
            return Statement::Noop;
        };
        let count = self.small(6);
        match self.source().below(2) {
            0 => Statement::Push(stack, count),
            _ => Statement::Pop(stack, count),
        }
    }

    fn union_copy(&mut self) -> Statement {
        match self.source().below(3) {
            0 => {
                let (Some((to, _)), Some((from, _))) = (self.expressions.union(), self.expressions.union())
                else {
                    return Statement::Noop;
                };
                Statement::AssignUnion(to, from)
            }
            1 => match self.stack() {
                Some(AnyStack::Headers(to)) => Statement::AssignStack(to, self.same_stack(to)),
                Some(AnyStack::Unions(to)) => Statement::AssignUnionStack(to, self.same_union_stack(to)),
                None => Statement::Noop,
            },
            _ => Statement::Noop,
        }
    }

    fn same_stack(&mut self, like: StackId) -> StackId {
        let dimensions = |stack: &StackId| {
            let stack = &self.program().stacks[stack.index()];
            (stack.header_type, stack.headers.len())
        };
        let candidates: Vec<StackId> = shape::stacks(self.program())
            .into_iter()
            .filter(|stack| dimensions(stack) == dimensions(&like))
            .collect();
        self.source().pick(&candidates).unwrap()
    }

    fn same_union_stack(&mut self, like: UnionStackId) -> UnionStackId {
        let size = |stack: &UnionStackId| self.program().union_stacks[stack.index()].unions.len();
        let candidates: Vec<UnionStackId> = shape::union_stacks(self.program())
            .into_iter()
            .filter(|stack| size(stack) == size(&like))
            .collect();
        self.source().pick(&candidates).unwrap()
    }

    fn variable_copy(&mut self) -> Statement {
        let types: Vec<(u32, u32)> = (0u32..)
            .zip(&self.program().types)
            .filter_map(|(type_id, declaration)| Some((type_id, declaration.variable()? as u32)))
            .collect();
        let Some((header_type, field)) = self.source().pick(&types) else {
            return Statement::Noop;
        };
        let has_type =
            |header: &&linewarden_switch::program::Header| header.header_type == TypeId(header_type);
        if self.program().headers.iter().find(has_type).is_none() {
            return Statement::Noop;
        }
        let mut operand = || FieldSource {
            header: self.expressions.header_of(TypeId(header_type)),
            field,
        };
        Statement::AssignVl(operand(), operand())
    }

    fn registers(&mut self) -> Statement {
        if self.program().registers.len() < 2 {
            return Statement::Noop;
        }
        let (register, index) = (self.register(), self.expressions.index());
        match self.source().below(2) {
            0 => Statement::RegisterRead(self.field_lvalue(), register, index),
            _ => Statement::RegisterWrite(register, index, self.data()),
        }
    }

    fn hash(&mut self) -> Statement {
        match self.program().calculations.len() {
            0 => Statement::Noop,
            count => Statement::Hash {
                calculation: CalculationId(self.source().below(count) as u32),
                target: self.lvalue(),
                base: self.expressions.index(),
                size: self.data(),
            },
        }
    }

    /// Integer expression, mostly a constant below a bound.
    fn small(&mut self, bound: usize) -> Data {
        match self.source().below(10) {
            9 => self.data(),
            _ => number(self.source().below(bound)),
        }
    }

    /// Statement that creates additional packets: clone, resubmit or recirculate.
    fn traffic(&mut self) -> Statement {
        let list = self.small(4);
        match self.source().below(4) {
            0 => Statement::Resubmit(list),
            1 => Statement::Recirculate(list),
            _ => {
                let kind = match self.source().below(2) {
                    0 => CloneKind::Ingress,
                    _ => CloneKind::Egress,
                };
                Statement::Clone(kind, self.small(4), list)
            }
        }
    }

    /// Statements, some of them conditional or in loops.
    pub fn body(&mut self, count: usize) -> Vec<Statement> {
        let mut body = Vec::new();
        for _ in 0..count {
            let start = body.len() as u32;
            match self.source().below(12) {
                7 | 8 => {
                    let condition = self.expressions.bool(2);
                    let inner: Vec<Statement> =
                        (0..self.source().between(1, 3)).map(|_| self.simple()).collect();
                    let after = start + 1 + inner.len() as u32;
                    body.push(Statement::JumpIfZero(Data::FromBool(Box::new(condition)), after));
                    body.extend(inner);
                }
                9 => {
                    let inner = [self.simple(), self.simple()];
                    body.push(Statement::JumpIfZero(is_below_limit(1, 5), start + 5));
                    body.push(increment(1));
                    body.extend(inner);
                    body.push(Statement::Jump(start));
                }
                10 => {
                    let statement = self.traffic();
                    body.push(Statement::JumpIfZero(is_below_limit(2, 4), start + 3));
                    body.push(increment(2));
                    body.push(statement);
                }
                11 => {
                    body.push(Statement::Jump(start + 2));
                    body.push(self.simple());
                }
                _ => body.push(self.simple()),
            }
        }
        body
    }
}

/// Random action.
pub fn action(source: &mut Source, program: &Program, number: u32) -> Action {
    let params: Vec<Param> = (0..source.below(4))
        .map(|index| Param {
            name: format!("p{index}"),
            bits: shape::width(source),
        })
        .collect();
    let count = source.between(1, 6);
    let mut statements = Statements {
        expressions: Expressions {
            source,
            program,
            params: params.len(),
        },
        context: StatementContext::Action,
    };
    Action {
        name: format!("a{number}"),
        json_id: number,
        body: statements.body(count),
        params,
    }
}

/// Action that reports packet state: validity, stack sizes and `fields` in registers, all other fields by `digest`.
pub fn report_action(
    program: &Program,
    id: u32,
    cells: RegisterId,
    digest: Option<u32>,
    fields: &[FieldRef],
) -> Action {
    let mut body = Vec::new();
    if let Some(digest) = digest {
        body.push(Statement::Digest(number(digest)));
    }
    let mut validity_and_sizes = number(1);
    for header in shape::packet_headers(program) {
        let bit = Data::FromBool(Box::new(Bool::Valid(Box::new(HeaderExpr::Header(HeaderId(
            header.0,
        ))))));
        validity_and_sizes = Data::Binary(
            Binary::Add,
            Box::new(Data::Binary(
                Binary::Shl,
                Box::new(validity_and_sizes),
                Box::new(number(1)),
            )),
            Box::new(bit),
        );
    }
    for stack in shape::stacks(program) {
        validity_and_sizes = Data::Binary(
            Binary::Add,
            Box::new(Data::Binary(
                Binary::Shl,
                Box::new(validity_and_sizes),
                Box::new(number(3)),
            )),
            Box::new(Data::Size(stack)),
        );
    }
    let mut values = vec![validity_and_sizes];
    values.extend(fields.iter().map(|field| Data::Field(*field)));
    for (index, value) in values.into_iter().enumerate() {
        body.push(Statement::RegisterWrite(cells, number(index), value));
    }
    Action {
        name: format!("show{id}"),
        json_id: id,
        params: Vec::new(),
        body,
    }
}
