//! Words of the memory that packet paths work on.

/// Bytes in wire order as the word that a native load gives.
#[must_use]
pub fn wire_word(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

/// The second key word of a MAC address binding: interface and VLANs.
#[must_use]
pub fn mac_key_high(ingress: u32, vlans: [u16; 2]) -> u64 {
    u64::from(ingress) << 32 | u64::from(vlans[0]) << 16 | u64::from(vlans[1])
}
