//! Name resolution during loading.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use super::cursor::{LoadError, LoadResult, Node};
use crate::program::ids::{
    ActionId, CalculationId, CounterId, FieldRef, HeaderId, MeterId, ProfileId, RegisterId, StackId, TypeId,
    UnionId, UnionStackId, ValueSetId,
};
use crate::program::{Header, HeaderType, Stack, Union, UnionStack};

/// Elements of the program by kind and name, added in the order of dependencies.
// There are more than 15 fields because there is one map for each kind of element that a program defines.
#[derive(Default)]
pub struct Scope {
    pub types: Vec<HeaderType>,
    pub type_names: HashMap<String, TypeId>,
    pub headers: Vec<Header>,
    pub header_names: HashMap<String, HeaderId>,
    pub headers_by_json_id: HashMap<u32, HeaderId>,
    pub stacks: Vec<Stack>,
    pub stack_names: HashMap<String, StackId>,
    pub unions: Vec<Union>,
    pub union_names: HashMap<String, UnionId>,
    pub unions_by_json_id: HashMap<u32, UnionId>,
    pub union_stacks: Vec<UnionStack>,
    pub union_stack_names: HashMap<String, UnionStackId>,
    pub value_sets: HashMap<String, ValueSetId>,
    pub calculations: HashMap<String, CalculationId>,
    pub counters: HashMap<String, CounterId>,
    pub meters: HashMap<String, MeterId>,
    pub registers: HashMap<String, RegisterId>,
    /// Actions by their id in the JSON.
    pub actions: HashMap<u32, ActionId>,
    pub profiles: HashMap<String, ProfileId>,
    /// Fields and headers that the loaded elements read or write.
    references: RefCell<References>,
}

/// Fields that a program references by name or through their whole header.
#[derive(Default)]
struct References {
    fields: BTreeSet<FieldRef>,
    headers: BTreeSet<HeaderId>,
}

/// Index of the next item of a list.
pub fn next_index(len: usize, node: &Node<'_>) -> LoadResult<u32> {
    u32::try_from(len).map_err(|_| node.error("list has too many items"))
}

fn find_named<T: Copy>(
    map: &HashMap<String, T>,
    name: &str,
    kind: &str,
    node: &Node<'_>,
) -> Result<T, LoadError> {
    map.get(name)
        .copied()
        .ok_or_else(|| node.error(format_args!("unknown {kind} {name:?}")))
}

macro_rules! lookups {
    ($($method:ident: $field:ident -> $id:ty, $kind:literal;)*) => {$(
        pub fn $method(&self, name: &str, node: &Node<'_>) -> LoadResult<$id> {
            find_named(&self.$field, name, $kind, node)
        }
    )*};
}

impl Scope {
    lookups! {
        header_type: type_names -> TypeId, "header type";
        known_header: header_names -> HeaderId, "header";
        stack: stack_names -> StackId, "header stack";
        union: union_names -> UnionId, "header union";
        union_stack: union_stack_names -> UnionStackId, "header union stack";
        value_set: value_sets -> ValueSetId, "value set";
        calculation: calculations -> CalculationId, "calculation";
        counter: counters -> CounterId, "counter array";
        meter: meters -> MeterId, "meter array";
        register: registers -> RegisterId, "register array";
        profile: profiles -> ProfileId, "action profile";
    }

    pub fn action(&self, json_id: u32, node: &Node<'_>) -> LoadResult<ActionId> {
        let id = self.actions.get(&json_id).copied();
        id.ok_or_else(|| node.error(format_args!("unknown action id {json_id}")))
    }

    /// Resolves a whole header: all of its fields count as referenced.
    pub fn header(&self, name: &str, node: &Node<'_>) -> LoadResult<HeaderId> {
        let header = self.known_header(name, node)?;
        self.references.borrow_mut().headers.insert(header);
        Ok(header)
    }

    /// Resolves a header of a stack or union: all of its fields count as referenced, because they are accessible through the
    /// stack or union.
    pub fn header_by_id(&self, json_id: u32, node: &Node<'_>) -> LoadResult<HeaderId> {
        let id = self.headers_by_json_id.get(&json_id).copied();
        let header = id.ok_or_else(|| node.error(format_args!("unknown header id {json_id}")))?;
        self.references.borrow_mut().headers.insert(header);
        Ok(header)
    }

