//! The fields of part I, as SAE J2735 (2016 and later) names, orders and bounds them.
//!
//! The order of the fields and the bounds in `value(..)` define the encoding: each field takes as many bits as its
//! range needs. JSON has the same integers under the standard's names; units are in the comments. "Unknown" in a
//! comment means the standard's value "unavailable".

use std::ops::RangeInclusive;

use rasn::{AsnType, Decode, Decoder as _, Encode, types::FixedOctetString};
use serde::{Deserialize, Serialize};

use super::BsmError;

/// BSMcoreData: the state that a vehicle broadcasts ten times a second. [`CoreData::new`](super::CoreData::new)
/// checks the ranges.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(automatic_tags)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BsmCoreData {
    /// Message counter of the sender, 0 to 127, then 0 again.
    #[rasn(value("0..=127"))]
    pub msg_cnt: i64,
    /// The sender's temporary ID, constant until the sender changes its pseudonym.
    pub id: TemporaryId,
    /// Milliseconds within the minute, 0 to 60,999 with a leap second; 65535: unknown; the numbers between are reserved.
    #[rasn(value("0..=65535"))]
    pub sec_mark: i64,
    /// Latitude in 0.1 microdegrees, -900,000,000 to 900,000,000; 900,000,001: unknown.
    #[rasn(value("-900000000..=900000001"))]
    pub lat: i64,
    /// Longitude in 0.1 microdegrees, -1,799,999,999 to 1,800,000,000; 1,800,000,001: unknown.
    #[rasn(value("-1799999999..=1800000001"))]
    pub long: i64,
    /// Height over the ellipsoid in 0.1 m, -4,095 to 61,439; -4096: unknown.
    #[rasn(value("-4096..=61439"))]
    pub elev: i64,
    /// Accuracy of the position.
    pub accuracy: PositionalAccuracy,
    /// Gear state.
    pub transmission: TransmissionState,
    /// Speed in 0.02 m/s, 0 to 8,190; 8191: unknown.
    #[rasn(value("0..=8191"))]
    pub speed: i64,
    /// Direction of movement, in 0.0125 degrees clockwise from north, 0 to 28,799; 28800: unknown.
    #[rasn(value("0..=28800"))]
    pub heading: i64,
    /// Steering wheel angle in 1.5 degrees, positive to the right, -126 to 126; 127: unknown.
    #[rasn(value("-126..=127"))]
    pub angle: i64,
    /// Acceleration along the vehicle's axes, and yaw rate.
    pub accel_set: AccelerationSet4Way,
    /// State of the brakes.
    pub brakes: BrakeSystemStatus,
    /// The vehicle's size.
    pub size: VehicleSize,
}

/// Temporary ID of a sender: 4 bytes; in JSON 8 hexadecimal digits, written in upper case.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(delegate)]
#[serde(try_from = "String", into = "String")]
pub struct TemporaryId(FixedOctetString<4>);

impl TemporaryId {
    /// The ID of these bytes.
    pub fn new(bytes: [u8; 4]) -> Self {
        Self(bytes.into())
    }

    /// The bytes of the ID.
    pub fn to_bytes(self) -> [u8; 4] {
        *self.0
    }
}

impl TryFrom<String> for TemporaryId {
    type Error = BsmError;

    fn try_from(text: String) -> Result<Self, BsmError> {
        let mut bytes = [0; 4];
        hex::decode_to_slice(&text, &mut bytes).map_err(|_| BsmError::Id(text))?;
        Ok(Self::new(bytes))
    }
}

impl From<TemporaryId> for String {
    fn from(id: TemporaryId) -> Self {
        hex::encode_upper(id.to_bytes())
    }
}

/// The error ellipse of the position at one standard deviation.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(automatic_tags)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PositionalAccuracy {
    /// Semi-major axis in 0.05 m, 0 to 253; 254: 12.7 m or more; 255: unknown.
    #[rasn(value("0..=255"))]
    pub semi_major: i64,
    /// Semi-minor axis, in the same unit.
    #[rasn(value("0..=255"))]
    pub semi_minor: i64,
    /// Orientation of the semi-major axis, in 360/65535 degrees from north, 0 to 65,534; 65535: unknown.
    #[rasn(value("0..=65535"))]
    pub orientation: i64,
}

/// Acceleration along the vehicle's axes, and yaw rate.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(automatic_tags)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccelerationSet4Way {
    /// Longitudinal, in 0.01 m/s², -2,000 to 2,000; 2001: unknown.
    #[rasn(value("-2000..=2001"))]
    pub long: i64,
    /// Lateral, in the same unit.
    #[rasn(value("-2000..=2001"))]
    pub lat: i64,
    /// Vertical, in 0.02 g, -126 to 127; -127: unknown.
    #[rasn(value("-127..=127"))]
    pub vert: i64,
    /// Yaw rate, positive to the right, in 0.01 degrees/s, -32,767 to 32,767.
    #[rasn(value("-32767..=32767"))]
    pub yaw: i64,
}

