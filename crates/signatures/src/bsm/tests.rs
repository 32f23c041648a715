use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rasn::types::Any;
use serde_json::{Value, json};

use super::*;

const FRAMES: [&str; 2] = [
    "001425004000009670D465F99BB7113E3626083F7FFFFFFFF0F312C0FDFA1FA1007FFF8000962580",
    // From CARMA's tests.
    "001425004043030280ffdbfba868b3584ec40824646400320032000c888fc834e37fff0aaa960fa0",
];

/// Runs a test for each of these seeds, or for the seed in LINEWARDEN_SEED alone.
fn with_seeds(count: u64, test: impl Fn(&mut ChaCha8Rng)) {
    struct SeedReporter(u64);
    impl Drop for SeedReporter {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("LINEWARDEN_SEED={} reproduces this run", self.0);
            }
        }
    }
    let fixed_seed = std::env::var("LINEWARDEN_SEED")
        .ok()
        .map(|seed| seed.parse().expect("LINEWARDEN_SEED: a number"));
    let seeds = fixed_seed.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        let _reporter = SeedReporter(seed);
        test(&mut ChaCha8Rng::seed_from_u64(seed));
    }
}

fn decoded_frame(index: usize) -> CoreData {
    CoreData::decode_frame(&hex::decode(FRAMES[index]).unwrap()).unwrap()
}

/// The fields as JSON, with the value at a path of the form `accelSet.long` replaced.
fn json_with(path: &str, value: Value) -> Value {
    let mut json = serde_json::to_value(decoded_frame(1)).unwrap();
    *json.pointer_mut(&format!("/{}", path.replace('.', "/"))).unwrap() = value;
    json
}

fn for_each_value(value: &mut Value, path: &str, set: &mut impl FnMut(&str, &mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                for_each_value(value, &format!("{path}.{name}"), set);
            }
        }
        value => set(path.trim_start_matches('.'), value),
    }
}

fn random_core_data(random: &mut ChaCha8Rng) -> CoreData {
    let ranges = decoded_frame(0).fields().numbers();
    let mut json = serde_json::to_value(decoded_frame(0)).unwrap();
    let controls = ["unavailable", "off", "on", "engaged"];
    for_each_value(&mut json, "", &mut |path, value| {
        *value = match (
            path.rsplit('.').next().unwrap(),
            ranges.iter().find(|(field, ..)| *field == path),
        ) {
            (_, Some((_, _, range))) => json!(random.random_range(range.clone())),
            ("id", _) => json!(hex::encode(random.random::<[u8; 4]>())),
            ("transmission", _) => {
                let states = [
                    "neutral",
                    "park",
                    "forwardGears",
                    "reverseGears",
                    "reserved1",
                    "reserved2",
                ];
                json!(states[random.random_range(0..6)])
            }
            ("brakeBoost", _) => json!(controls[random.random_range(0..3)]),
            ("auxBrakes", _) => json!(["unavailable", "off", "on", "reserved"][random.random_range(0..4)]),
            (_, None) if value.is_boolean() => json!(random.random::<bool>()),
            _ => json!(controls[random.random_range(0..4)]),
        };
    });
    serde_json::from_value(json).unwrap()
}

