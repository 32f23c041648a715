//! Action profiles and selectors: actions that several entries share, alone or as groups of which a hash picks one.
//!
//! A group's members are counted as BMv2 counts them: in the order of their handles, the one at `hash % size`. Of
//! P4Runtime's weights, each stands for that many places one behind the other.

use super::entry::{ActionCall, GroupHandle, MemberHandle, Target};
use super::publish::Replicated;
use std::sync::Arc;
use thiserror::Error;

/// What an action profile is, fixed by the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileSpec {
    /// Its name, for messages.
    pub name: String,
    /// Whether it has groups: it is a selector.
    pub selector: bool,
    /// How many members it holds at most, if the program says so.
    pub members_max: Option<u32>,
    /// How many places, weights counted, a group has at most, if the program says so.
    pub group_places_max: Option<u32>,
}

/// Why a change of an action profile is refused. The one who asked for it is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileError {
    /// No such member.
    #[error("action profile {profile} has no member {member:?}")]
    NoMember {
        /// The profile.
        profile: String,
        /// The member.
        member: MemberHandle,
    },
    /// No such group.
    #[error("action profile {profile} has no group {group:?}")]
    NoGroup {
        /// The profile.
        profile: String,
        /// The group.
        group: GroupHandle,
    },
    /// Groups or entries refer to the member.
    #[error("member {member:?} of action profile {profile} is used {uses} times: first delete what uses it")]
    MemberInUse {
        /// The profile.
        profile: String,
        /// The member.
        member: MemberHandle,
        /// How many groups and entries refer to it.
        uses: u32,
    },
    /// Entries refer to the group.
    #[error("group {group:?} of action profile {profile} is used by {uses} entries: first delete them")]
    GroupInUse {
        /// The profile.
        profile: String,
        /// The group.
        group: GroupHandle,
        /// How many entries refer to it.
        uses: u32,
    },
    /// The member is in the group already.
    #[error(
        "member {member:?} is in group {group:?} of action profile {profile} already; raise its weight instead"
    )]
    AlreadyInGroup {
        /// The profile.
        profile: String,
        /// The group.
        group: GroupHandle,
        /// The member.
        member: MemberHandle,
    },
    /// The member is not in the group.
    #[error("member {member:?} is not in group {group:?} of action profile {profile}")]
    NotInGroup {
        /// The profile.
        profile: String,
        /// The group.
        group: GroupHandle,
        /// The member.
        member: MemberHandle,
    },
    /// A weight of 0.
    #[error(
        "member {member:?} has weight 0 in a group of action profile {profile}: leave it out or give it at least 1"
    )]
    ZeroWeight {
        /// The profile.
        profile: String,
        /// The member.
        member: MemberHandle,
    },
    /// The profile holds no more members, or the group no more places.
    #[error("action profile {profile} holds at most {max} {what}")]
    Full {
        /// The profile.
        profile: String,
        /// Of what.
        what: &'static str,
        /// How many.
        max: u32,
    },
    /// The profile has no groups.
    #[error("action profile {profile} is not a selector: it has no groups")]
    NotSelector {
        /// The profile.
        profile: String,
    },
}

/// A member of a group, and how many places it has there: at least 1.
pub type WeightedMember = (MemberHandle, u32);

/// A change of an action profile.
#[derive(Clone, Debug)]
pub enum ProfileOp {
    /// Add a member.
    AddMember(ActionCall),
    /// Give a member another action.
    ModifyMember(MemberHandle, ActionCall),
    /// Delete a member that nothing uses.
    DeleteMember(MemberHandle),
    /// Add a group with these members.
    AddGroup(Vec<WeightedMember>),
    /// Give a group these members instead of those that it has.
    SetGroup(GroupHandle, Vec<WeightedMember>),
    /// Delete a group that no entry uses.
    DeleteGroup(GroupHandle),
    /// Add a member to a group, with weight 1.
    AddToGroup(GroupHandle, MemberHandle),
    /// Take a member out of a group.
    RemoveFromGroup(GroupHandle, MemberHandle),
}

/// A change that was made: what was there before, and what is there now.
#[derive(Clone, Debug)]
pub enum ProfileChange {
    /// Of a member.
    Member {
        /// Which.
        member: MemberHandle,
        /// Its action before, if it was there.
        before: Option<Arc<ActionCall>>,
        /// Its action now, if it is there.
        after: Option<Arc<ActionCall>>,
    },
    /// Of a group.
    Group {
        /// Which.
        group: GroupHandle,
        /// The group before, if it was there.
        before: Option<Arc<Group>>,
        /// The group now, if it is there.
        after: Option<Arc<Group>>,
    },
}

/// A group of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// In the order of their handles.
    members: Vec<WeightedMember>,
    /// Each member as often as its weight says.
    places: Box<[MemberHandle]>,
}

