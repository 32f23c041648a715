//! The endpoints of the API.

use linewarden_api::{
    AttestationResult, AuditQuery, AuditRecord, ChangedGroup, ChangedPair, CreatedUser, Device, DeviceQuery,
    EventHistoryQuery, EventRecord, Gateway, Group, GroupChange, GroupQuery, Identity, ImportQuery,
    ImportResult, List, NewDevice, NewGateway, NewRollOut, NewSigner, NewUser, PageQuery, Pair, Reason,
    ReasonQuery, ResultQuery, Round, RoundQuery, SignedResults, Signer, UserInfo,
};
use reqwest::Method;

use crate::connection::Client;
use crate::error::ClientError;
use crate::request::{ApiRequest, REASON, Result};

/// Returns the text as a path segment, with all special characters percent-encoded.
fn path_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn reason_body(reason: &str) -> Reason {
    Reason {
        reason: reason.to_owned(),
    }
}

fn reason_query(reason: &str) -> ReasonQuery {
    ReasonQuery {
        reason: reason.to_owned(),
    }
}

fn group_path(name: &str, suffix: &str) -> String {
    format!("/api/v1/groups/{}{suffix}", path_segment(name))
}

fn pair_path(device: &str, peer: &str) -> String {
    format!(
        "/api/v1/devices/{}/pairs/{}",
        path_segment(device),
        path_segment(peer)
    )
}

/// An operation that changes the state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAction {
    /// Revokes the device permanently.
    Revoke,
    /// Quarantines the device until it is released.
    Quarantine,
    /// Releases the device from quarantine.
    Release,
}

impl Client {
    /// The authenticated user.
    ///
    /// # Errors
    /// Any [`ClientError`] that a request can cause.
    pub async fn current_user(&self) -> Result<Identity> {
        self.fetch_json(&ApiRequest::get("/api/v1/me")).await
    }

