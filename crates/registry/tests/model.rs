//! Random operations against a plain model in memory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, Filter, OnConflict, Registry, RegistryError, Reservation, ReserveRequest, Revision, Status,
};
use proptest::prelude::*;
use support::{master_key, record, rows};

/// Few ids, so that operations meet; both halves of the range, so that their signs do.
const IDS: [u64; 5] = [1, 2, i64::MAX as u64, 1 << 63, u64::MAX];

#[derive(Clone, Debug)]
enum Op {
    Enrol {
        device: usize,
        first_idx: u32,
        count: u32,
        replace: bool,
    },
    Revoke {
        device: usize,
    },
    Reserve {
        device: usize,
        from_hint: u32,
        count: u32,
    },
    ReserveBulk {
        wishes: Vec<(usize, u32, u32)>,
    },
    Report {
        device: usize,
        idx: u32,
    },
    GiveBack {
        which: prop::sample::Index,
        keep: u32,
    },
    Join {
        one: prop::sample::Index,
        next: prop::sample::Index,
    },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let device = 0..IDS.len();
    let idx = prop_oneof![8 => 0..40u32, 1 => any::<u32>()];
    prop_oneof![
        // A count of 0 stands for key mode.
        4 => (device.clone(), prop_oneof![Just(0), 0..30u32], 0..20u32, any::<bool>())
            .prop_map(|(device, first_idx, count, replace)| Op::Enrol { device, first_idx, count, replace }),
        1 => device.clone().prop_map(|device| Op::Revoke { device }),
        6 => (device.clone(), prop_oneof![4 => Just(0), 1 => idx.clone()], 0..6u32)
            .prop_map(|(device, from_hint, count)| Op::Reserve { device, from_hint, count }),
        3 => prop::collection::vec((device.clone(), prop_oneof![4 => Just(0), 1 => idx.clone()], 0..6u32), 0..6)
            .prop_map(|wishes| Op::ReserveBulk { wishes }),
        2 => (device, idx).prop_map(|(device, idx)| Op::Report { device, idx }),
        4 => (any::<prop::sample::Index>(), 0..6u32).prop_map(|(which, keep)| Op::GiveBack { which, keep }),
        2 => (any::<prop::sample::Index>(), any::<prop::sample::Index>())
            .prop_map(|(one, next)| Op::Join { one, next }),
        1 => Just(Op::Reopen),
    ]
}

/// What the registry should know of a device.
#[derive(Clone, Debug)]
struct Device {
    credentials: Credentials,
    floor: u32,
    /// Names the last move of the mark; 0 for none that can be undone.
    last_move: u64,
    epoch: u32,
    revoked: bool,
    revision: u64,
}

impl Device {
    fn indices(&self) -> std::ops::Range<u32> {
        match self.credentials.mode() {
            Mode::Pool => self.credentials.indices(),
            Mode::Key => 0..u32::MAX,
        }
    }
}

/// A reservation of the registry's, and the model's name for the move of the mark that made it.
struct Lease {
    real: Reservation,
    made_by: u64,
}

#[derive(Default)]
struct Model {
    devices: BTreeMap<u64, Device>,
    revision: u64,
    moves: u64,
    leases: Vec<Lease>,
    /// Rows handed out and not given back: none may ever be handed out again.
    held: BTreeSet<(u64, u32)>,
}

struct World {
    registry: Registry,
    file: Option<PathBuf>,
    model: Model,
}

impl World {
    async fn step(&mut self, op: Op) {
        match op {
            Op::Enrol {
                device,
                first_idx,
                count,
                replace,
            } => {
                self.enrol(IDS[device], first_idx, count, replace).await;
            }
            Op::Revoke { device } => self.revoke(IDS[device]).await,
            Op::Reserve {
                device,
                from_hint,
                count,
            } => {
                let answer = self
                    .registry
                    .reserve(DeviceId(IDS[device]), RowIndex(from_hint), count)
                    .await;
                self.model.reserved(IDS[device], from_hint, count, answer);
            }
            Op::ReserveBulk { wishes } => {
                let requests: Vec<ReserveRequest> = wishes
                    .iter()
                    .map(|(device, from_hint, count)| support::request(IDS[*device], *from_hint, *count))
                    .collect();
                let answers = self.registry.reserve_bulk(&requests).await.unwrap();
                assert_eq!(answers.len(), requests.len());
                for ((device, from_hint, count), answer) in wishes.into_iter().zip(answers) {
                    self.model.reserved(IDS[device], from_hint, count, answer);
                }
            }
            Op::Report { device, idx } => self.report(IDS[device], idx).await,
            Op::GiveBack { which, keep } => self.give_back(which, keep).await,
            Op::Join { one, next } => self.model.join(one, next),
            Op::Reopen => {
                if let Some(path) = &self.file {
                    self.registry.clone().close().await;
                    self.registry = Registry::open(path, &master_key()).await.unwrap();
                }
            }
        }
    }

