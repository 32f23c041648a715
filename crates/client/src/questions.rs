//! What can be asked.

use linewarden_service::wire::{
    Act, Device, Gateway, Happening, History, How, Imported, List, Me, NewDevice, NewGateway, NewSigner,
    NewUser, Part, Policy, PolicyChange, Reason, Round, Signer, Somebody, Standing, Welcome, WhichActs,
    WhichDevices, WhichResults, WhichRounds, Why,
};
use reqwest::Method;

use crate::ask::{Question, REASON, Result};
use crate::connection::Client;
use crate::error::ClientError;

/// A part of a path; what steers an address is written as digits.
fn part(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => written.push(char::from(byte)),
            _ => written.push_str(&format!("%{byte:02X}")),
        }
    }
    written
}

fn reason(why: &str) -> Reason {
    Reason {
        reason: why.to_owned(),
    }
}

/// What is done to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Shuts it out for good.
    Revoke,
    /// Shuts it out until it is released.
    Quarantine,
    /// Lets it in again.
    Release,
}

impl Client {
    /// Who one is.
    ///
    /// # Errors
    /// As [`ClientError`] says; so for all questions.
    pub async fn me(&self) -> Result<Me> {
        self.ask(&Question::get("/api/v1/me")).await
    }

    /// A part of the list of devices.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn devices(&self, which: &WhichDevices) -> Result<List<Device>> {
        self.ask(&Question::get("/api/v1/devices").query(which)).await
    }

    /// A device.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn device(&self, id: &str) -> Result<Device> {
        self.ask(&Question::get(format!("/api/v1/devices/{}", part(id))))
            .await
    }

    /// Does something to a device; how it stands then.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn treat(&self, id: &str, what: Treatment, why: &str) -> Result<Device> {
        let what = match what {
            Treatment::Revoke => "revoke",
            Treatment::Quarantine => "quarantine",
            Treatment::Release => "release",
        };
        let path = format!("/api/v1/devices/{}/{what}", part(id));
        let question = Question::write(Method::POST, path)?.json(&reason(why))?;
        self.ask(&question).await
    }

    /// Enrols devices, in one question. It is for as many as fit in memory well; up to [`CHUNK_DEVICES`], or [`CHUNK_BYTES`] of them, a
    /// controller stores in one transaction: all, or none.
    ///
    /// [`CHUNK_DEVICES`]: linewarden_service::wire::CHUNK_DEVICES
    /// [`CHUNK_BYTES`]: linewarden_service::wire::CHUNK_BYTES
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn import(&self, devices: &[NewDevice], how: &How, why: &str) -> Result<Imported> {
        let mut lines = Vec::new();
        for device in devices {
            serde_json::to_writer(&mut lines, device)
                .map_err(|error| ClientError::Header(error.to_string()))?;
            lines.push(b'\n');
        }
        let mut question = Question::write(Method::POST, "/api/v1/devices/import")?
            .query(how)
            .lines(lines);
        question.header(REASON, &why.replace(['\n', '\r'], " "))?;
        match self.ask(&question).await {
            // An earlier try was still being stored when this one looked.
            Err(error) if error.code() == Some("conflict") => self.ask(&question).await,
            done => done,
        }
    }

    /// A part of the list of gateways.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn gateways(&self, part: &Part) -> Result<List<Gateway>> {
        self.ask(&Question::get("/api/v1/gateways").query(part)).await
    }

    /// Enters a gateway in the book, or gives it another name.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn enter_gateway(&self, new: &NewGateway) -> Result<Gateway> {
        let question = Question::write(Method::POST, "/api/v1/gateways")?.json(new)?;
        self.ask(&question).await
    }

    /// Retires a gateway for good.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn retire_gateway(&self, id: u32, why: &str) -> Result<Gateway> {
        let path = format!("/api/v1/gateways/{id}/retire");
        let question = Question::write(Method::POST, path)?.json(&reason(why))?;
        self.ask(&question).await
    }

    /// A part of the rounds that are kept, newest first.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn rounds(&self, which: &WhichRounds) -> Result<List<Round>> {
        self.ask(&Question::get("/api/v1/rounds").query(which)).await
    }

    /// A part of how attested devices stand.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn results(&self, which: &WhichResults) -> Result<List<Standing>> {
        self.ask(&Question::get("/api/v1/results").query(which)).await
    }

    /// How a device stands, signed.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn signed_result(&self, id: &str) -> Result<String> {
        let path = format!("/api/v1/results/{}", part(id));
        let body = self.bytes(&Question::get(path)).await?;
        String::from_utf8(body).map_err(|error| ClientError::NoController {
            server: self.server().to_owned(),
            why: error.to_string(),
        })
    }

    /// A part of the list of groups.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn policies(&self, part: &Part) -> Result<List<Policy>> {
        self.ask(&Question::get("/api/v1/policies").query(part)).await
    }

    /// Makes a group, or changes how it is asked.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn set_policy(&self, name: &str, change: &PolicyChange) -> Result<Policy> {
        let path = format!("/api/v1/policies/{}", part(name));
        let question = Question::write(Method::PUT, path)?.json(change)?;
        self.ask(&question).await
    }

    /// Has a group asked now.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn want_round(&self, name: &str, why: &str) -> Result<Policy> {
        let path = format!("/api/v1/policies/{}/round", part(name));
        let question = Question::write(Method::POST, path)?.json(&reason(why))?;
        self.ask(&question).await
    }

    /// A part of the list of signers.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn signers(&self, part: &Part) -> Result<List<Signer>> {
        self.ask(&Question::get("/api/v1/signers").query(part)).await
    }

    /// Believes a signer from now on.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn add_signer(&self, new: &NewSigner) -> Result<Signer> {
        let question = Question::write(Method::POST, "/api/v1/signers")?.json(new)?;
        self.ask(&question).await
    }

    /// Believes a signer no more.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn revoke_signer(&self, id: &str, why: &str) -> Result<Signer> {
        let path = format!("/api/v1/signers/{}/revoke", part(id));
        let question = Question::write(Method::POST, path)?.json(&reason(why))?;
        self.ask(&question).await
    }

    /// A part of what has happened, newest first.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn history(&self, which: &History) -> Result<List<Happening>> {
        self.ask(&Question::get("/api/v1/events/history").query(which))
            .await
    }

    /// A part of who had what done, newest first.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn acts(&self, which: &WhichActs) -> Result<List<Act>> {
        self.ask(&Question::get("/api/v1/audit").query(which)).await
    }

    /// A part of the list of users.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn users(&self, part: &Part) -> Result<List<Somebody>> {
        self.ask(&Question::get("/api/v1/users").query(part)).await
    }

    /// Lets somebody use the API.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn add_user(&self, new: &NewUser) -> Result<Welcome> {
        let question = Question::write(Method::POST, "/api/v1/users")?.json(new)?;
        self.ask(&question).await
    }

    /// Takes somebody's access away.
    ///
    /// # Errors
    /// As [`Client::me`].
    pub async fn remove_user(&self, name: &str, why: &str) -> Result<()> {
        let why = Why {
            reason: why.to_owned(),
        };
        let path = format!("/api/v1/users/{}", part(name));
        let question = Question::write(Method::DELETE, path)?.query(&why);
        self.bytes(&question).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn no_name_leads_elsewhere() {
        assert_eq!(part("build-server_7"), "build-server_7");
        assert_eq!(part("../a?b#ä"), "%2E%2E%2Fa%3Fb%23%C3%A4");
    }
}