/// State of the brakes and of the brake assistance systems.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(automatic_tags)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BrakeSystemStatus {
    /// Which wheels are braked.
    pub wheel_brakes: BrakeAppliedStatus,
    /// Traction control.
    pub traction: ControlStatus,
    /// Anti-lock brakes.
    pub abs: ControlStatus,
    /// Stability control.
    pub scs: ControlStatus,
    /// Brake boost.
    pub brake_boost: BrakeBoostApplied,
    /// Auxiliary brakes.
    pub aux_brakes: AuxiliaryBrakeStatus,
}

/// BIT STRING (SIZE (5)) of named bits, first bit first. Five consecutive BOOLEANs have the same encoding, and rasn
/// reads those without an allocation.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(automatic_tags)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BrakeAppliedStatus {
    /// The state of the brakes is unknown.
    pub unavailable: bool,
    /// Left front is braked.
    pub left_front: bool,
    /// Left rear is braked.
    pub left_rear: bool,
    /// Right front is braked.
    pub right_front: bool,
    /// Right rear is braked.
    pub right_rear: bool,
}

/// Width and length.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(automatic_tags)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VehicleSize {
    /// Width in cm, 1 to 1,023; 0: unknown.
    #[rasn(value("0..=1023"))]
    pub width: i64,
    /// Length in cm, 1 to 4,095; 0: unknown.
    #[rasn(value("0..=4095"))]
    pub length: i64,
}

/// Gear state.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(enumerated)]
#[serde(rename_all = "camelCase")]
pub enum TransmissionState {
    /// No gear.
    Neutral,
    /// Parked.
    Park,
    /// Forward.
    ForwardGears,
    /// Backward.
    ReverseGears,
    /// Reserved by the standard.
    Reserved1,
    /// Reserved by the standard.
    Reserved2,
    /// Reserved by the standard.
    Reserved3,
    /// Unknown, or the vehicle has no gears.
    Unavailable,
}

/// TractionControlStatus, AntiLockBrakeStatus and StabilityControlStatus, which have the same values.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(enumerated)]
#[serde(rename_all = "camelCase")]
pub enum ControlStatus {
    /// Not equipped, or unknown.
    Unavailable,
    /// Off.
    Off,
    /// On, not engaged.
    On,
    /// Engaged.
    Engaged,
}

/// Brake boost. Three values in two bits: the value 3 is undefined and refused.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(enumerated)]
#[serde(rename_all = "camelCase")]
pub enum BrakeBoostApplied {
    /// Not equipped, or unknown.
    Unavailable,
    /// Off.
    Off,
    /// Applied.
    On,
}

/// Auxiliary brakes.
#[derive(AsnType, Decode, Encode, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rasn(enumerated)]
#[serde(rename_all = "camelCase")]
pub enum AuxiliaryBrakeStatus {
    /// Not equipped, or unknown.
    Unavailable,
    /// Off.
    Off,
    /// Applied.
    On,
    /// Reserved by the standard.
    Reserved,
}

impl BsmCoreData {
    /// Returns an error that names the first number out of its range. rasn refuses such a number too, but does not
    /// name the field.
    pub(super) fn check(&self) -> Result<(), BsmError> {
        self.numbers()
            .into_iter()
            .try_for_each(|(field, value, range)| match range.contains(&value) {
                true => Ok(()),
                false => Err(BsmError::Range {
                    field: field.to_owned(),
                    value,
                    range,
                }),
            })
    }

    /// The path, value and range of each number.
    pub(super) fn numbers(&self) -> [(&'static str, i64, RangeInclusive<i64>); 17] {
        let Self {
            accuracy,
            accel_set,
            size,
            ..
        } = self;
        [
            ("msgCnt", self.msg_cnt, 0..=127),
            ("secMark", self.sec_mark, 0..=65535),
            ("lat", self.lat, -900_000_000..=900_000_001),
            ("long", self.long, -1_799_999_999..=1_800_000_001),
            ("elev", self.elev, -4096..=61439),
            ("accuracy.semiMajor", accuracy.semi_major, 0..=255),
            ("accuracy.semiMinor", accuracy.semi_minor, 0..=255),
            ("accuracy.orientation", accuracy.orientation, 0..=65535),
            ("speed", self.speed, 0..=8191),
            ("heading", self.heading, 0..=28800),
            ("angle", self.angle, -126..=127),
            ("accelSet.long", accel_set.long, -2000..=2001),
            ("accelSet.lat", accel_set.lat, -2000..=2001),
            ("accelSet.vert", accel_set.vert, -127..=127),
            ("accelSet.yaw", accel_set.yaw, -32767..=32767),
            ("size.width", size.width, 0..=1023),
            ("size.length", size.length, 0..=4095),
        ]
    }
}