    async fn enrol(&mut self, id: u64, first_idx: u32, count: u32, replace: bool) {
        let generation = u8::try_from(self.model.revision % 250).unwrap();
        let credentials = if count == 0 {
            Credentials::Key(RowKey::from_bytes([generation + 1; 16]))
        } else {
            Credentials::Pool {
                first_idx: RowIndex(first_idx),
                rows: rows(id, generation, count),
            }
        };
        let on_conflict = if replace {
            OnConflict::Replace
        } else {
            OnConflict::Refuse
        };
        let answer = self
            .registry
            .enrol_chunk(vec![record(id, credentials.clone())], on_conflict)
            .await;
        let indices = credentials.indices();
        let old = self.model.devices.get(&id);
        let floor = old.map_or(0, |old| old.floor).max(indices.start);
        match old {
            Some(_) if !replace => assert!(matches!(answer, Err(RegistryError::AlreadyEnrolled { .. }))),
            Some(old) if old.revoked => assert!(matches!(answer, Err(RegistryError::Revoked { .. }))),
            Some(_) if count > 0 && floor >= indices.end => {
                assert!(matches!(
                    answer,
                    Err(RegistryError::InvalidRecord {
                        field: "credentials",
                        ..
                    })
                ));
            }
            _ => {
                answer.unwrap();
                self.model.revision += 1;
                self.model.moves += 1;
                let device = Device {
                    credentials,
                    floor,
                    last_move: self.model.moves,
                    epoch: old.map_or(0, |old| old.epoch + 1),
                    revoked: false,
                    revision: self.model.revision,
                };
                self.model.devices.insert(id, device);
            }
        }
    }

    async fn revoke(&mut self, id: u64) {
        let answer = self.registry.revoke(DeviceId(id), "why", 5).await;
        match self.model.devices.get_mut(&id) {
            None => assert!(matches!(answer, Err(RegistryError::UnknownDevice { .. }))),
            Some(device) => {
                if !device.revoked {
                    self.model.revision += 1;
                    device.revoked = true;
                    device.revision = self.model.revision;
                }
                assert_eq!(answer.unwrap(), Revision(device.revision));
            }
        }
    }

    async fn report(&mut self, id: u64, idx: u32) {
        let answer = self.registry.report_used(DeviceId(id), RowIndex(idx)).await;
        match self.model.devices.get_mut(&id) {
            None => assert!(matches!(answer, Err(RegistryError::UnknownDevice { .. }))),
            Some(device) if !device.indices().contains(&idx) => {
                assert!(matches!(answer, Err(RegistryError::NoSuchRow { .. })));
            }
            Some(device) => {
                if idx >= device.floor {
                    device.floor = idx + 1;
                    self.model.moves += 1;
                    device.last_move = self.model.moves;
                }
                assert_eq!(answer.unwrap(), RowIndex(device.floor));
            }
        }
    }

    async fn give_back(&mut self, which: prop::sample::Index, keep: u32) {
        if self.model.leases.is_empty() {
            return;
        }
        let Lease { real, made_by } = self
            .model
            .leases
            .swap_remove(which.index(self.model.leases.len()));
        let (id, rows) = (real.device().0, real.rows());
        let unused_from = rows.start.saturating_add(keep);
        let answer = self.registry.give_back(real, RowIndex(unused_from)).await;
        if unused_from > rows.end {
            assert!(matches!(answer, Err(RegistryError::NotReserved { .. })));
            return;
        }
        let device = self.model.devices.get_mut(&id).unwrap();
        let expected = unused_from < rows.end && device.last_move == made_by && !device.revoked;
        assert_eq!(answer.unwrap(), expected);
        if expected {
            assert_eq!(device.floor, rows.end);
            device.floor = unused_from;
            self.model.moves += 1;
            device.last_move = self.model.moves;
            for idx in unused_from..rows.end {
                assert!(self.model.held.remove(&(id, idx)));
            }
        }
    }

