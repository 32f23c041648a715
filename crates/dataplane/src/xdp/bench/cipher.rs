//! Ciphers as eBPF programs (`bpf/bench_cipher.bpf.c`): keystream blocks alone, and programs that encrypt or seal the
//! payload of every UDP packet over IPv4 and send it back. For measurements, and for comparison with the ciphers of
//! user space.

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

use crate::error::DataPlaneError;
use crate::xdp::skeleton::bench_cipher::{BenchCipherSkel, BenchCipherSkelBuilder, OpenBenchCipherSkel};
use crate::xdp::{TestRun, check_privileges, libbpf_log};

/// Bytes of a keystream block.
pub const BLOCK_BYTES: usize = 64;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The longest payload that is encrypted, bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1472;
/// Maximum length of associated data, bytes.
pub const AAD_BYTES_MAX: usize = 16;

/// Number of additions of [`Program::Steps`].
pub const STEPS: u32 = 1000;

/// A stream cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// 6 rounds of Forró: for measurement only.
    Forro6,
    /// 10 rounds of Forró: for measurement only.
    Forro10,
    /// 14 rounds: Forró as published.
    Forro14,
    /// 8 rounds of ChaCha: for measurement only.
    Chacha8,
    /// 12 rounds of ChaCha: for measurement only.
    Chacha12,
    /// 20 rounds: ChaCha as in RFC 8439.
    Chacha20,
}

impl Cipher {
    /// All ciphers, Forró first.
    pub const ALL: [Self; 6] = [
        Self::Forro6,
        Self::Forro10,
        Self::Forro14,
        Self::Chacha8,
        Self::Chacha12,
        Self::Chacha20,
    ];

    /// The name in lower case, with the rounds.
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
    /// All AEADs.
    pub const ALL: [Self; 2] = [Self::XForro14Poly1305, Self::ChaCha20Poly1305];

    /// The name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::XForro14Poly1305 => "xforro14poly1305",
            Self::ChaCha20Poly1305 => "chacha20poly1305",
        }
    }
}

/// Number of blocks that are computed in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One block after the other.
    X1,
    /// Two blocks.
    X2,
    /// Four blocks.
    X4,
}

impl Width {
    /// All widths.
    pub const ALL: [Self; 3] = [Self::X1, Self::X2, Self::X4];

    /// The number of blocks.
    #[must_use]
    pub fn blocks(self) -> usize {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
        }
    }
}

/// The operation of an AEAD program on a packet whose payload ends with space for the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AeadOperation {
    /// Encrypts and writes the tag.
    Seal,
    /// Checks the tag and decrypts. With a wrong tag, drops the packet, unchanged except for its headers.
    Open,
    /// Seals, then opens; can be repeated on the same packet.
    Both,
}

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `return XDP_TX`.
    Empty,
    /// [`STEPS`] dependent additions.
    Steps,
    /// Writes keystream blocks into a map. Without a cipher: only the loads and stores.
    Blocks(Option<Cipher>, Width),
    /// Encrypts the payload and sends the packet back. Without a cipher: only sends it back.
    Answer(Option<Cipher>),
    /// Seals or opens.
    Aead(Aead, AeadOperation),
    /// Poly1305 alone. The one-time key is the beginning of the matrix. The tag is at the position of an AEAD tag and covers
    /// the same bytes.
    Poly1305,
}

impl Program {
    /// The name of the C function.
    fn name(self) -> String {
        match self {
            Self::Empty => "empty".to_owned(),
            Self::Steps => "steps".to_owned(),
            Self::Blocks(cipher, width) => {
                format!("{}_x{}", cipher.map_or("plain", Cipher::name), width.blocks())
            }
            Self::Answer(None) => "answer".to_owned(),
            Self::Answer(Some(cipher)) => format!("answer_{}", cipher.name()),
            Self::Aead(aead, AeadOperation::Seal) => format!("{}_seal", aead.name()),
            Self::Aead(aead, AeadOperation::Open) => format!("{}_open", aead.name()),
            Self::Aead(aead, AeadOperation::Both) => format!("{}_both", aead.name()),
            Self::Poly1305 => "poly1305".to_owned(),
        }
    }
}

/// Input for sealing a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AeadInput {
    /// Key.
    pub key: [u8; 32],
    /// Nonce; ChaCha20-Poly1305 takes the first twelve bytes.
    pub nonce: [u8; 24],
    /// Associated data, at most [`AAD_BYTES_MAX`]; longer data is truncated.
    pub aad: Vec<u8>,
}

