//! Who may use the API.

use linewarden_registry::User;
use linewarden_service::wire::{NewUser, Somebody, Welcome};

use super::lists::whole;
use super::{Part, Site, acting, note, wanted};
use crate::cmd::now_s;
use crate::failure::Failure;

impl Site {
    /// Lets somebody use the API.
    pub async fn add_user(&self, new: &NewUser) -> Result<Welcome, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                wanted(&new.reason)?;
                return Ok(client.add_user(new).await?);
            }
            Self::Local(registry) => registry,
        };
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
        let token = (!new.certificate).then(|| format!("lw_{}", hex::encode(bytes)));
        let user = User {
            name: new.name.clone(),
            role: new
                .parsed_role()
                .ok_or_else(|| Failure::input("a role is viewer, operator or admin"))?,
            has_token: token.is_some(),
            created_at_s: now_s()?,
            expires_at_s: new.expires_at_s,
        };
        let what = note("user", format!("added {} as {}", new.name, new.role));
        acting(registry, &new.reason, what)?
            .add_user(&user, token.as_deref())
            .await?;
        Ok(Welcome {
            name: user.name,
            token,
        })
    }

    /// Takes somebody's access away; false if nobody is called so.
    pub async fn remove_user(&self, name: &str, reason: &str) -> Result<bool, Failure> {
        match self {
            Self::Local(registry) => {
                let acting = acting(registry, reason, note("user", format!("removed {name}")))?;
                Ok(acting.remove_user(name).await?)
            }
            Self::Remote(client) => match client.remove_user(name, wanted(reason)?).await {
                Err(error) if super::is_unknown(&error) => Ok(false),
                done => done.map(|()| true).map_err(Failure::from),
            },
        }
    }

    /// All users.
    pub async fn users(&self) -> Result<Part<Somebody>, Failure> {
        match self {
            Self::Local(registry) => Ok(Part::of(registry.users().await?)),
            Self::Remote(client) => Ok(Part::whole(whole(async |part| client.users(&part).await).await?)),
        }
    }
}
