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

/// Random width in bits.
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
    let index = STANDARD_FIELDS
        .iter()
        .position(|(field_name, _)| *field_name == name);
    FieldRef {
        header: STANDARD,
        field: index.unwrap() as u32,
    }
}

fn user_type(source: &mut Source) -> HeaderType {
    let count = source.between(2, 8);
    let fields = (0..count)
        .map(|index| {
            let bits = width(source);
            field(source, format!("m{index}"), bits)
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
        .map(|index| {
            let bits = width(source);
            field(source, format!("f{index}"), bits)
        })
        .collect();
    let bits: u32 = fields.iter().map(|field| field.bits).sum();
    if !bits.is_multiple_of(8) {
        let padding_bits = 8 - bits % 8;
        let padding = field(source, "padding".into(), padding_bits);
        fields.insert(source.below(fields.len() + 1), padding);
    }
    let mut new_type = HeaderType {
        name: format!("h{number}_t"),
        fields,
        variable_bits: None,
        max_bytes: 0,
    };
    if source.percent(25) {
        variable(source, &mut new_type);
    }
    new_type
}

/// Adds a field of variable length.
fn variable(source: &mut Source, header_type: &mut HeaderType) {
    // p4c requires the field to start at a byte boundary.
    let positions: Vec<usize> = (0..=header_type.fields.len())
        .filter(|position| {
            let preceding = header_type.fields[..*position].iter();
            let offset: u32 = preceding.map(|field| field.bits).sum();
            offset.is_multiple_of(8)
        })
        .collect();
    let position = source.pick(&positions).unwrap();
    let max_bits = 8 * (1 + source.below(12) as u32);
    header_type.max_bytes = header_type.fixed_bits() / 8 + max_bits / 8;
    if source.percent(40) {
        let candidates: Vec<usize> = (0..position)
            .filter(|field| header_type.fields[*field].bits <= 32)
            .collect();
        if let Some(length_field) = source.pick(&candidates) {
            let length = Data::Binary(
                Binary::And,
                Box::new(Data::Param(length_field as u32)),
                Box::new(Data::Const(BigInt::from(7))),
            );
            let unit_bits = Data::Const(BigInt::from(if source.percent(10) { 4 } else { 8 }));
            header_type.variable_bits =
                Some(Data::Binary(Binary::Mul, Box::new(length), Box::new(unit_bits)));
        }
    }
    header_type.fields.insert(
        position,
        Field {
            name: "options".into(),
            bits: max_bits,
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
        .map(|(index, header_type)| add_header(program, *header_type, format!("{name}.u{index}")))
        .collect();
    program.unions.push(Union {
        name,
        members: (0..types.len()).map(|index| format!("u{index}")).collect(),
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
        let new_type = header_type(source, number);
        program.types.push(new_type);
    }
    let types: Vec<TypeId> = (2..program.types.len() as u32).map(TypeId).collect();
    for index in 0..source.between(1, 4) {
        let header_type = source.pick(&types).unwrap();
        add_header(program, header_type, format!("h{index}"));
    }
    for index in 0..source.below(3) {
        let header_type = source.pick(&types).unwrap();
        let headers = (0..source.between(1, 4))
            .map(|element| add_header(program, header_type, format!("s{index}[{element}]")))
            .collect();
        program.stacks.push(Stack {
            name: format!("s{index}"),
            header_type,
            headers,
        });
    }
    let members: Vec<TypeId> = (0..source.between(1, 3))
        .map(|_| source.pick(&types).unwrap())
        .collect();
    for index in 0..source.below(3) {
        add_union(program, format!("u{index}"), &members);
    }
    for index in 0..source.below(2) {
        let unions = (0..source.between(1, 3))
            .map(|element| add_union(program, format!("us{index}[{element}]"), &members))
            .collect();
        program.union_stacks.push(UnionStack {
            name: format!("us{index}"),
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
    // The first register array limits loops and repeated packets.
    let mut bits = vec![64];
    bits.extend((0..source.below(4)).map(|_| width(source)));
    program.registers = (0..)
        .zip(bits)
        .map(|(index, bits)| RegisterArray {
            name: format!("r{index}"),
            size: if index == 0 {
                4
            } else {
                source.between(1, 8) as u32
            },
            bits,
        })
        .collect();
    program.counters = (0..source.below(3))
        .map(|index| CounterArray {
            name: format!("c{index}"),
            size: source.between(1, 4) as u32,
            direct: None,
        })
        .collect();
    program.meters = (0..source.below(3))
        .map(|index| MeterArray {
            name: format!("meter{index}"),
            unit: match source.below(2) {
                0 => MeterUnit::Packets,
                _ => MeterUnit::Bytes,
            },
            rates: source.between(1, 2) as u32,
            size: source.between(1, 4) as u32,
            direct: None,
        })
        .collect();
    let use_all_fields = source.percent(20);
    let metadata: Vec<FieldRef> = fixed_fields(program)
        .into_iter()
        .filter(|field| use_all_fields || field.header == USER || *field == standard("ingress_port"))
        .collect();
    program.field_lists = (0..source.between(1, 3) as u32)
        .map(|index| FieldList {
            json_id: index + 1,
            fields: (0..source.below(4))
                .filter_map(|_| source.pick(&metadata))
                .collect(),
        })
        .collect();
}
