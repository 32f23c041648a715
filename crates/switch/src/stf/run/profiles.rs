//! Commands about members and groups of action profiles.

use super::Runner;
use super::entries::profile_of;
use super::error::{CommandResult, fail, number};
use crate::forwarding::{ForwardingChange, ForwardingOp};
use crate::setup::action_call;
use crate::stf::ActionCall;
use crate::stf::names::resolve_name;
use crate::tables::{ProfileChange, ProfileId, ProfileOp, TableSetChange, TableSetOp};

impl Runner {
    fn profile(&self, test_name: &str) -> CommandResult<u32> {
        let profiles = &self.program().profiles;
        let name = resolve_name(test_name, profiles.iter().map(|profile| profile.name.as_str()))?;
        number(profiles.iter().position(|profile| profile.name == name))
    }

    fn apply_profile_op(&mut self, profile: u32, op: ProfileOp) -> CommandResult<ProfileChange> {
        let op = ForwardingOp::Tables(TableSetOp::Profile(ProfileId(profile), op));
        match self.switch.change(op)? {
            ForwardingChange::Tables(TableSetChange::Profile(_, change)) => Ok(change),
            _ => fail("internal error: the operation did not change an action profile"),
        }
    }

    pub(super) fn member_add(
        &mut self,
        profile: &str,
        member: u32,
        action: &ActionCall,
    ) -> CommandResult<()> {
        let id = self.profile(profile)?;
        // All tables of a profile have the same actions with the same names.
        let tables = &self.program().tables;
        let table = tables
            .iter()
            .find(|table| profile_of(table).is_ok_and(|profile| profile == id));
        let actions = table.map(|table| table.actions.clone()).unwrap_or_default();
        let entry = self.action_entry(&actions, action)?;
        let call = action_call(self.program(), &entry);
        match self.apply_profile_op(id, ProfileOp::AddMember(call))? {
            ProfileChange::Member { member: handle, .. } => {
                self.members.insert((id, member), handle);
                Ok(())
            }
            ProfileChange::Group { .. } => fail("internal error: the operation did not change a member"),
        }
    }

    pub(super) fn group_add(&mut self, profile: &str, group: u32) -> CommandResult<()> {
        let id = self.profile(profile)?;
        match self.apply_profile_op(id, ProfileOp::AddGroup(Vec::new()))? {
            ProfileChange::Group { group: handle, .. } => {
                self.groups.insert((id, group), handle);
                Ok(())
            }
            ProfileChange::Member { .. } => fail("internal error: the operation did not change a group"),
        }
    }

    pub(super) fn group_add_member(&mut self, profile: &str, group: u32, member: u32) -> CommandResult<()> {
        let id = self.profile(profile)?;
        let group = self.handle_of(&self.groups, id, group)?;
        let member = self.handle_of(&self.members, id, member)?;
        self.apply_profile_op(id, ProfileOp::AddToGroup(group, member))?;
        Ok(())
    }
}
