//! Ciphers as eBPF programs (`bpf/bench_cipher.bpf.c`): keystream blocks alone, and programs that encrypt or seal the payload
//! of every UDP packet over IPv4 and send it back. To be measured, and to be compared with those of user space.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{
    AsRawLibbpf as _, Link, MapCore as _, MapFlags, OpenObject, OpenProgramMut, ProgramInput, ProgramMut,
    libbpf_sys,
};

use super::skeleton::bench_cipher::{BenchCipherSkel, BenchCipherSkelBuilder, OpenBenchCipherSkel};
use super::{TestRun, check_privileges, quiet_libbpf};
use crate::DataPlaneError;

/// Bytes of a keystream block.
pub const BLOCK_BYTES: usize = 64;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The longest payload that is encrypted, bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1472;
/// Bytes of associated data at most.
pub const AAD_BYTES_MAX: usize = 16;

/// Additions of [`Program::Steps`].
pub const STEPS: u32 = 1000;

/// A stream cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// 6 rounds of Forró: to be measured, not to be used.
    Forro6,
    /// 10 rounds: to be measured, not to be used.
    Forro10,
    /// Forró.
    Forro14,
    /// 8 rounds of ChaCha.
    Chacha8,
    /// 12 rounds of ChaCha.
    Chacha12,
    /// ChaCha.
    Chacha20,
}

impl Cipher {
    /// All, Forró first.
    pub const ALL: [Self; 6] = [
        Self::Forro6,
        Self::Forro10,
        Self::Forro14,
        Self::Chacha8,
        Self::Chacha12,
        Self::Chacha20,
    ];

    /// Lower case, with the rounds.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forro6 => "forro6",
            Self::Forro10 => "forro10",
            Self::Forro14 => "forro14",
            Self::Chacha8 => "chacha8",
            Self::Chacha12 => "chacha12",
            Self::Chacha20 => "chacha20",
        }
    }
}

/// Authenticated encryption with associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aead {
    /// XForró14-Poly1305: 24-byte nonces.
    XForro14Poly1305,
    /// RFC 8439: 12-byte nonces.
    ChaCha20Poly1305,
}

impl Aead {
    /// Both.
    pub const ALL: [Self; 2] = [Self::XForro14Poly1305, Self::ChaCha20Poly1305];

    /// Lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::XForro14Poly1305 => "xforro14poly1305",
            Self::ChaCha20Poly1305 => "chacha20poly1305",
        }
    }
}

/// How many blocks are computed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One after the other.
    X1,
    /// Two.
    X2,
    /// Four.
    X4,
}

impl Width {
    /// All.
    pub const ALL: [Self; 3] = [Self::X1, Self::X2, Self::X4];

    /// As a number.
    #[must_use]
    pub fn blocks(self) -> usize {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
        }
    }
}

/// What an AEAD program does with a packet, whose payload ends with room for the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Encrypts and writes the tag.
    Seal,
    /// Checks the tag and decrypts; drops the packet otherwise, unchanged but for its headers.
    Open,
    /// Seals, then opens: can be repeated on the same packet.
    Both,
}

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `return XDP_TX`.
    Empty,
    /// [`STEPS`] additions, each of which waits for the one before it.
    Steps,
    /// Blocks of keystream into a map; without a cipher only the loads and stores.
    Blocks(Option<Cipher>, Width),
    /// Encrypts the payload and sends the packet back; without a cipher only sends it back.
    Answer(Option<Cipher>),
    /// Seals, opens.
    Aead(Aead, Act),
    /// Poly1305 alone: its one-time key is the beginning of the matrix, its tag lies and covers what an AEAD's does.
    Poly1305,
}

