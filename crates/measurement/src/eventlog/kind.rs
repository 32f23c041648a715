//! Types of events, and what each says about its digest.

use std::fmt;

/// The type of an event: any number, for firmware knows more of them than any list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(pub u32);

/// What the digest of an event is of, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Nothing is extended.
    NotExtended,
    /// Of the event data, in one of the forms that firmware is known to use: with a digest of anything else the data are
    /// unexplained.
    Data,
    /// Of something that the log does not carry, or of the data: both are right.
    Anything,
}

macro_rules! event_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $rule:ident;)*) => {
        impl EventType {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The specification's name, if it is known here.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    Self(_) => None,
                }
            }

            pub(super) const fn rule(self) -> Rule {
                match self {
                    $(Self::$name => Rule::$rule,)*
                    Self(_) => Rule::Anything,
                }
            }
        }
    };
}

// TCG PC Client Platform Firmware Profile (PFP) 1.06, 10.4.1, table "Events". The rule follows the column that tells what
// the digest is of; where firmware is known to do otherwise, the reason is given.
event_types! {
    /// Reserved.
    EV_PREBOOT_CERT = 0x0000_0000, Anything;
    /// Code of the firmware; the data name it.
    EV_POST_CODE = 0x0000_0001, Anything;
    /// Reserved.
    EV_UNUSED = 0x0000_0002, Anything;
    /// A remark.
    EV_NO_ACTION = 0x0000_0003, NotExtended;
    /// The end of a phase: of the data, or of the error value 1 with the error's description as data.
    EV_SEPARATOR = 0x0000_0004, Data;
    /// A text.
    EV_ACTION = 0x0000_0005, Data;
    /// Tagged data of the operating system. The profile says that the digest is of the data, as Windows has it; Linux' EFI
    /// stub measures load options and initrd under a tag that only names them.
    EV_EVENT_TAG = 0x0000_0006, Anything;
    /// The root of trust's code; the data name it.
    EV_S_CRTM_CONTENTS = 0x0000_0007, Anything;
    /// The root of trust's version: a text in UTF-16, or a GUID.
    EV_S_CRTM_VERSION = 0x0000_0008, Data;
    /// A microcode update; the data name it.
    EV_CPU_MICROCODE = 0x0000_0009, Anything;
    /// Left to the maker.
    EV_PLATFORM_CONFIG_FLAGS = 0x0000_000a, Anything;
    /// Left to the maker.
    EV_TABLE_OF_DEVICES = 0x0000_000b, Anything;
    /// A short piece of data that may be left out of the log.
    EV_COMPACT_HASH = 0x0000_000c, Anything;
    /// Whatever a boot loader measures. GRUB's commands and systemd-stub's texts are their digests' data, in several forms;
    /// files that they load are not.
    EV_IPL = 0x0000_000d, Anything;
    /// A boot loader's data or a partition table.
    EV_IPL_PARTITION_DATA = 0x0000_000e, Anything;
    /// Code of another processor.
    EV_NONHOST_CODE = 0x0000_000f, Anything;
    /// Its configuration.
    EV_NONHOST_CONFIG = 0x0000_0010, Anything;
    /// Its description.
    EV_NONHOST_INFO = 0x0000_0011, Anything;
    /// Boot attempts are not measured on this platform: a text.
    EV_OMIT_BOOT_DEVICE_EVENTS = 0x0000_0012, Data;
    /// Code of the firmware, with its name.
    EV_POST_CODE2 = 0x0000_0013, Anything;
    /// A variable that configures: UEFI_VARIABLE_DATA.
    EV_EFI_VARIABLE_DRIVER_CONFIG = 0x8000_0001, Data;
    /// A boot variable: UEFI_VARIABLE_DATA, of which only the value is measured (PFP 10.4.1, note to this type; EDK II).
    EV_EFI_VARIABLE_BOOT = 0x8000_0002, Data;
    /// A UEFI application: the digest is of its PE image.
    EV_EFI_BOOT_SERVICES_APPLICATION = 0x8000_0003, Anything;
    /// A UEFI driver: the digest is of its PE image.
    EV_EFI_BOOT_SERVICES_DRIVER = 0x8000_0004, Anything;
    /// A UEFI driver that stays: the digest is of its PE image.
    EV_EFI_RUNTIME_SERVICES_DRIVER = 0x8000_0005, Anything;
    /// A partition table: UEFI_GPT_DATA.
    EV_EFI_GPT_EVENT = 0x8000_0006, Data;
    /// A text.
    EV_EFI_ACTION = 0x8000_0007, Data;
    /// A part of the firmware; the data say where it lies.
    EV_EFI_PLATFORM_FIRMWARE_BLOB = 0x8000_0008, Anything;
    /// Tables of the firmware; the data say where they lie.
    EV_EFI_HANDOFF_TABLES = 0x8000_0009, Anything;
    /// A part of the firmware, with its name.
    EV_EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000_000a, Anything;
    /// Tables of the firmware, with their name.
    EV_EFI_HANDOFF_TABLES2 = 0x8000_000b, Anything;
    /// A boot variable: UEFI_VARIABLE_DATA. U-Boot measures all of it; firmware may leave out what is personal.
    EV_EFI_VARIABLE_BOOT2 = 0x8000_000c, Anything;
    /// A partition table without what differs from disk to disk.
    EV_EFI_GPT_EVENT2 = 0x8000_000d, Anything;
    /// What the processor measured before the firmware ran.
    EV_EFI_HCRTM_EVENT = 0x8000_0010, Anything;
    /// Which entry of a key database has let an image run.
    EV_EFI_VARIABLE_AUTHORITY = 0x8000_00e0, Data;
    /// Firmware of a device that speaks SPDM.
    EV_EFI_SPDM_FIRMWARE_BLOB = 0x8000_00e1, Anything;
    /// Configuration of a device that speaks SPDM.
    EV_EFI_SPDM_FIRMWARE_CONFIG = 0x8000_00e2, Anything;
    /// Whose devices are trusted.
    EV_EFI_SPDM_DEVICE_POLICY = 0x8000_00e3, Anything;
    /// What has let a device be trusted.
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
