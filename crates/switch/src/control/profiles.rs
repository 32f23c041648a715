//! Writes of members and groups of action profiles.

use linewarden_p4runtime::entity::{Change, Group, Member};
use linewarden_p4runtime::error::{Code, EntityError};
use linewarden_p4runtime::ids as p4rt_ids;

use super::actions;
use super::binding::ProfileBinding;
use super::entries::reject_watch_port;
use super::write::{BatchWriter, UpdateResult, require_bound};
use crate::program::ids::ProfileId;
use crate::tables::{GroupHandle, MemberHandle, ProfileChange, ProfileOp, WeightedMember};

/// Rewrites an "in use" error with the controller's id instead of the internal handle.
fn map_in_use_error(object: &'static str, id: u32) -> impl Fn(EntityError) -> EntityError {
    move |error| match error.code {
        Code::FailedPrecondition => {
            EntityError::precondition(format!("{object} {id} is in use: delete the references first"))
        }
        _ => error,
    }
}

impl<'a> BatchWriter<'a, '_> {
    fn profile(&self, id: p4rt_ids::ProfileId) -> Result<&'a ProfileBinding, EntityError> {
        require_bound(self.binding.profiles.get(&id))
    }

    pub(super) fn member_handle(
        &self,
        profile: ProfileId,
        id: p4rt_ids::MemberId,
    ) -> Result<MemberHandle, EntityError> {
        let handle = self.controller_state.members.get(&(profile, id)).copied();
        handle.ok_or_else(|| EntityError::not_found(format!("member {id} not found")))
    }

    pub(super) fn group_handle(
        &self,
        profile: ProfileId,
        id: p4rt_ids::GroupId,
    ) -> Result<GroupHandle, EntityError> {
        let handle = self
            .controller_state
            .groups
            .get(&(profile, id))
            .map(|(handle, _)| *handle);
        handle.ok_or_else(|| EntityError::not_found(format!("group {id} not found")))
    }

    pub(super) fn member(
        &mut self,
        change: &Change<Member, (p4rt_ids::ProfileId, p4rt_ids::MemberId)>,
    ) -> UpdateResult {
        match change {
            Change::Insert(member) => {
                let binding = self.profile(member.profile)?;
                let profile = self.require_no_one_shots(binding.id)?;
                if self.controller_state.members.get(&(profile, member.id)).is_some() {
                    return Err(EntityError::already_exists(format!(
                        "member {} exists",
                        member.id
                    )));
                }
                let call = actions::to_action_call(self.program, &binding.actions, &member.action)?;
                let change = self.apply_profile_op(profile, ProfileOp::AddMember(call))?;
                let ProfileChange::Member { member: handle, .. } = change else {
                    return Err(EntityError::invalid("internal error: no member was created"));
                };
                self.controller_state
                    .members
                    .set((profile, member.id), Some(handle));
                self.controller_state
                    .member_ids
                    .set((profile, handle), Some(member.id));
            }
            Change::Modify(member) => {
                let binding = self.profile(member.profile)?;
                let handle = self.member_handle(binding.id, member.id)?;
                let call = actions::to_action_call(self.program, &binding.actions, &member.action)?;
                self.apply_profile_op(binding.id, ProfileOp::ModifyMember(handle, call))?;
            }
            Change::Delete((profile, id)) => {
                let profile = self.profile(*profile)?.id;
                let handle = self.member_handle(profile, *id)?;
                self.apply_profile_op(profile, ProfileOp::DeleteMember(handle))
                    .map_err(map_in_use_error("member", id.0))?;
                self.controller_state.members.set((profile, *id), None);
                self.controller_state.member_ids.set((profile, handle), None);
            }
        }
        Ok(())
    }

    pub(super) fn group(
        &mut self,
        change: &Change<Group, (p4rt_ids::ProfileId, p4rt_ids::GroupId)>,
    ) -> UpdateResult {
        match change {
            Change::Insert(group) => {
                let profile = self.require_no_one_shots(self.profile(group.profile)?.id)?;
                if self.controller_state.groups.get(&(profile, group.id)).is_some() {
                    return Err(EntityError::already_exists(format!("group {} exists", group.id)));
                }
                let members = self.weighted_members(profile, group)?;
                let change = self.apply_profile_op(profile, ProfileOp::AddGroup(members))?;
                let ProfileChange::Group { group: handle, .. } = change else {
                    return Err(EntityError::invalid("internal error: no group was created"));
                };
                let value = (handle, group.clone());
                self.controller_state.groups.set((profile, group.id), Some(value));
                self.controller_state
                    .group_ids
                    .set((profile, handle), Some(group.id));
            }
            Change::Modify(group) => {
                let profile = self.profile(group.profile)?.id;
                let handle = self.group_handle(profile, group.id)?;
                let previous = self.controller_state.groups.get(&(profile, group.id));
                if previous.is_some_and(|(_, previous)| previous.max_size != group.max_size) {
                    return Err(EntityError::invalid("max_size of a group cannot be modified"));
                }
                let members = self.weighted_members(profile, group)?;
                self.apply_profile_op(profile, ProfileOp::SetGroup(handle, members))?;
                let value = (handle, group.clone());
                self.controller_state.groups.set((profile, group.id), Some(value));
            }
            Change::Delete((profile, id)) => {
                let profile = self.profile(*profile)?.id;
                let handle = self.group_handle(profile, *id)?;
                self.apply_profile_op(profile, ProfileOp::DeleteGroup(handle))
                    .map_err(map_in_use_error("group", id.0))?;
                self.controller_state.groups.set((profile, *id), None);
                self.controller_state.group_ids.set((profile, handle), None);
            }
        }
        Ok(())
    }

    /// Members of a group with their weights.
    fn weighted_members(
        &self,
        profile: ProfileId,
        group: &Group,
    ) -> Result<Vec<WeightedMember>, EntityError> {
        let weigh = |member: &linewarden_p4runtime::entity::GroupMember| {
            reject_watch_port(member.watch_port)?;
            Ok((self.member_handle(profile, member.id)?, member.weight.max(1)))
        };
        group.members.iter().map(weigh).collect()
    }
}
