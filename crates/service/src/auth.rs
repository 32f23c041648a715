//! Authentication and authorization of API requests.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Extension, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use linewarden_registry::{Action, Actor, NewEvent, Registry, Role};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::clock::{now_ms, now_s};
use crate::error::{ApiError, Result};
use crate::limits::Limits;
use crate::peer::Peer;
use crate::permits::hold_until_sent;
use crate::state::App;

/// Name of the browser session cookie.
pub(crate) const COOKIE: &str = "linewarden_session";
/// Header required for requests that change data and are authenticated by a cookie. A form on another site cannot send
/// this header.
const CSRF_HEADER: &str = "x-linewarden";
/// Time for which a successful authentication is cached. Requests of a removed user may succeed for this time.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum time to identify the user, including the time to wait for a database lock or connection.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a secret counts as recent after an authentication. A recent secret may be looked up regardless of
/// failed attempts of other clients at the same address.
const RECENT_SECRET_LIFETIME: Duration = Duration::from_secs(3_600);
/// Maximum number of cached authentications, and of hashes of recent secrets.
const CACHED_SECRETS_MAX: usize = 10_000;

/// `Retry-After` for an address with too many failed attempts, seconds.
pub(crate) const RETRY_AFTER_S: u32 = 60;

/// The authenticated user of a request.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// IP address of the client, for the audit log.
    pub(crate) origin: String,
    /// Expiry of the token, session or certificate.
    pub(crate) expires_at_s: Option<u64>,
    method: AuthMethod,
}

/// The credential that authenticated the user.
#[derive(Clone, Debug)]
enum AuthMethod {
    Token(Arc<Zeroizing<String>>),
    /// The cookie of a browser session. The browser may also send the cookie with requests from pages of other sites.
    Cookie(Arc<Zeroizing<String>>),
    Certificate,
    /// No credential: the user of the operating system can already open the registry.
    Local,
}

impl Principal {
    /// The user of the operating system who runs this process with a local registry.
    pub(crate) fn local() -> Self {
        let uid = std::fs::metadata("/proc/self")
            .map_or_else(|_| "?".to_owned(), |metadata| metadata.uid().to_string());
        Self {
            name: format!("uid {uid}"),
            role: Role::Admin,
            origin: "command line".to_owned(),
            expires_at_s: None,
            method: AuthMethod::Local,
        }
    }

    /// Whether this is the user of a local registry.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.method, AuthMethod::Local)
    }

    /// Whether the credential still authenticates the user with at least the same role. Long requests, such as event
    /// streams, call this function repeatedly.
    pub(crate) async fn is_still_authorized(&self, registry: &Registry) -> bool {
        let now_s = now_s();
        if self
            .expires_at_s
            .is_some_and(|expires_at_s| expires_at_s <= now_s)
        {
            return false;
        }
        let user = match &self.method {
            AuthMethod::Token(token) => registry.user_by_token(token, now_s).await,
            AuthMethod::Cookie(cookie) => registry
                .user_by_session(cookie, now_s)
                .await
                .map(|session| session.map(|(user, _)| user)),
            AuthMethod::Certificate => registry
                .user_by_name(&self.name, now_s)
                .await
                .map(|user| user.filter(|user| !user.has_token)),
            AuthMethod::Local => return true,
        };
        // An unavailable registry does not revoke access.
        user.map_or(true, |user| {
            user.is_some_and(|user| user.name == self.name && user.role >= self.role)
        })
    }

    /// Returns a registry handle. Writes with this handle record this user as the actor, the reason and the event.
    ///
    /// # Errors
    /// The reason is empty, except of a local user, or the registry refuses the action.
    pub(crate) fn registry_for_action(
        &self,
        registry: &Registry,
        reason: &str,
        event: NewEvent,
    ) -> Result<Registry> {
        if reason.trim().is_empty() && !self.is_local() {
            return Err(ApiError::invalid(
                "reason",
                "a reason is required; the registry audit log records the reason",
            ));
        }
        Ok(registry.with_action(self.action(reason, event))?)
    }

    /// An action of this user, now.
    pub(crate) fn action(&self, reason: &str, event: NewEvent) -> Action {
        Action {
            at_ms: now_ms(),
            actor: Actor {
                name: self.name.clone(),
                role: self.role,
                origin: self.origin.clone(),
            },
            reason: reason.to_owned(),
            event,
        }
    }
}

/// SHA-256 of a token or cookie.
pub(crate) type SecretHash = [u8; 32];