    /// A page of the list of devices.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn devices(&self, query: &DeviceQuery) -> Result<List<Device>> {
        self.fetch_json(&ApiRequest::get("/api/v1/devices").query(query))
            .await
    }

    /// A device.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn device(&self, id: &str) -> Result<Device> {
        self.fetch_json(&ApiRequest::get(format!("/api/v1/devices/{}", path_segment(id))))
            .await
    }

    /// Changes the state of a device; returns the device.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn change_device_state(&self, id: &str, action: DeviceAction, reason: &str) -> Result<Device> {
        let action = match action {
            DeviceAction::Revoke => "revoke",
            DeviceAction::Quarantine => "quarantine",
            DeviceAction::Release => "release",
        };
        let path = format!("/api/v1/devices/{}/{action}", path_segment(id));
        let request = ApiRequest::mutation(Method::POST, path)?.json(&reason_body(reason))?;
        self.fetch_json(&request).await
    }

    /// A page of the peers with which a device may communicate.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn pairs(&self, device: &str, page: &PageQuery) -> Result<List<Pair>> {
        let path = format!("/api/v1/devices/{}/pairs", path_segment(device));
        self.fetch_json(&ApiRequest::get(path).query(page)).await
    }

    /// Permits two devices to communicate with each other.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn create_pair(&self, device: &str, peer: &str, reason: &str) -> Result<ChangedPair> {
        let request = ApiRequest::mutation(Method::PUT, pair_path(device, peer))?;
        self.fetch_json(&request.json(&reason_body(reason))?).await
    }

    /// Deletes a pair of devices.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn delete_pair(&self, device: &str, peer: &str, reason: &str) -> Result<ChangedPair> {
        let request = ApiRequest::mutation(Method::DELETE, pair_path(device, peer))?;
        self.fetch_json(&request.query(&reason_query(reason))).await
    }

    /// Enrolls devices in one request, which must fit in memory. A controller stores up to [`CHUNK_DEVICES`] devices or
    /// [`CHUNK_BYTES`] bytes in one transaction: all of these devices, or none.
    ///
    /// [`CHUNK_DEVICES`]: linewarden_api::CHUNK_DEVICES
    /// [`CHUNK_BYTES`]: linewarden_api::CHUNK_BYTES
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn import_devices(
        &self,
        devices: &[NewDevice],
        options: &ImportQuery,
        reason: &str,
    ) -> Result<ImportResult> {
        let mut lines = Vec::new();
        for device in devices {
            serde_json::to_writer(&mut lines, device)
                .map_err(|error| ClientError::InvalidRequest(error.to_string()))?;
            lines.push(b'\n');
        }
        let mut request = ApiRequest::mutation(Method::POST, "/api/v1/devices/import")?
            .query(options)
            .ndjson(lines);
        request.header(REASON, &reason.replace(['\n', '\r'], " "))?;
        match self.fetch_json(&request).await {
            // The controller may still have stored an earlier attempt when it read the checkpoint for the last attempt. A
            // further attempt finds the complete checkpoint and skips the stored devices.
            Err(error) if error.code() == Some("conflict") && !self.is_in_process() => {
                self.fetch_json(&request).await
            }
            result => result,
        }
    }

    /// A page of the list of gateways.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn gateways(&self, page: &PageQuery) -> Result<List<Gateway>> {
        self.fetch_json(&ApiRequest::get("/api/v1/gateways").query(page))
            .await
    }

    /// A gateway.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn gateway(&self, id: u32) -> Result<Gateway> {
        self.fetch_json(&ApiRequest::get(format!("/api/v1/gateways/{id}")))
            .await
    }

    /// Creates a gateway, or renames it.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn create_gateway(&self, new: &NewGateway) -> Result<Gateway> {
        let request = ApiRequest::mutation(Method::POST, "/api/v1/gateways")?.json(new)?;
        self.fetch_json(&request).await
    }

    /// Revokes a gateway permanently.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn revoke_gateway(&self, id: u32, reason: &str) -> Result<Gateway> {
        let path = format!("/api/v1/gateways/{id}/revoke");
        let request = ApiRequest::mutation(Method::POST, path)?.json(&reason_body(reason))?;
        self.fetch_json(&request).await
    }

    /// A page of the stored rounds, newest first.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn rounds(&self, query: &RoundQuery) -> Result<List<Round>> {
        self.fetch_json(&ApiRequest::get("/api/v1/rounds").query(query))
            .await
    }

    /// A page of the attestation results.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn results(&self, query: &ResultQuery) -> Result<List<AttestationResult>> {
        self.fetch_json(&ApiRequest::get("/api/v1/results").query(query))
            .await
    }

    /// A page of signed attestation results, each of up to 100 devices.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn signed_results(&self, query: &ResultQuery) -> Result<List<SignedResults>> {
        self.fetch_json(&ApiRequest::get("/api/v1/results/signed").query(query))
            .await
    }

    /// A page of the list of groups.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn groups(&self, query: &GroupQuery) -> Result<List<Group>> {
        self.fetch_json(&ApiRequest::get("/api/v1/groups").query(query))
            .await
    }

    /// A group.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn group(&self, name: &str) -> Result<Group> {
        self.fetch_json(&ApiRequest::get(group_path(name, ""))).await
    }

    /// Changes the policy or the reference value of a group; creates the group if it does not exist.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn set_group(&self, name: &str, change: &GroupChange) -> Result<ChangedGroup> {
        let request = ApiRequest::mutation(Method::PUT, group_path(name, ""))?.json(change)?;
        self.fetch_json(&request).await
    }

    /// Deletes a group without devices.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn delete_group(&self, name: &str, reason: &str) -> Result<()> {
        let request = ApiRequest::mutation(Method::DELETE, group_path(name, ""))?;
        self.fetch_body(&request.query(&reason_query(reason)))
            .await
            .map(drop)
    }

    /// Begins the roll-out of another reference value; returns the group.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn create_roll_out(&self, name: &str, new: &NewRollOut) -> Result<Group> {
        let request = ApiRequest::mutation(Method::POST, group_path(name, "/roll-out"))?.json(new)?;
        self.fetch_json(&request).await
    }

    /// Ends a roll-out: its reference value replaces the old reference value; returns the group.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn approve_roll_out(&self, name: &str, reason: &str) -> Result<Group> {
        let path = group_path(name, "/roll-out/approve");
        let request = ApiRequest::mutation(Method::POST, path)?.json(&reason_body(reason))?;
        self.fetch_json(&request).await
    }

    /// Ends a roll-out: only the old reference value stays valid; returns the group.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn delete_roll_out(&self, name: &str, reason: &str) -> Result<Group> {
        let request = ApiRequest::mutation(Method::DELETE, group_path(name, "/roll-out"))?;
        self.fetch_json(&request.query(&reason_query(reason))).await
    }

    /// Starts an attestation round of a group now; returns the group.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn start_round(&self, name: &str, reason: &str) -> Result<Group> {
        let path = group_path(name, "/round");
        let request = ApiRequest::mutation(Method::POST, path)?.json(&reason_body(reason))?;
        self.fetch_json(&request).await
    }

    /// A page of the list of signers.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn signers(&self, page: &PageQuery) -> Result<List<Signer>> {
        self.fetch_json(&ApiRequest::get("/api/v1/signers").query(page))
            .await
    }

    /// Adds a trusted signer.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn create_signer(&self, new: &NewSigner) -> Result<Signer> {
        let request = ApiRequest::mutation(Method::POST, "/api/v1/signers")?.json(new)?;
        self.fetch_json(&request).await
    }

    /// Revokes a trusted signer.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn revoke_signer(&self, id: &str, reason: &str) -> Result<Signer> {
        let path = format!("/api/v1/signers/{}/revoke", path_segment(id));
        let request = ApiRequest::mutation(Method::POST, path)?.json(&reason_body(reason))?;
        self.fetch_json(&request).await
    }

    /// A page of past events, newest first.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn history(&self, query: &EventHistoryQuery) -> Result<List<EventRecord>> {
        self.fetch_json(&ApiRequest::get("/api/v1/events/history").query(query))
            .await
    }

    /// A page of the registry audit log, newest first.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn audit_records(&self, query: &AuditQuery) -> Result<List<AuditRecord>> {
        self.fetch_json(&ApiRequest::get("/api/v1/audit").query(query))
            .await
    }

    /// A page of the list of users.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn users(&self, page: &PageQuery) -> Result<List<UserInfo>> {
        self.fetch_json(&ApiRequest::get("/api/v1/users").query(page))
            .await
    }

    /// Creates an API user.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn create_user(&self, new: &NewUser) -> Result<CreatedUser> {
        let request = ApiRequest::mutation(Method::POST, "/api/v1/users")?.json(new)?;
        self.fetch_json(&request).await
    }

    /// Deletes an API user.
    ///
    /// # Errors
    /// As [`Client::current_user`].
    pub async fn delete_user(&self, name: &str, reason: &str) -> Result<()> {
        let path = format!("/api/v1/users/{}", path_segment(name));
        let request = ApiRequest::mutation(Method::DELETE, path)?.query(&reason_query(reason));
        self.fetch_body(&request).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::path_segment;

    #[test]
    fn special_characters_cannot_change_the_path() {
        assert_eq!(path_segment("build-server_7"), "build-server_7");
        assert_eq!(path_segment("../a?b#ä"), "%2E%2E%2Fa%3Fb%23%C3%A4");
    }
}
