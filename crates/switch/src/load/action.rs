//! Loading of actions and their primitives.

use num_traits::ToPrimitive;

use super::cursor::{LoadError, LoadResult, Node};
use super::expression::{BITS_MAX, ExpressionReader, Locals};
use super::scope::Scope;
use crate::program::action::{Action, AnyStack, CloneKind, FieldSource, LValue, Param, Statement};
use crate::program::expr::{Binary, Data, Expr, HeaderExpr, UnionExpr};
use crate::program::ids::HeaderId;

/// Reads one action.
pub fn action(scope: &Scope, node: &Node<'_>) -> LoadResult<Action> {
    let mut params = Vec::new();
    for param in node.field("runtime_data")?.items()? {
        let bits = param.u32_at("bitwidth")?;
        if bits == 0 || bits > BITS_MAX {
            return Err(param.error(format_args!(
                "has invalid width {bits}: expected 1 to {BITS_MAX} bits"
            )));
        }
        params.push(Param {
            name: param.str_at("name")?.to_owned(),
            bits,
        });
    }
    let list = node.field("primitives")?;
    let reader = StatementReader {
        scope,
        locals: Locals::Count(params.len()),
        count: list.len(),
    };
    let body = list
        .items()?
        .map(|item| reader.statement(&item))
        .collect::<LoadResult<_>>()?;
    Ok(Action {
        name: node.str_at("name")?.to_owned(),
        json_id: node.u32_at("id")?,
        params,
        body,
    })
}

/// Reads statements.
pub struct StatementReader<'s> {
    pub scope: &'s Scope,
    pub locals: Locals,
    /// Number of statements. A jump target may equal this number.
    pub count: usize,
}

impl StatementReader<'_> {
    /// Reads a statement: `{"op": .., "parameters": [..]}`.
    pub fn statement(&self, node: &Node<'_>) -> LoadResult<Statement> {
        let op = node.str_at("op")?;
        let list = node.field("parameters")?;
        let args = Args {
            reader: self,
            node,
            list: &list,
        };
        if let Some(statement) = self.two_operand(op, &args)? {
            return Ok(statement);
        }
        Ok(match op {
            "assign" | "modify_field" => Statement::Assign(args.lvalue(0)?, args.data(1)?),
            "assign_VL" => Statement::AssignVl(args.field_source(0)?, args.field_source(1)?),
            "assign_header" | "copy_header" => Statement::AssignHeader(args.header(0)?, args.header(1)?),
            "assign_union" => Statement::AssignUnion(args.union(0)?, args.union(1)?),
            "assign_header_stack" | "assign_union_stack" => args.assign_stack()?,
            "push" => Statement::Push(args.stack(0)?, args.data(1)?),
            "pop" => Statement::Pop(args.stack(0)?, args.data(1)?),
            "_jump" => Statement::Jump(args.target(0)?),
            "_jump_if_zero" => Statement::JumpIfZero(args.number(0)?, args.target(1)?),
            "exit" => Statement::Exit,
            "assert" | "assume" => Statement::Assert(args.number(0)?),
            "log_msg" => args.log_msg()?,
            "drop" => Statement::Drop,
            "mark_to_drop" => Statement::MarkToDrop(args.mark_to_drop_header()?),
            "generate_digest" => Statement::Digest(args.data(1)?),
            "add_header" | "add_header_fast" => Statement::AddHeader(args.header(0)?),
            "remove_header" => Statement::RemoveHeader(args.header(0)?),
            "clone_ingress_pkt_to_egress" => {
                Statement::Clone(CloneKind::Ingress, args.data(0)?, args.data(1)?)
            }
            "clone_egress_pkt_to_egress" => Statement::Clone(CloneKind::Egress, args.data(0)?, args.data(1)?),
            "resubmit" => Statement::Resubmit(args.data(0)?),
            "recirculate" => Statement::Recirculate(args.data(0)?),
            "modify_field_with_hash_based_offset" => Statement::Hash {
                target: args.lvalue(0)?,
                base: args.data(1)?,
                calculation: self.scope.calculation(args.text(2)?, node)?,
                size: args.data(3)?,
            },
            "count" => Statement::Count(self.scope.counter(args.text(0)?, node)?, args.data(1)?),
            "execute_meter" => Statement::Meter(
                self.scope.meter(args.text(0)?, node)?,
                args.data(1)?,
                args.lvalue(2)?,
            ),
            "register_read" => Statement::RegisterRead(
                args.lvalue(0)?,
                self.scope.register(args.text(1)?, node)?,
                args.data(2)?,
            ),
            "register_write" => Statement::RegisterWrite(
                self.scope.register(args.text(0)?, node)?,
                args.data(1)?,
                args.data(2)?,
            ),
            "truncate" => Statement::Truncate(args.data(0)?),
            "modify_field_rng_uniform" => Statement::Random(args.lvalue(0)?, args.data(1)?, args.data(2)?),
            "no_op" => Statement::Noop,
            other => return Err(node.error(format_args!("unknown primitive {other:?}"))),
        })
    }

    /// Reads an arithmetic primitive of P4_14 as an assignment; `None` for other primitives.
    fn two_operand(&self, op: &str, args: &Args<'_, '_>) -> LoadResult<Option<Statement>> {
        let binary = match op {
            "add" | "add_to_field" => Binary::Add,
            "subtract" | "subtract_from_field" => Binary::Sub,
            "bit_and" => Binary::And,
            "bit_or" => Binary::Or,
            "bit_xor" => Binary::Xor,
            "shift_left" => Binary::Shl,
            "shift_right" => Binary::Shr,
            _ => return Ok(None),
        };
        let target = args.lvalue(0)?;
        let (left, right) = match op {
            "add_to_field" | "subtract_from_field" => (args.data(0)?, args.data(1)?),
            _ => (args.data(1)?, args.data(2)?),
        };
        let value = Data::Binary(binary, Box::new(left), Box::new(right));
        Ok(Some(Statement::Assign(target, value)))
    }
}