pub(crate) fn hash_of_token(token: &str) -> SecretHash {
    hash(0, token)
}

pub(crate) fn hash_of_cookie(cookie: &str) -> SecretHash {
    hash(1, cookie)
}

/// `kind` separates tokens from cookies with the same text.
fn hash(kind: u8, secret: &str) -> SecretHash {
    let mut hash = Sha256::new();
    hash.update([kind]);
    hash.update(secret);
    hash.finalize().into()
}

/// Caches recent authentications, and the hashes of the secrets that authenticated a user within the last hour.
#[derive(Default)]
pub(crate) struct LoginCache {
    /// The user of each secret, and the time of the authentication.
    users: Mutex<HashMap<SecretHash, (Principal, Instant)>>,
    /// The time of the latest authentication with each secret.
    recent_secrets: Mutex<HashMap<SecretHash, Instant>>,
}

impl LoginCache {
    fn get(&self, secret: &SecretHash) -> Option<Principal> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let (principal, at) = users.get(secret)?;
        (at.elapsed() < CACHE_LIFETIME).then(|| principal.clone())
    }

    /// Whether the registry may be queried for the user of this secret. Each address has a rate limit. Recent secrets
    /// are exempt, so that failed attempts of other clients at the same address do not lock out the users with these
    /// secrets.
    pub(crate) fn may_look_up(&self, secret: &SecretHash, limits: &Limits, address: IpAddr) -> bool {
        let recent_secrets = self.recent_secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = recent_secrets
            .get(secret)
            .is_some_and(|at| at.elapsed() < RECENT_SECRET_LIFETIME);
        drop(recent_secrets);
        is_recent || limits.allow_lookup(address)
    }

    /// Records whether the registry knows the secret.
    pub(crate) fn record_lookup(&self, secret: SecretHash, is_known: bool) {
        let mut recent_secrets = self.recent_secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_known {
            recent_secrets.remove(&secret);
            return;
        }
        if recent_secrets.len() >= CACHED_SECRETS_MAX && !recent_secrets.contains_key(&secret) {
            recent_secrets.retain(|_, at| at.elapsed() < RECENT_SECRET_LIFETIME);
        }
        if recent_secrets.len() < CACHED_SECRETS_MAX || recent_secrets.contains_key(&secret) {
            recent_secrets.insert(secret, Instant::now());
        }
    }

    fn put(&self, secret: SecretHash, principal: Principal) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= CACHED_SECRETS_MAX {
            users.retain(|_, (_, at)| at.elapsed() < CACHE_LIFETIME);
        }
        if users.len() < CACHED_SECRETS_MAX {
            users.insert(secret, (principal, Instant::now()));
        }
    }

    /// Removes all cached authentications. Called when a session ends or a user is removed.
    pub(crate) fn clear(&self) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The value of the session cookie.
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

/// Authenticates a request and adds a [`Principal`] to its extensions.
pub(crate) async fn authenticate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    let peer = request.extensions().get::<Peer>().cloned();
    let peer = peer.ok_or_else(ApiError::unauthenticated)?;
    let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, find_principal(&app, &peer, request.headers())).await;
    let lookup = lookup.map_err(|_| ApiError::unavailable("the registry database does not respond"))?;
    let principal = match lookup? {
        Some(principal) => principal,
        // Only failed attempts count toward this limit.
        None if !app.limits.allow_attempt(peer.address_owner()) => {
            return Err(ApiError::rate_limited(RETRY_AFTER_S));
        }
        None => return Err(ApiError::unauthenticated()),
    };
    if !app.limits.allow_request(&principal.name) {
        return Err(ApiError::rate_limited(1));
    }
    let permit = app.limits.response_permit(&principal.name);
    let permit = permit.ok_or_else(|| ApiError::rate_limited(1))?;
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if matches!(principal.method, AuthMethod::Cookie(_))
        && !is_read
        && !request.headers().contains_key(CSRF_HEADER)
    {
        return Err(ApiError::forbidden(
            "writes with a session cookie require the header X-Linewarden: 1",
        ));
    }
    request.extensions_mut().insert(principal);
    Ok(hold_until_sent(next.run(request).await, permit))
}