/// Statistics of a program, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStats {
    /// eBPF instructions as the kernel runs them (`xlated`), over all functions.
    pub instructions: usize,
    /// Bytes of machine code.
    pub jited_bytes: usize,
    /// Number of instructions that the kernel's verifier processed.
    pub verified: u32,
    /// Stack of the deepest call chain, bytes, from the verifier's log.
    pub stack_bytes: u32,
}

/// Size of a verifier log that contains only statistics.
const LOG_BYTES: usize = 4096;
/// `BPF_LOG_STATS`.
const LOG_STATS: u32 = 4;

/// The programs, loaded.
pub struct CipherBench {
    skeleton: BenchCipherSkel<'static>,
    /// Name and stack depth, bytes, of each loaded program.
    stacks: Vec<(String, u32)>,
}

impl CipherBench {
    /// Loads these programs. All other programs are skipped, because verification takes time.
    ///
    /// # Errors
    /// Privileges are missing, or the kernel refuses a program.
    pub fn load(programs: &[Program]) -> Result<Self, DataPlaneError> {
        check_privileges()?;
        libbpf_log::redirect();
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the cipher programs", error);
        let mut open = BenchCipherSkelBuilder::default().open(storage).map_err(error)?;
        let logs = select_programs(&mut open, programs)?;
        let skeleton = open.load().map_err(|error| load_error(&error, &logs))?;
        let stacks = logs
            .into_iter()
            .map(|(name, log)| Ok((name, deepest_stack(&log)?)))
            .collect::<Result<_, DataPlaneError>>()?;
        Ok(Self { skeleton, stacks })
    }

    /// Sets the matrix of block programs and streams. The matrix contains the counter of the first block.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_matrix(&self, matrix: [u32; 16]) -> Result<(), DataPlaneError> {
        let mut value = self.read(&self.skeleton.maps.input)?;
        for (to, word) in value.chunks_exact_mut(4).zip(matrix) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.write_input(&value)
    }

    /// Sets the input of the AEADs.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_aead(&self, input: &AeadInput) -> Result<(), DataPlaneError> {
        let previous = self.read(&self.skeleton.maps.input)?;
        let aad_bytes = input.aad.len().min(AAD_BYTES_MAX);
        let mut aad = [0; AAD_BYTES_MAX];
        aad.iter_mut().zip(&input.aad).for_each(|(to, from)| *to = *from);
        let mut value = previous.get(..BLOCK_BYTES).unwrap_or_default().to_vec();
        value.extend_from_slice(&input.key);
        value.extend_from_slice(&input.nonce);
        value.extend_from_slice(&(aad_bytes as u32).to_ne_bytes());
        value.extend_from_slice(&[0; 4]);
        value.extend_from_slice(&aad);
        self.write_input(&value)
    }

    /// The keystream that the most recent run of a block program wrote.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn keystream(&self, width: Width) -> Result<Vec<u8>, DataPlaneError> {
        let mut blocks = self.read(&self.skeleton.maps.output)?;
        blocks.truncate(width.blocks() * BLOCK_BYTES);
        Ok(blocks)
    }

    /// Runs a program once on a frame.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn run(&self, program: Program, frame: &[u8]) -> Result<TestRun, DataPlaneError> {
        self.test_run(program, frame, 1).map(|(run, _)| run)
    }

    /// Runs a program in `series_count` series of `repeat` runs on the same packet. Returns the mean duration of a run in the
    /// fastest series, in whole nanoseconds, by the kernel's clock around the series.
    ///
    /// # Errors
    /// The kernel refused an operation, or the last action is not XDP_TX, so the intended path was not measured.
    pub fn time(
        &self,
        program: Program,
        frame: &[u8],
        repeat: u32,
        series_count: u32,
    ) -> Result<f64, DataPlaneError> {
        let mut shortest_ns = f64::MAX;
        for _ in 0..series_count {
            let (run, ns) = self.test_run(program, frame, repeat)?;
            if run.action != libbpf_sys::XDP_TX {
                let problem = format!("{}: action {}, not XDP_TX", program.name(), run.action);
                return Err(DataPlaneError::kernel(
                    "checking the benchmark's last packet",
                    problem,
                ));
            }
            shortest_ns = shortest_ns.min(ns);
        }
        Ok(shortest_ns)
    }

    /// Statistics of a program, as the kernel reports them.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn stats(&self, program: Program) -> Result<ProgramStats, DataPlaneError> {
        let name = program.name();
        let stack = self.stacks.iter().find(|(program_name, _)| *program_name == name);
        let stack_bytes = stack.map(|(_, bytes)| *bytes);
        let info = program_info(&self.program(program)?)?;
        Ok(ProgramStats {
            instructions: info.xlated_prog_len as usize / size_of::<u64>(),
            jited_bytes: info.jited_prog_len as usize,
            verified: info.verified_insns,
            stack_bytes: stack_bytes.ok_or_else(|| missing_stack_depth(&name))?,
        })
    }

    /// Memory that the kernel accounts for the maps that a packet needs, bytes: key and nonce, and intermediate
    /// state.
    ///
    /// # Errors
    /// An error of `/proc`.
    pub fn map_bytes(&self) -> Result<u64, DataPlaneError> {
        let maps = &self.skeleton.maps;
        let bytes = [&maps.input, &maps.work].map(|map| {
            let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
            let text = fs::read_to_string(&path).map_err(|error| DataPlaneError::kernel(path, error))?;
            let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            line.and_then(|bytes| bytes.trim().parse::<u64>().ok())
                .ok_or_else(|| DataPlaneError::kernel("reading the memory of a map", "not in its fdinfo"))
        });
        bytes.into_iter().sum()
    }

    /// Attaches a program to an interface of the calling thread's network namespace, until the link is dropped.
    ///
    /// # Errors
    /// Errors of the kernel.
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
            .ok_or_else(|| DataPlaneError::kernel(format!("program {name}"), "the program is not loaded"))
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
            .map_err(|error| DataPlaneError::kernel("reading a cipher map", error))?
            .ok_or_else(|| DataPlaneError::kernel("reading a cipher map", "no element"))
    }

    fn write_input(&self, value: &[u8]) -> Result<(), DataPlaneError> {
        let input = &self.skeleton.maps.input;
        input
            .update(&0u32.to_ne_bytes(), value, MapFlags::ANY)
            .map_err(|error| DataPlaneError::kernel("writing the ciphers' input", error))
    }
}

