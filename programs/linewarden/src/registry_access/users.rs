//! API users.

use linewarden_api::{CreatedUser, NewUser, UserInfo};
use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_registry::User;
use linewarden_service::convert;

use super::lists::read_all;
use super::{Page, RegistryAccess, audit_note, audited_registry, require_reason};

impl RegistryAccess {
    /// Creates an API user.
    pub async fn add_user(&self, new: &NewUser) -> Result<CreatedUser, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                require_reason(&new.reason)?;
                return Ok(client.create_user(new).await?);
            }
            Self::Local(registry) => registry,
        };
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| Failure::failed(format!("reading random bytes from the kernel failed: {error}; no user was created; repeat the command")))?;
        let token = (!new.certificate).then(|| format!("lw_{}", hex::encode(bytes)));
        let user = User {
            name: new.name.clone(),
            role: convert::parse_role(&new.role)
                .ok_or_else(|| Failure::input("invalid role: use viewer, operator or admin"))?,
            has_token: token.is_some(),
            created_at_s: now_s()?,
            expires_at_s: new.expires_at_s,
        };
        let note = audit_note("user_changed", format!("added {} as {}", new.name, new.role));
        audited_registry(registry, &new.reason, note)?
            .add_user(&user, token.as_deref())
            .await?;
        Ok(CreatedUser {
            name: user.name,
            token,
        })
    }

    /// Deletes an API user; returns false if no user has this name.
    pub async fn remove_user(&self, name: &str, reason: &str) -> Result<bool, Failure> {
        match self {
            Self::Local(registry) => {
                let audited = audited_registry(
                    registry,
                    reason,
                    audit_note("user_changed", format!("removed {name}")),
                )?;
                Ok(audited.remove_user(name).await?)
            }
            Self::Remote(client) => match client.delete_user(name, require_reason(reason)?).await {
                Err(error) if super::is_not_found(&error) => Ok(false),
                result => result.map(|()| true).map_err(Failure::from),
            },
        }
    }

    /// All users.
    pub async fn users(&self) -> Result<Page<UserInfo>, Failure> {
        match self {
            Self::Local(registry) => Ok(Page::from_records(
                registry.users().await?,
                convert::user_info_from_record,
            )),
            Self::Remote(client) => Ok(Page::from_all_items(
                read_all(async |query| client.users(&query).await).await?,
            )),
        }
    }
}