/// An independent implementation of X.691 11.5.7.1: the difference between each field and its least value, in as many
/// bits as the range needs.
fn encode_by_hand(fields: &BsmCoreData) -> [u8; MESSAGE_BYTES] {
    let number = |path: &str| {
        let (_, value, range) = fields
            .numbers()
            .into_iter()
            .find(|(field, ..)| *field == path)
            .unwrap();
        let width = u64::BITS - ((range.end() - range.start()) as u64).leading_zeros();
        ((value - range.start()) as u64, width)
    };
    let numbers = |paths: &[&str]| paths.iter().map(|path| number(path)).collect::<Vec<_>>();
    let BrakeSystemStatus {
        wheel_brakes: wheels,
        traction,
        abs,
        scs,
        brake_boost,
        aux_brakes,
    } = fields.brakes;
    let wheel = |braked| (u64::from(braked), 1);
    let parts = [
        vec![
            (0, 3),
            number("msgCnt"),
            (u32::from_be_bytes(fields.id.to_bytes()).into(), 32),
        ],
        numbers(&["secMark", "lat", "long", "elev"]),
        numbers(&["accuracy.semiMajor", "accuracy.semiMinor", "accuracy.orientation"]),
        vec![(fields.transmission as u64, 3)],
        numbers(&["speed", "heading", "angle"]),
        numbers(&["accelSet.long", "accelSet.lat", "accelSet.vert", "accelSet.yaw"]),
        vec![
            wheel(wheels.unavailable),
            wheel(wheels.left_front),
            wheel(wheels.left_rear),
        ],
        vec![wheel(wheels.right_front), wheel(wheels.right_rear)],
        vec![(traction as u64, 2), (abs as u64, 2), (scs as u64, 2)],
        vec![(brake_boost as u64, 2), (aux_brakes as u64, 2)],
        numbers(&["size.width", "size.length"]),
    ];
    let bits = parts
        .iter()
        .flatten()
        .flat_map(|(value, width)| (0..*width).rev().map(move |bit| value >> bit & 1 != 0));
    let mut message = [0; MESSAGE_BYTES];
    let mut count = 0;
    for (index, bit) in bits.enumerate() {
        message[index / 8] |= u8::from(bit) << (7 - index % 8);
        count = index + 1;
    }
    assert_eq!(count, 293);
    message
}

/// Checks a property of any bytes: decoding refuses the bytes, or encoding the decoded fields returns the same bytes.
fn check_refused_or_reencoded(message: &[u8; MESSAGE_BYTES]) -> Result<(), BsmError> {
    let core_data = CoreData::decode(message)?;
    assert_eq!(core_data.encode(), *message);
    assert_eq!(CoreData::new(*core_data.fields()), Ok(core_data));
    assert_eq!(encode_by_hand(core_data.fields()), *message);
    Ok(())
}

#[test]
fn known_answers() {
    for (index, frame) in FRAMES.iter().enumerate() {
        let core_data = decoded_frame(index);
        assert_eq!(hex::encode(core_data.encode_frame()), frame.to_lowercase());
        assert_eq!(hex::encode(core_data.encode()), frame.to_lowercase()[6..]);
        assert_eq!(check_refused_or_reencoded(&core_data.encode()), Ok(()));
    }
}

/// Order, names and values of all fields as in the standard.
#[test]
fn json_of_a_known_answer() {
    let text = concat!(
        r#"{"msgCnt":1,"id":"010C0C0A","secMark":1023,"lat":38954961,"long":-77149303,"elev":72,"#,
        r#""accuracy":{"semiMajor":200,"semiMinor":200,"orientation":100},"transmission":"neutral","speed":100,"#,
        r#""heading":12,"angle":10,"accelSet":{"long":300,"lat":100,"vert":100,"yaw":0},"#,
        r#""brakes":{"wheelBrakes":{"unavailable":false,"leftFront":false,"leftRear":false,"rightFront":false,"#,
        r#""rightRear":true},"traction":"off","abs":"off","scs":"off","brakeBoost":"off","auxBrakes":"off"},"#,
        r#""size":{"width":300,"length":500}}"#,
    );
    assert_eq!(serde_json::to_string(&decoded_frame(1)).unwrap(), text);
    assert_eq!(serde_json::from_str::<CoreData>(text).unwrap(), decoded_frame(1));
}

