//! Action profiles and selectors: actions that several entries share, individually or in groups from which a hash selects.
//!
//! As in BMv2, a hash selects the member at position `hash % size`; members are in the order of their handles. A P4Runtime
//! weight is the number of consecutive positions of a member.

use super::entry::{ActionCall, GroupHandle, MemberHandle, Target};
use super::publish::Replicated;
use std::sync::Arc;
use thiserror::Error;

/// Specification of an action profile in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileSpec {
    /// Name, for messages.
    pub name: String,
    /// Whether the profile is a selector with groups.
    pub selector: bool,
    /// Capacity in members, if the program sets a limit.
    pub members_max: Option<u32>,
    /// Maximum size of a group (sum of weights), if the program sets a limit.
    pub group_size_max: Option<u32>,
}

/// Reason to reject an operation on an action profile, caused by the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileError {
    /// The member does not exist.
    #[error("unknown member {member:?} of action profile {profile}")]
    NoMember {
        /// Profile.
        profile: String,
        /// Member.
        member: MemberHandle,
    },
    /// The group does not exist.
    #[error("unknown group {group:?} of action profile {profile}")]
    NoGroup {
        /// Profile.
        profile: String,
        /// Group.
        group: GroupHandle,
    },
    /// Groups or entries refer to the member.
    #[error(
        "member {member:?} of action profile {profile} is in use by {uses} references: delete these first"
    )]
    MemberInUse {
        /// Profile.
        profile: String,
        /// Member.
        member: MemberHandle,
        /// Number of references from groups and entries.
        uses: u32,
    },
    /// Entries refer to the group.
    #[error("group {group:?} of action profile {profile} is in use by {uses} entries: delete these first")]
    GroupInUse {
        /// Profile.
        profile: String,
        /// Group.
        group: GroupHandle,
        /// Number of references from entries.
        uses: u32,
    },
    /// The member is already in the group.
    #[error(
        "member {member:?} is already in group {group:?} of action profile {profile}: increase its weight instead"
    )]
    AlreadyInGroup {
        /// Profile.
        profile: String,
        /// Group.
        group: GroupHandle,
        /// Member.
        member: MemberHandle,
    },
    /// The member is not in the group.
    #[error("member {member:?} is not in group {group:?} of action profile {profile}")]
    NotInGroup {
        /// Profile.
        profile: String,
        /// Group.
        group: GroupHandle,
        /// Member.
        member: MemberHandle,
    },
    /// The weight is 0.
    #[error(
        "weight of member {member:?} in a group of action profile {profile} is 0: use at least 1 or omit the member"
    )]
    ZeroWeight {
        /// Profile.
        profile: String,
        /// Member.
        member: MemberHandle,
    },
    /// The profile or group is full.
    #[error("action profile {profile} allows at most {max} {element}")]
    Full {
        /// Profile.
        profile: String,
        /// Kind of the elements.
        element: &'static str,
        /// Maximum number.
        max: u32,
    },
    /// The profile is not a selector.
    #[error("action profile {profile} is not a selector and has no groups")]
    NotSelector {
        /// Profile.
        profile: String,
    },
}

/// Member of a group and its weight, at least 1.
pub type WeightedMember = (MemberHandle, u32);

/// Operation on an action profile.
#[derive(Clone, Debug)]
pub enum ProfileOp {
    /// Adds a member.
    AddMember(ActionCall),
    /// Sets the action of a member.
    ModifyMember(MemberHandle, ActionCall),
    /// Deletes an unused member.
    DeleteMember(MemberHandle),
    /// Adds a group with these members.
    AddGroup(Vec<WeightedMember>),
    /// Replaces the members of a group.
    SetGroup(GroupHandle, Vec<WeightedMember>),
    /// Deletes an unused group.
    DeleteGroup(GroupHandle),
    /// Adds a member to a group with weight 1.
    AddToGroup(GroupHandle, MemberHandle),
    /// Removes a member from a group.
    RemoveFromGroup(GroupHandle, MemberHandle),
}

/// Applied change: old and new value.
#[derive(Clone, Debug)]
pub enum ProfileChange {
    /// Change of a member.
    Member {
        /// Handle.
        member: MemberHandle,
        /// Old action, if the member existed.
        before: Option<Arc<ActionCall>>,
        /// New action, if the member exists.
        after: Option<Arc<ActionCall>>,
    },
    /// Change of a group.
    Group {
        /// Handle.
        group: GroupHandle,
        /// Old group, if any.
        before: Option<Arc<Group>>,
        /// New group, if any.
        after: Option<Arc<Group>>,
    },
}

