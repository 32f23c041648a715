//! Different states with equal digests in the published switch.

use linewarden_switch::forwarding::{ForwardingOp, Replica};
use linewarden_switch::program::ids::RegisterId;
use linewarden_switch::tables::TableOp;

use super::fixture::{ProgramRequest, SwitchFixture, request_frame};

fn write(fixture: &mut SwitchFixture, array: RegisterId, cells: &[(u64, u64)]) {
    let mut registers = fixture.switch.externs().registers(array).unwrap();
    for (index, value) in cells {
        assert!(registers.set(*index, &(*value).into()));
    }
}

/// The published register digest is a sum over arrays without their names.
#[test]
fn swapped_arrays_have_different_digests() {
    let digest = |swapped: bool| {
        let mut fixture = SwitchFixture::new("evidence", None);
        let arrays = ["EvidenceIngress.small", "EvidenceIngress.wide"].map(|name| fixture.register(name));
        let [first, second] = if swapped { [arrays[1], arrays[0]] } else { arrays };
        write(&mut fixture, first, &[(0, 1), (1, 2)]);
        write(&mut fixture, second, &[(0, 3)]);
        fixture.snapshot().digests.registers
    };
    assert_ne!(digest(false), digest(true));
}

/// The published switch concatenates values without lengths: 0x0102, 0x03 equals 0x01, 0x0203.
#[test]
fn cells_with_other_boundaries_have_different_digests() {
    let digest = |cells: &[(u64, u64)]| {
        let mut fixture = SwitchFixture::new("evidence", None);
        let small = fixture.register("EvidenceIngress.small");
        write(&mut fixture, small, cells);
        fixture.snapshot().digests.registers
    };
    assert_ne!(
        digest(&[(0, 0x0102), (1, 0x03)]),
        digest(&[(0, 0x01), (1, 0x0203)])
    );
    assert_ne!(digest(&[(0, 7)]), digest(&[(1, 7)]));
}

/// The main branch of the published switch ignores register writes by the program.
#[test]
fn register_write_by_program_changes_the_digest() {
    let mut fixture = SwitchFixture::new("evidence", None);
    let before = fixture.snapshot().digests;
    fixture.send_one(0, &request_frame(ProgramRequest::WriteSmall, 7, 1));
    assert_ne!(before.registers, fixture.snapshot().digests.registers);
}

/// The published switch ignores default actions.
#[test]
fn default_action_changes_the_digest() {
    let mut fixture = SwitchFixture::new("router", None);
    let before = fixture.snapshot().digests;
    let everything_to_port_7 = fixture.action("RouterIngress.to_port", &[7]);
    fixture.change(
        "RouterIngress.routes4",
        TableOp::SetDefault(Some(everything_to_port_7)),
    );
    assert_ne!(before.tables, fixture.snapshot().digests.tables);
}

/// A value that is added 65,536 times vanishes from a sum of 16-bit words.
#[test]
fn value_repeated_65536_times_changes_the_digest() {
    let mut fixture = SwitchFixture::new("evidence", None);
    let empty = fixture.snapshot().digests;
    let large = fixture.register("EvidenceIngress.large");
    let cells: Vec<(u64, u64)> = (0..65_536).map(|index| (index, 1)).collect();
    write(&mut fixture, large, &cells);
    assert_ne!(empty.registers, fixture.snapshot().digests.registers);
    let replicas = vec![Replica { rid: 1, port: 1 }; 65_536];
    fixture
        .switch
        .change(ForwardingOp::Group(1, Some(replicas.into())))
        .unwrap();
    let with_copies = fixture.snapshot().digests.tables;
    fixture
        .switch
        .change(ForwardingOp::Group(1, Some([].into())))
        .unwrap();
    assert_ne!(with_copies, fixture.snapshot().digests.tables);
    assert_ne!(
        empty.tables,
        fixture.snapshot().digests.tables,
        "an empty group is not the same as no group"
    );
}
