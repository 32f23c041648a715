//! Evidence over gRPC, of what controllers do. That all of it is measured, every test of this directory checks at its end.

use linewarden_evidence::encoding::{Class, Object};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::statement::{Inventory, Nonce, verify};
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::evidence::{AskError, Client, Digests, Listing};

use crate::support::*;

fn client(lab: &Lab) -> Client {
    lab.runtime
        .block_on(Client::connect(lab.address(), None))
        .unwrap()
}

fn digests(lab: &Lab) -> Digests {
    lab.runtime
        .block_on(async { client_of(lab).await.digests().await })
        .unwrap()
}

async fn client_of(lab: &Lab) -> Client {
    Client::connect(lab.address(), None).await.unwrap()
}

#[test]
fn without_a_program_there_is_no_evidence() {
    let lab = Lab::start();
    let refused = lab.runtime.block_on(client(&lab).digests()).unwrap_err();
    assert!(matches!(refused, AskError::Refused(status) if status.message() == "no program runs yet"));
}

#[test]
fn what_a_controller_writes_shows_in_the_digest_that_it_is_of() {
    let (lab, mut controller) = Lab::with(&packets());
    let before = digests(&lab);
    assert_eq!((before.switch_id, before.boot_count), (SWITCH.0, BOOT.0));
    let flow = controller.flow(1, "In.to_port", &[2]);
    controller.write(&[insert(flow.clone())]);
    let after = digests(&lab);
    assert_ne!(before.tables, after.tables);
    assert_eq!(
        (&before.program, &before.registers),
        (&after.program, &after.registers)
    );
    assert!(before.sequence < after.sequence);
    controller.write(&[Update::TableEntry(Box::new(Change::Delete(flow.key)))]);
    assert_eq!(before.tables, digests(&lab).tables);
}

#[test]
fn a_meter_that_is_configured_beside_the_tables_is_in_their_digest() {
    let (lab, mut controller) = Lab::with(&everything());
    let meters: Vec<_> = controller.info().meters().iter().map(|meter| meter.id).collect();
    let before = digests(&lab);
    let config = MeterConfig {
        committed_rate: 1000,
        committed_burst: 10,
        peak_rate: 2000,
        peak_burst: 20,
        excess_burst: 0,
    };
    let meter = |config| Update::Meter {
        id: meters[0],
        index: Some(1),
        config,
        reset_counters: false,
    };
    controller.write(&[meter(Some(config))]);
    assert_ne!(before.tables, digests(&lab).tables);
    controller.write(&[meter(None)]);
    assert_eq!(before.tables, digests(&lab).tables);
}

#[test]
fn a_statement_answers_its_nonce_and_names_every_entry() {
    let (lab, mut controller) = Lab::with(&packets());
    let flow = controller.flow(1, "In.to_port", &[2]);
    controller.write(&[insert(flow)]);
    let nonce = Nonce([0x3c; 32]);
    let attested = lab
        .runtime
        .block_on(client(&lab).attest(nonce.0, Listing::ALL))
        .unwrap();
    let key = Ed25519Signer::from_pem(KEY).unwrap().public_key();
    let evidence = verify(&attested.statement, &key, nonce).unwrap();
    assert_eq!(
        evidence.snapshot().digests.tables.0.to_vec(),
        digests(&lab).tables
    );
    let inventory = Inventory::read(&attested.inventory.unwrap()).unwrap();
    inventory.prove(&evidence).unwrap();
    assert!(verify(&attested.statement, &key, Nonce([0; 32])).is_err());
}

#[test]
fn an_inventory_leaves_out_what_it_is_told_to() {
    let (lab, mut controller) = Lab::with(&packets());
    let flow = controller.flow(1, "In.to_port", &[2]);
    let info = controller.info();
    let table = info.tables().iter().find(|table| table.id == flow.key.table);
    let rows = Object {
        class: Class::Table,
        name: table.unwrap().name.to_string(),
    };
    controller.write(&[insert(flow)]);
    let nonce = Nonce([0x3c; 32]);
    let key = Ed25519Signer::from_pem(KEY).unwrap().public_key();
    let ask = |without: &str| {
        let listing = Listing::AllBut(vec![without.to_owned()]);
        lab.runtime.block_on(client(&lab).attest(nonce.0, listing))
    };
    for (without, is_listed) in [("table:others", true), (&*format!("table:{}", rows.name), false)] {
        let attested = ask(without).unwrap();
        let evidence = verify(&attested.statement, &key, nonce).unwrap();
        let inventory = Inventory::read(&attested.inventory.unwrap()).unwrap();
        let proven = inventory.prove(&evidence).unwrap();
        assert_eq!(proven.entries(&rows).is_some(), is_listed);
    }
    assert!(
        matches!(ask("chair:rows"), Err(AskError::Refused(status)) if status.message().contains("chair"))
    );
}

#[test]
fn another_program_is_another_digest_and_later_numbers() {
    let (lab, mut controller) = Lab::with(&packets());
    let before = digests(&lab);
    controller.set(&everything());
    let after = digests(&lab);
    assert_ne!(before.program, after.program);
    assert!(before.sequence < after.sequence);
}
