//! What names mean while a program is read.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use super::cursor::{LoadError, Loaded, Node};
use crate::program::ids::{
    ActionId, CalculationId, CounterId, FieldRef, HeaderId, MeterId, ProfileId, RegisterId, StackId, TypeId,
    UnionId, UnionStackId, ValueSetId,
};
use crate::program::{Header, HeaderType, Stack, Union, UnionStack};

/// Names by kind. Filled in the order of the document's dependencies.
#[derive(Default)]
pub struct Scope {
    pub types: Vec<HeaderType>,
    pub type_names: HashMap<String, TypeId>,
    pub headers: Vec<Header>,
    pub header_names: HashMap<String, HeaderId>,
    /// Headers by their number in the JSON.
    pub header_numbers: HashMap<u32, HeaderId>,
    pub stacks: Vec<Stack>,
    pub stack_names: HashMap<String, StackId>,
    pub unions: Vec<Union>,
    pub union_names: HashMap<String, UnionId>,
    pub union_numbers: HashMap<u32, UnionId>,
    pub union_stacks: Vec<UnionStack>,
    pub union_stack_names: HashMap<String, UnionStackId>,
    pub value_sets: HashMap<String, ValueSetId>,
    pub calculations: HashMap<String, CalculationId>,
    pub counters: HashMap<String, CounterId>,
    pub meters: HashMap<String, MeterId>,
    pub registers: HashMap<String, RegisterId>,
    pub actions: HashMap<u32, ActionId>,
    pub profiles: HashMap<String, ProfileId>,
    /// What was looked up so far by what reads or writes it.
    mentions: RefCell<Mentions>,
}

/// Fields that a program mentions: by name, or with their whole header.
#[derive(Default)]
struct Mentions {
    fields: BTreeSet<FieldRef>,
    headers: BTreeSet<HeaderId>,
}

/// A dense number for the next item of a list.
pub fn next_index(len: usize, node: &Node<'_>) -> Loaded<u32> {
    u32::try_from(len).map_err(|_| node.error("there are too many of these"))
}

fn look<T: Copy>(map: &HashMap<String, T>, name: &str, kind: &str, node: &Node<'_>) -> Result<T, LoadError> {
    map.get(name)
        .copied()
        .ok_or_else(|| node.error(format_args!("there is no {kind} {name:?}")))
}

macro_rules! lookups {
    ($($method:ident: $field:ident -> $id:ty, $kind:literal;)*) => {$(
        pub fn $method(&self, name: &str, node: &Node<'_>) -> Loaded<$id> {
            look(&self.$field, name, $kind, node)
        }
    )*};
}

impl Scope {
    lookups! {
        header_type: type_names -> TypeId, "header type";
        known_header: header_names -> HeaderId, "header";
        stack: stack_names -> StackId, "header stack";
        union: union_names -> UnionId, "header union";
        union_stack: union_stack_names -> UnionStackId, "stack of header unions";
        value_set: value_sets -> ValueSetId, "value set";
        calculation: calculations -> CalculationId, "calculation";
        counter: counters -> CounterId, "counter array";
        meter: meters -> MeterId, "meter array";
        register: registers -> RegisterId, "register array";
        profile: profiles -> ProfileId, "action profile";
    }

    pub fn action(&self, number: u32, node: &Node<'_>) -> Loaded<ActionId> {
        let found = self.actions.get(&number).copied();
        found.ok_or_else(|| node.error(format_args!("there is no action with id {number}")))
    }

    /// A header as a whole: all of its fields count as mentioned.
    pub fn header(&self, name: &str, node: &Node<'_>) -> Loaded<HeaderId> {
        let header = self.known_header(name, node)?;
        self.mentions.borrow_mut().headers.insert(header);
        Ok(header)
    }

    /// A header as part of a stack or union, by whose names its fields can be reached.
    pub fn header_numbered(&self, number: u32, node: &Node<'_>) -> Loaded<HeaderId> {
        let found = self.header_numbers.get(&number).copied();
        let header = found.ok_or_else(|| node.error(format_args!("there is no header with id {number}")))?;
        self.mentions.borrow_mut().headers.insert(header);
        Ok(header)
    }