    /// Everything the registry shows agrees with the model.
    async fn compare(&self) {
        let model = &self.model;
        assert_eq!(self.registry.revision().await.unwrap(), Revision(model.revision));
        let page = self.registry.list(&Filter::default(), None, 100).await.unwrap();
        assert!(page.damaged.is_empty() && page.next.is_none());
        let listed: Vec<u64> = page.devices.iter().map(|info| info.device.0).collect();
        assert_eq!(listed, model.devices.keys().copied().collect::<Vec<_>>());
        for (info, (id, device)) in page.devices.iter().zip(&model.devices) {
            assert_eq!(info.mode, device.credentials.mode());
            assert_eq!(info.idx_floor, RowIndex(device.floor), "device {id:x}");
            assert_eq!(
                (info.epoch, info.revision),
                (device.epoch, Revision(device.revision))
            );
            assert_eq!(info.status == Status::Active, !device.revoked);
            match self.registry.load(DeviceId(*id)).await {
                Ok(loaded) => assert_eq!((&loaded.info, &loaded.credentials), (info, &device.credentials)),
                Err(error) => assert!(device.revoked && matches!(error, RegistryError::Revoked { .. })),
            }
        }
        let changes = self
            .registry
            .changes_since(Revision::ZERO, 100)
            .await
            .unwrap()
            .changes;
        let mut expected: Vec<(u64, u64, bool)> = model
            .devices
            .iter()
            .map(|(id, device)| (device.revision, *id, !device.revoked))
            .collect();
        expected.sort_unstable();
        let seen: Vec<(u64, u64, bool)> = changes
            .iter()
            .map(|change| (change.revision.0, change.device.0, change.active))
            .collect();
        assert_eq!(seen, expected);
    }
}

impl Model {
    fn reserved(&mut self, id: u64, hint: u32, count: u32, answer: Result<Reservation, RegistryError>) {
        let Some(device) = self.devices.get_mut(&id) else {
            assert!(matches!(answer, Err(RegistryError::UnknownDevice { .. })));
            return;
        };
        let indices = device.indices();
        let start = device.floor.max(indices.start).max(hint);
        match answer {
            Err(RegistryError::EmptyReservation { .. }) => assert_eq!(count, 0),
            Err(RegistryError::Revoked { .. }) => assert!(device.revoked),
            Err(RegistryError::RowsExhausted { .. }) => assert!(start >= indices.end),
            Err(other) => panic!("{other}"),
            Ok(real) => {
                assert!(count > 0 && !device.revoked);
                assert_eq!(real.device(), DeviceId(id));
                assert_eq!(real.rows(), start..start.saturating_add(count).min(indices.end));
                for idx in real.rows() {
                    assert!(
                        self.held.insert((id, idx)),
                        "row {idx} of {id:x} was handed out twice"
                    );
                }
                device.floor = real.rows().end;
                self.moves += 1;
                device.last_move = self.moves;
                self.leases.push(Lease {
                    real,
                    made_by: self.moves,
                });
            }
        }
    }

    fn join(&mut self, one: prop::sample::Index, next: prop::sample::Index) {
        if self.leases.len() < 2 {
            return;
        }
        let one = self.leases.swap_remove(one.index(self.leases.len()));
        let next = self.leases.swap_remove(next.index(self.leases.len()));
        match one.real.join(next.real) {
            // Wide, and it still goes back only as the last move of its device.
            Ok(real) => self.leases.push(Lease {
                real,
                made_by: next.made_by,
            }),
            Err((first, second)) => {
                self.leases.push(Lease {
                    real: first,
                    made_by: one.made_by,
                });
                self.leases.push(Lease {
                    real: second,
                    made_by: next.made_by,
                });
            }
        }
    }
}

fn run(ops: Vec<Op>, on_disk: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let file = on_disk.then(|| directory.path().join("registry"));
        let registry = match &file {
            Some(path) => Registry::create(path, &master_key()).await.unwrap(),
            None => Registry::in_memory(&master_key()).await.unwrap(),
        };
        let mut world = World {
            registry,
            file,
            model: Model::default(),
        };
        for op in ops {
            world.step(op).await;
            world.compare().await;
        }
        assert!(world.registry.check().await.unwrap().is_empty());
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_registry_in_memory_agrees_with_the_model(ops in prop::collection::vec(op(), 1..50)) {
        run(ops, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_registry_on_disk_agrees_with_the_model(ops in prop::collection::vec(op(), 1..40)) {
        run(ops, true);
    }
}
