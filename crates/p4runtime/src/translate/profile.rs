//! Members and groups of action profiles (9.2).

use super::action::{decode_watch_port, decode_weight, deprecated_watch, encode_port, group_size_excess};
use super::{Translator, nonzero_id, unknown_id, unsigned32};
use crate::entity::{Change, Group, GroupMember, Member};
use crate::error::EntityError;
use crate::ids::{GroupId, MemberId, ProfileId};
use crate::p4info::{ActionScope, Profile};
use crate::proto::v1;
use v1::action_profile_group::{Member as MemberMessage, member::WatchKind};
use v1::update::Type as Kind;

impl<'a> Translator<'a> {
    pub(super) fn profile(&self, id: u32) -> Result<&'a Profile, EntityError> {
        self.info
            .profiles()
            .get(ProfileId(id))
            .ok_or_else(|| unknown_id("action profile", id))
    }

    pub(super) fn selector(&self, id: u32) -> Result<&'a Profile, EntityError> {
        let profile = self.profile(id)?;
        if profile.with_selector {
            return Ok(profile);
        }
        Err(EntityError::invalid(format!(
            "action profile \"{}\" is not a selector and has no groups",
            profile.name
        )))
    }

    pub(super) fn decode_member_update(
        &self,
        kind: Kind,
        message: &v1::ActionProfileMember,
    ) -> Result<Change<Member, (ProfileId, MemberId)>, EntityError> {
        match kind {
            Kind::Delete => {
                let profile = self.profile(message.action_profile_id)?;
                Ok(Change::Delete((
                    profile.id,
                    nonzero_id(message.member_id, "member id")?,
                )))
            }
            Kind::Insert => self.decode_member(message).map(Change::Insert),
            _ => self.decode_member(message).map(Change::Modify),
        }
    }

    pub(super) fn decode_member(&self, message: &v1::ActionProfileMember) -> Result<Member, EntityError> {
        let profile = self.profile(message.action_profile_id)?;
        let at_profile = |error: EntityError| error.at(format!("action profile \"{}\"", profile.name));
        let id = nonzero_id(message.member_id, "member id").map_err(at_profile)?;
        let action = message.action.as_ref();
        let action = action.ok_or_else(|| at_profile(EntityError::invalid("member requires an action")))?;
        let action = self.decode_action(action).map_err(at_profile)?;
        let tables = profile.tables.iter().filter_map(|id| self.info.tables().get(*id));
        // Tables that share a profile have the same actions (9.2.1).
        if !tables
            .clone()
            .any(|table| table.scope(action.id).is_some_and(ActionScope::allows_entries))
        {
            return Err(at_profile(EntityError::invalid(format!(
                "action {} is not allowed in entries of its tables",
                action.id
            ))));
        }
        Ok(Member {
            profile: profile.id,
            id,
            action,
        })
    }

    pub(super) fn encode_member(&self, member: &Member) -> v1::ActionProfileMember {
        v1::ActionProfileMember {
            action_profile_id: member.profile.0,
            member_id: member.id.0,
            action: Some(self.encode_action(&member.action)),
        }
    }

    pub(super) fn encode_member_update(
        &self,
        change: &Change<Member, (ProfileId, MemberId)>,
    ) -> (Kind, v1::ActionProfileMember) {
        match change {
            Change::Insert(member) => (Kind::Insert, self.encode_member(member)),
            Change::Modify(member) => (Kind::Modify, self.encode_member(member)),
            Change::Delete((profile, id)) => (
                Kind::Delete,
                v1::ActionProfileMember {
                    action_profile_id: profile.0,
                    member_id: id.0,
                    action: None,
                },
            ),
        }
    }

    pub(super) fn decode_group_update(
        &self,
        kind: Kind,
        message: &v1::ActionProfileGroup,
    ) -> Result<Change<Group, (ProfileId, GroupId)>, EntityError> {
        match kind {
            Kind::Delete => {
                let profile = self.selector(message.action_profile_id)?;
                Ok(Change::Delete((
                    profile.id,
                    nonzero_id(message.group_id, "group id")?,
                )))
            }
            Kind::Insert => self.decode_group(message).map(Change::Insert),
            _ => self.decode_group(message).map(Change::Modify),
        }
    }

    pub(super) fn decode_group(&self, message: &v1::ActionProfileGroup) -> Result<Group, EntityError> {
        let profile = self.selector(message.action_profile_id)?;
        decode_group(profile, message)
            .map_err(|error| error.at(format!("action selector \"{}\"", profile.name)))
    }

    pub(super) fn encode_group(&self, group: &Group) -> v1::ActionProfileGroup {
        let encode = |member: &GroupMember| MemberMessage {
            member_id: member.id.0,
            weight: i32::try_from(member.weight).unwrap_or(i32::MAX),
            watch_kind: member.watch_port.map(|port| match port.deprecated_field {
                true => WatchKind::Watch(port.number.cast_signed()),
                false => WatchKind::WatchPort(encode_port(port.number)),
            }),
        };
        v1::ActionProfileGroup {
            action_profile_id: group.profile.0,
            group_id: group.id.0,
            members: group.members.iter().map(encode).collect(),
            max_size: i32::try_from(group.max_size).unwrap_or(i32::MAX),
        }
    }

    pub(super) fn encode_group_update(
        &self,
        change: &Change<Group, (ProfileId, GroupId)>,
    ) -> (Kind, v1::ActionProfileGroup) {
        match change {
            Change::Insert(group) => (Kind::Insert, self.encode_group(group)),
            Change::Modify(group) => (Kind::Modify, self.encode_group(group)),
            Change::Delete((profile, id)) => (
                Kind::Delete,
                v1::ActionProfileGroup {
                    action_profile_id: profile.0,
                    group_id: id.0,
                    ..Default::default()
                },
            ),
        }
    }
}