/// Group of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Members in the order of their handles.
    members: Vec<WeightedMember>,
    /// Members by position; the weight of a member is its number of positions.
    positions: Box<[MemberHandle]>,
}

impl Group {
    fn new(mut members: Vec<WeightedMember>) -> Self {
        members.sort_unstable();
        let positions = members
            .iter()
            .flat_map(|(member, weight)| std::iter::repeat_n(*member, *weight as usize));
        Self {
            positions: positions.collect(),
            members,
        }
    }

    /// Members with their weights, in the order of selection.
    #[must_use]
    pub fn members(&self) -> &[WeightedMember] {
        &self.members
    }

    /// Member that this hash selects; `None` for an empty group.
    #[inline]
    #[must_use]
    pub fn choose(&self, hash: u32) -> Option<MemberHandle> {
        let index = (hash as usize).checked_rem(self.positions.len())?;
        self.positions.get(index).copied()
    }
}

/// Content with a reference count.
#[derive(Clone, Debug)]
struct RefCounted<T> {
    content: Option<Arc<T>>,
    uses: u32,
}

impl<T> Default for RefCounted<T> {
    fn default() -> Self {
        Self {
            content: None,
            uses: 0,
        }
    }
}

/// Members and groups of one action profile.
#[derive(Clone, Debug)]
pub struct ActionProfile {
    spec: Arc<ProfileSpec>,
    members: Vec<RefCounted<ActionCall>>,
    groups: Vec<RefCounted<Group>>,
}