#[test]
fn each_number_has_its_bounds() {
    for (path, _, range) in decoded_frame(1).fields().numbers() {
        for value in [*range.start(), *range.end()] {
            let core_data: CoreData = serde_json::from_value(json_with(path, json!(value))).unwrap();
            assert_eq!(
                check_refused_or_reencoded(&core_data.encode()),
                Ok(()),
                "{path}: {value}"
            );
            assert_eq!(
                serde_json::to_value(core_data).unwrap(),
                json_with(path, json!(value))
            );
        }
        for value in [range.start() - 1, range.end() + 1, i64::MIN, i64::MAX] {
            let error = serde_json::from_value::<CoreData>(json_with(path, json!(value))).unwrap_err();
            let expected = format!("{path}: {value} is not in {}..={}", range.start(), range.end());
            assert_eq!(error.to_string(), expected);
            // The bounds of the encoding are no wider than the bounds of the check.
            let core_data: BsmCoreData = serde_json::from_value(json_with(path, json!(value))).unwrap();
            assert!(rasn::uper::encode(&core_data).is_err(), "{path}: {value}");
        }
    }
}

#[test]
fn fields_survive_encoding_and_decoding() {
    with_seeds(500, |random| {
        let core_data = random_core_data(random);
        assert_eq!(encode_by_hand(core_data.fields()), core_data.encode());
        assert_eq!(CoreData::decode(&core_data.encode()), Ok(core_data));
        assert_eq!(CoreData::decode_frame(&core_data.encode_frame()), Ok(core_data));
        let text = serde_json::to_string(&core_data).unwrap();
        assert_eq!(serde_json::from_str::<CoreData>(&text).unwrap(), core_data);
    });
}

#[test]
fn each_flipped_bit_is_refused_or_read() {
    with_seeds(20, |random| {
        let message = random_core_data(random).encode();
        for bit in 0..8 * MESSAGE_BYTES {
            let mut flipped = message;
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            let outcome = check_refused_or_reencoded(&flipped);
            match bit {
                0 => assert_eq!(outcome, Err(BsmError::Extension)),
                1 => assert_eq!(outcome, Err(BsmError::PartII)),
                2 => assert_eq!(outcome, Err(BsmError::Regional)),
                293.. => assert_eq!(outcome, Err(BsmError::Padding(1 << (295 - bit)))),
                _ => match outcome {
                    Ok(()) => assert_ne!(CoreData::decode(&flipped), CoreData::decode(&message)),
                    Err(error) => assert!(
                        matches!(error, BsmError::Range { .. } | BsmError::Enumeration { .. }),
                        "bit {bit}: {error}"
                    ),
                },
            }
        }
    });
}

#[test]
fn each_flipped_bit_of_the_frame_is_refused() {
    let frame = decoded_frame(1).encode_frame();
    for bit in 0..8 * (FRAME_BYTES - MESSAGE_BYTES) {
        let mut flipped = frame;
        flipped[bit / 8] ^= 0x80 >> (bit % 8);
        let expected = match bit {
            0 => BsmError::FrameExtension,
            1..16 => BsmError::MessageId(20 ^ 0x8000 >> bit),
            _ => BsmError::ValueLength(37 ^ 0x80 >> (bit - 16)),
        };
        assert_eq!(CoreData::decode_frame(&flipped), Err(expected));
    }
    // The message inside the frame is checked as strictly.
    let mut flipped = frame;
    flipped[3] |= 0x40;
    assert_eq!(CoreData::decode_frame(&flipped), Err(BsmError::PartII));
}

#[test]
fn other_lengths_are_refused() {
    let frame = [decoded_frame(1).encode_frame(), decoded_frame(0).encode_frame()].concat();
    let message = [decoded_frame(1).encode(), decoded_frame(0).encode()].concat();
    for length in (0..frame.len()).filter(|length| *length != FRAME_BYTES) {
        assert_eq!(
            CoreData::decode_frame(&frame[..length]),
            Err(BsmError::FrameLength(length))
        );
    }
    for length in (0..message.len()).filter(|length| *length != MESSAGE_BYTES) {
        assert_eq!(
            CoreData::decode(&message[..length]),
            Err(BsmError::MessageLength(length))
        );
    }
}

