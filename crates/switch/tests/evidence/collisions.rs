//! States that the published switch takes for one another.

use linewarden_switch::forwarding::{ForwardingOp, Replica};
use linewarden_switch::program::ids::RegisterId;
use linewarden_switch::tables::TableOp;

use super::bench::{Ask, Bench, ask};

fn write(bench: &mut Bench, array: RegisterId, cells: &[(u64, u64)]) {
    let mut registers = bench.switch.externs().registers(array).unwrap();
    for (index, value) in cells {
        assert!(registers.set(*index, &(*value).into()));
    }
}

/// Its digest of registers is a sum over arrays without their names.
#[test]
fn two_arrays_that_are_swapped() {
    let digest = |swapped: bool| {
        let mut bench = Bench::new("evidence", None);
        let arrays = ["EvidenceIngress.small", "EvidenceIngress.wide"].map(|name| bench.register(name));
        let [one, other] = if swapped { [arrays[1], arrays[0]] } else { arrays };
        write(&mut bench, one, &[(0, 1), (1, 2)]);
        write(&mut bench, other, &[(0, 3)]);
        bench.snapshot().digests.registers
    };
    assert_ne!(digest(false), digest(true));
}

/// It concatenates values without their lengths: 0x0102 and 0x03 are 0x01 and 0x0203.
#[test]
fn cells_that_are_cut_elsewhere() {
    let digest = |cells: &[(u64, u64)]| {
        let mut bench = Bench::new("evidence", None);
        let small = bench.register("EvidenceIngress.small");
        write(&mut bench, small, cells);
        bench.snapshot().digests.registers
    };
    assert_ne!(
        digest(&[(0, 0x0102), (1, 0x03)]),
        digest(&[(0, 0x01), (1, 0x0203)])
    );
    assert_ne!(digest(&[(0, 7)]), digest(&[(1, 7)]));
}

/// Its main branch does not see what the program writes.
#[test]
fn a_register_that_the_program_wrote() {
    let mut bench = Bench::new("evidence", None);
    let before = bench.snapshot().digests;
    bench.one(0, &ask(Ask::WriteSmall, 7, 1));
    assert_ne!(before.registers, bench.snapshot().digests.registers);
}

/// It does not see default actions.
#[test]
fn a_default_action_that_was_changed() {
    let mut bench = Bench::new("router", None);
    let before = bench.snapshot().digests;
    let everything_to_port_7 = bench.action("RouterIngress.to_port", &[7]);
    bench.change(
        "RouterIngress.routes4",
        TableOp::SetDefault(Some(everything_to_port_7)),
    );
    assert_ne!(before.tables, bench.snapshot().digests.tables);
}

/// A sum of 16-bit words forgets what is in it 65,536 times.
#[test]
fn copies_of_a_number_that_vanishes_in_sums() {
    let mut bench = Bench::new("evidence", None);
    let empty = bench.snapshot().digests;
    let large = bench.register("EvidenceIngress.large");
    let same: Vec<(u64, u64)> = (0..65_536).map(|index| (index, 1)).collect();
    write(&mut bench, large, &same);
    assert_ne!(empty.registers, bench.snapshot().digests.registers);
    let replicas = vec![Replica { rid: 1, port: 1 }; 65_536];
    bench
        .switch
        .change(ForwardingOp::Group(1, Some(replicas.into())))
        .unwrap();
    let with_copies = bench.snapshot().digests.tables;
    bench
        .switch
        .change(ForwardingOp::Group(1, Some([].into())))
        .unwrap();
    assert_ne!(with_copies, bench.snapshot().digests.tables);
    assert_ne!(
        empty.tables,
        bench.snapshot().digests.tables,
        "a group without members is one"
    );
}