/// Arguments of a primitive.
struct Args<'a, 'n> {
    reader: &'a StatementReader<'a>,
    node: &'a Node<'n>,
    list: &'a Node<'n>,
}

impl Args<'_, '_> {
    fn expressions(&self) -> ExpressionReader<'_> {
        ExpressionReader {
            scope: self.reader.scope,
            locals: self.reader.locals,
        }
    }

    fn expression(&self, index: usize) -> LoadResult<Expr> {
        let node = self.list.item(index)?;
        self.expressions().expression(&node)
    }

    fn type_error(&self, index: usize, actual: &Expr, expected: &str) -> LoadError {
        self.node.error(format_args!(
            "argument {index} is {}: expected {expected}",
            actual.kind()
        ))
    }

    /// Reads an integer.
    fn data(&self, index: usize) -> LoadResult<Data> {
        match self.expression(index)? {
            Expr::Data(data) => Ok(data),
            other => Err(self.type_error(index, &other, "an integer")),
        }
    }

    /// Reads an integer, or a condition as 0 or 1.
    fn number(&self, index: usize) -> LoadResult<Data> {
        match self.expression(index)? {
            Expr::Data(data) => Ok(data),
            Expr::Bool(condition) => Ok(Data::FromBool(Box::new(condition))),
            other => Err(self.type_error(index, &other, "an integer")),
        }
    }

    fn header(&self, index: usize) -> LoadResult<HeaderExpr> {
        match self.expression(index)? {
            Expr::Header(header) => Ok(header),
            other => Err(self.type_error(index, &other, "a header")),
        }
    }

    /// Reads the header of `mark_to_drop`.
    fn mark_to_drop_header(&self) -> LoadResult<HeaderId> {
        let node = self.list.item(0)?;
        let value = node.field("value")?;
        match node.str_at("type")? {
            "header" => self.reader.scope.mark_to_drop_header(value.str()?, &value),
            _ => Err(self.node.error("mark_to_drop requires a header name")),
        }
    }

    fn union(&self, index: usize) -> LoadResult<UnionExpr> {
        match self.expression(index)? {
            Expr::Union(union) => Ok(union),
            other => Err(self.type_error(index, &other, "a header union")),
        }
    }

    fn stack(&self, index: usize) -> LoadResult<AnyStack> {
        match self.expression(index)? {
            Expr::Stack(stack) => Ok(AnyStack::Headers(stack)),
            Expr::UnionStack(stack) => Ok(AnyStack::Unions(stack)),
            other => Err(self.type_error(index, &other, "a stack")),
        }
    }

    fn assign_stack(&self) -> LoadResult<Statement> {
        match (self.stack(0)?, self.stack(1)?) {
            (AnyStack::Headers(to), AnyStack::Headers(from)) => Ok(Statement::AssignStack(to, from)),
            (AnyStack::Unions(to), AnyStack::Unions(from)) => Ok(Statement::AssignUnionStack(to, from)),
            _ => Err(self
                .node
                .error("cannot assign between a header stack and a header union stack")),
        }
    }

    /// Reads an assignable location.
    fn lvalue(&self, index: usize) -> LoadResult<LValue> {
        match self.expression(index)? {
            Expr::Data(Data::Field(field)) => Ok(LValue::Field(field)),
            Expr::Data(Data::Access(header, field)) => Ok(LValue::Access(*header, field)),
            Expr::Data(Data::StackLast(stack, field)) => Ok(LValue::Access(HeaderExpr::Last(stack), field)),
            Expr::Data(Data::Register(register, index)) => Ok(LValue::Register(register, *index)),
            other => Err(self.type_error(index, &other, "a field or a register cell")),
        }
    }

    fn field_source(&self, index: usize) -> LoadResult<FieldSource> {
        match self.expression(index)? {
            Expr::Data(Data::Field(field)) => Ok(FieldSource {
                header: HeaderExpr::Header(field.header),
                field: field.field,
            }),
            Expr::Data(Data::Access(header, field)) => Ok(FieldSource {
                header: *header,
                field,
            }),
            Expr::Data(Data::StackLast(stack, field)) => Ok(FieldSource {
                header: HeaderExpr::Last(stack),
                field,
            }),
            other => Err(self.type_error(index, &other, "a field")),
        }
    }

    /// Reads the name of an object: `{"type": "register_array", "value": "name"}`.
    fn text(&self, index: usize) -> LoadResult<&str> {
        self.list
            .value()
            .get(index)
            .and_then(|item| item.get("value"))
            .and_then(|value| value.as_str())
            .ok_or_else(|| self.node.error(format_args!("argument {index} is not a name")))
    }

    /// Reads a jump target, at most the number of statements.
    fn target(&self, index: usize) -> LoadResult<u32> {
        let Data::Const(target) = self.data(index)? else {
            return Err(self.node.error("jump target is not a constant"));
        };
        target
            .to_u32()
            .filter(|target| *target as usize <= self.reader.count)
            .ok_or_else(|| {
                self.node.error(format_args!(
                    "jump target {target} is out of range: the action has {} statements",
                    self.reader.count
                ))
            })
    }

    fn log_msg(&self) -> LoadResult<Statement> {
        let format = self.text(0)?.to_owned();
        let Some(list) = self.list.value().get(1) else {
            return Ok(Statement::LogMsg(format, Vec::new()));
        };
        if list.is_null() {
            return Ok(Statement::LogMsg(format, Vec::new()));
        }
        let vector = self.list.item(1)?;
        let values = vector.field("value")?;
        let mut data = Vec::new();
        for value in values.items()? {
            data.push(match self.expressions().expression(&value)? {
                Expr::Data(data) => data,
                Expr::Bool(condition) => Data::FromBool(Box::new(condition)),
                other => return Err(value.error(format_args!("is {}: cannot be logged", other.kind()))),
            });
        }
        Ok(Statement::LogMsg(format, data))
    }
}