impl Program {
    /// The C function's.
    fn name(self) -> String {
        match self {
            Self::Empty => "empty".to_owned(),
            Self::Steps => "steps".to_owned(),
            Self::Blocks(cipher, width) => {
                format!("{}_x{}", cipher.map_or("plain", Cipher::name), width.blocks())
            }
            Self::Answer(None) => "answer".to_owned(),
            Self::Answer(Some(cipher)) => format!("answer_{}", cipher.name()),
            Self::Aead(aead, Act::Seal) => format!("{}_seal", aead.name()),
            Self::Aead(aead, Act::Open) => format!("{}_open", aead.name()),
            Self::Aead(aead, Act::Both) => format!("{}_both", aead.name()),
            Self::Poly1305 => "poly1305".to_owned(),
        }
    }
}

/// What a message is sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AeadInput {
    /// Key.
    pub key: [u8; 32],
    /// Nonce; ChaCha20-Poly1305 takes the first twelve bytes.
    pub nonce: [u8; 24],
    /// Associated data, at most [`AAD_BYTES_MAX`]; what is longer is cut off.
    pub aad: Vec<u8>,
}

/// What the kernel says of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// eBPF instructions as the kernel runs them (`xlated`), of all functions.
    pub instructions: usize,
    /// Bytes of machine code.
    pub jited_bytes: usize,
    /// Instructions that the kernel's verifier walked through.
    pub verified: u32,
    /// Stack of the deepest chain of calls, bytes, from the verifier's log.
    pub stack_bytes: u32,
}

/// Bytes of a verifier's log that has statistics only.
const LOG_BYTES: usize = 4096;
/// `BPF_LOG_STATS`.
const LOG_STATS: u32 = 4;

/// The programs, loaded.
pub struct CipherBench {
    skeleton: BenchCipherSkel<'static>,
    stacks: Vec<(String, u32)>,
}

impl CipherBench {
    /// Loads these programs; the others are left out, for the verifier takes its time.
    ///
    /// # Errors
    /// Missing privileges, or the kernel's refusal.
    pub fn load(programs: &[Program]) -> Result<Self, DataPlaneError> {
        check_privileges()?;
        quiet_libbpf();
        // libbpf wants the object's storage to outlive the skeleton; a few dozen bytes a load are left behind.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the ciphers' programs", error);
        let mut open = BenchCipherSkelBuilder::default().open(storage).map_err(error)?;
        let logs = choose(&mut open, programs)?;
        let skeleton = open.load().map_err(|error| refused(&error, &logs))?;
        let stacks = logs
            .into_iter()
            .map(|(name, log)| Ok((name, deepest_stack(&log)?)))
            .collect::<Result<_, DataPlaneError>>()?;
        Ok(Self { skeleton, stacks })
    }

