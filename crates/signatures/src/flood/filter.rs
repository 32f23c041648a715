//! A cBPF filter by which the kernel drops a flood before the flood fills the socket's buffer (`SO_ATTACH_FILTER`).
//!
//! The filter recognizes messages by their length and first three bytes. Datagrams that are not messages are sampled:
//! only one in several passes. Either all messages pass, or the messages of known senders pass and the messages of
//! other senders are sampled. The filter identifies a sender by a tag: 32 bits of a hash of the source and of the
//! signer that the sender's messages name. Secret numbers are part of the hash. An unknown sender has the tag of a
//! given known sender with a probability of 2^-32, or up to 2^-16 if the unknown sender can choose its IPv6 link-local
//! address. Attaching the filter requires no capability.

use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;

use nix::libc;
use siphasher::sip::SipHasher13;
use socket2::SockFilter;

use crate::message::{HEADER_BYTES, KeyId, MAGIC_AND_VERSION};
use crate::source::network;

/// Maximum number of known senders of a filter: the program for this number of senders has fewer than a
/// third of the instructions that the kernel allows (`BPF_MAXINSNS`, 4,096).
pub(super) const KNOWN_MAX: usize = 1_024;
/// Number of tags in a group. One comparison decides whether the program skips a group; otherwise the program compares
/// the tags of the group one by one. A group is shorter than the longest conditional jump, 255 instructions.
const GROUP: usize = 32;

/// Like `struct sock_filter` of `linux/filter.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    /// Instructions to skip if the comparison is true.
    jt: u8,
    /// Instructions to skip if the comparison is false.
    jf: u8,
    k: u32,
}

/// Instruction codes. In `TAX` and `XOR_X`, A is the accumulator, and X the index register.
mod code {
    use nix::libc::{
        BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD,
        BPF_LEN, BPF_MEM, BPF_MISC, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_TAX, BPF_W, BPF_X, BPF_XOR,
    };

    pub const LD_WORD: u16 = (BPF_LD | BPF_W | BPF_ABS) as u16;
    pub const LD_BYTE: u16 = (BPF_LD | BPF_B | BPF_ABS) as u16;
    pub const LD_IMM: u16 = (BPF_LD | BPF_IMM) as u16;
    pub const LD_LEN: u16 = (BPF_LD | BPF_W | BPF_LEN) as u16;
    pub const LD_MEM: u16 = (BPF_LD | BPF_MEM) as u16;
    pub const ST: u16 = BPF_ST as u16;
    pub const TAX: u16 = (BPF_MISC | BPF_TAX) as u16;
    pub const AND: u16 = (BPF_ALU | BPF_AND | BPF_K) as u16;
    pub const MUL: u16 = (BPF_ALU | BPF_MUL | BPF_K) as u16;
    pub const RSH: u16 = (BPF_ALU | BPF_RSH | BPF_K) as u16;
    pub const XOR_X: u16 = (BPF_ALU | BPF_XOR | BPF_X) as u16;
    pub const JA: u16 = (BPF_JMP | BPF_JA) as u16;
    pub const JEQ: u16 = (BPF_JMP | BPF_JEQ | BPF_K) as u16;
    pub const JGT: u16 = (BPF_JMP | BPF_JGT | BPF_K) as u16;
    pub const JGE: u16 = (BPF_JMP | BPF_JGE | BPF_K) as u16;
    pub const RET: u16 = (BPF_RET | BPF_K) as u16;
}

/// Load offsets from this number on are relative to the IP header.
const IP_HEADER: u32 = libc::SKF_NET_OFF as u32;
/// Offset from which a random number is loaded.
const RANDOM_OFFSET: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
/// Offset of the message, after the UDP header.
const MESSAGE_OFFSET: u32 = 8;
/// Offset of the key identifier in the datagram.
const KEY_ID_OFFSET: u32 = MESSAGE_OFFSET + 4;
/// Return value with which the whole datagram passes.
const PASS: u32 = u32::MAX;
const LINK_LOCAL: u32 = 0xfe80_0000;
const LINK_LOCAL_MASK: u32 = 0xffc0_0000;

/// Computes the tags of senders from two secret odd numbers.
pub(super) struct Tags([u32; 2]);

impl Tags {
    pub(super) fn new(secret: &[u8; 16]) -> Self {
        Self(std::array::from_fn(|number| {
            let mut hasher = SipHasher13::new_with_key(secret);
            number.hash(&mut hasher);
            hasher.finish() as u32 | 1
        }))
    }