#[test]
fn random_bytes_are_refused_or_read() {
    let valid_count = std::cell::Cell::new(0);
    with_seeds(100, |random| {
        for _ in 0..200 {
            let mut message = [0; MESSAGE_BYTES];
            random.fill_bytes(&mut message);
            let _ = check_refused_or_reencoded(&message);
            // Most inputs fail at their first or last bits.
            message[0] &= 0x1f;
            message[MESSAGE_BYTES - 1] &= 0xf8;
            valid_count.set(valid_count.get() + usize::from(check_refused_or_reencoded(&message).is_ok()));
        }
    });
    assert!(
        std::env::var_os("LINEWARDEN_SEED").is_some() || valid_count.get() > 1000,
        "{}",
        valid_count.get()
    );
}

#[test]
fn undefined_values_are_named() {
    let refusal = |bits: std::ops::Range<usize>| {
        let mut message = decoded_frame(0).encode();
        bits.for_each(|bit| message[bit / 8] |= 0x80 >> (bit % 8));
        CoreData::decode(&message).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(58..89),
        "lat: 1247483647 is not in -900000000..=900000001"
    );
    assert_eq!(
        refusal(89..121),
        "long: 2494967296 is not in -1799999999..=1800000001"
    );
    assert_eq!(refusal(185..200), "heading: 32767 is not in 0..=28800");
    assert_eq!(refusal(200..208), "angle: 129 is not in -126..=127");
    assert_eq!(refusal(208..220), "accelSet.long: 2095 is not in -2000..=2001");
    assert_eq!(refusal(220..232), "accelSet.lat: 2095 is not in -2000..=2001");
    assert_eq!(refusal(232..240), "accelSet.vert: 128 is not in -127..=127");
    assert_eq!(refusal(240..256), "accelSet.yaw: 32768 is not in -32767..=32767");
    assert_eq!(refusal(267..269), "brakes.brakeBoost: 3 is not a defined value");
}

#[test]
fn invalid_json_is_refused() {
    let refusal = |json: Value| serde_json::from_value::<CoreData>(json).unwrap_err().to_string();
    for pointer in [
        "",
        "/accuracy",
        "/accelSet",
        "/brakes",
        "/brakes/wheelBrakes",
        "/size",
    ] {
        let fields = serde_json::to_value(decoded_frame(1)).unwrap();
        let mut extended = fields.clone();
        extended.pointer_mut(pointer).unwrap()["color"] = json!(1);
        assert!(
            refusal(extended).starts_with("unknown field `color`"),
            "{pointer}"
        );
        for name in fields.pointer(pointer).unwrap().as_object().unwrap().keys() {
            let mut reduced = fields.clone();
            reduced
                .pointer_mut(pointer)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(name);
            assert_eq!(refusal(reduced), format!("missing field `{name}`"));
        }
    }
    assert_eq!(
        refusal(json_with("id", json!("0C0C0A0"))),
        "id: \"0C0C0A0\" is not 8 hexadecimal digits"
    );
    assert_eq!(
        refusal(json_with("id", json!("0C0C0A0300"))),
        "id: \"0C0C0A0300\" is not 8 hexadecimal digits"
    );
    assert!(refusal(json_with("transmission", json!("drive"))).starts_with("unknown variant `drive`"));
    assert!(
        refusal(json_with("brakes.brakeBoost", json!("engaged"))).starts_with("unknown variant `engaged`")
    );
    assert!(refusal(json_with("speed", json!(1.5))).contains("floating point"));
}

/// The frame's header equals rasn's encoding of the standard's type.
#[test]
fn frame_of_the_standard() {
    #[derive(AsnType, Decode, Encode)]
    #[rasn(automatic_tags)]
    #[non_exhaustive]
    struct MessageFrame {
        #[rasn(value("0..=32767"))]
        message_id: u16,
        value: Any,
    }
    for core_data in [decoded_frame(0), decoded_frame(1)] {
        let frame = MessageFrame {
            message_id: 20,
            value: Any::new(core_data.encode().to_vec()),
        };
        assert_eq!(rasn::uper::encode(&frame).unwrap(), core_data.encode_frame());
    }
}
