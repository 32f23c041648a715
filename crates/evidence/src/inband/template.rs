//! A prepared option for writers outside this crate, such as an eBPF program.

use zeroize::Zeroizing;

use super::option::{DATA_BYTES, GROWTH, write};
use super::stamper::option_data;
use super::tag::EvidenceKey;
use crate::state::Snapshot;

/// The data with which a writer stamps packets of one state that have no hop-by-hop header. The writer fills in the
/// next header, which is the first byte of `option`, the counter, 8 bytes at [`Template::COUNTER_AT`], and the tag
/// after the counter.
#[derive(Clone)]
pub struct Template {
    /// The hop-by-hop header with the option; zeros in the fields that the writer fills in.
    pub option: [u8; Template::BYTES],
    /// SipHash-2-4's four state words after the first fifteen words of the tag input. The writer absorbs the other
    /// seven words, which are the counter and [`super::Invariants`], and then SipHash's length word. A holder of the
    /// state words can forge evidence.
    pub midstate: Zeroizing<[u64; 4]>,
}

impl Template {
    /// Length of the header.
    pub const BYTES: usize = GROWTH;
    /// Offset of the counter.
    pub const COUNTER_AT: usize = 80;

    /// A template for this state. `key` is [`super::MasterKey::key`] of the snapshot's switch and boot count.
    #[must_use]
    pub fn new(key: &EvidenceKey, snapshot: &Snapshot) -> Self {
        let data: [u8; DATA_BYTES] = option_data(snapshot);
        let mut bytes = Vec::with_capacity(GROWTH);
        // A new header always has room.
        let written = write(&[], 0, &data, &mut bytes);
        debug_assert!(written.is_ok());
        let mut option = [0; Self::BYTES];
        option.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Self {
            option,
            midstate: midstate(key, snapshot),
        }
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Template(..)")
    }
}

/// Computes the state words of [`super::tag::Midstate`]; the hasher of that type does not expose its state.
fn midstate(key: &EvidenceKey, snapshot: &Snapshot) -> Zeroizing<[u64; 4]> {
    let (low, high) = key.halves();
    let mut v = Zeroizing::new([
        0x736f_6d65_7073_6575 ^ low,
        0x646f_7261_6e64_6f6d ^ high ^ 0xee,
        0x6c79_6765_6e65_7261 ^ low,
        0x7465_6462_7974_6573 ^ high,
    ]);
    let prefix = super::tag::prefix(snapshot);
    for word in prefix.as_chunks().0 {
        absorb(&mut v, u64::from_le_bytes(*word));
    }
    v
}

/// Absorbs one input word.
const fn absorb(v: &mut [u64; 4], word: u64) {
    let [.., v3] = v;
    *v3 ^= word;
    round(v);
    round(v);
    let [v0, ..] = v;
    *v0 ^= word;
}

/// SipRound (Aumasson, Bernstein 2012).
const fn round(v: &mut [u64; 4]) {
    let [v0, v1, v2, v3] = v;
    *v0 = v0.wrapping_add(*v1);
    *v2 = v2.wrapping_add(*v3);
    *v1 = v1.rotate_left(13) ^ *v0;
    *v3 = v3.rotate_left(16) ^ *v2;
    *v0 = v0.rotate_left(32);
    *v2 = v2.wrapping_add(*v1);
    *v0 = v0.wrapping_add(*v3);
    *v1 = v1.rotate_left(17) ^ *v2;
    *v3 = v3.rotate_left(21) ^ *v0;
    *v2 = v2.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{BootCount, Sequence, SwitchId};
    use crate::inband::tag::Midstate;
    use crate::inband::{Counter, Invariants, MasterKey};
    use crate::lthash::Digest;
    use crate::state::Digests;

    /// The tag that a writer computes.
    fn tag(template: &Template, counter: Counter, invariants: &Invariants) -> [u8; 16] {
        let mut v = *template.midstate;
        absorb(&mut v, u64::from_le_bytes(counter.0.to_be_bytes()));
        for word in invariants.0.as_chunks().0 {
            absorb(&mut v, u64::from_le_bytes(*word));
        }
        absorb(&mut v, (22 * 8) << 56);
        v[2] ^= 0xee;
        (0..4).for_each(|_| round(&mut v));
        let low = v.iter().fold(0, |all, word| all ^ word);
        v[1] ^= 0xdd;
        (0..4).for_each(|_| round(&mut v));
        let high = v.iter().fold(0, |all, word| all ^ word);
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&low.to_le_bytes());
        tag[8..].copy_from_slice(&high.to_le_bytes());
        tag
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_tag_computed_from_a_template_equals_the_stampers_tag(
            master in any::<[u8; 16]>(), digests in any::<[[u8; 32]; 3]>(), numbers in any::<[u64; 4]>(), rest in any::<[[u8; 16]; 3]>(),
        ) {
            let [registers, tables, program] = digests.map(Digest);
            let [switch, boot, sequence, counter] = numbers;
            let snapshot = Snapshot {
                switch: SwitchId(switch),
                boot_count: BootCount(boot),
                sequence: Sequence(sequence),
                digests: Digests { program, tables, registers },
            };
            let key = MasterKey::new(master).key(snapshot.switch, snapshot.boot_count);
            let invariants = Invariants(rest.concat().try_into().unwrap());
            let template = Template::new(&key, &snapshot);
            let expected = Midstate::new(&key, &snapshot).tag(Counter(counter), &invariants);
            prop_assert_eq!(tag(&template, Counter(counter), &invariants), expected);
        }
    }
}