fn decode_group(profile: &Profile, message: &v1::ActionProfileGroup) -> Result<Group, EntityError> {
    let id = nonzero_id(message.group_id, "group id")?;
    let max_size = unsigned32(message.max_size, "max_size")?;
    // Section 9.2.2.1 requires a nonzero max_size if the P4Info has a limit. However, the description of the message
    // and all clients use 0 for the limit of the P4Info.
    if profile.max_group_size > 0 && max_size > profile.max_group_size {
        return Err(EntityError::invalid(format!(
            "max_size {max_size} is too large: the program allows {}",
            profile.max_group_size
        )));
    }
    let members = message
        .members
        .iter()
        .map(|member| decode_group_member(profile, member));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    for (index, member) in members.iter().enumerate() {
        if members.iter().take(index).any(|earlier| earlier.id == member.id) {
            return Err(EntityError::invalid(format!(
                "duplicate member {}: use a weight instead",
                member.id
            )));
        }
    }
    let limit = if max_size > 0 {
        max_size
    } else {
        profile.max_group_size
    };
    if let Some(excess) = group_size_excess(profile, limit, members.iter().map(|member| member.weight)) {
        return Err(EntityError::exhausted(excess));
    }
    Ok(Group {
        profile: profile.id,
        id,
        members,
        max_size,
    })
}

fn decode_group_member(profile: &Profile, member: &MemberMessage) -> Result<GroupMember, EntityError> {
    let id = nonzero_id(member.member_id, "member id")?;
    let at_member = |error: EntityError| error.at(format!("member {id}"));
    let weight = decode_weight(profile, member.weight).map_err(at_member)?;
    let watch_port = match &member.watch_kind {
        Some(WatchKind::Watch(number)) => deprecated_watch(*number),
        Some(WatchKind::WatchPort(string)) => decode_watch_port(string).map_err(at_member)?,
        None => None,
    };
    Ok(GroupMember {
        id,
        weight,
        watch_port,
    })
}
