//! Random declarations: header types, headers, stacks, unions, registers, counters, meters and lists.

use linewarden_switch::program::expr::{Binary, Data};
use linewarden_switch::program::ids::{FieldRef, HeaderId, StackId, TypeId, UnionId, UnionStackId};
use linewarden_switch::program::{
    CounterArray, Field, FieldList, Header, HeaderType, MeterArray, MeterUnit, Program, RegisterArray, Stack,
    Union, UnionStack,
};
use num_bigint::BigInt;

use super::source::Source;

/// Standard metadata header.
pub const STANDARD: HeaderId = HeaderId(0);
/// User metadata header.
pub const USER: HeaderId = HeaderId(1);

const STANDARD_FIELDS: [(&str, u32); 17] = [
    ("ingress_port", 9),
    ("egress_spec", 9),
    ("egress_port", 9),
    ("instance_type", 32),
    ("packet_length", 32),
    ("enq_timestamp", 32),
    ("enq_qdepth", 19),
    ("deq_timedelta", 32),
    ("deq_qdepth", 19),
    ("ingress_global_timestamp", 48),
    ("egress_global_timestamp", 48),
    ("mcast_grp", 16),
    ("egress_rid", 16),
    ("checksum_error", 1),
    ("parser_error", 32),
    ("priority", 3),
    ("_padding", 3),
];

const ALIASES: [(&str, &str); 9] = [
    ("queueing_metadata.enq_timestamp", "enq_timestamp"),
    ("queueing_metadata.enq_qdepth", "enq_qdepth"),
    ("queueing_metadata.deq_timedelta", "deq_timedelta"),
    ("queueing_metadata.deq_qdepth", "deq_qdepth"),
    (
        "intrinsic_metadata.ingress_global_timestamp",
        "ingress_global_timestamp",
    ),
    (
        "intrinsic_metadata.egress_global_timestamp",
        "egress_global_timestamp",
    ),
    ("intrinsic_metadata.mcast_grp", "mcast_grp"),
    ("intrinsic_metadata.egress_rid", "egress_rid"),
    ("intrinsic_metadata.priority", "priority"),
];

const WIDTHS: [u32; 22] = [
    8, 16, 1, 2, 3, 7, 9, 13, 24, 31, 32, 33, 48, 63, 64, 65, 100, 121, 127, 128, 129, 200,
];

/// Random width, bits.
pub fn width(source: &mut Source) -> u32 {
    match source.below(8) {
        0 => 1 + source.below(200) as u32,
        _ => WIDTHS[source.below(WIDTHS.len())],
    }
}

fn field(source: &mut Source, name: String, bits: u32) -> Field {
    let signed = bits > 1 && source.percent(20);
    Field {
        name,
        bits,
        signed,
        saturating: source.percent(10),
        variable: false,
    }
}

/// Standard metadata field of a name.
pub fn standard(name: &str) -> FieldRef {
    let at = STANDARD_FIELDS.iter().position(|(known, _)| *known == name);
    FieldRef {
        header: STANDARD,
        field: at.unwrap() as u32,
    }
}

fn user_type(source: &mut Source) -> HeaderType {
    let count = source.between(2, 8);
    let fields = (0..count)
        .map(|at| {
            let bits = width(source);
            field(source, format!("m{at}"), bits)
        })
        .collect();
    HeaderType {
        name: "user_t".into(),
        fields,
        variable_bits: None,
        max_bytes: 0,
    }
}

fn header_type(source: &mut Source, number: usize) -> HeaderType {
    let mut fields: Vec<Field> = (0..source.between(1, 4))
        .map(|at| {
            let bits = width(source);
            field(source, format!("f{at}"), bits)
        })
        .collect();
    let bits: u32 = fields.iter().map(|field| field.bits).sum();
    if !bits.is_multiple_of(8) {
        let rest = 8 - bits % 8;
        let padding = field(source, "padding".into(), rest);
        fields.insert(source.below(fields.len() + 1), padding);
    }
    let mut known = HeaderType {
        name: format!("h{number}_t"),
        fields,
        variable_bits: None,
        max_bytes: 0,
    };
    if source.percent(25) {
        variable(source, &mut known);
    }
    known
}

/// Adds a field of variable length.
fn variable(source: &mut Source, known: &mut HeaderType) {
    // p4c requires it to start at a byte boundary.
    let places: Vec<usize> = (0..=known.fields.len())
        .filter(|place| {
            let before: u32 = known.fields[..*place].iter().map(|field| field.bits).sum();
            before.is_multiple_of(8)
        })
        .collect();
    let place = source.pick(&places).unwrap();
    let most = 8 * (1 + source.below(12) as u32);
    known.max_bytes = known.fixed_bits() / 8 + most / 8;
    if source.percent(40) {
        let before: Vec<usize> = (0..place).filter(|at| known.fields[*at].bits <= 32).collect();
        if let Some(from) = source.pick(&before) {
            let low = Data::Binary(
                Binary::And,
                Box::new(Data::Param(from as u32)),
                Box::new(Data::Const(BigInt::from(7))),
            );
            let eight = Data::Const(BigInt::from(if source.percent(10) { 4 } else { 8 }));
            known.variable_bits = Some(Data::Binary(Binary::Mul, Box::new(low), Box::new(eight)));
        }
    }
    known.fields.insert(
        place,
        Field {
            name: "options".into(),
            bits: most,
            signed: false,
            saturating: false,
            variable: true,
        },
    );
}