impl Group {
    fn new(mut members: Vec<WeightedMember>) -> Self {
        members.sort_unstable();
        let places = members
            .iter()
            .flat_map(|(member, weight)| std::iter::repeat_n(*member, *weight as usize));
        Self {
            places: places.collect(),
            members,
        }
    }

    /// The members with their weights, in the order in which the selector counts them.
    #[must_use]
    pub fn members(&self) -> &[WeightedMember] {
        &self.members
    }

    /// The member that this hash picks; none of an empty group.
    #[inline]
    #[must_use]
    pub fn choose(&self, hash: u32) -> Option<MemberHandle> {
        let at = (hash as usize).checked_rem(self.places.len())?;
        self.places.get(at).copied()
    }
}

/// Something that is referred to.
#[derive(Clone, Debug)]
struct Shared<T> {
    content: Option<Arc<T>>,
    uses: u32,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self {
            content: None,
            uses: 0,
        }
    }
}

/// The members and groups of one action profile.
#[derive(Clone, Debug)]
pub struct ActionProfile {
    spec: Arc<ProfileSpec>,
    members: Vec<Shared<ActionCall>>,
    groups: Vec<Shared<Group>>,
}

impl ActionProfile {
    /// A profile without members.
    #[must_use]
    pub fn new(spec: Arc<ProfileSpec>) -> Self {
        Self {
            spec,
            members: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// What the profile is.
    #[must_use]
    pub fn spec(&self) -> &ProfileSpec {
        &self.spec
    }

    /// The action of a member.
    #[inline]
    #[must_use]
    pub fn member(&self, member: MemberHandle) -> Option<&ActionCall> {
        self.members.get(member.0 as usize)?.content.as_deref()
    }

    /// A group.
    #[inline]
    #[must_use]
    pub fn group(&self, group: GroupHandle) -> Option<&Group> {
        self.groups.get(group.0 as usize)?.content.as_deref()
    }

    /// All members, in the order of their handles.
    pub fn members(&self) -> impl Iterator<Item = (MemberHandle, &ActionCall)> {
        self.members
            .iter()
            .zip(0..)
            .filter_map(|(member, handle)| Some((MemberHandle(handle), member.content.as_deref()?)))
    }

    /// All groups, in the order of their handles.
    pub fn groups(&self) -> impl Iterator<Item = (GroupHandle, &Group)> {
        self.groups
            .iter()
            .zip(0..)
            .filter_map(|(group, handle)| Some((GroupHandle(handle), group.content.as_deref()?)))
    }

    /// Counts one more, or one less, reference to what an entry leads to.
    pub(super) fn refer(&mut self, target: &Target, more: bool) {
        let uses = match target {
            Target::Action(_) => return,
            Target::Member(member) => self
                .members
                .get_mut(member.0 as usize)
                .map(|member| &mut member.uses),
            Target::Group(group) => self.groups.get_mut(group.0 as usize).map(|group| &mut group.uses),
        };
        if let Some(uses) = uses {
            *uses = if more { *uses + 1 } else { uses.saturating_sub(1) };
        }
    }

    fn name(&self) -> String {
        self.spec.name.clone()
    }

    fn known_member(&self, member: MemberHandle) -> Result<&Shared<ActionCall>, ProfileError> {
        let known = self
            .members
            .get(member.0 as usize)
            .filter(|known| known.content.is_some());
        known.ok_or_else(|| ProfileError::NoMember {
            profile: self.name(),
            member,
        })
    }

    fn known_group(&self, group: GroupHandle) -> Result<(&Group, u32), ProfileError> {
        let known = self.groups.get(group.0 as usize);
        known
            .and_then(|known| Some((known.content.as_deref()?, known.uses)))
            .ok_or_else(|| ProfileError::NoGroup {
                profile: self.name(),
                group,
            })
    }

    fn new_group(&self, group: GroupHandle, members: Vec<WeightedMember>) -> Result<Group, ProfileError> {
        for (member, weight) in &members {
            self.known_member(*member)?;
            if *weight == 0 {
                return Err(ProfileError::ZeroWeight {
                    profile: self.name(),
                    member: *member,
                });
            }
        }
        let places: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
        // Without a bound by the program, one that keeps a single message from taking all memory.
        let max = self
            .spec
            .group_places_max
            .unwrap_or(GROUP_PLACES_MAX)
            .min(GROUP_PLACES_MAX);
        if places > u64::from(max) {
            return Err(ProfileError::Full {
                profile: self.name(),
                what: "places in a group",
                max,
            });
        }
        let made = Group::new(members);
        let twice = made
            .members
            .windows(2)
            .find(|pair| matches!(pair, [(a, _), (b, _)] if a == b));
        if let Some([(member, _), _]) = twice {
            return Err(ProfileError::AlreadyInGroup {
                profile: self.name(),
                group,
                member: *member,
            });
        }
        Ok(made)
    }

    fn put_member(&mut self, member: MemberHandle, content: Option<Arc<ActionCall>>) {
        place(&mut self.members, member.0).content = content;
    }

    fn put_group(&mut self, group: GroupHandle, content: Option<Arc<Group>>) {
        let members =
            |group: &Option<Arc<Group>>| group.iter().flat_map(|g| g.members.clone()).collect::<Vec<_>>();
        for (member, _) in members(&content) {
            self.refer(&Target::Member(member), true);
        }
        let before = std::mem::replace(&mut place(&mut self.groups, group.0).content, content);
        for (member, _) in members(&before) {
            self.refer(&Target::Member(member), false);
        }
    }

    fn put(&mut self, change: &ProfileChange, forward: bool) {
        match change {
            ProfileChange::Member {
                member,
                before,
                after,
            } => {
                self.put_member(*member, if forward { after.clone() } else { before.clone() });
            }
            ProfileChange::Group { group, before, after } => {
                self.put_group(*group, if forward { after.clone() } else { before.clone() });
            }
        }
    }

    fn member_change(&self, op: ProfileOp) -> Result<ProfileChange, ProfileError> {
        let (member, after) = match op {
            ProfileOp::AddMember(action) => {
                let held = self.members().count();
                if let Some(max) = self.spec.members_max.filter(|max| held >= *max as usize) {
                    return Err(ProfileError::Full {
                        profile: self.name(),
                        what: "members",
                        max,
                    });
                }
                (MemberHandle(lowest_free(&self.members)), Some(Arc::new(action)))
            }
            ProfileOp::ModifyMember(member, action) => {
                self.known_member(member)?;
                (member, Some(Arc::new(action)))
            }
            ProfileOp::DeleteMember(member) => {
                let uses = self.known_member(member)?.uses;
                if uses > 0 {
                    return Err(ProfileError::MemberInUse {
                        profile: self.name(),
                        member,
                        uses,
                    });
                }
                (member, None)
            }
            group => return self.group_change(group),
        };
        let before = self
            .members
            .get(member.0 as usize)
            .and_then(|known| known.content.clone());
        Ok(ProfileChange::Member {
            member,
            before,
            after,
        })
    }

    fn group_change(&self, op: ProfileOp) -> Result<ProfileChange, ProfileError> {
        if !self.spec.selector {
            return Err(ProfileError::NotSelector { profile: self.name() });
        }
        let (group, members) = match op {
            ProfileOp::AddGroup(members) => (GroupHandle(lowest_free(&self.groups)), Some(members)),
            ProfileOp::SetGroup(group, members) => {
                self.known_group(group)?;
                (group, Some(members))
            }
            ProfileOp::DeleteGroup(group) => {
                let (_, uses) = self.known_group(group)?;
                if uses > 0 {
                    return Err(ProfileError::GroupInUse {
                        profile: self.name(),
                        group,
                        uses,
                    });
                }
                (group, None)
            }
            ProfileOp::AddToGroup(group, member) => {
                let mut members = self.known_group(group)?.0.members.clone();
                members.push((member, 1));
                (group, Some(members))
            }
            ProfileOp::RemoveFromGroup(group, member) => {
                let mut members = self.known_group(group)?.0.members.clone();
                let held = members.len();
                self.known_member(member)?;
                members.retain(|(other, _)| *other != member);
                if members.len() == held {
                    return Err(ProfileError::NotInGroup {
                        profile: self.name(),
                        group,
                        member,
                    });
                }
                (group, Some(members))
            }
            member => return self.member_change(member),
        };
        let after = members
            .map(|members| self.new_group(group, members))
            .transpose()?
            .map(Arc::new);
        let before = self
            .groups
            .get(group.0 as usize)
            .and_then(|known| known.content.clone());
        Ok(ProfileChange::Group { group, before, after })
    }
}

/// Places of a group where the program sets no bound.
const GROUP_PLACES_MAX: u32 = 1 << 16;

impl Replicated for ActionProfile {
    type Op = ProfileOp;
    type Change = ProfileChange;
    type Error = ProfileError;

    fn apply(&mut self, op: ProfileOp) -> Result<ProfileChange, ProfileError> {
        let change = self.member_change(op)?;
        self.put(&change, true);
        Ok(change)
    }

    fn redo(&mut self, change: &ProfileChange) {
        self.put(change, true);
    }

    fn undo(&mut self, change: &ProfileChange) {
        self.put(change, false);
    }
}

/// The place with this number, made if need be.
fn place<T>(places: &mut Vec<Shared<T>>, number: u32) -> &mut Shared<T> {
    let number = number as usize;
    if places.len() <= number {
        places.resize_with(number + 1, Shared::default);
    }
    // In range by the lines above.
    #[allow(clippy::indexing_slicing)]
    &mut places[number]
}

fn lowest_free<T>(places: &[Shared<T>]) -> u32 {
    places
        .iter()
        .position(|place| place.content.is_none())
        .unwrap_or(places.len()) as u32
}