    /// The header of `mark_to_drop`, which writes two of its fields; of those, one that is set to 0 counts for nothing.
    pub fn marked_header(&self, name: &str, node: &Node<'_>) -> Loaded<HeaderId> {
        let header = self.known_header(name, node)?;
        if let Some(field) = self.type_of(header, node)?.field("egress_spec") {
            self.mentions
                .borrow_mut()
                .fields
                .insert(FieldRef { header, field });
        }
        Ok(header)
    }

    pub fn type_of(&self, header: HeaderId, node: &Node<'_>) -> Loaded<&HeaderType> {
        self.headers
            .get(header.index())
            .and_then(|header| self.types.get(header.header_type.index()))
            .ok_or_else(|| node.error("has no type"))
    }

    /// A pair `[header, field]`.
    pub fn field(&self, node: &Node<'_>) -> Loaded<FieldRef> {
        let field = self.known_field(node)?;
        self.mentions.borrow_mut().fields.insert(field);
        Ok(field)
    }

    /// The same where a name is explained, not used.
    pub fn known_field(&self, node: &Node<'_>) -> Loaded<FieldRef> {
        let header_node = node.item(0)?;
        let name_node = node.item(1)?;
        let header = self.known_header(header_node.str()?, &header_node)?;
        let name = name_node.str()?;
        let field = self
            .type_of(header, node)?
            .field(name)
            .ok_or_else(|| node.error(format_args!("the header has no field {name:?}")))?;
        Ok(FieldRef { header, field })
    }

    /// A pair `[stack, field]`.
    pub fn stack_field(&self, node: &Node<'_>) -> Loaded<(StackId, u32)> {
        let stack_node = node.item(0)?;
        let stack = self.stack(stack_node.str()?, &stack_node)?;
        let name = node.item(1)?.str()?;
        let header_type = self
            .stacks
            .get(stack.index())
            .and_then(|stack| self.types.get(stack.header_type.index()))
            .ok_or_else(|| node.error("has no type"))?;
        let field = header_type
            .field(name)
            .ok_or_else(|| node.error(format_args!("the stack's headers have no field {name:?}")))?;
        Ok((stack, field))
    }

    /// The first union of a stack of unions and the position of a member in it, from `[stack, member, ..]`.
    pub fn union_member(&self, node: &Node<'_>) -> Loaded<(UnionStackId, u32, HeaderId)> {
        let stack_node = node.item(0)?;
        let stack = self.union_stack(stack_node.str()?, &stack_node)?;
        let name = node.item(1)?.str()?;
        let union = self
            .union_stacks
            .get(stack.index())
            .and_then(|stack| stack.unions.first())
            .and_then(|union| self.unions.get(union.index()))
            .ok_or_else(|| node.error("the stack of unions is empty"))?;
        let at = union
            .members
            .iter()
            .position(|member| member == name)
            .ok_or_else(|| node.error(format_args!("the union has no member {name:?}")))?;
        let header = union
            .headers
            .get(at)
            .copied()
            .ok_or_else(|| node.error("the union has fewer headers than its type"))?;
        Ok((stack, next_index(at, node)?, header))
    }

    /// All fields that were mentioned.
    pub fn mentioned(&self) -> BTreeSet<FieldRef> {
        let Mentions { fields, headers } = &*self.mentions.borrow();
        let all_of = |header: &HeaderId| {
            let header_type = self.headers.get(header.index());
            let header_type = header_type.and_then(|header| self.types.get(header.header_type.index()));
            let count = header_type.map_or(0, |header_type| header_type.fields.len());
            let header = *header;
            (0u32..).take(count).map(move |field| FieldRef { header, field })
        };
        fields
            .iter()
            .copied()
            .chain(headers.iter().flat_map(all_of))
            .collect()
    }
}
