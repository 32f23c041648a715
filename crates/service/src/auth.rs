//! Who asks, and what they may.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Extension, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use linewarden_registry::{Act, Actor, Note, Registry, Role};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::clock::{now_ms, now_s};
use crate::error::{ApiError, Result};
use crate::limits::Limits;
use crate::peer::Peer;
use crate::shares::until_sent;
use crate::state::App;

/// The cookie of a browser that has logged in.
pub(crate) const COOKIE: &str = "linewarden_session";
/// Writes by cookie need it: no form of another site can send it.
const OWN_HEADER: &str = "x-linewarden";
/// How long it is believed that a token is whose it was: a user who was removed may ask for so long.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// How long it may take to find out who asks: a lock of the database and a connection to it are waited for no longer.
const FIND_MAX: Duration = Duration::from_secs(10);
/// How long whoever has come in is a regular: asked about again however many others guess from the same address.
const REGULAR_FOR: Duration = Duration::from_secs(3_600);
/// Tokens remembered, and hashes of those of regulars.
const KNOWN_MAX: usize = 10_000;

/// When who has guessed too often comes again.
pub(crate) const TRY_AGAIN_S: u32 = 60;

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) origin: String,
    /// When this way of coming in ends.
    pub(crate) expires_s: Option<u64>,
    way: Way,
}

/// What somebody has shown to come in.
#[derive(Clone, Debug)]
enum Way {
    Token(Arc<Zeroizing<String>>),
    /// The browser sends it whoever made the page.
    Cookie(Arc<Zeroizing<String>>),
    Certificate,
}

impl Principal {
    /// Whether who came in a while ago might still do so, with the role of then: a stream of events outlives the question that began it.
    pub(crate) async fn may_stay(&self, registry: &Registry) -> bool {
        let now_s = now_s();
        if self.expires_s.is_some_and(|until_s| until_s <= now_s) {
            return false;
        }
        let found = match &self.way {
            Way::Token(token) => registry.user_of_token(token, now_s).await,
            Way::Cookie(cookie) => registry
                .user_of_session(cookie, now_s)
                .await
                .map(|found| found.map(|(user, _)| user)),
            Way::Certificate => registry
                .user_of_name(&self.name, now_s)
                .await
                .map(|user| user.filter(|user| !user.has_token)),
        };
        // A registry that does not answer has taken nobody's access away.
        found.map_or(true, |user| {
            user.is_some_and(|user| user.name == self.name && user.role >= self.role)
        })
    }

    /// The registry in the hands of this one, who does that for this reason.
    pub(crate) fn acting(&self, registry: &Registry, reason: &str, note: Note) -> Result<Registry> {
        if reason.trim().is_empty() {
            return Err(ApiError::invalid(
                "reason",
                "say why: it is kept with what is done",
            ));
        }
        Ok(registry.acting(Act {
            at_ms: now_ms(),
            actor: Actor {
                name: self.name.clone(),
                role: self.role,
                origin: self.origin.clone(),
            },
            reason: reason.to_owned(),
            note,
        })?)
    }
}

/// What stands for a token or a cookie.
pub(crate) type SecretHash = [u8; 32];

pub(crate) fn hash_of_token(token: &str) -> SecretHash {
    hash(0, token)
}

pub(crate) fn hash_of_cookie(cookie: &str) -> SecretHash {
    hash(1, cookie)
}

fn hash(kind: u8, secret: &str) -> SecretHash {
    let mut hash = Sha256::new();
    hash.update([kind]);
    hash.update(secret);
    hash.finalize().into()
}

/// Who has shown which token or cookie a moment ago, and which ones were somebody's within the hour.
#[derive(Default)]
pub(crate) struct Known {
    users: Mutex<HashMap<SecretHash, (Principal, Instant)>>,
    regulars: Mutex<HashMap<SecretHash, Instant>>,
}

impl Known {
    fn get(&self, secret: &SecretHash) -> Option<Principal> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let (principal, at) = users.get(secret)?;
        (at.elapsed() < KNOWN_FOR).then(|| principal.clone())
    }

    /// Whether the registry may be asked whose secret that is. Guessing is bounded by where it comes from; who has come in by the secret
    /// lately is not counted, and not kept out by who guesses.
    pub(crate) fn may_look_up(&self, secret: &SecretHash, limits: &Limits, address: IpAddr) -> bool {
        let regulars = self.regulars.lock().unwrap_or_else(PoisonError::into_inner);
        let is_regular = regulars.get(secret).is_some_and(|at| at.elapsed() < REGULAR_FOR);
        drop(regulars);
        is_regular || limits.may_look_up(address)
    }

    /// The secret was found to be somebody's, or not to be.
    pub(crate) fn looked_up(&self, secret: SecretHash, is_somebodys: bool) {
        let mut regulars = self.regulars.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_somebodys {
            regulars.remove(&secret);
            return;
        }
        if regulars.len() >= KNOWN_MAX && !regulars.contains_key(&secret) {
            regulars.retain(|_, at| at.elapsed() < REGULAR_FOR);
        }
        if regulars.len() < KNOWN_MAX || regulars.contains_key(&secret) {
            regulars.insert(secret, Instant::now());
        }
    }

    fn put(&self, secret: SecretHash, principal: Principal) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= KNOWN_MAX {
            users.retain(|_, (_, at)| at.elapsed() < KNOWN_FOR);
        }
        if users.len() < KNOWN_MAX {
            users.insert(secret, (principal, Instant::now()));
        }
    }

    /// A session has ended, or a user is no more: everybody is asked about anew.
    pub(crate) fn forget(&self) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The cookie's value.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut parts = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    parts.find_map(|part| part.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Lets in who may come in, with a [`Principal`] among the request's extensions.
