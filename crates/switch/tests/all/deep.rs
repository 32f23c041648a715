//! Lowering deep expressions takes linear time.

use linewarden_switch::load::load;
use linewarden_switch::lower::lower;
use linewarden_switch::program::action::{LValue, Statement};
use linewarden_switch::program::expr::{Binary, Data};
use linewarden_switch::program::ids::{FieldRef, HeaderId, StackId, TypeId};
use linewarden_switch::program::{Field, Header, HeaderType, Stack};

/// If lowering tried two alternatives for each mask, this expression would take 2^200 steps.
#[test]
fn nested_masks_are_each_lowered_once() {
    let json = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../p4/compiled/router.json"
    ))
    .unwrap();
    let mut program = load(&json).unwrap();
    let header_type = TypeId(program.types.len() as u32);
    program.types.push(HeaderType {
        name: "wide".into(),
        fields: vec![Field {
            name: "value".into(),
            bits: 104,
            signed: false,
            saturating: false,
            variable: false,
        }],
        variable_bits: None,
        max_bytes: 0,
    });
    let header = HeaderId(program.headers.len() as u32);
    program.headers.push(Header {
        name: "wides[0]".into(),
        header_type,
        metadata: false,
    });
    let stack = StackId(program.stacks.len() as u32);
    program.stacks.push(Stack {
        name: "wides".into(),
        header_type,
        headers: vec![header],
    });
    let mut value = Data::StackLast(stack, 0);
    for bit in 0..200u32 {
        let mask = Data::Const((num_bigint::BigInt::from(1) << (80 + bit % 20)) + 1);
        value = Data::Binary(Binary::And, Box::new(value), Box::new(mask));
    }
    let target = LValue::Field(FieldRef { header, field: 0 });
    program.actions[0].body.push(Statement::Assign(target, value));
    lower(program).unwrap();
}
