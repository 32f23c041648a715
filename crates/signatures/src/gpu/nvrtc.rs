//! NVRTC, CUDA's run-time compiler: loaded on demand; a missing library is not an error at startup.
//!
//! This module binds NVRTC itself, since the binding of `cudarc` ends the process if the library is missing, searches
//! the names of only one CUDA version, accepts no directory and returns only PTX.

use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;
use linewarden_files::check_regular;

use super::error::GpuUnavailable;
use super::source::{HEADERS, Unit};

/// The environment variable with the directory of libnvrtc.
pub const DIRECTORY_VARIABLE: &str = "LINEWARDEN_NVRTC";

/// File names of the library, newest first; all releases of CUDA 11 from 11.2 on use the name of 11.2.
const NAMES: [&str; 4] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
    "libnvrtc.so",
];

type Program = *mut c_void;

/// The used functions of nvrtc.h. Their types are unchanged since CUDA 11.1.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    #[cfg(feature = "host-kernels")]
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    #[cfg(feature = "host-kernels")]
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
}

/// The compiler.
pub struct Nvrtc {
    functions: Functions,
    version: (c_int, c_int),
    /// Keeps the functions loaded.
    _library: Library,
}

impl Nvrtc {
    /// Loads the compiler from the directory in the environment variable, or from the loader's search path.
    ///
    /// # Errors
    /// [`GpuUnavailable::CompilerMissing`] with the error of the last attempt.
    pub fn find() -> Result<Self, GpuUnavailable> {
        match std::env::var_os(DIRECTORY_VARIABLE) {
            Some(directory) => Self::load(Some(Path::new(&directory))),
            None => Self::load(None),
        }
    }

    /// Loads the compiler from a directory, or from the loader's search path.
    ///
    /// # Errors
    /// [`GpuUnavailable::CompilerMissing`] with the error of the last attempt.
    pub fn load(directory: Option<&Path>) -> Result<Self, GpuUnavailable> {
        let mut last_error = String::new();
        for name in NAMES {
            let path =
                directory.map_or_else(|| OsString::from(name), |directory| directory.join(name).into());
            // The loader would block on a FIFO.
            if directory.is_some()
                && let Err(error) = check_regular(&path)
            {
                last_error = format!("{}: {error}", path.display());
                continue;
            }
            // SAFETY: the initializers of NVRTC only set up the compiler.
            match unsafe { Library::new(&path) } {
                Ok(library) => return Self::bind(library),
                Err(error) => last_error = error.to_string(),
            }
        }
        Err(GpuUnavailable::CompilerMissing(last_error))
    }

    fn bind(library: Library) -> Result<Self, GpuUnavailable> {
        let missing = |error: libloading::Error| GpuUnavailable::CompilerMissing(error.to_string());
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is the one that nvrtc.h declares; the pointer lives no longer than the library,
                // which is kept.
                *unsafe { library.get($name) }.map_err(missing)?
            };
        }
        let functions = Functions {
            version: function!(b"nvrtcVersion\0"),
            create: function!(b"nvrtcCreateProgram\0"),
            compile: function!(b"nvrtcCompileProgram\0"),
            destroy: function!(b"nvrtcDestroyProgram\0"),
            log_size: function!(b"nvrtcGetProgramLogSize\0"),
            log: function!(b"nvrtcGetProgramLog\0"),
            cubin_size: function!(b"nvrtcGetCUBINSize\0"),
            cubin: function!(b"nvrtcGetCUBIN\0"),
            #[cfg(feature = "host-kernels")]
            ptx_size: function!(b"nvrtcGetPTXSize\0"),
            #[cfg(feature = "host-kernels")]
            ptx: function!(b"nvrtcGetPTX\0"),
        };
        let mut version = (0, 0);
        // SAFETY: the arguments point to two integers.
        unsafe { (functions.version)(&raw mut version.0, &raw mut version.1) };
        Ok(Self {
            functions,
            version,
            _library: library,
        })
    }

    /// Major and minor version.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles a unit to machine code for an architecture, such as `sm_90`.
    ///
    /// # Errors
    /// [`GpuUnavailable::CompilationFailed`]: for example, this version does not know the architecture.
    pub fn compile(&self, unit: Unit, architecture: &str) -> Result<Vec<u8>, GpuUnavailable> {
        self.compile_and_extract(unit, architecture, &[], |program| program.cubin())
    }

    /// Compiles a unit to PTX for an architecture such as `compute_80`, without function calls, for tests that
    /// interpret the PTX.
    ///
    /// # Errors
    /// As for [`Nvrtc::compile`].
    #[cfg(feature = "host-kernels")]
    pub fn compile_ptx(&self, unit: Unit, architecture: &str) -> Result<String, GpuUnavailable> {
        let inline_option = "--define-macro=LW_CALL=LW_FN";
        self.compile_and_extract(unit, architecture, &[inline_option], |program| program.ptx())
    }

    fn compile_and_extract<T>(
        &self,
        unit: Unit,
        architecture: &str,
        extra_options: &[&str],
        extract: impl Fn(&OpenProgram) -> Result<T, String>,
    ) -> Result<T, GpuUnavailable> {
        let target = format!("--gpu-architecture={architecture}");
        let options = [&[target.as_str(), "--std=c++17"], extra_options].concat();
        let result = OpenProgram::create(self, unit).and_then(|program| {
            program.compile(&options)?;
            extract(&program)
        });
        result.map_err(|log| GpuUnavailable::CompilationFailed {
            unit: unit.source().0,
            architecture: architecture.to_owned(),
            log,
        })
    }
}