async fn find_principal(app: &App, peer: &Peer, headers: &HeaderMap) -> Result<Option<Principal>> {
    let origin = peer.address.ip().to_canonical().to_string();
    let secret = match (bearer(headers), cookie(headers)) {
        (Some(token), _) => Some((token, false)),
        (None, Some(cookie)) => Some((cookie, true)),
        (None, None) => None,
    };
    let Some((secret, is_cookie)) = secret else {
        let Some(name) = &peer.user else {
            return Ok(None);
        };
        let user = app.registry.user_by_name(name, now_s()).await?;
        // A user with a token cannot authenticate with a certificate.
        return Ok(user.filter(|user| !user.has_token).map(|user| Principal {
            name: user.name,
            role: user.role,
            origin,
            expires_at_s: user.expires_at_s,
            method: AuthMethod::Certificate,
        }));
    };
    let hash = match is_cookie {
        true => hash_of_cookie(secret),
        false => hash_of_token(secret),
    };
    if let Some(cached) = app.login_cache.get(&hash) {
        return Ok(Some(Principal { origin, ..cached }));
    }
    if !app
        .login_cache
        .may_look_up(&hash, &app.limits, peer.address_owner())
    {
        return Err(ApiError::rate_limited(RETRY_AFTER_S));
    }
    let user_and_expiry = match is_cookie {
        true => {
            let session = app.registry.user_by_session(secret, now_s()).await?;
            session.map(|(user, expires_at_s)| (user, Some(expires_at_s)))
        }
        false => {
            let user = app.registry.user_by_token(secret, now_s()).await?;
            user.map(|user| {
                let expires_at_s = user.expires_at_s;
                (user, expires_at_s)
            })
        }
    };
    app.login_cache.record_lookup(hash, user_and_expiry.is_some());
    Ok(user_and_expiry.map(|(user, expires_at_s)| {
        let principal = Principal {
            name: user.name,
            role: user.role,
            origin,
            expires_at_s,
            method: match is_cookie {
                true => AuthMethod::Cookie(Arc::new(Zeroizing::new(secret.to_owned()))),
                false => AuthMethod::Token(Arc::new(Zeroizing::new(secret.to_owned()))),
            },
        };
        app.login_cache.put(hash, principal.clone());
        principal
    }))
}

macro_rules! role_extractors {
    ($($(#[doc = $doc:literal])+ $name:ident $role:ident),+) => {
        $($(#[doc = $doc])+
        pub(crate) struct $name(pub(crate) Principal);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
                let extension = Extension::<Principal>::from_request_parts(parts, state).await;
                let Extension(principal) = extension.map_err(|_| ApiError::unauthenticated())?;
                match principal.role >= Role::$role {
                    true => Ok(Self(principal)),
                    false => Err(ApiError::forbidden(concat!("this request requires the role ", stringify!($role)).to_lowercase())),
                }
            }
        })+
    };
}

role_extractors!(
    /// A user with at least the role viewer, which may read everything except users and the audit log.
    Viewer Viewer,
    /// A user with at least the role operator, which may also enroll, revoke, quarantine and release devices, revoke signers
    /// and request rounds.
    Operator Operator,
    /// A user with the role admin, which has all permissions.
    Admin Admin
);

/// Returns `prefix` followed by a random 256-bit secret in hexadecimal digits.
///
/// # Errors
/// The operating system provides no random bytes.
pub(crate) fn draw_secret(prefix: &str) -> Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            format!("failed to read random bytes: {error}"),
        )
    })?;
    Ok(format!("{prefix}{}", hex::encode(bytes)))
}

#[cfg(test)]
mod tests {
    use linewarden_registry::{MasterKey, User};

    use super::*;

    /// A user who is removed and added again with a lower role loses access.
    #[tokio::test]
    async fn access_requires_at_least_the_former_role() {
        let registry = Registry::in_memory(&MasterKey::from_bytes([7; 32]))
            .await
            .unwrap();
        let principal = Principal {
            name: "olga".to_owned(),
            role: Role::Operator,
            origin: String::new(),
            expires_at_s: None,
            method: AuthMethod::Certificate,
        };
        for (role, is_authorized) in [(Role::Operator, true), (Role::Viewer, false), (Role::Admin, true)] {
            let user = User {
                name: "olga".to_owned(),
                role,
                has_token: false,
                created_at_s: 0,
                expires_at_s: None,
            };
            registry.add_user(&user, None).await.unwrap();
            assert_eq!(
                principal.is_still_authorized(&registry).await,
                is_authorized,
                "{role:?}"
            );
            registry.remove_user("olga").await.unwrap();
            assert!(!principal.is_still_authorized(&registry).await);
        }
    }
}