impl ActionProfile {
    /// Creates a profile without members.
    #[must_use]
    pub fn new(spec: Arc<ProfileSpec>) -> Self {
        Self {
            spec,
            members: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Specification.
    #[must_use]
    pub fn spec(&self) -> &ProfileSpec {
        &self.spec
    }

    /// Action of a member.
    #[inline]
    #[must_use]
    pub fn member(&self, member: MemberHandle) -> Option<&ActionCall> {
        self.members.get(member.0 as usize)?.content.as_deref()
    }

    /// Group by handle.
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

    /// Increments or decrements the reference count of an entry's target.
    pub(super) fn update_references(&mut self, target: &Target, increment: bool) {
        let uses = match target {
            Target::Action(_) => return,
            Target::Member(member) => self
                .members
                .get_mut(member.0 as usize)
                .map(|member| &mut member.uses),
            Target::Group(group) => self.groups.get_mut(group.0 as usize).map(|group| &mut group.uses),
        };
        if let Some(uses) = uses {
            *uses = if increment {
                *uses + 1
            } else {
                uses.saturating_sub(1)
            };
        }
    }

    fn name(&self) -> String {
        self.spec.name.clone()
    }

    fn require_member(&self, member: MemberHandle) -> Result<&RefCounted<ActionCall>, ProfileError> {
        let element = self
            .members
            .get(member.0 as usize)
            .filter(|element| element.content.is_some());
        element.ok_or_else(|| ProfileError::NoMember {
            profile: self.name(),
            member,
        })
    }

    fn require_group(&self, group: GroupHandle) -> Result<(&Group, u32), ProfileError> {
        let element = self.groups.get(group.0 as usize);
        element
            .and_then(|element| Some((element.content.as_deref()?, element.uses)))
            .ok_or_else(|| ProfileError::NoGroup {
                profile: self.name(),
                group,
            })
    }

    fn new_group(&self, group: GroupHandle, members: Vec<WeightedMember>) -> Result<Group, ProfileError> {
        for (member, weight) in &members {
            self.require_member(*member)?;
            if *weight == 0 {
                return Err(ProfileError::ZeroWeight {
                    profile: self.name(),
                    member: *member,
                });
            }
        }
        let size: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
        // This limit prevents a single message from exhausting the memory.
        let max = self
            .spec
            .group_size_max
            .unwrap_or(GROUP_SIZE_MAX)
            .min(GROUP_SIZE_MAX);
        if size > u64::from(max) {
            return Err(ProfileError::Full {
                profile: self.name(),
                element: "members in a group, counted by weight",
                max,
            });
        }
        let new_group = Group::new(members);
        let duplicate = new_group
            .members
            .windows(2)
            .find(|pair| matches!(pair, [(a, _), (b, _)] if a == b));
        if let Some([(member, _), _]) = duplicate {
            return Err(ProfileError::AlreadyInGroup {
                profile: self.name(),
                group,
                member: *member,
            });
        }
        Ok(new_group)
    }

    fn put_member(&mut self, member: MemberHandle, content: Option<Arc<ActionCall>>) {
        element_mut(&mut self.members, member.0).content = content;
    }

    fn put_group(&mut self, group: GroupHandle, content: Option<Arc<Group>>) {
        let members_of =
            |group: &Option<Arc<Group>>| group.iter().flat_map(|g| g.members.clone()).collect::<Vec<_>>();
        for (member, _) in members_of(&content) {
            self.update_references(&Target::Member(member), true);
        }
        let old_content = std::mem::replace(&mut element_mut(&mut self.groups, group.0).content, content);
        for (member, _) in members_of(&old_content) {
            self.update_references(&Target::Member(member), false);
        }
    }

    /// Stores the new value of a change if `forward`, else the old value.
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

    /// Returns the change that an operation makes, without applying the change.
    fn member_change(&self, op: ProfileOp) -> Result<ProfileChange, ProfileError> {
        let (member, after) = match op {
            ProfileOp::AddMember(action) => {
                let member_count = self.members().count();
                if let Some(max) = self.spec.members_max.filter(|max| member_count >= *max as usize) {
                    return Err(ProfileError::Full {
                        profile: self.name(),
                        element: "members",
                        max,
                    });
                }
                (MemberHandle(lowest_free(&self.members)), Some(Arc::new(action)))
            }
            ProfileOp::ModifyMember(member, action) => {
                self.require_member(member)?;
                (member, Some(Arc::new(action)))
            }
            ProfileOp::DeleteMember(member) => {
                let uses = self.require_member(member)?.uses;
                if uses > 0 {
                    return Err(ProfileError::MemberInUse {
                        profile: self.name(),
                        member,
                        uses,
                    });
                }
                (member, None)
            }
            group_op => return self.group_change(group_op),
        };
        let before = self
            .members
            .get(member.0 as usize)
            .and_then(|element| element.content.clone());
        Ok(ProfileChange::Member {
            member,
            before,
            after,
        })
    }

    /// Same as [`Self::member_change`] for an operation on a group.
    fn group_change(&self, op: ProfileOp) -> Result<ProfileChange, ProfileError> {
        if !self.spec.selector {
            return Err(ProfileError::NotSelector { profile: self.name() });
        }
        let (group, members) = match op {
            ProfileOp::AddGroup(members) => (GroupHandle(lowest_free(&self.groups)), Some(members)),
            ProfileOp::SetGroup(group, members) => {
                self.require_group(group)?;
                (group, Some(members))
            }
            ProfileOp::DeleteGroup(group) => {
                let (_, uses) = self.require_group(group)?;
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
                let mut members = self.require_group(group)?.0.members.clone();
                members.push((member, 1));
                (group, Some(members))
            }
            ProfileOp::RemoveFromGroup(group, member) => {
                let mut members = self.require_group(group)?.0.members.clone();
                let old_count = members.len();
                self.require_member(member)?;
                members.retain(|(candidate, _)| *candidate != member);
                if members.len() == old_count {
                    return Err(ProfileError::NotInGroup {
                        profile: self.name(),
                        group,
                        member,
                    });
                }
                (group, Some(members))
            }
            member_op => return self.member_change(member_op),
        };
        let after = members
            .map(|members| self.new_group(group, members))
            .transpose()?
            .map(Arc::new);
        let before = self
            .groups
            .get(group.0 as usize)
            .and_then(|element| element.content.clone());
        Ok(ProfileChange::Group { group, before, after })
    }
}

/// Maximum size of a group (sum of weights), also if the program sets a higher limit or no limit.
const GROUP_SIZE_MAX: u32 = 1 << 16;

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

/// Returns the element with this handle; extends the list if the element does not exist.
fn element_mut<T>(elements: &mut Vec<RefCounted<T>>, handle: u32) -> &mut RefCounted<T> {
    let index = handle as usize;
    if elements.len() <= index {
        elements.resize_with(index + 1, RefCounted::default);
    }
    // The lines above ensure that the index is in range.
    #[allow(clippy::indexing_slicing)]
    &mut elements[index]
}

/// Returns the lowest handle without content.
fn lowest_free<T>(elements: &[RefCounted<T>]) -> u32 {
    elements
        .iter()
        .position(|element| element.content.is_none())
        .unwrap_or(elements.len()) as u32
}
