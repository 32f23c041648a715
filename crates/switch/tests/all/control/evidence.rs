//! Evidence of controller writes over gRPC. Each `SwitchFixture` checks at its end that all state is measured.

use linewarden_evidence::encoding::{Class, Object};
use linewarden_evidence::keys::{Ed25519Signer, Signer as _};
use linewarden_evidence::statement::{Inventory, Nonce, verify};
use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::evidence::{Client, Digests, EvidenceClientError, InventoryScope};

use crate::control::support::*;

fn client(fixture: &SwitchFixture) -> Client {
    fixture
        .runtime
        .block_on(Client::connect(fixture.address(), None))
        .unwrap()
}

fn digests(fixture: &SwitchFixture) -> Digests {
    fixture
        .runtime
        .block_on(async { client_of(fixture).await.digests().await })
        .unwrap()
}

async fn client_of(fixture: &SwitchFixture) -> Client {
    Client::connect(fixture.address(), None).await.unwrap()
}

#[test]
fn switch_without_a_program_has_no_evidence() {
    let fixture = SwitchFixture::start();
    let error = fixture.runtime.block_on(client(&fixture).digests()).unwrap_err();
    assert!(
        matches!(error, EvidenceClientError::Rejected(status) if status.message() == "no program is running")
    );
}

#[test]
fn writes_of_a_controller_change_the_corresponding_digest() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let before = digests(&fixture);
    assert_eq!((before.switch_id, before.boot_count), (SWITCH.0, BOOT.0));
    let flow = controller.flow(1, "In.to_port", &[2]);
    controller.write(&[insert(flow.clone())]);
    let after = digests(&fixture);
    assert_ne!(before.tables, after.tables);
    assert_eq!(
        (&before.program, &before.registers),
        (&after.program, &after.registers)
    );
    assert!(before.sequence < after.sequence);
    controller.write(&[Update::TableEntry(Box::new(Change::Delete(flow.key)))]);
    assert_eq!(before.tables, digests(&fixture).tables);
}

#[test]
fn meter_configuration_is_in_the_digest_of_tables() {
    let (fixture, mut controller) = SwitchFixture::with(&everything());
    let meters: Vec<_> = controller.info().meters().iter().map(|meter| meter.id).collect();
    let before = digests(&fixture);
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
    assert_ne!(before.tables, digests(&fixture).tables);
    controller.write(&[meter(None)]);
    assert_eq!(before.tables, digests(&fixture).tables);
}

#[test]
fn statement_contains_the_nonce_and_lists_every_entry() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let flow = controller.flow(1, "In.to_port", &[2]);
    controller.write(&[insert(flow)]);
    let nonce = Nonce([0x3c; 32]);
    let attested = fixture
        .runtime
        .block_on(client(&fixture).attest(nonce.0, InventoryScope::ALL))
        .unwrap();
    let key = Ed25519Signer::from_pem(KEY).unwrap().public_key();
    let evidence = verify(&attested.statement, &key, nonce).unwrap();
    assert_eq!(
        evidence.snapshot().digests.tables.0.to_vec(),
        digests(&fixture).tables
    );
    let inventory = Inventory::read(&attested.inventory.unwrap()).unwrap();
    inventory.prove(&evidence).unwrap();
    assert!(verify(&attested.statement, &key, Nonce([0; 32])).is_err());
}

#[test]
fn inventory_omits_excluded_objects() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let flow = controller.flow(1, "In.to_port", &[2]);
    let info = controller.info();
    let table = info.tables().iter().find(|table| table.id == flow.key.table);
    let table_object = Object {
        class: Class::Table,
        name: table.unwrap().name.to_string(),
    };
    controller.write(&[insert(flow)]);
    let nonce = Nonce([0x3c; 32]);
    let key = Ed25519Signer::from_pem(KEY).unwrap().public_key();
    let attest_without = |excluded: &str| {
        let scope = InventoryScope::AllExcept(vec![excluded.to_owned()]);
        fixture.runtime.block_on(client(&fixture).attest(nonce.0, scope))
    };
    for (excluded, is_listed) in [
        ("table:others", true),
        (&*format!("table:{}", table_object.name), false),
    ] {
        let attested = attest_without(excluded).unwrap();
        let evidence = verify(&attested.statement, &key, nonce).unwrap();
        let inventory = Inventory::read(&attested.inventory.unwrap()).unwrap();
        let proven = inventory.prove(&evidence).unwrap();
        assert_eq!(proven.entries(&table_object).is_some(), is_listed);
    }
    assert!(
        matches!(attest_without("chair:rows"), Err(EvidenceClientError::Rejected(status)) if status.message().contains("chair"))
    );
}

#[test]
fn new_program_changes_the_digest_and_continues_sequence_numbers() {
    let (fixture, mut controller) = SwitchFixture::with(&packets());
    let before = digests(&fixture);
    controller.set(&everything());
    let after = digests(&fixture);
    assert_ne!(before.program, after.program);
    assert!(before.sequence < after.sequence);
}