pub(crate) async fn authenticate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    let peer = request.extensions().get::<Peer>().cloned();
    let peer = peer.ok_or_else(ApiError::unauthenticated)?;
    let found = tokio::time::timeout(FIND_MAX, find(&app, &peer, request.headers())).await;
    let found = found.map_err(|_| ApiError::unavailable("the registry's database does not answer"))?;
    let principal = match found? {
        Some(principal) => principal,
        // Guessing is slow; who is let in is not counted.
        None if !app.limits.may_try(peer.owner()) => return Err(ApiError::rate_limited(TRY_AGAIN_S)),
        None => return Err(ApiError::unauthenticated()),
    };
    if !app.limits.may_ask(&principal.name) {
        return Err(ApiError::rate_limited(1));
    }
    let place = app.limits.answer(&principal.name);
    let place = place.ok_or_else(|| ApiError::rate_limited(1))?;
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if matches!(principal.way, Way::Cookie(_)) && !is_read && !request.headers().contains_key(OWN_HEADER) {
        return Err(ApiError::forbidden(
            "writes by cookie need the header X-Linewarden: 1",
        ));
    }
    request.extensions_mut().insert(principal);
    Ok(until_sent(next.run(request).await, place))
}

async fn find(app: &App, peer: &Peer, headers: &HeaderMap) -> Result<Option<Principal>> {
    let origin = peer.address.ip().to_canonical().to_string();
    let secret = match (bearer(headers), cookie(headers)) {
        (Some(token), _) => Some((token, false)),
        (None, Some(cookie)) => Some((cookie, true)),
        (None, None) => None,
    };
    let Some((secret, by_cookie)) = secret else {
        let Some(name) = &peer.user else {
            return Ok(None);
        };
        let user = app.registry.user_of_name(name, now_s()).await?;
        // Of one who has been given a token since, it is no way in any more.
        return Ok(user.filter(|user| !user.has_token).map(|user| Principal {
            name: user.name,
            role: user.role,
            origin,
            expires_s: user.expires_at_s,
            way: Way::Certificate,
        }));
    };
    let hash = match by_cookie {
        true => hash_of_cookie(secret),
        false => hash_of_token(secret),
    };
    if let Some(known) = app.known.get(&hash) {
        return Ok(Some(Principal { origin, ..known }));
    }
    if !app.known.may_look_up(&hash, &app.limits, peer.owner()) {
        return Err(ApiError::rate_limited(TRY_AGAIN_S));
    }
    let found = match by_cookie {
        true => {
            let found = app.registry.user_of_session(secret, now_s()).await?;
            found.map(|(user, until_s)| (user, Some(until_s)))
        }
        false => {
            let found = app.registry.user_of_token(secret, now_s()).await?;
            found.map(|user| {
                let until_s = user.expires_at_s;
                (user, until_s)
            })
        }
    };
    app.known.looked_up(hash, found.is_some());
    Ok(found.map(|(user, expires_s)| {
        let principal = Principal {
            name: user.name,
            role: user.role,
            origin,
            expires_s,
            way: match by_cookie {
                true => Way::Cookie(Arc::new(Zeroizing::new(secret.to_owned()))),
                false => Way::Token(Arc::new(Zeroizing::new(secret.to_owned()))),
            },
        };
        app.known.put(hash, principal.clone());
        principal
    }))
}

macro_rules! at_least {
    ($($(#[doc = $doc:literal])+ $name:ident $role:ident),+) => {
        $($(#[doc = $doc])+
        pub(crate) struct $name(pub(crate) Principal);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
                let found = Extension::<Principal>::from_request_parts(parts, state).await;
                let Extension(principal) = found.map_err(|_| ApiError::unauthenticated())?;
                match principal.role >= Role::$role {
                    true => Ok(Self(principal)),
                    false => Err(ApiError::forbidden(concat!("this needs the role ", stringify!($role)).to_lowercase())),
                }
            }
        })+
    };
}

at_least!(
    /// Who may look.
    Viewer Viewer,
    /// Who may enrol, revoke, quarantine, release and ask for rounds.
    Operator Operator,
    /// Who may do everything.
    Admin Admin
);

/// A secret that nobody guesses, in letters and digits.
pub(crate) fn draw_secret(prefix: &str) -> Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            format!("no random bytes: {error}"),
        )
    })?;
    Ok(format!("{prefix}{}", hex::encode(bytes)))
}

#[cfg(test)]
mod tests {
    use linewarden_registry::{MasterKey, User};

    use super::*;

    /// Who was removed and added again by the same name stays only with a role that is no less.
    #[tokio::test]
    async fn nobody_stays_with_a_role_of_before() {
        let registry = Registry::in_memory(&MasterKey::from_bytes([7; 32]))
            .await
            .unwrap();
        let principal = Principal {
            name: "olga".to_owned(),
            role: Role::Operator,
            origin: String::new(),
            expires_s: None,
            way: Way::Certificate,
        };
        for (role, stays) in [(Role::Operator, true), (Role::Viewer, false), (Role::Admin, true)] {
            let user = User {
                name: "olga".to_owned(),
                role,
                has_token: false,
                created_at_s: 0,
                expires_at_s: None,
            };
            registry.add_user(&user, None).await.unwrap();
            assert_eq!(principal.may_stay(&registry).await, stays, "{role:?}");
            registry.remove_user("olga").await.unwrap();
            assert!(!principal.may_stay(&registry).await);
        }
    }
}
