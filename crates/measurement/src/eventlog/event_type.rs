//! Event types, and the content of their digests.

use std::fmt;

/// The type of an event: any number, because firmware uses types that no list contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(pub u32);

/// The content of an event's digest, by the type of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DigestRule {
    /// Nothing is extended.
    NotExtended,
    /// The digest is a hash of the event data, in one of the known forms. If the digest matches no form, the data do
    /// not explain the extended value.
    Data,
    /// Something outside the log, or the data: both are valid.
    Anything,
}

macro_rules! event_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $rule:ident;)*) => {
        impl EventType {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The name in the specification, if known.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    Self(_) => None,
                }
            }

            pub(super) const fn rule(self) -> DigestRule {
                match self {
                    $(Self::$name => DigestRule::$rule,)*
                    Self(_) => DigestRule::Anything,
                }
            }
        }
    };
}

// TCG PC Client Platform Firmware Profile (PFP) 1.06, 10.4.1, table "Events". The rule follows the column that
// defines the digest; the comments give the reason where firmware is known to deviate.
event_types! {
    /// Reserved.
    EV_PREBOOT_CERT = 0x0000_0000, Anything;
    /// Code of the firmware; the data name it.
    EV_POST_CODE = 0x0000_0001, Anything;
    /// Reserved.
    EV_UNUSED = 0x0000_0002, Anything;
    /// Information that is not extended.
    EV_NO_ACTION = 0x0000_0003, NotExtended;
    /// The end of a phase: the digest covers the data; after an error, the digest covers the value 1, and the data
    /// describe the error.
    EV_SEPARATOR = 0x0000_0004, Data;
    /// A text.
    EV_ACTION = 0x0000_0005, Data;
    /// Tagged data of the operating system. By the profile, the digest is of the data, as Windows computes it; Linux' EFI
    /// stub measures load options and initrd under a tag that only names them.
    EV_EVENT_TAG = 0x0000_0006, Anything;
    /// The root of trust's code; the data name it.
    EV_S_CRTM_CONTENTS = 0x0000_0007, Anything;
    /// The root of trust's version: a text in UTF-16, or a GUID.
    EV_S_CRTM_VERSION = 0x0000_0008, Data;
    /// A microcode update; the data name it.
    EV_CPU_MICROCODE = 0x0000_0009, Anything;
    /// Defined by the manufacturer.
    EV_PLATFORM_CONFIG_FLAGS = 0x0000_000a, Anything;
    /// Defined by the manufacturer.
    EV_TABLE_OF_DEVICES = 0x0000_000b, Anything;
    /// A short value that the log may omit.
    EV_COMPACT_HASH = 0x0000_000c, Anything;
    /// Any measurement made by a boot loader. GRUB's commands and systemd-stub's texts are covered by their digests, in
    /// several forms; the contents of loaded files are not in the log.
    EV_IPL = 0x0000_000d, Anything;
    /// A boot loader's data or a partition table.
    EV_IPL_PARTITION_DATA = 0x0000_000e, Anything;
    /// Code of another processor.
    EV_NONHOST_CODE = 0x0000_000f, Anything;
    /// Configuration of another processor.
    EV_NONHOST_CONFIG = 0x0000_0010, Anything;
    /// Description of another processor.
    EV_NONHOST_INFO = 0x0000_0011, Anything;
    /// A text by which the firmware states that it does not measure boot attempts.
    EV_OMIT_BOOT_DEVICE_EVENTS = 0x0000_0012, Data;
    /// Code of the firmware, with its name.
    EV_POST_CODE2 = 0x0000_0013, Anything;
    /// A configuration variable: UEFI_VARIABLE_DATA.
    EV_EFI_VARIABLE_DRIVER_CONFIG = 0x8000_0001, Data;
    /// A boot variable: UEFI_VARIABLE_DATA, of which only the value is measured (PFP 10.4.1, note to this type; EDK II).
    EV_EFI_VARIABLE_BOOT = 0x8000_0002, Data;
    /// A UEFI application: the digest is of its PE image.
    EV_EFI_BOOT_SERVICES_APPLICATION = 0x8000_0003, Anything;
    /// A UEFI driver: the digest is of its PE image.
    EV_EFI_BOOT_SERVICES_DRIVER = 0x8000_0004, Anything;
    /// A resident UEFI driver: the digest is of its PE image.
    EV_EFI_RUNTIME_SERVICES_DRIVER = 0x8000_0005, Anything;
    /// A partition table: UEFI_GPT_DATA.
    EV_EFI_GPT_EVENT = 0x8000_0006, Data;
    /// A text.
    EV_EFI_ACTION = 0x8000_0007, Data;
    /// A part of the firmware; the data give its location.
    EV_EFI_PLATFORM_FIRMWARE_BLOB = 0x8000_0008, Anything;
    /// Tables of the firmware; the data give their location.
    EV_EFI_HANDOFF_TABLES = 0x8000_0009, Anything;
    /// A part of the firmware, with its name.
    EV_EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000_000a, Anything;
    /// Tables of the firmware, with their name.
    EV_EFI_HANDOFF_TABLES2 = 0x8000_000b, Anything;
    /// A boot variable: UEFI_VARIABLE_DATA. U-Boot measures all of it; firmware may omit personal data.
    EV_EFI_VARIABLE_BOOT2 = 0x8000_000c, Anything;
    /// A partition table without the fields that differ from disk to disk.
    EV_EFI_GPT_EVENT2 = 0x8000_000d, Anything;
    /// Measurements that the processor made before the firmware ran.
    EV_EFI_HCRTM_EVENT = 0x8000_0010, Anything;
    /// The entry of a key database that authorized an image.
    EV_EFI_VARIABLE_AUTHORITY = 0x8000_00e0, Data;
    /// Firmware of a device that supports SPDM.
    EV_EFI_SPDM_FIRMWARE_BLOB = 0x8000_00e1, Anything;
    /// Configuration of a device that supports SPDM.
    EV_EFI_SPDM_FIRMWARE_CONFIG = 0x8000_00e2, Anything;
    /// The policy of trusted devices.
    EV_EFI_SPDM_DEVICE_POLICY = 0x8000_00e3, Anything;
    /// The authority that authorized a device.
    EV_EFI_SPDM_DEVICE_AUTHORITY = 0x8000_00e4, Anything;
}

impl EventType {
    /// Whether its data are a UEFI_VARIABLE_DATA.
    pub(super) const fn is_variable(self) -> bool {
        matches!(
            self,
            Self::EV_EFI_VARIABLE_DRIVER_CONFIG
                | Self::EV_EFI_VARIABLE_BOOT
                | Self::EV_EFI_VARIABLE_BOOT2
                | Self::EV_EFI_VARIABLE_AUTHORITY
        )
    }
}

impl serde::Serialize for EventType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "event type {:#010x}", self.0),
        }
    }
}
