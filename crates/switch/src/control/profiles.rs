//! Writing members and groups of action profiles.

use linewarden_p4runtime::entity::{Change, Group, Member};
use linewarden_p4runtime::error::{Code, EntityError};
use linewarden_p4runtime::ids as named;

use super::actions;
use super::binding::ProfileBinding;
use super::entries::unwatched;
use super::writing::{Writing, Written, bound};
use crate::program::ids::ProfileId;
use crate::tables::{GroupHandle, MemberHandle, ProfileChange, ProfileOp, WeightedMember};

/// Says it in the controller's numbers, where the profile itself speaks of its own.
fn in_use(what: &'static str, id: u32) -> impl Fn(EntityError) -> EntityError {
    move |error| match error.code {
        Code::FailedPrecondition => {
            EntityError::precondition(format!("{what} {id} is in use: first delete what leads to it"))
        }
        _ => error,
    }
}

impl<'a> Writing<'a, '_> {
    fn profile(&self, id: named::ProfileId) -> Result<&'a ProfileBinding, EntityError> {
        bound(self.binding.profiles.get(&id))
    }

    pub(super) fn member_handle(
        &self,
        profile: ProfileId,
        id: named::MemberId,
    ) -> Result<MemberHandle, EntityError> {
        let handle = self.book.members.get(&(profile, id)).copied();
        handle.ok_or_else(|| EntityError::not_found(format!("there is no member {id}")))
    }

    pub(super) fn group_handle(
        &self,
        profile: ProfileId,
        id: named::GroupId,
    ) -> Result<GroupHandle, EntityError> {
        let found = self.book.groups.get(&(profile, id)).map(|(handle, _)| *handle);
        found.ok_or_else(|| EntityError::not_found(format!("there is no group {id}")))
    }

    pub(super) fn member(&mut self, change: &Change<Member, (named::ProfileId, named::MemberId)>) -> Written {
        match change {
            Change::Insert(member) => {
                let binding = self.profile(member.profile)?;
                let profile = self.without_shots(binding.id)?;
                if self.book.members.get(&(profile, member.id)).is_some() {
                    return Err(EntityError::already_exists(format!(
                        "member {} is there already",
                        member.id
                    )));
                }
                let call = actions::call(self.program, &binding.actions, &member.action)?;
                let change = self.profile_change(profile, ProfileOp::AddMember(call))?;
                let ProfileChange::Member { member: handle, .. } = change else {
                    return Err(EntityError::invalid("no member was made"));
                };
                self.book.members.set((profile, member.id), Some(handle));
                self.book.member_ids.set((profile, handle), Some(member.id));
            }
            Change::Modify(member) => {
                let binding = self.profile(member.profile)?;
                let handle = self.member_handle(binding.id, member.id)?;
                let call = actions::call(self.program, &binding.actions, &member.action)?;
                self.profile_change(binding.id, ProfileOp::ModifyMember(handle, call))?;
            }
            Change::Delete((profile, id)) => {
                let profile = self.profile(*profile)?.id;
                let handle = self.member_handle(profile, *id)?;
                self.profile_change(profile, ProfileOp::DeleteMember(handle))
                    .map_err(in_use("member", id.0))?;
                self.book.members.set((profile, *id), None);
                self.book.member_ids.set((profile, handle), None);
            }
        }
        Ok(())
    }

    pub(super) fn group(&mut self, change: &Change<Group, (named::ProfileId, named::GroupId)>) -> Written {
        match change {
            Change::Insert(group) => {
                let profile = self.without_shots(self.profile(group.profile)?.id)?;
                if self.book.groups.get(&(profile, group.id)).is_some() {
                    return Err(EntityError::already_exists(format!(
                        "group {} is there already",
                        group.id
                    )));
                }
                let members = self.weighted(profile, group)?;
                let change = self.profile_change(profile, ProfileOp::AddGroup(members))?;
                let ProfileChange::Group { group: handle, .. } = change else {
                    return Err(EntityError::invalid("no group was made"));
                };
                let note = (handle, group.clone());
                self.book.groups.set((profile, group.id), Some(note));
                self.book.group_ids.set((profile, handle), Some(group.id));
            }
            Change::Modify(group) => {
                let profile = self.profile(group.profile)?.id;
                let handle = self.group_handle(profile, group.id)?;
                let before = self.book.groups.get(&(profile, group.id));
                if before.is_some_and(|(_, before)| before.max_size != group.max_size) {
                    return Err(EntityError::invalid("a group's max_size cannot be modified"));
                }
                let members = self.weighted(profile, group)?;
                self.profile_change(profile, ProfileOp::SetGroup(handle, members))?;
                let note = (handle, group.clone());
                self.book.groups.set((profile, group.id), Some(note));
            }
            Change::Delete((profile, id)) => {
                let profile = self.profile(*profile)?.id;
                let handle = self.group_handle(profile, *id)?;
                self.profile_change(profile, ProfileOp::DeleteGroup(handle))
                    .map_err(in_use("group", id.0))?;
                self.book.groups.set((profile, *id), None);
                self.book.group_ids.set((profile, handle), None);
            }
        }
        Ok(())
    }

    /// A group's members, each with as many places as its weight says.
    fn weighted(&self, profile: ProfileId, group: &Group) -> Result<Vec<WeightedMember>, EntityError> {
        let weigh = |member: &linewarden_p4runtime::entity::GroupMember| {
            unwatched(member.watch)?;
            Ok((self.member_handle(profile, member.id)?, member.weight.max(1)))
        };
        group.members.iter().map(weigh).collect()
    }
}