/// Selects only these programs for loading, each with its own log.
fn select_programs(
    open: &mut OpenBenchCipherSkel<'_>,
    programs: &[Program],
) -> Result<Vec<(String, Vec<u8>)>, DataPlaneError> {
    let names: Vec<String> = programs.iter().map(|program| program.name()).collect();
    let mut logs = Vec::new();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_selected = names.contains(&name);
        program.set_autoload(is_selected);
        if is_selected {
            let mut log = vec![0u8; LOG_BYTES];
            keep_log(&mut program, &mut log)?;
            logs.push((name, log));
        }
    }
    Ok(logs)
}

/// Makes the verifier write its statistics to `log`, whose memory must stay valid until the program is loaded.
fn keep_log(program: &mut OpenProgramMut<'_>, log: &mut [u8]) -> Result<(), DataPlaneError> {
    program.set_log_level(LOG_STATS);
    // SAFETY: libbpf keeps the pointer and writes through it while the object is being loaded, not later. `load` keeps
    // the vector until then; a move of the vector does not move its memory.
    let status = unsafe {
        libbpf_sys::bpf_program__set_log_buf(
            program.as_libbpf_object().as_ptr(),
            log.as_mut_ptr().cast::<c_char>(),
            log.len() as libbpf_sys::size_t,
        )
    };
    match status {
        0 => Ok(()),
        code => Err(DataPlaneError::kernel(
            "setting the verifier's log",
            format!("code {code}"),
        )),
    }
}

/// The error of the program that the kernel refused: the last program for which the verifier wrote a log.
fn load_error(error: &libbpf_rs::Error, logs: &[(String, Vec<u8>)]) -> DataPlaneError {
    let newest_log = logs.iter().rev().find(|(_, log)| log.first() != Some(&0));
    let (name, log) = newest_log.map_or(("the cipher programs", &[][..]), |(name, log)| (name, log));
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
    // SAFETY: the kernel expects zeros where no arrays have to be filled.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `bytes` bytes into `info`, which outlives the call.
    let status = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut bytes)
    };
    match status {
        0 => Ok(info),
        code => Err(DataPlaneError::kernel(
            "reading bpf_prog_info",
            format!("code {code}"),
        )),
    }
}

fn missing_stack_depth(name: &str) -> DataPlaneError {
    DataPlaneError::kernel(
        format!("reading the stack depth of {name}"),
        "not in the verifier's log",
    )
}

/// Parses "stack depth 16+152+416+152". The result is the program's own depth plus the largest depth of its functions,
/// which do not call each other.
fn deepest_stack(log: &[u8]) -> Result<u32, DataPlaneError> {
    let text = CStr::from_bytes_until_nul(log)
        .unwrap_or_default()
        .to_string_lossy();
    let depths = text.lines().find_map(|line| line.strip_prefix("stack depth "));
    let mut depths = depths
        .unwrap_or_default()
        .split('+')
        .map_while(|depth| depth.trim().parse::<u32>().ok());
    let program_depth = depths.next().ok_or_else(|| missing_stack_depth("a program"))?;
    Ok(program_depth + depths.max().unwrap_or_default())
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
