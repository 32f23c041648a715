//! The record of a device, for commands that change the device.

use linewarden_api::{Device, DeviceQuery};
use linewarden_cli::failure::Failure;
use linewarden_client::Client;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{DeviceError, RegistryError};

/// Returns the record of a device; `None` if the record is damaged. Damaged leases and attestation records do not matter.
///
/// # Errors
/// The device is not enrolled, or the request fails.
pub async fn find(client: &Client, device: DeviceId) -> Result<Option<Device>, Failure> {
    let query = DeviceQuery {
        id_prefix: Some(device.to_string()),
        ..DeviceQuery::default()
    };
    let mut page = client.devices(&query).await?;
    match page.items.pop() {
        None if page.damaged_records == 0 => {
            Err(RegistryError::Device(DeviceError::UnknownDevice { device }).into())
        }
        record => Ok(record),
    }
}