    /// The matrix of block programs and streams: its counter is that of the first block.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_matrix(&self, matrix: [u32; 16]) -> Result<(), DataPlaneError> {
        let mut value = self.read(&self.skeleton.maps.input)?;
        for (to, word) in value.chunks_exact_mut(4).zip(matrix) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.write_input(&value)
    }

    /// What the AEADs use.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_aead(&self, input: &AeadInput) -> Result<(), DataPlaneError> {
        let before = self.read(&self.skeleton.maps.input)?;
        let aad_bytes = input.aad.len().min(AAD_BYTES_MAX);
        let mut aad = [0; AAD_BYTES_MAX];
        aad.iter_mut().zip(&input.aad).for_each(|(to, from)| *to = *from);
        let mut value = before.get(..BLOCK_BYTES).unwrap_or_default().to_vec();
        value.extend_from_slice(&input.key);
        value.extend_from_slice(&input.nonce);
        value.extend_from_slice(&(aad_bytes as u32).to_ne_bytes());
        value.extend_from_slice(&[0; 4]);
        value.extend_from_slice(&aad);
        self.write_input(&value)
    }

    /// The keystream that the last block program left.
    ///
    /// # Errors
    /// The kernel's.
    pub fn keystream(&self, width: Width) -> Result<Vec<u8>, DataPlaneError> {
        let mut blocks = self.read(&self.skeleton.maps.output)?;
        blocks.truncate(width.blocks() * BLOCK_BYTES);
        Ok(blocks)
    }

    /// Runs a program once on a frame.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(&self, program: Program, frame: &[u8]) -> Result<TestRun, DataPlaneError> {
        self.test_run(program, frame, 1).map(|(run, _)| run)
    }

    /// Runs a program `repeat` times on the same packet, `runs` times over; nanoseconds a run, the least of them, by the
    /// kernel's own clock round its loop (whole ones).
    ///
    /// # Errors
    /// The kernel's, or a last action that is not XDP_TX: then it was not the path that was to be measured.
    pub fn time(
        &self,
        program: Program,
        frame: &[u8],
        repeat: u32,
        runs: u32,
    ) -> Result<f64, DataPlaneError> {
        let mut least = f64::MAX;
        for _ in 0..runs {
            let (run, ns) = self.test_run(program, frame, repeat)?;
            if run.action != libbpf_sys::XDP_TX {
                let problem = format!("{}: action {}, not XDP_TX", program.name(), run.action);
                return Err(DataPlaneError::kernel("the bench's last packet", problem));
            }
            least = least.min(ns);
        }
        Ok(least)
    }

    /// What the kernel says of a program.
    ///
    /// # Errors
    /// The kernel's.
    pub fn facts(&self, program: Program) -> Result<Facts, DataPlaneError> {
        let name = program.name();
        let stack = self.stacks.iter().find(|(of, _)| *of == name);
        let stack_bytes = stack.map(|(_, bytes)| *bytes);
        let info = program_info(&self.program(program)?)?;
        Ok(Facts {
            instructions: info.xlated_prog_len as usize / size_of::<u64>(),
            jited_bytes: info.jited_prog_len as usize,
            verified: info.verified_insns,
            stack_bytes: stack_bytes.ok_or_else(|| no_stack(&name))?,
        })
    }

    /// What the kernel counts for the maps that a packet needs, bytes: key and nonce, and what is under way.
    ///
    /// # Errors
    /// That of `/proc`.
    pub fn map_bytes(&self) -> Result<u64, DataPlaneError> {
        let maps = &self.skeleton.maps;
        let bytes = [&maps.input, &maps.work].map(|map| {
            let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
            let text = fs::read_to_string(&path).map_err(|error| DataPlaneError::kernel(path, error))?;
            let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            line.and_then(|bytes| bytes.trim().parse::<u64>().ok())
                .ok_or_else(|| DataPlaneError::kernel("the memory of a map", "not in its fdinfo"))
        });
        bytes.into_iter().sum()
    }

    /// Attaches a program to an interface of the calling thread's network namespace, until the link is dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(&self, program: Program, interface: u32) -> Result<Link, DataPlaneError> {
        self.program(program)?
            .attach_xdp(interface.cast_signed())
            .map_err(|error| DataPlaneError::kernel("attaching a cipher's program", error))
    }

    fn program(&self, program: Program) -> Result<ProgramMut<'_>, DataPlaneError> {
        let name = program.name();
        let mut programs = self.skeleton.object().progs_mut();
        programs
            .find(|program| program.name() == name.as_str() && program.autoload())
            .ok_or_else(|| DataPlaneError::kernel(format!("program {name}"), "not loaded"))
    }

    fn test_run(
        &self,
        program: Program,
        frame: &[u8],
        repeat: u32,
    ) -> Result<(TestRun, f64), DataPlaneError> {
        let mut out = vec![0; frame.len() + 256];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..Default::default()
        };
        let output = self
            .program(program)?
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        let run = TestRun {
            action: output.return_value,
            frame: output.data.unwrap_or_default().to_vec(),
        };
        Ok((run, output.duration.as_nanos() as f64))
    }

    fn read(&self, map: &impl libbpf_rs::MapCore) -> Result<Vec<u8>, DataPlaneError> {
        map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| DataPlaneError::kernel("reading a map of the ciphers", error))?
            .ok_or_else(|| DataPlaneError::kernel("reading a map of the ciphers", "no element"))
    }

    fn write_input(&self, value: &[u8]) -> Result<(), DataPlaneError> {
        let input = &self.skeleton.maps.input;
        input
            .update(&0u32.to_ne_bytes(), value, MapFlags::ANY)
            .map_err(|error| DataPlaneError::kernel("writing the ciphers' input", error))
    }
}