/// A program object of NVRTC, destroyed when dropped.
struct OpenProgram<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: `create` made the program, and it is not used again.
        unsafe { (self.nvrtc.functions.destroy)(&raw mut self.program) };
    }
}

impl<'a> OpenProgram<'a> {
    fn create(nvrtc: &'a Nvrtc, unit: Unit) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let (name, source) = unit.source();
        let (name, source) = (text(name)?, text(source)?);
        let headers: Vec<(CString, CString)> = HEADERS
            .iter()
            .map(|(name, body)| Ok((text(name)?, text(body)?)))
            .collect::<Result<_, String>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let bodies: Vec<*const c_char> = headers.iter().map(|(_, body)| body.as_ptr()).collect();
        let count = c_int::try_from(headers.len()).map_err(|error| error.to_string())?;
        let mut program: Program = ptr::null_mut();
        // SAFETY: all strings end in NUL and outlive the call, which copies them; there are `count` names and bodies.
        let result = unsafe {
            (nvrtc.functions.create)(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                count,
                bodies.as_ptr(),
                names.as_ptr(),
            )
        };
        match result {
            0 => Ok(Self { nvrtc, program }),
            code => Err(format!("nvrtcCreateProgram failed with code {code}")),
        }
    }

    fn compile(&self, options: &[&str]) -> Result<(), String> {
        let options: Vec<CString> = options
            .iter()
            .map(|option| CString::new(*option))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).map_err(|error| error.to_string())?;
        // SAFETY: the program is open, and there are `count` strings that end in NUL.
        match unsafe { (self.nvrtc.functions.compile)(self.program, count, pointers.as_ptr()) } {
            0 => Ok(()),
            code => Err(format!(
                "nvrtcCompileProgram failed with code {code}: {}",
                self.log()
            )),
        }
    }

    fn log(&self) -> String {
        let functions = &self.nvrtc.functions;
        let bytes = self.bytes(functions.log_size, functions.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .trim()
            .to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let functions = &self.nvrtc.functions;
        self.bytes(functions.cubin_size, functions.cubin)
            .ok_or_else(|| "no machine code returned".to_owned())
    }

    #[cfg(feature = "host-kernels")]
    fn ptx(&self) -> Result<String, String> {
        let functions = &self.nvrtc.functions;
        let bytes = self
            .bytes(functions.ptx_size, functions.ptx)
            .ok_or("no PTX returned")?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut length = 0usize;
        // SAFETY: the program is open.
        if unsafe { size(self.program, &raw mut length) } != 0 || length == 0 {
            return None;
        }
        let mut bytes = vec![0u8; length];
        // SAFETY: the program is open, and the buffer has the size that NVRTC reported.
        match unsafe { get(self.program, bytes.as_mut_ptr().cast()) } {
            0 => Some(bytes),
            _ => None,
        }
    }
}