fn add_header(program: &mut Program, header_type: TypeId, name: String) -> HeaderId {
    program.headers.push(Header {
        name,
        header_type,
        metadata: false,
    });
    HeaderId(program.headers.len() as u32 - 1)
}

fn add_union(program: &mut Program, name: String, types: &[TypeId]) -> UnionId {
    let headers = types
        .iter()
        .enumerate()
        .map(|(at, header_type)| add_header(program, *header_type, format!("{name}.u{at}")))
        .collect();
    program.unions.push(Union {
        name,
        members: (0..types.len()).map(|at| format!("u{at}")).collect(),
        headers,
    });
    UnionId(program.unions.len() as u32 - 1)
}

/// Declares headers, stacks and unions.
pub fn headers(source: &mut Source, program: &mut Program) {
    let standard_fields = STANDARD_FIELDS.map(|(name, bits)| Field {
        name: name.into(),
        bits,
        signed: false,
        saturating: false,
        variable: false,
    });
    program.types.push(HeaderType {
        name: "standard_metadata".into(),
        fields: standard_fields.into(),
        variable_bits: None,
        max_bytes: 0,
    });
    program.types.push(user_type(source));
    for (name, header_type) in [("standard_metadata", 0), ("user", 1)] {
        program.headers.push(Header {
            name: name.into(),
            header_type: TypeId(header_type),
            metadata: true,
        });
    }
    for (alias, field) in ALIASES {
        program.aliases.insert(alias.into(), standard(field));
    }
    for number in 0..source.between(1, 4) {
        let known = header_type(source, number);
        program.types.push(known);
    }
    let types: Vec<TypeId> = (2..program.types.len() as u32).map(TypeId).collect();
    for at in 0..source.between(1, 4) {
        let header_type = source.pick(&types).unwrap();
        add_header(program, header_type, format!("h{at}"));
    }
    for at in 0..source.below(3) {
        let header_type = source.pick(&types).unwrap();
        let headers = (0..source.between(1, 4))
            .map(|element| add_header(program, header_type, format!("s{at}[{element}]")))
            .collect();
        program.stacks.push(Stack {
            name: format!("s{at}"),
            header_type,
            headers,
        });
    }
    let members: Vec<TypeId> = (0..source.between(1, 3))
        .map(|_| source.pick(&types).unwrap())
        .collect();
    for at in 0..source.below(3) {
        add_union(program, format!("u{at}"), &members);
    }
    for at in 0..source.below(2) {
        let unions = (0..source.between(1, 3))
            .map(|element| add_union(program, format!("us{at}[{element}]"), &members))
            .collect();
        program.union_stacks.push(UnionStack {
            name: format!("us{at}"),
            unions,
        });
    }
    let errors = [
        "NoError",
        "PacketTooShort",
        "NoMatch",
        "StackOutOfBounds",
        "HeaderTooShort",
        "ParserTimeout",
        "ParserInvalidArgument",
    ];
    program.errors = errors.into_iter().map(str::to_owned).zip(0..).collect();
}

/// All fields of fixed length in all headers.
pub fn fixed_fields(program: &Program) -> Vec<FieldRef> {
    (0..program.headers.len() as u32)
        .flat_map(|header| fixed_fields_of(program, HeaderId(header)))
        .collect()
}

/// Fields of fixed length in a header.
pub fn fixed_fields_of(program: &Program, header: HeaderId) -> Vec<FieldRef> {
    let fields = &program.type_of(header).unwrap().fields;
    (0..fields.len() as u32)
        .filter(|field| !fields[*field as usize].variable)
        .map(|field| FieldRef { header, field })
        .collect()
}

/// Packet headers, without metadata.
pub fn packet_headers(program: &Program) -> Vec<HeaderId> {
    (2..program.headers.len() as u32).map(HeaderId).collect()
}

/// All header stacks.
pub fn stacks(program: &Program) -> Vec<StackId> {
    (0..program.stacks.len() as u32).map(StackId).collect()
}

/// All header union stacks.
pub fn union_stacks(program: &Program) -> Vec<UnionStackId> {
    (0..program.union_stacks.len() as u32).map(UnionStackId).collect()
}

/// Declares registers, counters, meters and lists.
pub fn objects(source: &mut Source, program: &mut Program) {
    // The first one limits loops, clones and the like.
    let mut bits = vec![64];
    bits.extend((0..source.below(4)).map(|_| width(source)));
    program.registers = (0..)
        .zip(bits)
        .map(|(at, bits)| RegisterArray {
            name: format!("r{at}"),
            size: if at == 0 { 4 } else { source.between(1, 8) as u32 },
            bits,
        })
        .collect();
    program.counters = (0..source.below(3))
        .map(|at| CounterArray {
            name: format!("c{at}"),
            size: source.between(1, 4) as u32,
            direct: None,
        })
        .collect();
    program.meters = (0..source.below(3))
        .map(|at| MeterArray {
            name: format!("meter{at}"),
            unit: match source.below(2) {
                0 => MeterUnit::Packets,
                _ => MeterUnit::Bytes,
            },
            rates: source.between(1, 2) as u32,
            size: source.between(1, 4) as u32,
            direct: None,
        })
        .collect();
    let any = source.percent(20);
    let metadata: Vec<FieldRef> = fixed_fields(program)
        .into_iter()
        .filter(|field| any || field.header == USER || *field == standard("ingress_port"))
        .collect();
    program.field_lists = (0..source.between(1, 3) as u32)
        .map(|at| FieldList {
            json_id: at + 1,
            fields: (0..source.below(4))
                .filter_map(|_| source.pick(&metadata))
                .collect(),
        })
        .collect();
}