/// Has only these programs loaded, each with a log of its own.
fn choose(
    open: &mut OpenBenchCipherSkel<'_>,
    programs: &[Program],
) -> Result<Vec<(String, Vec<u8>)>, DataPlaneError> {
    let names: Vec<String> = programs.iter().map(|program| program.name()).collect();
    let mut logs = Vec::new();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let wanted = names.contains(&name);
        program.set_autoload(wanted);
        if wanted {
            let mut log = vec![0u8; LOG_BYTES];
            keep_log(&mut program, &mut log)?;
            logs.push((name, log));
        }
    }
    Ok(logs)
}

/// The verifier's statistics go into `log`, whose memory must stay until the program is loaded.
fn keep_log(program: &mut OpenProgramMut<'_>, log: &mut [u8]) -> Result<(), DataPlaneError> {
    program.set_log_level(LOG_STATS);
    // SAFETY: libbpf keeps the pointer and writes through it while the object is loaded, not later. `load` keeps the
    // vector, whose memory does not move with it, until after that.
    let failed = unsafe {
        libbpf_sys::bpf_program__set_log_buf(
            program.as_libbpf_object().as_ptr(),
            log.as_mut_ptr().cast::<c_char>(),
            log.len() as libbpf_sys::size_t,
        )
    };
    match failed {
        0 => Ok(()),
        code => Err(DataPlaneError::kernel(
            "the verifier's log",
            format!("code {code}"),
        )),
    }
}

/// The last program that the kernel looked at is the one that it refused.
fn refused(error: &libbpf_rs::Error, logs: &[(String, Vec<u8>)]) -> DataPlaneError {
    let looked_at = logs.iter().rev().find(|(_, log)| log.first() != Some(&0));
    let (name, log) = looked_at.map_or(("the ciphers' programs", &[][..]), |(name, log)| (name, log));
    DataPlaneError::kernel(
        format!("loading {name}"),
        format!("{error}: {}", text(log).trim_end()),
    )
}

fn text(log: &[u8]) -> Cow<'_, str> {
    CStr::from_bytes_until_nul(log)
        .unwrap_or_default()
        .to_string_lossy()
}

fn program_info(program: &ProgramMut<'_>) -> Result<libbpf_sys::bpf_prog_info, DataPlaneError> {
    // SAFETY: all zeros is how the kernel wants it: no arrays to fill.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `bytes` bytes into `info`, which outlives the call.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut bytes)
    };
    match failed {
        0 => Ok(info),
        code => Err(DataPlaneError::kernel("bpf_prog_info", format!("code {code}"))),
    }
}

fn no_stack(name: &str) -> DataPlaneError {
    DataPlaneError::kernel(format!("the stack of {name}"), "not in the verifier's log")
}

/// From "stack depth 16+152+416+152": the program's own and, as none of its functions calls another, the deepest of theirs.
fn deepest_stack(log: &[u8]) -> Result<u32, DataPlaneError> {
    let text = CStr::from_bytes_until_nul(log)
        .unwrap_or_default()
        .to_string_lossy();
    let depths = text.lines().find_map(|line| line.strip_prefix("stack depth "));
    let mut depths = depths
        .unwrap_or_default()
        .split('+')
        .map_while(|depth| depth.trim().parse::<u32>().ok());
    let own = depths.next().ok_or_else(|| no_stack("a program"))?;
    Ok(own + depths.max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::deepest_stack;

    #[test]
    fn the_deepest_chain_of_calls_counts() {
        let depth = |log: &[u8]| deepest_stack(log).ok();
        assert_eq!(
            depth(b"verification time 9 usec\nstack depth 16+152+416+152\n\0rest"),
            Some(432)
        );
        assert_eq!(depth(b"stack depth 144\nprocessed 2 insns\n\0"), Some(144));
        assert_eq!(depth(b"no statistics\0"), None);
    }
}