    /// Resolves the header of `mark_to_drop`, which writes `egress_spec` and sets `mcast_grp` to 0. Only `egress_spec` counts
    /// as referenced.
    pub fn mark_to_drop_header(&self, name: &str, node: &Node<'_>) -> LoadResult<HeaderId> {
        let header = self.known_header(name, node)?;
        if let Some(field) = self.type_of(header, node)?.field("egress_spec") {
            self.references
                .borrow_mut()
                .fields
                .insert(FieldRef { header, field });
        }
        Ok(header)
    }

    pub fn type_of(&self, header: HeaderId, node: &Node<'_>) -> LoadResult<&HeaderType> {
        self.headers
            .get(header.index())
            .and_then(|header| self.types.get(header.header_type.index()))
            .ok_or_else(|| node.error("header has no type"))
    }

    /// Resolves a pair `[header, field]`.
    pub fn field(&self, node: &Node<'_>) -> LoadResult<FieldRef> {
        let field = self.resolve_field(node)?;
        self.references.borrow_mut().fields.insert(field);
        Ok(field)
    }

    /// Same as [`Self::field`], but the field does not count as referenced.
    pub fn resolve_field(&self, node: &Node<'_>) -> LoadResult<FieldRef> {
        let header_node = node.item(0)?;
        let name_node = node.item(1)?;
        let header = self.known_header(header_node.str()?, &header_node)?;
        let name = name_node.str()?;
        let field = self
            .type_of(header, node)?
            .field(name)
            .ok_or_else(|| node.error(format_args!("unknown header field {name:?}")))?;
        Ok(FieldRef { header, field })
    }

    /// Resolves a pair `[stack, field]`.
    pub fn stack_field(&self, node: &Node<'_>) -> LoadResult<(StackId, u32)> {
        let stack_node = node.item(0)?;
        let stack = self.stack(stack_node.str()?, &stack_node)?;
        let name = node.item(1)?.str()?;
        let header_type = self
            .stacks
            .get(stack.index())
            .and_then(|stack| self.types.get(stack.header_type.index()))
            .ok_or_else(|| node.error("header has no type"))?;
        let field = header_type
            .field(name)
            .ok_or_else(|| node.error(format_args!("unknown field {name:?} of the stack's headers")))?;
        Ok((stack, field))
    }

    /// Resolves `[stack, member, ..]` to a union stack, the index of the member, and the header in the first union.
    pub fn union_member(&self, node: &Node<'_>) -> LoadResult<(UnionStackId, u32, HeaderId)> {
        let stack_node = node.item(0)?;
        let stack = self.union_stack(stack_node.str()?, &stack_node)?;
        let name = node.item(1)?.str()?;
        let union = self
            .union_stacks
            .get(stack.index())
            .and_then(|stack| stack.unions.first())
            .and_then(|union| self.unions.get(union.index()))
            .ok_or_else(|| node.error("header union stack is empty"))?;
        let index = union
            .members
            .iter()
            .position(|member| member == name)
            .ok_or_else(|| node.error(format_args!("unknown union member {name:?}")))?;
        let header = union
            .headers
            .get(index)
            .copied()
            .ok_or_else(|| node.error("union has fewer headers than its type"))?;
        Ok((stack, next_index(index, node)?, header))
    }

    /// All referenced fields.
    pub fn referenced_fields(&self) -> BTreeSet<FieldRef> {
        let References { fields, headers } = &*self.references.borrow();
        let fields_of = |header: &HeaderId| {
            let header_type = self.headers.get(header.index());
            let header_type = header_type.and_then(|header| self.types.get(header.header_type.index()));
            let count = header_type.map_or(0, |header_type| header_type.fields.len());
            let header = *header;
            (0u32..).take(count).map(move |field| FieldRef { header, field })
        };
        fields
            .iter()
            .copied()
            .chain(headers.iter().flat_map(fields_of))
            .collect()
    }
}
