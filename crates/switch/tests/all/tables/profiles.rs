//! Action profiles and selectors: deletion rules, and the member that a hash selects.

use super::model::{action, call, key_spec, table_spec};
use linewarden_switch::tables::{
    FieldMatch, Group, GroupHandle, HashSeed, MatchKind, MatchType, MemberHandle, NewEntry, Priority,
    ProfileChange, ProfileError, ProfileId, ProfileOp, ProfileSpec, Publisher, Replicated as _, TableError,
    TableId, TableOp, TableSet, TableSetChange, TableSetError, TableSetOp, TableSpec, Target, TargetKind,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TABLE: TableId = TableId(0);
const PROFILE: ProfileId = ProfileId(0);

fn selector(members_max: Option<u32>, group_size_max: Option<u32>, targets: TargetKind) -> TableSet {
    let mut set = TableSet::new();
    let profile = set.add_profile(Arc::new(ProfileSpec {
        name: "ingress.ecmp".into(),
        selector: targets == TargetKind::MemberOrGroup,
        members_max,
        group_size_max,
    }));
    let key = key_spec(&[(MatchKind::Exact, 8)], MatchType::Exact);
    let spec = TableSpec {
        targets,
        ..(*table_spec(key, 100)).clone()
    };
    set.add_table(Arc::new(spec), Some(profile), &HashSeed::random());
    set
}

fn ecmp() -> TableSet {
    selector(None, None, TargetKind::MemberOrGroup)
}

fn apply_to_profile(set: &mut TableSet, op: ProfileOp) -> Result<ProfileChange, TableSetError> {
    match set.apply(TableSetOp::Profile(PROFILE, op))? {
        TableSetChange::Profile(PROFILE, change) => Ok(change),
        change => panic!("unexpected change: {change:?}"),
    }
}

fn add_member(set: &mut TableSet, number: u32) -> MemberHandle {
    match apply_to_profile(set, ProfileOp::AddMember(call(number))) {
        Ok(ProfileChange::Member {
            member,
            before: None,
            after: Some(_),
        }) => member,
        other => panic!("not added: {other:?}"),
    }
}

fn add_group(set: &mut TableSet, members: &[(u32, u32)]) -> GroupHandle {
    let members = members
        .iter()
        .map(|(member, weight)| (MemberHandle(*member), *weight))
        .collect();
    match apply_to_profile(set, ProfileOp::AddGroup(members)) {
        Ok(ProfileChange::Group {
            group,
            before: None,
            after: Some(_),
        }) => group,
        other => panic!("not added: {other:?}"),
    }
}

fn insert_op(set: &TableSet, key: u8, target: Target) -> TableOp {
    let spec = &set.table(TABLE).expect("one table").spec().key;
    let key = spec
        .key(&[FieldMatch::Exact(vec![key])], Priority(0))
        .expect("fits");
    TableOp::Insert(NewEntry {
        key,
        target,
        state: None,
        constant: false,
    })
}

fn apply_to_table(set: &mut TableSet, op: TableOp) -> Result<(), TableSetError> {
    set.apply(TableSetOp::Table(TABLE, op)).map(|_| ())
}

fn insert(set: &mut TableSet, key: u8, target: Target) -> Result<(), TableSetError> {
    let op = insert_op(set, key, target);
    apply_to_table(set, op)
}

fn expect_error<T: std::fmt::Debug>(result: Result<T, TableSetError>) -> ProfileError {
    match result {
        Err(TableSetError::Profile(error)) => error,
        success => panic!("no error of the profile: {success:?}"),
    }
}

#[test]
fn hash_selects_the_same_member_as_bmv2() {
    let mut set = ecmp();
    for number in 0..4 {
        add_member(&mut set, number);
    }
    // BMv2 stores a group as a sorted set: the order of insertion has no effect.
    let group = add_group(&mut set, &[(3, 1), (0, 1), (2, 1)]);
    insert(&mut set, 1, Target::Group(group)).expect("has members");
    let selected_call = |set: &TableSet, hash: u32| {
        let entry = set
            .table(TABLE)
            .and_then(|table| table.lookup(&[1]))
            .expect("is there");
        set.resolve(TABLE, entry.target(), || hash).cloned()
    };
    for (hash, member) in [(0, 0), (1, 2), (2, 3), (3, 0), (0xffff_ffff, 0), (0xffff_fffe, 3)] {
        assert_eq!(selected_call(&set, hash), Some(call(member)), "hash {hash}");
    }
    apply_to_profile(&mut set, ProfileOp::AddToGroup(group, MemberHandle(1))).expect("not in it");
    assert_eq!(selected_call(&set, 1), Some(call(1)));
    apply_to_profile(&mut set, ProfileOp::RemoveFromGroup(group, MemberHandle(0))).expect("in it");
    assert_eq!(selected_call(&set, 3), Some(call(1)));
    // A modified member keeps its position.
    apply_to_profile(&mut set, ProfileOp::ModifyMember(MemberHandle(1), call(9))).expect("is there");
    assert_eq!(selected_call(&set, 0), Some(call(9)));
    for member in [1, 2, 3] {
        apply_to_profile(&mut set, ProfileOp::RemoveFromGroup(group, MemberHandle(member))).expect("in it");
    }
    assert_eq!(selected_call(&set, 7), None, "an empty group does nothing");
}

#[test]
fn member_is_selected_in_proportion_to_its_weight() {
    let mut set = ecmp();
    for number in 0..3 {
        add_member(&mut set, number);
    }
    let group = add_group(&mut set, &[(2, 3), (0, 1)]);
    let chosen = |set: &TableSet| {
        let group = set
            .profile(PROFILE)
            .and_then(|profile| profile.group(group))
            .expect("is there");
        (0..8)
            .filter_map(|hash| group.choose(hash))
            .map(|member| member.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(chosen(&set), [0, 2, 2, 2, 0, 2, 2, 2]);
    apply_to_profile(&mut set, ProfileOp::SetGroup(group, vec![(MemberHandle(1), 2)])).expect("is there");
    assert_eq!(chosen(&set), [1; 8]);
}

#[test]
fn lowest_free_handle_is_used() {
    let mut set = ecmp();
    for number in 0..3 {
        assert_eq!(add_member(&mut set, number), MemberHandle(number));
    }
    apply_to_profile(&mut set, ProfileOp::DeleteMember(MemberHandle(1))).expect("nothing uses it");
    assert_eq!(add_member(&mut set, 7), MemberHandle(1));
    assert_eq!(add_group(&mut set, &[]), GroupHandle(0));
    assert_eq!(add_group(&mut set, &[]), GroupHandle(1));
    apply_to_profile(&mut set, ProfileOp::DeleteGroup(GroupHandle(0))).expect("nothing uses it");
    assert_eq!(add_group(&mut set, &[]), GroupHandle(0));
}

#[test]
fn referenced_objects_cannot_be_deleted() {
    let mut set = ecmp();
    let (direct_member, group_member) = (add_member(&mut set, 1), add_member(&mut set, 2));
    let group = add_group(&mut set, &[(group_member.0, 5)]);
    insert(&mut set, 1, Target::Member(direct_member)).expect("is there");
    insert(&mut set, 2, Target::Group(group)).expect("is there");
    let in_use = |member, uses| ProfileError::MemberInUse {
        profile: "ingress.ecmp".into(),
        member,
        uses,
    };
    assert_eq!(
        expect_error(apply_to_profile(&mut set, ProfileOp::DeleteMember(direct_member))),
        in_use(direct_member, 1)
    );
    assert_eq!(
        expect_error(apply_to_profile(&mut set, ProfileOp::DeleteMember(group_member))),
        in_use(group_member, 1)
    );
    let group_in_use = ProfileError::GroupInUse {
        profile: "ingress.ecmp".into(),
        group,
        uses: 1,
    };
    assert_eq!(
        expect_error(apply_to_profile(&mut set, ProfileOp::DeleteGroup(group))),
        group_in_use
    );

    // The default action counts as a reference too.
    apply_to_table(&mut set, TableOp::SetDefault(Some(Target::Member(direct_member)))).expect("free");
    assert_eq!(
        expect_error(apply_to_profile(&mut set, ProfileOp::DeleteMember(direct_member))),
        in_use(direct_member, 2)
    );
    let entries: Vec<_> = set
        .table(TABLE)
        .expect("one")
        .iter()
        .map(|entry| entry.handle())
        .collect();
    for entry in entries {
        apply_to_table(&mut set, TableOp::Delete(entry)).expect("is there");
    }
    assert_eq!(
        expect_error(apply_to_profile(&mut set, ProfileOp::DeleteMember(direct_member))),
        in_use(direct_member, 1)
    );
    apply_to_table(&mut set, TableOp::SetDefault(None)).expect("free");
    apply_to_profile(&mut set, ProfileOp::DeleteMember(direct_member)).expect("nothing uses it");
    apply_to_profile(&mut set, ProfileOp::DeleteGroup(group)).expect("nothing uses it");
    apply_to_profile(&mut set, ProfileOp::DeleteMember(group_member)).expect("its group is gone");
}

#[test]
fn each_error_is_reported() {
    let mut set = selector(Some(2), Some(4), TargetKind::MemberOrGroup);
    let name = || "ingress.ecmp".to_owned();
    let (a, b) = (add_member(&mut set, 1), add_member(&mut set, 2));
    let group = add_group(&mut set, &[(a.0, 1)]);
    let (no_member, no_group) = (MemberHandle(9), GroupHandle(9));
    let missing = ProfileError::NoMember {
        profile: name(),
        member: no_member,
    };
    let missing_group = ProfileError::NoGroup {
        profile: name(),
        group: no_group,
    };
    let full = |element, max| ProfileError::Full {
        profile: name(),
        element,
        max,
    };
    for (op, expected) in [
        (ProfileOp::AddMember(call(3)), full("members", 2)),
        (ProfileOp::ModifyMember(no_member, call(3)), missing.clone()),
        (ProfileOp::DeleteMember(no_member), missing.clone()),
        (ProfileOp::AddToGroup(group, no_member), missing.clone()),
        (ProfileOp::RemoveFromGroup(group, no_member), missing.clone()),
        (ProfileOp::AddGroup(vec![(no_member, 1)]), missing.clone()),
        (ProfileOp::SetGroup(no_group, vec![]), missing_group.clone()),
        (ProfileOp::AddToGroup(no_group, a), missing_group.clone()),
        (ProfileOp::RemoveFromGroup(no_group, a), missing_group.clone()),
        (ProfileOp::DeleteGroup(no_group), missing_group.clone()),
        (
            ProfileOp::AddToGroup(group, a),
            ProfileError::AlreadyInGroup {
                profile: name(),
                group,
                member: a,
            },
        ),
        (
            ProfileOp::RemoveFromGroup(group, b),
            ProfileError::NotInGroup {
                profile: name(),
                group,
                member: b,
            },
        ),
        (
            ProfileOp::SetGroup(group, vec![(b, 0)]),
            ProfileError::ZeroWeight {
                profile: name(),
                member: b,
            },
        ),
        (
            ProfileOp::SetGroup(group, vec![(a, 2), (b, 3)]),
            full("members in a group, counted by weight", 4),
        ),
        (
            ProfileOp::SetGroup(group, vec![(a, u32::MAX), (b, u32::MAX)]),
            full("members in a group, counted by weight", 4),
        ),
    ] {
        assert_eq!(
            expect_error(apply_to_profile(&mut set, op.clone())),
            expected,
            "{op:?}"
        );
    }
    assert_eq!(
        expect_error(insert(&mut set, 1, Target::Member(no_member))),
        missing
    );
    assert_eq!(
        expect_error(insert(&mut set, 1, Target::Group(no_group))),
        missing_group
    );
    apply_to_profile(&mut set, ProfileOp::SetGroup(group, vec![])).expect("may be empty");
    assert!(matches!(
        insert(&mut set, 1, Target::Group(group)),
        Err(TableSetError::EmptyGroup { .. })
    ));
    let result = insert(&mut set, 1, action(1));
    assert!(
        matches!(result, Err(TableSetError::Table(TableError::WrongTarget { .. }))),
        "{result:?}"
    );

    let mut plain = selector(None, None, TargetKind::Member);
    assert_eq!(
        expect_error(apply_to_profile(&mut plain, ProfileOp::AddGroup(vec![]))),
        ProfileError::NotSelector { profile: name() }
    );
    let unknown = TableSetOp::Profile(ProfileId(5), ProfileOp::AddGroup(vec![]));
    assert!(matches!(
        plain.apply(unknown),
        Err(TableSetError::NoProfile(ProfileId(5)))
    ));
    assert!(matches!(
        plain.apply(TableSetOp::Table(TableId(5), TableOp::Seal)),
        Err(TableSetError::NoTable(TableId(5)))
    ));
}

/// Members, groups and entries as simple collections; references are recounted each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    members: BTreeMap<u32, u32>,
    groups: BTreeMap<u32, BTreeSet<u32>>,
    entries: BTreeMap<u8, Target>,
}

impl Model {
    fn is_used(&self, target: &Target) -> bool {
        self.entries.values().any(|entry| entry == target)
    }

    fn is_member_used(&self, member: u32) -> bool {
        self.is_used(&Target::Member(MemberHandle(member)))
            || self.groups.values().any(|group| group.contains(&member))
    }

    fn is_valid_target(&self, target: &Target) -> bool {
        match target {
            Target::Action(_) => false,
            Target::Member(member) => self.members.contains_key(&member.0),
            Target::Group(group) => self
                .groups
                .get(&group.0)
                .is_some_and(|members| !members.is_empty()),
        }
    }

    /// Applies the step if the step is allowed; returns whether it is.
    fn step(&mut self, choice: u8, a: u32, b: u32) -> bool {
        let lowest_free = |used_handles: Vec<u32>| {
            (0..)
                .find(|handle| !used_handles.contains(handle))
                .expect("endless")
        };
        let target = if b.is_multiple_of(2) {
            Target::Member(MemberHandle(a))
        } else {
            Target::Group(GroupHandle(a))
        };
        match choice {
            0 => self
                .members
                .insert(lowest_free(self.members.keys().copied().collect()), a)
                .is_none(),
            1 => !self.is_member_used(a) && self.members.remove(&a).is_some(),
            2 => self
                .groups
                .insert(
                    lowest_free(self.groups.keys().copied().collect()),
                    BTreeSet::new(),
                )
                .is_none(),
            3 => !self.is_used(&Target::Group(GroupHandle(a))) && self.groups.remove(&a).is_some(),
            4 => {
                self.members.contains_key(&b) && self.groups.get_mut(&a).is_some_and(|group| group.insert(b))
            }
            5 => self.groups.get_mut(&a).is_some_and(|group| group.remove(&b)),
            6 => {
                let is_allowed = self.is_valid_target(&target) && !self.entries.contains_key(&(b as u8));
                is_allowed && self.entries.insert(b as u8, target).is_none()
            }
            7 => {
                let is_allowed = self.is_valid_target(&target) && self.entries.contains_key(&(b as u8));
                is_allowed && self.entries.insert(b as u8, target).is_some()
            }
            _ => self.entries.remove(&(b as u8)).is_some(),
        }
    }
}

/// The same step as an operation on the table set; `None` for a missing entry.
fn op(set: &TableSet, choice: u8, a: u32, b: u32) -> Option<TableSetOp> {
    let target = if b.is_multiple_of(2) {
        Target::Member(MemberHandle(a))
    } else {
        Target::Group(GroupHandle(a))
    };
    let entry = || set.table(TABLE)?.lookup(&[b as u8]).map(|entry| entry.handle());
    Some(match choice {
        0 => TableSetOp::Profile(PROFILE, ProfileOp::AddMember(call(a))),
        1 => TableSetOp::Profile(PROFILE, ProfileOp::DeleteMember(MemberHandle(a))),
        2 => TableSetOp::Profile(PROFILE, ProfileOp::AddGroup(vec![])),
        3 => TableSetOp::Profile(PROFILE, ProfileOp::DeleteGroup(GroupHandle(a))),
        4 => TableSetOp::Profile(PROFILE, ProfileOp::AddToGroup(GroupHandle(a), MemberHandle(b))),
        5 => TableSetOp::Profile(
            PROFILE,
            ProfileOp::RemoveFromGroup(GroupHandle(a), MemberHandle(b)),
        ),
        6 => TableSetOp::Table(TABLE, insert_op(set, b as u8, target)),
        7 => TableSetOp::Table(TABLE, TableOp::Modify(entry()?, target)),
        _ => TableSetOp::Table(TABLE, TableOp::Delete(entry()?)),
    })
}

fn read_back(set: &TableSet) -> Model {
    let profile = set.profile(PROFILE).expect("one profile");
    let members = |group: &Group| group.members().iter().map(|(member, _)| member.0).collect();
    let entry = |key| Some((key, set.table(TABLE)?.lookup(&[key])?.target().clone()));
    Model {
        members: profile
            .members()
            .map(|(member, call)| (member.0, call.action.0))
            .collect(),
        groups: profile
            .groups()
            .map(|(handle, group)| (handle.0, members(group)))
            .collect(),
        entries: (0..=255).filter_map(entry).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn references_stay_consistent_across_rollback(
        batches in prop::collection::vec(
            (prop::collection::vec((0..9u8, 0..6u32, 0..6u32), 1..30), any::<bool>()),
            1..8,
        ),
    ) {
        let mut publisher = Publisher::new(ecmp());
        let mut model = Model::default();
        for (steps, is_committed) in batches {
            let mut new_model = model.clone();
            let mut batch = publisher.begin();
            for (choice, a, b) in steps {
                let next_op = op(batch.state(), choice, a, b);
                let is_applied = next_op.is_some_and(|op| batch.apply(op).is_ok());
                prop_assert_eq!(is_applied, new_model.step(choice, a, b), "{} {} {}", choice, a, b);
                prop_assert_eq!(&read_back(batch.state()), &new_model);
            }
            if is_committed {
                batch.commit();
                model = new_model;
            } else {
                drop(batch);
            }
            prop_assert_eq!(&read_back(&publisher.current()), &model);
        }
        prop_assert_eq!(&read_back(publisher.begin().state()), &model);
    }
}