    /// The tag of a sender, as the filter computes it.
    pub(super) fn of(&self, source: IpAddr, key: KeyId) -> u32 {
        let [first_factor, second_factor] = self.0;
        // With the first multiplication alone, a change of a word's highest bit would change only the state's highest
        // bit, and the same change in the next word would cancel that change.
        let mix = |state: u32, word: u32| {
            let product = (state ^ word).wrapping_mul(first_factor);
            (product ^ product >> 16).wrapping_mul(second_factor)
        };
        let words = |bits: u128| std::array::from_fn::<u32, 4, _>(|word| (bits >> (96 - 32 * word)) as u32);
        let source = match network(source) {
            IpAddr::V4(v4) => mix(0, v4.to_bits()),
            IpAddr::V6(v6) if v6.is_unicast_link_local() => words(v6.to_bits()).into_iter().fold(0, mix),
            IpAddr::V6(v6) => words(v6.to_bits()).into_iter().take(2).fold(0, mix),
        };
        let key = u64::from_be_bytes(key.0);
        mix(mix(source, (key >> 32) as u32), key as u32)
    }

    /// A program that passes all messages (`None`), or the messages of senders with one of the tags `known`. The tags
    /// must be sorted, and at most [`KNOWN_MAX`]. Of the other datagrams, one in `sample_one_in` passes.
    pub(super) fn program(&self, known: Option<&[u32]>, sample_one_in: u64) -> Vec<SockFilter> {
        let instructions = self.instructions(known, sample_one_in);
        instructions
            .iter()
            .map(|instruction| {
                SockFilter::new(instruction.code, instruction.jt, instruction.jf, instruction.k)
            })
            .collect()
    }

    fn instructions(&self, known: Option<&[u32]>, sample_one_in: u64) -> Vec<Instruction> {
        let message_instructions = match known {
            Some(known) => self.filter_by_tags(known),
            None => vec![statement(code::RET, PASS)],
        };
        let jump_to_sampling = statement(code::JA, message_instructions.len() as u32);
        let mut program = vec![
            statement(code::LD_LEN, 0),
            // A shorter datagram skips to `jump_to_sampling`.
            jump(code::JGE, 0, 3, MESSAGE_OFFSET + HEADER_BYTES as u32),
            statement(code::LD_WORD, MESSAGE_OFFSET),
            statement(code::AND, !0xff),
            jump(code::JEQ, 1, 0, MAGIC_AND_VERSION << 8),
            jump_to_sampling,
        ];
        program.extend(message_instructions);
        program.extend([
            statement(code::LD_WORD, RANDOM_OFFSET),
            jump(
                code::JGT,
                1,
                0,
                (u64::from(u32::MAX) / sample_one_in.max(1)) as u32,
            ),
            statement(code::RET, PASS),
            statement(code::RET, 0),
        ]);
        program
    }

    /// Instructions that pass the messages of senders with these tags, and continue with sampling for other messages.
    fn filter_by_tags(&self, known: &[u32]) -> Vec<Instruction> {
        let mut groups = Vec::new();
        // The groups are built from the last to the first. A tag that is not found in its group is in no group, so the
        // jump at the end of a group skips all following groups.
        for group in known.chunks(GROUP).rev() {
            let (length, last_tag) = (group.len() as u8, group.last().copied().unwrap_or(0));
            let mut program = vec![jump(code::JGT, length + 2, 0, last_tag)];
            for (index, tag) in (0..).zip(group) {
                program.push(jump(code::JEQ, length - index, 0, *tag));
            }
            program.push(statement(code::JA, 1 + groups.len() as u32));
            program.push(statement(code::RET, PASS));
            program.append(&mut groups);
            groups = program;
        }
        [self.tag_of_datagram(), groups].concat()
    }

    /// Instructions that compute [`Tags::of`] for the datagram.
    fn tag_of_datagram(&self) -> Vec<Instruction> {
        let [first_factor, second_factor] = self.0;
        // Mixes the number in memory cell 0 with the word at this offset.
        let mix = |offset| {
            [
                statement(code::LD_MEM, 0),
                statement(code::TAX, 0),
                statement(code::LD_WORD, offset),
                statement(code::XOR_X, 0),
                statement(code::MUL, first_factor),
                statement(code::ST, 0),
                statement(code::RSH, 16),
                statement(code::TAX, 0),
                statement(code::LD_MEM, 0),
                statement(code::XOR_X, 0),
                statement(code::MUL, second_factor),
                statement(code::ST, 0),
            ]
        };
        let two_words = [mix(IP_HEADER + 16), mix(IP_HEADER + 20)].concat();
        let is_link_local = [
            statement(code::LD_WORD, IP_HEADER + 8),
            statement(code::AND, LINK_LOCAL_MASK),
            jump(code::JEQ, 0, two_words.len() as u8, LINK_LOCAL),
        ];
        let ip6 = [
            [mix(IP_HEADER + 8), mix(IP_HEADER + 12)].as_flattened(),
            &is_link_local,
            &two_words,
        ]
        .concat();
        let ip4 = [&mix(IP_HEADER + 12)[..], &[statement(code::JA, ip6.len() as u32)]].concat();
        let family = [
            statement(code::LD_IMM, 0),
            statement(code::ST, 0),
            statement(code::LD_BYTE, IP_HEADER),
            statement(code::AND, 0xf0),
            jump(code::JEQ, 0, ip4.len() as u8, 0x40),
        ];
        let signer = [mix(KEY_ID_OFFSET), mix(KEY_ID_OFFSET + 4)];
        [&family[..], &ip4, &ip6, signer.as_flattened()].concat()
    }
}

fn statement(code: u16, k: u32) -> Instruction {
    jump(code, 0, 0, k)
}

fn jump(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

    use proptest::prelude::*;
    use socket2::SockRef;

    use super::*;

    fn passes(program: &[Instruction], ip: &[u8], udp: &[u8], random: u32) -> bool {
        run(program, ip, udp, random).0
    }

    /// The kernel's decision about a datagram for this random number, and the number of steps.
    fn run(program: &[Instruction], ip: &[u8], udp: &[u8], random: u32) -> (bool, usize) {
        let (mut a, mut x, mut memory, mut pc) = (0u32, 0u32, 0u32, 0usize);
        let byte = |offset: u32| {
            let (header, index) = if (IP_HEADER..RANDOM_OFFSET).contains(&offset) {
                (ip, offset - IP_HEADER)
            } else {
                (udp, offset)
            };
            header.get(index as usize).copied()
        };
        for steps in 1.. {
            let Instruction { code, jt, jf, k } = program[pc];
            pc += 1;
            let skipped = |is_true: bool| usize::from(if is_true { jt } else { jf });
            match code {
                code::LD_WORD if k == RANDOM_OFFSET => a = random,
                code::LD_WORD => {
                    let word: Option<Vec<u8>> = (0..4).map(|index| byte(k + index)).collect();
                    let Some(word) = word else { return (false, steps) };
                    a = u32::from_be_bytes(word.try_into().unwrap());
                }
                code::LD_BYTE => a = byte(k).unwrap().into(),
                code::LD_IMM => a = k,
                code::LD_LEN => a = udp.len() as u32,
                code::LD_MEM => a = memory,
                code::ST => memory = a,
                code::TAX => x = a,
                code::AND => a &= k,
                code::MUL => a = a.wrapping_mul(k),
                code::RSH => a >>= k,
                code::XOR_X => a ^= x,
                code::JA => pc += k as usize,
                code::JEQ => pc += skipped(a == k),
                code::JGT => pc += skipped(a > k),
                code::JGE => pc += skipped(a >= k),
                code::RET => return (k != 0, steps),
                _ => panic!("{code:#x}"),
            }
        }
        unreachable!("a program ends")
    }

    fn headers(source: IpAddr, key: [u8; 8]) -> (Vec<u8>, Vec<u8>) {
        let ip = match source {
            IpAddr::V4(v4) => [&[0x45; 12][..], &v4.octets(), &[9; 4]].concat(),
            IpAddr::V6(v6) => [&[0x60; 8][..], &v6.octets(), &[9; 16]].concat(),
        };
        (ip, [&[7; 8][..], b"LS\x01\x09", &key, &[7; 9]].concat())
    }

    fn source() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()),
            any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits | 1 << 127).into()),
            any::<u64>().prop_map(|bits| Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(bits)).into()),
        ]
    }

    proptest! {
        /// All messages of known senders pass; messages of others pass as the random number decides.
        #[test]
        fn known_senders_pass_and_a_sample_of_others(
            senders in proptest::collection::vec((source(), any::<[u8; 8]>()), 1..200),
            unknown in (source(), any::<[u8; 8]>()),
            secret in any::<[u8; 16]>(),
        ) {
            let tags = Tags::new(&secret);
            let mut known: Vec<u32> = senders.iter().map(|(source, key)| tags.of(*source, KeyId(*key))).collect();
            known.sort_unstable();
            let program = tags.instructions(Some(&known), 64);
            for (source, key) in &senders {
                let (ip, udp) = headers(*source, *key);
                prop_assert!(passes(&program, &ip, &udp, u32::MAX));
                prop_assert!(!passes(&program, &ip, &udp[..28], u32::MAX) && passes(&program, &ip, &udp[..8], 0));
            }
            let (ip, udp) = headers(unknown.0, unknown.1);
            prop_assert!(passes(&program, &ip, &udp, u32::MAX / 64));
            let mut broken = udp.clone();
            broken[10] = 2;
            prop_assert!(passes(&program, &ip, &broken, u32::MAX / 64));
            prop_assert!(!passes(&program, &ip, &broken, u32::MAX / 64 + 1));
            let pass_all = tags.instructions(None, 64);
            prop_assert!(passes(&pass_all, &ip, &udp, u32::MAX) && !passes(&pass_all, &ip, &broken, u32::MAX));
            let is_known = known.contains(&tags.of(unknown.0, KeyId(unknown.1)));
            prop_assert_eq!(passes(&program, &ip, &udp, u32::MAX / 64 + 1), is_known);
        }
    }

    /// An unknown sender is recognized with few comparisons.
    #[test]
    fn a_datagram_is_compared_with_few_tags() {
        let tags = Tags::new(&[8; 16]);
        let known: Vec<u32> = (0..KNOWN_MAX as u32).map(|tag| tag << 22 | 1).collect();
        let program = tags.instructions(Some(&known), 100);
        assert!(program.len() < 1_300);
        for unknown in 0..2_000u32 {
            let (ip, udp) = headers(Ipv4Addr::from_bits(unknown).into(), [3; 8]);
            let (passes, steps) = run(&program, &ip, &udp, u32::MAX);
            assert!(
                !passes && steps < 50 + 2 * GROUP + KNOWN_MAX / GROUP,
                "{steps} steps"
            );
        }
    }

    /// Changes of high bits do not cancel, in two words of an address or in one.
    #[test]
    fn highest_bits_do_not_cancel() {
        let tags = Tags::new(&[9; 16]);
        let tag_of = |host: u64| {
            let ip = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(host));
            tags.of(ip.into(), KeyId([1; 8]))
        };
        assert_ne!(tag_of(0x0123_4567_89ab_cdef), tag_of(0x8123_4567_09ab_cdef));
        assert_ne!(tag_of(0x0123_4567_89ab_cdef), tag_of(0x8123_c567_89ab_cdef));
    }

    /// Hosts of a network of 64 bits are one source, hosts of a link are several.
    #[test]
    fn sources_are_those_of_the_service() {
        let tags = Tags::new(&[3; 16]);
        let tag_of = |ip: &str| tags.of(ip.parse().unwrap(), KeyId([1; 8]));
        assert_eq!(tag_of("2001:db8::1"), tag_of("2001:db8::2"));
        assert_ne!(tag_of("2001:db8::1"), tag_of("2001:db8:0:1::1"));
        assert_ne!(tag_of("fe80::1"), tag_of("fe80::2"));
        assert_eq!(tag_of("::ffff:192.0.2.1"), tag_of("192.0.2.1"));
    }

    /// Tests a program with the maximum number of tags.
    #[test]
    fn the_kernel_passes_known_senders_and_a_sample() {
        for (receiver, known, unknown) in [("127.0.0.1", "127.0.0.9", "127.0.0.8"), ("::1", "::1", "::1")] {
            let [known, unknown] = [known, unknown].map(|ip| ip.parse::<IpAddr>().unwrap());
            let inbox = UdpSocket::bind((receiver, 0)).unwrap();
            inbox.set_nonblocking(true).unwrap();
            let tags = Tags::new(&[5; 16]);
            // Half of the tags need two instructions of the kernel's internal format.
            let mut known_tags: Vec<u32> = (1..KNOWN_MAX as u32)
                .map(|tag| tag.wrapping_mul(0x9e37_79b1))
                .collect();
            known_tags.push(tags.of(known, KeyId([1; 8])));
            known_tags.sort_unstable();
            let program = tags.program(Some(&known_tags), 64);
            SockRef::from(&inbox).attach_filter(&program).unwrap();
            let message = |key: u8| [&b"LS\x01\x09"[..], &[key; 8], &[0; 20]].concat();
            let received = |source: IpAddr, message: &[u8], count: usize| {
                let sender = UdpSocket::bind((source, 0)).unwrap();
                let mut received = 0;
                for _ in 0..count {
                    sender.send_to(message, inbox.local_addr().unwrap()).unwrap();
                    received += usize::from(inbox.recv(&mut [0; 64]).is_ok());
                }
                received
            };
            assert_eq!(received(known, &message(1), 100), 100);
            assert!(received(known, &message(1)[..20], 1_000) < 100, "too short");
            assert!(received(known, &[0; 40], 1_000) < 100, "not a message");
            // 100 are expected; fewer than 30 or at least 200 occur less than once in 10^16 times.
            let sampled = received(unknown, &message(2), 6_400);
            assert!((30..200).contains(&sampled), "{sampled} of 6,400");
        }
    }
}
